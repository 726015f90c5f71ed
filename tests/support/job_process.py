"""Envelopes of gpu.process.v1 that a test needs."""


def process(rank=0, job="train", run="r1", gpu="GPU-0", **more):
    return {
        "job": job,
        "run": run,
        "rank": rank,
        "gpu_uuid": gpu,
        "host": "h",
        "pid": 100 + rank,
        "start_ns": 5,
        **more,
    }
