"""Values of ranks come back from a head as they were, and take no room where ranks are alike."""

import json

from hypothesis import given
from hypothesis import strategies as st

from drumline.streams.stragglers.alarm import Alarm, load_alarms, stored_alarms
from drumline.streams.stragglers.rank_values import by_value, ranks_of

ALARMS = st.builds(Alarm, st.integers(0, 5), st.integers(0, 3), st.tuples(st.integers(0, 3)), first=st.integers(-1, 9))


@given(st.dictionaries(st.integers(-1, 40), ALARMS))
def test_alarms_come_back_from_a_stored_head(alarms):
    assert load_alarms(stored_alarms(alarms)) == alarms
    assert load_alarms(json.loads(json.dumps(stored_alarms(alarms)))) == alarms


@given(st.dictionaries(st.integers(-1, 40), st.sampled_from(["ok", "suspect", "warning"])))
def test_each_rank_has_its_value_once(texts):
    assert [(rank, text) for text, runs in by_value(texts) for rank in ranks_of(runs)] == sorted(
        texts.items(), key=lambda item: (list(dict.fromkeys(texts.values())).index(item[1]), item[0])
    )


def test_ranks_that_are_alike_are_one_entry():
    values = dict.fromkeys(range(-1, 16_384), "ok") | {7: "late"}
    assert list(by_value(values)) == [("ok", [-1, 6, 8, 16_383]), ("late", [7, 7])]
