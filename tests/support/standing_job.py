"""A job as its agents publish it (gpu.progress.v1), simulated: ranks call collectives, GPUs run them, some stall.

Time passes in steps of a second. A collective ends when all ranks of its communicator have called it, and their GPUs
have begun it. What stalls is said by `Job.stall`, at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from support.tables import apply_batch

from drumline.schemas.batch import Batch, decode, dictionary, encode
from drumline.schemas.bounds.check import check
from drumline.schemas.model import model
from drumline.streams.hangs.config import HangConfig
from drumline.streams.hangs.stage import HangStage

SECOND = 1_000_000_000
BEGIN = 1_700_000_000 * SECOND
ALL_REDUCE = ("AllReduce", "float32", 1_000)


@dataclass
class Comm:
    """A rank's view of a communicator: the operations it called, and how many began on its GPU and ended."""

    rank: int
    ranks: int
    called: list[tuple[str, str, int]] = field(default_factory=list)
    begun: int = 0
    ended: int = 0
    closed: int = 0
    exact: int = 1


@dataclass
class Rank:
    number: int
    comms: dict[str, Comm]
    plan: list[tuple[str, tuple[str, str, int]]]  # calls of a step: communicator, operation
    at: int = 0  # next call of the plan
    moved: int = 0
    state: str = "running"
    host_stalls: bool = False
    gpu_stalls: bool = False
    silent: bool = False
    #: Open sends and receives: communicator, peer, function; with their number those that NCCL did not measure,
    #: and then with 0 if it is not exact.
    peers: list[tuple[str | int, ...]] = field(default_factory=list)
    sequence: int = 0
    ras: dict[str, str] = field(default_factory=dict)  # what RAS states, by communicator
    blocks: bool = True  # the host waits for each collective; else for those of the step before


