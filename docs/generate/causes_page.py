"""Write docs/reference/causes.md: what each cause of a verdict means and what to do, from infra/guidance."""

from __future__ import annotations

from page import NOTE, REFERENCE, sentence, write

from drumline.infra.guidance.causes import CAUSES

PAGE = REFERENCE / "causes.md"
HEAD = f"""{NOTE.format(name="causes_page")}# Causes

A verdict names a rank: what does its cause mean, how do you check it, and what do you do?
[Stragglers](../design/stragglers.md) explains how causes are found. `drumline explain JOB` shows the same for a job,
with its evidence.

A section without a detail holds where no detail could be found. In each, "it" is the named rank, or the job (rank -1).
"""


def page() -> str:
    """Return the page's text: a section for each cause, with its details."""
    parts = [HEAD]
    for entry in CAUSES:
        title = f"## {entry.name}" if not entry.detail else f"### {entry.name}"
        parts.append(
            f"{title}\n\n`{entry.cause}`{f', `{entry.detail}`' if entry.detail else ''}: {entry.meaning}.\n\n"
            f"- Check: {sentence(entry.check)}\n- Do: {sentence(entry.act)}\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    write(PAGE, page())
