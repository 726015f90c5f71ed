"""The agent follows all partitions of requests and verdicts, and waits for them without work."""

import threading

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END
from support.fakes.consumer import FakeConsumer
from support.wait_limit import WAIT_S

from drumline.infra.config.settings import Settings
from drumline.producers.control.control_follower import ControlFollower
from drumline.producers.control.control_mirror import RENEW_S, ControlMirror
from drumline.producers.ipc.control import FILE
from drumline.schemas.codec import Codec
from drumline.schemas.control import PULL, Control
from drumline.schemas.topics import Topic


class PolledConsumer(FakeConsumer):
    """`waited`: seconds of each poll; `polled`: set with the third one."""

    def __init__(self):
        super().__init__(None)
        self.waited, self.polled = [], threading.Event()

    def poll(self, seconds):
        self.waited.append(seconds)
        if len(self.waited) == 3:
            self.polled.set()


def assigned(listed, codec=None):
    consumer = FakeConsumer(listed)
    ControlFollower(Settings(), codec, consumer=lambda _: consumer).poll(0)
    [places] = consumer.assigned
    return places


def test_requests_and_verdicts_may_have_different_numbers_of_partitions():
    requests = {(Topic.CONTROL, 0): OFFSET_BEGINNING}
    assert assigned({Topic.CONTROL: (0,), Topic.STRAGGLER: (0, 1, 2)}) == requests
    verdicts = {(Topic.STRAGGLER, number): OFFSET_END for number in range(3)}
    assert assigned({Topic.CONTROL: (0,), Topic.STRAGGLER: (0, 1, 2)}, Codec()) == requests | verdicts
    assert assigned({Topic.CONTROL: (0,)}, Codec()) == requests | {(Topic.STRAGGLER, 0): OFFSET_END}


def test_while_kafka_does_not_answer_it_waits_between_polls(tmp_path):
    consumer = PolledConsumer()
    mirror = ControlMirror(tmp_path, ControlFollower(Settings(), consumer=lambda _: consumer), set)
    mirror.start()
    assert consumer.polled.wait(WAIT_S)
    mirror.stop()
    assert set(consumer.waited) == {RENEW_S}


def test_pulls_reach_the_agent_once_and_no_process(tmp_path):
    consumer = FakeConsumer({Topic.CONTROL: (0,)})
    began = []
    mirror = ControlMirror(
        tmp_path, ControlFollower(Settings(), consumer=lambda _: consumer), lambda: ["j"], began.append
    )
    pull = Control("p", PULL, "", first_step=1, last_step=9, until_ns=10**18)
    mirror._follower.requests.take("p", pull)
    for _ in range(2):
        mirror.renew(10**17)
    assert began == [pull]
    assert not (tmp_path / FILE).exists()
