"""The node agent with a scripted Kafka."""

import gc
import os
import random
import shutil
import signal
import time
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError
from structlog.testing import capture_logs
from support.labs.agent import TOPIC_NAMES, Lab, process, write
from support.labs.sink import any_batch

from drumline.infra.telemetry import metrics
from drumline.producers.agent.cursor import Cursor, OtherAgent
from drumline.producers.agent.discovery import FolderDiscovery
from drumline.producers.agent.old_rows import OLD_ROWS, old_rows
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.codec import Codec
from drumline.schemas.errors import RegistryUnavailable
from drumline.schemas.model import model
from drumline.schemas.topics import Topic


@pytest.fixture
def lab(tmp_path):
    started = Lab(tmp_path).start()
    yield started
    started.cursor.close()


def test_batches_arrive_as_written_and_the_folder_goes_with_its_process(lab):
    spool = SpoolWriter(lab.root, process(k8s_pod="pod-7"), SpoolLimits(segment_bytes=4_000))
    write(spool, range(30))
    lab.tick()
    assert [batch.envelope for batch in lab.batches()] == [
        lab.codec.decode(Topic.KERNEL, lab.codec.encode(any_batch(Topic.KERNEL, 10, "p0", i))).envelope
        for i in range(30)
    ]
    assert [batch.envelope["k8s_pod"] for batch in lab.batches(Topic.PROCESS)] == ["pod-7"]
    assert len(list(spool.folder.glob("*.taken"))) == 1, "only the one that is being written is left"
    write(spool, [30])
    spool.identify({"gpu_uuid": "GPU-late"})
    lab.tick()
    assert lab.account()[0][-1] == 30
    assert [b.envelope["gpu_uuid"] for b in lab.batches(Topic.PROCESS)] == ["GPU-0", "GPU-late"]
    spool.close()
    lab.tick()
    assert not spool.folder.exists()


def test_a_folder_that_is_new_is_published_before_the_next_refresh(lab):
    """People wait for the first rows of a deep window, which starts the decoder of each process."""
    os.utime(lab.root, (1, 1))
    lab.tick()
    lab.agent.tick()  # the refresh that is due
    spool = SpoolWriter(lab.root, process())
    write(spool, range(3))
    while lab.agent.tick():
        lab.sender.poll(0)
    lab.sender.poll(0)
    assert lab.account()[0] == [0, 1, 2]
    assert len(lab.batches(Topic.PROCESS)) == 1
    spool.close()


def test_the_root_is_listed_again_only_if_its_time_changes_or_while_a_writer_creates_a_folder(tmp_path):
    folders, begun = FolderDiscovery(tmp_path), []
    folders.refresh({}, begun.append)
    assert not folders.has_news()
    folder = tmp_path / "p0-0123abcd"
    folder.mkdir()
    os.utime(tmp_path, (1, 1))
    assert folders.has_news()
    folders.refresh({}, begun.append)
    assert folders.has_news(), "its identity comes last, and does not change the root"
    os.utime(folder, (time.time() - 30,) * 2)
    folders.refresh({}, begun.append)
    assert not folders.has_news(), "a killed writer left it"
    shutil.rmtree(tmp_path)
    assert folders.has_news(), "the next refresh says why"
    assert begun == []


def test_a_folder_is_listed_again_only_if_its_time_changes(lab, monkeypatch):
    listed, names = [], SpoolDirectory.names
    monkeypatch.setattr(SpoolDirectory, "names", lambda folder: listed.append(folder.path.name) or names(folder))
    spool = SpoolWriter(lab.root, process(), SpoolLimits(segment_bytes=1_000))
    write(spool, range(3))
    lab.tick()
    os.utime(spool.folder, (1, 1))  # long ago
    lab.agent.tick()
    listed.clear()
    for _ in range(3):
        lab.agent.tick()
    assert listed == []
    write(spool, range(3, 9))
    while lab.agent.tick():
        lab.sender.poll(0)
    lab.sender.poll(0)
    assert lab.account()[0] == list(range(9)), "of several segments"
    spool.close()


