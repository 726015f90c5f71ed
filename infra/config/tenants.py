"""The file of tenants that sinks and stream workers accept: names, keys, patterns of jobs and of hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from drumline.schemas.tenants import KEY_BYTES, Tenant

#: A key in hexadecimal digits, as `openssl rand -hex 32` writes it.
Key = Annotated[str, Field(pattern=rf"^([0-9a-fA-F]{{2}}){{{KEY_BYTES},}}$")]


class _Tenant(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    keys: Annotated[list[Key], Field(min_length=1)]
    jobs: Annotated[list[str], Field(min_length=1)]
    hosts: Annotated[list[str], Field(min_length=1)]


_FILE = TypeAdapter(dict[str, _Tenant], config=ConfigDict(hide_input_in_errors=True))


def read_tenants(file: Path) -> dict[str, Tenant]:
    """Return the tenants of a JSON file: {"NAME": {"keys": [HEX, ...], "jobs": [PATTERN, ...], "hosts": ...}}.

    Raises ValueError that names the setting and the place in the file, never a key.
    """
    setting = "DRUMLINE_KAFKA__TENANTS_FILE"
    try:
        tenants = _FILE.validate_python(json.loads(file.read_bytes()))
    except OSError as error:
        raise ValueError(f"{setting}: cannot read {file}: {error.strerror}") from None
    except ValidationError as error:
        [first, *_] = error.errors(include_input=False)
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{setting}: {file}: {place}: {first['msg']}") from None
    except ValueError:
        raise ValueError(f"{setting}: {file} is not JSON") from None
    return {
        name: Tenant(tuple(bytes.fromhex(key) for key in tenant.keys), tuple(tenant.jobs), tuple(tenant.hosts))
        for name, tenant in tenants.items()
    }


def key_bytes(text: str) -> bytes:
    """Return a producer's key from the text of its file. Raises ValueError."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) < KEY_BYTES:
        raise ValueError(f"DRUMLINE_KAFKA__TENANT_KEY_FILE: not {KEY_BYTES} bytes or more in hexadecimal digits")
    return key
