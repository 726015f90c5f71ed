"""Activity of a live process that waits to be derived: slim tables, and dictionaries of only the strings in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drumline.producers.activity.activity import Activity, empty, end_ns
from drumline.producers.activity.table import Table, compact_dictionary, concatenate_tables
from drumline.schemas.columns import Array
from drumline.schemas.topics import Topic

#: Columns of kernels that are kept: steps and collectives are derived from these, half of all.
KEPT = ("name", "start_ns", "duration_ns", "stream", "correlation", "graph", "grid_x", "grid_y", "grid_z")

NOTHING = Table({})
#: Columns of launches that are kept.
_LAUNCHED = ("correlation", "start_ns")
_NO_LAUNCHES = Table({"correlation": np.empty(0, np.uint32), "start_ns": np.empty(0, np.int64)})


class StringTable:
    """Grows a dictionary; `strings` are in order of index."""

    def __init__(self) -> None:
        self.strings: list[str] = []
        self._index: dict[str, int] = {}

    def take(self, indices: Array, strings: Sequence[str]) -> Array:
        """Return indices into `strings` as indices into this table; u4."""
        compact, used = compact_dictionary(indices, strings)
        for string in used:
            if string not in self._index:
                self._index[string] = len(self.strings)
                self.strings.append(string)
        return np.array([self._index[string] for string in used], np.uint32)[compact]


class PendingActivity:
    """Holds the activity that no segment has taken yet.

    IncrementalDerivation owns it. Attributes: `first_marker_ns`, time of the first marker; `newest_kernel_ns`, end of
    the latest kernel; 0 = none yet.
    """

    def __init__(self) -> None:
        self.first_marker_ns = self.newest_kernel_ns = 0
        self._kernels: list[Table] = []
        self._copies: list[Table] = []
        self._markers: list[Table] = []
        self._payloads: list[Table] = []
        self._launched: list[Table] = []
        self._names, self._domains = StringTable(), StringTable()

    def __len__(self) -> int:
        """Return the number of pending kernels."""
        return sum(table.rows for table in self._kernels)

    @property
    def has_markers(self) -> bool:
        """Return whether markers are pending, which steps, collectives and ranges are derived from."""
        return bool(self._markers)

    @property
    def names(self) -> list[str]:
        """Return the names of the pending markers."""
        return self._names.strings

    def add(self, kernels: Table, copies: Table, markers: Table, payloads: Table, launched: Table = NOTHING) -> None:
        """Append activity; columns as in Activity, of `launched` as in Decoded. Strings of `markers` are copied."""
        markers = self._named(markers) if markers.rows else markers
        if markers.rows and not self.first_marker_ns:
            self.first_marker_ns = int(markers["time_ns"].min())
        slim = Table({name: kernels[name] for name in KEPT} if kernels.rows else {}, kernels.dictionaries)
        launched = Table({name: launched[name] for name in _LAUNCHED}) if launched.rows else launched
        for table, pending in (
            (slim, self._kernels),
            (copies, self._copies),
            (markers, self._markers),
            (payloads, self._payloads),
            (launched, self._launched),
        ):
            if table.rows:
                pending.append(table)
        if kernels.rows:
            self.newest_kernel_ns = max(self.newest_kernel_ns, int(end_ns(kernels).max()))

    def tables(self) -> tuple[Table, Table, Table, Table]:
        """Return (kernels, copies, markers, payloads); there must be markers."""
        kernels = _merged(self._kernels) if self._kernels else empty(Topic.KERNEL)
        copies = _merged(self._copies) if self._copies else empty(Topic.MEMCPY)
        payloads = _merged(self._payloads) if self._payloads else Activity().payloads
        return kernels, copies, _merged(self._markers), payloads

    @property
    def launched(self) -> Table:
        """Return when the host launched some of the kernels; columns as in Decoded."""
        return _merged(self._launched) if self._launched else _NO_LAUNCHES

    def forget_launches(self, before_ns: int) -> None:
        """Drop launches of calls before a time."""
        late = self.launched
        self._launched = _nonempty(late.take(late["start_ns"] >= before_ns))

    def keep(self, kernels: Table, copies: Table, markers: Table, payloads: Table) -> None:
        """Keep only this activity."""
        self.keep_kernels(kernels)
        self._copies, self._payloads = _nonempty(copies), _nonempty(payloads)
        self._names, self._domains = StringTable(), StringTable()
        self._markers = _nonempty(self._named(markers))

    def keep_kernels(self, kernels: Table) -> None:
        """Keep only these of the kernels."""
        self._kernels = _nonempty(kernels)

    def clear_gpu(self) -> None:
        """Drop all kernels, copies and launches."""
        self._kernels.clear()
        self._copies.clear()
        self._launched.clear()

    def clear(self) -> None:
        """Drop everything."""
        self.clear_gpu()
        self._markers.clear()
        self._payloads.clear()
        self._names, self._domains = StringTable(), StringTable()

    def _named(self, markers: Table) -> Table:
        columns = {
            **markers.columns,
            "name": self._names.take(markers["name"], markers.dictionaries["names"]),
            "domain": self._domains.take(markers["domain"], markers.dictionaries["domains"]),
        }
        return Table(columns, {"names": self._names.strings, "domains": self._domains.strings})


def _merged(pending: list[Table]) -> Table:
    pending[:] = [concatenate_tables(pending)]
    return pending[0]


def _nonempty(table: Table) -> list[Table]:
    return [table] if table.rows else []
