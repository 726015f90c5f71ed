"""Lists of ranks as people write them."""

from __future__ import annotations

import re

from drumline.schemas.control import MAX_RANK, MAX_RANKS


class BadRankList(ValueError):
    """A text that names no ranks; the message has an example."""


def ranks_of(text: str, most: int = MAX_RANKS) -> list[int]:
    """Return the ranks of "0,3" or "0-7", in order, each once; none of "". `most`: so many. Raises BadRankList."""
    ranks: set[int] = set()
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"\s*(\d{1,7})\s*(?:-\s*(\d{1,7})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last > MAX_RANK or last - first >= most:
            raise BadRankList(f"{text!r} names no ranks; for example: 0,3 or 0-7, at most {most:,} of them")
        ranks |= set(range(first, last + 1))
    if len(ranks) > most:
        raise BadRankList(f"{text!r} names {len(ranks):,} ranks, at most {most:,} are possible")
    return sorted(ranks)
