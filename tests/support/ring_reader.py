"""Reads a ring as the agent does, without its files."""

import json

import numpy as np

from drumline.producers.batching.live import BatchWriter
from drumline.producers.identity import Identity
from drumline.producers.rings.ring_file import HeaderField
from drumline.producers.rings.ring_rows import RingDerivation
from drumline.producers.rings.state import RingState
from drumline.producers.rings.step_cuts import RingView

BEGIN = 10**18
LATER = BEGIN + 3_600 * 10**9
IDENTITY = Identity("job", "run", 0, 0, 2, "host", "GPU-0", "process", source="nccl")


class Reader:
    """Derives what a ring holds; keeps the state as JSON only, as an agent that is killed after each round does."""

    def __init__(self, ring):
        self.ring, self.batches = ring, []
        self.state, self.feeds = RingState().to_json(), []

    def round(self, now_ns=LATER, *, most=None, **view):
        state = RingState.from_json(json.loads(json.dumps(self.state)))
        writer = BatchWriter(IDENTITY, lambda topic, key, batch: self.batches.append(batch))
        writer.restore(json.loads(json.dumps(self.feeds)))
        end = int(self.ring.header[HeaderField.WRITTEN])
        at = np.arange(state.position, min(end, state.position + (most or end)))
        records = self.ring.records[at % self.ring.capacity].copy()
        view["more"] = state.position + len(at) < end
        dropped = int(self.ring.header[HeaderField.DROPPED])
        RingDerivation(writer, state).advance(RingView(records, self.ring.comms.copy(), now_ns, dropped, **view))
        self.ring.header[HeaderField.READ] = state.position
        self.state, self.feeds = state.to_json(), writer.state()
        return state

    def rows(self, topic, *columns):
        batches = [batch for batch in self.batches if batch.topic == topic and batch.rows]
        return list(zip(*(np.concatenate([b.columns[c] for b in batches]).tolist() for c in columns), strict=True))
