"""Segments that are in Kafka go to S3-compatible storage: a real S3 API on loopback (moto), and one that fails."""

import os
from dataclasses import replace
from pathlib import Path

import boto3
import pytest
from backports import zstd
from pydantic import SecretStr
from support.labs.agent import Lab, process, write
from support.labs.agent_command import agent, errors_of

from drumline.infra.config.servers import ArchiveSettings
from drumline.producers.agent import object_store as agent_storage
from drumline.producers.agent.agent import Agent, AgentOptions
from drumline.producers.agent.archiver import Archiver
from drumline.producers.agent.object_store import s3
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.writer import SpoolWriter


class Store:
    """Objects in memory. `problem`: raised instead."""

    def __init__(self):
        self.objects, self.problem = {}, None

    def __call__(self, name, content):
        if self.problem is not None:
            raise self.problem
        assert self.objects.setdefault(name, content) == content or name.endswith("identity.json")
        self.objects[name] = content

    @property
    def segments(self):
        return sorted(name for name in self.objects if name.endswith(".zst"))


class ArchiveLab(Lab):
    """A lab whose agent archives. `tick` moves the archiver too."""

    def __init__(self, root, store, most_bytes=1 << 20):
        super().__init__(root)
        root.mkdir(exist_ok=True)
        self.store = store
        self.archiver = Archiver(root, "host-1", most_bytes, store, agent_storage.zstd(), lambda: self.now)
        self.start()
        self.agent = Agent(
            self.settings, self.cursor, self.sender, self.codec, self.health,
            AgentOptions(done=self.archiver.take, clock=lambda: self.now),
        )  # fmt: skip

    def tick(self, seconds=30.0):
        super().tick(seconds)
        self.archiver.archive_pending()


@pytest.fixture
def lab(tmp_path):
    started = ArchiveLab(tmp_path / "spool", Store())
    yield started
    started.cursor.close()


def restored(objects: dict[str, bytes], root: Path) -> None:
    """A spool again, as docs/guide/node-agent.md states."""
    for name, content in objects.items():
        folder = root / name.split("/")[-3 if name.endswith(".zst") else -2]
        folder.mkdir(parents=True, exist_ok=True)
        if name.endswith(".zst"):
            (folder / Path(name).stem).write_bytes(zstd.decompress(content))
        else:
            (folder / Path(name).name).write_bytes(content)


def test_what_is_in_kafka_is_archived_and_can_be_published_from_there(lab, tmp_path):
    spool = SpoolWriter(lab.root, process(), SpoolLimits(segment_bytes=4_000))
    write(spool, range(20))
    spool.close()
    lab.tick()
    lab.tick()
    assert lab.account()[0] == list(range(20))
    name = spool.folder.name
    assert f"host-1/{name}/identity.json" in lab.store.objects
    assert all(key.startswith(f"host-1/{name}/20") for key in lab.store.segments)
    assert not spool.folder.exists()
    assert not any((lab.root / ".agent" / "archive").iterdir())
    restored(lab.store.objects, tmp_path / "again")
    other = Lab(tmp_path / "again").start()
    other.tick()
    assert [value for _, _, value in other.kafka.log] == [value for _, _, value in lab.kafka.log]
    other.cursor.close()


def test_a_failing_storage_stops_nothing_and_is_tried_again(lab):
    spool = SpoolWriter(lab.root, process(), SpoolLimits(segment_bytes=4_000))
    lab.store.problem = ConnectionError("no route")
    write(spool, range(20))
    lab.tick()
    assert lab.account()[0] == list(range(20))
    assert "no route" in lab.archiver.problem
    lab.store.problem = None
    lab.tick()
    assert lab.archiver.problem == ""
    assert len(lab.store.segments) >= 3
    spool.close()


