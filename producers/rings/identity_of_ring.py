"""Identity of the process that writes a ring, by the rules of producers/identity.py, and its gpu.process.v1 record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from drumline.producers.batching.process_record import ENDED, EXITED, process_record
from drumline.producers.identity import HOST, NCCL, Identity, identity, names_rank
from drumline.producers.nccl_profiler.library import TIMED_INTERFACE, records_graphs
from drumline.producers.rings.ring_file import HeaderField, RingHeader
from drumline.producers.rings.state import RingState
from drumline.schemas.columns import Array

#: Share of operations without times from which it is a problem: the verdicts of such a job lack as much.
MOST_UNTRUSTED = 0.05


def ring_identity(header: RingHeader, communicators: Array, generation: int, gpu: Mapping[str, str]) -> Identity:
    """Return the identity of the process of a ring.

    Where no launcher gave it a rank, it is that of its largest communicator. `generation`: records that an agent read
    whose state is lost; the sequences of its batches are not known, so what follows is another source. `gpu`: uuid and
    model, as far as they are known.
    """
    created_ns = header[HeaderField.CREATED_NS]
    started_ns = header[HeaderField.STARTED_NS] or created_ns  # of a plugin that was installed before
    attached: dict[str, Any] = {"pid": header[HeaderField.PID] & 0x7FFFFFFF, "started_ns": started_ns}
    if len(communicators) and not names_rank(header.environment):
        largest = communicators[int(np.argmax(communicators["ranks"]))]
        attached |= {"rank": int(largest["rank"]), "world_size": int(largest["ranks"])}
    if gpu:
        attached["gpus"] = [gpu]
    environment = {HOST: os.environ.get(HOST, ""), **header.environment}  # both are on one host
    return replace(identity(environment, attached, None, created_ns + generation), source=NCCL)


def ring_record(
    process: Identity, header: RingHeader, state: RingState, answer: str = "", *, has_ended: bool = False
) -> dict[str, Any]:
    """Return the envelope of the gpu.process.v1 record of a process. `answer`: to what is asked of it."""
    counts = dict(state.counts)
    counts["ring_dropped"] = header[HeaderField.DROPPED]
    counts["ring_unknown"] = header[HeaderField.UNKNOWN]
    counts["transfers_dropped"] = header[HeaderField.TRANSFERS_DROPPED]
    counts["ring_denied"] = header[HeaderField.COMMS_DENIED]
    counts["untimed_steps"] = header[HeaderField.UNTIMED_STEPS]
    return {
        **process_record(header.environment, process),
        "policy": "on: light" if not has_ended else ENDED if header[HeaderField.ENDED] else EXITED,
        "collector": {
            **{name: str(count) for name, count in counts.items()},
            **({"control": answer} if answer else {}),
            **({} if records_graphs(header.environment) else {"graphs": "not recorded"}),
            **{f"problem: {name}": sentence for name, sentence in _problems(header, state).items()},
        },
    }


def _problems(header: RingHeader, state: RingState) -> dict[str, str]:
    """Return what the plugin, or NCCL, could not do: short name -> sentence."""
    problems = {}
    interface = header[HeaderField.INTERFACE]
    if 0 < interface < TIMED_INTERFACE:
        problems["interface"] = (
            f"NCCL's profiler interface {interface} does not state when the GPU worked: no collectives and steps; "
            "NCCL 2.27 and later do, or drumline run --policy always"
        )
    untrusted, operations = state.counts["untrusted_times"], state.counts["operations"]
    if untrusted > MOST_UNTRUSTED * operations:
        problems["times"] = (
            f"NCCL reported the times of older operations for {untrusted:,} of {operations:,}: they have no rows; "
            "`drumline doctor` states why, drumline run --policy always records them"
        )
    if header[HeaderField.COMMS_DENIED]:
        problems["communicators"] = f"operations of {header[HeaderField.COMMS_DENIED]} communicators have no rows"
    if header[HeaderField.CHAIN] == 2:
        problems["chain"] = "the profiler plugin that NCCL_PROFILER_PLUGIN named could not be used"
    return problems
