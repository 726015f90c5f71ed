"""Texts of causes in messages of alert rules.

A message knows labels and numbers. The cause is no label: a rank whose cause changes would be resolved and fire again.
So a query gives the number of its entry in the guidance, and the message chooses the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from drumline.infra.guidance.causes import CAUSES

NAMES = tuple(entry.name for entry in CAUSES)
MEANINGS = tuple(f"{entry.name}: {entry.meaning}" for entry in CAUSES)
CHECKS = tuple(entry.check for entry in CAUSES)
ACTS = tuple(entry.act for entry in CAUSES)
ESCALATIONS = tuple(entry.escalate for entry in CAUSES)
PAGES = tuple(entry.page for entry in CAUSES)
UNKNOWN = "see the linked panel"


def number(cause: str, detail: str) -> str:
    """Return SQL of the number of an entry, from 1: of cause and detail, else of the cause; 0 for neither."""
    both = ", ".join(f"'{entry.cause} {entry.detail}'" for entry in CAUSES)
    return (
        f"arrayFirst(found -> found > 0, [indexOf([{both}], concat({cause}, ' ', {detail})), "
        f"indexOf([{both}], concat({cause}, ' '))])"
    )


def text(ref: str, texts: Sequence[str], unknown: str = UNKNOWN) -> str:
    """Return a template that chooses the text by the number in `ref`."""
    chain = "".join(
        f"{{{{ {'else ' if i else ''}if eq $values.{ref}.Value {i + 1}.0 }}}}{entry}" for i, entry in enumerate(texts)
    )
    return f"{chain}{{{{ else }}}}{unknown}{{{{ end }}}}"
