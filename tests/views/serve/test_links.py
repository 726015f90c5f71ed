"""Sentences of other programs become HTML with links, and nothing else of them does."""

import pytest

from drumline.infra.guidance.hangs import HANGS
from drumline.views.report.text import summary
from drumline.views.serve.links import with_guides, with_ranks


def test_each_rank_of_a_sentence_is_a_link():
    html = with_ranks("Rank 3 waits <b>; 15 ranks wait for rank 12.", "/rank/{}?a=1&b=2".format)
    assert html == (
        '<a href="/rank/3?a=1&amp;b=2">Rank 3</a> waits &lt;b&gt;; 15 ranks wait for '
        '<a href="/rank/12?a=1&amp;b=2">rank 12</a>.'
    )


def test_control_characters_of_a_sentence_are_escaped():
    assert "\x1b" not in with_ranks("rank 1 \x1b[31m", str)


@pytest.mark.parametrize(
    ("sentence", "html"),
    [
        ("See docs/reference/causes.md.", 'See <a href="/causes">guide</a>.'),
        ("docs/reference/causes.md, slow_copy", '<a href="/cause/slow_copy#slow_copy">guide, slow copy</a>'),
        ("nothing of a <guide>", "nothing of a &lt;guide&gt;"),
    ],
)
def test_a_path_of_the_repository_is_a_link_to_the_page(sentence, html):
    assert with_guides(sentence) == html


@pytest.mark.parametrize("entry", HANGS, ids=lambda entry: entry.detail)
def test_the_guide_of_every_standstill_in_a_summary_is_a_link(entry, report):
    hang = {"started": "2026-11-21 10:00:00", "lasts": False, "seconds": 90, "note": "n.", "reason": entry.detail}
    html = with_guides(summary(report(hangs=[hang]), most=1)[0])
    assert f'<a href="{entry.page}">' in html
    assert "docs/" not in html


@pytest.fixture
def report():
    from support.report_data import report_data

    return report_data
