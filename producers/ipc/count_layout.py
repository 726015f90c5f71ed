"""Layout of the table in which a process counts what it launches (producers/collector/counts/table.h).

The process's C code writes it, its decoder reads it, and notes behind it what it has published: a decoder that replaces
a killed one goes on from there. It lies behind the activity buffers, in the same memory. Standard library only.
"""

from __future__ import annotations

from enum import IntEnum

ENTRIES, GRAPHS, NODES, NAMES_BYTES, LONGEST_NAME = 8_192, 8_192, 65_536, 2 << 20, 16_384
ENTRY_BYTES, GRAPH_BYTES, NODE_BYTES = 64, 32, 16
ENTRIES_AT = 4_096
GRAPHS_AT = ENTRIES_AT + ENTRIES * ENTRY_BYTES
NODES_AT = GRAPHS_AT + GRAPHS * GRAPH_BYTES
NAMES_AT = NODES_AT + NODES * NODE_BYTES
#: D: for each entry launches, those by replays, and bytes that are published.
PUBLISHED_AT = NAMES_AT + NAMES_BYTES
TABLE_BYTES = PUBLISHED_AT + ENTRIES * 24
#: Entries that count what has none of its own.
OTHER_KERNELS, OTHER_COPIES, UNKNOWN_GRAPHS = range(3)
#: Kinds of rows beside those of copies (gpu.memcpy.v1).
KERNEL, GRAPH = 128, 129


class CountField(IntEnum):
    """Positions of 64-bit words at the table's start. G = the process, D = its decoder."""

    SETTLING = 0  # G odd while replays move from a graph to entries
    ENTRIES_USED = 1  # G
    NODES_USED = 2  # G
    NAMES_USED = 3  # G bytes
    NAMES_DENIED = 4  # G kernels without a name: there was no room, or CUDA gave none
    GRAPHS_DENIED = 5  # G graphs whose nodes were not noted
    BODIES = 6  # G conditional nodes of graphs, whose kernels are not counted
    PUBLISHED_NS = 64  # D end of the last interval; ns since the epoch
