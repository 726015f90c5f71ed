"""Sample both ranks' Python once a phase, as the agent samples a suspect and its peer: zoo_stacks.py FOLDER PID PID

FOLDER: a shape's, with `began` and plan.json; it gets stacks.json.xz: a list of phase, rank and, for each part of equal
length, how often the process was read, and the main thread's stacks with their samples. Ends after the last phase.
"""

import json
import lzma
import sys
import time
from pathlib import Path

from sampled_ranks import sampled

from drumline.producers.stacks.sampling_run import SUSPECT_LENGTH_S, SUSPECT_PARTS, SamplingFailed

#: Time from the begin of a phase to that of its sampling; s.
AFTER_S = 5.0


def sample(pids: list[int]) -> list[list[tuple[int, list[tuple[str, int]]]]]:
    """Return the parts of each process, sampled at the same time. Raises SamplingFailed."""
    return [
        [
            (part.stacks.total, [(row.stack, row.samples) for row in part.stacks.rows if row.is_main])
            for part in recording.finish()
        ]
        for recording in sampled(pids, SUSPECT_LENGTH_S, SUSPECT_PARTS)
    ]


def main() -> None:
    folder, pids = Path(sys.argv[1]), [int(text) for text in sys.argv[2:]]
    while not (folder / "began").exists():
        time.sleep(0.1)
    begin = json.loads((folder / "began").read_text())["at"]
    results: list[dict[str, object]] = []
    for number, (*_, seconds) in enumerate(json.loads((folder / "plan.json").read_text())["phases"]):
        time.sleep(max(0.0, begin + AFTER_S - time.time()))
        try:
            results += [{"phase": number, "rank": rank, "parts": parts} for rank, parts in enumerate(sample(pids))]
        except (SamplingFailed, OSError, RuntimeError) as error:
            results.append({"phase": number, "error": f"{type(error).__name__}: {error}"[:300]})
        begin += seconds
        (folder / "stacks.json.xz").write_bytes(lzma.compress(json.dumps(results).encode()))


if __name__ == "__main__":
    main()
