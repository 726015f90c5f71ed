"""The chart, its value sets, and what it renders as objects."""

from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[3] / "infra" / "helm" / "drumline"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))


def resources(text: str) -> list[dict[str, Any]]:
    """Return the objects of a rendered chart."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # dashboards are a megabyte
    return [item for item in yaml.load_all(text, loader) if item]
