"""Identity of a process in a job, from its launcher's environment: torchrun, Slurm, Open MPI, MPICH, Kubernetes.

The training process imports this module too, and its PYTHONPATH may hold another Python's packages.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from drumline.producers.ipc.control import ProcessPlace

# Variables that say who a process is; of each tuple the first that is set counts. No other module spells one of them,
# but nccl_profiler/ring_writer.c, which copies OF_PROCESS into a ring (a test compares both).
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
_RANK_OR_SLURM = (*_RANK_VARIABLES, "SLURM_PROCID")
_LOCAL_RANK = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
)
_WORLD_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS")
#: What people, the hook and the chart may set: names of job, run and host, KEY=VALUE pairs.
JOB, RUN, HOST, LABELS = "DRUMLINE_JOB", "DRUMLINE_RUN", "DRUMLINE_HOST", "DRUMLINE_LABELS"
#: The run id that `drumline run` generates, for jobs whose launcher names none.
MINTED_RUN = "DRUMLINE_MINTED_RUN"
SLURM_JOB, SLURM_NODE = "SLURM_JOB_ID", "SLURMD_NODENAME"
JOB_NAMES = (JOB, "SLURM_JOB_NAME", "JOB_NAME")
TORCHRUN_RUN = "TORCHELASTIC_RUN_ID"
_RUN_NAMES = (RUN, SLURM_JOB, TORCHRUN_RUN, "PMIX_NAMESPACE")
#: A process with the first one runs in a pod; names of its namespace, pod and container.
KUBERNETES, POD_NAMESPACE, POD_NAMES, CONTAINER = (
    "KUBERNETES_SERVICE_HOST",
    "POD_NAMESPACE",
    ("POD_NAME", "HOSTNAME"),
    "CONTAINER_NAME",
)
OF_PROCESS = frozenset(
    {
        *_RANK_OR_SLURM, *_LOCAL_RANK, *_WORLD_SIZE, *JOB_NAMES, *_RUN_NAMES, MINTED_RUN, HOST, LABELS, KUBERNETES,
        POD_NAMESPACE, *POD_NAMES, CONTAINER,
    }
)  # fmt: skip
#: Largest rank, and most characters of a name (schemas/bounds/limits.py, which the job's process does not import).
MAX_RANK, MAX_NAME = (1 << 20) - 1, 1_024
#: Set in processes that the hook of an environment has prepared (collector/late.py), and what holds for those only.
LATE = "DRUMLINE_LATE"
OF_LATE = (LATE, JOB, "DRUMLINE_COLLECT__POLICY", MINTED_RUN)
#: What measures a live process: CUPTI, NCCL's profiler interface alone, or an inference engine's own iterations.
CUPTI, NCCL, SERVING = "cupti", "nccl", "serving"
#: Root of process ids: UUIDv5 of (this, "run/host/pid/start").
PROCESS_NAMESPACE = uuid.UUID("d6a1c7de-6f0b-5a53-9d39-7f0d2c6f2b51")


@dataclass(frozen=True)
class Identity:
    """Identifies a process: the identity fields of every envelope and of gpu.process.v1."""

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
        """Return the identity fields that every batch carries."""
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


def host_name(configured: str | None = "") -> str:
    """Return the name of this host in rows: `configured` (DRUMLINE_HOST), else the machine's; in a pod its own."""
    return printable(configured or socket.gethostname())


def host_identity(program: str, now_ns: int, versions: Mapping[str, str], host: str = "") -> Identity:
    """Return the identity of a process of drumline that publishes of its host, without a job. `host`: as configured."""
    host, pid = host_name(host), os.getpid()
    return Identity(
        job="",
        run=str(now_ns),
        rank=-1,
        local_rank=-1,
        world_size=0,
        host=host,
        gpu_uuid="",
        process_id=process_id(program, host, pid, now_ns),
        pid=pid,
        start_ns=now_ns,
        source=program,
        versions=dict(versions),
    )


def process_id(run: str, host: str, pid: int, start_ns: int) -> str:
    """Return the UUIDv5 of run, host, pid and start time: the same process has the same id wherever it is computed."""
    return str(uuid.uuid5(PROCESS_NAMESPACE, f"{run}/{host}/{pid}/{start_ns}"))


