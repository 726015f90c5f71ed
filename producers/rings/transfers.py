"""Transfers of a process over the network: rows of gpu.transfer.v1, from the records of proxy operations. Pure.

A row holds the operations of one second, by when they ended, of one communicator, peer and direction. Between which
states of NCCL a time lies is stated in producers/nccl_profiler/transfers.c. What that means:

- Of a send, `gpu_wait_ns` is the GPU's time to fill the buffer, `peer_wait_ns` the time until the network took it, and
  `network_ns` the time from then until the network stated that it is sent. `busy_ns` is the time in which at least one
  was on the network, channels taken together: bytes by `busy_ns` is the rate of the pair.
- InfiniBand takes a buffer when the receiver has given credit for it, so a slow receiver is `peer_wait_ns`. Sockets
  take every buffer: there the kernel's buffers fill, and a slow receiver is `network_ns` of the sender. Its own row
  shows it: it has data that its GPU does not consume (`gpu_wait_ns`); one behind a slow link waits for data.
- Of a receive, the time from the network's getting a buffer until the data is there is `peer_wait_ns`, as NCCL knows no
  more than that, and `network_ns` is 0. `busy_ns` is the time in which at least one buffer waited for data.
"""

from __future__ import annotations

import numpy as np

from drumline.producers.activity.table import Table
from drumline.producers.batching.sample_envelopes import UNKNOWN
from drumline.producers.derive.nccl.kernel_names import hash_text
from drumline.producers.rings.ring_file import (
    MAX_COMMS,
    RECEIVED,
    RECORD_BYTES,
    SENT,
    TRANSFER_UNIT_NS,
    TRANSFERS,
    Kind,
)
from drumline.producers.rings.step_cuts import MOST_STEPS
from drumline.schemas.columns import Array

SECOND_NS = 1_000_000_000
#: Largest size and number of transfers of a record that are believed: whoever writes a ring may write any number.
MOST_BYTES, MOST_TRANSFERS = 1 << 44, 1 << 32
DIRECTIONS = ("send", "receive")
_SUMS = ("transfers", "bytes", "gpu_wait_ns", "peer_wait_ns", "network_ns", "flush_ns")


def transfer_rows(records: Array, communicators: Array, step_offset: int | Array) -> Table:
    """Return the rows of records of a ring (ring_file.RECORD), of which others than transfers are passed over.

    `step_offset`: added to the job's own numbers of steps; one for all, or of each record.
    """
    matched, known = _known(records, communicators)
    offset = np.broadcast_to(step_offset, len(records))[known]
    second, comm = matched["host_ns"].astype(np.int64) // SECOND_NS, matched["comm"]
    order = np.lexsort((matched["channel"], matched["direction"], matched["peer"], comm, second))
    matched, second, comm, offset = matched[order], second[order], comm[order], offset[order]
    keys = (second, comm, matched["peer"], matched["direction"])
    first = _starts(*keys)
    values = _values(matched)
    sums = {name: np.add.reduceat(values[name], first) if len(first) else values[name] for name in _SUMS}
    group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(matched))))
    of_channel = _starts(*keys, matched["channel"])
    slowest = _slowest(matched, values, group, of_channel)
    steps = np.where(matched["step"] < 0, -1, np.minimum(matched["step"], MOST_STEPS - offset) + offset)
    used, place = np.unique(comm[first], return_inverse=True)
    columns = {
        "start_ns": second[first] * SECOND_NS,
        "duration_ns": np.full(len(first), SECOND_NS, np.uint64),
        "communicator": place.astype(np.uint32),
        "comm_rank": communicators["rank"][comm[first]],
        "ranks": communicators["ranks"][comm[first]],
        "peer": matched["peer"][first],
        "direction": (matched["direction"][first] == RECEIVED).astype(np.uint8),
        "nic": np.zeros(len(first), np.uint32),
        "channels": np.bincount(group[of_channel], minlength=len(first)).astype(np.int32),
        "operations": np.diff(np.append(first, len(matched))),
        **sums,
        "busy_ns": _busy_ns(matched, group, len(first)),
        **slowest,
        "first_step": np.minimum.reduceat(steps, first) if len(first) else steps,
        "last_step": np.maximum.reduceat(steps, first) if len(first) else steps,
        **{name: np.zeros(len(first), np.uint32) for name in ("local", "remote")},
        **{name: np.full(len(first), UNKNOWN) for name in ("retransmitted", "delivery_rate", "queued")},
    }
    names = [hash_text(int(communicators["id"][index])) for index in used.tolist()]
    return Table(
        columns,
        {"communicators": names, "directions": DIRECTIONS, **dict.fromkeys(("nics", "locals", "remotes"), ("",))},
    )


