"""Figures that a healthy GPU reaches, by model, each with its source; a figure without a source is not here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

#: Least shares of the figures. The H200 of tests/data/nvml/h200.json.gz reached 66% and 88%; a GPU at half its clock or
#: half its PCIe lanes reaches half of that.
MATMUL_SHARE, COPY_SHARE = 0.5, 0.6


class Sourced(NamedTuple):
    """A number and the document that states it."""

    value: float
    source: str
    address: str


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Holds what a model reaches.

    Attributes:
        name: words of NVML's name of the model.
        bf16_tflops: of its tensor cores, dense: without sparsity; None = no source.
        sm_mhz: highest SM clock; None = no source.
        links: NVLink links; None = no source, or some boards have none.
    """

    name: str
    bf16_tflops: Sourced | None = None
    sm_mhz: Sourced | None = None
    links: Sourced | None = None


def _h200(tflops: float) -> Sourced:
    # The data sheet's figures, 1,979 and 1,671, are with sparsity: twice the dense ones.
    return Sourced(
        tflops, "NVIDIA H200 data sheet", "nvdam.widen.net/s/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446"
    )


def _h100(tflops: float) -> Sourced:
    return Sourced(
        tflops, "NVIDIA H100 data sheet", "resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
    )


_A100 = Sourced(
    312,
    "NVIDIA A100 data sheet",
    "nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf",
)
# 312 TFLOPS of 108 SMs with 2,048 a cycle.
_A100_CLOCK = _A100._replace(value=1410)
_HOPPER_LINKS = Sourced(
    18, "NVIDIA's systems in MLPerf", "github.com/mlcommons/inference_results_v4.1, closed/NVIDIA/systems"
)
#: The first one that fits counts. No figure of the H100 NVL has a source: it is here lest it is taken for an SXM.
MODELS = (
    ModelLimits("H200 NVL", _h200(835)),
    ModelLimits("H200", _h200(989), Sourced(1980, "a recorded H200", "tests/data/nvml/h200.json.gz"), _HOPPER_LINKS),
    ModelLimits("H100 NVL"),
    ModelLimits("H100 PCIe", _h100(756)),
    ModelLimits(
        "H100",
        _h100(989),
        Sourced(1980, "a recorded H100", "tests/data/nvml/h100.json.gz"),
        _HOPPER_LINKS,
    ),
    ModelLimits(
        "A100-SXM4", _A100, _A100_CLOCK, Sourced(12, "NVIDIA's page on NVLink", "nvidia.com/de-de/data-center/nvlink")
    ),
    ModelLimits("A100", _A100, _A100_CLOCK),
    ModelLimits("L40S", Sourced(362, "NVIDIA L40S data sheet", "resources.nvidia.com/en-us-l40s/l40s-datasheet-28413")),
)  # fmt: skip
#: Generation of PCIe -> GT/s of a lane, with 128 bits of data in 130 (PCI Express Base Specification 3.0 to 5.0).
PCIE_LANE = {3: 8.0, 4: 16.0, 5: 32.0}


def limits_of(model: str) -> ModelLimits | None:
    """Return the figures of a model by NVML's name; None for one that is not listed. A GH200 is no H200."""
    return next((known for known in MODELS if re.search(rf"\b{re.escape(known.name)}\b", model)), None)


def pcie_gbytes(generation: int, lanes: int) -> float | None:
    """Return what a PCIe link carries one way, GB/s; None for a generation that is not listed."""
    lane = PCIE_LANE.get(generation)
    return None if lane is None or lanes <= 0 else lane * lanes * 128 / 130 / 8
