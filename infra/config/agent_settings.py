"""Settings of the node agent: what it samples and how often, what it keeps, and whom it follows."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from drumline.infra.config.validation import SettingsModel
from drumline.schemas.topics import Topic


class AgentSettings(SettingsModel):
    """The node agent."""

    gpu_s: float = Field(1.0, ge=0, description="interval of the NVML samples of a GPU; s; 0 = none")
    host_s: float = Field(1.0, ge=0, description="interval of the samples of a recorded process (/proc); s; 0 = none")
    network_s: float = Field(
        10.0,
        ge=0,
        description="interval of the samples of links; s; 0 = none, and no rows of TCP connections either",
    )
    links: str = Field(
        "",
        pattern=r"^([^=,]+=\d+(\.\d+)?(,[^=,]+=\d+(\.\d+)?)*)?$",
        description="speed that links should have, Gbit/s: `mlx5_*=400,eth0=25`; empty = the best seen",
    )
    check: Literal["off", "readings", "load"] = Field(
        "off", description="check the GPUs once at the start: by readings alone, or with short loads on idle ones too"
    )
    gpus: int = Field(0, ge=0, description="GPUs that the host should have; 0 = those on its PCI bus")
    python: str = Field("python3", description="Python with PyTorch, for the loads of a check")
    stacks: bool = Field(True, description="sample the Python stacks of processes that a verdict names")
    control: bool = Field(True, description=f"follow `drumline policy` and `drumline capture` ({Topic.CONTROL})")
    # `record` has to be asked for: where CUPTI cannot go after a window, some of its cost stays (light-tier.md).
    on_verdict: Literal["nothing", "pull", "record"] = Field(
        "pull",
        description="what a rank that becomes late gives, and a healthy one, 24 times a day: rows that policy rollup "
        "kept, or these and a recording in depth",
    )
    kept_folder: Path | None = Field(
        None,
        description="the agent's folder of rows that stay on the host (policy rollup), on a disk; "
        "none = such rows are published",
    )
    kept_mb: int = Field(
        8_192, ge=16, description="most of these rows, compressed; the oldest are deleted beyond it; MB"
    )
