"""The server of the web page.

`python -m drumline.views.serve.web_server STATE PORT` is the one beside a kept demo. STATE marks it as a process of
that local stack, so that `drumline down` stops it.
"""

from __future__ import annotations

import resource
import socket
import ssl
import sys
from typing import TYPE_CHECKING

from drumline.infra.config.servers import ServeSettings
from drumline.infra.config.settings import Settings
from drumline.views.serve.access import require_safe

if TYPE_CHECKING:
    import uvicorn


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
        listener.listen(256)
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


def server(settings: Settings) -> uvicorn.Server:
    """Return a server of the page. No access log: addresses may have the token. Raises ModuleNotFoundError.

    It runs until SIGINT or SIGTERM, and raises that again: after it the handlers apply that were there before.
    """
    import uvicorn

    from drumline.views.report import charts
    from drumline.views.serve.app import application
    from drumline.views.serve.connections import MOST_CONNECTIONS, BoundedConnection

    _allow_files(2 * MOST_CONNECTIONS + 200)
    chosen = settings.serve
    charts.start_drawing()
    config = uvicorn.Config(
        application(settings), log_level="warning", access_log=False, server_header=False, proxy_headers=False,
        lifespan="off", ws="none", http=BoundedConnection, limit_concurrency=2 * MOST_CONNECTIONS,
        timeout_keep_alive=20, timeout_graceful_shutdown=3,
        ssl_certfile=chosen.certificate, ssl_keyfile=chosen.key, ssl_version=ssl.PROTOCOL_TLS_SERVER,
    )  # fmt: skip
    return uvicorn.Server(config)


def _allow_files(needed: int) -> None:
    """Raise the limit of open files of this process to what is needed, as far as the hard limit goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != soft < needed:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(needed, hard), hard)
        )


def main() -> None:
    """Serve with the settings of the environment, on the port of the arguments."""
    from drumline.infra.config.settings import settings

    config = settings()
    config = config.model_copy(update={"serve": config.serve.model_copy(update={"port": int(sys.argv[2])})})
    listener = listen(config.serve)
    server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
