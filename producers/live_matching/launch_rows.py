"""Launches of a deep window: the calls whose kernels or copies have run, each with its scope and its line.

CUPTI records calls of runtime and driver. One has the correlation id of what it launched, which arrives later: so
calls wait for it, and kernels for their call. Times are ns since the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from drumline.producers.activity.table import Table, concatenate_tables
from drumline.producers.batching.live import BatchWriter, FeedProgress
from drumline.producers.ipc.timing import HELD_NS
from drumline.producers.live_matching.pending import StringTable
from drumline.producers.live_matching.scopes import OpenScopes
from drumline.schemas.columns import Array
from drumline.schemas.topics import Topic

#: Time that a call waits for what it launched, and a kernel for its call: as long as CUPTI may hold either, twice.
KEPT_NS = 2 * HELD_NS
_EVER = np.iinfo(np.int64).max
_NONE = Table({"correlation": np.empty(0, np.uint32), "start_ns": np.empty(0, np.int64)})


class LaunchRows:
    """Matches calls with what they launched, and writes the calls to a batch writer.

    SpoolOutput makes one for each process. Runs in the decoder's thread, without I/O or clock.

    `counts`: kernels without a launch. `scopes`: what was open when. `sample`: returns what was sampled of Python
    before (thread, time), in the order of gpu.launch.v1: stack, caller, owner, age.
    """

    def __init__(self, writer: BatchWriter, sample: Callable[[int, int], tuple[str, str, int, int]]) -> None:
        self.counts: Counter[str] = Counter()
        self.scopes = OpenScopes()
        self._writer, self._sample = writer, sample
        self._requested, self._until_ns, self._first_ns = False, -1, _EVER
        self._calls: list[Table] = []
        self._ran: list[Table] = []
        self._written = _NONE

    def request(self, on: bool, now_ns: int) -> None:
        """Note whether launches are requested from now on."""
        if on and not self._requested:
            self._first_ns = _EVER
        if on != self._requested:
            self._requested, self._until_ns = on, _EVER if on else now_ns

    def wants(self, now_ns: int) -> bool:
        """Return whether what arrives now may belong to a window."""
        return self._requested or now_ns < self._until_ns + KEPT_NS

    def add(self, calls: Table, kernels: Table, copies: Table) -> None:
        """Take the calls and what has run of one buffer; columns as in Decoded."""
        calls = calls.take(calls["start_ns"] <= self._until_ns) if calls.rows else calls
        if calls.rows:
            self._first_ns = min(self._first_ns, int(calls["start_ns"].min()))
            self._calls.append(calls)
        for table, is_kernel in ((kernels, True), (copies, False)):
            if table.rows:
                columns = {name: table[name] for name in ("correlation", "start_ns")}
                self._ran.append(Table({**columns, "is_kernel": np.full(table.rows, is_kernel)}))

    def advance(self, now_ns: int, complete_until_ns: int, final: bool = False) -> None:
        """Write the calls that have launched, once all marks before them have arrived. `final`: nothing follows."""
        recent_ns = now_ns - KEPT_NS
        self.scopes.forget(recent_ns)
        if not self._calls and not self._ran:
            return
        calls = concatenate_tables(self._calls) if self._calls else None
        ran = concatenate_tables(self._ran) if self._ran else None
        if calls is not None and ran is not None:
            launched = np.isin(calls["correlation"], ran["correlation"])
            launched &= (calls["start_ns"] < complete_until_ns) | final | (calls["start_ns"] < now_ns - HELD_NS)
            self._write(calls.take(launched), now_ns)
            calls = calls.take(~launched)
        if calls is not None:
            late = calls.take(calls["start_ns"] > recent_ns)
            self._calls = [late] if late.rows and not final else []
        if ran is not None:
            self._ran = self._without_launch(ran, recent_ns, final)
        self._written = self._written.take(self._written["start_ns"] > recent_ns)

    def _without_launch(self, ran: Table, recent_ns: int, final: bool) -> list[Table]:
        """Count kernels whose call will not come, and return what waits for its call."""
        ran = ran.take(~np.isin(ran["correlation"], self._written["correlation"]))
        is_pending = (ran["start_ns"] > recent_ns) & (ran["start_ns"] >= self._first_ns) & (not final)
        lost = (
            ran["is_kernel"] & ~is_pending & (ran["start_ns"] >= self._first_ns) & (ran["start_ns"] <= self._until_ns)
        )
        if lost.any():
            self.counts["kernels_without_launch"] += int(lost.sum())
        left = ran.take(is_pending)
        return [left] if left.rows else []

    def _write(self, calls: Table, now_ns: int) -> None:
        if not calls.rows:
            return
        places = list(zip(calls["thread"].tolist(), calls["start_ns"].tolist(), strict=True))
        sampled = [self._sample(*place) for place in places]
        scopes, stacks, callers = StringTable(), StringTable(), StringTable()
        columns: dict[str, Array] = {
            **calls.columns,
            "scope": _indices(scopes, [self.scopes.path(*place) for place in places]),
            "stack": _indices(stacks, [row[0] for row in sampled]),
            "caller": _indices(callers, [row[1] for row in sampled]),
            "sampled": np.array([row[2] for row in sampled], np.uint8),
            "sample_age_ns": np.array([row[3] for row in sampled], np.int64),
        }
        texts = {"scopes": scopes.strings, "stacks": stacks.strings, "callers": callers.strings}
        self._writer.write(Topic.LAUNCH, Table(columns, texts), FeedProgress(now_ns, now_ns - KEPT_NS))
        written = Table({name: calls[name] for name in ("correlation", "start_ns")})
        self._written = concatenate_tables([self._written, written])


def _indices(table: StringTable, texts: list[str]) -> Array:
    return table.take(np.arange(len(texts), dtype=np.uint32), texts)
