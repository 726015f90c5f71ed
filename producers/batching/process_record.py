"""The gpu.process.v1 record, which describes a process once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drumline.producers.identity import (
    CONTAINER,
    KUBERNETES,
    POD_NAMES,
    POD_NAMESPACE,
    SLURM_JOB,
    Identity,
    first_set,
    printable,
)
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic

#: The last `policy` of a process: it came to its exit, or it did not.
ENDED, EXITED = "off: end of the process", "off: the process exited without a shutdown event"
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def process_batch(identity: Identity) -> Batch:
    """Return the gpu.process.v1 batch of a process: one row, no columns."""
    return Batch(
        Topic.PROCESS,
        {
            **identity.envelope(),
            "sequence": 0,
            "dropped_before": 0,
            "rows": 1,
            "base_time_ns": identity.start_ns,
            "watermark_ns": identity.start_ns,
            "sent_ns": identity.start_ns,
            "pid": identity.pid,
            "start_ns": identity.start_ns,
            "gpu_index": identity.gpu_index,
            "gpu_model": identity.gpu_model,
            "source": identity.source,
            "labels": dict(identity.labels),
            "versions": dict(identity.versions),
        },
    )


def process_record(environment: Mapping[str, str], identity: Identity) -> dict[str, Any]:
    """Return the envelope of a process's gpu.process.v1 record, with its Kubernetes pod and Slurm job."""
    kubernetes = KUBERNETES in environment
    return {
        **process_batch(identity).envelope,
        "k8s_namespace": printable(environment.get(POD_NAMESPACE) or _namespace()) if kubernetes else "",
        "k8s_pod": printable(first_set(environment, POD_NAMES)) if kubernetes else "",
        "k8s_container": printable(environment.get(CONTAINER, "")) if kubernetes else "",
        "slurm_job": printable(environment.get(SLURM_JOB, "")),
    }


def _namespace() -> str:
    try:
        return _NAMESPACE.read_text().strip()
    except OSError:
        return ""
