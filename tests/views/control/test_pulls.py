"""An answer to a pull counts from the agents whose hosts had the rank, and from no other producer of rows."""

from drumline.views.control.pulls import RankAnswer, answers, are_complete, pull_of

PULL = pull_of("j", "r", [0, 1], (1, 9), 10**18)
HOSTS = {0: ["a", "b"], 1: ["b"]}


def answered(*rows):
    """`rows`: host, rank as text, answer."""
    rows = [{"host": host, "answers": {f"{PULL.key} rank {rank}": text}} for host, rank, text in rows]
    return answers(lambda sql, values: rows, PULL, HOSTS)


def test_answers_of_other_hosts_end_nothing_and_take_the_place_of_none():
    forged = ("evil", "1", "done: steps 1 to 9, 0 rows")
    (single,) = answered(forged)
    assert (single.answer, single.host) == ("foreign", "evil")
    assert "are on b: give jobs and agent one DRUMLINE_HOST" in single.text
    assert not are_complete([single], [1])
    given = answered(("a", "0", "done: 5 rows"), ("b", "1", "running: 1 row"), forged)
    assert given == [RankAnswer(0, "a", "done", "5 rows"), RankAnswer(1, "b", "running", "1 row")]
    assert not are_complete(given, [0, 1])
    assert are_complete(answered(("a", "0", "done: 5 rows"), forged, ("b", "1", "rejected: x")), [0, 1])


def test_an_answer_about_no_rank_or_in_other_terms_ends_nothing():
    assert answered(("a", "abc", "done: x"), ("a", "-1", "done: x"), ("a", "9" * 5_000, "done: x")) == []
    assert answered(("a", "0", "perhaps: x"), ("a", "7", "done: x")) == []
