"""State of a ring as far as the agent has published it, so that a killed agent goes on exactly there.

    <spool>/.agent/rings/<ring>.pending   the state after some records, and the batches of them that may not be written
    <spool>/.agent/rings/<ring>.done      the same, and they are

Each is put in place by a rename. A killed agent appends the batches of a pending one again: they keep their sequences,
by which a batch that was appended before is recognised.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from drumline.producers.rings.ring_file import RingFile
from drumline.producers.spool.files import LISTED, agent_folder, open_file
from drumline.producers.spool.folder_layout import BadSpool
from drumline.producers.spool.segment_format import DATA, Frame, head, scan

FOLDER, PENDING, DONE, SCRATCH = "rings", ".pending", ".done", ".tmp"


class SpoolFrame(NamedTuple):
    """One batch: topic, key, Avro body without schema id, number of rows."""

    topic: str
    key: str
    body: bytes
    rows: int


class Checkpoint:
    """State of one ring on disk. Every method accesses the disk and raises OSError."""

    def __init__(self, root: Path, ring: RingFile) -> None:
        self._root = root
        self._name = f"{ring.created_ns:x}-{ring.about.st_dev:x}-{ring.about.st_ino}"

    def load(self) -> tuple[dict[str, Any], list[SpoolFrame]] | None:
        """Return the state and the batches that may not be written yet; None if there is no usable one."""
        with _folder(self._root) as folder:
            for suffix in (PENDING, DONE):
                with suppress(OSError, BadSpool, ValueError):
                    with open(open_file(self._name + suffix, directory=folder), "rb") as handle:
                        text, _, frames = handle.read().partition(b"\n")
                    state = json.loads(text)
                    if isinstance(state, dict):
                        return state, list(_frames(frames)) if suffix == PENDING else []
        return None

    def save(self, state: str, frames: Sequence[SpoolFrame]) -> None:
        """Write the state (JSON) after some records, and their batches, which are appended next."""
        content = [state.encode(), b"\n"]
        for frame in frames:
            content += (head(DATA, frame.topic, frame.key, frame.rows, 1, frame.body), frame.body)
        with _folder(self._root) as folder:
            scratch = self._name + SCRATCH
            with open(open_file(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, folder), "wb") as handle:
                handle.write(b"".join(content))
            os.replace(scratch, self._name + PENDING, src_dir_fd=folder, dst_dir_fd=folder)

    def done(self) -> None:
        """Note that the batches are written."""
        with _folder(self._root) as folder:
            os.replace(self._name + PENDING, self._name + DONE, src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self) -> None:
        """Delete it: the ring is gone."""
        with _folder(self._root) as folder:
            for suffix in (SCRATCH, PENDING, DONE):
                with suppress(FileNotFoundError):
                    os.unlink(self._name + suffix, dir_fd=folder)


def _frames(data: bytes) -> Iterator[SpoolFrame]:
    for frame in scan(data, complete=True):
        if isinstance(frame, Frame):
            yield SpoolFrame(frame.topic, frame.key, frame.body, frame.rows)


@contextmanager
def _folder(root: Path) -> Iterator[int]:
    with agent_folder(root) as agent:
        with suppress(FileExistsError):
            os.mkdir(FOLDER, 0o700, dir_fd=agent)
        folder = os.open(FOLDER, LISTED, dir_fd=agent)
    try:
        yield folder
    finally:
        os.close(folder)
