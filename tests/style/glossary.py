"""Reader of the glossary for the two style checks: its terms, refused words, their scopes, and what to use instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "docs" / "glossary.md", ROOT / "tests" / "style" / "refused_words.md")
SCOPES = {"names", "whole names", "prose", "both", "review"}
NAME_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")


@dataclass(frozen=True)
class BannedTerm:
    """A refused word or phrase, in lower case, and the words to use instead."""

    phrase: tuple[str, ...]
    use: str

    def __str__(self) -> str:
        return " ".join(self.phrase)


@dataclass(frozen=True)
class Glossary:
    """Refused words by scope. Each list is in the order of the page."""

    names: list[BannedTerm]
    whole_names: list[BannedTerm]
    prose: list[BannedTerm]
    compounds: list[tuple[str, ...]]
    terms: list[str]

    def banned_in_name(self, name: str) -> BannedTerm | None:
        """Return the first refused word of an identifier, or None."""
        parts = [part.lower() for part in NAME_PARTS.findall(name)]
        for banned in self.whole_names:
            if tuple(parts) == banned.phrase:
                return banned
        return self._first_banned(self.names, _without(parts, self.compounds))

    def banned_in_test_name(self, name: str) -> BannedTerm | None:
        """Return the first word of a test function's name that is refused in prose, as such names are sentences."""
        parts = _without(name.lower().split("_"), self.compounds)
        return self._first_banned(self.prose, parts)

    def _first_banned(self, banned_terms: list[BannedTerm], parts: list[str]) -> BannedTerm | None:
        if self._first_parts.isdisjoint(parts):  # as of most names
            return None
        return next((banned for banned in banned_terms if _contains(parts, banned.phrase)), None)

    @cached_property
    def _first_parts(self) -> frozenset[str]:
        return frozenset(banned.phrase[0] for banned in (*self.names, *self.prose))

    def banned_in_prose(self, text: str) -> Iterator[tuple[int, BannedTerm]]:
        """Yield the position of each refused word of a text, with the word."""
        blanked = text.lower()
        for compound in self.compounds:
            blanked = re.sub(rf"\b{'[ -]'.join(compound)}\b", lambda match: " " * len(match[0]), blanked)
        for match in self._prose_pattern.finditer(blanked):
            yield match.start(), self._prose_by_text[re.sub(r"\s+", " ", match[0])]

    @cached_property
    def _prose_by_text(self) -> dict[str, BannedTerm]:
        return {str(banned): banned for banned in self.prose}

    @cached_property
    def _prose_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self._prose_by_text, key=len, reverse=True)
        alternatives = "|".join(re.escape(text).replace(r"\ ", r"\s+") for text in longest_first)
        return re.compile(rf"(?<![\w-])(?:{alternatives})(?![\w])")


def read_glossary(*pages: Path) -> Glossary:
    """Read the pages, by default PAGES. Raises ValueError for a row without a backticked word or an unknown scope."""
    text = "\n".join(page.read_text() for page in pages or PAGES)
    scoped: dict[str, list[BannedTerm]] = {scope: [] for scope in SCOPES}
    for row in _rows(_section(text, "Refused words")):
        banned = re.findall(r"`([^`]+)`", row[0])
        scopes = {scope.strip() for scope in row[2].split(",")}
        if not banned or not scopes <= SCOPES:
            raise ValueError(f"{row[0]} has no word in backticks or the unknown scope {row[2]}")
        for phrase in banned:
            for scope in scopes:
                scoped[scope].append(BannedTerm(tuple(phrase.lower().split()), row[1].replace("`", "")))
    compounds = re.findall(r"`([^`]+)`", _section(text, "Kept compounds"))
    return Glossary(
        names=scoped["names"] + scoped["both"],
        whole_names=scoped["whole names"],
        prose=scoped["prose"] + scoped["both"],
        compounds=[tuple(compound.split()) for compound in compounds],
        terms=[row[0] for row in _rows(_section(text, "Terms"))],
    )


def _section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def _rows(section: str) -> list[list[str]]:
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def _contains(parts: list[str], phrase: tuple[str, ...]) -> bool:
    return any(tuple(parts[at : at + len(phrase)]) == phrase for at in range(len(parts) - len(phrase) + 1))


def _without(parts: list[str], compounds: list[tuple[str, ...]]) -> list[str]:
    """Return the parts with kept compounds blanked, so that nothing joins across them."""
    kept = list(parts)
    for compound in compounds:
        for at in range(len(parts) - len(compound) + 1):
            if tuple(parts[at : at + len(compound)]) == compound:
                kept[at : at + len(compound)] = [""] * len(compound)
    return kept
