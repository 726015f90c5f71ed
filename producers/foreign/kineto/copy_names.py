"""Names of copies in Kineto files as CUPTI's numbers: "Memcpy HtoD (Pinned -> Device)", "Memset (Device)"."""

from __future__ import annotations

from drumline.producers.activity.activity import MEMSET

#: Direction -> CUpti_ActivityMemcpyKind.
DIRECTIONS = {
    "HtoD": 1, "DtoH": 2, "HtoA": 3, "AtoH": 4, "AtoA": 5, "AtoD": 6, "DtoA": 7, "DtoD": 8, "HtoH": 9, "PtoP": 10,
}  # fmt: skip
#: Memory -> CUpti_ActivityMemoryKind.
MEMORIES = {"Pageable": 1, "Pinned": 2, "Device": 3, "Array": 4, "Managed": 5, "Device Static": 6, "Managed Static": 7}


def copied(name: str) -> tuple[int, int, int, int]:
    """Return (kind, kind of the source's memory, of the target's, 1 = asynchronous) by a copy's name; 0 = unknown."""
    inside = name.partition("(")[2].partition(")")[0]
    if name.startswith("Memset"):
        return MEMSET, 0, MEMORIES.get(inside, 0), 0
    source, _, target = inside.partition(" -> ")
    parts = name.split(" ")
    direction = DIRECTIONS.get(parts[1], 0) if len(parts) > 1 else 0
    return direction, MEMORIES.get(source, 0), MEMORIES.get(target, 0), 0
