"""Bounds of the agent's settings."""

import pytest
from pydantic import ValidationError

from drumline.infra.config.agent_settings import AgentSettings


def test_connections_are_sampled_twice_a_second_at_most_or_never():
    assert [AgentSettings(connections_s=seconds).connections_s for seconds in (0, 0.5)] == [0, 0.5]
    with pytest.raises(ValidationError, match=r"at least 0\.5 s"):
        AgentSettings(connections_s=0.4)
