"""The drain check: never true too early, and with a reason while it is false."""

import json
import time

from structlog.testing import capture_logs

from drumline.infra.config.settings import LocalSettings, Settings, StreamSettings
from drumline.infra.kafka.drain import check_drained
from drumline.infra.kafka.worker_status import StatusFile, read_statuses, workers_dir
from drumline.infra.telemetry import metrics

ENDS = {"gpu.kernel.v1:0": 7, "gpu.kernel.v1:1": 0}


def status(time_ns, **changed):
    plain = {"partitions": [0, 1], "of": 2, "open": 0, "unsettled": 0, "handled": 5, "time_ns": time_ns}
    return {"one": {**plain, "positions": {"gpu.kernel.v1:0": 7, "gpu.kernel.v1:1": 0}, **changed}}


def test_two_quiet_statuses_that_have_reached_the_brokers_ends_are_drained():
    assert check_drained(status(1), status(2), ENDS)


def test_all_other_states_are_not_drained_and_have_a_reason():
    for before, after, ends, text in (
        ({}, {}, ENDS, "no stream worker"),
        ({}, status(2), ENDS, "one more status"),
        (status(2), status(2), ENDS, "one more status"),
        (status(1), status(2, partitions=[1]), ENDS, r"partitions [0]"),
        (status(1), status(2, open=3), ENDS, "open 3"),
        (status(1, open=3), status(2), ENDS, "open"),
        (status(1, unsettled=1), status(2), ENDS, "unsettled"),
        (status(1, handled=4), status(2), ENDS, "still come"),
        (status(1), status(2), {**ENDS, "gpu.kernel.v1:1": 1}, "gpu.kernel.v1:1 is at 0 of 1"),
        (status(1), status(2, positions={"gpu.kernel.v1:0": None}), ENDS, "at None"),
    ):
        result = check_drained(before, after, ends)
        assert not result
        assert text in result.reason


def test_statuses_of_workers_that_ended_or_belong_to_another_app_do_not_count(tmp_path):
    first, foreign = (
        Settings(local=LocalSettings(state=tmp_path), stream=StreamSettings(app_id=app)) for app in ("mine", "theirs")
    )
    now = time.time_ns()
    for app, name, age_s in ((first, "alive", 0), (first, "dead", 60), (foreign, "other", 0)):
        folder = workers_dir(app) / name
        folder.mkdir(parents=True)
        (folder / "status.json").write_text(json.dumps({"time_ns": now - age_s * 10**9}))
    (workers_dir(first) / "alive" / "status.new").write_text("half a st")
    assert list(read_statuses(first, 0)) == ["alive"]
    assert read_statuses(first, time.time_ns()) == {}


def test_a_status_that_cannot_be_written_is_logged_once_counted_each_time_and_stops_no_worker(tmp_path):
    path = tmp_path / "status.json"
    file, draft = StatusFile(path), tmp_path / "status.new"

    def failed():
        return metrics.REGISTRIES["stream"].get_sample_value("drumline_stream_retries_total", {"of": "status"}) or 0

    before = failed()
    file.write({"n": 1})
    with capture_logs() as logs:
        draft.symlink_to("/dev/full")
        for _ in range(3):
            file.write({"n": 2})
        assert json.loads(path.read_text()) == {"n": 1}, "who waits sees that it has grown old"
        draft.unlink()
        file.write({"n": 3})
        draft.symlink_to("/dev/full")
        file.write({"n": 4})
    assert json.loads(path.read_text()) == {"n": 3}
    assert [line["problem"] for line in logs] == ["No space left on device"] * 2
    assert failed() - before == 4
