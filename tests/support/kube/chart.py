"""The chart, its value sets, and what it renders as objects."""

from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[3] / "infra" / "helm" / "drumline"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))


def resources(text: str) -> list[dict[str, Any]]:
    """Return the objects of a rendered chart."""
    return [item for item in yaml.safe_load_all(text) if item]
