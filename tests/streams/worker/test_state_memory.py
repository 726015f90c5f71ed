"""The memory of a worker under as many names, jobs and communicators as anyone sends."""

import json
import subprocess

import pytest
from support.labs import state_memory
from support.labs.stream_worker import PYTHON, TESTS

#: The target of a worker, less 150 MB for records in flight and clients, which this process does not have.
TARGET_MB = 450


def measured(tmp_path, kind, count):
    """Measure in a process of its own: memory that Python has freed stays with the process."""
    command = [PYTHON, state_memory.__file__, kind, str(count), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS.parent, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    print(result)
    return result


@pytest.mark.long
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize(("kind", "count"), [("names", 250), ("units", 334_000)])
def test_a_million_names_or_units_stay_below_the_target(tmp_path, kind, count):
    """As many distinct kernel names; and as many processes, jobs and communicators together."""
    result = measured(tmp_path, kind, count)
    assert result["rss_mb"] < TARGET_MB
    assert result["rss_mb"] - result["before_mb"] < 1.1 * result["counted_mb"], "the budget counts what state costs"
