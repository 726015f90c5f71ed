"""Write docs/reference/causes.md: what each cause of a verdict means and what to do, from infra/guidance."""

from __future__ import annotations

from page import NOTE, REFERENCE, sentence, write

from drumline.infra.guidance.causes import CAUSES, WITHOUT_WINDOWS
from drumline.infra.guidance.entry import Entry
from drumline.infra.guidance.hangs import HANGS

PAGE = REFERENCE / "causes.md"
HEAD = f"""{NOTE.format(name="causes_page")}# Causes

A verdict names a rank: what does its cause mean, how do you check it, and what do you do?
[Stragglers](../design/stragglers.md) explains how causes are found. `drumline explain JOB` shows the same for a job,
with its evidence.

A section without a detail holds where no detail could be found. In each, "it" is the named rank, or the job (rank -1).
Of a `host_stall` without one, alert, report and `drumline explain` show the line that its Python was in most, where
it was sampled (`stacks`); the row of the verdict does not have it.
"""


def page() -> str:
    """Return the page's text: a section for each cause, with its details."""
    parts = [HEAD]
    for entry in (*CAUSES, *WITHOUT_WINDOWS):
        title = f"## {entry.name}" if not entry.detail else f"### {entry.name}"
        parts.append(_entry(title, entry))
    parts.append("## Hangs\n\nReasons for which a job that stands still (`hangs`) names a rank.\n")
    parts += [_entry(f"### {entry.detail.replace('_', ' ')}", entry) for entry in HANGS]
    return "\n".join(parts)


def _entry(title: str, entry: Entry) -> str:
    name = ", ".join(f"`{text}`" for text in (entry.cause, entry.detail) if text)
    check, act = sentence(entry.check), sentence(entry.act)
    return f"{title}\n\n{name}: {entry.meaning}.\n\n- Check: {check}\n- Do: {act}\n- Escalate to: {entry.escalate}.\n"


if __name__ == "__main__":
    write(PAGE, page())
