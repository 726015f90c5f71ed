"""Passwords of the local engine's users: random per state directory, each in its own file of mode 0600."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from pydantic import SecretStr

from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import StackError, State

#: writer: migrations and sinks; analyst: `drumline sql`; page: `drumline serve`; grafana: dashboards. Rights:
#: clickhouse/users.xml.
USERS = ("writer", "analyst", "page", "grafana")


def password_file(settings: Settings, user: str) -> Path:
    """Return the path of a local user's password; the file exists once the stack was started.

    Raises:
        StackError: no such user.
    """
    if user not in USERS:
        raise StackError(f"the local engine has no user {user!r}; it has {', '.join(USERS)}")
    return State.of(settings).secrets / f"{user}.password"


def local_password(settings: Settings, user: str) -> SecretStr:
    """Return the password of a local user, created on first use.

    Raises:
        StackError: no such user, or an unreadable state directory.
    """
    path = password_file(settings, user)
    State.of(settings).create()
    try:
        if not path.exists():
            create_secret(path, secrets.token_urlsafe(24))
        return SecretStr(path.read_text().strip())
    except OSError as error:
        raise StackError(f"cannot read the password of {user} in {path}: {error.strerror}") from error


def create_secret(path: Path, value: str) -> None:
    """Create the file atomically, readable by its owner only; an existing file keeps its value."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as handle:
        handle.write(value + "\n")
    try:
        os.link(scratch, path)
    except FileExistsError:
        pass
    finally:
        scratch.unlink()


def sha256_hex(password: SecretStr) -> str:
    """Return the hash for users.xml. No salt is needed: 192 random bits cannot be guessed from their hash."""
    return hashlib.sha256(password.get_secret_value().encode()).hexdigest()
