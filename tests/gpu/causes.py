"""Record two ranks with known faults, and pack the rows that an agent would publish; called by causes.sh.

usage: causes.py OUT [PART...]

Each part is a job of its own: PARTS says what runs, under which policy, and its phases (causes_faults.py). An agent
that reaches for Kafka in vain collects the rows of all of them. OUT gets recordings.tar, cut into pieces: a folder a
part, with rows.xz (the frames of its spools, without kernels, copies and ranges) and manifest.json (the phases as they
were, by the clock of the rank that had the fault). Stacks of both ranks in the middle of each phase are in causes.json.
A part that fails or has no time left is reported, and the next one begins. CAUSES_SECONDS: time for all.
"""

import json
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sampled_ranks import sampled

from drumline.producers.launcher import LaunchOptions, environment
from drumline.producers.spool.location import make_rings
from drumline.producers.spool.segment_format import DATA, SEGMENT_MAGIC, head, scan

OUT = Path(sys.argv[1])
BEGAN = time.monotonic()
SECONDS = float(os.environ.get("CAUSES_SECONDS", "520"))
#: Divides the length of all phases, for a dry run.
FASTER = float(os.environ.get("CAUSES_FASTER", "1"))
RANKS, CORES = 2, min(4, max(1, len(os.sched_getaffinity(0)) // 4))
#: Time from the gate to the first phase, at most; how long before the end of a part the next one is started; s.
START_S, EARLY_S, PACK_S = float(os.environ.get("CAUSES_START_S", "75")), 22.0, 15.0
LEFT_OUT = {"gpu.kernel.v1", "gpu.memcpy.v1", "gpu.range.v1"}
PIECE = 15_000_000
#: A folder on a disk, unlike /tmp on many hosts.
DISK = "/var/tmp" if os.access("/var/tmp", os.W_OK) else None


def between(faults: list[tuple[str, int, float]], first: float, rest: float) -> list[tuple[str, int, float]]:
    """Return phases with a healthy one before the first and after each."""
    phases: list[tuple[str, int, float]] = [("healthy", -1, first)]
    for fault in faults:
        phases += [fault, ("healthy", -1, rest)]
    return phases


@dataclass
class Part:
    """A job. `phases`: (fault, rank, seconds). `more`: of its environment."""

    name: str
    how: str
    policy: str
    phases: list[tuple[str, int, float]]
    more: dict[str, str] = field(default_factory=dict)
    ranks: list[subprocess.Popen] = field(default_factory=list)
    folder: Path = Path()

    @property
    def seconds(self) -> float:
        return sum(seconds for *_, seconds in self.phases) / FASTER


HOST = ["data_loader", "garbage_collection", "checkpoint", "python_lock"]
HOST += ["cpu_contention", "cpu_throttled", "page_faults", "disk"]
SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
LINKS = [("slow_link:1.5e9", 1, 8.0), ("slow_link:7e8", 0, 8.0)]
PARTS = {
    part.name: part
    for part in (
        Part("host-light", "ddp", "light", between([(fault, 1 - i % 2, 11) for i, fault in enumerate(HOST)], 10, 3)),
        Part("trainer-light", "trainer", "light", between([("data_loader", 1, 10), ("save", 0, 8)], 14, 4)),
        Part("gpu-always", "ddp", "always", between(
            [("synchronisation", 1, 6.0), ("batch", 0, 6.0), ("shared_gpu", 1, 7.0), ("batch", -1, 5.0),
             ("data_loader", 0, 5.0), ("garbage_collection", 1, 5.0), ("checkpoint", 0, 5.0)], 8, 3)),
        Part("link-light", "link", "light", between(LINKS, 12, 4), SOCKETS),
        Part("gpu-light", "ddp", "light", between([("batch", 0, 5), ("shared_gpu", 1, 6), ("batch", -1, 5)], 6, 3)),
        Part("fsdp2-light", "fsdp2", "light", between([("disk", 1, 5.0), ("garbage_collection", 0, 5.0)], 10, 3)),
        Part("lightning-light", "lightning", "light", between([("cpu_contention", 1, 5.0)], 10, 3)),
        Part("accelerate-light", "accelerate", "light", between([("python_lock", 1, 5.0)], 10, 3)),
        Part("link-always", "link", "always", between(LINKS, 12, 4), SOCKETS),
        # The same long enough for ten windows of each kind.
        Part("host-kinds", "ddp", "light", between([(fault, 1 - i % 2, 21) for i, fault in enumerate(HOST)], 10, 4)),
        Part("gpu-kinds", "ddp", "always", between(
            [("synchronisation", 1, 20.0), ("shared_gpu", 1, 16.0)], 8, 4)),
        # Long healthy jobs, of which each name is a false one.
        Part("healthy-ddp", "ddp", "light", [("healthy", -1, 200.0)]),
        Part("healthy-trainer", "trainer", "light", [("healthy", -1, 120.0)]),
        Part("healthy-lightning", "lightning", "light", [("healthy", -1, 70.0)]),
        Part("trainer-always", "trainer", "always", between([("checkpoint", 1, 5.0)], 8, 3)),
    )
}  # fmt: skip
results: dict[str, object] = {"parts": {}}


def report(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


def left() -> float:
    return SECONDS - (time.monotonic() - BEGAN)


def cgroup(name: str) -> dict[str, str]:
    """Make a cgroup for a rank, {} where that is refused."""
    root = Path("/sys/fs/cgroup")
    try:
        if not (root / "cgroup.controllers").exists():
            subprocess.run(["mount", "-t", "cgroup2", "none", str(root)], check=True, capture_output=True)
        (root / "cgroup.subtree_control").write_text("+cpu")
        (root / name).mkdir(exist_ok=True)
        (root / name / "cpu.max").write_text("max 100000")
        return {"CAUSES_CGROUP": str(root / name)}
    except (OSError, subprocess.CalledProcessError) as error:
        report(f"no cgroups: {error}")
        return {}


def start(part: Part, number: int, work: Path) -> None:
    """Start the ranks of a part; they wait for its gate before they use a GPU."""
    part.folder = work / part.name
    part.folder.mkdir()
    phases = [(fault, on, seconds / FASTER) for fault, on, seconds in part.phases]
    plan = {"folder": str(part.folder), "settle": 30, "phases": phases}
    (part.folder / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, str(Path(__file__).with_name("causes_job.py")), part.how]
    shared = {
        **os.environ, **part.more, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(29400 + number), "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1",
        "CAUSES_PLAN": str(part.folder / "plan.json"), "CAUSES_GATE": str(part.folder / "gate"),
        "CAUSES_DISK": str(work / "disk"), "DRUMLINE_RINGS__TIMES": "all",
        "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    options = LaunchOptions(job=part.name, run="r", policy=part.policy, spool=os.environ["DRUMLINE_SPOOL__ROOT"])
    shared = environment(shared, command, options)
    make_rings(shared)
    cores = sorted(os.sched_getaffinity(0))
    for rank in range(RANKS):
        first = ((number % 2 * RANKS + rank) * CORES) % len(cores)
        limited = cgroup(f"causes-{number}-{rank}") if part.name.startswith("host") else {}
        into = [Path(limited["CAUSES_CGROUP"], "cgroup.procs")] if limited else []
        shell = "".join(f"echo $$ > {path}; " for path in into) + 'exec "$@"'
        part.ranks.append(
            subprocess.Popen(
                ["taskset", "-c", ",".join(map(str, cores[first : first + CORES])), "sh", "-c", shell, "sh", *command],
                env={**shared, **limited, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.DEVNULL,
                stdout=(OUT / f"{part.name}-{rank}.log").open("w"),
                stderr=(OUT / f"{part.name}-{rank}.err").open("w"),
            )
        )


def stacks(part: Part) -> list[dict[str, object]]:
    """Sample both ranks for a second, as the agent does for a verdict."""
    results: list[dict[str, object]] = []
    for rank, recording in enumerate(sampled([rank.pid for rank in part.ranks], 1)):
        try:
            [recorded] = recording.finish()
        except Exception as error:
            results.append({"rank": rank, "error": f"{type(error).__name__}: {error}"[:200]})
            continue
        rows = sorted((asdict(row) for row in recorded.stacks.rows), key=lambda row: -row["samples"])
        results.append(
            {"rank": rank, "gil_polls": recorded.gil_polls, "gil_waiting": recorded.gil_waiting, "rows": rows[:6]}
        )
    return results


def run(part: Part, following: list[tuple[Part, int]], work: Path) -> dict[str, object]:
    """Let a part run; start the next one before it ends."""
    (part.folder / "gate").touch()
    until = time.monotonic() + START_S
    while not (part.folder / "began").exists():
        if time.monotonic() > until or any(rank.poll() is not None for rank in part.ranks):
            raise RuntimeError(f"it did not begin: see {part.name}-*.err")
        time.sleep(0.1)
    began = float((part.folder / "began").read_text())
    report(f"{part.name}: began {began - time.time():.1f} s, {part.seconds:.0f} s long")
    end, at, samples = began + part.seconds, began, []
    middles = []
    for fault, on, seconds in part.phases:
        middles.append((at + seconds / FASTER / 2, fault, on))
        at += seconds / FASTER
    while time.time() < end + 20 and any(rank.poll() is None for rank in part.ranks):
        if middles and time.time() >= middles[0][0]:
            _, fault, on = middles.pop(0)
            if fault != "healthy" or not samples:
                samples.append({"fault": fault, "on": on, "time_ns": time.time_ns(), "stacks": stacks(part)})
        if following and time.time() > end - EARLY_S:
            start(*following.pop(0), work)
        if any(rank.poll() not in (None, 0) for rank in part.ranks):
            break
        time.sleep(0.1)
    return {"codes": [rank.poll() for rank in part.ranks], "began": began, "stacks": samples}


def phases_of(part: Part) -> list[dict[str, object]]:
    """Return the phases as the ranks reported them: from the last one's begin to the first one's end."""
    events = []
    for rank in range(RANKS):
        for line in (OUT / f"{part.name}-{rank}.log").read_text().splitlines():
            if line.startswith('{"rank"'):
                events.append(json.loads(line))
    phases = []
    for number, (fault, on, _) in enumerate(part.phases):
        reported = [e for e in events if e.get("phase") == number and (on == -1 or e["rank"] == on)]
        begins, ends = [e for e in reported if "begin" in e], [e for e in reported if "end" in e]
        if begins and ends:
            last, first = max(begins, key=lambda e: e["time_ns"]), min(ends, key=lambda e: e["time_ns"])
            phases.append(
                {
                    "fault": fault, "on": on, "start_ns": last["time_ns"], "end_ns": first["time_ns"],
                    "steps": first["step"] - last["step"], "done": all(e["done"] for e in reported),
                }
            )  # fmt: skip
    return phases


def pack(part: Part, spool: Path, folder: Path) -> dict[str, object]:
    """Write rows.xz and manifest.json of a part, and return how many rows it has."""
    folder.mkdir()
    rows: dict[str, int] = {}
    processes = []
    with lzma.open(folder / "rows.xz", "wb", preset=3) as file:
        for identity in sorted(spool.glob("*/identity.json")):
            process = json.loads(identity.read_text())["process"]
            is_agent = not process["job"]
            if not is_agent and process["job"] != part.name:
                continue
            processes.append(process)
            for path in sorted([*identity.parent.glob("*.seg"), *identity.parent.glob("*.taken")]):
                for frame in scan(path.read_bytes()[len(SEGMENT_MAGIC) :], True):
                    if getattr(frame, "kind", None) != DATA or frame.topic in LEFT_OUT:
                        continue
                    if is_agent and part.name.encode() not in frame.body:
                        continue
                    rows[frame.topic] = rows.get(frame.topic, 0) + frame.rows
                    file.write(head(DATA, frame.topic, frame.key, frame.rows, 1, frame.body) + frame.body)
    manifest = {
        "job": part.name, "how": part.how, "policy": part.policy, "ranks": RANKS, "phases": phases_of(part),
        "rows": rows, "processes": processes,
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    return {"rows": rows, "bytes": (folder / "rows.xz").stat().st_size}


def main() -> None:
    wanted = [PARTS[name] for name in sys.argv[2:]] or list(PARTS.values())
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shm) as memory, tempfile.TemporaryDirectory(dir=DISK) as disk:
        work, spool = Path(memory), Path(memory, "spool")
        (work / "disk").symlink_to(disk)
        os.environ |= {
            "DRUMLINE_SPOOL__ROOT": str(spool),
            "DRUMLINE_SPOOL__MAX_MB": "4096",
            "DRUMLINE_KAFKA__BOOTSTRAP": "127.0.0.1:9",
        }
        agent = subprocess.Popen(
            ["drumline", "agent"],
            stdout=(OUT / "agent.log").open("w"),
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        numbered = [(part, number) for number, part in enumerate(wanted)]
        done = []
        for part, number in numbered:
            if left() < part.seconds + PACK_S + 8:
                report(f"{part.name}: no time left ({left():.0f} s)")
                end(part)
                continue
            try:
                if not part.ranks:
                    start(part, number, work)
                done.append(part)
                fits = [(p, n) for p, n in numbered[number + 1 :] if left() - part.seconds > p.seconds + PACK_S + 12]
                results["parts"][part.name] = run(part, fits[:1], work)
            except Exception as error:
                traceback.print_exc()
                results["parts"][part.name] = {"error": f"{type(error).__name__}: {error}"[:300]}
            end(part)
            outcome = results["parts"][part.name]
            report(f"{part.name}: {outcome.get('codes', outcome.get('error'))}")
        time.sleep(3)
        agent.terminate()
        try:
            agent.wait(15)
        except subprocess.TimeoutExpired:
            agent.kill()
        packed = work / "packed"
        packed.mkdir()
        for part in done:
            try:
                results["parts"][part.name] |= pack(part, spool, packed / part.name)
            except Exception as error:
                traceback.print_exc()
                results["parts"][part.name]["packing"] = f"{type(error).__name__}: {error}"[:300]
        with tarfile.open(work / "recordings.tar", "w") as tar:
            tar.add(packed, arcname="recordings")
        data = (work / "recordings.tar").read_bytes()
        for number, begin in enumerate(range(0, len(data), PIECE)):
            (OUT / f"recordings.tar.{number}").write_bytes(data[begin : begin + PIECE])
    (OUT / "causes.json").write_text(json.dumps(results, indent=1))
    for name, part in results["parts"].items():
        report(f"{name}: " + json.dumps({k: v for k, v in part.items() if k != "stacks"})[:600])


def end(part: Part) -> None:
    """Kill what is left of a part."""
    for rank in part.ranks:
        if rank.poll() is None:
            try:
                rank.wait(3)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()


if __name__ == "__main__":
    main()
