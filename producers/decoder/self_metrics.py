"""Cost and problems of collecting: the `collector` map of a gpu.process.v1 record."""

from __future__ import annotations

import time
from collections.abc import Mapping

from drumline.producers.decoder.buffer_reader import BufferReader
from drumline.producers.decoder.output import SpoolOutput
from drumline.producers.ipc.buffer_pool import Header
from drumline.schemas.topics import Topic


def session_counts(reader: BufferReader, output: SpoolOutput | None, held_ns: int) -> dict[str, float]:
    """Return what a session has read, written, kept and could not read. `held_ns`: longest time CUPTI held records."""
    counts: dict[str, float] = {**reader.records, "bytes": reader.bytes, "held_max_s": held_ns / 1e9}
    counts["unreadable_strings"] = reader.unreadable_strings
    counts["truncated_strings"] = reader.truncated_strings
    if output is None:
        return counts
    spool = output.spool
    counts["spool_bytes"], counts["spool_dropped"] = spool.bytes, spool.dropped.total()
    if output.keeps:
        counts["kept_kernels"], counts["kept_copies"] = spool.kept[Topic.KERNEL], spool.kept[Topic.MEMCPY]
        counts["kept_ranges"] = spool.kept[Topic.RANGE]
    if output.pc_samples.unread:
        counts["unread_samples"] = output.pc_samples.unread
    return {**counts, **output.counted.counts, **output.live.counts, **output.launches.counts}


def collect_metrics(
    header: memoryview, counts: Mapping[str, float], problems: Mapping[str, str], began_ns: int
) -> dict[str, str]:
    """Return the metrics and problems of collecting as text, by name.

    `header`: of the buffer pool. `counts`: the decoder's own, since `began_ns`. `problems`: short name -> sentence.
    """
    numbers: dict[str, float] = {
        **counts,
        "decoder_s": (time.time_ns() - began_ns) / 1e9,
        "buffers": header[Header.COMPLETED],
        "buffers_denied": header[Header.DENIED],
        "records_dropped": header[Header.CUPTI_DROPPED],
        "foreign_buffers": header[Header.FOREIGN],
        "events_lost": header[Header.EVENTS_LOST],
        "launches_lost": header[Header.LAUNCHES_LOST],
        "callback_s": header[Header.CALLBACK_NS] / 1e9,
        "callback_max_s": header[Header.CALLBACK_MAX_NS] / 1e9,
        "flush_max_s": header[Header.FLUSH_NS] / 1e9,
        "job_thread_cpu_s": header[Header.THREAD_NS] / 1e9,
        "decoder_cpu_s": time.process_time(),
    }
    text = {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in numbers.items()}
    return {**text, **{f"problem: {name}": sentence for name, sentence in problems.items()}}
