"""The keys of `collector` in gpu.process.v1: what recording did, cost and lost. docs/reference/collector-status.md."""

from __future__ import annotations

#: Counters and times since the decoder started, as text -> meaning.
STATUS_KEYS: dict[str, str] = {
    "kernels": "kernel records decoded",
    "copies": "copy and memset records decoded",
    "markers": "NVTX marker records decoded",
    "payloads": "NVTX payload records decoded: NCCL calls with communicator and bytes",
    "launches": "host launch records decoded; recorded only after a loss, until matching is certain again",
    "peer_copies": "copies between two GPUs; they have no rows",
    "bytes": "bytes of the CUPTI buffers read",
    "spool_bytes": "bytes written to the spool",
    "spool_dropped": "rows evicted from the full spool, or not written to it",
    "unreadable_strings": "names of kernels and markers that could not be read from the job's memory",
    "truncated_strings": "names of kernels and markers of more than 16,384 bytes; they are cut there and end with `…`",
    "held_max_s": "longest time for which a step waited for a buffer that CUPTI had not returned; s",
    "launches_requested": "times that host launches were switched on to match kernels after a loss",
    "late_markers": "markers that arrived after their step was published",
    "given_up_kernels": "pending kernels and calls that were dropped because there were too many",
    "kernels_without_call": "NCCL kernels whose calls were not recorded, as recording began between the two",
    "endless_ranges": "ranges dropped because their end was lost",
    "skipped_steps": "steps published with `skipped = 1`",
    "unattributed_collectives": "collectives without rows, as their call and kernel could not be matched",
    "decoder_s": "age of the decoder; s",
    "decoder_cpu_s": "CPU time of the decoder process; s",
    "job_thread_cpu_s": "CPU time of the collector's thread in the job; s",
    "buffers": "buffers that CUPTI returned",
    "buffers_denied": "buffer requests of CUPTI that found none free; CUPTI then drops records",
    "records_dropped": "records that CUPTI dropped",
    "foreign_buffers": "buffers with records of another CUPTI subscriber; they are lost",
    "events_lost": "steps and scopes of the API that the decoder did not receive",
    "callback_s": "time in CUPTI's buffer callbacks; s",
    "callback_max_s": "longest buffer callback; s",
    "flush_max_s": "longest flush of CUPTI's buffers; s",
}
#: `problem: NAME` -> meaning; the value is a sentence about the last one.
PROBLEMS: dict[str, str] = {
    "taken": "another profiler took CUPTI and left it off; recording restarts",
    "no_kernels": "steps complete without kernels; recording restarts, with growing gaps",
    "collector": "recording ended in the job",
    "control": "the first line of `<spool>/policy` is no policy, or the file cannot be read",
    "settings": "an environment variable of the job has an invalid value",
    "decode": "a buffer could not be decoded; its records count as dropped",
    "size": "CUPTI did not report the size of a kind of record; the rest of the buffer is lost",
    "layout": "records have an unknown size: CUPTI is newer than this version of drumline",
    "derive": "rows could not be derived: a defect",
    "unread": "buffers could not be read before the process exited",
}
