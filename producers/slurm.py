"""Variables for the tasks of Slurm, as `export` lines: what `drumline run` would set. For infra/slurm/task_prolog.sh.

Slurm runs that prolog for the batch script, and again for each task of its steps, which have inherited its variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from drumline.producers.identity import HOST, MINTED_RUN, SLURM_NODE
from drumline.producers.launcher import HOOK, LaunchOptions, environment
from drumline.producers.spool.location import make_rings

#: Slurm's job id names the run, equally for all tasks.
UNUSED = MINTED_RUN


def exports(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set in a task.

    The node's name is set for each task; the rest only once: a step finds it set, as does a task below `drumline run`.
    Nothing is set where the user has DRUMLINE_ATTACH=0.
    """
    if inherited.get("DRUMLINE_ATTACH") == "0":
        return {}
    node = inherited.get(SLURM_NODE, "")
    wanted = {HOST: node} if node else {}
    if str(HOOK) not in inherited.get("PYTHONPATH", "").split(os.pathsep):
        wanted |= environment(inherited, ["task"], LaunchOptions())
    return {
        name: value
        for name, value in wanted.items()
        if name != UNUSED and inherited.get(name) != value and "\n" not in value
    }


def main() -> None:
    """Print the lines for Slurm, and make the folder of the rings, as `drumline run` does."""
    added = exports(os.environ)
    for name, value in added.items():
        print(f"export {name}={value}")
    if added:
        with suppress(OSError):  # the agent, or the job's first process, makes it, or reports why not
            make_rings({**os.environ, **added})


if __name__ == "__main__":
    main()
