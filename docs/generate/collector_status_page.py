"""Write docs/reference/collector-status.md from the decoder's list of status keys."""

from __future__ import annotations

from page import NOTE, REFERENCE, table, write

from drumline.producers.decoder.status_keys import PROBLEMS, STATUS_KEYS

PAGE = REFERENCE / "collector-status.md"
HEAD = f"""{NOTE.format(name="collector_status_page")}# Collector status

What does `collector` of `gpu.process.v1` contain? It is a map from text to text, renewed every 10 s while a process is
recorded. In ClickHouse it is the column `collector` of `processes`: `toUInt64OrNull(collector['kernels'])`. Counts and
times start at zero with the decoder of the process. `drumline sql collecting --job JOB` shows the most useful ones.

"""
PROBLEM_HEAD = """
## Problems

The value of `collector['problem: NAME']` is a sentence. [Record a job](../guide/record-a-job.md) has the actions.

"""


def page() -> str:
    """Return the page's text."""
    keys = table(("key", "meaning"), ((f"`{name}`", meaning) for name, meaning in STATUS_KEYS.items()))
    problems = table(("name", "meaning"), ((f"`{name}`", meaning) for name, meaning in PROBLEMS.items()))
    return HEAD + keys + PROBLEM_HEAD + problems


if __name__ == "__main__":
    write(PAGE, page())