def test_what_the_full_spool_lost_is_an_empty_batch_each_in_its_place(lab):
    spool = SpoolWriter(lab.root, process(), SpoolLimits(max_bytes=65_536, segment_bytes=8_000))
    for sequence in range(200):
        write(spool, [sequence])
        write(spool, [sequence], 3, Topic.COLLECTIVE, "job:00c0ffee", communicator="00c0ffee")
    lab.tick()
    for topic, rows in ((Topic.KERNEL, 2_000), (Topic.COLLECTIVE, 600)):
        sequences, kept, lost = lab.account(topic)
        assert sequences == list(range(200)), "no gap for the audit"
        assert kept + lost == rows
        assert lost == spool.dropped[str(topic)] > 0
    assert {batch.envelope["communicator"] for batch in lab.batches(Topic.COLLECTIVE)} == {"00c0ffee"}
    spool.close()


def test_killed_it_repeats_what_the_cursor_does_not_know_and_nothing_else(lab):
    spool = SpoolWriter(lab.root, process(), SpoolLimits(segment_bytes=4_000))
    write(spool, range(3))
    lab.tick()
    write(spool, range(3, 6))
    while lab.agent.tick():  # published, but without a refresh, which saves the cursor
        lab.sender.poll(0)
    assert lab.account()[0] == [0, 1, 2, 3, 4, 5]
    lab.start()
    spool.close()
    lab.tick()
    sequences = lab.account()[0]
    assert sorted(set(sequences)) == list(range(6))
    assert sequences[:6] == [0, 1, 2, 3, 4, 5]
    assert 0 < len(sequences) - 6 <= 3, "known to be in Kafka up to the third"
    assert not spool.folder.exists()


@pytest.mark.parametrize("written", [0, 1, 5], ids=["empty", "one frame", "several segments"])
@pytest.mark.parametrize("alive", [True, False], ids=["writer lives", "writer gone"])
def test_killed_between_taking_a_segment_and_its_first_frame(lab, alive, written):
    spool = SpoolWriter(lab.root, process(), SpoolLimits(segment_bytes=1_000))
    write(spool, range(written))
    for segment in sorted(spool.folder.glob("*.seg")):  # all of them: more than an agent takes at once
        segment.rename(segment.with_suffix(".taken"))
    if not alive:
        spool.close()
    lab.start().tick()
    if alive:
        write(spool, range(written, written + 3))
        spool.close()
        lab.tick()
    assert lab.account() == (list(range(written + 3 * alive)), 10 * (written + 3 * alive), 0)
    assert not spool.folder.exists()


@pytest.mark.parametrize("seed", range(6))
def test_agents_that_die_at_any_moment_never_hold_up_a_writer_and_lose_nothing(lab, seed):
    chance = random.Random(seed)
    spool = SpoolWriter(lab.root, process(), SpoolLimits(max_bytes=40_000, segment_bytes=2_000), clock=lambda: lab.now)
    for sequence in range(300):
        write(spool, [sequence])  # asserts that there is space, whatever is taken
        assert sum(file.stat().st_size for file in spool.folder.glob("0*")) <= 40_000
        lab.kafka.held = chance.random() < 0.7  # an outage now and then: the spool fills
        if chance.random() < 0.3:
            lab.agent.tick()
            lab.sender.poll(0)
        if chance.random() < 0.1:
            if chance.random() < 0.5:
                for segment in sorted(spool.folder.glob("*.seg"))[: chance.randrange(3)]:
                    segment.rename(segment.with_suffix(".taken"))
            lab.kafka.queue.clear()  # a dead client's messages are gone
            lab.start()
        lab.now += chance.random()
    spool.close()
    lab.kafka.held = False
    lab.tick(10)
    assert not spool.folder.exists()
    once = {batch.envelope["sequence"]: batch.envelope for batch in lab.batches()}
    assert sorted(once) == list(range(300)), "each one came, or an empty one in its place"
    published = sum(e["rows"] + e["dropped_before"] for e in once.values())
    assert published == spool.rows[str(Topic.KERNEL)] == 3_000
    assert sum(e["dropped_before"] for e in once.values()) == spool.dropped[str(Topic.KERNEL)]


