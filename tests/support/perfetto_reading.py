"""Reads a Perfetto trace as its user sees it."""

from collections import Counter, defaultdict

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb


class Reading:
    """A trace as its reader sees it: slices by process and track, counted; flows; ends of collectives; stacks."""

    def __init__(self, content):
        self.trace = pb.Trace.FromString(content)
        tracks, names, open_slices = {}, {}, defaultdict(list)
        self.slices, self.flows, self.ends, self.counters, self.samples = (
            Counter(),
            defaultdict(list),
            {},
            Counter(),
            [],
        )
        for packet in self.trace.packet:
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                parent = tracks.get(track.parent_uuid, (track.name,))
                tracks[track.uuid] = (parent[0], track.name)
            names.update({name.iid: name.name for name in packet.interned_data.event_names})
            if not packet.HasField("track_event"):
                continue
            event = packet.track_event
            process, track = tracks[event.track_uuid]
            if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
                self.slices[process, track.split()[0]] += 1
                for flow in event.flow_ids:
                    self.flows[flow].append((process, names[event.name_iid]))
                open_slices[event.track_uuid].append((packet.timestamp, list(event.flow_ids)))
            elif event.type == pb.TrackEvent.TYPE_SLICE_END:
                begin, flows = open_slices[event.track_uuid].pop()
                assert begin <= packet.timestamp
                self.ends.update({(flow, process): packet.timestamp for flow in flows})
            elif event.type == pb.TrackEvent.TYPE_COUNTER:
                self.counters[process, track] += 1
            else:
                frames = [(f.function_name, f.source_file, f.line_number) for f in event.callstack.frames]
                self.samples.append((process, track, frames, event.callstack_weight))
        assert not any(open_slices.values())
