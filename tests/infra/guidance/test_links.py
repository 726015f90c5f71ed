"""Texts about a slow link."""

import json

import pytest

from drumline.infra.guidance.links import slow_link_text, slow_link_texts

FLOW = {"from": 1, "from_host": "a", "to": 2, "to_host": "b", "gb_s": 1.25, "expected_gb_s": 5.0}
PAIR = {"link_host": "a", "link_to_host": "b", "slow_flows": 1, "flows": [{**FLOW, "expected_by": "history"}]}
WORST = "rank 1 to rank 2 (a to b) 1.25 GB/s, 5.00 expected, as before"


@pytest.mark.parametrize(
    ("more", "extent"),
    [
        ({"direction": "one_way", "nic": "mlx5_0"}, "slow: a mlx5_0 to b"),
        ({"direction": "both"}, "slow: a and b"),
        ({"link_to_host": "", "direction": "sends"}, "slow: a (what it sends)"),
        ({"link_to_host": "", "direction": "both", "nic": "mlx5_1"}, "slow: a mlx5_1"),
        ({"link_host": "", "link_to_host": "", "slow_flows": 7}, "slow: 7 flows"),
    ],
)
def test_hosts_device_and_direction_are_named_and_then_the_worst_flow(more, extent):
    assert slow_link_text(json.dumps({**PAIR, **more})) == f"{extent}: {WORST}"


def test_what_peers_show_is_stated_as_such():
    flows = [{**FLOW, "expected_by": "peers"}]
    assert slow_link_texts(json.dumps({**PAIR, "flows": flows}))[1].endswith("expected, as others")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"flows": 3}', '{"flows": [{}]}', '{"flows": "x"', '{"flows": []}'])
def test_evidence_without_flows_or_of_another_shape_gives_no_text(text):
    assert slow_link_texts(text) == []
    assert slow_link_text(text) == ""