def _number(environment: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    """Return the first variable that holds a possible rank or number of ranks, else `default`."""
    for name in names:
        text = environment.get(name, "")
        if text.isdecimal() and int(text) <= MAX_RANK:
            return int(text)
    return default


def printable(value: str) -> str:
    """Return a value of the environment: bytes that are not text are replaced, and `…` ends a text that was cut."""
    text = value.encode(errors="replace").decode()
    return text if len(text) <= MAX_NAME else text[: MAX_NAME - 1] + "…"


def run_id(environment: Mapping[str, str]) -> str:
    """Return the run's id, the same on all ranks and after a restart; "" without one.

    It is DRUMLINE_RUN, else the launcher's id (of MPI: PMIX_NAMESPACE), else the one that `drumline run` generated.
    Restarts are attempts of the run. Launchers number them, but torchrun's agents on two nodes may count differently.
    """
    return printable(_named_run(environment) or environment.get(MINTED_RUN, ""))


def identity(
    environment: Mapping[str, str], attached: Mapping[str, Any], device: int | None, now_ns: int, source: str = CUPTI
) -> Identity:
    """Return the identity of an attached process.

    `attached`: the facts that the process sent (process_info.describe, pid, and its rank and world size where it has
    them). Those count more than variables of Slurm and MPI, which may be about its parent, and less than RANK.
    `device`: CUDA ordinal of its kernels; None = not known yet, then the one of its local rank.
    `now_ns`: start of collecting.
    """
    has_rank = "rank" in attached
    rank = _number(environment, _RANK_OR_SLURM[: 1 if has_rank else None], int(attached.get("rank", 0)))
    world = _number(environment, _WORLD_SIZE[: 1 if has_rank else None], int(attached.get("world_size", 1)))
    local = _number(environment, _LOCAL_RANK[: 1 if has_rank else None], device or 0)
    gpus = attached.get("gpus") or []
    ordinal = device if device is not None else local if local < len(gpus) else 0
    gpu = gpus[ordinal] if ordinal < len(gpus) else {}
    sm = gpu.get("sm", "")
    host, pid = host_name(environment.get(HOST)), int(attached["pid"])
    run = run_id(environment) or str(now_ns)
    labels = (pair.partition("=") for pair in environment.get(LABELS, "").split(",") if "=" in pair)
    return Identity(
        job=printable(first_set(environment, JOB_NAMES) or "job"),
        run=run,
        rank=rank,
        local_rank=local,
        world_size=world,
        host=host,
        gpu_uuid=gpu.get("uuid", ""),
        # A restarted decoder counts its batches from 0 again: it is another source.
        process_id=process_id(run, host, pid, now_ns),
        pid=pid,
        start_ns=int(attached.get("started_ns") or now_ns),
        gpu_model=gpu.get("model", ""),
        source=source,
        labels={printable(key.strip()): printable(value.strip()) for key, _, value in labels},
        versions={k: str(v) for k, v in {**attached.get("versions", {}), **({"sm": sm} if sm else {})}.items()},
    )


def place(environment: Mapping[str, str], attached: Mapping[str, Any]) -> ProcessPlace:
    """Return where a process is, by which requests name it. `attached`: as of `identity`."""
    known = identity(environment, {"pid": 0, **attached}, None, 0)
    rank = known.rank if names_rank(environment) or "rank" in attached else -1
    return ProcessPlace(known.job, known.run, rank, known.host)


def names_rank(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher gave the process a rank."""
    return bool(first_set(environment, _RANK_OR_SLURM))


def is_first_on_host(environment: Mapping[str, str]) -> bool:
    """Return whether a process is the one of its host that speaks for all of a job."""
    return _number(environment, _LOCAL_RANK, 0) == 0


def rank_and_size(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return rank and number of ranks that a launcher gave this process, or None."""
    rank, size = _number(environment, _RANK_OR_SLURM, -1), _number(environment, _WORLD_SIZE, 0)
    return (rank, size) if 0 <= rank < size else None


def lacks_shared_run(variables: Mapping[str, str]) -> bool:
    """Return whether this rank would generate a run id that its peers do not have: they would never be compared."""
    return bool(first_set(variables, _RANK_VARIABLES)) and not _named_run(variables)


def missing_run_scope(variables: Mapping[str, str]) -> str:
    """Return the part of a training that has a run id of its own although others belong to the same training.

    "node": torchrun on several nodes without --rdzv-id. "rank": attached without `drumline run`. "": none is visible.
    """
    world, local_world = (_count(variables.get(name, "")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if world <= 1 or _named_run(variables):
        return ""
    if not variables.get(MINTED_RUN):
        return "rank"
    return "node" if 0 < local_world < world else ""


def _named_run(variables: Mapping[str, str]) -> str:
    """Return the name of the run that all its ranks share; "" without one. Without --rdzv-id torchrun names it none."""
    names = _RUN_NAMES if variables.get(TORCHRUN_RUN) != "none" else [n for n in _RUN_NAMES if n != TORCHRUN_RUN]
    return first_set(variables, names)


def first_set(variables: Mapping[str, str], names: Iterable[str]) -> str:
    """Return the value of the first variable that is set and not empty; "" without one."""
    return next((value for name in names if (value := variables.get(name))), "")


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else 0
