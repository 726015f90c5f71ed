"""Form of one entry of the guidance."""

from __future__ import annotations

from dataclasses import dataclass


def cause_text(cause: str, detail: str = "") -> str:
    """Return cause and detail as people write them: "host stall, page faults"."""
    return ", ".join(part.replace("_", " ") for part in (cause, detail) if part)


def cause_page(cause: str, detail: str = "") -> str:
    """Return the path of the section of a cause or detail on the web page of `drumline serve`."""
    return f"/cause/{cause}#{detail or cause}"


#: To whom a person turns who cannot do it.
JOB, HOST, NETWORK = "the owner of the job", "the owner of the host", "the owner of the network"
DRUMLINE = "the operator of drumline"
#: What a detail is known from: rows of the rank's own steps and GPU, or one sample a second of its process.
STEPS, SAMPLES = "steps", "samples"


@dataclass(frozen=True, slots=True)
class Entry:
    """Explains one cause, or one detail of it.

    meaning: clause about the rank, without a capital, as the report writes it.
    check: how to see that it is so.
    act: what ends it.
    escalate: who is asked if the person paged cannot do it.
    known_from: STEPS or SAMPLES where that decides how sure a name is (streams/stragglers/analysis/rank_naming.py).
    """

    cause: str
    detail: str
    meaning: str
    check: str
    act: str
    escalate: str = JOB
    known_from: str = ""

    @property
    def name(self) -> str:
        """Return cause and detail in words."""
        return cause_text(self.cause, self.detail)

    @property
    def page(self) -> str:
        """Return the path of its section on the web page."""
        return cause_page(self.cause, self.detail)
