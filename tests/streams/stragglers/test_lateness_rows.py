"""Lists of lateness are stored as the JSON that any reader takes for what came."""

import json

from drumline.schemas.bounds.limits import HIDDEN, KINDS
from drumline.streams.core.records import as_json
from drumline.streams.stragglers.lateness_rows import NO_LISTS, lists_of_steps


def test_lists_of_steps_are_the_json_of_kinds_and_hidden_waits():
    kinds = [(4, 1, 1024, 2, -7), (4, 0, 0, 1, 1 << 62), (5, 1, 8, 3, 9)]
    hidden = [(4, -1, 2, 3), (6, 4, 5, 6)]
    envelope = {"operations": ["AllReduce", 'Ä"\\'], **dict(zip(KINDS, zip(*kinds, strict=True), strict=True))}
    envelope |= dict(zip(HIDDEN, zip(*hidden, strict=True), strict=True))
    expected = {
        4: {"kinds": [['Ä"\\', 1024, 2, -7], ["AllReduce", 0, 1, 1 << 62]], "hidden": [-1, 2, 3]},
        5: {"kinds": [['Ä"\\', 8, 3, 9]], "hidden": []},
        6: {"kinds": [], "hidden": [4, 5, 6]},
    }
    assert lists_of_steps(envelope) == {step: as_json(lists) for step, lists in expected.items()}
    assert json.loads(NO_LISTS) == {"kinds": [], "hidden": []}


def test_a_record_without_hidden_waits_has_lists_of_kinds_alone():
    empty = {"operations": [], **{name: [] for name in KINDS}}
    assert lists_of_steps(empty) == {}
