"""Variables of the task prolog: those of `drumline run`, once, and the node's name for each task."""

import os
import subprocess
import sys
import time
from pathlib import Path

from drumline.producers.launcher import HOOK
from drumline.producers.slurm import exports

SCRIPTS = Path(__file__).parents[2] / "infra" / "slurm"
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


def script(name, folder, **variables):
    """Run a shipped script, with `folder` for its settings; return (exit code, stdout)."""
    text = (SCRIPTS / name).read_text().replace("/opt/drumline", sys.prefix).replace("/etc/drumline", str(folder))
    done = subprocess.run(
        ["/bin/sh", "-c", text], env={"PATH": os.environ["PATH"], **variables}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_an_error_in_the_settings_of_jobs_never_fails_a_task(tmp_path):
    settings = tmp_path / "jobs.env"
    spool = f"DRUMLINE_SPOOL__ROOT={tmp_path / 'spool'}\n"
    settings.write_text(f"echo not for Slurm\n{spool}")
    code, lines = script("task_prolog.sh", tmp_path, **TASK)
    assert (code, lines.splitlines()[0]) == (0, f"export {spool.strip()}")
    assert f"export DRUMLINE_PYTHON={sys.prefix}/bin/python" in lines.splitlines()
    settings.write_text(f"{spool}DRUMLINE_LABELS=a (b)\n")
    assert script("task_prolog.sh", tmp_path, **TASK) == (0, "")


def test_the_epilog_reads_nothing_but_plain_files(tmp_path):
    (tmp_path / "jobs.env").write_text(f"DRUMLINE_SPOOL__ROOT={tmp_path}\n")
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "identity.json")
    (tmp_path / "private").write_text('"slurm_job": "17"')
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "identity.json").symlink_to(tmp_path / "private")
    began = time.monotonic()
    assert script("epilog.sh", tmp_path, SLURM_JOB_ID="17") == (0, "")
    assert time.monotonic() - began < 15, "behind a link is no job of this node"
    (tmp_path / "b" / "identity.json").unlink()
    (tmp_path / "private").rename(tmp_path / "b" / "identity.json")
    assert script("epilog.sh", tmp_path, SLURM_JOB_ID="17") == (0, "")
    assert time.monotonic() - began >= 20, "it waits for a job that is there"