def test_a_lost_cursor_means_repeating_what_is_still_there(lab):
    spool = SpoolWriter(lab.root, process())
    write(spool, range(3))
    lab.tick()
    (lab.root / ".agent" / "cursor.json").write_text("{broken")
    lab.start().tick()
    assert lab.account()[0] == [0, 1, 2, 0, 1, 2]
    spool.close()


def test_kafka_takes_nothing_and_nothing_is_deleted_until_it_does(lab):
    spool = SpoolWriter(lab.root, process(), SpoolLimits(segment_bytes=4_000))
    lab.kafka.held, lab.kafka.capacity = True, 5
    write(spool, range(40))
    lab.tick()
    spool.close()
    lab.tick()
    assert len(lab.kafka.queue) == 5
    assert [topic for topic, *_ in lab.kafka.queue].count(Topic.PROCESS) == 1, "published once, however long it takes"
    assert spool.folder.exists()
    lab.kafka.held = False
    lab.tick()
    assert lab.account() == (list(range(40)), 400, 0)
    assert not spool.folder.exists()


def test_without_kafka_or_its_topics_it_waits_and_reports_it(lab):
    spool = SpoolWriter(lab.root, process())
    write(spool, [0])
    lab.kafka.topics = None
    lab.tick()
    assert "no Kafka broker answers" in lab.health.ready()["kafka"]
    lab.kafka.topics = ["gpu.kernel.v1"]
    lab.tick()
    assert "drumline topics apply" in lab.health.ready()["kafka"]
    assert not lab.kafka.log
    lab.kafka.topics = TOPIC_NAMES
    lab.tick()
    assert lab.account()[0] == [0]
    assert lab.health.ready() == {}
    spool.close()


def test_without_kafka_it_knows_who_lives_here_so_that_gpu_samples_name_their_jobs(lab):
    lab.kafka.topics = None
    spools = [SpoolWriter(lab.root, process(name, job=name)) for name in ("p0", "p1")]
    lab.start().tick()
    assert sorted(process_row["job"] for process_row in lab.agent.processes) == ["p0", "p1"]
    spools[0].close()
    lab.tick()
    assert [process_row["job"] for process_row in lab.agent.processes] == ["p1"], "it has ended meanwhile"


def test_kafka_that_is_away_for_long_is_one_line_however_often_it_is_noticed(lab):
    lab.tick()
    lab.kafka.topics = None
    with capture_logs() as logs:
        for _ in range(5):
            lab.kafka.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
            lab.tick(10.0)
    assert [line["event"] for line in logs] == ["kafka"]


def test_a_batch_too_large_for_kafka_is_counted_as_dropped(lab):
    spool = SpoolWriter(lab.root, process())
    write(spool, [0, 1, 2])
    big = lab.codec.encode(any_batch(Topic.KERNEL, 10, "p0", 1))
    lab.kafka.reject = lambda topic, value: KafkaError.MSG_SIZE_TOO_LARGE if value == big else None
    spool.close()
    lab.tick()
    sequences, rows, lost = lab.account()
    assert (sorted(sequences), rows, lost) == ([0, 1, 2], 20, 10)
    assert not spool.folder.exists()


#: Errors of a broker that stamps by producers' clocks to one that is an hour ahead, and to the rest of its request.
AHEAD = (KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD)


@pytest.mark.parametrize("passing", [KafkaError.TOPIC_AUTHORIZATION_FAILED, *AHEAD])
def test_an_answer_that_passes_is_waited_for(lab, passing):
    spool = SpoolWriter(lab.root, process())
    write(spool, range(5))
    answers = iter([None, passing, None, passing])
    lab.kafka.reject = lambda topic, value: next(answers, None)
    lab.tick(0.0)
    lab.tick()
    assert sorted(lab.account()[0]) == list(range(5)), "each once"
    spool.close()


