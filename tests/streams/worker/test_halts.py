"""A worker that was halted for longer than its session stops writing before anything else."""

import asyncio
from types import SimpleNamespace

from drumline.streams.worker.halts import REPORT_S, HaltDetector, rejoin, report_from_consumer

S = 1_000_000_000


class Clock:
    now = 100 * S

    def __call__(self):
        return self.now

    def pass_(self, seconds):
        self.now += round(seconds * S)


def test_a_halt_is_reported_once_whichever_thread_continues_first():
    for reports_first in (True, False):
        clock = Clock()
        detector = HaltDetector(10.0, clock)
        clock.pass_(16)  # a slow start
        assert not detector.take()
        detector.alive()
        clock.pass_(16)
        if reports_first:
            detector.alive()
        assert detector.take()
        assert not detector.take()


def test_a_short_halt_and_a_busy_event_loop_are_none():
    clock = Clock()
    detector = HaltDetector(10.0, clock)
    detector.alive()
    clock.pass_(9)
    assert not detector.take()
    for _ in range(60):  # the event loop is busy for half a minute
        clock.pass_(REPORT_S)
        detector.alive()
    assert not detector.take()


def test_the_consumers_thread_reports_and_rejoins():
    detector, calls = HaltDetector(10.0), []
    coordinator = SimpleNamespace(request_rejoin=lambda: calls.append("rejoin"))
    client = SimpleNamespace(_coordinator=coordinator)
    thread = SimpleNamespace(_create_consumer=lambda loop: client, _ensure_consumer=lambda: client)
    app = SimpleNamespace(consumer=SimpleNamespace(_thread=thread))
    report_from_consumer(app, detector)
    detector.alive = lambda: calls.append("alive")

    async def run():
        thread.thread_loop = asyncio.get_running_loop()
        assert thread._create_consumer(loop=thread.thread_loop) is client
        rejoin(app)
        await asyncio.sleep(0)

    asyncio.run(run())
    assert calls == ["alive", "rejoin"]
