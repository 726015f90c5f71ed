"""check_docs.py finds each kind of seeded fault, and nothing in a clean page."""

from __future__ import annotations

import check_docs
import pytest
from glossary import read_glossary

GLOSSARY = read_glossary()


@pytest.fixture
def findings(tmp_path):
    def check(text, name="page.md"):
        page = tmp_path / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
        return [(finding.line, finding.kind) for finding in check_docs.check_page(GLOSSARY, page)]

    return check


def test_a_clean_page_has_no_findings(findings):
    text = (
        "# Title\n\nA sentence, e.g. with `told` code. Another of CUPTI 13.4.92 and [a link](page.md#title).\n\n"
        "```sql\nSELECT told FROM nobody WHERE day = '2025-11-21' -- [x](missing.md)\n```\n\n"
        "    indented code, told by nobody\n\n| a | b |\n|---|---|\n| dead letters | `0a1b2c3d` of `[x](y)` |\n\n"
        "<!-- told 2025-11-21 -->\n- an item\n  of two lines\n1. another\n"
    )
    assert findings(text.replace("`0a1b2c3d`", "`x`")) == []


@pytest.mark.parametrize(("count", "expected"), [(35, []), (36, [(3, "sentence")])])
def test_a_long_sentence_is_reported_on_its_line(findings, count, expected):
    text = " ".join(["term"] * (count - 1))
    assert findings(f"# Title\n\nTerm {text}. Short one.\n") == expected


def test_a_sentence_is_counted_over_lines_and_code_counts_once(findings):
    assert findings("A first one.\nTerm " + "term\n" * 36) == [(2, "sentence")]
    assert findings("Term " + "term " * 33 + "`a b c d e f g`.\n") == []


def test_a_long_cell_is_reported(findings):
    assert findings("| a |\n|---|\n| " + "term " * 31 + "|\n") == [(3, "cell")]
    assert findings("| a |\n|---|\n| " + "term " * 30 + "|\n") == []


@pytest.mark.parametrize(
    "text", ["on 2025-11-21", "of Nov 22", "of 22 November 2025", "at commit 0a1b2c3", "at `0a1b2c3d4e`"]
)
def test_dates_and_commits_belong_in_results(findings, text):
    assert len(findings(f"Measured {text}.\n")) == 1
    assert findings(f"Measured {text}.\n", "results/page.md") == []
    assert findings(f"Measured {text}.\n", "CHANGELOG.md") == []
    assert findings(f"| a |\n|---|\n| {text} |\n", "reference/page.md") == []
    assert len(findings(f"Measured {text}.\n", "reference/page.md")) == 1


@pytest.mark.parametrize(
    "text", ["CUPTI 13.4.92", "0xdeadbeef", "12345678 rows", "decade", "in May be", "`00c0ffee00c0ffee`"]
)
def test_versions_and_numbers_are_no_dates_and_no_commits(findings, text):
    assert findings(f"With {text}.\n") == []


def test_a_refused_term_is_reported_in_prose_and_cells(findings):
    assert findings("# Told\n\nThe last\nword of it.\n\n| a |\n|---|\n| nobody |\n") == [
        (1, "word"),
        (3, "word"),
        (8, "word"),
    ]


def test_broken_links_are_reported(findings, tmp_path):
    (tmp_path / "other.md").write_text("# A `title`: of two\n\n# Twice\n\n# Twice\n")
    good = "[a](other.md) [b](other.md#a-title-of-two) [c](other.md#twice-1) [d](https://example.org/x) [e](#top)\n"
    assert findings("# Top\n\n" + good) == []
    bad = '[a](missing.md)\n[b](other.md#no)\n![c](missing.png)\n<img src="missing.svg">\n[e](#no)\n'
    assert findings("# Top\n\n" + bad) == [(3, "link"), (4, "link"), (5, "link"), (7, "link"), (6, "link")]


def test_the_script_prints_place_and_remedy(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("Clean.\n")
    assert check_docs.main([str(tmp_path)]) == 0
    page.write_text("Told.\n")
    assert check_docs.main([str(page)]) == 1
    assert f"{page}:1: 'told' is refused by tests/style/refused_words.md: use emit" in capsys.readouterr().out
    assert check_docs.main(["--summary", str(page)]) == 1
    assert "word 1" in capsys.readouterr().out
