"""Check the documentation's style: sentences, table cells, dates, the glossary's words and relative links.

    check_docs.py [--summary] [FILE_OR_FOLDER ...]

Without arguments it reads README.md, CONTRIBUTING.md, CHANGELOG.md and docs/. `--summary` prints findings and size per
folder instead. Exits with 1 on a finding. Code blocks, inline code and HTML comments are not prose. Dates and commit
ids may stand in docs/results, in CHANGELOG.md, and in table cells of docs/reference, as those show query results.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from glossary import ROOT, Glossary, read_glossary

MAX_SENTENCE = 35
MAX_CELL = 30
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs")
#: Pages that `make docs` and `make site` write, and the repository does not have: no link may lead there.
BUILT = tuple(ROOT / "docs" / "reference" / name for name in ("record-bounds.md", "tables.md"))

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|June?|July?|Aug|Sept?|Oct|Nov|Dec)[a-z]*\.?"
DATE = re.compile(rf"\b(?:20\d\d-\d\d(?:-\d\d)?|{_MONTH} \d{{1,2}}(?:, 20\d\d)?|\d{{1,2}} {_MONTH}(?: 20\d\d)?)\b")
COMMIT = re.compile(r"(?<![\w/.:#-])(?=[0-9]*[a-f])(?=[a-f]*[0-9])(?:[0-9a-f]{7,12}|[0-9a-f]{40})(?![\w/-]|\.\w)")
CODE_SPAN = re.compile(r"(`+)(.+?)\1")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
HTML_LINK = re.compile(r"<(?:img|a)\s[^>]*?(?:src|href)=\"([^\"]+)\"")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
SENTENCE_END = re.compile(r"(?<![.\s]\w)(?<!e\.g)(?<!i\.e)(?<!etc)(?<!vs)[.!?][\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9`¤])")
#: Stands for a span of inline code: one word that no rule reads.
CODE = "¤"
TERM = re.compile(rf"[\w{CODE}][\w{CODE}'’.,/%+:*=-]*")


@dataclass(frozen=True, order=True)
class Finding:
    """A line that breaks a rule; `kind` is the rule's short name."""

    path: str
    line: int
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass
class Block:
    """A paragraph, list item, heading or table cell: its lines, and the number of the first."""

    kind: str
    line: int
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def pages(paths: Iterable[Path]) -> list[Path]:
    """Return the Markdown pages under the given paths."""
    present = {page for path in paths for page in ([path] if path.is_file() else path.rglob("*.md"))}
    return sorted(present - set(BUILT))


def check_page(glossary: Glossary, page: Path) -> Iterator[Finding]:
    """Yield the findings of one page."""
    shown = str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else str(page)
    dated = "results" in page.parts or page.name == "CHANGELOG.md"
    for block in blocks(page.read_text()):
        plain = _plain(block.text)
        if block.kind == "cell":
            if (count := len(TERM.findall(plain))) > MAX_CELL:
                message = f"table cell of {count} words (at most {MAX_CELL}): shorten it or move it to a paragraph"
                yield Finding(shown, block.line, "cell", message)
        else:
            for line, sentence in sentences(plain, block.line):
                if (count := len(TERM.findall(sentence))) > MAX_SENTENCE:
                    start = " ".join(sentence.split()[:6]).replace(CODE, "`...`")
                    message = f"sentence of {count} words (at most {MAX_SENTENCE}), '{start} ...': split it"
                    yield Finding(shown, line, "sentence", message)
        for at, banned in glossary.banned_in_prose(plain):
            line = block.line + plain.count("\n", 0, at)
            yield Finding(
                shown, line, "word", f"'{banned}' is refused by tests/style/refused_words.md: use {banned.use}"
            )
        if not dated and not (block.kind == "cell" and "reference" in page.parts):
            for kind, pattern, text in (("date", DATE, plain), ("commit", COMMIT, block.text)):
                for match in pattern.finditer(text):
                    line = block.line + text.count("\n", 0, match.start())
                    yield Finding(shown, line, kind, f"{kind} '{match[0]}': it belongs in docs/results")
    for line, target in links(page.read_text()):
        if problem := broken(page, target):
            yield Finding(shown, line, "link", f"link to '{target}': {problem}")


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of prose of a page, table cells each on their own; code blocks and comments are left out."""
    current: Block | None = None
    fence = ""
    for number, line in enumerate(_without_comments(text).split("\n"), 1):
        stripped = line.strip()
        if fence:
            fence = "" if stripped.startswith(fence) else fence
            continue
        opens_fence = re.match(r"(```+|~~~+)", stripped)
        starts_item = re.match(r"\s*(?:[-*+]|\d+[.)])\s+", line)
        indented = line.startswith("    ") and not starts_item and current is None
        if opens_fence or not stripped or indented or stripped.startswith(("|", "#")) or starts_item:
            if current:
                yield current
            current = None
        if opens_fence:
            fence = opens_fence[1]
        elif not stripped or indented or re.fullmatch(r"\|[\s|:-]+\|", stripped):
            continue
        elif stripped.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", stripped.strip("|")):
                yield Block("cell", number, [cell.strip()])
        elif stripped.startswith("#"):
            yield Block("heading", number, [stripped.lstrip("# ")])
        elif current is None:
            current = Block("text", number, [line[starts_item.end() :] if starts_item else stripped])
        else:
            current.lines.append(stripped.removeprefix("> "))
    if current:
        yield current


def sentences(plain: str, line: int) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a block with the line on which each begins."""
    start = 0
    for match in [*SENTENCE_END.finditer(plain), None]:
        end = match.end() if match else len(plain)
        yield line + plain.count("\n", 0, start), plain[start:end]
        start = end


