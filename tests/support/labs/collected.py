"""Decoded content of the spool of a collected process."""

import json
from collections import Counter

from drumline.producers.spool.segment_format import DATA, SEGMENT_MAGIC, scan
from drumline.schemas.batch import decode
from drumline.schemas.model import model


def batches(tmp_path, folder=None):
    if folder is None:
        (folder,) = (tmp_path / "spool").glob("[!.]*")
    collected = []
    for path in sorted(folder.glob("*.seg")):
        data = path.read_bytes()
        assert data.startswith(SEGMENT_MAGIC)
        for frame in scan(data[len(SEGMENT_MAGIC) :], True):
            assert frame.kind == DATA
            collected.append((frame.topic, frame.key, decode(model(frame.topic), frame.body)))
    identity = json.loads((folder / "identity.json").read_text())["process"]
    return collected, identity


def rows(collected):
    total = Counter()
    for topic, _, batch in collected:
        total[topic] += batch.rows
    return total


def sequences_are_whole(collected):
    seen = {}
    for topic, key, batch in collected:
        assert batch.envelope["sequence"] == seen.get((topic, key), -1) + 1
        seen[topic, key] = batch.envelope["sequence"]