def test_a_link_in_place_of_a_segment_is_not_followed(lab, tmp_path):
    """A user who may write into the spool must not make the agent read files for them."""
    (tmp_path / "secret").write_text("secret")
    spool = SpoolWriter(lab.root, process(), SpoolLimits(segment_bytes=4_000))
    write(spool, range(20))
    take = lab.archiver.take

    def replaced(segment, folder):
        if segment.number == 0:
            (folder.path / segment.name).unlink()
            (folder.path / segment.name).symlink_to(tmp_path / "secret")
        take(segment, folder)

    lab.agent._options = replace(lab.agent._options, done=replaced)
    lab.tick()
    lab.tick()
    assert lab.archiver.problem == ""
    numbers = [name.split("/")[-1] for name in lab.store.segments]
    assert numbers, "the others go on"
    assert "000000000000.seg.zst" not in numbers
    assert not any(b"secret" in zstd.decompress(lab.store.objects[name]) for name in lab.store.segments)
    spool.close()


def test_its_backlog_is_bounded_and_the_oldest_goes(tmp_path):
    lab = ArchiveLab(tmp_path, Store(), most_bytes=10_000)
    lab.store.problem = ConnectionError("down")
    spool = SpoolWriter(lab.root, process(), SpoolLimits(segment_bytes=4_000))
    write(spool, range(40))
    spool.close()
    lab.tick()
    lab.tick()
    assert lab.account()[0] == list(range(40)), "Kafka has it all"
    lab.store.problem = None
    lab.tick()
    numbers = [int(name.split("/")[-1].partition(".")[0]) for name in lab.store.segments]
    assert len(numbers) < 6
    assert numbers == list(range(numbers[0], numbers[-1] + 1)), "the newest ones"
    assert numbers[0] > 0
    lab.cursor.close()


def test_a_segment_sent_twice_is_one_object(lab):
    spool = SpoolWriter(lab.root, process(), SpoolLimits(segment_bytes=4_000))
    write(spool, range(4))
    spool.close()
    sent = []

    def fail_after(name, content):
        lab.store(name, content)
        sent.append(name)
        if len(sent) == 2:
            raise TimeoutError("the answer got lost")

    lab.archiver._store = fail_after
    lab.tick()
    lab.tick()
    assert sent.count(sent[1]) == 2
    assert len(lab.store.segments) == len(set(sent)) - 1


@pytest.fixture(scope="module")
def moto():
    from moto.server import ThreadedMotoServer  # half a second, in each process that collects tests

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def test_objects_arrive_over_the_s3_api(moto, tmp_path):
    client = boto3.client("s3", endpoint_url=moto, region_name="us-east-1", aws_access_key_id="key",
                          aws_secret_access_key="secret")  # fmt: skip
    client.create_bucket(Bucket="bucket")
    settings = ArchiveSettings(url="s3://bucket/some/prefix", endpoint=moto, key_id="key", secret=SecretStr("secret"))
    lab = ArchiveLab(tmp_path, s3(settings), 1 << 30)
    spool = SpoolWriter(lab.root, process(), SpoolLimits(segment_bytes=4_000))
    write(spool, range(10))
    spool.close()
    spool = SpoolWriter(lab.root, process("p1"))
    write(spool, range(6), rows=10_000)  # an object of several MB
    spool.close()
    lab.tick()
    lab.tick()
    listed = client.list_objects_v2(Bucket="bucket")["Contents"]
    assert {objects["Key"].split("/host-1/")[0] for objects in listed} == {"some/prefix"}
    assert len([objects for objects in listed if objects["Key"].endswith(".seg.zst")]) >= 3
    objects = {o["Key"]: client.get_object(Bucket="bucket", Key=o["Key"])["Body"].read() for o in listed}
    restored(objects, tmp_path / "again")
    assert sum(path.stat().st_size for path in (tmp_path / "again").glob("*/*.seg")) > 4_000_000
    lab.cursor.close()


