"""Guidance for every reason for which a job that stands still names a rank (streams/hangs)."""

from __future__ import annotations

from drumline.infra.guidance.entry import DRUMLINE, HOST, NETWORK, Entry

_RESTART = "Then end the job; it goes on from its checkpoint."

HANGS: tuple[Entry, ...] = (
    Entry(
        "hung", "not_called",
        "it has not called the operation that the others wait in",
        "Look at what its Python does instead: `py-spy dump --pid PID` on its host, and its log.",
        f"A loader, a lock or a caught exception: fix the program. {_RESTART}",
    ),
    Entry(
        "hung", "mismatch",
        "ranks called another operation, size or type under the same number",
        "Compare the rows of both ranks in `hangs`: operation, type, elements.",
        f"A fault of the program: all ranks must call the same collectives in one order. {_RESTART}",
    ),
    Entry(
        "hung", "deadlock",
        "ranks wait for each other in two communicators",
        "Compare the order in which the named ranks call the operations of both communicators.",
        f"A fault of the program: give all ranks one order. {_RESTART}",
    ),
    Entry(
        "hung", "not_started",
        "it called the operation, and its GPU has not begun it; if no rank is named, no GPU has",
        "Look for a kernel that does not end, and for XIDs: `nvidia-smi`, `dmesg` on its host.",
        f"A faulty GPU: drain the host. All GPUs: wait for the kernel of the program, or fix it. {_RESTART}",
        HOST,
    ),
    Entry(
        "hung", "not_ended",
        "its GPU began the operation and does not end it, or all did",
        "Look at links and peers of the communicator: `nvidia-smi nvlink -e`, `ibstat`, XIDs.",
        f"A broken link: drain its host. {_RESTART}",
        NETWORK,
    ),
    Entry(
        "hung", "stopped",
        "its process is stopped by a signal",
        "See who stopped it: a debugger, a scheduler, a frozen cgroup. Its state is T in `ps`.",
        "Let it go on: `kill -CONT PID`.",
        HOST,
    ),
    Entry(
        "hung", "gone",
        "its process has ended, and not in order",
        "Read its log and the kernel's (`dmesg`): out of memory, a signal, an exception.",
        f"Act on what ended it. {_RESTART}",
    ),
    Entry(
        "hung", "silent",
        "no data of it has come since, or it does not answer NCCL's RAS",
        "Does its host answer? Is the agent there up (`/readyz`)?",
        "Bring host or agent back; if the host is lost, end the job.",
        HOST,
    ),
    Entry(
        "hung", "no_operation",
        "the job stands still, and no operation is open",
        "All ranks do something else, or wait outside of NCCL: take stacks of some (`py-spy dump --pid PID`).",
        "An evaluation or a checkpoint ends by itself; else fix what they wait for.",
    ),
    Entry(
        "hung", "insufficient_data",
        "not all ranks of the communicator are known, or CUPTI alone shows more GPUs idle than busy: none is named",
        "Which ranks are recorded? `drumline sql collecting --job JOB`.",
        "Record all ranks with policy `auto` or `light`; look at the silent ones first, then at the busy GPU's.",
        DRUMLINE,
    ),
)  # fmt: skip

_BY_REASON = {entry.detail: entry for entry in HANGS}


def hang_guidance(reason: str) -> Entry | None:
    """Return the entry of a reason; None for one that is not known."""
    return _BY_REASON.get(reason)
