"""A recording that takes the way over a spool and the agent gives the batches that it publishes directly."""

from collections import Counter
from pathlib import Path

from support.labs.agent import Lab
from support.tables import parts_of

from drumline.producers.replay.recording import RecordedJob
from drumline.producers.replay.replay import ReplayOptions, replay
from drumline.producers.replay.spool_target import SpoolTarget
from drumline.schemas.batch import encode
from drumline.schemas.confluent import HEADER
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

FUSION = Path(__file__).parents[2] / "data" / "traces" / "fusion"
NOW_NS = 1_800_000_000_000_000_000


def replayed(recording, root, **limits):
    target = SpoolTarget(root, **limits)
    return replay(recording, target, ReplayOptions(run="r1"), now_ns=lambda: NOW_NS)


def separate(lab):
    """(topic, key, value) of each batch, also of those that the agent has joined."""
    for topic, key, value in lab.kafka.log:
        parts = parts_of(lab.codec, topic, value)
        for part in [value] if parts is None else parts.values:
            yield topic, key, part


def test_the_same_batches_in_the_same_order_of_each_feed(tmp_path):
    recording = RecordedJob(FUSION, job="fusion", ranks=2)
    summary = replayed(recording, tmp_path, max_bytes=1 << 30)
    assert summary.rows == {str(topic): rows for topic, rows in recording.rows.items()}
    lab = Lab(tmp_path).start()
    lab.tick()
    lab.cursor.close()
    direct: dict[tuple[str, str], list[bytes]] = {}
    for timed in recording.batches("r1", NOW_NS - recording.last_ns):
        timed.batch.envelope["sent_ns"] = NOW_NS
        body = encode(model(timed.batch.topic), timed.batch)
        direct.setdefault((str(timed.batch.topic), timed.key), []).append(body)
    published: dict[tuple[str, str], list[bytes]] = {}
    for topic, key, value in separate(lab):
        published.setdefault((topic, key), []).append(value[HEADER.size :])
    for feed, bodies in direct.items():
        assert sorted(published[feed]) == sorted(bodies) if feed[0] == Topic.STEP else published[feed] == bodies, feed
    assert published.keys() == direct.keys()


def test_rows_beyond_the_spools_bound_are_in_the_account(tmp_path):
    recording = RecordedJob(FUSION, job="fusion", loop=3)
    summary = replayed(recording, tmp_path, max_bytes=600_000)
    assert summary.dropped > 0
    lab = Lab(tmp_path).start()
    lab.tick()
    lab.cursor.close()
    kept, lost = Counter(), 0
    for topic, _, value in separate(lab):
        envelope = lab.codec.decode(topic, value).envelope
        kept[topic] += envelope["rows"]
        lost += envelope["dropped_before"]
    assert kept == {topic: rows for topic, rows in summary.rows.items() if rows}
    assert lost == summary.dropped
