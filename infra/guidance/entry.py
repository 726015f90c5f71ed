"""Form of one entry of the guidance."""

from __future__ import annotations

from dataclasses import dataclass


def cause_text(cause: str, detail: str = "") -> str:
    """Return cause and detail as people write them: "host stall, page faults"."""
    return ", ".join(part.replace("_", " ") for part in (cause, detail) if part)


@dataclass(frozen=True, slots=True)
class Entry:
    """Explains one cause, or one detail of it.

    meaning: clause about the rank, without a capital, as the report writes it.
    check: how to see that it is so.
    act: what ends it, and who does that.
    """

    cause: str
    detail: str
    meaning: str
    check: str
    act: str

    @property
    def name(self) -> str:
        """Return cause and detail in words."""
        return cause_text(self.cause, self.detail)
