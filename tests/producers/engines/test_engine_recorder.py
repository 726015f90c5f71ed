"""Messages of a recorder about requests and iterations, and odd moments that must not harm an engine."""

import json
import sys
import threading
from array import array

from drumline.producers.engines import iteration_messages
from drumline.producers.engines.engine_recorder import BatchFacts, EngineRecorder
from drumline.producers.engines.recording_channel import EngineChannel

SECOND = 1_000_000_000


class KeptMessages:
    """Keeps messages in place of a channel. It begins none of the product's processes."""

    def __init__(self):
        self.lost, self.messages = [0, 0], []

    def send(self, message):
        self.messages.append(message)

    def send_json(self, kind, facts):
        self.send(kind + json.dumps(facts).encode())

    def facts(self, kind):
        return [json.loads(message[1:]) for message in self.messages if message[:1] == kind]


def gaps(channel):
    size = iteration_messages.ITERATION.size
    return [iteration_messages.ITERATION.unpack(m[:size])[6] for m in channel.messages if m[:1] == b"I"]


def test_the_pause_after_the_last_request_is_no_gap_of_the_engine():
    channel = KeptMessages()
    recorder = EngineRecorder(channel, "fake")
    for number in range(2):
        begin = 1_000 * SECOND + number * 3_600 * SECOND
        recorder.begin_request(f"r{number}", begin)
        recorder.iteration(BatchFacts(begin, begin + SECOND), {f"r{number}": 1}, {})
        recorder.iteration(BatchFacts(begin + 3 * SECOND, begin + 4 * SECOND), {f"r{number}": 1}, {})
        recorder.end_request(f"r{number}", "stop", 2)
    assert gaps(channel) == [0, 2 * SECOND, 0, 2 * SECOND]


def numbers(message):
    return array("I", message[iteration_messages.ITERATION.size :])[::2].tolist()


def test_iterations_that_were_under_way_at_the_end_of_a_request_name_it_and_later_ones_do_not():
    channel = KeptMessages()
    recorder = EngineRecorder(channel, "fake")
    for name in ("ends", "stays"):
        recorder.begin_request(name)
    under_way = [recorder.next_iteration() for _ in range(3)]
    recorder.iteration(BatchFacts(1, 2, under_way[0]), {"ends": 4, "stays": 4}, {"ends": 4, "stays": 4})
    recorder.end_request("ends", "stop", 1)
    recorder.begin_request("ends")  # another one of the same name
    for number in under_way[1:]:
        recorder.iteration(BatchFacts(2, 3, number), {"ends": 1, "stays": number}, {})
    recorder.iteration(BatchFacts(3, 4), {"ends": 7, "stays": 1}, {"ends": 7})
    sent = [numbers(message) for message in channel.messages if message[:1] == b"I"]
    assert sent == [[1, 2, 1, 2], [1, 2], [1, 2], [3, 2, 3]]
    assert not recorder._ended


def test_requests_that_end_while_no_iteration_is_under_way_are_forgotten_at_once():
    recorder = EngineRecorder(KeptMessages(), "fake")
    recorder.iteration(BatchFacts(1, 2), {}, {})
    for n in range(3):
        recorder.begin_request(f"r{n}")
        recorder.end_request(f"r{n}", "abort", 0)
    assert not recorder._ended


def test_requests_that_begin_in_many_threads_at_once_have_numbers_of_their_own():
    channel, before = KeptMessages(), sys.getswitchinterval()
    recorder = EngineRecorder(channel, "fake")
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=lambda t=t: [recorder.begin_request(f"{t}-{n}") for n in range(2_000)])
            for t in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len({begun["n"] for begun in channel.facts(b"R")}) == 12_000


def test_text_that_is_no_text_ends_no_recording(monkeypatch):
    monkeypatch.setenv("DRUMLINE_SERVING__REQUESTS", "plain")
    channel = KeptMessages()
    recorder = EngineRecorder(channel, "fake")
    recorder.begin_request("\ud800", tenant="a\udfff", adapter="b")
    [begun] = channel.facts(b"R")
    assert [begun[name] for name in ("id", "tenant", "adapter")] == ["?", "a?", "b"]
    json.dumps(begun, ensure_ascii=False).encode()


def test_a_gpu_whose_events_fail_leaves_iterations_without_gpu_times(monkeypatch):
    class Broken:
        def begin(self, stream=None):
            raise RuntimeError("two devices")

    monkeypatch.setattr("drumline.producers.engines.engine_recorder.gpu_events", Broken)
    channel = KeptMessages()
    recorder = EngineRecorder(channel, "fake")
    assert recorder.begin_gpu() is None
    recorder.iteration(BatchFacts(SECOND, 2 * SECOND), {}, {})
    assert recorder.begin_gpu() is None
    assert len(gaps(channel)) == 1


def test_a_message_sent_while_another_is_being_sent_in_the_same_thread_waits_for_nothing():
    class Reentrant:
        """A socket whose use ends a request, as garbage that is collected in it may."""

        def __init__(self):
            self.sent = []

        def __getattr__(self, name):
            def call(*arguments):
                if not self.sent:
                    self.sent.append(b"outer")
                    channel.send(b"Einner")
                return len(arguments[0]) if arguments and isinstance(arguments[0], bytes) else None

            return call

    channel = EngineChannel(Reentrant())
    done = threading.Thread(target=channel.send, args=(b"Eouter",), daemon=True)
    done.start()
    done.join(5)
    assert not done.is_alive()


class FakeGpu:
    """Has iterations over on the GPU as soon as they were launched."""

    def __init__(self):
        self.over = []

    def begin(self, stream):
        return object()

    def end(self, number, begin, stream):
        self.over.append((number, 5, 0))

    def read(self):
        over, self.over = self.over, []
        return over


def test_the_gpu_time_of_a_batch_that_was_launched_ahead_follows_its_iteration(monkeypatch):
    channel = KeptMessages()
    recorder = EngineRecorder(channel, "fake")
    monkeypatch.setattr("drumline.producers.engines.engine_recorder.gpu_events", FakeGpu)
    numbers = [recorder.next_iteration() for _ in range(2)]
    for number in numbers:
        recorder.end_gpu(number, recorder.begin_gpu())
    for number in numbers:
        recorder.iteration(BatchFacts(SECOND, 2 * SECOND, number), {"r": 1}, {})
    size = iteration_messages.GPU.size
    assert [message[:1] for message in channel.messages[1:]] == [b"I", b"G", b"I", b"G"]
    assert [iteration_messages.GPU.unpack(m[1 : 1 + size])[0] for m in channel.messages if m[:1] == b"G"] == numbers
