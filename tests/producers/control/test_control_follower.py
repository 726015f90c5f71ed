"""The agent follows all partitions of requests and verdicts, and waits for them without work."""

import threading
from dataclasses import replace

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END
from support.fakes.consumer import FakeConsumer, FakeMessage
from support.wait_limit import WAIT_S

from drumline.infra.config.settings import Settings
from drumline.producers.control.control_follower import ControlFollower
from drumline.producers.control.control_mirror import RENEW_S, ControlMirror
from drumline.producers.ipc.control import FILE
from drumline.schemas.codec import Codec
from drumline.schemas.control import PULL, Control, encode
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


def test_the_log_decides_the_order_the_broker_the_time_and_kafkas_key_the_name():
    """A sender's clock is 2 h ahead or wrong by centuries, or a record has another name than its key."""
    hour, now = 3_600 * 10**9, 1_700_000_000 * 10**9
    policy = Control("p", "policy", "off", start_ns=now, until_ns=now + hour, requested_ns=now)
    ahead = replace(policy, key="shown", start_ns=now + 2 * hour, until_ns=now + 3 * hour, requested_ns=now + 2 * hour)
    consumer = FakeConsumer({Topic.CONTROL: (0,)})
    records = {"forged": replace(policy, requested_ns=(1 << 63) - 1), "hidden": ahead, "p": policy}
    consumer.messages = [
        FakeMessage(Topic.CONTROL, key.encode(), encode(control), now // 10**6) for key, control in records.items()
    ]
    follower = ControlFollower(Settings(), consumer=lambda _: consumer)
    for _ in records:
        assert follower.poll(0)
    (first, second) = follower.requests.concerning_host("h", ["j"], now)
    assert (first.key, second.key) == ("p", "hidden"), "the last one of the log comes first"
    assert second.start_ns == now
    consumer.messages = [FakeMessage(Topic.CONTROL, b"hidden", None, now // 10**6)]
    assert follower.poll(0)
    assert [control.key for control in follower.requests.concerning_host("h", ["j"], now)] == ["p"]
