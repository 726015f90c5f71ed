"""Stacks of the job's threads: as the collector samples them, and as the decoder gives them to launches."""

import sys
import threading
import time

from drumline.producers.collector import stack_samples
from drumline.producers.collector.stack_samples import ThreadSampler
from drumline.producers.decoder.python_samples import ITS_OWN, MAIN_THREADS, PythonSamples, Sampled, is_sample
from drumline.producers.ipc.events import thread_name

NATIVE = 12_345


def planted(begun, end):
    begun.set()
    end.wait()  # here it is when it is sampled


def sampled(sampler, now_ns):
    """Sample a thread that stands in `planted`; returns its name."""
    begun, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=planted, args=(begun, end))
    thread.start()
    begun.wait()
    while sys._current_frames()[thread.ident].f_code.co_name == "planted":
        time.sleep(0.001)
    sampler.sample(now_ns, {thread.ident: sys._current_frames()[thread.ident]})
    end.set()
    thread.join()
    return thread_name(thread.ident)


def test_a_launch_gets_the_line_that_its_thread_ran_at_the_last_sample_before_it():
    samples, messages = PythonSamples(), []
    sampler = ThreadSampler(lambda message: messages.append(message) or True)
    name = sampled(sampler, 1_000)
    assert all(map(is_sample, messages))
    for message in messages:
        samples.take(message)
    assert samples.before(name, 999) == Sampled(), "no sample yet"
    result = samples.before(name, 1_500)
    line = planted.__code__.co_firstlineno + 2
    assert (result.caller, result.owner, result.age_ns) == (f"planted ({__file__}:{line})", ITS_OWN, 500)
    assert "planted" in result.stack
    assert samples.before(NATIVE, 1_500) == Sampled(), "nor has the main thread one"


def test_a_thread_without_python_gets_the_line_where_the_main_thread_is():
    samples = PythonSamples()

    def send(message):
        samples.take(message)
        return True

    main = threading.main_thread().ident
    ThreadSampler(send)
    other = threading.Thread(target=lambda: ThreadSampler(send).sample(10, {main: sys._current_frames()[main]}))
    other.start()
    other.join()
    result = samples.before(NATIVE, 11)
    assert (result.owner, result.age_ns) == (MAIN_THREADS, 1)
    assert "test_a_thread_without_python" in result.stack


def test_a_stack_is_described_once_and_again_where_the_description_was_lost():
    answers, sent = iter([False, True, True, True, True]), []

    def send(message):
        sent.append(message[:1])
        return next(answers)

    sampler = ThreadSampler(send)
    frame = sys._getframe()
    for _ in range(2):  # the same place in both rounds
        sampler.sample(1, {NATIVE: frame})
    assert sent == [b"F", b"S", b"F", b"S"]
    assert len(sampler._known) == 1


def test_sampling_ends_when_it_is_switched_off_and_an_error_ends_it_too(monkeypatch):
    taken = threading.Event()

    def send(message):
        taken.set()
        return True

    sampler = ThreadSampler(send)
    sampler.switch(True)
    sampler.switch(True)
    [thread] = [t for t in threading.enumerate() if t.name == "drumline samples"]
    assert taken.wait(60)
    sampler.switch(False)
    thread.join(60)
    assert not thread.is_alive()
    assert not sampler._known
    monkeypatch.setattr(stack_samples, "PERIOD_S", 0.0)
    broken = ThreadSampler(lambda message: 1 // 0)
    broken.switch(True)
    for thread in [t for t in threading.enumerate() if t.name == "drumline samples"]:
        thread.join(60)
        assert not thread.is_alive()


def test_old_samples_and_stacks_are_forgotten():
    samples = PythonSamples()
    frame = sys._getframe()
    sampler = ThreadSampler(lambda message: samples.take(message) or True)
    for now in range(0, 1_000, 10):
        sampler.sample(now, {NATIVE: frame})
    samples.forget(500)
    assert samples._times[0] == 490
    assert samples.before(NATIVE, 505).age_ns == 5
