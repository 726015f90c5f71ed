"""Writer of Perfetto's protobuf: processes, tracks with nested slices, flows, counters and call stacks.

Names are interned: a trace has each text once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from drumline.views.timeline.lanes import Span, edges

#: The only sequence of packets; its first packet clears the interned names of earlier ones.
_SEQUENCE = 1
_CLEARED, _NEEDED = pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED, pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
_BEGIN, _END, _INSTANT = pb.TrackEvent.TYPE_SLICE_BEGIN, pb.TrackEvent.TYPE_SLICE_END, pb.TrackEvent.TYPE_INSTANT
#: Ids of clocks, as Perfetto numbers them: that of the trace, and UTC.
_BOOTTIME, _REALTIME = 6, 1


class TraceWriter:
    """Collects a trace in memory, then returns its bytes. For one thread."""

    def __init__(self, start_ns: int) -> None:
        """`start_ns`: a time of the trace, ns since the epoch: all times are UTC."""
        self._trace = pb.Trace()
        self._uuid = 0
        self._iids: dict[tuple[str, str], int] = {}
        packet = self._packet(_CLEARED)
        for clock in (_BOOTTIME, _REALTIME):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=start_ns)
        self.slices = 0

    def process(self, name: str, number: int, labels: Iterable[str]) -> int:
        """Add a process; return its track. Processes are shown in the order of their numbers."""
        track = self._descriptor(name, 0, number)
        # Perfetto takes 0 for the kernel's own process.
        track.process.pid = number + 1
        track.process.process_name = name
        track.process.legacy_sort_index = number
        track.process.process_labels.extend(labels)
        return int(track.uuid)

    def track(self, parent: int, name: str, order: int) -> int:
        """Add a track below another one, in the place that `order` gives; return it."""
        return int(self._descriptor(name, parent, order).uuid)

    def spans(self, parent: int, name: str, order: int, spans: Iterable[Span], *, nests: bool = False) -> None:
        """Add a track with spans. What overlaps without nesting gets more tracks of the same name, shown as one."""
        lanes: list[int] = []
        for lane, time, span in edges(spans, nests=nests):
            if lane == len(lanes):
                lanes.append(self.track(parent, name, order))
            packet, iids = self._event(time, lanes[lane], _BEGIN if span else _END)
            if span is not None:
                self.slices += 1
                packet.track_event.name_iid = self._iid("event_names", span.name, iids)
                if span.flow:
                    packet.track_event.flow_ids.append(span.flow)
                self._notes(packet.track_event, span.notes, iids)
                self._intern(packet, iids)

    def counter(self, parent: int, name: str, unit: str, order: int, values: Iterable[tuple[int, float]]) -> None:
        """Add a track of values over time; none, if there is no value."""
        track = 0
        for time, value in values:
            if not track:
                descriptor = self._descriptor(name, parent, order)
                descriptor.counter.unit_name = unit
                track = int(descriptor.uuid)
            packet, _ = self._event(time, track, pb.TrackEvent.TYPE_COUNTER)
            packet.track_event.double_counter_value = value

    def sample(self, track: int, time: int, frames: Iterable[tuple[str, str, int]], count: int) -> None:
        """Add `count` samples of a call stack. frames: function, file and line, the outermost first."""
        packet, iids = self._event(time, track, _INSTANT)
        event = packet.track_event
        name = ""
        for name, file, line in frames:
            event.callstack.frames.add(function_name=name, source_file=file, line_number=line)
        event.name_iid = self._iid("event_names", name or "no frame", iids)
        event.callstack_weight = count
        self._notes(event, (("samples", count),), iids)
        self._intern(packet, iids)

    def serialized(self) -> bytes:
        """Return the trace."""
        return bytes(self._trace.SerializeToString())

    def _packet(self, flags: int = _NEEDED) -> Any:
        return self._trace.packet.add(trusted_packet_sequence_id=_SEQUENCE, sequence_flags=flags)

    def _descriptor(self, name: str, parent: int, order: int) -> Any:
        self._uuid += 1
        track = self._packet().track_descriptor
        track.uuid, track.name = self._uuid, name
        if parent:
            track.parent_uuid = parent
        track.sibling_order_rank = order
        track.child_ordering = pb.TrackDescriptor.EXPLICIT
        return track

    def _event(self, time: int, track: int, kind: int) -> tuple[Any, dict[str, list[tuple[int, str]]]]:
        packet = self._packet()
        packet.timestamp = time
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        return packet, {}

    def _notes(self, event: Any, notes: Iterable[tuple[str, int | float | str]], iids: Any) -> None:
        for name, value in notes:
            note = event.debug_annotations.add(name_iid=self._iid("debug_annotation_names", name, iids))
            if isinstance(value, str):
                note.string_value_iid = self._iid("debug_annotation_string_values", value, iids)
            elif isinstance(value, float):
                note.double_value = value
            else:
                note.int_value = value

    def _iid(self, kind: str, text: str, new: dict[str, list[tuple[int, str]]]) -> int:
        """Return the number of a text; a text without one gets it with this packet."""
        known = self._iids.get((kind, text))
        if known is None:
            known = self._iids[kind, text] = len(self._iids) + 1
            new.setdefault(kind, []).append((known, text))
        return known

    @staticmethod
    def _intern(packet: Any, new: Mapping[str, list[tuple[int, str]]]) -> None:
        for kind, texts in new.items():
            for iid, text in texts:
                if kind == "debug_annotation_string_values":
                    packet.interned_data.debug_annotation_string_values.add(iid=iid, str=text.encode())
                else:
                    getattr(packet.interned_data, kind).add(iid=iid, name=text)