def _known(records: Array, communicators: Array) -> tuple[Array, Array]:
    """Return the records of transfers of known communicators (ring_file.TRANSFERS), and their positions."""
    at = np.flatnonzero(records["kind"] == Kind.TRANSFERS)
    matched = np.ascontiguousarray(records).view(f"V{RECORD_BYTES}")[at].view(TRANSFERS)
    comm = matched["comm"] % MAX_COMMS
    is_known = (matched["comm"] < MAX_COMMS) & (matched["generation"] == communicators["generation"][comm])
    is_known &= (matched["direction"] == SENT) | (matched["direction"] == RECEIVED)
    is_known &= (matched["peer"] >= 0) & (matched["peer"] < communicators["ranks"][comm])
    return matched[is_known], at[is_known]


def _starts(*keys: Array) -> Array:
    """Return the positions at which one of the sorted keys changes."""
    changes = np.ones(len(keys[0]), bool)
    changes[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return np.flatnonzero(changes)


def _values(matched: Array) -> dict[str, Array]:
    values = {f"{name}_ns": matched[name].astype(np.int64) * TRANSFER_UNIT_NS for name in
              ("gpu_wait", "peer_wait", "network", "flush")}  # fmt: skip
    for name, most in (("transfers", MOST_TRANSFERS), ("bytes", MOST_BYTES)):
        values[name] = np.minimum(matched[name], np.uint64(most)).astype(np.int64)
    return values


def _slowest(matched: Array, values: dict[str, Array], group: Array, of_channel: Array) -> dict[str, Array]:
    """Return channel, bytes and time on the network of each group's slowest channel; -1, 0, 0 without such time."""
    groups = int(group[-1]) + 1 if len(group) else 0
    result = np.zeros((3, groups), np.int64)
    result[0] = -1
    if groups:
        size, time_ns = (np.add.reduceat(values[name], of_channel) for name in ("bytes", "network_ns"))
        channel, place = matched["channel"][of_channel].astype(np.int64), group[of_channel]
        usable = time_ns > 0
        channel, size, time_ns, place = channel[usable], size[usable], time_ns[usable], place[usable]
        order = np.lexsort((size / time_ns, place))
        leads = order[_starts(place[order])] if len(order) else order
        result[:, place[leads]] = channel[leads], size[leads], time_ns[leads]
    return {
        "slowest_channel": result[0].astype(np.int32), "slowest_bytes": result[1], "slowest_network_ns": result[2]
    }  # fmt: skip


def _busy_ns(matched: Array, group: Array, groups: int) -> Array:
    """Return the union of each group's intervals, by the clock that runs while the link is busy."""
    begin = matched["busy_from_ns"].astype(np.float64)
    lowest = np.full(groups, np.inf)
    np.minimum.at(lowest, group, begin)
    # From the group's first on, and at most as far as a record can reach: groups lie behind each other on one line.
    span = 2 * TRANSFER_UNIT_NS * (1 << 32)
    begin = np.minimum(begin - lowest[group], span // 2).astype(np.int64) + group * span
    end = begin + matched["busy"].astype(np.int64) * TRANSFER_UNIT_NS
    order = np.lexsort((begin, group))
    begin, end = begin[order], end[order]
    before = np.append(-1, np.maximum.accumulate(end)[:-1])[: len(end)]
    return np.bincount(group[order], np.maximum(0, end - np.maximum(begin, before)), groups).astype(np.int64)