def test_a_client_beyond_repair_is_replaced_and_what_it_had_is_sent_again(lab):
    spool = SpoolWriter(lab.root, process())
    write(spool, range(5))
    lab.kafka.held = True
    lab.tick()
    lab.kafka.on_error(KafkaError(KafkaError._FATAL, "fenced", True))
    lab.sender.poll(0)
    assert lab.kafka.clients == 2
    lab.kafka.held = False
    lab.tick()
    assert sorted(lab.account()[0]) == list(range(5))
    spool.close()


def test_a_process_of_another_release_keeps_its_schema_or_waits(lab):
    spool = SpoolWriter(lab.root, process())
    write(spool, [0])
    identity = spool.folder / "identity.json"
    known = identity.read_text()
    identity.write_text(known.replace(model(Topic.KERNEL).fingerprint, "0" * 64))
    other = SpoolWriter(lab.root, process("p1"))
    write(other, [7])
    lab.tick()
    assert "upgrade drumline" in lab.agent.tails[spool.folder.name].problem
    assert lab.account()[0] == [7], "the other process is not held up"
    identity.write_text(known)
    lab.tick()
    assert sorted(lab.account()[0]) == [0, 7]
    spool.close()
    other.close()


def test_a_registry_that_does_not_answer_is_asked_for_one_folder_at_a_time(lab):
    requests, away = [], True

    class Registry:
        def __getattr__(self, name):
            return getattr(Codec().registry, name)

        def id_of_version(self, topic, fingerprint):
            requests.append(topic)
            if away:
                raise RegistryUnavailable("schema registry r:1 does not answer")
            return Codec().registry.id_of_version(topic, fingerprint)

    lab.start(Codec(Registry()))
    spools = [SpoolWriter(lab.root, process(f"p{i}")) for i in range(5)]
    for spool in spools:
        write(spool, [0])
    lab.agent.tick()
    assert len(requests) == 1
    assert {tail.problem for tail in lab.agent.tails.values()} == {"schema registry r:1 does not answer"}
    lab.tick()
    assert "does not answer" in lab.health.ready()["registry"]
    away = False
    lab.tick(20.0)
    assert lab.account()[0] == [0] * 5
    assert lab.health.ready() == {}
    for spool in spools:
        spool.close()


def test_a_killed_process_costs_its_last_frame_only(lab):
    spool = SpoolWriter(lab.root, process())
    write(spool, [0])
    segment = spool.folder / "000000000000.seg"
    segment.write_bytes(segment.read_bytes() + segment.read_bytes()[8:100])
    lab.tick()
    assert lab.account()[0] == [0]
    assert spool.folder.exists()
    spool.close()  # its lock is free now, as if it had been killed
    lab.tick()
    assert lab.account()[0] == [0]
    assert not spool.folder.exists()


@pytest.mark.parametrize("text", [
    "{}", "[]", "{", "[" * 100_000,
    '{"format": 1, "process": {}, "schemas": {}}', '{"format": 1, "process": 3, "schemas": {}}',
    '{"format": 1, "process": {"process_id": "p", "rank": "first"}, "schemas": {}}',
    '{"format": 1, "process": {"process_id": "p"}, "schemas": {"gpu.kernel.v1": 7, "nonsense": "0"}}',
    '{"format": 1, "process": {"process_id": "p", "nonsense": 1}, "schemas": {}}',
])  # fmt: skip
def test_nonsense_in_one_folder_is_reported_and_the_others_go_on(lab, text):
    bad = SpoolWriter(lab.root, process())
    (bad.folder / "identity.json").write_text(text)
    good = SpoolWriter(lab.root, process("p1"))
    write(good, [0])
    lab.tick()
    assert lab.account()[0] == [0]
    problem = lab.agent.tails[bad.folder.name].problem
    assert bad.folder.name in problem or "gpu." in problem
    bad.close()
    good.close()


def test_a_folder_that_cannot_be_looked_into_is_named_and_logged_once(lab):
    folder = lab.root / "another users"
    (folder / "lock").mkdir(parents=True)
    os.utime(folder, (0, 0))
    spool = SpoolWriter(lab.root, process())
    write(spool, range(3))
    with capture_logs() as logs:
        for _ in range(3):
            lab.tick()
    assert [entry["folder"] for entry in logs if "cannot be read" in entry["event"]] == ["another users"]
    assert "another users" in lab.agent._folders.unreadable
    assert lab.account()[0] == [0, 1, 2]
    shutil.rmtree(folder)
    lab.tick()
    assert lab.health.ready() == {}
    spool.close()


