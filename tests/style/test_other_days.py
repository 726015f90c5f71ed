"""No test's result depends on the day it runs: tests without a stack run by the clock of other days."""

import os
import subprocess
import sys
from calendar import isleap, monthrange
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.fake_nccl import COMPILER, WARNINGS

ROOT = Path(__file__).parents[2]
TESTS = "not stack and not long and not kube and not cluster and not gpu and not browser"
#: Tests that cannot keep another clock, with the reason.
KEEP_THE_KERNELS_CLOCK = {
    "tests/producers/rings/test_progress.py::test_real_processes_that_hang_in_any_way_are_named":
        "the fake NCCL asks the kernel itself for the time, and waits until a moment of it",
}  # fmt: skip


def in_400_days(now):
    return now + timedelta(days=400)


def three_days_before_a_months_end(now):
    later = now + timedelta(days=60)
    return later.replace(day=monthrange(later.year, later.month)[1] - 3)


def before_midnight_of_a_leap_day(now):
    year = next(year for year in range(now.year + 6, now.year + 14) if isleap(year))  # records are 5 years old at most
    return datetime(year, 2, 28, 23, 59, tzinfo=UTC)


@pytest.fixture(scope="module")
def clock(tmp_path_factory):
    library = tmp_path_factory.mktemp("clock") / "clock_ahead.so"
    source = ROOT / "lab" / "chaos" / "clock_ahead.c"
    subprocess.run([*COMPILER, *WARNINGS, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def run_ahead(clock, folder, moment, zone, *arguments):
    """Run pytest by the clock of another day. Returns what it prints; fails if a test does."""
    now = datetime.now(UTC)
    ahead_s = round((moment(now) - now).total_seconds())
    environment = os.environ | {
        "LD_PRELOAD": str(clock), "CLOCK_AHEAD_S": str(ahead_s), "TZ": zone,
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),  # which has the times of its sources
    }  # fmt: skip
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    probe = [sys.executable, "-c", "import time; print(time.time())"]
    seen = float(subprocess.run(probe, env=environment, capture_output=True, text=True, check=True).stdout)
    assert abs(seen - now.timestamp() - ahead_s) < 60
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(folder / "tests"),
        "--tb", "short", "--disable-warnings", "--durations-min", "1000", *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    output = done.stdout.strip()
    print(output.rpartition("\n")[2])
    assert not done.returncode, output[-20_000:]
    return output


def test_records_are_classified_alike_in_400_days(clock, tmp_path):
    """The cheap one of these tests: of a file that failed so once."""
    assert " passed" in run_ahead(clock, tmp_path, in_400_days, "UTC", "tests/schemas/test_record_table.py")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("moment", "zone"),
    [
        (in_400_days, "America/New_York"),
        (three_days_before_a_months_end, "Europe/Berlin"),
        (before_midnight_of_a_leap_day, "UTC"),
    ],
)
def test_other_days_give_the_same_results(clock, tmp_path, moment, zone):
    deselected = (f"--deselect={test}" for test in (*KEEP_THE_KERNELS_CLOCK, "tests/style/test_other_days.py"))
    run_ahead(clock, tmp_path, moment, zone, "-n", "4", "--dist", "loadfile", "--no-loadscope-reorder", "-m", TESTS,
              *deselected)  # fmt: skip
