"""Identity of a process in a job, from the environment of its launcher: torchrun, Slurm, Open MPI, MPICH, Kubernetes.

Standard library only: the training process imports this, and its PYTHONPATH may hold another Python's packages.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MPI_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
_RANK = (*_MPI_RANK, "SLURM_PROCID")
_LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS")
_JOB = ("DRUMLINE_JOB", "SLURM_JOB_NAME", "JOB_NAME")
#: The largest number that a rank's field holds.
_MOST = (1 << 31) - 1


#: Root of process ids: UUIDv5 of (this, "run/host/pid/start").
PROCESS_NAMESPACE = uuid.UUID("d6a1c7de-6f0b-5a53-9d39-7f0d2c6f2b51")


@dataclass(frozen=True)
class Identity:
    """Who a process is; the fields of every envelope and of gpu.process.v1."""

    job: str
    run: str
    rank: int
    local_rank: int
    world_size: int
    host: str
    gpu_uuid: str
    process_id: str
    pid: int = 0
    start_ns: int = 0
    gpu_index: int = -1
    gpu_model: str = ""
    source: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def envelope(self) -> dict[str, Any]:
        """The identity fields that every batch carries."""
        return {
            "job": self.job,
            "run": self.run,
            "rank": self.rank,
            "local_rank": self.local_rank,
            "world_size": self.world_size,
            "host": self.host,
            "gpu_uuid": self.gpu_uuid,
            "process_id": self.process_id,
        }


def process_id(run: str, host: str, pid: int, start_ns: int) -> str:
    """UUIDv5 of run, host, pid and start time: the same process has the same id wherever it is computed."""
    return str(uuid.uuid5(PROCESS_NAMESPACE, f"{run}/{host}/{pid}/{start_ns}"))


def _number(environment: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    """The first that is a number of ranks; what cannot be one is as good as not set."""
    for name in names:
        text = environment.get(name, "")
        if text.removeprefix("-").isdecimal() and abs(int(text)) <= _MOST:
            return int(text)
    return default


def printable(value: str) -> str:
    """Names from the environment may have bytes that are no text."""
    return value.encode(errors="replace").decode()


def run_id(environment: Mapping[str, str]) -> str:
    """The run: the same on all ranks, another one after a restart. DRUMLINE_RUN, else what the launcher names (MPI's is
    PMIX_NAMESPACE), else what `drumline run` made up; ""."""
    named = environment.get("SLURM_JOB_ID") or environment.get("TORCHELASTIC_RUN_ID", "").removeprefix("none")
    named = named or environment.get("PMIX_NAMESPACE", "")
    run = environment.get("DRUMLINE_RUN") or named or environment.get("DRUMLINE_MINTED_RUN", "")
    again = max(
        _number(environment, ("TORCHELASTIC_RESTART_COUNT",), 0), _number(environment, ("SLURM_RESTART_COUNT",), 0)
    )
    return printable(f"{run}-{again}" if run and again else run)


def identity(environment: Mapping[str, str], attached: Mapping[str, Any], device: int | None, now_ns: int) -> Identity:
    """`attached`: what the process said of itself (process_facts.describe, and its pid). Its place in the job, if it
    said that, counts more than what Slurm and MPI say of the process that started it, and less than RANK and its like.
    `device`: the CUDA ordinal that it was seen to use; None = not seen yet, the one of its local rank. `now_ns`: when
    collecting began."""
    told = "rank" in attached
    rank = _number(environment, _RANK[: 1 if told else None], int(attached.get("rank", 0)))
    world = _number(environment, _WORLD[: 1 if told else None], int(attached.get("world_size", 1)))
    local = _number(environment, _LOCAL[: 1 if told else None], device or 0)
    gpus = attached.get("gpus") or []
    ordinal = device if device is not None else local if local < len(gpus) else 0
    gpu = gpus[ordinal] if ordinal < len(gpus) else {}
    host, pid, run = socket.gethostname(), int(attached["pid"]), run_id(environment) or str(now_ns)
    labels = (pair.partition("=") for pair in environment.get("DRUMLINE_LABELS", "").split(",") if "=" in pair)
    return Identity(
        job=printable(next((environment[name] for name in _JOB if environment.get(name)), "job")),
        run=run,
        rank=rank,
        local_rank=local,
        world_size=world,
        host=host,
        gpu_uuid=gpu.get("uuid", ""),
        # A decoder that was started anew counts its batches from 0 again: it is another source.
        process_id=process_id(run, host, pid, now_ns),
        pid=pid,
        start_ns=int(attached.get("started_ns") or now_ns),
        gpu_model=gpu.get("model", ""),
        source="cupti",
        labels={printable(key.strip()): printable(value.strip()) for key, _, value in labels},
        versions={k: str(v) for k, v in attached.get("versions", {}).items()},
    )


def spool_root(environment: Mapping[str, str]) -> Path:
    """Where batches go; the same default as the agent's."""
    named = environment.get("DRUMLINE_SPOOL__ROOT")
    return Path(named or "/dev/shm/drumline")


def spool_limits(environment: Mapping[str, str]) -> tuple[int, float]:
    """(most bytes of one process, age at which a segment is closed; s). Raises ValueError, saying which is none."""
    found = []
    for name, default in (("DRUMLINE_SPOOL__MAX_MB", "256"), ("DRUMLINE_SPOOL__SEGMENT_S", "30")):
        text = environment.get(name) or default
        try:
            number = float(text)
        except ValueError:
            raise ValueError(f"{name}: {text!r} is no number") from None
        if not 0 < number < float("inf"):
            raise ValueError(f"{name}: {text} is no bound")
        found.append(number)
    return int(found[0] * (1 << 20)), found[1]


def control_file(environment: Mapping[str, str]) -> Path:
    """A file whose first line is the policy of all processes of the host, while they run; it may be missing."""
    return spool_root(environment) / "policy"


def lacks_shared_run(variables: Mapping[str, str]) -> bool:
    """Whether this is one rank of several, each of which would make up a run of its own (who.run_id): then ranks are
    never compared."""
    return any(variables.get(name) for name in _MPI_RANK) and not _named(variables)


def missing_run_scope(variables: Mapping[str, str]) -> str:
    """Who has a run of its own although others belong to the same training: a "node" (torchrun on several of them
    without --rdzv-id), a "rank" (attached without `drumline run`), or "", nobody as far as one sees from inside."""
    world, here = (_count(variables.get(name, "")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if world <= 1 or _named(variables):
        return ""
    if not variables.get("DRUMLINE_MINTED_RUN"):
        return "rank"
    return "node" if 0 < here < world else ""


def _named(variables: Mapping[str, str]) -> bool:
    """Whether something names the run that all its ranks share."""
    names = ("DRUMLINE_RUN", "SLURM_JOB_ID", "PMIX_NAMESPACE")
    return variables.get("TORCHELASTIC_RUN_ID", "none") != "none" or any(variables.get(name) for name in names)


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else 0
