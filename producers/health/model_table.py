"""Figures that a healthy GPU reaches, by model, with their source; one way, dense, without sparsity."""

from __future__ import annotations

from dataclasses import dataclass

#: Least shares of the figures. The H200 of tests/data/nvml/h200.json.gz reached 66% and 88%; a GPU at half its clock or
#: half its PCIe lanes reaches half of that.
MATMUL_SHARE, COPY_SHARE = 0.5, 0.6


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Holds what a model reaches.

    Attributes:
        name: part of NVML's name of the model.
        sm_mhz: highest SM clock.
        links: NVLink links; 0 = some boards have none.
        pcie_gbytes: of its PCIe generation with 16 lanes; GB/s.
        bf16_tflops: of its tensor cores.
        source: document of the figures.
    """

    name: str
    sm_mhz: int
    links: int
    pcie_gbytes: float
    bf16_tflops: float
    source: str


#: The first one that fits counts.
MODELS = (
    ModelLimits("H200 NVL", 1785, 0, 63.0, 835.0, "NVIDIA H200 data sheet, NVL"),
    ModelLimits("H200", 1980, 18, 63.0, 989.0, "NVIDIA H200 data sheet, SXM"),
    ModelLimits("H100 NVL", 1785, 0, 63.0, 835.0, "NVIDIA H100 data sheet, NVL"),
    ModelLimits("H100 PCIe", 1755, 0, 63.0, 756.0, "NVIDIA H100 data sheet, PCIe"),
    ModelLimits("H100", 1980, 18, 63.0, 989.0, "NVIDIA H100 data sheet, SXM"),
    ModelLimits("A100-SXM", 1410, 12, 31.5, 312.0, "NVIDIA A100 data sheet, SXM"),
    ModelLimits("A100", 1410, 0, 31.5, 312.0, "NVIDIA A100 data sheet, PCIe"),
    ModelLimits("L40S", 2520, 0, 31.5, 362.0, "NVIDIA L40S data sheet"),
)


def limits_of(model: str) -> ModelLimits | None:
    """Return the figures of a model by NVML's name; None for one that is not listed."""
    return next((known for known in MODELS if known.name in model), None)
