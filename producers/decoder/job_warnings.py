"""Warn the user of a job, once, of what the decoder cannot report by its records."""

from __future__ import annotations

from collections.abc import Mapping

from drumline.producers.ipc.events import warn
from drumline.producers.spool.location import spool_root
from drumline.producers.spool.writer import SpoolWriter

#: Problems that leave records unread.
_UNREAD = ("decode", "size", "layout")


class JobWarnings:
    """Prints each warning of one session once, on the job's standard error."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._unwritable = self._unreadable = False

    def unwritable(self, spool: SpoolWriter) -> None:
        """Warn of a spool that cannot be written and so cannot report it."""
        if spool.problem and not self._unwritable:
            self._unwritable = True
            root = spool_root(self._environment)
            warn(f"{spool.problem}: nothing is recorded in {root} until it can be written", self._environment)

    def unreadable(self, problems: Mapping[str, str]) -> None:
        """Warn of records that the decoder cannot read. `problems`: of the session."""
        reasons = [problems[name] for name in _UNREAD if name in problems]
        if reasons and not self._unreadable:
            self._unreadable = True
            warn(f"records cannot be read, they are counted: {reasons[0]}", self._environment)
