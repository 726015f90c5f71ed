"""The health check that the agent makes once, when it begins."""

from __future__ import annotations

import threading
import time

import structlog

from drumline.producers.batching.sample_envelopes import SampleEnvelopes
from drumline.producers.health.health_check import FAIL
from drumline.producers.health.host_health import check_batches, host_health
from drumline.producers.nvml.sampler import pynvml
from drumline.producers.spool.writer import SpoolWriter

log = structlog.get_logger()


class CheckAtStart(threading.Thread):
    """Checks the host once; `drumline agent` starts it and calls `stop`. The spool is closed elsewhere.

    It blocks in NVML calls, and with a `python` for some seconds a GPU.
    """

    def __init__(self, spool: SpoolWriter, envelopes: SampleEnvelopes, wanted: int, python: str) -> None:
        super().__init__(name="check", daemon=True)
        self._spool, self._envelopes, self._wanted, self._python = spool, envelopes, wanted, python
        self._halt = threading.Event()

    def stop(self) -> None:
        """Stop the thread after the present check."""
        self._halt.set()
        self.join(5.0)

    def run(self) -> None:
        """Check the host and spool the results."""
        checks = []
        try:
            for check in host_health(pynvml, self._wanted, self._python):
                if self._halt.is_set():
                    return
                checks.append(check)
                if check.state == FAIL:
                    log.error("a health check failed", check=check.name, gpu=check.gpu_uuid, finding=check.text)
            for key, batch in check_batches(checks, self._envelopes, time.time_ns()):
                self._spool.append_batch(key, batch)
        except Exception as error:  # no check must end the agent
            log.warning("the host could not be checked", problem=f"{type(error).__name__}: {error}")
