"""Flight Recorder dumps and RAS answers of made-up jobs, in the form of NCCL's, after the sources of PyTorch and NCCL.

A job is written down as the calls of each rank: `call("tp", "all_reduce", 3, state)`. Times, record numbers and stacks
follow from the order.
"""

from __future__ import annotations

import json
import pickle
from collections import defaultdict

BEGIN = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
WORLD = {"0": ("default_pg", [0, 1, 2, 3])}
#: tp groups of neighbours, dp groups across.
MESH = WORLD | {
    "1": ("tp", [0, 1]), "2": ("tp", [2, 3]), "3": ("dp", [0, 2]), "4": ("dp", [1, 3]),
}  # fmt: skip
COMPLETED, STARTED, SCHEDULED = "completed", "started", "scheduled"


class Recorder:
    """Records the calls of one rank, as its Flight Recorder does. `timed`: when operations begin is recorded too."""

    def __init__(self, rank, groups=WORLD, timed=True):
        self.rank, self.groups, self.timed = rank, groups, timed
        self.entries, self.numbers = [], defaultdict(int)

    def call(self, operation="all_reduce", state=COMPLETED, group="0", shape=(8, 4), dtype="Float", peer=None):
        """Record a call; `peer`: group rank of a send's or receive's other end."""
        is_peer = peer is not None
        this_rank = self.groups[group][1].index(self.rank)
        name = f"{operation} {this_rank}{'->' if operation == 'send' else '<-'}{peer}" if is_peer else operation
        self.numbers[group, is_peer] += 1
        self._add(name, state, group, shape, dtype, is_peer, True)
        return self

    def steps(self, count, **options):
        for _ in range(count):
            self.call(**options)
        return self

    def batch(self, group, state, *peers):
        """Record sends and receives that are launched together: their own state never changes."""
        this_rank = self.groups[group][1].index(self.rank)
        self.numbers[group, True] += 1
        for operation, peer in peers:
            name = f"{operation} {this_rank}{'->' if operation == 'send' else '<-'}{peer}"
            self._add(name, SCHEDULED, group, (2,), "Float", True, False)
        self._add("coalesced", state, group, None, "", True, True)
        return self

    def _add(self, name, state, group, shape, dtype, is_peer, timed):
        record = len(self.entries)
        created = BEGIN + record * SECOND
        sizes, types = ([[*shape]], [dtype]) if shape is not None else ([], [])
        has_times = timed and self.timed
        state = state if self.timed or state == COMPLETED else SCHEDULED
        self.entries.append({
            "frames": [
                {"name": name.split()[0], "filename": "/env/site-packages/torch/distributed/c10d.py", "line": 1},
                {"name": "train_step", "filename": "/job/train.py", "line": 10 + len(name)},
                {"name": "<module>", "filename": "/job/train.py", "line": 90},
            ],
            "record_id": record, "pg_id": int(group), "process_group": (group, self.groups[group][0]),
            "collective_seq_id": self.numbers[group, False], "p2p_seq_id": self.numbers[group, True],
            "op_id": record + 1, "profiling_name": f"nccl:{name}", "time_created_ns": created,
            "input_sizes": sizes, "input_dtypes": types, "output_sizes": sizes, "output_dtypes": types,
            "state": state,
            "time_discovered_started_ns": created if has_times and state in (STARTED, COMPLETED) else None,
            "time_discovered_completed_ns": created + 1 if timed and state == COMPLETED else None,
            "retired": state == COMPLETED, "timeout_ms": 600_000, "is_p2p": is_peer,
        })  # fmt: skip

    def dump(self, most=None):
        """Return the dump; `most`: size of the buffer."""
        config = {
            name: {"name": name, "desc": description, "ranks": str(ranks)}
            for name, (description, ranks) in self.groups.items()
            if self.rank in ranks
        }
        entries = self.entries[-most:] if most else self.entries
        return {"version": "2.10", "pg_config": config, "pg_status": {}, "comm_lib_version": "2.28.9",
                "entries": entries}  # fmt: skip


def write_dumps(folder, recorders, form="pickle", most=None):
    """Write the dumps of ranks, as PyTorch names them, and return their paths."""
    paths = []
    for recorder in recorders:
        dump = recorder.dump(most)
        path = folder / f"nccl_trace_rank_{recorder.rank}"
        if form == "json":
            for entry in dump["entries"]:
                del entry["frames"]
                for name in ("started", "completed"):
                    entry[f"time_discovered_{name}_ns"] = entry[f"time_discovered_{name}_ns"] or 0
            path.write_text(json.dumps(dump))
        else:
            path.write_bytes(pickle.dumps(dump, 2))
        paths.append(path)
    return paths


def ranks(count=4, groups=WORLD, timed=True, steps=3):
    """Return recorders of ranks that have ended some all_reduces of all."""
    return [Recorder(rank, groups, timed).steps(steps) for rank in range(count)]


