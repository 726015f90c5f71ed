"""Checks of settings when they are read: secret files, certificates, URLs.

Errors name the setting and never contain a value, which may be a secret.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, SecretStr
from pydantic.fields import FieldInfo

from drumline.infra.runtime import tls


class SettingsModel(BaseModel):
    """Base of the sections of settings: rejects unknown names, and hides values in errors, as they may be secrets."""

    model_config = ConfigDict(hide_input_in_errors=True, extra="forbid")


class JsonSetting(SettingsModel):
    """Base of models that one variable sets, with a JSON object of what differs from the defaults."""


#: Marks a field that no environment variable sets, but an option of a command.
NO_VARIABLE = "no variable"
#: Marks the content of a secret file, whose variable is that of the file without `_FILE`.
OF_FILE = "content of a file"
#: The content of a secret file. Programs that a process starts inherit its variables, so a file is better; some
#: platforms pass secrets on as variables only.
FileContent = Annotated[SecretStr | None, OF_FILE]


def section(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a section of settings, None where one variable sets the field."""
    kind = field.annotation
    return (
        kind if isinstance(kind, type) and issubclass(kind, BaseModel) and not issubclass(kind, JsonSetting) else None
    )


def has_variable(field: FieldInfo) -> bool:
    """Return whether an environment variable sets a field."""
    return NO_VARIABLE not in field.metadata


def is_setting(field: FieldInfo) -> bool:
    """Return whether a field is a setting: it has a variable, and is not the content of another one's file."""
    return has_variable(field) and OF_FILE not in field.metadata


def read_secret(name: str, value: SecretStr | None, file: Path | None) -> SecretStr | None:
    """Return the secret of DRUMLINE_`name`, or the content of its file. Raises ValueError."""
    if file is None:
        return value
    try:
        text = file.read_text().rstrip("\r\n")
    except OSError as error:
        raise ValueError(f"DRUMLINE_{name}_FILE: cannot read {file}: {error.strerror}") from None
    if not text:
        raise ValueError(f"DRUMLINE_{name}_FILE: {file} is empty")
    return SecretStr(text)


def check_certificates(
    ca: tuple[str, Path | None],
    certificate: tuple[str, Path | None] = ("", None),
    key: tuple[str, Path | None] = ("", None),
) -> None:
    """Check that OpenSSL can use the files; each argument is (setting, path). Raises ValueError."""
    if ca[1] is certificate[1] is key[1] is None:
        return
    try:
        tls.context(ca[1])
    except OSError as error:  # ssl.SSLError too
        raise ValueError(f"DRUMLINE_{ca[0]}: no CA certificates (PEM) in {ca[1]}: {tls.file_error(error)}") from None
    if (certificate[1] is None) != (key[1] is None):
        raise ValueError(f"DRUMLINE_{certificate[0]} and DRUMLINE_{key[0]}: both or neither")
    try:
        tls.context(ca[1], certificate[1], key[1])
    except OSError as error:
        raise ValueError(
            f"DRUMLINE_{certificate[0]}, DRUMLINE_{key[0]}: cannot use "
            f"{certificate[1]} with {key[1]}: {tls.file_error(error)}"
        ) from None


def server_address(url: str) -> tuple[str, int]:
    """Return host and port of a ClickHouse server, equal for all spellings of a URL that need no name service."""
    parts = urlsplit(url.strip())
    host = (parts.hostname or "").rstrip(".")
    return "127.0.0.1" if host == "localhost" else host, parts.port or (8443 if parts.scheme == "https" else 8123)


def check_url(name: str, url: str) -> None:
    """Check that `url`, a list with commas, has http(s) URLs without user and password. Raises ValueError."""
    for part in filter(None, url.split(",")):
        parts = urlsplit(part.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"DRUMLINE_{name}: http://host:port or https://host:port")
        if parts.username or parts.password:
            raise ValueError(f"DRUMLINE_{name}: no user or password in the URL; there are settings for them")