def links(text: str) -> Iterator[tuple[int, str]]:
    """Yield the targets of a page's links and images, outside code, with their lines."""
    text = _without_comments(text)
    text = re.sub(r"^(```+|~~~+).*?^\1[^\n]*$", lambda match: _blank(match[0]), text, flags=re.DOTALL | re.MULTILINE)
    text = CODE_SPAN.sub(lambda match: _blank(match[0]), text)
    for match in [*LINK.finditer(text), *HTML_LINK.finditer(text)]:
        yield text.count("\n", 0, match.start()) + 1, match[match.lastindex or 0]


def broken(page: Path, target: str) -> str | None:
    """Return what is wrong with the target of a link, or None; targets with a scheme are not checked."""
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return None
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists() or file in BUILT:
        return "no such file in the repository"
    if anchor and file.suffix == ".md" and anchor not in _anchors(file):
        return f"{file.name} has no heading '#{anchor}'"
    return None


@cache
def _anchors(page: Path) -> set[str]:
    seen: Counter[str] = Counter()
    anchors = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", page.read_text()))
    for block in blocks(page.read_text()):
        if block.kind == "heading":
            text = LINK.sub(r"\2", block.text).replace("`", "").lower()
            slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return anchors


def _plain(text: str) -> str:
    """Return a block's text without code and link targets; line breaks stay."""
    text = CODE_SPAN.sub(lambda match: CODE + "\n" * match[0].count("\n"), text)
    text = LINK.sub(lambda match: match[2], text)
    return re.sub(r"</?\w+[^>]*>|\*\*|https?://\S+", " ", text)


def _without_comments(text: str) -> str:
    return COMMENT.sub(lambda match: _blank(match[0]), text)


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _print_summary(findings: list[Finding], checked: list[Path]) -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    sizes: Counter[str] = Counter()
    for page in checked:
        sizes[str(page.parent.relative_to(ROOT)) if page.is_relative_to(ROOT) else str(page.parent)] += (
            page.stat().st_size
        )
    for finding in findings:
        counts[str(Path(finding.path).parent)][finding.kind] += 1
    for folder, size in sorted(sizes.items()):
        detail = ", ".join(f"{kind} {count}" for kind, count in counts[folder].most_common())
        print(f"{size / 1000:7.1f} kB {folder}: {detail or 'clean'}")
    print(f"{len(findings)} findings in all")


def main(arguments: list[str]) -> int:
    """Run the check and return the exit status."""
    parser = argparse.ArgumentParser(description="Check the documentation's style.")
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args(arguments)
    glossary = read_glossary()
    default = [ROOT / name for name in PAGES if (ROOT / name).exists()]
    checked = pages([path.resolve() for path in options.paths] or default)
    findings = sorted(finding for page in checked for finding in check_page(glossary, page))
    if options.summary:
        _print_summary(findings, checked)
    else:
        print("".join(f"{finding}\n" for finding in findings), end="")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
