"""One recorded job by both tiers (tests/gpu/zoo.py): the same ranks, and the same shares where no wait hides."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from drumline.cli.query.evaluate import read_phases
from drumline.lab.evaluate.scoring import INSUFFICIENT, WARNING, evaluate_phases, light_phases
from drumline.lab.evaluate.verdict_rows import verdict_rows
from drumline.producers.replay.published import read_published
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.offline import verdicts

FOLDER = Path(__file__).parents[2] / "data" / "published"
#: CUPTI's rows of `zoo-moe` are older than the recognition of its all-to-alls.
#: `zoo-context`: of its 20 s of faults 200 steps of CUPTI are kept, and six windows of the plugin, half of them named.
DIFFERENT = {"zoo-moe", "zoo-context"}
BOTH = sorted({path.parent.parent.name for path in FOLDER.glob("zoo-*/light/manifest.json")} - DIFFERENT)
#: The others are `long`: a job of each kind of communication tells of a change, and `make test-long` of all.
QUICK = {"zoo-tp", "zoo-fsdp2", "zoo-once-pipeline", "zoo-one_f_one_b"}
#: Jobs whose communication hides behind no computation, where a wait is a wait in either tier.
EXPOSED = ["zoo-pipeline", "zoo-once-pipeline", "zoo-tp"]
#: Most difference of shares, and share of windows that may have more. Without replicas a rank is compared with its
#: past, which is another one for as long as a window is healthy in one tier only.
POINTS, BEYOND = 0.02, 0.07


@cache
def compared(name):
    """Tier -> its verdicts on the windows in which both compare all ranks: (first step, rank) -> row."""
    tiers = {}
    for tier in ("cupti", "light"):
        published = verdict_rows(verdicts(read_published(FOLDER / name / tier), StragglerConfig()))
        tiers[tier] = {(row.first_step, row.rank): row for row in published if row.rank >= 0}
    of_both = [place for of_tier in tiers.values() for place in of_tier.items()]
    unknown = {first for (first, _), row in of_both if row.severity == INSUFFICIENT}
    places = {place for place in tiers["cupti"].keys() & tiers["light"].keys() if place[0] not in unknown}
    return {tier: {place: of_tier[place] for place in places} for tier, of_tier in tiers.items()}


def jobs(names):
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.mark.parametrize("name", jobs(BOTH))
def test_what_one_tier_finds_in_a_fault_the_other_names_and_neither_another_rank(name):
    """Found as `drumline evaluate` counts it: named in half of a phase's windows. The other may name it later."""
    tiers, phases = compared(name), read_phases(FOLDER / name / "cupti")
    cupti = evaluate_phases(phases, tiers["cupti"].values())
    light = evaluate_phases(light_phases(phases), tiers["light"].values())
    faults = [(a, b) for a, b in zip(cupti.phases, light.phases, strict=True) if a.expected_ranks]
    assert len(faults) >= 2
    assert all(a.windows == b.windows >= 2 for a, b in faults)
    spans = {phase["phase"]: (phase["first_step"], phase["last_step"]) for phase in phases}
    for a, b in faults:
        culprits = {*a.found_ranks, *b.found_ranks}
        assert culprits <= set(a.expected_ranks)
        for rows in tiers.values():
            assert culprits <= {rank for (first, rank), row in rows.items() if row.severity >= WARNING
                             and spans[a.phase][0] <= first and row.last_step <= spans[a.phase][1]}  # fmt: skip


@pytest.mark.parametrize("name", jobs(EXPOSED))
def test_where_no_wait_hides_shares_are_within_two_points(name):
    tiers = compared(name)
    differences = np.array([abs(row.share - tiers["light"][place].share) for place, row in tiers["cupti"].items()])
    assert len(differences) >= 60
    assert (differences > POINTS).mean() <= BEYOND
    assert np.median(differences) < 0.001
