"""A real Slurm on this machine: munged, a controller and two nodes on loopback, with the shipped prolog and epilog."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drumline.infra.localstack.ephemeral import free_block

SCRIPTS = Path(__file__).parents[2] / "infra" / "slurm"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo")
PACKAGES = "slurmctld slurmd slurm-client munge"
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=10
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
MpiDefault=none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldParameters=node_reg_mem_percent=1
ReturnToService=2
KillWait=5
TaskProlog={folder}/task_prolog.sh
Epilog={folder}/epilog.sh
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 RealMemory=500 State=UNKNOWN
PartitionName=p Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:4
"""


def missing_programs() -> list[str]:
    """Return the programs of Slurm that are not installed; they may be where only root's PATH leads."""
    return [name for name in PROGRAMS if not shutil.which(name, path=search_path())]


def search_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


class SlurmCluster:
    """Its folder and its commands. `jobs_env`: lines of /etc/drumline/jobs.env."""

    def __init__(self, folder: Path, jobs_env: dict[str, str]) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PATH": search_path(), "SLURM_CONF": str(folder / "slurm.conf")}
        self._processes: list[subprocess.Popen[bytes]] = []
        for name in ("state", "spool", "spool/n1", "spool/n2"):
            (folder / name).mkdir()
        # Nothing of Slurm uses cgroups here; it would look for a version, and refuses a machine with both.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "jobs.env").write_text("".join(f"{name}={value}\n" for name, value in jobs_env.items()))
        for script in ("task_prolog.sh", "epilog.sh"):
            text = (SCRIPTS / script).read_text()
            text = text.replace("/opt/drumline", sys.prefix).replace("/etc/drumline", str(folder))
            (folder / script).write_text(text)
            (folder / script).chmod(0o755)
        first = free_block(3)
        config = CONFIG.format(
            folder=folder,
            host=socket.gethostname().partition(".")[0],
            controller=first,
            first=first + 1,
            last=first + 2,
        )
        (folder / "slurm.conf").write_text(config)
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)

    def start(self) -> None:
        folder = self.folder
        self._run(
            "munged", "--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.sock",
            f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed",
        )  # fmt: skip
        self._run("slurmctld", "-D")
        for node in ("n1", "n2"):
            self._run("slurmd", "-D", "-N", node)
        until = time.monotonic() + 120
        while self.command("sinfo", "--noheader", "--format=%t %D", check=False).split() != ["idle", "2"]:
            assert time.monotonic() < until, self.logs()
            assert all(process.poll() is None for process in self._processes), self.logs()
            time.sleep(0.5)

    def _run(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("ab") as out:
            self._processes.append(
                subprocess.Popen(command, env=self.environment, stdout=out, stderr=out, start_new_session=True)
            )

    def command(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.logs()}"
        return done.stdout.strip()

    def state(self, job: str) -> dict[str, str]:
        """Return the fields of a job."""
        text = self.command("scontrol", "--oneliner", "show", "job", job)
        return dict(pair.partition("=")[::2] for pair in text.split() if "=" in pair)

    def wait_state(self, job: str, *states: str, timeout_s: float = 240.0) -> dict[str, str]:
        until = time.monotonic() + timeout_s
        while (fields := self.state(job))["JobState"] not in states:
            assert time.monotonic() < until, f"{fields}\n{self.logs()}"
            time.sleep(0.5)
        return fields

    def logs(self) -> str:
        """Return the ends of all logs, for a failed assertion."""
        files = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-1500:]}" for path in sorted(files))

    def stop(self) -> None:
        """End jobs that still run, which would outlive the daemons, then those."""
        self.command("scancel", "--partition=p", check=False)
        until = time.monotonic() + 60
        while self.command("squeue", "--noheader", check=False) and time.monotonic() < until:
            time.sleep(0.5)
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def slurm_cluster(folder: Path, jobs_env: dict[str, str]) -> Iterator[SlurmCluster]:
    """Run it inside the block."""
    cluster = SlurmCluster(folder, jobs_env)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
