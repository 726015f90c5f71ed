"""Run failed tests with a real stack once more, when nothing else runs: CI does after `make test`'s run of all.

    again.py EXIT_CODE

EXIT_CODE: that of the run of all tests, which began with --cache-clear. The closing lines name each test that failed.
Exits with 0 if all that failed need the stack and pass now. A test that needs no stack is not run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
#: Failures in more files are no accident: nothing is run again. A stack that breaks fails many tests of one file.
MOST = 5
TESTS_FAILED, NOTHING_SELECTED = 1, 5


def failed() -> list[str]:
    """Return the tests that failed when they last ran, and files that cannot be collected."""
    return sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []


def main(code: int) -> int:
    """Return the exit code of CI's tests."""
    first = failed()
    if code != TESTS_FAILED or not 0 < len({name.partition("::")[0] for name in first}) <= MOST:
        return code
    print(f"\n{len(first)} failed; those with a real stack run once more", flush=True)
    command = [sys.executable, "-m", "pytest", "--last-failed", "-m", "stack and not long"]
    ended = subprocess.run(command, check=False).returncode
    second = set(failed())  # pytest forgets those that pass, and keeps those that it did not run
    for name in first:
        print(f"{'FAILED' if name in second else 'FAILED ONCE, passed when run again'}: {name}")
    return TESTS_FAILED if second or ended not in (0, NOTHING_SELECTED) else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
