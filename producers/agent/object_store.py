"""S3-compatible storage and compression for the archive. Both need the extra `archive`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

from drumline.infra.config.servers import ArchiveSettings

#: zstd; 3 is its default: about a third of the bytes of kernels.
LEVEL = 3


class ArchiveMissing(RuntimeError):
    """The extra `archive` is not installed."""


class Store(Protocol):
    """Uploads one object; raises its client's errors."""

    def __call__(self, name: str, content: bytes) -> None:
        """Upload `content` as `name`; blocks."""


def s3(settings: ArchiveSettings) -> Store:
    """Return a store for objects below settings.url.

    Without keys in the settings they come from the sources of AWS's tools: environment, web identity, instance. Raises
    ArchiveMissing, ValueError.
    """
    try:
        obstore, store = importlib.import_module("obstore"), importlib.import_module("obstore.store")
    except ModuleNotFoundError:
        raise ArchiveMissing("the archive needs: pip install 'drumline[archive]'") from None
    config: dict[str, Any] = {"region": settings.region}
    if settings.endpoint:
        config["endpoint"] = settings.endpoint
    if settings.key_id:
        config |= {
            "access_key_id": settings.key_id,
            "secret_access_key": settings.secret.get_secret_value() if settings.secret else "",
        }
    try:
        bucket = store.S3Store.from_url(
            settings.url,
            config=config,
            client_options={"timeout": "60s", "connect_timeout": "5s", "allow_http": "true"},
            retry_config={"max_retries": 0},  # the archiver retries, and logs it
        )
    except Exception as error:  # obstore's own types
        raise ValueError(f"DRUMLINE_ARCHIVE__URL: {error}") from None
    return lambda name, content: obstore.put(bucket, name, content)


def zstd() -> Callable[[bytes], bytes]:
    """Return the compression function; the standard library has one from Python 3.14 on. Raises ArchiveMissing."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            library = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        return lambda data: bytes(library.compress(data, LEVEL))
    raise ArchiveMissing("the archive needs: pip install 'drumline[archive]'")
