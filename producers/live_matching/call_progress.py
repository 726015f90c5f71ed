"""Progress of a process without NCCL's plugin, from CUPTI's records: rows of gpu.progress.v1. Pure.

NCCL's ranges show what a rank has called. CUPTI gives a buffer back when all kernels in it have ended. So what was
called before the oldest buffer that it still holds has ended, and of later calls those whose kernel has come. Whether a
GPU has begun an operation is not known. What lies in a buffer that is held is not known either: a row without a
communicator states whether the GPU runs something that does not end, or has nothing to run.

Times are ns since the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drumline.producers.activity.activity import MARKER_START, end_ns
from drumline.producers.activity.table import Table, compact_dictionary
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nccl.calls import NcclCalls, joined, nccl_calls
from drumline.producers.derive.nccl.kernel_matching import CLOCK_SLACK_NS
from drumline.producers.ipc.timing import REQUEST_NS
from drumline.producers.rings.progress import OPERATIONS, RUNNING, STATES, STOPPED, progress_rows
from drumline.schemas.columns import Array

#: A buffer that CUPTI holds for so long has a kernel that does not end; in a job that goes on they are back a second
#: after their kernels (segment.SETTLE_NS). As long without a kernel, the GPU has nothing to do; half of the time after
#: which a job stands still.
STILL_NS = 5_000_000_000
#: What has a time so much later than its buffer was read was recorded wrongly.
LATEST_NS = 1_000_000_000
#: `begun` where it is not known.
UNKNOWN = -1
#: Communicators of a process, as in a ring; and calls that wait for their kernels. Beyond these, counts are not exact.
MOST_COMMUNICATORS, MOST_CALLS = 256, 100_000
_RING_OPERATION = np.array([OPERATIONS.index(name) if name in OPERATIONS else 0 for name in nccl.OPERATIONS])


class CallProgress:
    """Counts the NCCL calls of one process as they arrive. ProgressOutput owns it, in the decoder's thread.

    `is_known`: NCCL was called while recording was on; before, there is nothing to publish. `is_on`: it is on.
    """

    def __init__(self) -> None:
        self.is_known, self.is_on, self._is_whole = False, False, True
        self._moved_ns = self._kernel_ns = self._nccl_ns = 0
        self._called: dict[int, int] = {}
        self._calls: list[NcclCalls] = []
        self._names: Sequence[str] = ()
        self._is_nccl = np.zeros(0, bool)

    def recording(self, on: bool, time_ns: int, is_whole: bool) -> None:
        """Note that recording was switched on or off. `is_whole`: the process's policy records all of it."""
        self._is_whole &= is_whole and on
        self.is_on = on
        self.moved(time_ns)

    def moved(self, time_ns: int) -> None:
        """Note that the process began a step, or called or ran an operation."""
        self._moved_ns = max(self._moved_ns, time_ns)

    def lost(self) -> None:
        """Note that records were lost: counts are not exact any more."""
        self._is_whole = False

    def add(self, kernels: Table, copies: Table, markers: Table, payloads: Table, now_ns: int) -> None:
        """Take in the activity of a buffer, read now; columns as in Activity."""
        kernels, copies = (_possible(table, now_ns + LATEST_NS) for table in (kernels, copies))
        for table in (kernels, copies):
            if table.rows:
                self._kernel_ns = max(self._kernel_ns, int(end_ns(table).max()))
        if markers.rows and (calls := _calls(markers, payloads, now_ns)) is not None:
            self._add_calls(calls)
        if kernels.rows and self.is_known:
            is_nccl = self._are_nccl(kernels.dictionaries["names"])[kernels["name"]]  # those of CUDA graphs move too
            if is_nccl.any():
                run = Table({name: kernels[name][is_nccl] for name in ("start_ns", "duration_ns")})
                self._nccl_ns = max(self._nccl_ns, int(run["start_ns"].max()))
                self.moved(int(end_ns(run).max()))

    def _are_nccl(self, names: Sequence[str]) -> Array:
        """Return which kernel names are NCCL's: bool. The names of a process grow, each is looked at once."""
        if names is not self._names:
            self._names, self._is_nccl = names, np.zeros(0, bool)
        if len(names) > len(self._is_nccl):
            self._is_nccl = np.append(self._is_nccl, nccl.is_kernel(names[len(self._is_nccl) :]))
        return self._is_nccl

    def _add_calls(self, calls: NcclCalls) -> None:
        self.is_known = True
        self.moved(int(calls.start_ns[-1]))
        is_named = calls.communicator_known & ~nccl.is_guess(calls.communicator)
        self._is_whole &= bool(is_named.all())
        calls = calls.take(is_named & (nccl.operation_class(calls.operation) != nccl.SEND_RECV))
        numbers, counts = np.unique(calls.communicator, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            if number in self._called or len(self._called) < MOST_COMMUNICATORS:
                self._called[number] = self._called.get(number, 0) + count
        self._calls.append(calls)

    def table(self, now_ns: int, complete_ns: int, step: int, state: str) -> Table:
        """Return the rows. `complete_ns`: activity of the host before has arrived, with the kernels that it launched,
        however long CUPTI holds a buffer; `state`: of the process (STATES).
        """
        self._moved_ns = min(self._moved_ns, now_ns)  # the clock may have been set back
        is_held = now_ns - complete_ns > STILL_NS
        is_stopped = state == STOPPED  # then nothing asks CUPTI for its buffers
        shared = {
            "comm_rank": -1, "ranks": 0, "peer": -1, "begun": UNKNOWN, "closed": 0, "step": step,
            "quiet_ns": max(0, now_ns - self._moved_ns), "state": STATES.index(state),
        }  # fmt: skip
        rows: list[dict[str, int]] = []
        communicators, is_waiting = [], is_held and state == RUNNING
        if self._calls:
            calls = self._recent(joined(self._calls, np.zeros(0, bool))[0], complete_ns)
            self._calls = [calls]
            # Kernels of older calls may begin after a newer call: this takes too few for open, never too many.
            is_open = calls.start_ns > max(complete_ns, self._nccl_ns + CLOCK_SLACK_NS)
            is_waiting |= bool(is_open.any())
            for number, called in self._called.items():
                at = np.flatnonzero(calls.communicator == np.uint64(number))
                if not len(at):
                    continue
                open_ = int(is_open[at].sum())
                place = len(at) - max(1, open_)
                last = {"last_operation": _operation(calls, at[place - 1]) if place else 0}
                # What a held buffer has is newer than its request.
                is_numbered = open_ and calls.start_ns[at[place]] <= complete_ns + REQUEST_NS
                exact = self._is_whole and bool(is_numbered or not is_held)
                counts = {"called": called, "ended": called - open_, "exact": int(exact)}
                rows.append({**shared, **counts, **_described(calls, int(at[place])), **last})
                communicators.append(nccl.hash_text(number))
        # Without any kernel so far CUPTI may not report them: nothing is known of the GPU.
        is_quiet = self._kernel_ns and now_ns - self._kernel_ns > STILL_NS
        is_idle = is_stopped or bool(is_quiet and not is_waiting)
        counts = {"called": int(not is_idle), "ended": int(not (is_idle or is_waiting)), "exact": 1}
        rows.append({**shared, **counts, "start_ns": self._moved_ns})
        for row in rows:
            row["start_ns"] = min(row["start_ns"], now_ns)
        return progress_rows(rows, [*communicators, ""])

    def _recent(self, calls: NcclCalls, complete_ns: int) -> NcclCalls:
        """Return the calls that may be open, and the last two of each communicator."""
        keep = calls.start_ns > complete_ns
        for number in self._called:
            keep[np.flatnonzero(calls.communicator == np.uint64(number))[-2:]] = True
        kept = calls.take(keep)
        if len(kept.start_ns) > MOST_CALLS:
            self.lost()
            kept = kept.take(slice(-MOST_CALLS, None))
        return kept


def _possible(table: Table, latest_ns: int) -> Table:
    """Return a table without what ends later: as movement it would hide a standstill until then."""
    if not table.rows:
        return table
    is_possible = (table["start_ns"] <= latest_ns) & (end_ns(table) <= latest_ns)  # their sum may overflow
    return table if is_possible.all() else table.take(is_possible)


def _calls(markers: Table, payloads: Table, now_ns: int) -> NcclCalls | None:
    """Return the NCCL calls that begin in a buffer, by start; ends may lie in the next one. None = there are none.

    Only names of NCCL's own ranges are looked at: a job may have thousands of others.
    """
    domains = np.array([name == nccl.DOMAIN for name in markers.dictionaries["domains"]], dtype=bool)
    starts = markers.take(domains[markers["domain"]] & ((markers["flags"] & MARKER_START) != 0))
    if not starts.rows:
        return None
    starts = starts.take(np.argsort(starts["time_ns"], kind="stable"))
    names, used = compact_dictionary(starts["name"], markers.dictionaries["names"])
    columns = {
        "name": names,
        "domain": starts["domain"],
        "start_ns": np.minimum(starts["time_ns"], now_ns),
        "duration_ns": np.zeros(starts.rows, np.uint64),
        "id": starts["id"],
    }
    dictionaries = {"names": used, "domains": markers.dictionaries["domains"]}
    calls = nccl_calls(Table(columns, dictionaries), payloads)
    return calls if len(calls.start_ns) else None


def _operation(calls: NcclCalls, at: Array | int) -> int:
    return int(_RING_OPERATION[calls.operation[at]])


def _described(calls: NcclCalls, at: int) -> dict[str, int]:
    operation, size = _operation(calls, at), int(calls.bytes[at])
    return {"operation": operation, "bytes": size, "start_ns": int(calls.start_ns[at])}
