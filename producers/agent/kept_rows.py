"""Rows that stay on the agent's host: counted in windows, kept, and published when they are requested."""

from __future__ import annotations

import errno
import importlib
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from types import ModuleType

import structlog

from drumline.infra.config.settings import Settings
from drumline.infra.runtime.version import drumline_version
from drumline.producers.agent.object_store import LEVEL
from drumline.producers.batching.process_record import process_record
from drumline.producers.identity import host_identity, host_name
from drumline.producers.rollup.folder import ROWS, KeptFolder
from drumline.producers.rollup.host_windows import HostWindows, MakeStages
from drumline.producers.rollup.kept_segments import MOST_SEGMENT, KeptSegments, writer_model
from drumline.producers.rollup.puller import Puller
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.folder_layout import BadSpool, ProcessIdentity
from drumline.producers.spool.quota import PROCESSES, SpoolLimits
from drumline.producers.spool.reader import Segment
from drumline.producers.spool.segment_format import Frame
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.errors import UnknownSchema
from drumline.schemas.model import RecordModel
from drumline.schemas.topics import KEPT_TOPICS

log = structlog.get_logger()

#: Bound of the windows' spool; bytes.
SPOOL_BYTES = 16 << 20


class KeptRows:
    """Belongs to the agent, which calls it from its thread. `windows`, `segments`, `puller`: its parts."""

    def __init__(self, settings: Settings, make: MakeStages, clock: Callable[[], int] = time.time_ns) -> None:
        """Create them in DRUMLINE_AGENT__KEPT_FOLDER. `make`: see HostWindows. `clock`: ns since the epoch.

        Raises OSError.
        """
        self._clock = clock
        root = settings.spool.root
        if settings.agent.kept_folder is None:
            raise OSError(errno.EINVAL, "DRUMLINE_AGENT__KEPT_FOLDER names no folder")
        self.folder = KeptFolder(settings.agent.kept_folder, host_name(settings.host))

        def spool() -> SpoolWriter:
            identity = host_identity("windows", time.time_ns(), {"drumline": drumline_version()}, settings.host)
            limits = SpoolLimits(SPOOL_BYTES, PROCESSES * (settings.spool.max_mb << 20))
            return SpoolWriter(root, process_record(os.environ, identity), limits)

        self.windows = HostWindows(self.folder.path, make, spool)
        compress, decompress = zstd()
        self.segments = KeptSegments(self.folder.path / ROWS, settings.agent.kept_mb << 20, compress, decompress)
        self.puller = Puller(self.segments, root, host_name(settings.host), self.windows.answer, clock)

    def writers(self, identity: ProcessIdentity) -> dict[str, RecordModel]:
        """Return the schemas of the rows that a process may keep; rows of later releases are published."""
        writers = {}
        for topic in KEPT_TOPICS:
            with suppress(UnknownSchema):
                writers[str(topic)] = writer_model(identity, topic)
        return writers

    def take(self, frame: Frame, segment: Segment, writer: RecordModel, release: Callable[[], None]) -> None:
        """Take a kept batch of a segment; `release` is called once its windows are safe."""
        self.segments.begin(segment.folder, segment.number, frame)
        self.windows.take(frame, writer, self._clock(), release)

    def tick(self, caught_up: bool) -> None:
        """Close windows of silent processes, and save all."""
        self.windows.tick(self._clock(), caught_up)
        self.windows.save()
        self.segments.tick()

    def end(self, folders: Collection[str]) -> None:
        """Close the windows' spool if nothing will follow: it is the last of the folders, and no window is open."""
        if self.windows.is_idle and set(folders) == {self.windows.folder}:
            self.windows.end_spool()

    def close(self) -> None:
        """Save all, stop the puller, and close the windows' spool."""
        if self.puller.is_alive():
            self.puller.stop()
        self.windows.close()
        self.folder.close()

    def before(self, done: Callable[[Segment, SpoolDirectory], None]) -> Callable[[Segment, SpoolDirectory], None]:
        """Return what keeps a segment's rows, and then calls `done`."""

        def keep(segment: Segment, folder: SpoolDirectory) -> None:
            self.segments.take(segment, folder)
            done(segment, folder)

        return keep


def zstd() -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    """Return compression and decompression; what they leave as it is without the extra `archive`."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            library = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        return partial(library.compress, level=LEVEL), partial(_decompressed, library)
    log.warning("rows that stay on this host are not compressed: pip install 'drumline[archive]'")
    return bytes, bytes


def _decompressed(library: ModuleType, packed: bytes) -> bytes:
    """Return the content of a segment. Raises BadSpool, also for more than a segment has."""
    decompressor = library.ZstdDecompressor()
    try:
        content: bytes = decompressor.decompress(packed, max_length=MOST_SEGMENT + 1)
    except library.ZstdError as error:
        raise BadSpool(f"a kept segment cannot be unpacked: {error}") from None
    if len(content) > MOST_SEGMENT or not decompressor.eof:
        raise BadSpool("a kept segment is cut off, or has more than was ever kept")
    return content
