"""Measures the node agent beside eight processes that write rings, as under the light policy."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from drumline.infra.localstack.ephemeral import environment
from drumline.infra.runtime.processes import ManagedProcess
from drumline.lab.bench.processes import ring_writer
from drumline.lab.bench.processes.ephemeral_stack import private_stack
from drumline.lab.bench.processes.process_watch import ProcessWatch
from drumline.lab.bench.result import BenchReport, Progress

#: Load and targets of the design.
RANKS, RATE, CORES, MEMORY_MB = 8, 2_000, 0.05, 200
#: Time in which the agent reaches its steady state; s.
SETTLE_S = 5.0


def bench_rings(
    seconds: float = 60.0, rate: float = RATE, ranks: int = RANKS, progress: Progress = lambda _: None
) -> BenchReport:
    """Measure CPU, memory and backlog while each of `ranks` rings gets `rate` operations/s for `seconds`."""
    report = BenchReport("rings", f"{ranks} rings, {rate:,.0f} NCCL operations/s each, steps of 50", "none")
    progress("starting Kafka")
    with private_stack() as settings:
        folder = settings.rings_folder
        agent = ManagedProcess(
            "agent", ["agent"], settings.local.state / "logs" / "bench-agent.log", environment(settings), 0
        )
        command = [sys.executable, "-m", ring_writer.__name__, str(folder), str(ranks), str(rate)]
        try:
            agent.start()
            with subprocess.Popen([*command, str(seconds + SETTLE_S)], stdout=subprocess.PIPE, text=True) as writer:
                assert writer.stdout is not None
                writer.stdout.readline()
                time.sleep(SETTLE_S)
                progress("as the ranks write")
                with ProcessWatch({"agent": agent.pid or 0}, {"rings": lambda: behind(folder)}) as watch:
                    began = time.monotonic()
                    operations, dropped = map(int, writer.stdout.read().split())
                    wall = time.monotonic() - began
            until = time.monotonic() + 60
            while any(folder.glob("*.ring")) and time.monotonic() < until:
                agent.check()
                time.sleep(0.1)
            left = len(list(folder.glob("*.ring")))
        finally:
            agent.stop()
    report.add("operations written", operations / (seconds + SETTLE_S), "operations/s")
    report.add("CPU of the agent", watch.cpu_s["agent"] / wall, "cores", target=CORES, at_most=True)
    report.add("memory of the agent, most", max(watch.memory["agent"]) / 1e6, "MB", target=MEMORY_MB, at_most=True)
    report.add("records in all rings, most", max(watch.lag["rings"]), "records")
    report.add("operations lost", dropped, "operations", target=0, at_most=True)
    report.add("rings left", left, "rings", target=0, at_most=True)
    return report


def behind(folder: Path) -> int:
    """Return the records in all rings that are not published."""
    total = 0
    for path in folder.glob("*.ring"):
        try:
            with path.open("rb") as ring:
                ring.seek(5 * 8)
                written, read = ring.read(8), ring.read(8)
        except OSError:  # published just now
            continue
        total += int.from_bytes(written, "little") - int.from_bytes(read, "little")
    return total
