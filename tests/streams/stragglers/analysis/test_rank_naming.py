"""A rank is named only beyond what healthy windows lose by turns; turns that cost the job are its own row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drumline.lab.bench.jittery_jobs import HEALTHY, STEP_NS, fault, lateness, named, verdicts, windows
from drumline.streams.core.chance import RATIOS, beyond, chance_of_sizes, likelihood_ratios, spread
from drumline.streams.core.thresholds import CRITICAL, SUSPECT, WARNING, StragglerConfig
from drumline.streams.stragglers.analysis.attribution import attribute_lost_time
from drumline.streams.stragglers.analysis.cause import Cause
from drumline.streams.stragglers.analysis.groups import lockstep_groups
from drumline.streams.stragglers.analysis.lateness_history import WORK, LatenessHistory, Odds, load_lateness
from drumline.streams.stragglers.analysis.light_overlap import kept_hidden
from drumline.streams.stragglers.analysis.rank_naming import SUSPECTED, SUSPECTED_OF, LatenessTest
from drumline.streams.stragglers.analysis.verdict_rows import RankVerdict
from drumline.streams.stragglers.analysis.window_data import step_length
from drumline.streams.stragglers.inspection.sampled_stacks import Inspection


def names(late, more=None):
    """Ranks that each window of a job names."""
    return [named(verdict) for verdict in verdicts(windows(late, more))]


def test_a_chance_is_that_of_students_t():
    assert beyond(4.015, 16) == pytest.approx(0.001, rel=0.01)
    assert beyond(2.571, 5) == pytest.approx(0.05, rel=0.01)
    assert beyond(1.96, 10**6) == pytest.approx(0.05, abs=0.0001)


def test_values_of_a_period_do_not_move_a_spread():
    periods = ([0.0, 9.0] * 10, [9.0, 0.0, 0.0] * 6, [9.0, 0.0, 0.0, 0.0] * 5)
    assert [spread(np.array(steps)) for steps in periods] == [0.0] * 3


def test_what_comes_in_a_row_of_steps_is_a_spread_and_one_odd_step_is_none():
    steady = np.ones(20)
    assert spread(np.where(np.arange(20) == 7, 9.0, steady)) == 0.0
    assert spread(np.where(np.arange(20) < 8, 9.0, steady)) > 4.0  # a deviation's median would be 0
    assert spread(np.random.default_rng(0).standard_normal(4000)) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("count", [8, 16, 64])
def test_a_size_is_by_chance_as_often_as_its_chance_states(count):
    dice = np.random.default_rng(0)
    sizes = dice.laplace(size=(4000, count + 1))
    chances = np.array([chance_of_sizes(row[:1], row[1:], 1.0, 1e-3)[0] for row in sizes])
    for chance in (0.2, 0.05, 0.01):
        assert (chances <= chance).mean() == pytest.approx(chance, rel=0.25)


def test_a_few_odd_sizes_hide_none_that_is_as_large():
    value, sizes = np.array([20.0]), np.random.default_rng(0).laplace(size=16)
    plain = chance_of_sizes(value, sizes, 1.0, 1e-3)[0]
    odd = chance_of_sizes(value, np.append(sizes[:14], [500.0] * 2), 1.0, 1e-3)[0]
    assert plain < odd < 1e-3 < 0.05 < chance_of_sizes(value, np.full(16, 30.0), 1.0, 1e-3)[0]


def test_what_never_varied_is_unlikely_by_as_much_as_is_assumed():
    none = np.zeros(8)
    likely, unlikely = (chance_of_sizes(np.array([0.0, 5.0]), none, assumed, 1e-3) for assumed in (10.0, 0.1))
    assert likely[0] == unlikely[0] == 1.0
    assert likely[1] > 0.05 > 1e-3 > unlikely[1]


def test_the_mean_ratio_of_what_comes_by_chance_is_one_and_alike_neighbours_count_once():
    chance = np.random.default_rng(0).random(400_000)
    assert likelihood_ratios(chance, 1).mean(axis=1) == pytest.approx([1.0] * RATIOS, rel=0.1)
    assert likelihood_ratios(chance, 2) ** 2 == pytest.approx(likelihood_ratios(chance, 1))


def test_a_named_rank_is_compared_with_the_windows_before_its_odds_began_to_rise():
    none = {"busy": 1.0, "work": {}, "latest": 0, "odds": [], "longest": {}, "inspected": {}}
    entries = [
        none | {"late": late, "step": 10.0, "since": since} for late, since in enumerate([-1, -1, -1, -1, 2, -1, -1])
    ]
    history = load_lateness(dict(enumerate(entries)), StragglerConfig())
    assert history.values[:, 0].tolist() == [0.0, 1.0, 6.0]
    assert history.before(6)[:, 0].tolist() == [0.0, 1.0]


def late_rank_test(steps_before, odds, link=0.0):
    """Return a window in which rank 1 is late by 0.3 of a step, and its test after windows of these step lengths.

    `link`: what a slow link takes, in steps.
    """
    late = np.zeros((20, 2))
    late[:, 1] = 0.3 * STEP_NS
    [data] = windows(late)
    data = replace(data, lockstep_groups=lockstep_groups(data))
    values = np.array([[0.25 * STEP_NS, step * STEP_NS, STEP_NS] for step in steps_before])
    history = LatenessHistory(np.arange(-len(values), 0), values, (), odds, is_empty=False)
    test = LatenessTest(data, attribute_lost_time(data, 0.8), history, StragglerConfig(), link_ns=link * STEP_NS)
    return data, test


@pytest.mark.parametrize(("detail", "odds", "is_named"), [
    ("disk", 30.0, True), ("disk", 5.0, False), ("", 30.0, False), ("data_loader", 0.0, True), ("", 1500.0, True),
    ("synchronisation", 0.0, False), ("synchronisation", 6.0, True),
])  # fmt: skip
def test_what_samples_show_needs_less_evidence_and_what_was_measured_none(detail, odds, is_named):
    before = {1: Odds((odds,) * RATIOS, 0)} if odds else {}
    _, test = late_rank_test((1.0, 1.1, 1.3, 1.2), before)
    row = test.tested(RankVerdict(1, CRITICAL, Cause("host_stall", detail), round(6 * STEP_NS), 0.23))
    assert row.names_rank == is_named
    assert row.evidence.get("explained_by") == (None if is_named else "chance")


def test_short_steps_do_not_end_a_fault_whose_rank_is_as_late_as_before():
    """Steps are hardly longer than before: the rank costs 0.03 of one, a tenth of what it did."""
    for cost, odds in ((0.3, (100, 900)), (30.0, (0, 3))):
        _, test = late_rank_test((1.0, 1.565) * 4, {1: Odds((300.0,) * RATIOS, 0, cost=cost * STEP_NS)})
        assert 0.02 * STEP_NS < test.cost[1] < 0.03 * STEP_NS
        row = test.tested(RankVerdict(1, CRITICAL, Cause("host_stall"), round(6 * STEP_NS), 0.23))
        assert odds[0] <= row.evidence["odds"] < odds[1]


def test_a_named_rank_has_lost_no_more_than_steps_grew():
    """It is late by more than that: without it another rank is late."""
    data, test = late_rank_test((1.2,) * 4, {1: Odds((3e3,) * RATIOS, 0)})
    row = test.tested(RankVerdict(1, CRITICAL, Cause("host_stall"), round(6 * STEP_NS), 0.3 / 1.3))
    grew = 20 * (float(step_length(data).mean()) - 1.2 * STEP_NS)
    assert row.lost_ns == pytest.approx(grew, rel=1e-6)
    assert grew < 2.5 * STEP_NS
    assert row.share == pytest.approx(0.3 / 1.3 * grew / (6 * STEP_NS), rel=1e-6)
    assert row.severity == WARNING


def test_steps_that_a_slow_link_makes_longer_name_no_rank():
    for link, left in ((0.0, 0.3), (0.2, 0.1), (0.3, 0.0)):
        _, test = late_rank_test((1.0,) * 4, {}, link)
        assert test.cost[1] == pytest.approx(left * STEP_NS, abs=0.02 * STEP_NS)


@pytest.mark.parametrize(("ranks", "before", "longer"), [
    ((), (), 1.0 / 0.9), ((0, 1), (1.0, 0.9), 1.0), ((0, 1), (0.8, 0.9), 1.0 / 0.9), ((0, 7), (0.95, 0.1), 1.0 / 0.95)
])  # fmt: skip
def test_only_what_all_ranks_work_longer_than_before_is_the_jobs_work(ranks, before, longer):
    """Before, rank 1 was the least busy and waited for rank 0, which works as long as ever. Rank 7 is gone."""
    late = np.zeros((20, 2))
    late[:, 1] = 0.3 * STEP_NS
    [data] = windows(late)
    data = replace(data, lockstep_groups=lockstep_groups(data))
    values = np.array([[0.1 * STEP_NS, STEP_NS, 0.9 * STEP_NS, *(STEP_NS * value for value in before)]] * 4)
    history = LatenessHistory(np.arange(-4, 0), values, ranks, is_empty=False)
    test = LatenessTest(data, attribute_lost_time(data, 0.8), history, StragglerConfig())
    assert test.cost[1] == pytest.approx(min(0.3, 1.3 - longer) * STEP_NS, abs=0.02 * STEP_NS)


def test_work_is_kept_of_some_ranks_and_unknown_of_others():
    [data] = windows(np.zeros((20, 40)))
    data = replace(data, lockstep_groups=lockstep_groups(data))
    test = LatenessTest(data, attribute_lost_time(data, 0.8), LatenessHistory(), StragglerConfig())
    kept = test.kept([])
    assert list(kept["work"])[::15] == ["0", "39"]
    assert len(kept["work"]) == 16
    history = load_lateness({0: kept | {"work": {"39": 5}}, 1: kept}, StragglerConfig())
    assert np.isnan(history.values[0, WORK + 1 :]).tolist() == [True] * 15 + [False]
    assert not np.isnan(history.values[1]).any()


def test_a_name_stays_where_one_window_costs_little():
    """Its odds name it; that steps grew by less than a warning in this window ends no fault that lasts."""
    _, test = late_rank_test((1.28,) * 4, {1: Odds((3e3,) * RATIOS, 0)})
    row = test.tested(RankVerdict(1, CRITICAL, Cause("host_stall"), round(6 * STEP_NS), 0.3 / 1.3))
    assert row.share < StragglerConfig().warning
    assert (row.names_rank, row.severity) == (True, WARNING)


def suspect_row(odds, inspections, history=None):
    late = np.zeros((20, 2))
    late[:, 1] = 0.3 * STEP_NS
    [data] = windows(late)
    data = replace(data, lockstep_groups=lockstep_groups(data), number=4)
    values = np.array([[0.25 * STEP_NS, step * STEP_NS, STEP_NS] for step in (1.0, 1.1, 1.3, 1.2)])
    history = history or LatenessHistory(np.arange(4), values, (), {1: Odds((odds,) * RATIOS, 2)}, is_empty=False)
    by_window = {of.first_step // 20: of for of in inspections}
    test = LatenessTest(data, attribute_lost_time(data, 0.8), history, StragglerConfig(), by_window)
    row = RankVerdict(1, CRITICAL, Cause("host_stall"), round(6 * STEP_NS), 0.23, evidence={"peers": [0]})
    tested = test.tested(row)
    return tested, replace(history, **{name: getattr(load_lateness({4: test.kept([tested])}, StragglerConfig()), name)
                                       for name in ("odds", "inspected")})  # fmt: skip


def inspected(chance, share=0.25, at="load (data.py:4)", first_step=60):
    return Inspection(1, 0, first_step, at, share, 0.0, chance)


def test_a_suspect_is_not_named_and_its_evidence_asks_for_an_inspection():
    row, _ = suspect_row(5.0, [])
    assert not row.names_rank
    assert (row.evidence[SUSPECTED_OF], row.evidence["peers"]) == ("host_stall", [0])
    assert SUSPECTED <= row.evidence["odds"] < 1000


def test_what_only_the_suspects_python_did_names_it_at_once_with_the_line():
    row, history = suspect_row(5.0, [inspected(1e-9)])
    assert row.names_rank
    assert row.evidence["inspection"] == {"at": "load (data.py:4)", "share": 0.25, "peer_share": 0.0, "peer": 0}
    again, _ = suspect_row(0.0, [inspected(1e-9)], history)
    assert again.names_rank
    assert "inspection" in again.evidence


def test_an_inspection_counts_once():
    _, history = suspect_row(5.0, [inspected(1e-5)])
    once = history.odds[1].mean
    _, history = suspect_row(0.0, [inspected(1e-5)], history)
    assert history.odds[1].mean < 10 * once


@pytest.mark.parametrize("seen", [inspected(1.0, 0.0, ""), inspected(0.4, 0.03), inspected(1e-9, 0.04)])
def test_what_is_the_same_on_both_or_explains_too_little_names_no_rank(seen):
    row, _ = suspect_row(20.0, [seen])
    assert not row.names_rank
    assert row.evidence["odds"] <= suspect_row(20.0, [])[0].evidence["odds"]


def test_an_inspection_that_a_later_window_asked_for_waits_for_it():
    row, history = suspect_row(5.0, [inspected(1e-9, first_step=100)])
    assert not row.names_rank
    assert history.inspected == {}


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_ranks_are_not_named_and_what_turns_cost_is_the_jobs(kind):
    result = verdicts(windows(lateness(kind, 4, 400, 0.15, seed=1)))
    assert [named(verdict) for verdict in result] == [set()] * 20
    rows = [verdict.rows[0] for verdict in result if verdict.rows[0].cause.cause == "jitter"]
    assert {row.severity for row in rows} <= {SUSPECT}
    assert all(row.share >= 0.02 and row.evidence["turns"] for row in rows)
    if kind in ("independent steps", "turns of 3 steps"):
        assert len(rows) > 10


@pytest.mark.parametrize("kind", ["idle", "compute", "every 4th step"])
@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("first", [0, 100])
def test_a_late_rank_of_a_job_without_jitter_is_named_in_its_first_window(first, ranks, kind):
    idle, more = np.zeros((200, ranks)), np.zeros((200, ranks))
    (more if kind == "compute" else idle)[:, 1] = fault(kind, 200, first, 0.05)
    result = names(idle, more)
    assert result == [set()] * (first // 20) + [{1}] * (10 - first // 20)


def test_a_late_rank_among_turns_is_named_within_two_windows_and_no_other_rank():
    late = lateness("turns of 3 steps", 4, 400, 0.1, seed=2)
    late[200:, 1] += STEP_NS
    result = names(late)
    assert result[:10] == [set()] * 10
    assert {1} in result[10:12]
    assert result[12:] == [{1}] * 8


@pytest.mark.parametrize("kind", ["independent steps", "turns of 3 steps", "drift of 3 steps"])
def test_a_late_rank_of_a_young_job_is_named_though_its_first_windows_are_not(kind):
    late = lateness(kind, 8, 300, 0.15, seed=3)
    late[115:, 1] += 0.8 * STEP_NS
    result = names(late)
    assert result[:5] == [set()] * 5
    assert result[10:] == [{1}] * 5


@pytest.mark.parametrize("kind", ["independent steps", "turns of 3 steps", "drift of 3 steps"])
def test_what_is_many_times_later_than_any_earlier_window_names_a_rank_in_its_second(kind):
    late = lateness(kind, 8, 300, 0.1, seed=3)
    late[100:, 1] += 10 * STEP_NS
    result = names(late)
    assert result[:5] == [set()] * 5
    assert result[6:] == [{1}] * 9


def test_a_rank_that_is_late_by_turns_is_not_named_while_another_one_makes_steps_longer():
    late = lateness("drift of 3 steps", 8, 1200, 0.15, seed=3)
    late[600:, 1] += 0.8 * STEP_NS
    result = names(late)
    assert result[:30] == [set()] * 30
    assert result[34:] == [{1}] * 26


@pytest.mark.parametrize("kind", ["no jitter", "independent steps"])
def test_a_stall_hides_no_fault_after_it(kind):
    late = lateness(kind, 4, 1200, 0.05, seed=7)
    late[400:408, 1] += 5 * STEP_NS
    late[420:, 1] += 0.3 * STEP_NS
    result = names(late)
    assert result[:20] == [set()] * 20
    assert result[24:] == [{1}] * 36


def test_a_rank_that_was_compared_in_a_few_steps_hides_no_other_one():
    late = lateness("independent steps", 8, 1200, 0.05, seed=8)
    late[400:, 1] += 0.3 * STEP_NS
    late[400:, 5] += 2 * STEP_NS
    job = list(windows(late))
    for data in job[20:]:
        for values in (*data.budget.values(), data.communicators[0].wait_ns):
            values[5, 3:] = np.nan
        data.budget["comm_exposed_ns"][[0, 1, 2, 3, 4, 6, 7], 3:] = 0.01 * STEP_NS + STEP_NS * 0.3
        data.budget["comm_exposed_ns"][1, 3:] = 0.01 * STEP_NS
    assert all(1 in named(verdict) for verdict in verdicts(iter(job))[24:])


def test_many_ranks_that_are_late_at_once_are_all_named():
    late = lateness("independent steps", 256, 600, 0.1, seed=9)
    late[300:, :100] += 0.6 * STEP_NS
    assert len(named(verdicts(windows(late))[-1])) == 100


def test_longer_steps_of_all_ranks_name_none_that_is_late_by_turns():
    late = lateness("drift of 3 steps", 4, 1200, 0.15, seed=3)
    more = np.zeros((1200, 4))
    more[600:] = 0.5 * STEP_NS
    assert names(late, more) == [set()] * 60


def test_a_rank_is_no_longer_named_once_it_costs_a_tenth_of_what_it_did():
    late = lateness("independent steps", 4, 1000, 0.05, seed=6)
    late[400:800, 1] += 8 * STEP_NS
    late[800:840, 1] += 0.5 * STEP_NS
    result = names(late)
    assert result[22:40] == [{1}] * 18
    assert result[40:] == [set()] * 10


@pytest.mark.parametrize("common", [0.05, 0.2, 0.4])
@pytest.mark.parametrize("ranks", [2, 8])
def test_steps_that_vary_on_all_ranks_together_hide_no_rank_that_is_late_from_the_first_one_on(ranks, common):
    dice = np.random.default_rng(4)
    together = np.maximum(common * dice.standard_normal((240, 1)), -0.9) * STEP_NS
    late = np.zeros((240, ranks))
    late[:, 1] = 0.15 * STEP_NS
    assert names(late, np.repeat(together, ranks, 1)) == [{1}] * 12
    more = together + 0.05 * STEP_NS * dice.standard_normal((240, ranks))  # and each rank's own
    result = names(late, more)
    assert result[:3] == [set()] * 3
    assert result[-5:] == [{1}] * 5


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("common", [0.05, 0.2])
def test_steps_that_vary_on_all_ranks_together_name_none(ranks, common):
    dice = np.random.default_rng(5)
    more = (common * dice.standard_normal((240, 1)) + 0.05 * dice.standard_normal((240, ranks))) * STEP_NS
    assert names(np.zeros((240, ranks)), more) == [set()] * 12


def test_a_run_of_late_steps_in_a_jobs_first_window_names_no_rank():
    late = np.zeros((40, 4))
    late[5:13, 2] = 0.16 * STEP_NS
    assert names(late) == [set()] * 2


def test_a_run_of_late_steps_names_no_rank_at_once_however_late():
    late = lateness("independent steps", 4, 600, 0.05, seed=6)
    late[405:413, 1] += 2 * STEP_NS
    late[500:, 1] += 2 * STEP_NS
    result = names(late)
    assert result == [set()] * 25 + [{1}] * 5


def test_one_late_step_names_no_rank():
    late = np.zeros((200, 4))
    late[170, 2] = 2 * STEP_NS
    result = verdicts(windows(late))
    assert [named(verdict) for verdict in result] == [set()] * 10
    [row] = [row for row in result[8].rows if row.rank == 2]
    assert (row.evidence["explained_by"], row.share > 0.05) == ("one_step", True)


def test_a_stall_does_not_make_hidden_waits_forgotten():
    config, overlapped, stalled = StragglerConfig(), {"c": [80.0, 100.0, 1.0]}, {"c": [90.0, 7_000.0, 1.0]}
    assert kept_hidden(overlapped, stalled, config.critical, config) == overlapped
    assert kept_hidden(overlapped, stalled, config.warning, config) == stalled
    assert kept_hidden({}, stalled, config.critical, config) == stalled
