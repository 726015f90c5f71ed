"""Turn a shape that zoo.py brought back into two recordings: keep_zoo.py SHAPE_FOLDER TO [STEPS [LIGHT_STEPS]]

TO/cupti and TO/light get rows.jsonl.xz (producers/replay/published.py) and manifest.json with the phases by step, what
was injected and what may be found, as keep_recording.py makes them. STEPS: the most steps of a phase that are kept of
CUPTI's rows, from its middle; LIGHT_STEPS: of the plugin's, which may have one step in four. All by default. A tier
without steps is left out.
"""

import json
import sys
from pathlib import Path

import numpy as np
from keep_recording import EDGE, TOPICS, anonymise, batches_of, cut

from drumline.producers.replay.published import write_published
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic

#: Fault -> cause of the verdict, and by CUPTI its detail.
CAUSES = {"host": ("host_stall", ""), "gpu": ("slow_compute", "shared_gpu")}
#: Steps of a window: a phase with fewer is left out.
WINDOW = 20


def phase_of(phase: dict[str, object], tier: str, most: int) -> dict[str, object] | None:
    """Return a phase by steps, as `drumline evaluate` reads it; None where it has too few."""
    steps, fault, on = phase["steps"], str(phase["fault"]), int(phase["on"])
    first = max(begin for begin, _ in steps.values()) + EDGE
    last = min(end for _, end in steps.values()) - EDGE
    if last - first + 1 > most:
        first = (first + last - most) // 2 + 1
        last = first + most - 1
    if last - first < WINDOW:
        return None
    kept = {key: phase[key] for key in ("start_ns", "end_ns", "size", "size_ms", "median_step_ms")}
    kept |= {"phase": f"{fault}_{phase['size']:g}" if on >= 0 else fault, "first_step": first, "last_step": last}
    if on < 0:
        return {**kept, "fault_ranks": [], "accepted_causes": [], "counted": True}
    cause, detail = CAUSES[fault]
    kept |= {"fault_ranks": [on], "injected_cause": cause, "injected_rank": on, "accepted_causes": [cause]}
    return {**kept, "counted": True, **({"accepted_details": [detail]} if detail and tier == "cupti" else {})}


def cut_all(batches: list[Batch], phases: list[dict[str, object]], steps: list[tuple[int, int, int]]) -> list[Batch]:
    """Return the rows in the phases that are kept, and samples around them."""
    numbers = {step for step, *_ in steps}
    spans = [(int(phase["first_step"]), int(phase["last_step"])) for phase in phases]
    spans = [span for span in spans if any(step in numbers for step in range(span[0], span[1] + 1))]
    return [part for batch in batches if spans and (part := cut(batch, spans, steps))]


def keep(source: Path, target: Path, most: dict[str, int]) -> None:
    manifest = json.loads((source / "manifest.json").read_text())
    for tier in ("cupti", "light"):
        batches = batches_of(source / f"{tier}.xz")
        steps = anonymise(batches)
        phases = [part for phase in manifest["phases"] if (part := phase_of(phase, tier, most[tier]))]
        batches = cut_all(batches, phases, steps.get(0, []))
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
    most_steps = dict(zip(("cupti", "light"), [*limits, *[1 << 40] * (2 - len(limits))], strict=True))
    keep(Path(sys.argv[1]), Path(sys.argv[2]), most_steps)
