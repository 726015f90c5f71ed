"""Three brokers: kills, two at once among them, and rolling restarts lose and double nothing."""

import json
import subprocess
import sys

import pytest

#: Two rounds. More are made by hand (docs/results/chaos.md).
KILLS = 16
TARGETS = "sink,worker,broker,broker-leader,two-brokers,rolling"
pytestmark = [pytest.mark.stack, pytest.mark.cluster, pytest.mark.timeout(600 + 60 * KILLS)]


def test_kills_of_brokers_and_rolling_restarts_lose_and_double_nothing(jars):
    command = [sys.executable, "-m", "drumline.infra.cli.app", "chaos", "--brokers", "3", "--kill", TARGETS]
    process = subprocess.Popen(
        [*command, "--kills", str(KILLS), "--seed", "7", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        result, errors = process.communicate()
    except BaseException:  # the test's time is over: what the run started must not go on
        process.terminate()
        process.wait(90)
        raise
    assert process.returncode == 0, result[-3000:] + errors[-3000:]
    report = json.loads(result)
    assert (report["kills"], report["clean"]) == (KILLS, True)
    assert {"two-brokers", "rolling", "broker-leader"} <= set(report["targets"])
    totals = report["totals"]
    assert (totals["lost"], totals["doubled"], totals["results_missing"], totals["results_extra"]) == (0, 0, 0, 0)
    assert totals["published"] == totals["stored"] > 1_000_000
