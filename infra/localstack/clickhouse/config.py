"""Configuration files, ports and command line of the local ClickHouse engine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from string import Template

from drumline.infra.clickhouse.roles import reader_grants
from drumline.infra.config.local_credentials import USERS, local_password, sha256_hex
from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import State
from drumline.infra.localstack.supervisor import Child

RESOURCES = Path(__file__).parents[1] / "assets" / "clickhouse"
#: Its allocator keeps freed pages for each CPU until that CPU allocates again: on 16 the engine reached its limit with
#: a third of it in use. Its pools are those of two CPUs, and so is what it keeps.
ALLOCATOR = "percpu_arena:disabled,narenas:2"
#: Timeout of a clean stop, which cancels queries; s.
STOP_S = 15.0
#: Most memory of the engine, which shares a laptop with the broker, the programs and their user's work.
MEMORY_BYTES = 1_200_000_000


def local_reader_grants(database: str) -> str:
    """Return <query> elements of the read-only users: the analyst's role on the databases NAME and NAME_...."""
    grants = [grant for name in (database, f"{database}_*") for grant in reader_grants(name)]
    return "".join(f"<query>{grant}</query>" for grant in dict.fromkeys(grants))


def write_private(path: Path, text: str) -> None:
    """Replace a file by one that only its owner can read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as handle:
        handle.write(text)


def prepare_engine(settings: Settings) -> Child:
    """Write the engine's configuration and return the process to run. Raises StackError (unusable state directory)."""
    state = State.of(settings)
    state.create()
    conf = state.clickhouse / "conf"
    local = settings.local
    config = Template((RESOURCES / "config.xml").read_text()).safe_substitute(
        http_port=local.clickhouse_http_port,
        tcp_port=local.clickhouse_tcp_port,
        logs=state.logs,
        backups=state.clickhouse / "backups",
        memory_bytes=MEMORY_BYTES,
    )
    write_private(conf / "config.xml", config)
    users = Template((RESOURCES / "users.xml").read_text())
    values = {f"{user}_sha256": sha256_hex(local_password(settings, user)) for user in USERS}
    values |= {
        "database": settings.clickhouse.database,
        "reader_grants": local_reader_grants(settings.clickhouse.database),
    }
    write_private(conf / "users.xml", users.safe_substitute(values))
    return Child(
        name="engine",
        argv=[
            sys.executable,
            "-m",
            "drumline.infra.localstack.clickhouse.process",
            str(state.clickhouse),
            str(state.logs),
            settings.clickhouse.database,
        ],
        cwd=str(conf),
        log=str(state.logs / "engine.log"),
        stop="stdin",
        stop_s=STOP_S,
        # No secrets from the environment: SQL can read /proc/self.
        environment={name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TZ") if name in os.environ}
        | {"JE_MALLOC_CONF": ALLOCATOR},
    )


def engine_ports(settings: Settings) -> dict[str, tuple[str, int]]:
    """Return setting -> (server, port)."""
    return {
        "DRUMLINE_LOCAL__CLICKHOUSE_HTTP_PORT": ("ClickHouse (HTTP)", settings.local.clickhouse_http_port),
        "DRUMLINE_LOCAL__CLICKHOUSE_HTTP_PORT + 1": ("ClickHouse (native)", settings.local.clickhouse_tcp_port),
    }
