"""What settings are checked for when they are read: secret files, certificates, URLs. Errors name the setting, and
never hold a value that may be a secret."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, SecretStr

from drumline.infra.runtime import tls


class SettingsModel(BaseModel):
    """What pydantic says about a wrong setting never holds its value: it may be a secret. A name that is misspelt is
    wrong too: nobody should believe that it encrypts."""

    model_config = ConfigDict(hide_input_in_errors=True, extra="forbid")


def read_secret(name: str, value: SecretStr | None, file: Path | None) -> SecretStr | None:
    """The secret of DRUMLINE_`name`, or what is in its file. Raises ValueError."""
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
    key_password: SecretStr | None = None,
) -> None:
    """Whether OpenSSL can use the files; (setting, path) each. Raises ValueError."""
    if ca[1] is certificate[1] is key[1] is None:
        return
    try:
        tls.context(ca[1])
    except OSError as error:  # ssl.SSLError too
        raise ValueError(f"DRUMLINE_{ca[0]}: no CA certificates (PEM) in {ca[1]}: {tls.file_error(error)}") from None
    if (certificate[1] is None) != (key[1] is None):
        raise ValueError(f"DRUMLINE_{certificate[0]} and DRUMLINE_{key[0]}: both or neither")
    try:
        tls.context(ca[1], certificate[1], key[1], key_password.get_secret_value() if key_password else None)
    except OSError as error:
        raise ValueError(
            f"DRUMLINE_{certificate[0]}, DRUMLINE_{key[0]} (and its password): cannot use "
            f"{certificate[1]} with {key[1]}: {tls.file_error(error)}"
        ) from None


def check_url(name: str, url: str) -> None:
    """Raises ValueError if it is no http(s) URL, or holds a password."""
    for one in filter(None, url.split(",")):
        parts = urlsplit(one.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"DRUMLINE_{name}: http://host:port or https://host:port")
        if parts.username or parts.password:
            raise ValueError(f"DRUMLINE_{name}: no user or password in the URL; there are settings for them")
