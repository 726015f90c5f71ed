"""Run Kafka, ClickHouse, worker, sink and agent beside a job on two GPUs, and ask as people do; called by whole.sh.

usage: whole.py OUT HOW; STACK names the `drumline` command that runs all but the job.

The job is healthy, then rank 1 loads its data slowly, then it is healthy again. Captures are timed from the start of
the command to the row, and steps are compared before, in and behind them. OUT/whole.json has every answer.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OUT, HOW = Path(sys.argv[1]), sys.argv[2]
STACK = os.environ["STACK"]
JOB, RANKS, STEPS, CAPTURES = "whole", 2, 20, 6
#: Length of the phases; s. Time until the job begins, at most; s.
HEALTHY_S, LATE_S, AFTER_S, START_S = 130.0, 45.0, 15.0, 90.0
PLAN = [("healthy", -1, HEALTHY_S), ("data_loader", 1, LATE_S), ("healthy", -1, AFTER_S)]
BEGAN = time.monotonic()
MEDIANS = """SELECT rank, count() AS steps, round(quantileExact(0.5)(duration_ns) / 1e6, 3) AS median_ms FROM steps
WHERE job = {job:String} AND start BETWEEN fromUnixTimestamp64Milli({a:Int64}) AND fromUnixTimestamp64Milli({b:Int64})
GROUP BY rank ORDER BY rank"""
results: dict[str, object] = {}


def report(name: str, value: object) -> None:
    """Keep a result, and print it."""
    results[name] = value
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {name}: {json.dumps(value)[:1500]}", flush=True)


def drumline(*arguments: str, timeout: float = 90) -> tuple[int, str, str]:
    """Run a command of the platform; return its exit status and what it printed."""
    done = subprocess.run(
        [STACK, *arguments], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
    )
    return done.returncode, done.stdout, done.stderr


def query(name: str, *arguments: str) -> None:
    """Report the answer of a command, and its time."""
    began = time.monotonic()
    code, out, err = drumline(*arguments)
    took = round(time.monotonic() - began, 2)
    report(name, {"command": " ".join(arguments), "exit": code, "s": took, "out": out[-6000:], "err": err[-1500:]})


def medians(begun: float, ended: float) -> list[dict[str, object]]:
    """Return the median step of each rank between two times, s since the epoch."""
    times = ("--a", str(int(begun * 1e3)), "--b", str(int(ended * 1e3)))
    _, out, err = drumline("sql", MEDIANS, "--json", "--job", JOB, *times)
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")] or [{"error": err[-300:]}]


def program(name: str, *arguments: str) -> subprocess.Popen:
    """Start a program of the platform."""
    return subprocess.Popen([STACK, *arguments], stdin=subprocess.DEVNULL, stdout=(OUT / f"{name}.log").open("w"),
                            stderr=subprocess.STDOUT)  # fmt: skip


def start_job(folder: Path) -> subprocess.Popen:
    """Start the ranks below `drumline run`; they begin at once."""
    (folder / "plan.json").write_text(json.dumps({"folder": str(folder), "settle": 30, "phases": PLAN}))
    (folder / "gate").touch()
    more = {"CAUSES_PLAN": str(folder / "plan.json"), "CAUSES_GATE": str(folder / "gate"),
            "CAUSES_DISK": str(folder / "disk"), "OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip
    (folder / "disk").mkdir()
    job = str(Path(__file__).with_name("causes_job.py"))
    command = ["drumline", "run", "--job", JOB, "--policy", "auto", "--", "torchrun", "--nproc-per-node", str(RANKS),
               "--master-port", "29477", job, HOW]  # fmt: skip
    return subprocess.Popen(command, env=os.environ | more, stdin=subprocess.DEVNULL,
                            stdout=(OUT / "job.log").open("w"), stderr=(OUT / "job.err").open("w"))  # fmt: skip


def capture(number: int) -> None:
    """Time a capture, and compare steps around it."""
    kinds = "kernels,launches,stacks" if number % 2 else "kernels"
    requested = time.time()
    command = ("capture", "--job", JOB, "--steps", str(STEPS), "--lead", "3", "--with", kinds, "--json")
    code, out, err = drumline(*command)
    answer = json.loads(out) if out.startswith("{") else {"error": err[-500:]}
    first_s = answer.get("first_row_s")
    progress = [line for line in err.splitlines() if "kernels" in line]
    report(f"capture {number}", {"with": kinds, "exit": code, "s": round(time.time() - requested, 2),
                                 "first_row_s": first_s, "answer": answer, "progress": progress[:4]})  # fmt: skip
    time.sleep(3)
    report(
        f"steps around capture {number}",
        {"before": medians(requested - 6, requested), "behind": medians(time.time() - 3.5, time.time() - 0.5)},
    )


def main() -> int:
    """Run all; return 1 if a part failed."""
    began = time.monotonic()
    for name, arguments in (("up", ["up", "--servers"]), ("migrate", ["migrate"]), ("topics", ["topics", "apply"])):
        code, out, err = drumline(*arguments, timeout=120)
        if code:
            report(name, {"exit": code, "err": (out + err)[-1500:]})
            return 1
    report("platform up", round(time.monotonic() - began, 1))
    programs = [program(name, name) for name in ("stream", "sink", "agent")]
    with tempfile.TemporaryDirectory() as folder:
        job = start_job(Path(folder))
        try:
            until = time.monotonic() + START_S
            while not (Path(folder) / "began").exists() and time.monotonic() < until and job.poll() is None:
                time.sleep(0.2)
            start = float((Path(folder) / "began").read_text())
            report("job began", round(start - time.time(), 1))
            time.sleep(15)
            query("top, healthy", "top", "--job", JOB, "--once")
            for number in range(CAPTURES):
                if time.time() < start + HEALTHY_S - 16:
                    capture(number)
                    time.sleep(8)
            time.sleep(max(0.0, start + HEALTHY_S + 25 - time.time()))
            query("top, late", "top", "--job", JOB, "--once")
            query("explain", "explain", JOB)
            job.wait(timeout=max(1.0, start + HEALTHY_S + LATE_S + AFTER_S + 40 - time.time()))
        finally:
            job.kill()
    report("job exit", job.returncode)
    time.sleep(15)
    query("verdicts", "sql", "SELECT first_step, rank, severity, cause, lost_share FROM stragglers WHERE job = 'whole' "
        "AND (severity >= 'warning' OR first_step < 100) ORDER BY first_step, rank")  # fmt: skip
    for named in ("verdict-window", "hot-lines", "straggler-cost"):
        query(named, "sql", named, "--job", JOB)
    query("flamegraph", "flamegraph", "--job", JOB, "-o", str(OUT / "flame.json"))
    programs[2].terminate()
    programs[2].wait(30)
    time.sleep(15)  # the sink collects large topics for 10 s
    query("audit", "audit", "--job", JOB)
    query("dead letters", "dlq", "list")
    for running in programs[:2]:
        running.terminate()
        running.wait(30)
    drumline("down")
    (OUT / "whole.json").write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
