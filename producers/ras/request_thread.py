"""Reading of NCCL's RAS when a job of this host stands still, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from queue import Empty, Full, Queue

import structlog

from drumline.infra.telemetry import metrics
from drumline.producers.host.targets import RecordedProcess
from drumline.producers.ras.knowledge import is_about, texts_of
from drumline.producers.ras.listener import ras_listeners
from drumline.producers.ras.status_request import NoAnswer, NoRas, request_status
from drumline.producers.rings.progress import RasAnswer

log = structlog.get_logger()

#: Shortest time between two requests about one run: RAS itself gives up a silent process after a minute; s.
PERIOD_S = 60.0
#: Runs that wait for their turn; those of one host are few.
MOST_WAITING = 16
#: Users who state one run and listen, of whom one is the run's own: each request may take MOST_S.
MOST_LISTENERS = 4
#: Runs whose last request is remembered.
MOST_RUNS = 1_024
POLL_S = 0.5

#: Job and run.
Run = tuple[str, str]


class RasReader(threading.Thread):
    """Requests what RAS knows of runs that stand still, one at a time. `drumline agent` starts it and calls `stop`.

    `processes`: returns the recorded processes that are alive on this host. `is_off`: returns whether the host's policy
    forbids to record. `answers`: process id -> the newest answer about its run; the agent's thread reads it.
    """

    def __init__(
        self, answers: dict[str, RasAnswer], processes: Callable[[], Sequence[RecordedProcess]],
        is_off: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        super().__init__(name="ras", daemon=True)
        self._answers, self._processes, self._is_off = answers, processes, is_off
        self._waiting: Queue[Run] = Queue(MOST_WAITING)
        self._requested: dict[Run, float] = {}
        self._halt = threading.Event()

    def request(self, run: Run) -> None:
        """Let the thread request the state of a run; any thread may call it. Never blocks.

        What comes while many wait, or again within PERIOD_S, is left out: a run that still stands is stated again.
        """
        try:
            self._waiting.put_nowait(run)
        except Full:
            metrics.AGENT_RAS.labels("left_out").inc()

    def stop(self) -> None:
        """Stop the thread; a request under way is given up."""
        self._halt.set()
        self.join(1.0)

    def run(self) -> None:
        """Request until `stop`."""
        while not self._halt.is_set():
            try:
                run = self._waiting.get(timeout=POLL_S)
            except Empty:
                continue
            if time.monotonic() - self._requested.get(run, float("-inf")) < PERIOD_S or self._is_off():
                continue
            try:
                metrics.AGENT_RAS.labels(self._read(run)).inc()
            except Exception as error:  # what a job states must not end the reading of the next one's
                metrics.AGENT_RAS.labels("failed").inc()
                log.warning("NCCL RAS cannot be read", job=run[0], problem=f"{type(error).__name__}: {error}")
            self._requested.pop(run, None)
            self._requested[run] = time.monotonic()
            while len(self._requested) > MOST_RUNS:
                del self._requested[next(iter(self._requested))]

    def _read(self, run: Run) -> str:
        """Request the state of a run, and return the outcome."""
        processes = self._processes()
        of_run = [process for process in processes if run_of(process) == run]
        outcome = "none"
        for listener in islice(ras_listeners(of_run), MOST_LISTENERS):
            of_user = [process for process in of_run if process.user == listener.process.user]
            requested_ns = time.time_ns()  # a process may move while RAS collects
            try:
                report = request_status(listener.address)
            except NoRas as error:
                log.debug("NCCL RAS is not read", job=run[0], reason=str(error))
                continue
            except NoAnswer as error:
                log.info("NCCL RAS does not answer", job=run[0], reason=str(error))
                outcome = "failed" if outcome == "none" else outcome
                continue
            if is_about(report, {int(process.record.get("pid", 0)) for process in of_user}):
                self._keep(RasAnswer(requested_ns, texts_of(report)), of_user, processes)
                log.info("NCCL RAS answers", job=run[0], communicators=len(report.communicators))
                outcome = "answered"
        return outcome

    def _keep(self, answer: RasAnswer, of_user: Sequence[RecordedProcess], alive: Sequence[RecordedProcess]) -> None:
        """Keep an answer for processes of its run, and no answers of processes that have ended."""
        for name in self._answers.keys() - {str(process.record["process_id"]) for process in alive}:
            del self._answers[name]
        self._answers.update({str(process.record["process_id"]): answer for process in of_user})


def run_of(process: RecordedProcess) -> Run:
    """Return job and run of a process."""
    return str(process.record.get("job", "")), str(process.record.get("run", ""))
