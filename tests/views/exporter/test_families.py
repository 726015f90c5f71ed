"""Series: bounded whatever the fleet, the worst first, and sums with the rest are right."""

import pytest
from support.verdict_worlds import NOW, SECOND, hang, healthy_job, late_job, lost, process, wide_window

from drumline.infra.telemetry import verdict_metrics as of
from drumline.infra.telemetry.verdict_metrics import VERDICT_METRICS
from drumline.views.exporter.families import LONGEST, RUN_SERIES, SeriesLimits, families
from drumline.views.exporter.live_runs import LOST_NS, MOST_PROCESSES, LiveRuns

LIMITS = SeriesLimits(worst=32, series=4_500)


def fleet_of(*batches):
    fleet = LiveRuns()
    for batch in batches:
        fleet.take(batch)
    return fleet


def by(shown, metric, *names):
    """Series of a metric: values of some labels -> value."""
    places = [metric.labels.index(name) for name in names]
    return {tuple(labels[at] for at in places): value for labels, value in shown.of(metric).items()}


def test_state_and_numbers_of_a_job_and_its_late_rank():
    shown = families(fleet_of(late_job(job="j", run="r")), LIMITS, NOW)
    assert by(shown, of.JOB_STATE, "job", "run", "state", "cause") == {("j", "r", "critical", "host_stall"): 1}
    assert by(shown, of.JOB_SEVERITY, "job") == {("j",): 3}
    ranks = by(shown, of.RANK_STATE, "rank", "state")
    assert ranks[("3", "critical")] == 1
    assert len(ranks) == 8
    assert by(shown, of.JOB_RANKS, "state")[("critical",)] == 1
    assert by(shown, of.JOB_RANKS, "state")[("ok",)] == 7
    assert by(shown, of.JOB_WINDOW_END, "job") == {("j",): NOW / SECOND}
    [lateness] = [value for (rank,), value in by(shown, of.RANK_LATENESS, "rank").items() if rank == "3"]
    assert lateness == pytest.approx(0.025, rel=0.1)
    assert by(shown, of.JOBS, "state") == {("critical",): 1}
    [lost_to_rank] = [value for (rank,), value in by(shown, of.RANK_GPU_LOST, "rank").items() if rank == "3"]
    assert by(shown, of.JOB_GPU_LOST, "job") == {("j",): pytest.approx(lost_to_rank)}
    assert lost_to_rank > 0


def test_what_the_worst_ranks_and_the_rest_lost_is_what_all_lost():
    late = tuple(range(100))
    window = wide_window(1_024, late=late)
    shown = families(fleet_of(window), LIMITS, NOW)
    ranks = by(shown, of.RANK_GPU_LOST, "rank")
    assert set(ranks) == {(str(rank),) for rank in range(68, 100)}, "the 32 that lost most"
    [rest] = by(shown, of.REST_GPU_LOST, "job").values()
    assert sum(ranks.values()) + rest == pytest.approx(window.columns["gpu_seconds_lost"].sum())
    [rest] = by(shown, of.REST_LATENESS, "job").values()
    total = sum(by(shown, of.RANK_LATENESS, "rank").values()) + rest
    assert total == pytest.approx(window.columns["lateness_ns"][1:].sum() / 20 / SECOND)
    assert by(shown, of.REST_RANKS, "job") == {("wide",): 1_024 - 32}
    assert shown.left_out["rank"] == 1_024 - 32


@pytest.mark.parametrize(
    ("jobs", "ranks"), [(1, 16_384), (16, 1_024), (256, 64), (2_048, 8)], ids=["one", "16", "256", "2048"]
)
def test_a_fleet_of_16384_ranks_has_at_most_5000_series_and_the_late_ranks_have_some(jobs, ranks):
    windows = [wide_window(ranks, job=f"job-{n:04}", late=(5,) if n == jobs - 1 else ()) for n in range(jobs)]
    shown = families(fleet_of(*windows), LIMITS, NOW)
    assert 3_000 < shown.size <= LIMITS.series
    assert sum(len(series) for series in shown.values.values()) == shown.size
    assert (f"job-{jobs - 1:04}", "5", "critical") in by(shown, of.RANK_STATE, "job", "rank", "state")
    jobs_shown = by(shown, of.JOB_STATE, "job")
    assert len(jobs_shown) + shown.left_out["job"] == jobs
    assert sum(by(shown, of.JOBS, "state").values()) == jobs, "those without series are counted"


