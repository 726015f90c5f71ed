"""A sampler over a fake NVML, and processes of jobs."""

import pytest

from drumline.producers.nvml.batches import DeviceBatches
from drumline.producers.nvml.sampler import DeviceSampler, SamplerOptions
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.reader import Segment
from drumline.producers.spool.segment_format import Frame
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import decode
from drumline.schemas.model import model
from drumline.schemas.topics import Topic


@pytest.fixture
def sampling(tmp_path):
    """Start a sampler over a fake: start(fake, period_s) -> rows() so far."""
    running = []

    def start(fake, period_s=0.02, processes=()):
        spool = SpoolWriter(tmp_path, {"process_id": "agent-1", "sequence": 0})
        sampler = DeviceSampler(
            spool, DeviceBatches("agent-1", "h"), lambda: processes, SamplerOptions(period_s, load=lambda: fake)
        )
        running.append(sampler)
        sampler.start()
        segment = Segment(SpoolDirectory(spool.folder), "000000000000.seg")
        seen = []

        def rows():
            for frame in segment.read(False):
                assert isinstance(frame, Frame)
                seen.append((frame.key, decode(model(Topic.DEVICE), frame.body)))
            return seen

        return rows

    yield start
    for sampler in running:
        sampler.stop()
        sampler._spool.close()
        assert not sampler.is_alive()
