"""The server of the web page.

`python -m drumline.infra.serve.web_server STATE PORT` is the one beside a kept demo. STATE marks it as a process of
that local stack, so that `drumline down` stops it.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from urllib.parse import urlsplit

from drumline.infra.config.servers import ServeSettings
from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import State
from drumline.infra.localstack.clickhouse.engine import START_S, log_tail, wait_until
from drumline.infra.serve.access import require_safe


class CannotServe(RuntimeError):
    """The address cannot be used; the message names the setting to change."""


def listen(settings: ServeSettings) -> socket.socket:
    """Bind the address. Raises AccessNotSafe, CannotServe."""
    require_safe(settings)
    try:
        [family, kind, protocol, _, address] = socket.getaddrinfo(
            settings.address, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(64)
    except OSError as error:
        raise CannotServe(
            f"cannot listen on {settings.address} port {settings.port}: {error.strerror}; "
            "set DRUMLINE_SERVE__PORT (or --port) to a free one"
        ) from None
    return listener


def page_address(settings: ServeSettings, port: int) -> str:
    """Return the address for a browser."""
    host = "127.0.0.1" if settings.address in ("0.0.0.0", "::", "") else settings.address
    scheme = "https" if settings.certificate else "http"
    return settings.url.rstrip("/") or f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def serve(settings: Settings, listener: socket.socket) -> None:
    """Answer requests until SIGINT or SIGTERM. No access log: addresses may have the token."""
    import uvicorn

    from drumline.infra.report import charts
    from drumline.infra.serve.app import application

    chosen = settings.serve
    threading.Thread(target=charts.warm_up, daemon=True).start()
    config = uvicorn.Config(
        application(settings), log_level="warning", access_log=False, server_header=False, proxy_headers=False,
        lifespan="off", ws="none", limit_concurrency=128, timeout_keep_alive=20, timeout_graceful_shutdown=3,
        ssl_certfile=chosen.certificate, ssl_keyfile=chosen.key, ssl_version=ssl.PROTOCOL_TLS_SERVER,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])


def start_page(settings: Settings) -> str:
    """Start the page as a process that outlives this one, unless it runs; return its address.

    Another port is used where that of the settings is taken. Raises AccessNotSafe, CannotServe.
    """
    from drumline.infra.localstack.processes import PAGE, page_processes  # of the extra `local`

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


def main() -> None:
    """Serve with the settings of the environment, on the port of the arguments."""
    from drumline.infra.config.settings import settings

    config = settings()
    config = config.model_copy(update={"serve": config.serve.model_copy(update={"port": int(sys.argv[2])})})
    serve(config, listen(config.serve))


if __name__ == "__main__":
    main()
