"""The demo commits for its worker once the group can be committed for: at once, or when Kafka is ready."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from drumline.infra.config.settings import Settings
from drumline.lab.demo import worker
from drumline.lab.demo.worker import DemoFailed, commit_ends

LOADS, IN_USE, DENIED = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
)


class Group:
    """A consumer of a group and an `Offsets` without Kafka; each commit ends with the next of some errors, or works."""

    def __init__(self, *errors: int) -> None:
        self.errors, self.committed, self.now = list(errors), 0, 0.0

    def places(self, topics):
        return [f"{topics[0]}:0"]

    def ends(self, places):
        return dict.fromkeys(places, 7)

    def commit(self, offsets, asynchronous):
        if self.errors:
            raise KafkaException(KafkaError(self.errors.pop(0)))
        self.committed += 1

    def close(self):
        pass


def committing(monkeypatch, *errors: int) -> Group:
    group = Group(*errors)
    monkeypatch.setattr(worker, "Offsets", lambda settings: group)
    monkeypatch.setattr(worker, "Consumer", lambda config: group)
    monkeypatch.setattr(worker.time, "monotonic", lambda: group.now)
    monkeypatch.setattr(worker.time, "sleep", lambda seconds: setattr(group, "now", group.now + seconds))
    return group


@pytest.mark.parametrize("passing", [LOADS, IN_USE, KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE])
def test_a_group_that_is_not_ready_is_waited_for(monkeypatch, passing):
    group = committing(monkeypatch, passing, passing)
    commit_ends(Settings())
    assert (group.committed, group.now) == (1, 2.0)


def test_a_group_in_use_is_another_demo_and_a_coordinator_that_never_loads_is_an_error_of_kafka(monkeypatch):
    committing(monkeypatch, *[IN_USE] * 99)
    with pytest.raises(DemoFailed, match="another demo"):
        commit_ends(Settings())
    committing(monkeypatch, *[LOADS] * 99)
    with pytest.raises(KafkaException):
        commit_ends(Settings())


def test_an_error_that_does_not_pass_ends_the_demo_at_once(monkeypatch):
    group = committing(monkeypatch, DENIED)
    with pytest.raises(KafkaException):
        commit_ends(Settings())
    assert (group.committed, group.now) == (0, 0.0)
