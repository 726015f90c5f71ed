"""Start and use of the local ClickHouse engine: temporary, for the length of a block, or the supervisor's."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from pydantic import SecretStr

from drumline.infra.clickhouse import tls as clickhouse_tls
from drumline.infra.config.local_credentials import local_password
from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import StackError, State, acquire, held, locked, read_json
from drumline.infra.localstack.clickhouse.config import engine_ports, prepare_engine
from drumline.infra.localstack.disk_space import space_errors
from drumline.infra.localstack.ports import require_free

START_S = 60.0


def answers(settings: Settings, timeout_s: float = 2.0) -> bool:
    """Return whether the engine (or the configured ClickHouse) answers /ping over HTTP."""
    try:
        secure = clickhouse_tls.context(settings) if settings.clickhouse_url.startswith("https") else None
        with urllib.request.urlopen(f"{settings.clickhouse_url}/ping", timeout=timeout_s, context=secure) as answer:
            return bool(answer.read().strip() == b"Ok.")
    except (OSError, ValueError, urllib.error.URLError):
        return False


def is_local_engine(settings: Settings) -> bool:
    """Return whether the local engine answers. Raises StackError when another server answers on its port."""
    if not answers(settings):
        return False
    try:
        query(settings, "SELECT 1", "analyst")
    except StackError as error:
        if "AUTHENTICATION_FAILED" in str(error):
            raise StackError(
                f"the server at {settings.clickhouse_url} is not the engine of {settings.local.state}; set "
                "DRUMLINE_LOCAL__CLICKHOUSE_HTTP_PORT to a free port, as the next one, or "
                "DRUMLINE_LOCAL__STATE to its folder"
            ) from error
    return True


def wait_until(ready: Callable[[], bool], timeout_s: float, alive: Callable[[], bool] = lambda: True) -> bool:
    """Poll until ready; return False after `timeout_s`, or when `alive` is false."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline or not alive():
            return False
        time.sleep(0.05)
    return True


def log_tail(log: Path, lines: int = 5) -> str:
    """Return the last lines of a child's log, for an error message."""
    try:
        return "\n".join(log.read_text(errors="replace").rstrip().splitlines()[-lines:])
    except OSError:
        return "(nothing)"


@contextmanager
def temporary_engine(settings: Settings) -> Iterator[None]:
    """Run the engine as a child of this process inside the block.

    Raises StackError: it is not installed, a port is in use, or the end of the engine's log.
    """
    if find_spec("chdb") is None:
        raise StackError(
            "the local ClickHouse engine is not installed: pip install 'drumline[local]', or name your server with "
            "DRUMLINE_CLICKHOUSE__URL"
        )
    require_free(engine_ports(settings))
    with space_errors(settings):
        child = prepare_engine(settings)
    child.start(time.monotonic())
    process = child.process
    try:
        with space_errors(settings):
            if process is None or not wait_until(lambda: answers(settings), START_S, lambda: process.poll() is None):
                raise StackError(
                    f"the ClickHouse engine did not start; {child.log} ends with:\n{log_tail(Path(child.log))}"
                )
        yield
    finally:
        child.end()


@contextmanager
def ensure_engine(settings: Settings) -> Iterator[None]:
    """Provide ClickHouse inside the block: the configured server, the running engine, or one started for the block.

    Several processes may do so at a time: the one that started the engine stops it after the last use. Raises
    StackError where no engine can run.
    """
    if settings.clickhouse.url:
        yield
        return
    state = State.of(settings)
    state.create()
    busy = "the engine is being started or stopped by another process for two minutes; see `drumline status`"
    with locked(state.engine_users, busy, shared=True) as users:
        with locked(state.command_lock, busy):
            starter = None if is_local_engine(settings) or wait_for_supervisor(settings) else temporary_engine(settings)
            if starter is not None:
                starter.__enter__()
        try:
            yield
        finally:
            if starter is not None:
                try:
                    acquire(users, busy, timeout_s=600)
                finally:
                    starter.__exit__(None, None, None)


def wait_for_supervisor(settings: Settings) -> bool:
    """Wait for the engine of a running supervisor; return False without a supervisor.

    Raises:
        StackError: it has another address, or does not answer.
    """
    state = State.of(settings)
    if not held(state.lock):
        return False
    running_url = (read_json(state.plan) or {}).get("addresses", {}).get("clickhouse_http", settings.clickhouse_url)
    if running_url != settings.clickhouse_url:
        raise StackError(
            f"the stack's ClickHouse is at {running_url}, not at {settings.clickhouse_url}: set "
            "DRUMLINE_LOCAL__CLICKHOUSE_HTTP_PORT as for `drumline up`"
        )
    if wait_until(lambda: answers(settings), START_S, lambda: held(state.lock)):
        return True
    if held(state.lock):
        raise StackError(
            f"the engine does not answer at {settings.clickhouse_url}; see `drumline status` and {state.logs}"
        )
    return False


def query(settings: Settings, sql: str, user: str, password: SecretStr | None = None) -> str:
    """Execute one statement over plain HTTP, for checks (programs use clickhouse-connect). Raises StackError."""
    secret = password if password is not None else local_password(settings, user)
    request = urllib.request.Request(
        settings.clickhouse_url,
        data=sql.encode(),
        headers={"X-ClickHouse-User": user, "X-ClickHouse-Key": secret.get_secret_value()},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode()).strip()
    except urllib.error.HTTPError as error:
        raise StackError(error.read().decode(errors="replace").strip()) from error
    except OSError as error:
        raise StackError(f"no answer from {settings.clickhouse_url}: {error}") from error
