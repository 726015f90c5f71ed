"""Measures the node agent beside eight training processes, then how fast it catches up after an outage."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from pathlib import Path

from drumline.infra.config.settings import Settings
from drumline.infra.localstack.ephemeral import environment
from drumline.infra.runtime.processes import ManagedProcess
from drumline.lab.bench.processes.ephemeral_stack import private_stack
from drumline.lab.bench.processes.process_watch import ProcessWatch
from drumline.lab.bench.processes.replay_process import ReplayProcess, replaying
from drumline.lab.bench.result import BenchReport, Progress
from drumline.producers.replay.recording import RecordedJob
from drumline.schemas.topics import Topic

#: Load and targets of the design: an agent with eight such ranks.
RANKS, RATE, CORES, MEMORY_MB = 8, 20_000, 0.5, 200


def spool_bytes(root: Path) -> int:
    """Return the bytes in the spools of all processes."""
    total = 0
    for path in root.glob("*/*"):
        try:
            total += path.stat().st_size
        except OSError:  # published just now
            continue
    return total


def bench_agent(
    folder: Path, seconds: float = 60.0, rate: float = RATE, ranks: int = RANKS, progress: Progress = lambda _: None
) -> BenchReport:
    """Measure CPU, memory and backlog while each rank writes `rate` kernels/s for `seconds`."""
    recording = RecordedJob(folder, ranks=ranks)
    length_s = (recording.last_ns - recording.first_ns) / 1e9
    speed = ranks * rate / (recording.rows[Topic.KERNEL] / length_s)
    loops = max(1, round(seconds * speed / length_s))
    data = f"the recorded job as {ranks} ranks, {ranks * rate:,.0f} kernels/s in all, through the spool"
    report = BenchReport("agent", data, "none")
    progress("starting Kafka")
    with private_stack() as settings:
        logs = settings.local.state / "logs"
        agent = ManagedProcess("agent", ["agent"], logs / "bench-agent.log", environment(settings), 0)
        options = ("--ranks", str(ranks), "--loop", str(loops))
        try:
            agent.start()
            progress("as the ranks write")
            _beside(settings, agent, folder, (*options, "--speed", str(speed)), report)
            agent.stop()
            progress("catching up")
            _catching_up(settings, agent, folder, options, report)
        finally:
            agent.stop()
    return report


def _replay(settings: Settings, folder: Path, options: tuple[str, ...]) -> AbstractContextManager[ReplayProcess]:
    log = settings.local.state / "logs" / "bench-replay.log"
    return replaying(folder, environment(settings), log, *options, "--spool", str(settings.spool.root))


def _empty(settings: Settings, agent: ManagedProcess) -> None:
    """Wait until Kafka has everything: only the agent's own spool is left."""
    until = time.monotonic() + 300
    while sum(path.is_dir() for path in settings.spool.root.glob("[!.]*")) > 1:
        agent.check()
        if time.monotonic() > until:
            raise RuntimeError("the agent did not empty the spool within 300 s")
        time.sleep(0.1)


def _beside(
    settings: Settings, agent: ManagedProcess, folder: Path, options: tuple[str, ...], report: BenchReport
) -> None:
    root = settings.spool.root
    with _replay(settings, folder, options) as replay:
        while sum(path.is_dir() for path in root.glob("[!.]*")) < 2:  # reading the recording is not what is measured
            agent.check()
            replay.is_running()
            time.sleep(0.05)
        with ProcessWatch({"agent": agent.pid or 0}, {"spool": lambda: spool_bytes(root)}) as watch:
            began = time.monotonic()
            summary = replay.summary()
            wall = time.monotonic() - began
            _empty(settings, agent)
            behind = time.monotonic() - began - wall
    kernels = summary["rows"][str(Topic.KERNEL)]
    report.add("kernels written", kernels / wall, "kernels/s")
    report.add("CPU of the agent", watch.cpu_s["agent"] / wall, "cores", target=CORES, at_most=True)
    report.add("memory of the agent, most", max(watch.memory["agent"]) / 1e6, "MB", target=MEMORY_MB, at_most=True)
    report.add("in the spool, most", max(watch.lag["spool"]) / 1e6, "MB")
    report.add("rows lost", summary["dropped"], "rows", target=0, at_most=True)
    report.notes.append(f"{wall:.0f} s; everything was in Kafka {behind:.1f} s after the last batch was written.")


def _catching_up(
    settings: Settings, agent: ManagedProcess, folder: Path, options: tuple[str, ...], report: BenchReport
) -> None:
    """Measure the agent over a spool that was written while no agent ran."""
    with _replay(settings, folder, (*options, "--speed", "max")) as replay:
        summary = replay.summary()
    waiting = spool_bytes(settings.spool.root)
    agent.start()
    with ProcessWatch({"agent": agent.pid or 0}, {}) as watch:
        began = time.monotonic()
        _empty(settings, agent)
        wall = time.monotonic() - began
    kernels = summary["rows"][str(Topic.KERNEL)]
    report.add("catching up, start of the program included", kernels / wall, "kernels/s")
    report.add("CPU per million kernels", watch.cpu_s["agent"] / kernels * 1e6, "s")
    report.add("memory while catching up, most", max(watch.memory["agent"]) / 1e6, "MB", target=MEMORY_MB, at_most=True)
    report.notes.append(
        f"Catching up: {waiting / 1e6:.0f} MB waited, {summary['dropped']:,} rows were beyond the spool's bound. "
        "A loss is published as empty batches, one for each batch lost."
    )
