"""Variables of the task prolog: those of `drumline run`, once, and the node's name for each task."""

import os
import sys

from drumline.producers.launcher import HOOK
from drumline.producers.slurm import exports

TASK = {"SLURM_JOB_ID": "17", "SLURM_JOB_NAME": "llama", "SLURMD_NODENAME": "n1", "PYTHONPATH": "/theirs", "HOME": "/"}


def test_a_task_is_recorded_as_below_drumline_run_and_keeps_its_own_path():
    added = exports(TASK)
    assert added["PYTHONPATH"] == os.pathsep.join([str(HOOK), "/theirs"])
    assert (added["DRUMLINE_PYTHON"], added["DRUMLINE_PACKAGES"]) == (sys.executable, "/theirs")
    assert (added["DRUMLINE_HOST"], added["DRUMLINE_COLLECT__POLICY"]) == ("n1", "auto")
    assert not {"DRUMLINE_RUN", "DRUMLINE_MINTED_RUN", "HOME"} & set(added), (
        "Slurm's job id names the run for all tasks"
    )


def test_a_step_that_has_inherited_them_gets_only_its_nodes_name():
    inherited = {**TASK, **exports(TASK)}
    assert exports(inherited) == {}
    assert exports({**inherited, "SLURMD_NODENAME": "n2"}) == {"DRUMLINE_HOST": "n2"}


def test_a_user_may_turn_it_off_and_what_shells_cannot_take_is_left_out():
    assert exports({**TASK, "DRUMLINE_ATTACH": "0"}) == {}
    assert "PYTHONPATH" not in exports({**TASK, "PYTHONPATH": "/a\n/b"})
