"""CUDA calls that launch kernels, copies and memsets: the only ones that CUPTI records where launches are wanted.

A kernel has the correlation id of the call that the program made: of the runtime where it used that (PyTorch), else of
the driver (NCCL, cuBLAS, Triton). All calls of both would be seven records for a kernel, most without a launch.
"""

from __future__ import annotations

from collections.abc import Iterator

from drumline.producers.collector.cupti import SUCCESS, Cupti

#: CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_RUNTIME.
DRIVER, RUNTIME = 4, 5
#: Ids of cupti_driver_cbid.h and cupti_runtime_cbid.h (CUDA 13): Launch, Memcpy, Memset; first and last of each run.
_DRIVER_CALLS = (
    (216, 226), (249, 254), (276, 293), (305, 307), (318, 321), (397, 416), (418, 433), (442, 442), (477, 478),
    (480, 480), (514, 515), (652, 653), (776, 779), (796, 799),
)  # fmt: skip
_RUNTIME_CALLS = (
    (31, 52), (142, 145), (160, 163), (211, 211), (213, 236), (243, 246), (249, 250), (269, 270), (272, 272),
    (311, 312), (430, 431), (482, 485), (505, 506), (509, 512),
)  # fmt: skip
#: cuLaunchKernel, cudaLaunchKernel: where CUPTI does not take these alone, it records all calls.
_LAUNCH_KERNEL = {DRIVER: 307, RUNTIME: 211}


def _ids(runs: tuple[tuple[int, int], ...]) -> Iterator[int]:
    for first, last in runs:
        yield from range(first, last + 1)


def record_calls(cupti: Cupti, on: bool) -> None:
    """Switch the recording of launches on or off."""
    for kind, enable, runs in (
        (DRIVER, cupti.enable_driver_call, _DRIVER_CALLS), (RUNTIME, cupti.enable_runtime_call, _RUNTIME_CALLS),
    ):  # fmt: skip
        taken = {number for number in _ids(runs) if enable is not None and enable(number, int(on)) == SUCCESS}
        if not on:
            cupti.cuptiActivityDisable(kind)
        elif _LAUNCH_KERNEL[kind] not in taken:
            cupti.cuptiActivityEnable(kind)
