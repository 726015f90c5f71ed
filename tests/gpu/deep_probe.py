"""Probe what CUPTI can sample inside the GPU beside kernel records: deep_probe.py OUT pc|pcend|sass; called by deep.sh.

Each probe is a process of its own, as it may crash; one at a time on each GPU. OUT/pc.json, OUT/pcend.json or
OUT/sass.json has what each reported so far, its exit code, and the end of its errors. DEEP_SECONDS: time for
all. DEEP_PROBES: only those with this in their name.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from queue import Empty, Queue

from deep_cupti import CONTINUOUS, DRIVER, KERNEL, RUNTIME, SERIAL_KERNEL, SERIALIZED
from deep_rows import columns

from drumline.producers.launcher import LaunchOptions, environment

OUT, PART = Path(sys.argv[1]), sys.argv[2]
END = time.monotonic() + float(os.environ.get("DEEP_SECONDS", "140"))
GPUS = int(os.environ.get("DEEP_GPUS", "1"))
#: Time for one probe; s.
EACH_S = 60.0
UNPRIVILEGED = 65534

PROBES: dict[str, dict[str, dict[str, object]]] = {
    "pc": {
        "beside kernel records, on before": {"mode": CONTINUOUS, "before": [KERNEL]},
        "alone": {"mode": CONTINUOUS},
        "below drumline, policy always": {"mode": CONTINUOUS, "drumline": True, "thread": True},
        "beside kernel records, on after": {"mode": CONTINUOUS, "after": [KERNEL]},
        "started and stopped beside kernel records": {"mode": CONTINUOUS, "control": True, "before": [KERNEL]},
        "from another thread, beside serialized kernel records": {
            "mode": CONTINUOUS, "thread": True, "before": [SERIAL_KERNEL],
        },
        "serialized, beside kernel and call records": {
            "mode": SERIALIZED, "before": [DRIVER, RUNTIME, KERNEL],
        },
        "busy, beside kernel records": {
            "mode": CONTINUOUS, "thread": True, "before": [KERNEL], "busy": True, "periods": [16], "hardware_mb": 32,
        },
        "busy, beside kernel records, twice": {
            "mode": CONTINUOUS, "thread": True, "before": [KERNEL], "busy": True, "periods": [16, 16],
            "hardware_mb": 32,
        },
        "periods, little memory": {"mode": CONTINUOUS, "thread": True, "periods": [10, 14, 18], "hardware_mb": 32},
        "before the first kernel": {"mode": CONTINUOUS, "early": True},
        "not as root": {"mode": CONTINUOUS, "uid": UNPRIVILEGED},
    },
    "pcend": {
        "disable at a mark": {"call": "Disable", "place": "mark"},
        "disable at a mark, second thread": {"call": "Disable", "begun": "mark", "place": "mark", "second": "late"},
        "disable beside": {"call": "Disable", "begun": "mark", "place": "beside"},
        "stop beside": {"call": "Stop", "begun": "mark", "place": "beside"},
        "stop beside, second thread": {"call": "Stop", "begun": "mark", "place": "beside", "second": "late"},
        "begun beside a second thread": {"call": "Stop", "place": "mark", "second": True},
    },
    "sass": {
        "sass, alone": {"how": "sass", "records": False},
        "sass, beside kernel records": {"how": "sass", "records": True},
        "range, beside kernel records": {"how": "range", "records": True},
        "pm, beside kernel records": {"how": "pm", "records": True},
        "range, alone": {"how": "range", "records": False},
        "pm, alone": {"how": "pm", "records": False},
    },
}  # fmt: skip
results: dict[str, object] = {}
_lock = threading.Lock()


def probe(name: str, options: dict[str, object], gpu: int) -> dict[str, object]:
    """Run one probe and return what it reported."""
    command = [sys.executable, str(Path(__file__).with_name(f"deep_{PART}_job.py")), json.dumps(options)]
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
        if options.get("drumline"):
            variables = environment(variables, command, LaunchOptions(job="pc", policy="always", spool=folder))
        begin, is_over_time = time.monotonic(), False
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
            try:
                process.wait(min(EACH_S, max(END - time.monotonic(), 1)))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                is_over_time = True
            out.seek(0), errors.seek(0)
            lines, tail = out.read().splitlines(), errors.read()[-1_500:]
        result: dict[str, object] = {
            "options": options, "code": process.returncode, "over_time": is_over_time,
            "s": round(time.monotonic() - begin, 1), "errors": tail,
            "stages": [json.loads(line) for line in lines if line.startswith("{")],
        }  # fmt: skip
        if options.get("drumline"):
            time.sleep(3)
            rows = columns(Path(folder), "gpu.kernel.v1")
            result["kernel rows in drumline's spool"] = {pid: len(of["start_ns"]) for pid, of in rows.items()}
        return result


def lane(gpu: int, queue: "Queue[tuple[str, dict[str, object]]]") -> None:
    """Run probes on one GPU until none is left, or no time."""
    while END - time.monotonic() > 12:
        try:
            name, options = queue.get_nowait()
        except Empty:
            return
        try:
            result = probe(name, options, gpu)
        except Exception as error:
            result = {"options": options, "error": f"{type(error).__name__}: {error}"}
        with _lock:
            results[name] = result
            (OUT / f"{PART}.json").write_text(json.dumps(results, indent=1))
            print(f"{PART}, {name}: exit code {result.get('code')}, {result.get('s')} s", flush=True)
            for stage in result.get("stages", []):
                print(f"    {json.dumps(stage)[:700]}", flush=True)
            print(str(result.get("errors", ""))[-300:], flush=True)


def main() -> None:
    queue: Queue[tuple[str, dict[str, object]]] = Queue()
    for item in PROBES[PART].items():
        if os.environ.get("DEEP_PROBES", "") in item[0]:
            queue.put(item)
    lanes = [threading.Thread(target=lane, args=(gpu, queue)) for gpu in range(GPUS)]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()
    left = [name for name in PROBES[PART] if name not in results]
    print(f"{PART}: {len(results)} probes, no time for {left}", flush=True)


main()
