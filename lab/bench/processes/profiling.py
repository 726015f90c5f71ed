"""Summarizes the time of a process as a short text: Python functions by py-spy, threads by the kernel."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

RATE_HZ = 200
#: Lines of each table.
MOST = 20
#: Package -> name in the profile; functions of numpy and Python count for their callers.
PARTS = {
    "schemas": "schemas: decoding and encoding batches", "streams": "streams: windows, verdicts, state, settling",
    "sinks": "sinks: ranges, blocks, ledger", "infra": "infra: metrics, health, clients",
    **dict.fromkeys(("faust", "mode"), "Faust"), "aiokafka": "aiokafka", "confluent_kafka": "confluent-kafka",
    **dict.fromkeys(("clickhouse_connect", "urllib3"), "clickhouse-connect"), "prometheus_client": "metrics",
}  # fmt: skip
LOOP = "Runner.run (asyncio/runners.py)"


@contextmanager
def profiled(path: Path | None, title: str, pid: int = 0) -> Iterator[None]:
    """Sample a process (0: this one) for the block, then write `path`; do nothing without a path.

    Sampling costs the process some percent, so results of a profiled run are not comparable. Raises RuntimeError
    without py-spy.
    """
    if path is None:
        yield
        return
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        raise RuntimeError("--profile needs py-spy: pip install py-spy")
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "stacks"
        command = [program, "record", "--pid", str(pid or os.getpid()), "--format", "raw", "--output", str(raw)]
        command += ["--rate", str(RATE_HZ), "--gil"]
        sampler = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        began, before = time.perf_counter(), _threads(pid)
        try:
            yield
        finally:
            seconds, after = time.perf_counter() - began, _threads(pid)
            sampler.send_signal(signal.SIGINT)
            _, errors = sampler.communicate(timeout=60)
        if not raw.exists():
            raise RuntimeError(f"py-spy: {errors.strip()[-300:]}")
        used = {thread: after[thread] - before.get(thread, 0.0) for thread in after}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(title, raw.read_text().splitlines(), used, seconds))


def text(title: str, stacks: Iterable[str], threads: dict[str, float], seconds: float) -> str:
    """Return the profile as text.

    `stacks` are lines in py-spy's raw format, "outer (file:line);inner (file:line) samples". `threads`: name -> CPU
    seconds.
    """
    leaf: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for line in stacks:
        stack, count = line.rsplit(" ", 1)
        frames = [_frame(frame) for frame in stack.split(";") if "(" in frame]
        if frames:
            leaf[frames[-1]] += int(count)
            parts[_part(frames)] += int(count)
            within.update(dict.fromkeys(frames, int(count)))
    total = leaf.total()
    named = Counter({name: used for name, used in threads.items() if used >= 0.005 * seconds})
    lines = [f"{title}; {seconds:.1f} s of wall clock, {sum(threads.values()):.1f} s of CPU in all threads", ""]
    lines += ["CPU seconds by thread", *(f"{used:8.2f}  {name}" for name, used in named.most_common(12)), ""]
    lines.append(f"share of samples that hold the interpreter lock ({total} at {RATE_HZ} Hz), by who works")
    lines += [f"{count / max(total, 1):8.1%}  {part}" for part, count in parts.most_common()]
    lines.append("")
    for name, counts in (("itself", leaf), ("with what it calls", within)):
        lines.append(f"share of samples that hold the interpreter lock ({total} at {RATE_HZ} Hz): the function {name}")
        lines += [f"{count / max(total, 1):8.1%}  {frame}" for frame, count in counts.most_common(MOST)]
        lines.append("")
    return "\n".join(lines)


def _part(frames: Sequence[str]) -> str:
    if frames[-1] == LOOP:  # nothing in Python: the loop's own C code
        return "event loop"
    files = (frame.partition(" (")[2] for frame in reversed(frames))
    return next((PARTS[top] for file in files if (top := file.split("/")[0]) in PARTS), "Python")


def _frame(frame: str) -> str:
    """Return "name (package/module.py)", without line numbers, with paths from the package on."""
    name, _, where = frame.partition(" (")
    file = where.rstrip(")").rsplit(":", 1)[0]
    for root in ("site-packages/", "/drumline/", "/lib/python"):
        file = file.split(root, 1)[-1]
    return f"{name} ({file})"


def _threads(pid: int) -> dict[str, float]:
    """Return name -> CPU seconds so far; threads with the same name are summed."""
    cpu_s: Counter[str] = Counter()
    for thread in psutil.Process(pid or None).threads():
        try:
            name = Path(f"/proc/{pid or 'self'}/task/{thread.id}/comm").read_text().strip()
        except OSError:
            continue
        cpu_s[name] += thread.user_time + thread.system_time  # type: ignore[assignment]
    return dict(cpu_s)
