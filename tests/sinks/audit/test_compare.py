"""Replicas are compared part by part: what one lacks, and rows of other content."""

from drumline.sinks.audit.compare import ReplicaDifference, differences

A = {("kernels", "job", "r1"): (10, 77), ("kernels", "job", "r2"): (5, 5)}


def test_equal_replicas_have_no_differences():
    assert differences({"primary": A, "b": dict(A)}) == []


def test_what_a_replica_lacks_and_what_has_other_content_is_named():
    other = {("kernels", "job", "r1"): (10, 78)}
    differing = differences({"primary": A, "b": other})
    assert [difference.text() for difference in differing] == [
        "kernels job r1: primary 10, b 10 rows of other content",
        "kernels job r2: primary 5, b 0 rows",
    ]
    assert differing[1] == ReplicaDifference("kernels", "job", "r2", {"primary": (5, 5), "b": (0, 0)})
    assert differing[1].as_json() == {"table": "kernels", "job": "job", "run": "r2", "rows": {"primary": 5, "b": 0}}
