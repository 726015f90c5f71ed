"""GPU time by Python stack, as a file for speedscope (its file-format-schema.json). Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_FRAME = re.compile(r"^(.*) \((.*):(\d{1,10})\)$", re.DOTALL)


def speedscope(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the file's text. `rows`: of the question hot-lines by stack: place, gpu_s. `name`: of the profile."""
    frames: dict[tuple[str, str, int], int] = {}
    samples, weights = [], []
    for row in rows:
        stack = [frame_parts(text) for text in row["place"].split(";")]
        samples.append([frames.setdefault(frame, len(frames)) for frame in stack])
        weights.append(float(row["gpu_s"]))
    shared = [{"name": function, "file": file, "line": line} for function, file, line in frames]
    profile = {"type": "sampled", "name": name, "unit": "seconds", "startValue": 0, "endValue": sum(weights),
               "samples": samples, "weights": weights}  # fmt: skip
    return json.dumps({"$schema": SCHEMA, "name": name, "exporter": "drumline", "shared": {"frames": shared},
                       "profiles": [profile]})  # fmt: skip


def frame_parts(text: str) -> tuple[str, str, int]:
    """Return function, file and line of a frame as the rows write it: function (file:line)."""
    match = _FRAME.match(text)
    return (match[1], match[2], int(match[3])) if match else (text, "", 0)
