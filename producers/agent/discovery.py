"""Finds the folders of processes in the spool, and removes those of writers that died while they created one."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.folder_layout import IDENTITY, BadSpool
from drumline.producers.spool.quota import MOST_OF_USER
from drumline.producers.spool.root import folders

log = structlog.get_logger()

#: Age up to which a folder without an identity is one that a writer creates; s.
BEGUN_S = 1.0
#: Age at which a folder is removed whose process exited without an identity; s.
ORPHAN_S = 60.0


class FolderDiscovery:
    """Scans the root of a spool for folders that nothing publishes yet. Owned by Agent, in its thread.

    `unreadable`: reason by name of a folder that cannot be read: any user may leave one, so it is logged and counted.
    `waiting`: number of folders that wait until others of their user are published.
    `has_begun`: a writer creates a folder now: its identity comes last.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.unreadable: dict[str, str] = {}
        self.waiting = 0
        self.has_begun = False
        self._listed_ns = -1
        self._foreign: set[str] = set()  # folders that are no spool

    def refresh(self, known: Mapping[str, int], begin: Callable[[SpoolDirectory], None]) -> None:
        """Call `begin` for folders with an identity that are not known, at most MOST_OF_USER of a user.

        `known`: user by name of a folder that is published. Raises OSError for the root.
        """
        before, self.unreadable = self.unreadable, {}
        self._listed_ns, self.has_begun = self._changed_ns(), False
        new_folders = [folder for folder in folders(self._root) if folder.path.name not in known]
        was_waiting, self.waiting, users = self.waiting, 0, Counter(known.values())
        for folder in new_folders:
            name = folder.path.name
            users[folder.user] += 1
            if users[folder.user] > MOST_OF_USER:
                self.waiting += 1
                if not was_waiting and self.waiting == 1:
                    log.warning("a user has too many folders at once: some wait", user=folder.user, most=MOST_OF_USER)
                continue
            try:
                if folder.has(IDENTITY):
                    begin(folder)
                elif name not in self._foreign:
                    self._remove_orphan(folder)
            except FileNotFoundError:  # removed since
                continue
            except (OSError, BadSpool) as error:
                self.unreadable[name] = str(error)
                if name not in before:
                    log.warning("a folder in the spool cannot be read", folder=name, problem=str(error))

    def has_news(self) -> bool:
        """Return whether a folder may have been added since the last `refresh`, at the cost of one system call."""
        return self.has_begun or self._changed_ns() != self._listed_ns

    def _changed_ns(self) -> int:
        try:
            return os.stat(self._root).st_mtime_ns
        except OSError:
            return -1

    def has_unread(self) -> bool:
        """Return whether a process's folder is present."""
        try:
            return any(folder.path.name not in self._foreign for folder in folders(self._root))
        except OSError:
            return False

    def _remove_orphan(self, folder: SpoolDirectory) -> None:
        """Remove a folder without an identity if its writer exited; leave foreign folders in place. Raises OSError,
        BadSpool.
        """
        name = folder.path.name
        if folder.is_foreign():
            self._foreign.add(name)
            log.warning("a folder in the spool is foreign and stays", folder=name, root=str(self._root))
            return
        age_s = time.time() - folder.about().st_mtime
        self.has_begun |= abs(age_s) < BEGUN_S
        if age_s > ORPHAN_S and not folder.has(IDENTITY) and folder.writer_exited():
            folder.remove_unnamed()
