"""From rings to verdicts where NCCL measures a part of the steps: windows of those, and no others."""

from collections import defaultdict

import numpy as np
import pytest
from support.fake_ring import MS, FakeRing

from drumline.producers.batching.live import BatchWriter
from drumline.producers.identity import Identity
from drumline.producers.rings.ring_file import HeaderField
from drumline.producers.rings.ring_rows import RingDerivation
from drumline.producers.rings.state import RingState
from drumline.producers.rings.step_cuts import RingView
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.offline import verdicts

BEGIN, RANKS, STEPS = 10**18, 4, 260
SPANS = [*range(80), *range(160, 200)]  # of 40 steps, as timed_steps.c chooses them


def published(folder, rank, late, shift, distance=0):
    """Batches of a rank; a late one calls the first of three collectives 1 ms after its peers. Rank 1 measures spans
    that lie `distance` steps later."""
    ring, batches = FakeRing(folder / str(rank), capacity=4_096), []
    ring.communicator(rank=rank, ranks=RANKS)
    for step in range(STEPS):
        ring.untimed = step - shift - distance * (rank == 1) not in SPANS
        begin = BEGIN + step * 10 * MS
        ring.mark(step, begin)
        for k, end in enumerate((begin + 5 * MS, begin + 7 * MS, begin + 9 * MS)):
            call = end - 2 * MS + (MS if rank == late and k == 0 else 0)
            if ring.untimed:
                ring.running(call)
            else:
                ring.operations(np.array([call]), call + MS // 10, end - MS // 2)
    ring.mark(STEPS, BEGIN + STEPS * 10 * MS)
    identity = Identity("job", "run", rank, rank, RANKS, "host", f"GPU-{rank}", f"process-{rank}", source="nccl")
    writer = BatchWriter(identity, lambda topic, key, batch: batches.append(batch))
    records = ring.records[: int(ring.header[HeaderField.WRITTEN])].copy()
    now_ns = BEGIN + 3_600 * 10**9
    RingDerivation(writer, RingState()).advance(RingView(records, ring.comms.copy(), now_ns, ended=True))
    return batches


@pytest.mark.parametrize(
    ("shift", "distance", "windows"),
    [(0, 0, {0, 1, 2, 3, 8, 9}), (7, 0, {0, 1, 2, 3, 4, 8, 9, 10}), (7, 2, {0, 1, 2, 3, 4, 8, 9, 10})],
)
def test_the_late_rank_is_named_in_each_measured_window_and_others_have_no_verdict(tmp_path, shift, distance, windows):
    batches = [(BEGIN, batch) for rank in range(RANKS) for batch in published(tmp_path, rank, 2, shift, distance)]
    named = defaultdict(set)
    for batch in verdicts(batches, StragglerConfig()):
        window = int(batch.envelope["first_step"]) // 20
        severity = dict(zip(batch.columns["rank"].tolist(), batch.columns["severity"].tolist(), strict=True))
        named[window] = {rank for rank, level in severity.items() if level > 0 and rank >= 0}
    last = (STEPS - 1) // 20  # once all ranks are silent, their last window is stated to have no verdict
    assert set(named) - {last} == windows
    assert not named.get(last)
    whole = {window for window, ranks in named.items() if ranks == {2}}
    assert whole >= windows - {0, 4, 10}
    assert all(ranks <= {2} for ranks in named.values())
