"""Records of gpu.stack.v1, as an agent sends those of a suspect rank and its peer."""

import numpy as np

from drumline.schemas.batch import Batch, dictionary
from drumline.schemas.topics import Topic
from drumline.streams.stragglers.inspection.comparison import PARTS

LOOP = "main (/job/train.py:9)"


def sampled(rank, role, share=0.0, first_step=40, suspect=1, samples=25, seed=0, job="job", run="run"):
    """The parts of a sampling: the main thread in `load` for this share of it, else in one of eight layers."""
    dice = np.random.default_rng(seed + rank)
    out = []
    for part in range(PARTS):
        lines = [f"{LOOP};load (/job/data.py:4)" if dice.random() < share else
                 f"{LOOP};layer (/job/net.py:{dice.integers(1, 9)})" for _ in range(samples)]  # fmt: skip
        texts, counts = np.unique(lines, return_counts=True)
        stacks, stack = dictionary([*texts.tolist(), "run (/job/loader.py:2)"])
        envelope = {
            "job": job, "run": run, "rank": rank, "verdict": "suspect", "role": role, "named_rank": suspect,
            "first_step": first_step, "last_step": first_step + 19, "time_ns": 10**18 + part * 500_000_000,
            "duration_ns": 500_000_000, "samples_total": samples, "stacks": stacks, "rows": len(stack),
        }  # fmt: skip
        columns = {
            "stack": np.array(stack), "samples": np.array([*counts.tolist(), samples]),
            "is_main": np.array([1] * len(texts) + [0]),
        }  # fmt: skip
        out.append(Batch(Topic.STACK, envelope, columns))
    return out


def both(share, peer_share=0.0, **more):
    """The records of a suspect, rank 1, and of its peer, rank 0."""
    return [*sampled(1, "suspect", share, **more), *sampled(0, "peer", peer_share, **more)]
