"""Record keys: what they are built of, by topic."""

import pytest

from drumline.schemas.batch import Batch
from drumline.schemas.keys import derived_process_id, record_key
from drumline.schemas.topics import TOPICS, Topic

ENVELOPE = {"job": "train", "process_id": "p-1", "communicator": "00000000000000ab", "gpu_uuid": "GPU-1", "host": "h"}
_BY = (Topic.STEP, Topic.DEVICE, Topic.HOST, Topic.PROGRESS, Topic.TRANSFER, Topic.STACK)
BY_JOB = (*_BY, Topic.LATENESS, Topic.STRAGGLER, Topic.HANG)


@pytest.mark.parametrize("topic", [spec.topic for spec in TOPICS if spec.topic is not Topic.TICK])
def test_keys_follow_the_declared_topics(topic: Topic) -> None:
    if topic in (Topic.NETWORK, Topic.CHECK):
        assert record_key(Batch(topic, ENVELOPE)) == "h"
        return
    expected = "train" if topic in BY_JOB else "train:00000000000000ab" if topic is Topic.COLLECTIVE else "p-1"
    assert record_key(Batch(topic, ENVELOPE)) == expected


def test_samples_without_a_job_are_keyed_by_their_gpu() -> None:
    assert record_key(Batch(Topic.DEVICE, {**ENVELOPE, "job": ""})) == "GPU-1"
    assert record_key(Batch(Topic.DEVICE, {**ENVELOPE, "job": "", "gpu_uuid": ""})) == "h", (
        "of a GPU that never answered"
    )


def test_derived_process_ids_are_stable() -> None:
    assert derived_process_id("gpu.straggler.v1", "run-1") == "b1828a44-241e-5b8c-9da3-a33b14f78fd4"
