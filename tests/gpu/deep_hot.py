"""Record a Hugging Face job with a planted slow function, and jobs that only the hook knows: deep_hot.py OUT hot|hook

Called by deep.sh.
hot   a deep window with launches and stacks; OUT/hot.tar.xz gets its spool, which `drumline agent --spool SPOOL
      --until-empty` publishes where Kafka is; `drumline sql hot-lines --job hot` must name planted_slow_norm first.
hook  jobs started without `drumline run` in an environment with `drumline hook install`: how long after its host's
      policy has changed is the first kernel of each recorded, and readable. One of them has the variables of a site
      with policy auto, and NCCL's plugin.
DEEP_SECONDS: time for all.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from pathlib import Path

from deep_rows import columns, processes, window

from drumline.producers.launcher import LaunchOptions, environment
from drumline.producers.spool.location import make_rings

OUT, PART = Path(sys.argv[1]), sys.argv[2]
END = time.monotonic() + float(os.environ.get("DEEP_SECONDS", "100"))
GPUS = int(os.environ.get("DEEP_GPUS", "1"))
JOB = [sys.executable, str(Path(__file__).with_name("deep_hot_job.py")), "1000000"]
DDP = str(Path(__file__).with_name("job.py"))
#: Length of the window; time that is left for packing; jobs of the hook; s.
WINDOW_S, PACK_S, JOBS = float(os.environ.get("HOT_WINDOW_S", "3")), 30.0, 3
#: Bound of the first record after a policy's change; s.
TARGET_S = 5.0
results: dict[str, object] = {}


def save() -> None:
    (OUT / f"{PART}.json").write_text(json.dumps(results, indent=1, default=str))


def left(keep: float = 0.0) -> float:
    return END - time.monotonic() - keep


def started(name: str, command: list[str], variables: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    log = (folder / f"{name}.log").open("w")
    return subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


def until_step(name: str, job: subprocess.Popen[str], folder: Path, step: int = 20) -> None:
    """Wait until a job has printed a step. Raises RuntimeError."""
    while left(PACK_S) > 0:
        text = (folder / f"{name}.log").read_text(errors="replace")
        if any(int(number) >= step for number in re.findall(r"step (\d+)", text)):
            return
        if job.poll() is not None:
            raise RuntimeError(f"{name} ended with {job.returncode}: {text[-1500:]}")
        time.sleep(0.1)
    raise RuntimeError(f"{name} did not begin in time: {(folder / f'{name}.log').read_text()[-1500:]}")


def end(jobs: list[subprocess.Popen[str]]) -> list[int]:
    """Wait for jobs that are about to end, kill the others, and return the exit codes."""
    for job in jobs:
        try:
            job.wait(max(1.0, min(15.0, left(10))))
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
    return [job.returncode for job in jobs]


def hot(folder: Path) -> None:
    spool = folder / "spool"
    spool.mkdir()
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "HOT_END": str(folder / "end"), "CUDA_VISIBLE_DEVICES": "0"}
    variables = environment(variables, JOB, LaunchOptions(job="hot", run="r", policy="auto", spool=str(spool)))
    make_rings(variables)
    job = started("hot", JOB, variables, folder)
    try:
        until_step("hot", job, folder)
        with window(spool, "hot", launches=True, stacks=True):
            begin = time.monotonic()
            while time.monotonic() < begin + 15 and left(PACK_S) > 0 and not columns(spool, "gpu.launch.v1"):
                time.sleep(0.5)
            results["s until the first launch is readable"] = round(time.monotonic() - begin, 2)
            time.sleep(WINDOW_S)
        time.sleep(4)
    finally:
        (folder / "end").touch()
        results["code"] = end([job])
        results["log"] = (folder / "hot.log").read_text(errors="replace")[-4_000:]
    time.sleep(2)
    results["processes"] = processes(spool)
    for pid, of in columns(spool, "gpu.launch.v1").items():
        at = dict(zip(of["correlation"].tolist(), of["caller"].tolist(), strict=True))
        ran, by_line = columns(spool, "gpu.kernel.v1")[pid], Counter()
        for number, took in zip(ran["correlation"].tolist(), ran["duration_ns"].tolist(), strict=True):
            by_line[at.get(number, "(no launch)")] += took / 1e9
        results[f"GPU time by line, s, {pid}"] = by_line.most_common(8)
        results[f"launches of {pid}"] = len(at)
    save()
    print(json.dumps(results, default=str)[:3_000], flush=True)
    with tarfile.open(OUT / "hot.tar.xz", "w:xz", preset=3) as tar:
        for path in spool.glob("*/identity.json"):
            tar.add(path.parent, arcname=f"hot/{path.parent.name}")


def hook(folder: Path) -> None:
    spool = folder / "spool"
    spool.mkdir()
    install = ["drumline", "hook", "install", "--python", sys.executable, "--spool", str(spool), "--json"]
    done = subprocess.run(install, capture_output=True, text=True, timeout=60, check=False)
    results["hook install"] = done.stdout.strip() or done.stderr[-500:]
    plain = {name: text for name, text in os.environ.items() if not name.startswith(("DRUMLINE_", "NCCL_PROFILER"))}
    plain |= {"HF_HUB_OFFLINE": "1", "HOT_END": str(folder / "end"), "HOT_PLANTED": "50"}
    jobs: dict[str, subprocess.Popen[str]] = {}
    try:
        for number in range(JOBS):
            jobs[f"hook-{number}"] = started(
                f"hook-{number}", JOB, {**plain, "CUDA_VISIBLE_DEVICES": str(number % GPUS)}, folder
            )
        site = {**plain, **json.loads(done.stdout)["nccl"], "DRUMLINE_COLLECT__POLICY": "auto"}
        site |= {"DRUMLINE_JOB": "site", "DRUMLINE_SPOOL__ROOT": str(spool)}
        make_rings(site)
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(GPUS), DDP]
        jobs["site"] = started("site", [*run, "100000"], site, folder)
        for name, job in jobs.items():
            until_step(name, job, folder)
        results["before the change"] = {
            "waiting": sorted(path.read_text() for path in (spool / ".waiting").glob("*")),
            "rings": len(list((spool / ".rings").glob("*.ring"))), "processes": processes(spool),
        }  # fmt: skip
        changed_ns = time.time_ns()
        (spool / "policy").write_text("always\n")
        readable: dict[int, float] = {}
        wanted = JOBS + GPUS
        while len(readable) < wanted and time.time_ns() < changed_ns + 20 * 10**9 and left(5) > 0:
            for pid in columns(spool, "gpu.kernel.v1"):
                readable.setdefault(pid, round((time.time_ns() - changed_ns) / 1e9, 2))
            time.sleep(0.2)
        first = {
            pid: round((int(of["start_ns"][0]) - changed_ns) / 1e9, 2)
            for pid, of in columns(spool, "gpu.kernel.v1").items()
        }
        results["processes that should be recorded"] = wanted
        results["first kernel, s after the change"] = first
        results["readable, s after the change"] = readable
        results["within the target"] = sum(0 <= s <= TARGET_S for s in first.values())
        results["load"] = os.getloadavg()
    finally:
        (folder / "end").touch()
        (spool / "policy").write_text("off\n")
        jobs["site"].terminate() if "site" in jobs else None
        results["codes"] = end(list(jobs.values()))
        results["logs"] = {name: (folder / f"{name}.log").read_text(errors="replace")[-600:] for name in jobs}
        remove = ["drumline", "hook", "remove", "--python", sys.executable]
        subprocess.run(remove, capture_output=True, timeout=60, check=False)
    results["processes"] = processes(spool)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="drumline-deep-") as folder:
        try:
            {"hot": hot, "hook": hook}[PART](Path(folder))
        except Exception as error:
            results["error"] = f"{type(error).__name__}: {error}"
        save()
    print(json.dumps(results, default=str)[:6_000], flush=True)


main()
