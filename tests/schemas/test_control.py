"""Records of drumline.control.v1: what is written is read, and nothing else is."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.schemas.control import DAY_NS, MAX_BYTES, MAX_RANKS, BadControl, Control, decode, encode

WINDOW = Control(
    "w", "window", "always", job="llama-*", run="r1", ranks=(3, 7), first_step=100, last_step=119,
    start_ns=10**18, until_ns=10**18 + 60 * 10**9, stacks=True, requested_by="ada", requested_ns=10**18,
)  # fmt: skip


def test_a_record_is_read_as_it_was_written():
    assert decode(encode(WINDOW)) == WINDOW
    policy = Control("p", "policy", "counts", until_ns=7 * DAY_NS)
    assert decode(encode(policy)) == policy


def test_a_record_of_another_schema_is_not_read():
    value = encode(WINDOW)
    with pytest.raises(BadControl, match="that this version reads"):
        decode(value[:9] + bytes([value[9] ^ 1]) + value[10:])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "other"}, "neither a policy nor a window"),
        ({"until_ns": WINDOW.start_ns + 601 * 10**9}, "in force for 600 s at most"),
        ({"kind": "policy", "until_ns": WINDOW.start_ns + 8 * DAY_NS}, "in force for 604,800 s at most"),
        ({"until_ns": WINDOW.start_ns - 1}, "ends before it begins"),
        ({"first_step": 120}, "steps 120 to 119"),
        ({"ranks": (1 << 20,)}, "ranks are 0 to"),
        ({"ranks": tuple(range(MAX_RANKS + 1))}, "at most 4,096"),
        ({"job": ""}, "a name is empty"),
        ({"host": "h" * 1025}, "longer than 1024"),
    ],
)
def test_what_is_impossible_is_neither_written_nor_read(change, reason):
    with pytest.raises(BadControl, match=reason):
        encode(replace(WINDOW, **change))


@given(
    st.one_of(st.none(), st.binary(max_size=200), st.binary(max_size=200).map(lambda tail: encode(WINDOW)[:10] + tail))
)
def test_other_bytes_are_no_record(value):
    with pytest.raises(BadControl):
        decode(value)


@given(st.integers(0, len(encode(WINDOW)) - 1), st.binary(min_size=1, max_size=4))
def test_a_damaged_record_is_read_as_something_possible_or_not_at_all(at, damage):
    value = encode(WINDOW)
    with suppress(BadControl):
        assert decode(value[:at] + damage + value[at + len(damage) :]).checked()


def test_a_record_that_is_too_large_or_has_a_tail_is_none():
    for value in (encode(WINDOW) + b"\0", encode(WINDOW) + bytes(MAX_BYTES)):
        with pytest.raises(BadControl):
            decode(value)
