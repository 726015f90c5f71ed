"""All checks of a host, and their rows of gpu.check.v1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from drumline.producers.batching.sample_envelopes import SampleEnvelopes, encoded
from drumline.producers.health.health_check import FAIL, HealthCheck, gpu_count, reading_checks
from drumline.producers.health.load_check import load_checks
from drumline.producers.nvml.pci_bus import gpus_on_bus
from drumline.producers.nvml.query import NvmlLost, NvmlMissing
from drumline.producers.nvml.samples import Nvml
from drumline.schemas.batch import Batch
from drumline.schemas.keys import record_key
from drumline.schemas.topics import Topic


def host_health(load: Callable[[], Any], wanted: int, python: str = "") -> Iterator[HealthCheck]:
    """Yield the checks of this host as they are done.

    load: returns the NVML module. wanted: GPUs that there should be, 0 = those on the bus. python: runs short loads on
    idle GPUs, "" = none.
    """
    try:
        nvml = Nvml(load())
    except (NvmlLost, NvmlMissing) as error:
        yield HealthCheck("NVML", FAIL, str(error))
        return
    try:
        yield gpu_count(nvml, wanted, gpus_on_bus())
        for gpu in list(nvml.gpus):
            try:
                yield from reading_checks(nvml, gpu)
                if python:
                    yield from load_checks(nvml, gpu, python)
            except NvmlLost as error:  # the others are checked
                yield HealthCheck("answers", FAIL, str(error), gpu.uuid, gpu.index, model=gpu.model)
    finally:
        nvml.close()


def check_batches(
    checks: Sequence[HealthCheck], envelopes: SampleEnvelopes, now_ns: int
) -> Iterator[tuple[str, Batch]]:
    """Yield (key, batch) of each GPU and of the host, with a row for each check."""
    for uuid, index in dict.fromkeys((check.gpu_uuid, check.gpu_index) for check in checks):
        rows = [check for check in checks if (check.gpu_uuid, check.gpu_index) == (uuid, index)]
        envelope = envelopes.envelope(envelopes.host, {"gpu_uuid": uuid}, now_ns, len(rows))
        envelope |= {"gpu_index": index, "serial": rows[0].serial, "model": rows[0].model}
        columns, dictionaries = encoded(Topic.CHECK, [{"time_ns": now_ns, **vars(check)} for check in rows])
        batch = Batch(Topic.CHECK, envelope | dictionaries, columns)
        yield record_key(batch), batch
