"""Columns of one process in memory: what a decoder gives and what every stage takes and returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from drumline.schemas.columns import Array


@dataclass(frozen=True)
class Table:
    """`columns`: name -> 1-D array, all of one length. `words`: dictionary name -> the strings that an index column
    points into; tables of one process share them, so they may hold words that this table never uses."""

    columns: Mapping[str, Array]
    dictionaries: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def take(self, index: Array | slice) -> Table:
        """The rows at `index` (positions, a boolean mask or a slice)."""
        return Table({name: values[index] for name, values in self.columns.items()}, self.dictionaries)


def concatenated(tables: Iterable[Table]) -> Table:
    """Tables with the same columns and the same words, one after the other. Raises ValueError when there are none."""
    parts = list(tables)
    if not parts:
        raise ValueError("no tables to concatenate")
    if len(parts) == 1:
        return parts[0]
    return Table({name: np.concatenate([p[name] for p in parts]) for name in parts[0].columns}, parts[0].dictionaries)


def compacted(indices: Array, words: Sequence[str]) -> tuple[Array, list[str]]:
    """Indices into a dictionary of only the words that occur, in order of index: what a batch carries."""
    used, compact = np.unique(indices, return_inverse=True)
    return compact.astype(indices.dtype), [words[i] for i in used.tolist()]
