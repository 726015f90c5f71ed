"""Verdicts on recordings and simulated jobs stay as they are kept in tests/data/verdicts, row by row.

A change for speed must not change them. Where one of the method does, run this file as a program: it writes the digests
again, and the commit states why.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from support import recordings
from support.kept_streams import RECORDED, SIMULATED, Stream

from drumline.lab.demo_recording import DEMO_RECORDING
from drumline.schemas.keys import derived_process_id
from drumline.schemas.topics import Topic
from drumline.streams.core.records import run_key
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.offline import verdicts

DIGESTS = Path(__file__).parents[2] / "data" / "verdicts" / "digests.json"


def digest(stream: Stream, window_steps: int) -> str:
    """Return a hash of all verdicts, all revisions, whatever their attempt is named.

    Floats count to 9 digits: the last bits are the processor's.
    """
    out = hashlib.blake2b(digest_size=12)
    for batch in verdicts(stream, StragglerConfig(window_steps=window_steps)):
        columns = {name: column.tolist() for name, column in batch.columns.items()}
        envelope = {name: value for name, value in batch.envelope.items() if name != "attempt_start_ns"}
        envelope["process_id"] = derived_process_id(Topic.STRAGGLER, run_key(envelope["job"], envelope["run"]))
        text = json.dumps([envelope, columns], sort_keys=True, default=str)
        rounded = json.loads(text, parse_float=lambda number: f"{float(number):.9g}")
        out.update(json.dumps(rounded, sort_keys=True).encode())
    return out.hexdigest()


def simulated(name: str) -> str:
    return digest(SIMULATED[name](), 12)


def recorded(name: str) -> str:
    return digest(recordings.stream(recordings.folder(name)), 5)


@pytest.mark.parametrize("name", SIMULATED)
def test_verdicts_on_a_simulated_job(name):
    assert simulated(name) == json.loads(DIGESTS.read_text())["simulated"][name]


@pytest.mark.parametrize("name", RECORDED)
def test_verdicts_on_a_recording(name):
    kept = json.loads(DIGESTS.read_text())["recorded"]
    if name not in kept:
        pytest.skip(f"no verdicts of {name} are kept")
    assert recorded(name) == kept[name]


if __name__ == "__main__":
    names = [DEMO_RECORDING.name, *(path.name for path in recordings.other_recordings())]
    kept = {"simulated": {name: simulated(name) for name in SIMULATED}, "recorded": {n: recorded(n) for n in names}}
    DIGESTS.write_text(json.dumps(kept, indent=1) + "\n")
