"""Run a job on two hosts, each a network namespace with a GPU, while their link changes; called by hosts.sh.

usage: hosts.py OUT [PART...]

Parts: verdicts (PHASES: what link and hosts do; the agents' rows, and what the worker would say of them), cost (steps
with transfers recorded as by default against without, in turn), health (as verdicts: nothing happens for
HOSTS_HEALTH seconds; not run unless it is named). After a cut each host requests what NCCL's RAS knows. OUT gets
hosts.json: of each phase its windows, the flows and ranks that were named, and the rates; and rows.xz, the rows
(hosts_rows.py reads them again).

HOSTS_SECONDS: time for all. HOSTS_RATE: bytes a second of the healthy link. HOSTS_FASTER: divides the length of phases,
for a dry run. HOSTS_BUFFERS: most that the kernel holds of a connection, where links are slower than real ones.
HOSTS_JOB: another program than hosts_job.py, such as fake_transport.c. HOSTS_ROUNDS: of cost. HOSTS_COST_RATE: of the
link in it, 0 = no limit.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import numpy as np

PROGRAMS = Path(__file__).resolve().parent
sys.path.insert(0, str(PROGRAMS.parent))
from hosts_rows import evaluate, pack  # noqa: E402
from support.namespaces import Hosts  # noqa: E402

from drumline.producers.ipc.policy import LIGHT, Policy  # noqa: E402
from drumline.producers.launcher import LaunchOptions, environment, load_plugin  # noqa: E402
from drumline.producers.spool.location import make_rings  # noqa: E402

BEGAN, SECONDS = time.monotonic(), float(os.environ.get("HOSTS_SECONDS", "470"))
FASTER = float(os.environ.get("HOSTS_FASTER", "1"))
RATE = float(os.environ.get("HOSTS_RATE", "1.5e9"))
ROUNDS, BLOCK = int(os.environ.get("HOSTS_ROUNDS", "24")), 15
COST_RATE = float(os.environ.get("HOSTS_COST_RATE", "0"))
BUFFERS = os.environ.get("HOSTS_BUFFERS", "")
NAMES = ("node-0", "node-1")
START_S = float(os.environ.get("HOSTS_START_S", "90"))
#: (name, seconds, part of the rate that node-0 and node-1 may send, ms that node-0's host is late).
PHASES = (
    ("healthy", 30, (1.0, 1.0), 0),
    ("half, both ways", 44, (0.5, 0.5), 0),
    ("healthy 2", 12, (1.0, 1.0), 0),
    ("quarter, node-0 to node-1", 72, (0.25, 1.0), 0),
    ("healthy 3", 14, (1.0, 1.0), 0),
    ("half, node-1 to node-0, beside late node-0", 56, (1.0, 0.5), 60),
    ("healthy 4", 12, (1.0, 1.0), 0),
    ("cut", 22, None, 0),
)
HEALTH = (("healthy", float(os.environ.get("HOSTS_HEALTH", "480")), (1.0, 1.0), 0),)
#: Of the phases: sender -> receiver of what is slow, and ranks that are late.
SLOW = {
    "half, both ways": ({(0, 1), (1, 0)}, set()),
    "quarter, node-0 to node-1": ({(0, 1)}, set()),
    "half, node-1 to node-0, beside late node-0": ({(1, 0)}, {0}),
}
MEGABYTES, COMPUTE_MS = 96, 60
#: Prints where the process listens for requests to RAS, and what it answers. Argument: the process's number.
RAS = """
import sys
from pathlib import Path
from drumline.producers.ras.knowledge import texts_of
from drumline.producers.ras.listener import PORT, _listening
from drumline.producers.ras.status_request import request_status
address = _listening(Path("/proc") / sys.argv[1], PORT)
print(address, texts_of(request_status(address)) if address else "")
"""


def report(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


def left() -> float:
    return SECONDS - (time.monotonic() - BEGAN)


class Machine:
    """Both hosts, and what runs on them. `work`: a folder in memory."""

    def __init__(self, out: Path, work: Path, hosts: Hosts) -> None:
        self.out, self.work, self.hosts = out, work, hosts
        self.cores = sorted(os.sched_getaffinity(0))
        self.limit(RATE, RATE)
        for host in NAMES if BUFFERS else ():
            hosts.apply(host, "buffers", BUFFERS)

    def limit(self, *rates: float) -> None:
        for (host, peer), rate in zip((NAMES, NAMES[::-1]), rates, strict=True):
            self.hosts.limit(host, peer, rate)

    def spool(self, rank: int) -> Path:
        return self.work / f"spool-{rank}"

    def agents(self) -> list[subprocess.Popen[bytes]]:
        """Start the agent of each host: it reaches for Kafka in vain, and collects the rows."""
        out = []
        for rank, host in enumerate(NAMES):
            values = {**os.environ, "DRUMLINE_SPOOL__ROOT": str(self.spool(rank)), "DRUMLINE_SPOOL__MAX_MB": "2048",
                      "DRUMLINE_KAFKA__BOOTSTRAP": "127.0.0.1:9"}  # fmt: skip
            log = (self.out / f"agent-{rank}.log").open("w")
            command = [*self.hosts.inside(host), "drumline", "agent"]
            out.append(subprocess.Popen(command, env=values, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        return out

    def ranks(self, job: str, port: int, **more: str) -> list[subprocess.Popen[str]]:
        """Start a rank on each host, with half of the cores."""
        program = os.environ.get("HOSTS_JOB")
        command = (
            shlex.split(program)
            if program
            else [sys.executable, str(PROGRAMS / "hosts_job.py"), str(MEGABYTES), str(COMPUTE_MS)]
        )
        half, out = len(self.cores) // 2, []
        for rank, (host, peer) in enumerate((NAMES, NAMES[::-1])):
            end = self.hosts.end(host, peer)
            listens, peers = (f"{self.hosts.address(*pair)}:{port}" for pair in ((host, peer), (peer, host)))
            values = {
                **os.environ, "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "2",
                "MASTER_ADDR": self.hosts.address(*NAMES), "MASTER_PORT": str(port), "CUDA_VISIBLE_DEVICES": str(rank),
                "NCCL_SOCKET_FAMILY": "AF_INET", "NCCL_SOCKET_IFNAME": end, "GLOO_SOCKET_IFNAME": end,
                "NCCL_NET": "Socket", "NCCL_HOSTID": host, "NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG": "WARN",
                "LISTEN": listens, "NEXT": peers, **more,
            }  # fmt: skip
            options = LaunchOptions(job=job, run="r", policy="light", spool=str(self.spool(rank)))
            values = load_plugin(environment(values, command, options), Policy(LIGHT))
            make_rings(values)
            cores = ",".join(map(str, self.cores[rank * half : (rank + 1) * half] or self.cores))
            steps = (self.work / f"{job}-{rank}.steps").open("w") if "FOLDER" in more else subprocess.PIPE
            errors = (self.out / f"{job}-{rank}.log").open("w")
            inside = [*self.hosts.inside(host), "taskset", "-c", cores, *command]
            out.append(
                subprocess.Popen(inside, env=values, text=True, stdin=subprocess.PIPE, stdout=steps, stderr=errors)
            )
        return out


def end(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def ras(machine: Machine, ranks: list[subprocess.Popen[str]]) -> None:
    """Report what RAS answers on each host."""
    for host, rank in zip(NAMES, ranks, strict=True):
        command = [*machine.hosts.inside(host), sys.executable, "-c", RAS, str(rank.pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        report(f"RAS on {host}: {done.stdout.strip()} {done.stderr[-300:]}")


def verdicts(machine: Machine, planned: Sequence[tuple] = PHASES) -> dict[str, object]:
    """Run the phases, and return what the worker says of the rows."""
    folder = machine.work / "flags"
    folder.mkdir()
    agents = machine.agents()
    ranks = machine.ranks("two-hosts", 29511, FOLDER=str(folder))
    steps = machine.work / "two-hosts-0.steps"
    until, phases = time.monotonic() + START_S, []
    try:
        while steps.read_text().count("\n") < 3:
            if time.monotonic() > until or any(rank.poll() is not None for rank in ranks):
                raise RuntimeError("the job does not begin: see logs.tgz")
            time.sleep(0.1)
        for name, seconds, parts, late_ms in planned:
            begin = time.time_ns()
            if parts is None:
                machine.hosts.cut(*NAMES)
            else:
                machine.limit(*(part * RATE for part in parts))
            flag = folder / "late-0"
            if late_ms:
                flag.write_text(str(late_ms))
            else:
                flag.unlink(missing_ok=True)
            time.sleep(seconds / FASTER)
            phases.append({"name": name, "begin_ns": begin, "end_ns": time.time_ns()})
            report(f"{name}: {steps.read_text().count(chr(10))} steps so far, exit codes {[r.poll() for r in ranks]}")
            if parts is None:
                ras(machine, ranks)
    finally:
        end(ranks)
        time.sleep(6.0)
        for agent in agents:
            agent.terminate()
        time.sleep(2.0)
        end(agents)
    pack([machine.spool(rank) for rank in range(2)], "two-hosts", phases, machine.out / "rows.xz")
    result = evaluate(machine.out / "rows.xz", SLOW)
    for line in result.pop("table"):
        report(line)
    return result


def cost(machine: Machine) -> dict[str, object]:
    """Return steps with transfers recorded, as by default, against without: one job switches between blocks."""
    machine.limit(COST_RATE, COST_RATE)
    ranks = machine.ranks("cost", 29520)
    rows: list[dict[str, dict[str, float]]] = []
    try:
        for rank in ranks:
            answer(rank, "ready")
        report(f"cost: the job is ready, {left():.0f} s left")
        run(ranks, 60, True)  # by then the plugin knows how dense the calls are
        while len(rows) < ROUNDS and left() > 25:
            order = (True, False) if len(rows) % 2 else (False, True)
            rows.append({"on" if on else "off": run(ranks, BLOCK, on) for on in order})
    finally:
        end(ranks)
    result: dict[str, object] = {"rounds": len(rows), **{name: interval(rows, name) for name in ("ms", "median_ms")}}
    report(f"cost: {json.dumps(result)}; first {json.dumps(rows[:1])}")
    return {**result, "rows": rows}


def interval(rows: list[dict[str, dict[str, float]]], name: str) -> dict[str, float]:
    """Return the ratio of on to off, and the ends of its interval of 95 %, by rounds."""
    ratio = np.log([row["on"][name] / row["off"][name] for row in rows])
    half = 2.1 * ratio.std(ddof=1) / len(ratio) ** 0.5 if len(ratio) > 1 else float("nan")
    ends = {"ratio": ratio.mean(), "low": ratio.mean() - half, "high": ratio.mean() + half}
    return {end: round(float(np.exp(value)), 4) for end, value in ends.items()}


def run(ranks: list[subprocess.Popen[str]], steps: int, on: bool) -> dict[str, float]:
    for rank in ranks:
        rank.stdin.write(f"{steps} {int(on)}\n")
        rank.stdin.flush()
    answers = [answer(rank, "ms") for rank in ranks]
    slowest = {name: max(times[name] for times in answers) for name in ("ms", "median_ms", "cpu_ms")}
    return {**slowest, **{name: answers[0][name] for name in ("records", "untimed")}}


def answer(rank: subprocess.Popen[str], name: str) -> dict[str, float]:
    """Return the next line of JSON with a name that a rank prints. NCCL prints its version, and warnings, before it."""
    printed: list[str] = []
    while line := rank.stdout.readline():
        try:
            if isinstance(value := json.loads(line), dict) and name in value:
                return value
        except ValueError:
            pass
        printed.append(line.strip())
    raise RuntimeError(f"a rank ended ({rank.poll()}) without {name!r}; it printed {printed[-5:]}: see logs.tgz")


PARTS = {"verdicts": verdicts, "cost": cost, "health": lambda machine: verdicts(machine, HEALTH)}


def main() -> None:
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    results: dict[str, object] = {"rate": RATE, "cost_rate": COST_RATE, "phases": PHASES}
    for name in sys.argv[2:] or ("verdicts", "cost"):
        with tempfile.TemporaryDirectory(dir=shm) as work:
            try:
                hosts = Hosts(NAMES)
                try:
                    results[name] = PARTS[name](Machine(out, Path(work), hosts))
                finally:
                    hosts.close()
            except Exception as error:
                traceback.print_exc()
                results[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
                for path in sorted(out.glob("*.log")):
                    report(f"end of {path.name}:\n{path.read_bytes()[-1200:].decode(errors='replace')}")
        (out / "hosts.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
