"""The chart, its value sets, and what it renders as objects."""

from pathlib import Path
from typing import Any

import yaml

from drumline.infra.grafana.catalog import dashboard_files
from drumline.infra.grafana.provisioning.files import provisioning_files

CHART = Path(__file__).parents[3] / "infra" / "helm" / "drumline"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))


def write_grafana_files(chart: Path = CHART) -> None:
    """Write what `drumline grafana write` writes for a chart; a checkout has none."""
    for path, text in {**dashboard_files(), **provisioning_files()}.items():
        target = chart / "files" / "grafana" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def resources(text: str) -> list[dict[str, Any]]:
    """Return the objects of a rendered chart."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # dashboards are a megabyte
    return [item for item in yaml.load_all(text, loader) if item]
