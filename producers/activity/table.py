"""Columns of one process in memory; what decoders produce, and what the derivation takes and returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from drumline.schemas.columns import Array


@dataclass(frozen=True)
class Table:
    """Holds rows by column; immutable, and shared between threads.

    `columns`: name -> 1-D array, all of one length.
    `dictionaries`: name -> strings that an index column points to. Tables of one process share them, so they may hold
    strings that this table does not use.
    """

    columns: Mapping[str, Array]
    dictionaries: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def take(self, index: Array | slice) -> Table:
        """Return the rows at `index`: positions, a boolean mask or a slice."""
        return Table({name: values[index] for name, values in self.columns.items()}, self.dictionaries)


def concatenate_tables(tables: Iterable[Table]) -> Table:
    """Return tables of the same columns and dictionaries as one. Raises ValueError without tables."""
    parts = list(tables)
    if not parts:
        raise ValueError("no tables to concatenate")
    if len(parts) == 1:
        return parts[0]
    return Table({name: np.concatenate([p[name] for p in parts]) for name in parts[0].columns}, parts[0].dictionaries)


def compact_dictionary(indices: Array, strings: Sequence[str]) -> tuple[Array, list[str]]:
    """Return indices into a dictionary of only the strings that occur, and that dictionary: as a batch carries it."""
    used, compact = np.unique(indices, return_inverse=True)
    return compact.astype(indices.dtype), [strings[i] for i in used.tolist()]