class Job:
    """`groups`: communicator -> its ranks. Each rank calls one AllReduce in each of its communicators a second."""

    def __init__(self, groups, run="r1", lag=False, **config):
        self.groups, self.run, self.now, self.lag = groups, run, BEGIN, lag
        self.store, self.config = {}, HangConfig(**config)
        self.stage = HangStage(self.store, self.config)
        self.rows, self.batches, self.unacknowledged = [], [], False
        self.measured = True  # else NCCL has no times of the GPU
        numbers = sorted({rank for ranks in groups.values() for rank in ranks})
        self.ranks = {
            number: Rank(
                number,
                {c: Comm(ranks.index(number), len(ranks)) for c, ranks in groups.items() if number in ranks},
                [(c, ALL_REDUCE) for c, ranks in groups.items() if number in ranks],
            )
            for number in numbers
        }

    def run_for(self, seconds):
        for _ in range(seconds):
            self.now += SECOND
            self.move()
            self.publish()
            self.take(self.stage.on_tick(self.now, not self.lag))
        return self

    def move(self):
        """Let a second pass: hosts call until they wait, GPUs begin and end."""
        budget = {number: len(rank.plan) for number, rank in self.ranks.items()}
        changed = True
        while changed:
            changed = False
            for rank in self.ranks.values():
                changed |= self._call(rank, budget) | self._run(rank)

    def _call(self, rank, budget):
        is_open = any(comm.ended < len(comm.called) for comm in rank.comms.values())
        is_waiting = is_open and (rank.blocks or rank.at % max(1, len(rank.plan)) == 0)
        if rank.host_stalls or rank.state != "running" or is_waiting or not budget[rank.number] or not rank.plan:
            return False
        name, operation = rank.plan[rank.at % len(rank.plan)]
        rank.comms[name].called.append(operation)
        rank.at, rank.moved = rank.at + 1, self.now
        budget[rank.number] -= 1
        return True

    def _run(self, rank):
        moved = False
        if rank.gpu_stalls or rank.state in ("killed", "exited"):
            return False
        for name in dict.fromkeys(called for called, _ in rank.plan):  # a GPU runs them in the order of their calls
            comm = rank.comms[name]
            if comm.begun < len(comm.called) and comm.begun == comm.ended and self._is_free(rank, name):
                comm.begun, moved = comm.begun + 1, True
            members = [self.ranks[number].comms[name] for number in self.groups[name]]
            number = comm.ended + 1
            ready = all(
                member.begun >= number and member.called[number - 1] == comm.called[number - 1] for member in members
            ) if comm.begun >= number else False  # fmt: skip
            if ready and rank.state == "running":
                comm.ended, rank.moved, moved = number, self.now, True
        return moved

    def _is_free(self, rank, name):
        """A GPU runs one collective at a time."""
        return all(comm.begun == comm.ended for other, comm in rank.comms.items() if other != name)

    def publish(self, numbers=None):
        for rank in self.ranks.values():
            if not rank.silent and (numbers is None or rank.number in numbers):
                self.take(apply_batch(self.stage, self.batch(rank), rank.sequence, self.now))
                rank.silent = rank.state in ("killed", "exited")  # the last one

    def batch(self, rank):
        rows = []
        for name, comm in rank.comms.items():
            shared = {"communicator": name, "comm_rank": comm.rank, "ranks": comm.ranks, "closed": comm.closed}
            shared |= {"step": rank.at, "quiet_ns": self.now - rank.moved if rank.moved else 0, "state": rank.state}
            begun, ended = (comm.begun, comm.ended) if self.measured else (0, len(comm.called))
            at = min(ended, len(comm.called) - 1)
            operation = comm.called[at] if at >= 0 else ("", "", 0)
            last = comm.called[at - 1] if at >= 1 else ("", "", 0)
            counts = {"called": len(comm.called), "begun": begun, "ended": ended, "exact": comm.exact}
            rows.append(shared | counts | {"peer": -1, "operation": operation, "last": last})
            for of, peer, function, *called in rank.peers:
                if of == name:
                    counts = {"called": 1, "begun": 1, "ended": 0}
                    if called:
                        counts = {"called": called[0], "begun": 0, "ended": called[0]}
                    counts |= {"exact": called[1] if called[1:] else comm.exact, "peer": peer}
                    rows.append(shared | counts | {"operation": (function, "float32", 8), "last": ("", "", 0)})
        texts = {
            "communicator": [row["communicator"] for row in rows],
            "operation": [row["operation"][0] for row in rows],
            "datatype": [row["operation"][1] for row in rows],
            "state": [row["state"] for row in rows],
        }
        names, types = dictionary(texts["operation"]), dictionary(texts["datatype"])
        last_names = dictionary(row["last"][0] for row in rows)
        last_types = dictionary(row["last"][1] for row in rows)
        answers = dictionary(["", *(rank.ras.get(row["communicator"], "") for row in rows)])
        columns = {
            name: np.array([row[name] for row in rows], column.dtype)
            for name, column in ((c.name, c) for c in model("gpu.progress.v1").columns)
            if rows and name in rows[0] and name not in ("communicator", "operation", "state")
        }
        communicators, states = dictionary(texts["communicator"]), dictionary(texts["state"])
        count = len(rows)
        columns |= {
            "start_ns": np.full(count, self.now, "<i8"),
            "communicator": np.array(communicators[1], "<u4"),
            "state": np.array(states[1], "<u1"),
            "operation": np.array(names[1], "<u1"),
            "last_operation": np.array(last_names[1], "<u1"),
            "datatype": np.array(types[1], "<u1"),
            "last_datatype": np.array(last_types[1], "<u1"),
            "elements": np.array([row["operation"][2] for row in rows], "<i8"),
            "ras_json": np.array(answers[1][1:], "<u1"),
            "last_elements": np.array([row["last"][2] for row in rows], "<i8"),
            "bytes": np.array([row["operation"][2] * 4 for row in rows], "<i8"),
        }
        rank.sequence += 1
        envelope = {
            "job": "train", "run": self.run, "rank": rank.number, "local_rank": rank.number, "gpu_uuid": "",
            "world_size": len(self.ranks), "host": f"host-{rank.number // 2}", "sequence": rank.sequence,
            "process_id": f"process-{rank.number}", "dropped_before": 0, "rows": count, "base_time_ns": self.now,
            "watermark_ns": 0, "sent_ns": self.now, "communicators": communicators[0], "states": states[0],
            "operations": names[0], "datatypes": types[0], "last_operations": last_names[0],
            "last_datatypes": last_types[0], "ras_answers": answers[0],
        }  # fmt: skip
        batch, record = Batch("gpu.progress.v1", envelope, columns), model("gpu.progress.v1")
        return decode(record, encode(record, batch)) if rank.sequence == 1 else batch

    def take(self, returned):
        record = model("gpu.hang.v1")
        for batch in returned:
            check(batch)
            batch = decode(record, encode(record, batch))
            self.batches.append(batch)
            texts = {
                name: batch.strings(name, dictionary).tolist()
                for name, dictionary in (
                    ("host", "hosts"), ("reason", "reasons"), ("communicator", "communicators"),
                    ("operation", "operations"), ("datatype", "datatypes"), ("note", "notes"),
                )
            }  # fmt: skip
            numbers = ("rank", "number", "elements", "bytes", "waiting", "step")
            texts |= {name: batch.columns[name].tolist() for name in numbers}
            lines = zip(*texts.values(), strict=True)
            shared = {name: batch.envelope[name] for name in ("state", "episode", "revision", "start_ns", "time_ns")}
            self.rows.append([shared | dict(zip(texts, line, strict=True)) for line in lines])
            if not self.unacknowledged:
                self.stage.mark_sent(batch)

    def restart(self):
        """The worker is killed and begins again with what is stored."""
        self.stage = HangStage(self.store, self.config)

    @property
    def states(self):
        return [rows[0]["state"] for rows in self.rows]

    @property
    def named(self):
        """Ranks of the newest result: rank -> (reason, operation, number)."""
        newest = self.rows[-1] if self.rows else []
        return {
            row["rank"]: (row["reason"], row["operation"], row["number"])
            for row in newest if row["rank"] >= 0 and row["reason"]
        }  # fmt: skip
