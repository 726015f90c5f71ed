"""Run one worker in this process until a signal or a failure ends it."""

from __future__ import annotations

import asyncio
import logging
import signal
import time

import structlog
import uvloop

from drumline.infra.config.settings import Settings
from drumline.infra.runtime.signals import end_in_time
from drumline.infra.telemetry.health import Health, serve_health
from drumline.streams.worker.app import build
from drumline.streams.worker.checks.auth_errors import AccessProbe, OneLineErrors, permanent_error
from drumline.streams.worker.checks.topic_watch import TopicWatch
from drumline.streams.worker.faust_patches.fetch import end_of_fetching

log = structlog.get_logger()
#: A clean stop: records in flight are finished and committed, and the worker leaves the group.
STOP_S = 20.0
#: After a permanent error nothing can be committed, and Faust waits for the rejected request.
REJECTED_STOP_S = 3.0


def serve(settings: Settings) -> int:
    """Run a worker and return the exit code.

    0 after SIGTERM, 130 after SIGINT, 1 when the worker failed or its topics changed. The caller ends the process then:
    the event loop is left open, since closing it waits for ever for tasks of a Faust that has crashed.

    Fatal: TopicsNotReady, ValueError (impossible settings). Retry later: BrokerUnreachable. Raises KeyboardInterrupt
    while it starts, by a handler that the caller has set (asyncio's own, which replaces Python's, waits for Kafka's
    answer).
    """
    return asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_serve(settings))


async def _serve(settings: Settings) -> int:
    health = Health()
    serve_health("stream", settings, health)
    worker = build(settings, health)
    app = worker.app
    one_line = OneLineErrors(settings)
    for handler in logging.getLogger().handlers:
        handler.addFilter(one_line)
    signals: list[int] = []
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.append, number)
    log.info("worker starts", app=settings.stream.app_id, brokers=settings.bootstrap, instance=settings.instance)
    starting = asyncio.create_task(app.start())
    access, watch = AccessProbe(settings), TopicWatch(settings, worker.topics, health)
    standstill = ""
    while not (signals or access.reason or watch.changed or app.crashed or (starting.done() and starting.exception())):
        if standstill := end_of_fetching(app):
            break
        now = time.monotonic()
        worker.check_halt()
        worker.readiness.observe(now)
        access.observe(worker.readiness.silence(now), now)
        watch.observe(now)
        await asyncio.sleep(0.1)
    failed = worker.failure or app.crash_reason or (starting.exception() if starting.done() else None)
    if standstill:
        failed = failed or RuntimeError(standstill)
    if not starting.done():
        starting.cancel()
    reason = access.reason or permanent_error(settings, failed)
    end_in_time()
    try:
        await asyncio.wait_for(app.stop(), REJECTED_STOP_S if reason else STOP_S)
    except (TimeoutError, Exception) as error:
        log.warning("worker did not stop cleanly; uncommitted records are replayed", error=repr(error))
        failed = failed or error
    worker.close()
    if failed or reason or watch.changed:
        log.error("worker failed", error=reason or watch.changed or repr(failed))
        return 1
    log.info("worker ended")
    return 130 if signals and signals[0] == signal.SIGINT else 0
