"""Values of the window stages on disk, so that an agent that was killed goes on where it was."""

from __future__ import annotations

import os
import sqlite3
from collections import UserDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

#: Changes with the table; values have versions of their own.
_TABLE = "values_1"


class SavedState(UserDict[str, bytes]):
    """Maps the keys of one stage to values in memory. `changed`: keys that are not saved."""

    def __init__(self, values: Mapping[str, bytes]) -> None:
        super().__init__(values)
        self.changed: set[str] = set()

    def __setitem__(self, name: str, value: bytes) -> None:
        super().__setitem__(name, value)
        if hasattr(self, "changed"):  # not while it is filled
            self.changed.add(name)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.changed.add(name)


class StateFile:
    """Saves states together: all changes of a `save`, or none. For one thread. Every method raises sqlite3.Error.

    A kill loses nothing; a power failure may lose the last changes, as it does of the spool.
    """

    def __init__(self, path: Path) -> None:
        self._states: dict[str, SavedState] = {}
        with suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC, 0o600))  # its other files get the same rights
        self._file = sqlite3.connect(path, isolation_level=None)
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("PRAGMA synchronous = NORMAL")
        columns = "stage TEXT, name TEXT, value BLOB, PRIMARY KEY (stage, name)"
        self._file.execute(f"CREATE TABLE IF NOT EXISTS {_TABLE} ({columns}) WITHOUT ROWID")

    def state(self, stage: str) -> SavedState:
        """Return the saved values of a stage; `save` saves what changes in it."""
        values = self._file.execute(f"SELECT name, value FROM {_TABLE} WHERE stage = ?", (stage,))
        state = self._states[stage] = SavedState(dict(values.fetchall()))
        return state

    def save(self) -> None:
        """Save all changes since the last time."""
        if not any(state.changed for state in self._states.values()):
            return
        self._file.execute("BEGIN")
        try:
            for stage, state in self._states.items():
                present = [(stage, name, state[name]) for name in state.changed if name in state]
                self._file.executemany(f"REPLACE INTO {_TABLE} VALUES (?, ?, ?)", present)
                deleted = [(stage, name) for name in state.changed if name not in state]
                self._file.executemany(f"DELETE FROM {_TABLE} WHERE stage = ? AND name = ?", deleted)
            self._file.execute("COMMIT")
        except sqlite3.Error:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise
        for state in self._states.values():
            state.changed.clear()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
