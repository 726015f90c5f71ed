"""Hosts on one machine that run a job of the fake transport: a rank and an agent each, whose links a test changes.

Links are about a hundredth of real ones, and the kernel's buffers hide them from a sender as they do on real hosts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.fake_nccl import COMPILER, FAKE, PROGRAMS
from support.namespaces import Hosts
from support.wait_limit import WAIT_S

from drumline.producers.ipc.policy import LIGHT, Policy
from drumline.producers.launcher import PLUGIN, LaunchOptions, environment, load_plugin
from drumline.producers.spool.location import make_rings

#: Bytes a second of a healthy link; of many hosts less, as else processors would be the limit.
RATE = 4e7
JOB, PORT = "hosts", 7400
BRIDGE = Path(__file__).parents[1] / "port_bridge.py"


class HostLab:
    """`hosts`: in a ring, with a rank each: rank i sends to the host behind. `folder`: of logs, spools and flags."""

    def __init__(
        self, hosts: Hosts, folder: Path, variables: Mapping[str, str], ports: Sequence[int], rate: float
    ) -> None:
        self.hosts, self.folder, self.variables = hosts, folder, dict(variables)
        self.running: list[subprocess.Popen[bytes]] = []
        self.program = folder / "fake_transport"
        source = PROGRAMS / "fake_transport.c"
        subprocess.run([*COMPILER, "-o", self.program, source, *FAKE], check=True, capture_output=True)
        for port in ports:
            self.start(["python", str(BRIDGE), "serve", str(folder / f"{port}.socket"), str(port)], "")
        for host in hosts.names:
            for port in ports:
                self.start(["python", str(BRIDGE), "reach", str(folder / f"{port}.socket"), str(port)], host)
            self.start(["python", "-m", "drumline.cli.app", "agent"], host, self.agent_variables(host))
        for number in range(len(hosts.names)):
            self.limit(number, rate)

    def agent_variables(self, host: str) -> dict[str, str]:
        return {**self.variables, "DRUMLINE_SPOOL__ROOT": str(self.folder / f"spool-{host}")}

    def start(self, command: list[str], host: str, values: Mapping[str, str] | None = None, name: str = "") -> Path:
        """Start a program on a host, "" = here; return the file of its output."""
        command = [sys.executable if part == "python" else part for part in command]
        inside = self.hosts.inside(host) if host else []
        output = self.folder / f"{name or Path(command[-1]).name}-{host or 'here'}.log"
        values = {**os.environ, **(values or {})}
        with output.open("ab") as log:
            process = subprocess.Popen(
                [*inside, *command], env=values, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.running.append(process)
        return output

    def start_job(self, chunk: int, operations: int, compute_ms: int) -> None:
        """Start the ranks; return when they step. `chunk`: bytes of a transfer, one for each rank an operation.

        A part of the operations is recorded: of one a step, few a window.
        """
        names, outputs = self.hosts.names, []
        for rank, host in enumerate(names):
            before, behind = names[rank - 1], names[(rank + 1) % len(names)]
            values = {
                **os.environ, **self.agent_variables(host), "RANK": str(rank), "LOCAL_RANK": "0",
                "WORLD_SIZE": str(len(names)),
                "LISTEN": f"{self.hosts.address(host, before)}:{PORT}",
                "NEXT": f"{self.hosts.address(behind, host)}:{PORT}",
                "BYTES": str(chunk * len(names)), "CHUNK": str(chunk),
                "OPERATIONS": str(operations), "COMPUTE_MS": str(compute_ms),
                "FOLDER": str(self.folder),
            }  # fmt: skip
            options = LaunchOptions(job=JOB, run="r", policy="light", spool=values["DRUMLINE_SPOOL__ROOT"])
            values = load_plugin(environment(values, [str(self.program)], options), Policy(LIGHT))
            make_rings(values)
            outputs.append(self.start([str(self.program), values[PLUGIN], "5"], host, values, "rank"))
        until = time.monotonic() + WAIT_S
        while any(output.read_bytes().count(b"\n") < 3 for output in outputs):
            assert time.monotonic() < until, [output.read_text()[-500:] for output in outputs]
            time.sleep(0.1)

    def link(self, number: int) -> tuple[str, str]:
        """Return sender and receiver of the link on which a rank sends."""
        names = self.hosts.names
        return names[number], names[(number + 1) % len(names)]

    def limit(self, number: int, rate: float) -> None:
        self.hosts.limit(*self.link(number), rate)

    def late(self, rank: int, ms: int) -> None:
        """Let a rank's host be late in each step; 0 = no more."""
        flag = self.folder / f"late-{rank}"
        flag.write_text(str(ms)) if ms else flag.unlink(missing_ok=True)

    def close(self) -> None:
        for process in reversed(self.running):
            process.kill()
        for process in self.running:
            process.wait()


@contextmanager
def host_lab(
    hosts: Hosts, folder: Path, variables: Mapping[str, str], ports: Sequence[int], rate: float = RATE
) -> Iterator[HostLab]:
    """Yield a lab, and stop all that runs in it. `rate`: bytes a second of a healthy link."""
    lab = HostLab(hosts, folder, variables, ports, rate)
    try:
        yield lab
    finally:
        lab.close()
