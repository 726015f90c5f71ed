"""The key that signs a webhook, as text."""

from __future__ import annotations

import base64
import binascii

_PREFIX = "whsec_"
#: Fewest and most bytes of a key (Standard Webhooks, "Signature scheme").
_LEAST, _MOST = 24, 64


def webhook_key_bytes(text: str) -> bytes:
    """Return the key of `whsec_` and base64. Raises ValueError, without the text."""
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not _LEAST <= len(key) <= _MOST or not text.startswith(_PREFIX):
        raise ValueError(f"needs {_PREFIX} and {_LEAST} to {_MOST} random bytes in base64")
    return key
