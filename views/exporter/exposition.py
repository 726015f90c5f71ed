"""The bytes of /metrics, rendered once a tick: a scrape only sends them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from drumline.infra.telemetry.metrics import EXPORTER_LEFT_OUT, EXPORTER_RENDER, EXPORTER_SERIES, REGISTRIES
from drumline.infra.telemetry.verdict_metrics import VERDICT_METRICS
from drumline.views.exporter.families import Families

END = b"# EOF\n"
#: Content type -> function that renders a registry.
FORMATS: dict[str, Callable[[CollectorRegistry], bytes]] = {
    OPENMETRICS: generate_openmetrics,
    CONTENT_TYPE_PLAIN_0_0_4: generate_latest,
}


class VerdictCollector(Collector):
    """Collects the series of `families`, for a registry."""

    def __init__(self) -> None:
        self.families = Families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield each metric that has series."""
        for metric in VERDICT_METRICS:
            if series := self.families.of(metric):
                family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
                for labels, value in series.items():
                    family.add_metric(labels, value)
                yield family


class Exposition:
    """Holds the rendered series about jobs. `render` is for one thread, `expose` for any.

    A format is rendered in each tick from its first scrape on.
    """

    def __init__(self) -> None:
        self._collector, self._registry = VerdictCollector(), CollectorRegistry()
        self._registry.register(self._collector)
        self._bodies: dict[str, bytes] = {}

    def render(self, families: Families) -> None:
        """Render the series in the formats that are scraped, and count what was left out."""
        begun = time.perf_counter()
        self._collector.families = families
        self._bodies |= {kind: FORMATS[kind](self._registry) for kind in [*self._bodies]}
        EXPORTER_RENDER.set(time.perf_counter() - begun)
        EXPORTER_SERIES.set(families.size)
        for kind in ("job", "rank", "gpu"):
            EXPORTER_LEFT_OUT.labels(kind).set(families.left_out[kind])

    def expose(self, accept: str) -> tuple[bytes, str]:
        """Return body and content type for a scrape's header Accept; the program's own metrics, a few, come first."""
        kind = OPENMETRICS if "application/openmetrics-text" in accept else CONTENT_TYPE_PLAIN_0_0_4
        if (body := self._bodies.get(kind)) is None:
            body = self._bodies[kind] = FORMATS[kind](self._registry)
        return FORMATS[kind](REGISTRIES["exporter"]).removesuffix(END) + body, kind
