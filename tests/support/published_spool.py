"""Tell when an agent has published what jobs wrote into a spool."""

from __future__ import annotations

from pathlib import Path

from drumline.lab.chaos.load import is_agents_spool
from drumline.producers.rings.ring_file import SUFFIX


def is_published(root: Path) -> bool:
    """Return whether Kafka has it all: the agent removes such spools and rings. Only its own spool is left."""
    spools = [path for path in root.iterdir() if not path.name.startswith(".")]
    rings = list((root / ".rings").glob(f"*{SUFFIX}"))
    return len(spools) <= 1 and all(map(is_agents_spool, spools)) and not rings