def test_a_folder_that_no_writer_made_is_left_alone_and_named_once(lab):
    foreign = {"lost+found": None, "results": "a.txt", "somebody's": "lock"}
    for name, file in foreign.items():
        (lab.root / name).mkdir()
        if file:
            (lab.root / name / file).write_text("foreign")
    (lab.root / "somebody's" / "notes").write_text("foreign")
    (lab.root / "one level too high" / "p0-1").mkdir(parents=True)
    for name in (*foreign, "one level too high"):
        if name != "results":  # still written to
            os.utime(lab.root / name, (0, 0))
    lab.agent._options = replace(lab.agent._options, until_empty=True)
    with capture_logs() as logs:
        lab.agent.run()
    assert {*foreign, "one level too high"} <= set(os.listdir(lab.root))
    assert (lab.root / "results" / "a.txt").read_text() == "foreign"
    assert (lab.root / "one level too high" / "p0-1").is_dir()
    assert sorted(entry["folder"] for entry in logs if "foreign" in entry["event"]) == sorted(
        [*foreign, "one level too high"]
    )
    assert lab.health.ready() == {}


def test_segments_without_an_identity_are_kept_and_reported(lab):
    spool = SpoolWriter(lab.root, process())
    write(spool, range(3))
    spool.close()
    (spool.folder / "identity.json").unlink()
    os.utime(spool.folder, (0, 0))
    lab.tick()
    assert "identity.json is missing" in lab.agent._folders.unreadable[spool.folder.name]
    assert list(spool.folder.glob("*.seg"))


def test_a_folder_whose_writer_died_without_an_identity_goes_after_a_minute(lab):
    spool = SpoolWriter(lab.root, process())
    for file in spool.folder.iterdir():
        if file.name not in ("lock", "reserve"):
            file.unlink()
    lab.tick()
    assert spool.folder.exists()
    os.utime(spool.folder, (0, 0))
    lab.tick()
    assert spool.folder.exists(), "its writer lives"
    spool.close()
    os.utime(spool.folder, (0, 0))
    lab.tick()
    assert not spool.folder.exists()


@pytest.mark.parametrize("left", ["reserve", None])
def test_what_an_agent_was_killed_over_goes_after_a_minute(lab, left):
    """A writer before it had a lock, or an agent that removed it."""
    folder = lab.root / "p0-0123abcd"
    folder.mkdir()
    if left:
        (folder / left).write_bytes(b"0")
    lab.tick()
    assert folder.exists()
    os.utime(folder, (0, 0))
    lab.tick()
    assert not folder.exists()


def test_kafka_that_went_away_is_asked_again_though_nothing_is_to_be_sent(lab):
    lab.tick()
    lab.kafka.topics = None
    lab.kafka.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    lab.tick()
    assert "no Kafka broker" in lab.health.ready()["kafka"]
    lab.kafka.topics = TOPIC_NAMES
    lab.tick()
    assert lab.health.ready() == {}


def test_a_folder_that_vanishes_is_no_error(lab):
    spool = SpoolWriter(lab.root, process())
    write(spool, [0])
    lab.tick()
    lab.kafka.held = True
    write(spool, [1])
    lab.tick()
    lab.agent.tails[spool.folder.name].folder.remove()
    lab.tick()
    lab.kafka.held = False
    lab.tick()
    assert lab.account()[0] == [0, 1], "what Kafka was given before, arrives"
    assert not lab.agent.tails
    assert lab.health.ready() == {}
    spool.close()


