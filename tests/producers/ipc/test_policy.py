"""Policies: their text, and what each of them records."""

from pathlib import Path

import pytest

from drumline.producers.ipc.policy import (
    ALWAYS,
    AUTO,
    COUNTS,
    LIGHT,
    MODES,
    OFF,
    ROLLUP,
    BadPolicy,
    Policy,
    parse,
    read_policy_text,
)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("always", Policy()),
        (" Rollup\n", Policy(ROLLUP)),
        ("off", Policy(OFF)),
        ("light", Policy(LIGHT)),
        ("auto", Policy(AUTO)),
        ("counts", Policy(COUNTS)),
    ],
)
def test_text_names_a_policy_and_back(text, policy):
    assert parse(text) == policy
    assert parse(str(policy)) == policy


@pytest.mark.parametrize("text", ["", "sometimes", "always 1s"])
def test_other_text_is_refused_with_what_is_possible(text):
    with pytest.raises(BadPolicy):
        parse(text)


def test_collectives_come_from_the_ring_or_from_cupti():
    sources = {mode: (Policy(mode).uses_ring, Policy(mode).uses_cupti) for mode in range(len(MODES))}
    ring, cupti = (True, False), (False, True)
    of_cupti = dict.fromkeys((ALWAYS, ROLLUP), cupti)
    assert sources == {OFF: (False, False), **of_cupti, LIGHT: ring, AUTO: ring, COUNTS: (True, True)}
    assert not any(Policy(mode).records for mode in (OFF, LIGHT, AUTO, COUNTS))


def test_a_control_file_of_any_content_is_read(tmp_path):
    file = tmp_path / "policy"
    assert read_policy_text(file) == ""
    assert read_policy_text(Path(__file__) / "policy") == "", "the spool's root is a file"
    file.write_bytes(b" off \nsecond line")
    assert read_policy_text(file) == "off"
    file.write_bytes(b"\xff\xfe" * 1_000_000)
    assert len(read_policy_text(file)) <= 256