def test_a_missing_bucket_is_reported_and_nothing_is_lost(moto, tmp_path):
    settings = ArchiveSettings(url="s3://nowhere", endpoint=moto, key_id="key", secret=SecretStr("secret"))
    lab = ArchiveLab(tmp_path, s3(settings))
    spool = SpoolWriter(lab.root, process())
    write(spool, [0])
    spool.close()
    lab.tick()
    assert "nowhere" in lab.archiver.problem or "NoSuchBucket" in lab.archiver.problem
    assert "secret" not in lab.archiver.problem
    assert len(list((lab.root / ".agent" / "archive").glob("*/*.seg"))) == 1
    lab.cursor.close()


def test_the_thread_archives_by_itself(tmp_path):
    store = Store()
    archiver = Archiver(tmp_path, "host-1", 1 << 20, store, agent_storage.zstd())
    (tmp_path / ".agent" / "archive" / "p0").mkdir()
    (tmp_path / ".agent" / "archive" / "p0" / "identity.json").write_text("{}")
    (tmp_path / ".agent" / "archive" / "p0" / "000000000003.seg").write_bytes(b"left by the agent before")
    archiver.start()
    assert archiver.drain(lambda: True) == 0
    archiver.stop()
    assert not archiver.is_alive()
    assert len(store.segments) == 1
    assert os.listdir(tmp_path / ".agent" / "archive") == []


def waiting(root, segments):
    """A backlog that an agent before left."""
    folder = root / ".agent" / "archive" / "p0"
    folder.mkdir(parents=True)
    (root / ".agent").chmod(0o700)
    (folder / "identity.json").write_text("{}")
    for number in range(segments):
        (folder / f"{number:012d}.seg").write_bytes(b"content")
    return root


def test_who_waits_for_the_archive_gives_up_when_it_takes_nothing_and_not_before(tmp_path):
    store = Store()
    archiver = Archiver(waiting(tmp_path, 3), "host-1", 1 << 20, store, agent_storage.zstd())
    store.problem = ConnectionError("down")
    archiver.start()
    assert archiver.drain(lambda: True, stall_timeout_s=0.5) == 3
    requests = iter([True, False])
    assert archiver.drain(lambda: next(requests)) == 3, "Ctrl-C"
    store.problem = None
    assert archiver.drain(lambda: True) == 0
    archiver.stop()
    assert len(store.segments) == 3


def test_an_agent_that_ends_when_all_is_done_has_archived_it(moto, tmp_path):
    client = boto3.client("s3", endpoint_url=moto, region_name="us-east-1", aws_access_key_id="key",
                        aws_secret_access_key="secret")  # fmt: skip
    client.create_bucket(Bucket="done")
    waiting(tmp_path, 4)
    setting = {"ARCHIVE__URL": "s3://done", "ARCHIVE__ENDPOINT": moto, "ARCHIVE__KEY_ID": "key", "ARCHIVE__SECRET": "s"}
    program = agent(tmp_path, "--until-empty", **setting)
    errors = errors_of(program)
    assert program.returncode == 0, errors
    names = [entry["Key"] for entry in client.list_objects_v2(Bucket="done")["Contents"]]
    assert len([name for name in names if name.endswith(".zst")]) == 4


def test_what_will_never_be_archived_is_no_success(moto, tmp_path):
    waiting(tmp_path, 4)
    for path in tmp_path.glob(".agent/archive/p0/*.seg"):
        path.write_bytes(bytes(400_000))  # more than its backlog may be
    setting = {"ARCHIVE__URL": "s3://left", "ARCHIVE__ENDPOINT": moto, "ARCHIVE__BACKLOG_MB": "1",
               "ARCHIVE__KEY_ID": "key", "ARCHIVE__SECRET": "s"}  # fmt: skip
    boto3.client("s3", endpoint_url=moto, region_name="us-east-1", aws_access_key_id="key",
                 aws_secret_access_key="secret").create_bucket(Bucket="left")  # fmt: skip
    program = agent(tmp_path, "--until-empty", **setting)
    errors = errors_of(program)
    assert program.returncode == 8, errors
    assert "not in the archive: 2 were left out" in errors
    assert "Traceback" not in errors
