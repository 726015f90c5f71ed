"""Policies: their text, and when each of them records."""

from pathlib import Path

import pytest

from drumline.producers.ipc.policy import (
    ALWAYS,
    AUTO,
    COLLECTIVES,
    COUNTS,
    DUTY,
    LIGHT,
    MODES,
    OFF,
    ROLLUP,
    BadPolicy,
    Policy,
    parse,
    read_policy_text,
)

S = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("always", Policy()),
        ("rollup", Policy(ROLLUP)),
        (" Collectives\n", Policy(COLLECTIVES)),
        ("off", Policy(OFF)),
        ("light", Policy(LIGHT)),
        ("auto", Policy(AUTO)),
        ("counts", Policy(COUNTS)),
        ("duty", Policy(DUTY, S // 5, 10 * S)),
        ("duty 500ms/1m", Policy(DUTY, S // 2, 60 * S)),
        ("duty:0.25s/2s", Policy(DUTY, S // 4, 2 * S)),
    ],
)
def test_text_names_a_policy_and_back(text, policy):
    assert parse(text) == policy
    assert parse(str(policy)) == policy


@pytest.mark.parametrize("text", [
    "", "sometimes", "duty 2s/1s", "duty 0s/1s", "duty 1/2", "duty 1.2.3s/9s", "duty 1s/9999999999999999m",
    f"duty 1s/{'9' * 400}s",
])  # fmt: skip
def test_other_text_is_refused_with_what_is_possible(text):
    with pytest.raises(BadPolicy):
        parse(text)


def test_collectives_come_from_the_ring_or_from_cupti():
    sources = {mode: (Policy(mode).uses_ring, Policy(mode).uses_cupti) for mode in range(len(MODES))}
    ring, cupti = (True, False), (False, True)
    of_cupti = dict.fromkeys((ALWAYS, COLLECTIVES, DUTY, ROLLUP), cupti)
    assert sources == {OFF: (False, False), **of_cupti, LIGHT: ring, AUTO: ring, COUNTS: (True, True)}
    assert not any(Policy(mode).on_at(S) for mode in (OFF, LIGHT, AUTO, COUNTS))


def test_windows_begin_at_the_same_time_on_all_ranks():
    policy = parse("duty 0.2s/10s")
    assert policy.on_at(30 * S)
    assert policy.on_at(30 * S + S // 5 - 1)
    assert not policy.on_at(30 * S + S // 5)
    assert policy.changes_in(30 * S) == pytest.approx(0.2)
    assert policy.changes_in(31 * S) == pytest.approx(9.0)
    assert parse("always").changes_in(31 * S) == float("inf")


def test_a_control_file_of_any_content_is_read(tmp_path):
    file = tmp_path / "policy"
    assert read_policy_text(file) == ""
    assert read_policy_text(Path(__file__) / "policy") == "", "the spool's root is a file"
    file.write_bytes(b" off \nsecond line")
    assert read_policy_text(file) == "off"
    file.write_bytes(b"\xff\xfe" * 1_000_000)
    assert len(read_policy_text(file)) <= 256
