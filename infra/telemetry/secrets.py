"""Secrets of this process, masked in texts. Not in logging.py: a command that logs nothing loads no structlog."""

from __future__ import annotations

HIDDEN = "**********"
_SECRETS: set[str] = set()


def hide(secret: str) -> None:
    """Mask this secret in all log lines of this process."""
    if secret:
        _SECRETS.add(secret)


def masked(text: str) -> str:
    """Return `text` with all known secrets masked."""
    for secret in sorted(_SECRETS, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text
