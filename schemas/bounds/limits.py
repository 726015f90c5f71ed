"""Declare the range of every field of every topic: docs/reference/record-bounds.md lists them.

No real job comes near a limit. They exist so that no record, whoever wrote it, can make a consumer allocate or loop by
a number that it names. `check.py` checks batches. Schemas do not hold the limits, so that a changed limit needs
no new version.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from drumline.schemas.counters import COUNTERS, BoundKind
from drumline.schemas.model import model
from drumline.schemas.topics import DERIVED_TOPICS, Topic

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS
#: How far the time of a row may lie before and after the time at which Kafka took its record in: each day is a
#: partition of a table. Recordings may be replayed with their own times.
PAST_NS, AHEAD_NS = 5 * 365 * DAY_NS, DAY_NS
LONGEST_NS = 400 * DAY_NS
#: Rows of a record. Producers flush at 4,096; lateness and verdicts have a row for each rank.
MAX_ROWS = 1 << 16
#: Bytes of a record before compression. Producers send at most 1,000,000; a worker's results are larger where they have
#: a row for each of many ranks.
MAX_BYTES, MAX_DERIVED_BYTES = 2 << 20, 16 << 20
#: Bytes of a record's key: two names of 1,024 characters in UTF-8 and a colon (keys.py).
MAX_KEY_BYTES = 4 * (2 * 1_024 + 1)
#: Bytes of the names and values of a record's headers.
MAX_HEADERS_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Bound:
    """Declares what a field may hold.

    Attributes:
        meaning: kind of value, in the texts of errors.
        reason: origin of the limit.
        low, high: of a number, both included; also of the numbers in an array.
        length: most characters of a text; also of texts in an array, and of keys and values of a map.
        items: most items of an array or map.
        total: most characters of a dictionary's texts over all rows; 0 = no limit.
        is_time: the value is in ns since the epoch, and at most AHEAD_NS after its record.
        is_recent: it is also at most PAST_NS before its record. An envelope may hold 0 = no time.
    """

    meaning: str
    reason: str
    low: float = 0
    high: float = 0
    length: int = 0
    items: int = 0
    total: int = 0
    is_time: bool = False
    is_recent: bool = False


_LONG = (1 << 63) - 1
_TIME_END_NS = (1 << 32) * SECOND_NS - 1
_ROW_TIME = "5 years before to 24 hours after Kafka took the record in; within ClickHouse's DateTime"

RANK = Bound("rank", "64 times the largest jobs; -1 = no rank", -1, (1 << 20) - 1)
RANKS = Bound("number of ranks", "64 times the largest jobs", 0, 1 << 20)
NUMBER = Bound("number", "width of the field", 0, (1 << 31) - 1)
CHANNEL = Bound("channel", "NCCL has 64; -1 = none", -1, (1 << 20) - 1)
COUNT = Bound("count", "doubles hold every whole number up to it", 0, 1 << 53)
BEGUN = Bound("count", "doubles hold every whole number up to it; -1 = unknown", -1, 1 << 53)
ROWS = Bound("number of rows", "16 times what producers send", 0, MAX_ROWS)
STEP = Bound("step number", "doubles hold every whole number up to it; -1 = no step", -1, 1 << 53)
DURATION = Bound("duration", "400 days, longer than any training", 0, LONGEST_NS)
SHARE_NS = Bound("time", "400 days; -1 = unknown", -1, LONGEST_NS)
SINCE_LOAD_NS = Bound("time", "width of ClickHouse's Int64; -1 = not supported", -1, _LONG)
LAG = Bound("time", "400 days before to after the other ranks", -LONGEST_NS, LONGEST_NS)
SUM = Bound("sum", "width of ClickHouse's Int64", 0, _LONG)
BYTES = Bound("number of bytes", "1 PiB, more than the memory of 5,000 GPUs", 0, 1 << 50)
READING = Bound("reading", "doubles hold every whole number up to it; -1 = not supported", -1, 1 << 53)
HOST_READING = Bound("reading", "doubles hold every whole number up to it; -1 = unknown", -1, 1 << 53)
MASK = Bound("bit mask", "NVML defines 9 bits; -1 = not supported", -1, 1 << 53)
PERCENT = Bound("percentage", "fans may exceed 100; -1 = not supported", -1, 1_000)
SEVERITY = Bound("severity", "insufficient data to critical", -1, 3)
FLAG = Bound("flag", "0 or 1", 0, 1)
LOST = Bound("time", "width of ClickHouse's Int64", -_LONG - 1, _LONG)
SHARE = Bound("share", "lost time is at most that of all ranks", -(1 << 20), 1 << 20)
AMOUNT = Bound("amount", "doubles hold every whole number up to it", -(1 << 53), 1 << 53)
SIZE_32 = Bound("size", "every number of 32 bits", -(1 << 31), (1 << 31) - 1)
UNLIMITED_8 = Bound("label", "every number of 8 bits", 0, (1 << 8) - 1)
UNLIMITED_16 = Bound("number", "every number of 16 bits", 0, (1 << 16) - 1)
UNLIMITED_32 = Bound("id or size", "every number of 32 bits", 0, (1 << 32) - 1)
UNLIMITED_64 = Bound("id", "every number of 64 bits", 0, (1 << 64) - 1)
INDEX = Bound("index", "items of its dictionary", 0, MAX_ROWS - 1)
ROW_TIME = Bound("time of a row", _ROW_TIME, 0, _TIME_END_NS, is_time=True, is_recent=True)
WINDOW_START = Bound("start of a window", f"{_ROW_TIME}; 0 = none", 0, _TIME_END_NS, is_time=True, is_recent=True)
CLOCK = Bound("time", "24 hours after Kafka took the record in; 0 = none", 0, _TIME_END_NS, is_time=True)
IDENTITY = Bound("name", "4 times the longest host name", length=1_024)
IDENTITIES = Bound("name", "a name of each rank", length=1_024, items=MAX_ROWS)
LABEL = Bound("text", "twice the longest name", length=2_048)
LABELS = Bound("text", "a text for each row", length=2_048, items=MAX_ROWS)
OPERATIONS = Bound("operation", "its index has 8 bits", length=256, items=256)
NAMES = Bound("name", "demangled C++ names have some thousand characters", length=1 << 16, items=MAX_ROWS)
EVIDENCE = Bound("evidence", "a row has some hundred characters", length=1 << 16, items=MAX_ROWS, total=16 << 20)
RAS_ANSWERS = Bound("text", "16 ranks of a communicator", length=1 << 14, items=256)
STACKS = Bound("stack", "64 frames of 64 characters", length=4_096, items=256, total=1 << 19)
LAUNCH_STACKS = Bound("stack", "a stack of each row that producers send", length=4_096, items=8_192, total=16 << 20)
NOTE = Bound("text", "free text of people and programs", length=1 << 16)
NOTES = Bound("text", "free texts of people and programs", length=1 << 16, items=1_024)
RANK_LIST = Bound("rank", RANK.reason, RANK.low, RANK.high, items=MAX_ROWS)
_OF_COUNTERS = {
    BoundKind.READING: READING,
    BoundKind.PERCENT: PERCENT,
    BoundKind.SINCE_LOAD_NS: SINCE_LOAD_NS,
    BoundKind.MASK: MASK,
}
_KINDS = 1 << 20
#: Lists of gpu.lateness.v1, of equal lengths: the collectives of each step, operation and size.
KINDS = ("kind_steps", "kind_operations", "kind_bytes", "kind_counts", "kind_floors_ns")
#: Lists of gpu.lateness.v1, of equal lengths: the steps that show whether waits are hidden.
HIDDEN = ("hidden_steps", "hidden_parts_ns", "hidden_changes_ns", "hidden_spreads_ns")


def _kinds(bound: Bound) -> Bound:
    return Bound(bound.meaning, bound.reason, bound.low, bound.high, items=_KINDS)


#: Bound -> its fields. `topic:field` counts more than `field`. Indices of a dictionary are not listed: INDEX.
_FIELDS: tuple[tuple[Bound, str], ...] = (
    (IDENTITY, "job run host gpu_uuid process_id communicator k8s_namespace k8s_pod slurm_job sampled_process"),
    (IDENTITY, "parent_uuid k8s_container evaluation lead_process"),
    (IDENTITIES, "hosts gpu_uuids communicators"),
    (LABEL, f"gpu_model serial model source steps_from point_to_point {Topic.HANG}:state verdict role"),
    (LABELS, f"causes details states groups confidences reasons {Topic.HANG}:notes"),
    (LABELS, "devices links checks findings directions nics locals remotes"),
    (LABELS, "engines roles phases adapter_lists ids traceparents models adapter_names tenants routes outcomes"),
    (LABELS, f"functions files callers {Topic.STACK}:threads"),
    (STACKS, "stacks"),
    (LAUNCH_STACKS, f"scopes {Topic.LAUNCH}:stacks"),
    (NAMES, "names domains"),
    (OPERATIONS, "operations datatypes last_operations last_datatypes"),
    (EVIDENCE, "evidence"),
    (RAS_ANSWERS, "ras_answers"),
    (NOTE, "policy"),
    (NOTES, "labels versions collector"),
    (RANK, "rank local_rank gpu_index gpu_instance comm_rank peer named_rank lead_rank"),
    (RANKS, "world_size ranks ranks_seen waiting"),
    (RANK_LIST, "rank_list"),
    (NUMBER, f"pid ordinal worst_ordinal {Topic.LATENESS}:collectives"),
    (NUMBER, "samples samples_total gil_samples gil_polls gil_waiting stacks_left_out thread_id line"),
    (CHANNEL, "channels slowest_channel"),
    (ROWS, "rows"),
    (COUNT, "sequence dropped_before revision late_rows steps_used steps_skipped kernels collectives launches copies"),
    (COUNT, f"{Topic.STALL}:samples not_issued replayed"),
    (COUNT, f"{Topic.TRANSFER}:operations transfers"),
    (BEGUN, "begun"),
    (COUNT, "called ended elements last_elements number episode"),
    (STEP, "step complete_step first_step last_step episode_first_step episode_last_step"),
    (CLOCK, f"base_time_ns watermark_ns sent_ns window_end_ns {Topic.PROCESS}:start_ns"),
    (CLOCK, "process_start_ns attempt_start_ns lead_start_ns"),
    (ROW_TIME, "start_ns gpu_start_ns time_ns"),
    (WINDOW_START, "window_start_ns"),
    (DURATION, "duration_ns gpu_duration_ns covered_ns min_ns max_ns p50_ns p95_ns p99_ns"),
    (DURATION, "step_ns worst_longest_ns worst_own_ns quiet_ns"),
    (SHARE_NS, "compute_ns compute_overlapped_ns copy_ns copy_total_ns copy_pageable_ns comm_ns comm_exposed_ns"),
    (SHARE_NS, "idle_ns launch_late_ns sync_ns input_ns load_ns gc_ns checkpoint_ns"),
    (LAG, "lag_ns"),
    (SUM, "gpu_ns busy_ns wait_ns lateness_ns exposed_wait_ns hidden_wait_ns floor_ns blocks"),
    (SUM, "gpu_wait_ns peer_wait_ns network_ns flush_ns slowest_network_ns"),
    (LOST, "lost_ns"),
    (SUM, f"grid_sum grid_max block_sum {Topic.MEMCPY_BANDWIDTH}:bytes {Topic.LATENESS}:bytes"),
    (BYTES, "bytes slowest_bytes"),
    (_kinds(STEP), "kind_steps"),
    (_kinds(UNLIMITED_8), "kind_operations"),
    (_kinds(BYTES), "kind_bytes"),
    (_kinds(NUMBER), "kind_counts"),
    (_kinds(SUM), "kind_floors_ns hidden_changes_ns hidden_spreads_ns"),
    (_kinds(STEP), "hidden_steps"),
    (_kinds(LOST), "hidden_parts_ns"),
    *((_OF_COUNTERS[counter.kind], counter.name) for counter in COUNTERS),
    (PERCENT, "job_util_sm"),
    (READING, "job_memory lost"),
    (SHARE_NS, "interval_ns sample_age_ns"),
    (READING, "measured expected"),
    (HOST_READING, f"{Topic.ITERATION}:waiting"),
    (HOST_READING, "retransmitted delivery_rate queued"),
    (SHARE_NS, f"{Topic.ITERATION}:gpu_ns {Topic.REQUEST}:gpu_ns gap_ns schedule_ns gpu_idle_ns"),
    (SHARE_NS, "queue_ns ttft_ns prefill_gpu_ns host_ns"),
    (SIZE_32, "grid_x grid_y grid_z block_x block_y block_z shared_static shared_dynamic"),
    (UNLIMITED_16, "registers depth"),
    (UNLIMITED_32, "stream correlation cluster_x shared_executed local_per_thread graph id parent_id block_max"),
    (UNLIMITED_32, f"{Topic.LAUNCH}:thread cycles"),
    (UNLIMITED_64, "graph_node"),
    (UNLIMITED_8, "kind src_kind dst_kind sampled"),
    (FLAG, "is_async skipped changed exact closed is_main"),
    (SEVERITY, "severity"),
    (SHARE, "lost_share"),
    (AMOUNT, "gpu_seconds_lost money_lost"),
)
FIELDS = MappingProxyType({name: bound for bound, names in _FIELDS for name in names.split()})
#: Columns of samples that are not listed: readings.
_READINGS = {
    Topic.HOST: HOST_READING,
    Topic.NETWORK: READING,
    Topic.ITERATION: HOST_READING,
    Topic.REQUEST: HOST_READING,
}
#: Rows of a record of topics whose consumers work by row, not by column: twice what producers send.
ROWS_OF_STEPS = Bound("number of rows", "twice what producers send", 0, 8_192)
_ROWS_OF = {Topic.STEP: ROWS_OF_STEPS, Topic.COLLECTIVE: ROWS_OF_STEPS}


def bound(topic: str, field: str) -> Bound:
    """Return the bound of a field. Raises KeyError for a field without one."""
    if field == "rows":
        return _ROWS_OF.get(Topic(topic), ROWS)
    column = next((column for column in model(topic).columns if column.name == field), None)
    if column is not None and column.dictionary:
        return INDEX
    if column is not None and field not in FIELDS and topic in _READINGS:
        return _READINGS[Topic(topic)]
    return FIELDS.get(f"{topic}:{field}") or FIELDS[field]


@cache
def bounds(topic: str) -> dict[str, Bound]:
    """Return field -> bound of a topic with a schema, in the order of the schema."""
    return {field: bound(topic, field) for field in model(topic).fields}


def max_bytes(topic: str) -> int:
    """Return the largest number of bytes of a record's value."""
    return MAX_DERIVED_BYTES if topic in DERIVED_TOPICS else MAX_BYTES
