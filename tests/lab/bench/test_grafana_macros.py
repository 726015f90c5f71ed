"""Macros and variables as they reach ClickHouse."""

import pytest

from drumline.lab.bench.grafana_macros import ALL_VALUES, PanelRequest, UnknownMacro, expand, expand_alert

AT = PanelRequest(
    1_000_500, 1_060_500, 5_000, {"job": r"it\'s", "rank": ["1", "2"], "host": ALL_VALUES}, {"host": ["a", "b"]}
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
        ("job = ${job:singlequote}", r"job = 'it\\'s'"),
        ("job = '${job:percentencode}'", "job = 'it%5C%27s'"),
        ("rank IN ('${rank:percentencode}')", "rank IN ('%7B1%2C2%7D')"),
        ("job = $job AND rank IN (${rank:csv}, ${rank})", r"job = it\'s AND rank IN (1,2, {1,2})"),
        ("rank IN (${rank:singlequote})", "rank IN ('1','2')"),
        ("$__conditionalAll(rank IN (${rank:singlequote}), $rank)", "rank IN ('1','2')"),
        ("$__conditionalAll(host IN (${host:singlequote}), $host)", "1=1"),
        ("host IN (${host:singlequote})", "host IN ('a','b')"),
    ],
)
def test_macros_and_variables_become_sql(written, becomes):
    assert expand(written, AT) == becomes


@pytest.mark.parametrize(
    "text",
    [
        "$other",
        "${other:singlequote}",
        "${job:html}",
        "$__timeGroup(t, 5m)",
        "$__conditionalAll(a IN ('b'), 'c', $job)",
    ],
)
def test_what_is_not_replaced_is_an_error(text):
    with pytest.raises(UnknownMacro):
        expand(text, AT)


def test_alert_rules_have_no_variables():
    with pytest.raises(UnknownMacro):
        expand_alert("job = ${job:singlequote}", AT)
