"""Layout of CUPTI's PC samples, which the collector hands to CUPTI and the decoder reads (cupti_pcsampling.h, CUDA 13).

Standard library only.
"""

from __future__ import annotations

import struct
from enum import IntEnum

#: Most places (PCs) of a buffer, as CUPTI's default memory holds about 5,500.
MOST_PCS = 4_096
#: Bytes of CUpti_PCSamplingPCData and of CUpti_PCSamplingStallReason; of the first: offsets of the kernel's name and
#: of the number of its reasons.
PC_BYTES, REASON_BYTES = 64, 8
NAME_AT, REASONS_AT = 32, 40
#: CUpti_PCSamplingData: nine numbers, and whether the memory of the GPU was full.
DATA = struct.Struct("<9QB7x")


class DataField(IntEnum):
    """Positions of the words of CUpti_PCSamplingData."""

    SIZE = 0
    MOST_PCS = 1
    TOTAL = 2
    DROPPED = 3
    PCS = 4
    REMAINING = 5
    RANGE = 6
    PC_DATA = 7
    OUTSIDE = 8  # samples of kernels that are not the program's
    IS_FULL = 9
