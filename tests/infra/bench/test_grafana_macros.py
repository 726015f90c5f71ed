"""What reaches ClickHouse: macros, variables, and theoretical occupancy as SQL."""

import pytest

from drumline.infra.bench.grafana_macros import ALL_VALUES, PanelRequest, UnknownMacro, expand, expand_alert
from drumline.infra.grafana.occupancy import MODELS, blocks_per_sm, occupancy, sm_sql, with_occupancy
from drumline.infra.localstack.clickhouse.engine import query

AT = PanelRequest(
    1_000_500, 1_060_500, 5_000, {"job": "it's", "rank": ["1", "2"], "host": ALL_VALUES}, {"host": ["a", "b"]}
)


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("$__timeFilter(t)", "t >= toDateTime(1000) AND t <= toDateTime(1060)"),
        (
            "$__timeFilter_ms(start)",
            "start >= fromUnixTimestamp64Milli(1000500) AND start <= fromUnixTimestamp64Milli(1060500)",
        ),
        ("$__timeInterval(t)", "toStartOfInterval(toDateTime(t), INTERVAL 5 second)"),
        ("$__timeInterval_ms(t)", "toStartOfInterval(toDateTime64(t, 3), INTERVAL 5000 millisecond)"),
        ("x / $__interval_s", "x / 5"),
        ("t < $__toTime", "t < toDateTime(1060)"),
        ("job = ${job:singlequote}", r"job = 'it\'s'"),
        ("rank IN (${rank:singlequote})", "rank IN ('1','2')"),
        ("$__conditionalAll(rank IN (${rank:singlequote}), $rank)", "rank IN ('1','2')"),
        ("$__conditionalAll(host IN (${host:singlequote}), $host)", "1=1"),
        ("host IN (${host:singlequote})", "host IN ('a','b')"),
    ],
)
def test_macros_and_variables_become_sql(written, becomes):
    assert expand(written, AT) == becomes


@pytest.mark.parametrize("text", ["$rank", "${other:singlequote}", "$__timeGroup(t, 5m)"])
def test_what_nobody_replaces_is_an_error(text):
    with pytest.raises(UnknownMacro):
        expand(text, AT)


def test_alert_rules_have_no_variables():
    with pytest.raises(UnknownMacro):
        expand_alert("job = ${job:singlequote}", AT)


@pytest.mark.parametrize(
    ("model", "threads", "registers", "shared", "expected"),
    [
        ("H200", 256, 32, 0, 1.0),  # all limits at 64 warps
        ("H200", 128, 255, 0, 0.125),  # 8,192 registers a warp: two warps in each partition
        ("H200", 384, 168, 213_188, 0.1875),  # one block of 12 warps, by shared memory and registers
        ("A100", 1_024, 64, 0, 0.5),  # 32 warps of 2,048 registers
        ("A100", 32, 16, 0, 0.5),  # 32 blocks of one warp
        ("L40", 1_024, 32, 0, 2 / 3),  # one block of 32 of 48 warps
        ("T4", 256, 32, 32_768, 0.5),  # 64 KiB hold two blocks
    ],
)
def test_occupancy_by_the_limit_that_is_hit_first(model, threads, registers, shared, expected):
    assert occupancy(MODELS[model], threads, registers, shared) == pytest.approx(expected)


@pytest.mark.stack
def test_occupancy_in_sql_is_the_same(stack):
    launches = [(t, r, s) for t in (32, 96, 256, 1_024) for r in (0, 24, 64, 168, 255) for s in (0, 1, 30_000, 98_000)]
    for model, sm in MODELS.items():
        rows = f"SELECT arrayJoin({launches}) AS launch, launch.1 AS t, launch.2 AS r, launch.3 AS s"
        made = with_occupancy(rows, sm_sql(f"'NVIDIA {model} 80GB'"), "t", "r", "s")
        answer = query(stack, f"SELECT t, r, s, resident, occupancy, sms FROM ({made}) FORMAT TSV", "analyst")
        said = [[float(cell) for cell in line.split("\t")[3:]] for line in answer.splitlines()]
        assert said == [
            [min(blocks_per_sm(sm, *launch).values()), pytest.approx(occupancy(sm, *launch)), sm.count]
            for launch in launches
        ], model
    unknown = sm_sql("'GTX 1080'")
    assert query(stack, f"SELECT {unknown}", "analyst") == "(0,0,0,0,0)"
