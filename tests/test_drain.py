"""When everything has been worked off: never too early, and it says what is missing."""

import json
import time

from drumline.infra.drain import judge, read_statuses, worker_dir
from drumline.infra.settings import LocalSettings, Settings, StreamSettings

ENDS = {"gpu.kernel.v1:0": 7, "gpu.kernel.v1:1": 0}


def status(time_ns, **changed):
    plain = {"partitions": [0, 1], "of": 2, "open": 0, "unsettled": 0, "handled": 5, "time_ns": time_ns}
    return {"one": {**plain, "positions": {"gpu.kernel.v1:0": 7, "gpu.kernel.v1:1": 0}, **changed}}


def test_two_quiet_statuses_that_have_reached_the_brokers_ends_are_drained():
    assert judge(status(1), status(2), ENDS)


def test_everything_else_is_not_and_says_why():
    for before, after, ends, words in (
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
        result = judge(before, after, ends)
        assert not result
        assert words in result.reason


def test_statuses_of_workers_that_ended_or_belong_to_another_app_do_not_count(tmp_path):
    settings = Settings(local=LocalSettings(state=tmp_path), stream=StreamSettings(app_id="mine"))
    now = time.time_ns()
    for name, app, age_s in (("alive", "mine", 0), ("dead", "mine", 60), ("other", "theirs", 0)):
        folder = worker_dir(settings).parent / name
        folder.mkdir(parents=True)
        (folder / "status.json").write_text(json.dumps({"app": app, "time_ns": now - age_s * 10**9}))
    (worker_dir(settings).parent / "alive" / "status.new").write_text("half a st")
    assert list(read_statuses(settings, 0)) == ["alive"]
    assert read_statuses(settings, time.time_ns()) == {}
