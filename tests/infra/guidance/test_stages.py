"""A sentence has what is stated of a pipeline's stages; other evidence of the job's row makes none."""

import json

import pytest

from drumline.infra.guidance.stages import unequal_stages_text


def test_the_stage_its_rank_and_the_cost_are_stated():
    stages = {"rank": 2, "longest": 1, "of": 2, "longer": 0.18, "bubble": 0.12}
    text = unequal_stages_text(json.dumps({"stages": stages}))
    assert text == (
        "Stage 1 of 0 to 1, that of rank 2, works 18% longer than the other stages: the bubble costs 12% of the time, "
        "by the job's design; no rank is at fault."
    )


@pytest.mark.parametrize(
    "other", ["", "{", "[]", "null", '{"turns": {"1": 0.1}}', '{"stages": 3}', '{"stages": {"of": 2}}']
)
def test_other_evidence_makes_no_sentence(other):
    assert unequal_stages_text(other) == ""
