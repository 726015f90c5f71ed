"""The agent's own samples, as it starts them by its settings. NVML is a fake here."""

import sys
from types import SimpleNamespace

from support.fakes.nvml import FakeNvml, wait_until
from support.job_process import process

from drumline.infra.config.agent_settings import AgentSettings
from drumline.infra.config.settings import Settings
from drumline.producers.agent.own_samples import OwnSamples
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.reader import Segment
from drumline.producers.spool.segment_format import Frame
from drumline.schemas.batch import decode
from drumline.schemas.codec import Codec
from drumline.schemas.model import model
from drumline.schemas.topics import Topic


def test_device_samples_have_the_host_that_is_configured_and_the_job_of_its_processes(tmp_path, monkeypatch):
    """In a pod the machine's name is the pod's; trainer and agent state the node's."""
    monkeypatch.setenv("DRUMLINE_HOST", "node-7")
    monkeypatch.setattr("socket.gethostname", lambda: "pod-abc")
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    only_gpus = AgentSettings(gpu_s=0.02, host_s=0, network_s=0, stacks=False, control=False)
    trainer = process(gpu="", host="node-7")  # its GPU is not known yet: found by host and pid
    program = SimpleNamespace(processes=[trainer], recorded=[], gpus={})
    samples = OwnSamples(Settings(spool={"root": tmp_path}, agent=only_gpus), program, Codec())
    segment = Segment(SpoolDirectory(samples._spool.folder), "000000000000.seg")
    seen = []

    def has_samples():
        frames = [frame for frame in segment.read(False) if isinstance(frame, Frame)]
        seen.extend(decode(model(Topic.DEVICE), frame.body).envelope for frame in frames)
        return seen

    try:
        wait_until(has_samples)
    finally:
        samples.stop()
    assert {(envelope["host"], envelope["job"]) for envelope in seen} == {("node-7", "train")}
    assert samples._spool._process["host"] == "node-7"
