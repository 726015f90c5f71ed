"""Activity of the parts of a GPU by NVML's GPM: Hopper and later, without DCGM and without a profiler's rights.

Each reading is the mean over the time between two samples, in percent of the most possible, or a rate in kB/s.
"""

from __future__ import annotations

import contextlib
import math
from types import MappingProxyType
from typing import Any

from drumline.producers.batching.sample_envelopes import UNKNOWN
from drumline.producers.nvml.query import NvmlQuery
from drumline.schemas.counters import COUNTERS, GpmMetric

#: Column -> metric (nvml.h, nvmlGpmMetricId_t).
METRICS = {counter.name: counter.source.name for counter in COUNTERS if isinstance(counter.source, GpmMetric)}
#: Column -> metric in MiB/s. Not those of NVLink: they are 0 on a GPU without links, where its counters are absent.
RATES = MappingProxyType(
    {
        "pcie_rx_kbps": "PCIE_RX_PER_SEC",
        "pcie_tx_kbps": "PCIE_TX_PER_SEC",
    }
)
#: Shortest time between two samples that means are made of: a sample of an XID may follow another at once; ns.
SHORTEST_NS = 100_000_000
_KB_OF_MIB = (1 << 20) / 1_000


class Gpm:
    """Reads the activity of one GPU, or of one MIG instance of it. Used by one thread; `close` frees NVML's samples.

    Attributes:
        supported: whether the GPU has GPM; otherwise the reason is in `query.absent`.
    """

    def __init__(self, query: NvmlQuery, instance: int | None = None) -> None:
        """Ask whether the GPU has GPM. Raises NvmlLost."""
        self._query, self._instance = query, instance
        self._previous: tuple[Any, int] | None = None
        self._spare: Any = None
        support = query.answer("GPM", lambda: query.lib.nvmlGpmQueryDeviceSupport(query.handle))
        self.supported = support is not None and bool(support.isSupportedDevice)
        if support is not None and not self.supported:
            query.absent["GPM"] = "the GPU has none: Hopper and later do"
        wanted = {**METRICS, **RATES}
        numbers = {name: getattr(query.lib, f"NVML_GPM_METRIC_{metric}", None) for name, metric in wanted.items()}
        self._ids = {name: number for name, number in numbers.items() if number is not None}

    def read(self, now_ns: int) -> dict[str, float]:
        """Return the means since the last call; UNKNOWN at the first one, and soon after another. Raises NvmlLost."""
        row: dict[str, float] = dict.fromkeys((*METRICS, *RATES), UNKNOWN)
        if not self.supported or (self._previous and 0 <= now_ns - self._previous[1] < SHORTEST_NS):
            return row
        sample = self._query.answer("GPM", self._sample)
        if sample is None:
            return row
        before, self._previous = self._previous, (sample, now_ns)
        if before is not None:
            self._spare = before[0]
            metrics = self._query.answer("GPM", lambda: self._metrics(before[0], sample))
            for name, metric in zip(self._ids, () if metrics is None else metrics.metrics, strict=False):
                row[name] = self._value(name, metric)
        return row

    def close(self) -> None:
        """Free the samples; errors are ignored."""
        for sample in (self._spare, self._previous and self._previous[0]):
            if sample is not None:
                with contextlib.suppress(self._query.lib.NVMLError):
                    self._query.lib.nvmlGpmSampleFree(sample)
        self._spare = self._previous = None

    def _sample(self) -> Any:
        lib, query = self._query.lib, self._query
        sample = lib.nvmlGpmSampleAlloc() if self._spare is None else self._spare
        self._spare = sample
        if self._instance is None:
            lib.nvmlGpmSampleGet(query.handle, sample)
        else:
            lib.nvmlGpmMigSampleGet(query.handle, self._instance, sample)
        self._spare = None
        return sample

    def _metrics(self, first: Any, second: Any) -> Any:
        lib = self._query.lib
        wanted = lib.c_nvmlGpmMetricsGet_t()
        wanted.version, wanted.numMetrics = lib.NVML_GPM_METRICS_GET_VERSION, len(self._ids)
        wanted.sample1, wanted.sample2 = first, second
        for place, number in enumerate(self._ids.values()):
            wanted.metrics[place].metricId = number
        return lib.nvmlGpmMetricsGet(wanted)

    def _value(self, name: str, metric: Any) -> float:
        if metric.nvmlReturn != self._query.lib.NVML_SUCCESS:
            self._query.report(name, metric.nvmlReturn)
            return UNKNOWN
        self._query.absent.pop(name, None)
        value = float(metric.value)
        if not math.isfinite(value):
            return UNKNOWN
        return round(value * _KB_OF_MIB) if name in RATES else value
