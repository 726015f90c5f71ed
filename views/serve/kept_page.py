"""The web page beside a kept demo: a process of the local stack, which `drumline down` ends."""

from __future__ import annotations

import socket
import subprocess
import sys
from urllib.parse import urlsplit

from drumline.infra.config.servers import ServeSettings
from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import State
from drumline.infra.localstack.clickhouse.engine import START_S, log_tail, wait_until
from drumline.infra.localstack.processes import PAGE, page_processes
from drumline.views.serve.web_server import CannotServe, listen, page_address


def start_page(settings: Settings) -> str:
    """Start the page as a process that outlives this one, unless it runs; return its address.

    Another port is used where that of the settings is taken. Raises AccessNotSafe, CannotServe.
    """
    if running := page_processes(settings):
        return page_address(settings.serve, next(iter(running)))
    try:
        listener = listen(settings.serve)
    except CannotServe:
        listener = listen(settings.serve.model_copy(update={"port": 0}))
    with listener:
        port = int(listener.getsockname()[1])
    state = State.of(settings)
    log = state.logs / "serve.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", PAGE, str(state.root), str(port)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=state.root, start_new_session=True,
        )  # fmt: skip
    if not wait_until(lambda: _answers(settings.serve, port), START_S, lambda: process.poll() is None):
        raise CannotServe(f"the web page did not start; {log} ends with:\n{log_tail(log)}")
    return page_address(settings.serve, port)


def _answers(settings: ServeSettings, port: int) -> bool:
    host = urlsplit(page_address(settings.model_copy(update={"url": ""}), port)).hostname or ""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