def test_the_limit_of_series_holds_also_where_all_of_a_fleet_hangs():
    batches = [wide_window(512, job=f"job-{n}", run="r", late=range(100)) for n in range(100)]
    batches += [hang("hung", tuple(range(64)), job=f"job-{n}") for n in range(100)]
    for limit in (100, 500, 4_500):
        shown = families(fleet_of(*batches), SeriesLimits(worst=4_096, series=limit), NOW)
        assert shown.size <= limit
        for (job, run), _ in ((key, None) for key in by(shown, of.JOB_STATE, "job", "run")):
            of_run = sum(labels[:2] == (job, run) for m in VERDICT_METRICS if m.labels[:2] == of.JOB
                       and "rank" not in m.labels for labels in shown.of(m))  # fmt: skip
            assert of_run <= RUN_SERIES


def test_a_rank_that_a_hung_job_waits_for_is_shown_before_all_others_with_its_last_measurements():
    window = wide_window(64, job="j", run="r", late=range(40))
    shown = families(fleet_of(window, hang("hung", (50,))), SeriesLimits(worst=2, series=4_500), NOW)
    assert set(by(shown, of.RANK_STATE, "rank", "state", "cause")) == {
        ("50", "hung", "not_called"), ("39", "critical", "host_stall"),
    }  # fmt: skip
    assert by(shown, of.RANK_SEVERITY, "rank")[("50",)] == 3
    assert by(shown, of.RANK_LATENESS, "rank")[("50",)] > 0
    assert by(shown, of.JOB_STATE, "state") == {("hung",): 1}
    assert by(shown, of.JOB_STANDSTILL, "job") == {("j",): 150}
    assert by(shown, of.JOB_AWAITED, "job") == {("j",): 1}
    assert by(shown, of.REST_RANKS, "job") == {("j",): 62}


def test_a_job_that_hangs_before_its_first_window_is_shown():
    shown = families(fleet_of(hang("hung", (1, 2))), LIMITS, NOW)
    assert by(shown, of.JOB_STATE, "state", "cause") == {("hung", "not_called"): 1}
    assert set(by(shown, of.RANK_STATE, "rank", "host")) == {("1", "h1"), ("2", "h2")}
    assert by(shown, of.JOB_WORLD, "job") == {("j",): 8}


def test_ranks_have_the_pod_of_their_newest_process_and_the_gpu_joins_with_dcgms_label():
    window = wide_window(8, job="j", run="r", late=(3,))
    old, new = process(3, "pod-old", start_ns=5), process(3, "pod-new", start_ns=9)
    shown = families(fleet_of(window, new, old), LIMITS, NOW)
    gpu = "GPU-00000003-0000-4000-8000-000000000003"
    info = by(shown, of.GPU_INFO, "UUID", "job", "run", "rank", "host", "namespace", "pod")
    assert info[(gpu, "j", "r", "3", "node-0000", "ml", "pod-new")] == 1
    assert len(info) == 8
    assert by(shown, of.RANK_STATE, "rank", "gpu_uuid", "pod")[("3", gpu, "pod-new")] == 1


def test_names_that_are_too_long_are_cut_and_never_make_two_equal_series():
    windows = [wide_window(4, job=f"{'x' * 500}{n}") for n in range(2)]
    shown = families(fleet_of(*windows), LIMITS, NOW)
    [(job,)] = by(shown, of.JOB_SEVERITY, "job")
    assert len(job) == LONGEST
    assert job.endswith("...")


def test_a_gpu_that_does_not_answer_is_shown_until_no_sample_states_it():
    fleet = LiveRuns()
    assert fleet.take_samples(lost("h1", "GPU-1", 1, job="j", run="r"))
    assert not fleet.take_samples(lost("h2", "GPU-2", 0))
    assert not fleet.take_samples(lost("h3", "GPU-3", -1))
    shown = families(fleet, LIMITS, NOW)
    assert by(shown, of.GPU_LOST, "UUID", "host", "job") == {("GPU-1", "h1", "j"): 1}
    fleet.expire(NOW + LOST_NS, 1)
    assert fleet.lost
    fleet.expire(NOW + LOST_NS + 1, 1)
    assert not fleet.lost


def test_an_ended_job_leaves_and_its_pods_are_forgotten_before_those_of_newer_runs(monkeypatch):
    monkeypatch.setattr("drumline.views.exporter.live_runs.MOST_PROCESSES", 10)
    assert MOST_PROCESSES > 10
    fleet = fleet_of(late_job(job="j", run="r"), *(process(rank, "p", run=run) for run in "abc" for rank in range(4)))
    assert [fleet.place(("j", run), 0).pod for run in "abc"] == ["", "p", "p"]
    fleet.expire(NOW + 601 * SECOND, 600 * SECOND)
    assert families(fleet, LIMITS, NOW).size == 0


def test_of_two_jobs_the_worse_one_has_series_where_the_limit_is_low():
    shown = families(fleet_of(healthy_job(job="a"), late_job(job="b")), SeriesLimits(worst=4, series=30), NOW)
    assert set(by(shown, of.JOB_STATE, "job")) == {("b",)}
    assert shown.left_out["job"] == 1
