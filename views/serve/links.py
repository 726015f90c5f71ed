"""Links in sentences that other programs write: ranks that they name, and pages of the repository."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from drumline.infra.guidance.entry import cause_page
from drumline.infra.runtime.terminal import LAYOUT, escape_controls

#: The guide of causes as messages for a terminal name it, with the cause and its detail.
_GUIDE = re.compile(r"docs/reference/causes\.md(?:, (\w+))?(?:, (\w+))?")
_RANK = re.compile(r"\brank (\d{1,9})\b", re.IGNORECASE)


def with_ranks(sentence: str, rank_url: Callable[[int], str]) -> Any:
    """Return a sentence as HTML in which each rank that it names is a link to its page."""
    return _linked(sentence, _RANK, lambda match: (rank_url(int(match[1])), match[0]))


def with_guides(sentence: str) -> Any:
    """Return a sentence as HTML in which the repository's guide of causes is a link to the page's own."""
    return _linked(sentence, _GUIDE, _guide)


def _guide(match: re.Match[str]) -> tuple[str, str]:
    names = [name for name in match.groups() if name]
    return cause_page(*names) if names else "/causes", "guide, " + ", ".join(names) if names else "guide"


def _linked(sentence: str, pattern: re.Pattern[str], link: Callable[[re.Match[str]], tuple[str, str]]) -> Any:
    from markupsafe import Markup, escape

    result, end = Markup(""), 0
    for match in pattern.finditer(sentence):
        address, text = link(match)
        before = escape(escape_controls(sentence[end : match.start()], LAYOUT))
        result += before + Markup('<a href="{}">{}</a>').format(address, text.replace("_", " "))
        end = match.end()
    return result + escape(escape_controls(sentence[end:], LAYOUT))