def mesh_step(recorder, *states):
    """Record an all_reduce of the rank's tp group, and one of its dp group."""
    groups = [name for name, (_, members) in MESH.items() if recorder.rank in members and name != "0"]
    for group, state in zip(groups, states, strict=False):
        recorder.call(group=group, state=state)


def not_called():
    job = ranks()
    for rank in (0, 1, 3):
        job[rank].call(state=STARTED)
    return job


def ran_ahead():
    """Rank 1 leaves out the broadcast of all others, and calls what follows."""
    job = ranks()
    for rank in (0, 2, 3):
        job[rank].call("broadcast", STARTED)
    job[1].call(state=STARTED)
    return job


def other_size():
    job = ranks()
    for recorder in job:
        recorder.call(state=STARTED, shape=(8, 4) if recorder.rank != 2 else (8, 2))
    return job


def chain():
    """Rank 3 stops; rank 2 waits for it in tp, rank 1 in dp, and rank 0 in dp for rank 2."""
    job = ranks(groups=MESH)
    for recorder in job:
        mesh_step(recorder, COMPLETED, COMPLETED)
    for rank, states in ((0, (COMPLETED, STARTED)), (1, (COMPLETED, STARTED)), (2, (STARTED,))):
        mesh_step(job[rank], *states)
    return job


def not_started():
    job = ranks()
    for recorder in job:
        recorder.call(state=SCHEDULED if recorder.rank == 3 else STARTED)
    return job


def not_started_by_two():
    job = ranks()
    for recorder in job:
        recorder.call(state=SCHEDULED if recorder.rank in (1, 3) else STARTED)
    return job


def missing_dump():
    job = ranks()
    for recorder in job:
        recorder.call(state=STARTED)
    return job[:2] + job[3:]


def other_operation():
    job = ranks()
    for recorder in job:
        recorder.call("all_gather" if recorder.rank == 1 else "all_reduce", STARTED)
    return job


def circle():
    """Ranks 0 and 1 call two groups in another order; the others wait for them."""
    groups = WORLD | {"1": ("first", [0, 1]), "2": ("second", [0, 1])}
    job = ranks(groups=groups)
    job[0].call(state=STARTED, group="1")
    job[1].call(state=STARTED, group="2")
    for rank in (2, 3):
        job[rank].call(state=STARTED)
    return job


def all_started():
    job = ranks()
    for recorder in job:
        recorder.call(state=STARTED)
    return job


def receive_without_send():
    job = ranks()
    job[0].call("recv", STARTED, peer=1)
    for rank in (2, 3):
        job[rank].call(state=STARTED)
    return job


def pipeline_batch():
    """Stage 0 has sent and waits for gradients; stage 1 has received, and computes."""
    job = ranks(2, {"0": ("default_pg", [0, 1])})
    job[0].batch("0", COMPLETED, ("send", 1)).batch("0", STARTED, ("recv", 1))
    job[1].batch("0", COMPLETED, ("recv", 0))
    return job


#: Twelve ways to hang.
SCENARIOS = {
    job.__name__: job
    for job in (
        not_called, ran_ahead, other_size, chain, not_started, not_started_by_two, missing_dump, other_operation,
        circle, all_started, receive_without_send, pipeline_batch,
    )
}  # fmt: skip


def ras_rank(rank, pid=None, **counts):
    """Return a rank of a communicator as RAS prints it; `counts`: of its calls by function."""
    functions = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
    return {
        "rank": rank, "host": "10.0.0.7", "pid": 400 + rank if pid is None else pid, "cuda_dev": rank, "nvml_dev": rank,
        "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False,
                   "abort_flag": False},
        "collective_counts": {name: counts.get(name, 0) for name in functions},
    }  # fmt: skip


def ras_missing(rank, *, exited):
    """Return a rank that RAS misses."""
    return {"rank": rank, "host": "10.0.0.7", "pid": 400 + rank, "cuda_dev": rank, "nvml_dev": rank,
            "status": {"unresponsive": True, "considered_dead": exited}}  # fmt: skip


def ras_answer(*communicators):
    """Return RAS's answer: of each communicator its ranks, and those that are missing."""
    return {
        "nccl_version": "2.28.9", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
        "timestamp": "2026-01-01 10:00:00", "communicators_count": len(communicators),
        "communicators": [
            {"hash": f"0x{position + 16:x}", "secondary_hash": "0x1:0x2", "size": len(present) + len(missing),
             "ranks_count": len(present), "missing_ranks_count": len(missing), "ranks": present,
             "missing_ranks": missing}
            for position, (present, missing) in enumerate(communicators)
        ],
        "ras": {"collection_time_sec": 0.01, "timeouts_count": 0},
    }  # fmt: skip
