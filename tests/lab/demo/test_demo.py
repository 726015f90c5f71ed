"""The demo's stream worker leaves that of the user alone, and what lies in Kafka already."""

import io
import json
import time
from contextlib import closing

import pytest
from confluent_kafka import Consumer
from rich.console import Console
from support.labs.sink import any_batch, process_id
from support.labs.stream_worker import apply_topics, publish
from support.wait_limit import WAIT_S

from drumline.infra.config.settings import LocalSettings, Settings, StreamSettings
from drumline.infra.kafka.config import client_config
from drumline.infra.kafka.offsets import Offsets
from drumline.infra.kafka.worker_status import workers_dir
from drumline.lab.demo import run as demo_run
from drumline.lab.demo import worker as demo_worker
from drumline.lab.demo.worker import APP_ID, DemoFailed, commit_ends, require_no_worker
from drumline.schemas.topics import Topic


def write_status(settings, age_s=0):
    folder = workers_dir(settings) / "one"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "status.json").write_text(json.dumps({"time_ns": time.time_ns() - age_s * 10**9}))


def test_it_does_not_begin_beside_a_worker_that_would_evaluate_its_run_too(tmp_path):
    settings = Settings(local=LocalSettings(state=tmp_path), stream=StreamSettings())
    assert settings.stream.app_id != APP_ID
    require_no_worker(settings)
    write_status(settings)
    with pytest.raises(DemoFailed, match="stop it, or"):
        require_no_worker(settings)
    write_status(settings, age_s=60)
    require_no_worker(settings)


def test_a_long_stage_is_not_silent_in_a_pipe(monkeypatch):
    monkeypatch.setattr(demo_run, "REPORT_S", 0.01)
    pipe = io.StringIO()
    with demo_run.stage(Console(file=pipe, width=80), "Replaying the recording"):
        until = time.monotonic() + WAIT_S
        while "Replaying the recording: 0 s so far" not in pipe.getvalue():
            assert time.monotonic() < until
            time.sleep(0.01)


@pytest.mark.stack
def test_its_worker_begins_behind_what_is_there_unless_another_is_at_work(clean_stack, monkeypatch):
    apply_topics(clean_stack)
    assert demo_worker.has_nothing_to_read(clean_stack), "a stack without a record"
    publish(clean_stack, [any_batch(Topic.KERNEL, 3, process_id(0), n) for n in range(3)], key=lambda batch: b"p")
    commit_ends(clean_stack)
    assert not demo_worker.has_nothing_to_read(clean_stack.model_copy(update={"stream": StreamSettings(app_id="new")}))
    assert demo_worker.has_nothing_to_read(clean_stack)
    with closing(Offsets(clean_stack)) as kafka:
        ends = kafka.ends(kafka.places([Topic.KERNEL, Topic.STRAGGLER]))
        committed = kafka.committed(clean_stack.stream.app_id, ends)
    assert sum(ends.values()) == 3
    assert {place: offset for place, (offset, _) in committed.items()} == ends

    member = Consumer({**client_config(clean_stack, "test"), "group.id": clean_stack.stream.app_id})
    member.subscribe([Topic.KERNEL.value])
    while not member.assignment():
        member.poll(0.1)
    monkeypatch.setattr(demo_worker, "GROUP_S", 0.0)
    with pytest.raises(DemoFailed, match="another demo is running"):
        commit_ends(clean_stack)
    member.close()
    commit_ends(clean_stack)
