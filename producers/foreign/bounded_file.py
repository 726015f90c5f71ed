"""Reads files that strangers wrote, plain or gzip, forward and in bounded memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO

from drumline.producers.replay.parquet import BadTrace

GZIP = b"\x1f\x8b"
#: A gzip file may grow to so many times its size, once it has this many bytes: traces grow 10 to 40 times.
MOST_RATIO, RATIO_FROM = 200, 1 << 26
#: Bytes of content that are unpacked at a time.
PIECE = 1 << 16


class BoundedFile:
    """Reads one file from begin to end; gzip by its content, whatever its name is.

    Attributes:
        position: bytes of content read so far.
    """

    def __init__(self, path: Path, progress: Callable[[int], None] = lambda size: None) -> None:
        """Open the file; `progress` is called with the bytes of the file that a read took. Raises BadTrace."""
        self.path, self.position = path, 0
        self._progress, self._reported = progress, 0
        self._failure: BadTrace | None = None
        if path.exists() and not path.is_file():
            raise BadTrace(f"{path}: is no regular file; write its content into one")
        try:
            self._raw: IO[bytes] = path.open("rb")
        except OSError as error:
            raise BadTrace(f"{path}: cannot be opened ({error.strerror})") from None
        self._gzip = None
        if self._raw.read(2) == GZIP:
            self._gzip = gzip.GzipFile(fileobj=self._raw)
        self._raw.seek(0)

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`; b"" at the end. Raises BadTrace where gzip is cut off or a bomb.

        What comes before the cut is returned first.
        """
        content = b"" if self._failure else self._whole(size)
        if self._failure and not content:
            raise self._failure
        at = self._raw.tell()
        self._progress(at - self._reported)
        self._reported = at
        if self._gzip is not None and self.position > max(RATIO_FROM, MOST_RATIO * at):
            raise BadTrace(
                f"{self.path}: grows to more than {MOST_RATIO} times its size, as no trace does; unpack it to read it"
            )
        return content

    def _whole(self, size: int) -> bytes:
        """Return the next bytes, in pieces: a read that fails loses its piece alone. Keeps the failure."""
        pieces: list[bytes] = []
        end = self.position + size
        try:
            while self.position < end:
                piece = (self._gzip or self._raw).read(min(PIECE, end - self.position))
                if not piece:
                    break
                pieces.append(piece)
                self.position += len(piece)
        except EOFError:
            self._failure = BadTrace(
                f"{self.path}: the gzip file is cut off after {self.position:,} bytes of content; copy it again"
            )
        except (OSError, zlib.error) as error:
            self._failure = BadTrace(f"{self.path}: unreadable after {self.position:,} bytes of content ({error})")
        return b"".join(pieces)

    def __enter__(self) -> BoundedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._raw.close()
