"""The state in the headline of a job: a standstill outranks all else."""

import pytest

from drumline.views.serve.runs.headline import headline

RUN = {"started": "2026-11-21 10:00:00.000000000", "last_record": "2026-11-21 11:00:00.000"}
HANG = {"lasts": True, "state": "hung", "started": "2026-11-21 10:30:00.000000000"}


@pytest.mark.parametrize(
    ("is_live", "hangs", "level", "text"),
    [
        (True, [], "running", "running since 2026-11-21 10:00:00 UTC"),
        (False, [], "ended", "ended, last data 2026-11-21 11:00:00 UTC"),
        (True, [HANG | {"lasts": False}], "running", "running since 2026-11-21 10:00:00 UTC"),
        (True, [HANG], "hung", "hung since 2026-11-21 10:30:00 UTC"),
        (False, [HANG | {"lasts": False}, HANG], "hung", "hung since 2026-11-21 10:30:00 UTC"),
        (True, [HANG | {"state": "standing"}], "standing", "stands still since 2026-11-21 10:30:00 UTC"),
    ],
)
def test_the_state_has_its_time_and_a_standstill_outranks_the_rest(is_live, hangs, level, text):
    state = headline(RUN, is_live, hangs)
    assert (state.level, state.text) == (level, text)
