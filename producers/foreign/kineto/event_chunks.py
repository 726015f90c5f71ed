"""Cuts the array `traceEvents` of a Kineto file into runs of whole events, without the file in memory.

A cut is a comma between two closing and opening braces. Whether it lies between two events, or inside one or in a
string, the decoder tells: with a cut in the wrong place a bracket or a string stays open, and nothing decodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from drumline.producers.foreign.bounded_file import BoundedFile
from drumline.producers.foreign.kineto.typed_events import Event, FileInfo
from drumline.producers.replay.parquet import BadTrace

#: Bytes that are decoded at a time, the most of what stands before or behind the events, and of one event.
CHUNK, MOST_INFO, MOST_EVENT = 1 << 22, 1 << 26, 1 << 25
#: Cuts that are tried in one chunk: wrong ones need braces in names or arrays of objects.
MOST_CUTS = 64
_BEGIN = re.compile(rb'"traceEvents"\s*:\s*\[')
_CUT = re.compile(rb"\}\s*,\s*\{")
_END = re.compile(rb'\}\s*(\])\s*(?:,\s*"|\}\s*\Z)')
_AT = re.compile(r"\(byte (\d+)\)")
#: Numbers that JSON does not have, which Kineto writes of rates: they become null.
_NO_NUMBER = re.compile(rb"(:\s*)-?(?:nan|inf(?:inity)?)(?=\s*[,}])", re.IGNORECASE)

_events = msgspec.json.Decoder(list[Event])
_info = msgspec.json.Decoder(FileInfo)
_anything = msgspec.json.Decoder()


class EventChunks:
    """Yields the events of one file, in its order.

    Attributes:
        info: what stands before the events; after the last one also what stands behind them.
        wrong: number of events that were left out because a field has the wrong type.
    """

    def __init__(self, file: BoundedFile) -> None:
        """Read up to the first event. Raises BadTrace."""
        self._file, self.wrong = file, 0
        self._buffer, self._offset, self._error = b"", 0, "no event is whole"
        self.info = self._begin()

    def __iter__(self) -> Iterator[list[Event]]:
        """Yield runs of events. Raises BadTrace with the byte at which the file is no trace, or is cut off."""
        while True:
            size = len(self._buffer)
            more = self._file.read(CHUNK)
            self._buffer += more
            if not more:
                yield from self._last()
                return
            if size > MOST_EVENT:
                self._fail(f"more than {size:,} bytes without an end of an event")
            for cut in islice(_cuts_from_behind(self._buffer), MOST_CUTS):
                events = self._decoded(self._buffer[: cut.start() + 1])
                if events is not None:
                    self._drop(cut.end() - 1)
                    yield events
                    break

    def _begin(self) -> FileInfo:
        while True:
            for match in islice(_BEGIN.finditer(self._buffer), MOST_CUTS):
                try:
                    info = _info.decode(self._buffer[: match.end()].lstrip(b"\xef\xbb\xbf") + b"]}")
                except msgspec.ValidationError as error:
                    self._fail(f"the file's header is not Kineto's ({error})")
                except msgspec.DecodeError:
                    continue
                if info.schema_version not in (None, 1, "1"):
                    self._fail(f"schemaVersion {info.schema_version!r} is not known; drumline reads version 1")
                self._drop(match.end())
                return info
            more = self._file.read(CHUNK)
            if not more:
                self._fail("the file is cut off before its first event, or is no JSON")
            if len(self._buffer) > MOST_INFO:
                self._fail(f"no event in the first {MOST_INFO >> 20} MiB")
            self._buffer += more

    def _last(self) -> Iterator[list[Event]]:
        """Yield the last events and read what stands behind them. Raises BadTrace where the file is cut off."""
        left = self._buffer
        if (empty := left.lstrip())[:1] == b"]":
            try:
                self._join(_info.decode(b'{"":0' + empty[1:]))
            except msgspec.MsgspecError as error:
                self._fail(f"what follows the events is not Kineto's ({error})")
            return
        for match in islice(_END.finditer(left), MOST_CUTS):
            try:
                behind = _info.decode(b'{"":0' + left[match.end(1) :])
            except msgspec.MsgspecError:
                continue
            events = self._decoded(left[: match.start() + 1])
            if events is not None:
                self._join(behind)
                yield events
                return
        yield from self._whole_events()
        self._fail(f"the file is cut off or broken there ({self._error}); export or copy it again")

    def _whole_events(self) -> Iterator[list[Event]]:
        """Yield those events of a file that is cut off which are whole."""
        for cut in islice(_cuts_from_behind(self._buffer), MOST_CUTS):
            events = self._decoded(self._buffer[: cut.start() + 1])
            if events is not None:
                yield events
                self._drop(cut.end() - 1)
                return

    def _decoded(self, content: bytes) -> list[Event] | None:
        """Return the events in `content`; None where it does not end between two events. Raises BadTrace."""
        text, typed = b"[" + content + b"]", True
        for _ in range(4):  # as it is; then one by one, with valid text, without numbers that JSON does not have
            try:
                return _events.decode(text) if typed else self._one_by_one(_anything.decode(text))
            except msgspec.ValidationError as error:
                typed, self._error = False, str(error)
            except RecursionError:
                self._fail("brackets inside each other without end")
            except msgspec.DecodeError as error:
                if "UTF-8" in str(error):
                    text = text.decode("utf-8", "replace").encode()
                    continue
                self._error = str(error)
                match = _AT.search(self._error)
                if match is None or int(match[1]) >= len(text) - 1:
                    return None
                cleaned = _NO_NUMBER.sub(rb"\1null", text)
                if cleaned == text:
                    self._fail("no JSON there", int(match[1]) - 1)
                text = cleaned
        return None

    def _one_by_one(self, values: list[Any]) -> list[Event]:
        """Return the events whose fields have the right types; count the others."""
        good = []
        for value in values:
            try:
                good.append(msgspec.convert(value, Event))
            except msgspec.ValidationError:
                self.wrong += 1
        return good

    def _join(self, behind: FileInfo) -> None:
        for name in behind.__struct_fields__:
            if (value := getattr(behind, name)) is not None:
                setattr(self.info, name, value)

    def _drop(self, size: int) -> None:
        self._buffer = self._buffer[size:]
        self._offset += size

    def _fail(self, reason: str, at: int = 0) -> None:
        raise BadTrace(f"{self._file.path}: byte {self._offset + at:,}: {reason}")


def _cuts_from_behind(content: bytes) -> Iterator[re.Match[bytes]]:
    """Yield the possible cuts, the last one first."""
    end = len(content)
    while end > 0:
        begin = max(0, end - (1 << 14))
        matches = [match for match in _CUT.finditer(content, begin, min(len(content), end + 64)) if match.start() < end]
        yield from reversed(matches)
        end = begin
