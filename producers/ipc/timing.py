"""Time limits that collector, decoder and derivation agree on; ns."""

#: A record may be older than the request for its buffer by at most this: its thread may have waited in between.
REQUEST_NS = 100_000_000
#: Longest wait for CUPTI's calls of a step; then the step is published as skipped. Less than the minute after which a
#: rank without steps counts as stalled (streams/core/thresholds.py).
HELD_NS = 40_000_000_000
#: A buffer that CUPTI holds for longer is lost: NCCL's own watchdog ends a job whose kernel runs for ten minutes.
LOST_NS = 600_000_000_000
