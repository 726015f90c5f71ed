"""A rank whose Python hangs: hanging_python.py LIBRARY WAY. LIBRARY: fake_nccl.c, which plays NCCL until then."""

import ctypes
import os
import queue
import sys
import threading
import time


def write_checkpoint(lock, held):
    with lock:
        held.set()
        time.sleep(3600)


def lock():
    saving, held = threading.Lock(), threading.Event()
    threading.Thread(target=write_checkpoint, args=(saving, held), daemon=True).start()
    held.wait()
    saving.acquire()  # lock


def loader():
    batches = queue.Queue()
    batches.get()  # loader


def exception():
    try:
        raise ValueError("a bad sample, on this rank only")
    except ValueError:
        retry()


def retry():
    while True:
        time.sleep(60)  # exception


def sleep():
    time.sleep(3600)  # sleep


if __name__ == "__main__":
    path, way = sys.argv[1:]
    library = ctypes.CDLL(path)
    stalls = ctypes.CFUNCTYPE(None)(globals()[way])
    ctypes.c_void_p.in_dll(library, "stalls").value = ctypes.cast(stalls, ctypes.c_void_p).value
    os.environ["HOW"] = "caller"
    arguments = [b"hanging", os.environ["NCCL_PROFILER_PLUGIN"].encode(), b"5", b"hang"]
    library.main(len(arguments), (ctypes.c_char_p * len(arguments))(*arguments))
