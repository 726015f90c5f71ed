"""Texts on what was not evaluated, and on ranks of which nothing came."""

from drumline.views.report.gaps import no_verdict, spans, unreported_text


def test_no_late_rank_and_insufficient_data_are_different_answers():
    assert "is a stream worker up?" in no_verdict({"windows": 0, "evaluated": 0}, None, 2)
    assert "never reported a step" in no_verdict({"windows": 3, "evaluated": 0, "reason": "ranks_missing"}, None, 2)
    assert "has no peers" in no_verdict({"evaluated": 0}, None, 1)
    assert no_verdict({"windows": 4, "evaluated": 4}, None, 2) == "no rank holds this job back, in 4 windows of steps"
    assert no_verdict({"windows": 4, "evaluated": 4}, 2, 4).startswith("rank 2 does not")


def test_windows_without_a_verdict_are_named_with_the_reason_beside_those_with_one():
    windows = {"windows": 7, "evaluated": 4, "reason": "ranks_missing", "unevaluated": [(0, 19), (20, 39), (100, 119)]}
    for rank, begin in ((None, "no rank holds"), (2, "rank 2 does not hold"), (-1, "the job as a whole does not hold")):
        sentence = no_verdict(windows, rank, 4)
        assert sentence.startswith(
            f"{begin} this job back, in 4 windows of steps; 3 more, in steps 0 to 39, 100 to 119,"
        )
        assert "never reported a step" in sentence


def test_neighbours_are_one_range_and_many_ranges_are_cut():
    assert spans([(0, 19), (20, 39), (40, 40), (50, 50)]) == "0 to 40, 50"
    assert spans([(0, 19), (10, 29)]) == "0 to 29"
    assert spans([(number, number) for number in range(0, 100, 2)]).endswith(", ...")


def test_ranks_that_never_reported_are_named():
    assert unreported_text({"unreported_ranks": 0, "unreported": [], "world": 3}) == ""
    assert unreported_text({}) == ""
    single = unreported_text({"unreported_ranks": 1, "unreported": [2], "world": 3})
    assert single.startswith("Rank 2 of 3 has never reported. ")
    many = unreported_text({"unreported_ranks": 9, "unreported": [8, *range(24, 32)], "world": 32})
    assert many.startswith("9 ranks, 8, 24 to 31 of 32 have never reported. ")
