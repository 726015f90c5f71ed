"""Switch the recording of launches on and off beside threads that launch: deep_switched.py OUT, called by deep.sh.

Each way has its own processes, in which two threads launch small kernels and copy all the time. OUT/switched.json:
cycles of each process, its exit code, and launches that were recorded. DEEP_SECONDS: time for all.
"""

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

#: subscriber: it comes and goes with each cycle; callbacks: they are switched on and off, the subscriber stays.
WAYS = ("subscriber", "callbacks", "subscriber, kernels recorded")
SECONDS = float(os.environ.get("DEEP_SECONDS", "90"))


def launch(halt: threading.Event) -> None:
    import torch

    stream = torch.cuda.Stream()
    numbers, host = torch.zeros(64, device="cuda"), torch.zeros(64, pin_memory=True)
    with torch.cuda.stream(stream):
        while not halt.is_set():
            for _ in range(50):
                numbers.add_(1)
                numbers.copy_(host, non_blocking=True)
            stream.synchronize()


def child(way: str, seconds: float) -> None:
    """Switch for some seconds, and print how often."""
    import torch

    from drumline.producers.collector import cupti as library
    from drumline.producers.collector.counter import LaunchCounter
    from drumline.producers.collector.pc_sampling import load_driver
    from drumline.producers.ipc.buffer_pool import BufferPool

    torch.zeros(1, device="cuda")
    cupti, pool, callbacks = library.load(library.find()), BufferPool(16, 1 << 20), library.Callbacks()
    callbacks.open(ctypes.addressof(ctypes.c_char.from_buffer(pool.memory)), 0)
    launches = LaunchCounter(cupti, pool, load_driver, lambda event: None)
    cycles, records, rejected = 0, 0, 0
    if "kernels" in way:
        cupti.cuptiActivityRegisterCallbacks(callbacks.request, callbacks.complete)
        cupti.cuptiActivityEnable(10)
    halt = threading.Event()
    threads = [threading.Thread(target=launch, args=(halt,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        rejected += not launches.record_launches(True)
        time.sleep(0.01)
        launches.record_launches(False)
        if "subscriber" in way:
            launches.rest()
        callbacks.flush_launches()
        for number in pool.done():
            records += len(pool.valid(number)) // 40
            pool.give_back(number)
        cycles += 1
    halt.set()
    for thread in threads:
        thread.join()
    counts = {"cycles": cycles, "records": records, "rejected": rejected, "cupti": cupti.version()}
    print(json.dumps(counts), flush=True)
    os._exit(0)


def main(out: Path) -> None:
    """Run the ways in turn until the time is over."""
    begin, child_s, results = time.monotonic(), 6.0, {way: [] for way in WAYS}
    while time.monotonic() < begin + SECONDS - 3 * (child_s + 6):
        for way in WAYS:
            command = [sys.executable, __file__, way, str(child_s)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            answer = json.loads(done.stdout or "{}") | {"code": done.returncode}
            results[way].append(answer if not done.returncode else answer | {"error": done.stderr[-400:]})
            (out / "switched.json").write_text(json.dumps(results, indent=1))
    print(json.dumps(results)[:4_000], flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        child(sys.argv[1], float(sys.argv[2]))
    main(Path(sys.argv[1]))
