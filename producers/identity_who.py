"""Who a process of a job is, from the environment that launchers set: torchrun, Slurm, Open MPI, MPICH, Kubernetes.

Pure: the environment is an argument. numpy is loaded only where a process is named: `drumline run` asks here where the
spool is, and a job must start also where PYTHONPATH holds another Python's numpy.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drumline.producers.activity.activity import Identity

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
_LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS")
_JOB = ("DRUMLINE_JOB", "SLURM_JOB_NAME", "JOB_NAME")
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
#: The largest number that a rank's field holds.
_MOST = (1 << 31) - 1


def _number(environment: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    """The first that is a number of ranks; what cannot be one is as good as not set."""
    for name in names:
        text = environment.get(name, "")
        if text.removeprefix("-").isdecimal() and abs(int(text)) <= _MOST:
            return int(text)
    return default


def _text(value: str) -> str:
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
    return _text(f"{run}-{again}" if run and again else run)


def identity(environment: Mapping[str, str], attached: Mapping[str, Any], device: int | None, now_ns: int) -> Identity:
    """`attached`: what the process said of itself (process_facts.describe, and its pid). Its place in the job, if it
    said that, counts more than what Slurm and MPI say of the process that started it, and less than RANK and its like.
    `device`: the CUDA ordinal that it was seen to use; None = not seen yet, the one of its local rank. `now_ns`: when
    collecting began."""
    from drumline.producers.activity.activity import Identity, process_id

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
        job=_text(next((environment[name] for name in _JOB if environment.get(name)), "job")),
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
        labels={_text(key.strip()): _text(value.strip()) for key, _, value in labels},
        versions={k: str(v) for k, v in attached.get("versions", {}).items()},
    )


def process_record(environment: Mapping[str, str], who: Identity) -> dict[str, Any]:
    """The envelope of its gpu.process.v1 record."""
    from drumline.producers.batches.recorded import process_batch

    kubernetes = "KUBERNETES_SERVICE_HOST" in environment
    return {
        **process_batch(who).envelope,
        "k8s_namespace": _text(environment.get("POD_NAMESPACE") or _namespace()) if kubernetes else "",
        "k8s_pod": _text(environment.get("POD_NAME") or environment.get("HOSTNAME", "")) if kubernetes else "",
        "slurm_job": _text(environment.get("SLURM_JOB_ID", "")),
    }


def _namespace() -> str:
    try:
        return _NAMESPACE.read_text().strip()
    except OSError:
        return ""


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
