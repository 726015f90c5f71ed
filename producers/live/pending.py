"""What of a live process's activity waits to be derived: slim tables, and words for no more than is in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drumline.producers.activity.activity import Activity, empty, end_ns
from drumline.producers.activity.table import Table, compacted, concatenated
from drumline.schemas.columns import Array
from drumline.schemas.topics import Topic

#: What is kept of a kernel: what steps and collectives are derived from, half of its columns.
KEPT = ("name", "start_ns", "duration_ns", "stream", "correlation", "graph", "grid_x", "grid_y", "grid_z")


NOTHING = Table({})
_NO_LAUNCHES = Table({"correlation": np.empty(0, np.uint32), "start_ns": np.empty(0, np.int64)})


class Words:
    """A dictionary that grows. `words`: in order of index."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._index: dict[str, int] = {}

    def take(self, indices: Array, words: Sequence[str]) -> Array:
        """Indices into `words` as indices into ours; u4."""
        compact, used = compacted(indices, words)
        for word in used:
            if word not in self._index:
                self._index[word] = len(self.words)
                self.words.append(word)
        return np.array([self._index[word] for word in used], np.uint32)[compact]


class Waiting:
    """`began`: time of the first marker, `newest`: end of the latest kernel; ns, 0 = none yet."""

    def __init__(self) -> None:
        self.began = self.newest = 0
        self._kernels: list[Table] = []
        self._copies: list[Table] = []
        self._markers: list[Table] = []
        self._payloads: list[Table] = []
        self._launched: list[Table] = []
        self._names, self._domains = Words(), Words()

    def __len__(self) -> int:
        """Kernels that wait."""
        return sum(table.rows for table in self._kernels)

    @property
    def marked(self) -> bool:
        """Markers wait: somebody asks for steps, collectives or ranges."""
        return bool(self._markers)

    @property
    def names(self) -> list[str]:
        """Names of the markers that wait."""
        return self._names.words

    def add(self, kernels: Table, copies: Table, markers: Table, payloads: Table, launched: Table = NOTHING) -> None:
        """Columns as in Activity; `launched` as in Decoded. Words of `markers` are copied."""
        markers = self._named(markers) if markers.rows else markers
        if markers.rows and not self.began:
            self.began = int(markers["time_ns"].min())
        slim = Table({name: kernels[name] for name in KEPT} if kernels.rows else {}, kernels.dictionaries)
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
            self.newest = max(self.newest, int(end_ns(kernels).max()))

    def tables(self) -> tuple[Table, Table, Table, Table]:
        """(kernels, copies, markers, payloads); there are markers."""
        kernels = _one(self._kernels) if self._kernels else empty(Topic.KERNEL)
        copies = _one(self._copies) if self._copies else empty(Topic.MEMCPY)
        payloads = _one(self._payloads) if self._payloads else Activity().payloads
        return kernels, copies, _one(self._markers), payloads

    @property
    def launched(self) -> Table:
        """When the host launched some of the kernels, as in Decoded."""
        return _one(self._launched) if self._launched else _NO_LAUNCHES

    def forget_launches(self, before_ns: int) -> None:
        """Kernels of calls before that wait no more."""
        late = self.launched
        self._launched = _some(late.take(late["start_ns"] >= before_ns))

    def keep(self, kernels: Table, copies: Table, markers: Table, payloads: Table) -> None:
        """Only these go on waiting."""
        self.keep_kernels(kernels)
        self._copies, self._payloads = _some(copies), _some(payloads)
        self._names, self._domains = Words(), Words()
        self._markers = _some(self._named(markers))

    def keep_kernels(self, kernels: Table) -> None:
        """Of kernels, only these go on waiting."""
        self._kernels = _some(kernels)

    def clear_gpu(self) -> None:
        """No kernels and copies wait any more."""
        self._kernels.clear()
        self._copies.clear()
        self._launched.clear()

    def clear(self) -> None:
        """Nothing waits any more."""
        self.clear_gpu()
        self._markers.clear()
        self._payloads.clear()
        self._names, self._domains = Words(), Words()

    def _named(self, markers: Table) -> Table:
        columns = {
            **markers.columns,
            "name": self._names.take(markers["name"], markers.dictionaries["names"]),
            "domain": self._domains.take(markers["domain"], markers.dictionaries["domains"]),
        }
        return Table(columns, {"names": self._names.words, "domains": self._domains.words})


def _one(pending: list[Table]) -> Table:
    pending[:] = [concatenated(pending)]
    return pending[0]


def _some(table: Table) -> list[Table]:
    return [table] if table.rows else []
