"""A recorded process as the light tier would have seen it: calls of NCCL, and when their kernels ran."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from drumline.producers.activity.activity import Activity, empty, end_ns
from drumline.producers.activity.table import Table
from drumline.producers.derive.light import Operations, light_rows
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.rows import Derived, derive
from drumline.producers.derive.steps.steps import Steps
from drumline.schemas.topics import Topic


def derive_light(activity: Activity, since_ns: int = 0) -> Derived:
    """Return the rows of a process, derived without its copies and without kernels other than NCCL's."""
    kernels = activity.kernels
    is_nccl = nccl.is_kernel(kernels.dictionaries["names"])
    communication = kernels.take(is_nccl[kernels["name"]] if kernels.rows else slice(0))
    derived = derive(replace(activity, kernels=communication, copies=empty(Topic.MEMCPY)), since_ns=since_ns)
    hashes = np.unique(derived.collectives["communicator"])
    number, start = derived.steps["step"], derived.steps["start_ns"]
    rows = light_rows(operations(derived.collectives, hashes), hashes, Steps(number, start, end_ns(derived.steps)))
    skipped = rows.steps["skipped"] | derived.steps["skipped"]  # a call without its kernel
    steps = Table({**rows.steps.columns, "skipped": skipped})
    return replace(derived, collectives=rows.collectives, steps=steps)


def operations(collectives: Table, hashes: np.ndarray) -> Operations:
    """Return the operations that recorded collectives stand for."""
    called = collectives.take(np.lexsort((collectives["call_ns"], collectives["communicator"])))
    return Operations(
        communicator=np.searchsorted(hashes, called["communicator"]).astype(np.uint16),
        call_ns=called["call_ns"],
        start_ns=called["start_ns"],
        stop_ns=end_ns(called),
        step=called["step"],
        operation=called["operation"],
        bytes=called["bytes"],
    )
