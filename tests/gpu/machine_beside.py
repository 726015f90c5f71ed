"""Measure the agent at eight GPUs, and the step time of a training job beside it; called by machine.sh.

machine_beside.py OUT SECONDS (0: the agent without a job)

The agent is `drumline agent` with its defaults: every GPU once a second, links, recorded processes, rings; NVML lists
each GPU of this machine several times, eight in all (eight_gpus.py), so that the driver of one GPU does the work of
eight. It publishes to librdkafka's own stand-in for a broker, over TCP. The job is recorded by policy light, on all
GPUs. In pairs of blocks the agent runs and is stopped (SIGSTOP) in turn; what it has missed counts against the next
block. OUT gets beside.json, agent.log and check-beside.json.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import mean

from confluent_kafka import Producer

from drumline.lab.bench.overhead import ddp
from drumline.lab.bench.overhead.ratios import mean_ratio
from drumline.schemas.topics import Topic

OUT, END = Path(sys.argv[1]), time.monotonic() + float(sys.argv[2])
#: Length of a block: a sample or two; s. Time that the agent is measured for without a job: costly readings come once a
#: minute; s.
BLOCK_S, QUIET_S = 1.5, 62.0
WORKLOADS = ("ddp_gpu_bound", "ddp_launch_bound")
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> dict[str, float]:
    """Return the CPU time of a process, and of its threads that have a name of their own; s."""
    result, program = {"all": 0.0}, Path(f"/proc/{pid}/comm").read_text().strip()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name, fields = (task / "comm").read_text().strip(), (task / "stat").read_text().rpartition(")")[2].split()
            seconds = (int(fields[11]) + int(fields[12])) / TICKS
        except OSError:
            continue
        with suppress(OSError, ValueError, IndexError):
            seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
        result["all"] += seconds
        name = name if name != program else "main and others"
        result[name] = result.get(name, 0.0) + seconds
    return result


def shares(before: dict[str, float], after: dict[str, float], seconds: float) -> dict[str, float]:
    """Return CPU in percent of a core."""
    return {name: round(100 * (value - before.get(name, 0.0)) / seconds, 2) for name, value in after.items()}


def pairs(ranks: ddp.Ranks, workload: str, agent: subprocess.Popen, until: float) -> dict[str, object]:
    """Return the step times of pairs of blocks, the agent running and stopped in turn, and the agent's CPU."""
    steps = max(5, int(1e3 * BLOCK_S / ranks.run(workload, 20, 60)["ms"]))
    times, running_s, before = [], 0.0, cpu_s(agent.pid)
    while time.monotonic() < until or len(times) < 4:
        pair = {}
        for runs in (True, False) if len(times) % 2 else (False, True):
            agent.send_signal(signal.SIGCONT if runs else signal.SIGSTOP)
            begun = time.monotonic()
            pair[runs] = ranks.run(workload, steps, 60)
            running_s += (time.monotonic() - begun) * runs
        times.append(pair)
    agent.send_signal(signal.SIGSTOP)
    share = shares(before, cpu_s(agent.pid), running_s)
    agent.send_signal(signal.SIGCONT)
    result: dict[str, object] = {"pairs": len(times), "steps": steps, "agent_cpu_%": share}
    for key in ("ms", "median_ms", "cpu_ms"):
        with_agent, without = ([pair[runs][key] for pair in times] for runs in (True, False))
        ratio, half = mean_ratio(with_agent, without)
        result[key] = {
            "running": round(mean(with_agent), 3), "stopped": round(mean(without), 3),
            "above_%": round(100 * (ratio - 1), 2), "+-": round(100 * half, 2),
            "each": [[round(value, 3) for value in pair] for pair in zip(with_agent, without, strict=True)],
        }  # fmt: skip
    return result


def check_beside(python: str) -> dict[str, object]:
    """Run `drumline check` beside the job and return the checks of loads, which must be refused."""
    begun = time.monotonic()
    command = ["drumline", "check", "--json", "--python", python]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    (OUT / "check-beside.json").write_text(done.stdout or done.stderr)
    checks = [c for c in json.loads(done.stdout)["checks"] if c["name"] in ("load", "matmul", "host to device")]
    return {"seconds": round(time.monotonic() - begun, 1), "rc": done.returncode, "loads": checks}


def main() -> None:
    broker = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    for topic in Topic:
        broker.list_topics(topic=str(topic), timeout=10)
    (address,) = [f"{b.host}:{b.port}" for b in broker.list_topics(timeout=10).brokers.values()]
    import torch

    ddp.RANKS = torch.cuda.device_count()
    results: dict[str, object] = {"GPUs": ddp.RANKS, "cores": len(os.sched_getaffinity(0))}
    with tempfile.TemporaryDirectory(prefix="drumline-beside-") as folder, (OUT / "agent.log").open("w") as log:
        spool = Path(folder)
        variables = {**os.environ, "DRUMLINE_KAFKA__BOOTSTRAP": address, "DRUMLINE_SPOOL__ROOT": folder}
        agent = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("eight_gpus.py"))], env=variables, stdout=log, stderr=log
        )
        ranks = None
        try:
            time.sleep(6)
            before, begun = cpu_s(agent.pid), time.monotonic()
            time.sleep(QUIET_S)
            results["agent alone, cpu_%"] = shares(before, cpu_s(agent.pid), time.monotonic() - begun)
            print("agent alone, % of a core:", results["agent alone, cpu_%"], flush=True)
            if float(sys.argv[2]) == 0:
                return
            ranks = ddp.Ranks("light", WORKLOADS, spool)
            results["versions"] = ranks.answers(ddp.START_S)[0]
            results["check beside"] = check_beside(sys.executable)
            print("check beside a job:", json.dumps(results["check beside"]), flush=True)
            left = END - time.monotonic() - 8
            for number, workload in enumerate(WORKLOADS):
                until = time.monotonic() + (left if number else left / 3)
                results[workload] = measured = pairs(ranks, workload, agent, min(until, END - 8))
                shown = {key: {k: v for k, v in value.items() if k != "each"} if isinstance(value, dict) else value
                         for key, value in measured.items()}  # fmt: skip
                print(f"{workload}, agent running against stopped:", json.dumps(shown), flush=True)
        finally:
            (OUT / "beside.json").write_text(json.dumps(results))
            agent.send_signal(signal.SIGCONT)
            if ranks is not None:
                ranks.close()
            rest = {str(t): broker_offset(broker, address, t) for t in (Topic.DEVICE, Topic.COLLECTIVE, Topic.NETWORK)}
            print("records published:", rest, flush=True)
            agent.terminate()
            try:
                agent.wait(20)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()


def broker_offset(broker: Producer, address: str, topic: Topic) -> int:
    """Return how many records of a topic were published."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "count", "log_level": 0})
    try:
        partitions = broker.list_topics(topic=str(topic), timeout=10).topics[str(topic)].partitions
        ends = [consumer.get_watermark_offsets(TopicPartition(str(topic), p), timeout=5) for p in partitions]
        return sum(high - low for low, high in ends)
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
