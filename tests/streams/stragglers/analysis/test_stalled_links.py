"""Cost of a link that the transfers alone show, as it is slow and stalls."""

from types import SimpleNamespace

import numpy as np
import pytest

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.slow_link import locate
from drumline.streams.stragglers.links.extent import Extent
from drumline.streams.stragglers.links.flows import Flow
from drumline.streams.stragglers.links.slow_flows import SlowFlow, SlowFlows

STEPS, STEP_NS = 20, 1e8


def located(stalled_ns, exposed_ns):
    """Return the slow link of a flow at a quarter of its peers' rate. `exposed_ns`: communication of each step."""
    steps = np.ones((2, STEPS))
    data = SimpleNamespace(
        ranks=np.arange(2),
        communicators=[],
        budget={"gpu_duration_ns": STEP_NS * steps, "comm_exposed_ns": exposed_ns * steps},
    )
    slow = SlowFlow(
        Flow("", 0, 1, (), (), 1e9, 1.0, 0.0, 1e9, 1e9, over_tcp=True, stalled_ns=stalled_ns), 4.0, False, True
    )
    return locate(data, None, SlowFlows((slow,), (slow,), Extent("one_flow")), [], StragglerConfig())


def test_a_short_stall_does_not_hide_that_the_link_is_slow():
    assert located(1e6, 0.4 * STEP_NS).share == pytest.approx(0.3)


def test_a_stall_behind_kernels_costs_nothing():
    assert located(10 * STEP_NS, 0.0) is None


def test_a_long_stall_counts_up_to_the_exposed_communication():
    assert located(0.8 * STEPS * STEP_NS, 0.4 * STEP_NS).share == pytest.approx(0.4)