def test_a_spool_that_was_removed_is_served_again_when_it_is_back(lab):
    shutil.rmtree(lab.root)
    lab.tick()
    assert {"root", "cursor"} <= set(lab.health.ready())
    lab.root.mkdir()
    spool = SpoolWriter(lab.root, process())
    write(spool, [0])
    lab.tick()
    assert lab.account()[0] == [0]
    assert lab.health.ready() == {}
    with pytest.raises(OtherAgent):
        Cursor(lab.root)
    assert Cursor._load(lab.cursor) == {spool.folder.name: lab.agent.tails[spool.folder.name].positions}
    spool.close()


def test_a_folder_laid_in_place_of_the_agents_own_is_not_written_into(lab, tmp_path_factory):
    foreign_folder = tmp_path_factory.mktemp("theirs")
    shutil.rmtree(lab.root / ".agent")
    (lab.root / ".agent").symlink_to(foreign_folder)
    spool = SpoolWriter(lab.root, process())
    write(spool, [0])
    lab.tick()
    assert "remove it" in lab.health.ready()["cursor"]
    assert not list(foreign_folder.iterdir())
    assert lab.account()[0] == [0], "publishing goes on"
    (lab.root / ".agent").unlink()
    lab.tick()
    assert lab.health.ready() == {}
    spool.close()


def test_two_agents_do_not_share_a_spool(lab):
    with pytest.raises(OtherAgent):
        Cursor(lab.root)


def test_rows_that_are_older_than_their_table_keeps_rows_are_counted_and_logged_before_and_after(lab):
    """As after a long outage, or out of an archive. Kernels are kept for 7 days, steps for 180."""
    days, now_ns, retention = 86_400 * 10**9, time.time_ns(), lab.settings.clickhouse.retention
    spool = SpoolWriter(lab.root, process())
    write(spool, range(3), base_time_ns=now_ns - 8 * days)
    write(spool, range(2), topic=Topic.STEP, base_time_ns=now_ns - 8 * days)
    write(spool, [3], base_time_ns=now_ns)
    write(spool, [4], base_time_ns=10**9)  # by a clock of 1970: a dead letter
    write(spool, [5], 0, base_time_ns=0, sent_ns=now_ns - 8 * days)  # without rows
    spool.close()
    before = {topic: metrics.AGENT_OLD.labels(topic)._value.get() for topic in TOPIC_NAMES}
    assert old_rows(lab.root, {}, retention, now_ns) == {Topic.KERNEL: 30}
    with capture_logs() as logs:
        lab.tick()
    counted = {topic: metrics.AGENT_OLD.labels(topic)._value.get() - before[topic] for topic in TOPIC_NAMES}
    assert {topic: rows for topic, rows in counted.items() if rows} == {Topic.KERNEL: 30}
    assert [entry["log_level"] for entry in logs if entry["event"] == OLD_ROWS] == ["warning"], "with the first"
    assert [entry["old_rows"] for entry in logs if "old_rows" in entry] == [30]
    assert old_rows(lab.root, {}, retention, now_ns) == {}, "the folder is gone"


def test_200_quick_restarts_of_a_jobs_processes_leave_nothing_behind(lab):
    """Each is a process of the system that ends by SIGKILL or by itself, some before the agent has seen it."""
    seen, rows, files = set(), 0, []
    for number in range(200):
        child = os.fork()
        if child == 0:
            try:
                spool = SpoolWriter(lab.root, process(f"p{number}", pid=os.getpid()))
                write(spool, range(3), key=f"p{number}")
                if number % 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                spool.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        if number % 7 == 0:
            lab.tick()
        if number % 50 == 49:
            for _ in range(6):
                lab.tick()
            assert [name for name in os.listdir(lab.root) if not name.startswith(".")] == []
            assert lab.agent.tails == {}
            files.append(len(os.listdir("/proc/self/fd")))
            seen |= {batch.envelope["process_id"] for batch in lab.batches(Topic.PROCESS)}
            rows += lab.account()[1]
            lab.kafka.log.clear()
            gc.collect()
            files.append(sum(str(type(thing).__module__).startswith("drumline") for thing in gc.get_objects()))
    assert seen == {f"p{number}" for number in range(200)}
    assert rows == 200 * 3 * 10
    assert files[0] == files[2] == files[4] == files[6], "open files"
    assert files[7] <= files[3], "objects of the agent"
