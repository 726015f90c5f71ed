"""GPU time by stack as a file for speedscope."""

import json

from drumline.views.report.flame_graph import SCHEMA, speedscope

ROWS = [
    {"place": "main (train.py:9);attend (model.py:31)", "gpu_s": 1.5},
    {"place": "main (train.py:9);project (model.py:40)", "gpu_s": 0.25},
    {"place": "(no launch recorded)", "gpu_s": 0.25},
]


def test_stacks_share_frames_and_weigh_their_gpu_time():
    content = json.loads(speedscope(ROWS, "a job"))
    frames = content["shared"]["frames"]
    assert frames[0] == {"name": "main", "file": "train.py", "line": 9}
    assert frames[3] == {"name": "(no launch recorded)", "file": "", "line": 0}
    [profile] = content["profiles"]
    assert (content["$schema"], profile["type"], profile["unit"]) == (SCHEMA, "sampled", "seconds")
    assert profile["samples"] == [[0, 1], [0, 2], [3]]
    assert (profile["weights"], profile["endValue"]) == ([1.5, 0.25, 0.25], 2.0)
