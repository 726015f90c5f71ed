"""Turn a shape that zoo.py brought back into two recordings: keep_zoo.py SHAPE_FOLDER TO [STEPS [LIGHT_STEPS]]

TO/cupti and TO/light get rows.jsonl.xz (producers/replay/published.py) and manifest.json with the phases by step, what
was injected and what may be found, as keep_recording.py makes them. STEPS: the most steps of a phase that are kept of
CUPTI's rows, where the plugin measured most steps and then from its middle; LIGHT_STEPS: of the plugin's, which may
have one step in four. By default all, with those before and between phases: verdicts about pipelines rest on what came
before. Phases begin and end with whole windows. A tier without steps is left out.
"""

import json
import sys
from pathlib import Path

import numpy as np
from keep_recording import EDGE, ROUNDED, TOPICS, anonymise, batches_of, cut

from drumline.producers.replay.published import write_published
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic

#: Fault -> cause of the verdict, and by CUPTI its detail.
CAUSES = {"host": ("host_stall", ""), "gpu": ("slow_compute", "shared_gpu")}
#: Steps of a window: a phase with fewer is left out.
WINDOW = 20
UNLIMITED = 1 << 40
#: To which sums of a step and covered times are rounded.
COARSE_NS = 10_000
#: Digits that are kept of shares in samples; %.
DIGITS = 3
Steps = np.ndarray


def kept_steps(first: int, last: int, most: int, measured: Steps) -> tuple[int, int]:
    """Return the first and last step of at most so many that are whole windows and have most measured ones."""
    first, last = -(-first // WINDOW) * WINDOW, (last + 1) // WINDOW * WINDOW - 1
    most = min(most // WINDOW * WINDOW, last - first + 1)
    firsts = np.arange(first, last - most + 2, WINDOW)
    counts = np.searchsorted(measured, firsts + most) - np.searchsorted(measured, firsts)
    begin = int(min(zip(-counts, abs(firsts - firsts.mean()), firsts, strict=True))[2])
    return begin, begin + most - 1


def phase_of(phase: dict[str, object], tier: str, most: int, measured: Steps) -> dict[str, object] | None:
    """Return a phase by steps, as `drumline evaluate` reads it; None where it has too few."""
    steps, fault, on = phase["steps"], str(phase["fault"]), int(phase["on"])
    first = max(begin for begin, _ in steps.values()) + EDGE
    last = min(end for _, end in steps.values()) - EDGE
    if (last + 1) // WINDOW - -(-first // WINDOW) < 1:
        return None
    first, last = kept_steps(first, last, most, measured)
    kept = {key: phase[key] for key in ("start_ns", "end_ns", "size", "size_ms", "median_step_ms")}
    kept |= {"phase": f"{fault}_{phase['size']:g}" if on >= 0 else fault, "first_step": first, "last_step": last}
    if on < 0:
        return {**kept, "fault_ranks": [], "accepted_causes": [], "counted": True}
    cause, detail = CAUSES[fault]
    kept |= {"fault_ranks": [on], "injected_cause": cause, "injected_rank": on, "accepted_causes": [cause]}
    return {**kept, "counted": True, **({"accepted_details": [detail]} if detail and tier == "cupti" else {})}


def cut_all(batches: list[Batch], spans: list[tuple[int, int]], steps: list[tuple[int, int, int]]) -> list[Batch]:
    """Return the rows in the spans of steps that are kept, and samples around them."""
    numbers = {step for step, *_ in steps}
    spans = [span for span in spans if any(step in numbers for step in range(span[0], span[1] + 1))]
    parts = []
    for batch in batches if spans else []:
        named = {name for name in batch.columns if name.endswith("_ns") and "step" in batch.columns}
        rounded = {name for name in named if (batch.columns[name] >= 0).all()}
        if part := cut(batch, spans, steps):
            for name, column in part.columns.items():
                if column.dtype.kind == "f":
                    part.columns[name] = column.round(DIGITS)
                elif name in rounded - ROUNDED:
                    part.columns[name] = column // COARSE_NS * COARSE_NS
            parts.append(part)
    return parts


def measured_by(path: Path) -> Steps:
    """Return the steps of all ranks in a tier, in order."""
    batches = [batch for batch in batches_of(path) if batch.topic == Topic.STEP]
    return np.unique(np.concatenate([batch.columns["step"] for batch in batches] or [np.empty(0, np.int64)]))


def keep(source: Path, target: Path, most: dict[str, int]) -> None:
    manifest = json.loads((source / "manifest.json").read_text())
    measured = measured_by(source / "light.xz")
    for tier in ("cupti", "light"):
        batches = batches_of(source / f"{tier}.xz")
        steps = anonymise(batches)
        phases = [part for phase in manifest["phases"] if (part := phase_of(phase, tier, most[tier], measured))]
        spans = [(int(phase["first_step"]), int(phase["last_step"])) for phase in phases]
        if most[tier] == UNLIMITED and spans:
            spans = [(0, spans[-1][1])]
        batches = cut_all(batches, spans, steps.get(0, []))
        if not batches:
            print(f"{source}: no steps by {tier}", file=sys.stderr)
            continue
        (target / tier).mkdir(parents=True)
        write_published(target / tier, batches)
        policy = "always" if tier == "cupti" else "light"
        rows = {str(topic): int(np.sum([b.rows for b in batches if b.topic == topic])) for topic in sorted(TOPICS)}
        kept = {"how": manifest["how"], "mode": manifest["mode"], "policy": policy, "world_size": manifest["ranks"]}
        text = json.dumps({**kept, "rows": rows, "phases": phases}, indent=1)
        (target / tier / "manifest.json").write_text(text + "\n")
        size = (target / tier / "rows.jsonl.xz").stat().st_size
        print(f"{target / tier}: {size} bytes, {rows[str(Topic.COLLECTIVE)]} operations")


if __name__ == "__main__":
    limits = [int(text) for text in sys.argv[3:5]]
    most_steps = dict(zip(("cupti", "light"), [*limits, *[UNLIMITED] * (2 - len(limits))], strict=True))
    keep(Path(sys.argv[1]), Path(sys.argv[2]), most_steps)
