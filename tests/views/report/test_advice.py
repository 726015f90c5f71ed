"""Advice stands once for each cause, however many ranks it names."""

from drumline.views.report.advice import advice
from drumline.views.report.text import action


def test_advice_is_repeated_for_no_rank_with_the_same_cause():
    causes = [("slow_copy", "pageable"), ("host_stall", ""), ("slow_copy", "pageable"), ("other", ""), ("other", "")]
    texts = advice([{"cause": cause, "detail": detail} for cause, detail in causes], "a job")
    assert texts[:2] == [action(*cause, "a job") for cause in causes[:2]]
    assert texts[2] == "As for slow copy, pageable above."
    assert texts[3:] == ["", ""]
