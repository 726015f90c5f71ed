"""Writes a recording of drumline as files of other tools: exports of Nsight Systems, logs of NCCL's Inspector."""

import json
import sqlite3
import struct
from dataclasses import replace

import numpy as np

from drumline.producers.activity.activity import MEMSET
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nvtx import ranges as nested_ranges
from drumline.producers.derive.rows import derive
from drumline.producers.replay.recording import measured_from
from drumline.producers.replay.trace import read_trace

#: Time of an export's zero.
EPOCH_NS = 1_700_000_000_000_000_000
NCCL_DOMAIN, CALL_SCHEMA, COMMUNICATOR_SCHEMA = 1, 7, 2

_TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);
CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, idx INTEGER, name TEXT, offset INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
  correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, registersPerThread INTEGER, gridX INTEGER,
  gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, graphId INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, streamId INTEGER, correlationId INTEGER,
  globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, streamId INTEGER, correlationId INTEGER,
  globalPid INTEGER, bytes INTEGER, memKind INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER,
  domainId INTEGER, binaryData BLOB);
"""


def beginning(recording, ranks=2, steps=25):
    """Return the first ranks of a recording, and of each the rows that begin in its first steps."""
    trace = read_trace(recording)
    activities = []
    for activity in trace.activities[:ranks]:
        until = int(derive(activity).steps["start_ns"][steps])
        activities.append(
            replace(
                activity,
                kernels=activity.kernels.take(activity.kernels["start_ns"] < until),
                copies=activity.copies.take(activity.copies["start_ns"] < until),
                markers=activity.markers.take(activity.markers["time_ns"] < until),
            )
        )
    return replace(trace, ranks=trace.ranks[:ranks], activities=tuple(activities))


def blob(schema, *, communicator, rest):
    """Return an NVTX payload as an export holds it."""
    body = struct.pack("<Q", communicator) + rest
    return struct.pack("<IIIIQQ", NCCL_DOMAIN, 0, schema, 0, len(body), 0) + body


def as_rows(columns):
    """Return columns as rows of Python numbers."""
    return zip(*map(np.ndarray.tolist, columns), strict=True)


def write_nsys(trace, path):
    """Write all ranks of a trace into one export; rank r is process 100 + r."""
    with sqlite3.connect(path) as base:
        base.executescript(_TABLES)
        base.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?)", (EPOCH_NS,))
        base.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', ?)", (trace.ranks[0].host,))
        for schema, fields in (
            (CALL_SCHEMA, (("NCCL communicator ID", None), ("Message size [bytes]", 8), ("Peer rank", 16))),
            (COMMUNICATOR_SCHEMA, (("NCCL communicator ID", None), ("No. of ranks", 8), ("Rank", 12))),
        ):
            rows = [(NCCL_DOMAIN, schema, i, name, offset) for i, (name, offset) in enumerate(fields)]
            base.executemany("INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (?, ?, ?, ?, ?)", rows)
        texts = {}

        def text_id(text):
            return texts.setdefault(text, len(texts) + 1)

        for info, activity in zip(trace.ranks, trace.activities, strict=True):
            _process(base, info, activity, len(trace.ranks), text_id)
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, text) for text, i in texts.items()])
    base.close()


def _process(base, info, activity, ranks, text_id):
    process = (100 + info.rank) << 24
    kernels, copies = activity.kernels, activity.copies
    names = [text_id(name) for name in kernels.dictionaries["names"]]
    start = kernels["start_ns"] - EPOCH_NS
    columns = (
        [start, start + kernels["duration_ns"].astype(np.int64), np.full(kernels.rows, info.gpu_index)]
        + [kernels["stream"], kernels["correlation"], np.full(kernels.rows, process), np.array(names)[kernels["name"]]]
        + [kernels["registers"]]
        + [kernels[f"{kind}_{axis}"] for kind in ("grid", "block") for axis in "xyz"]
        + [kernels["graph"], kernels["graph_node"].astype(np.int64)]
    )
    marks = ",".join("?" * len(columns))
    base.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", as_rows(columns))
    for table, chosen in (("MEMCPY", copies["kind"] != MEMSET), ("MEMSET", copies["kind"] == MEMSET)):
        rows = copies.take(chosen)
        start = rows["start_ns"] - EPOCH_NS
        columns = [start, start + rows["duration_ns"].astype(np.int64), rows["stream"], rows["correlation"]]
        columns += [np.full(rows.rows, process), rows["bytes"]]
        memory = [rows[name].astype(np.int64) - 1 for name in ("src_kind", "dst_kind")]
        columns += [rows["kind"], *memory] if table == "MEMCPY" else [memory[1]]
        marks = ",".join("?" * len(columns))
        base.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} VALUES ({marks})", as_rows(columns))
    ranges, _ = nested_ranges(activity.markers)
    payload_of = {int(i): at for at, i in enumerate(activity.payloads["id"].tolist())}
    domains = activity.markers.dictionaries["domains"]
    rows = []
    for i in range(ranges.rows):
        begin, end = (
            int(ranges["start_ns"][i]) - EPOCH_NS,
            int(ranges["start_ns"][i] + ranges["duration_ns"][i]) - EPOCH_NS,
        )
        is_nccl = domains[ranges["domain"][i]] == nccl.DOMAIN
        data = None
        if (at := payload_of.get(int(ranges["id"][i]))) is not None:
            rest = struct.pack("<Qii", int(activity.payloads["bytes"][at]), int(activity.payloads["peer"][at]), 0)
            data = blob(CALL_SCHEMA, communicator=int(activity.payloads["communicator"][at]), rest=rest)
        name = activity.markers.dictionaries["names"][ranges["name"][i]]
        rows.append(
            (
                begin,
                end,
                59,
                None if is_nccl else name,
                process + 7,
                text_id(name) if is_nccl else None,
                int(is_nccl),
                data,
            )
        )
    created = blob(COMMUNICATOR_SCHEMA, communicator=1, rest=struct.pack("<iiii", ranks, info.rank, info.gpu_index, 0))
    rows.append((0, 10, 59, None, process + 7, text_id("ncclCommInitRank"), NCCL_DOMAIN, created))
    base.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)


def inspector_lines(trace):
    """Return rank -> the lines of a verbose Inspector log with the operations of that rank; times in whole us."""
    derived = [derive(a, since_ns=at) for a, at in zip(trace.activities, measured_from(trace), strict=False)]
    return {
        info.rank: list(_lines(info, rows.collectives, len(trace.ranks)))
        for info, rows in zip(trace.ranks, derived, strict=True)
    }


def _lines(info, collectives, ranks):
    numbers = {}
    for i in np.argsort(collectives["call_ns"]).tolist():
        communicator = int(collectives["communicator"][i])
        numbers[communicator] = numbers.get(communicator, 0) + 1
        start = int(collectives["start_ns"][i]) // 1000
        yield json.dumps(
            {
                "header": {
                    "id": hex(communicator),
                    "comm_name": "unknown",
                    "rank": info.rank,
                    "n_ranks": ranks,
                    "nnodes": 1,
                },
                "metadata": {
                    "inspector_output_format_version": "v4.4",
                    "rec_mechanism": "nccl_profiler_interface",
                    "dump_timestamp_us": start + 1000,
                    "hostname": info.host,
                    "pid": info.pid,
                },
                "coll_perf": {
                    "coll": nccl.OPERATIONS[collectives["operation"][i]],
                    "coll_sn": numbers[communicator],
                    "coll_msg_size_bytes": int(collectives["bytes"][i]),
                    "coll_exec_time_us": round(int(collectives["duration_ns"][i]) / 1000),
                    "coll_timing_source": "kernel_gpu",
                    "event_trace_ts": {
                        "coll_start_ts": int(collectives["call_ns"][i]) // 1000,
                        "coll_stop_ts": start + 1,
                        "kernel_events": [{"channel_id": 0, "kernel_start_ts": start, "kernel_stop_ts": 0}],
                    },
                },
            }
        )
