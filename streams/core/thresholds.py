"""The thresholds of straggler verdicts. Reasons and sources: docs/design/stragglers.md, Thresholds.

A test compares that table with this file (tests/streams/stragglers/test_thresholds_doc.py).
"""

from __future__ import annotations

from dataclasses import dataclass

#: Severities of one window, as gpu.straggler.v1 writes them: what is not known is below all that is.
INSUFFICIENT, OK, SUSPECT, WARNING, CRITICAL = -1, 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class StragglerConfig:
    """Holds the thresholds of one worker, the same for all its stages. Shares are 0..1 of the job's time."""

    #: Windows are runs of steps, never spans of time; of a part of so many steps where those take longer than this.
    window_steps: int = 20
    window_ns: int = 30_000_000_000
    #: A rank or communicator without a batch for this long is silent; ns of the worker's clock.
    idle_ns: int = 5_000_000_000
    #: A source without a new step for this long, and for `stall_steps` of the longest recent steps, is stuck: no window
    #: waits for it; ns of the worker's clock.
    stall_ns: int = 60_000_000_000
    stall_steps: int = 5
    #: How long a communicator smaller than the job waits for more ranks when first seen; ns of the worker's clock.
    settle_ns: int = 2_000_000_000
    #: How long a run that has just begun waits for its other ranks and its first communicator while the worker lags:
    #: their batches may be in Kafka. Without lag idle_ns is enough; ns of the worker's clock.
    join_ns: int = 60_000_000_000
    #: State of a run that is silent for this long is deleted; ns of the worker's clock.
    forget_ns: int = 3_600_000_000_000
    price_per_gpu_hour: float = 0.0

    #: Lost share from which each severity applies.
    suspect: float = 0.02
    warning: float = 0.04
    critical: float = 0.20

    #: Share of a communicator's (or job's) ranks that must be comparable; below it, "insufficient data".
    quorum: float = 0.8
    #: Share of a window's steps that a rank must have been compared in.
    used_steps: float = 0.5
    #: Share of a step's collectives that must be present of all ranks compared; below it, the step is skipped.
    whole_share: float = 0.5

    #: One component explains the excess from this share on (high confidence from the second).
    cause_share: float = 0.6
    cause_share_high: float = 0.8
    #: More blocks or kernels than the peers' median by this ratio means other work, not a slower GPU ...
    imbalance_ratio: float = 1.1
    #: ... if compute is at least this part of the excess (the rest may be launches and allocation for that work).
    imbalance_compute: float = 0.25

    #: Peers' SM clock over the rank's from which it is throttled, if its GPU gives a reason in this share of samples.
    clock_ratio: float = 1.03
    reason_share: float = 0.5
    #: Kernels and blocks within this ratio are the same work.
    equal_ratio: float = 1.01

    #: Part of healthy windows in which a rank may be taken for a straggler by chance, at most.
    chance: float = 0.001
    #: Neighbouring windows that may have all in common: hosts are slow for some seconds.
    alike_windows: int = 2
    #: Share of a step by which ranks are late by chance at least, however little is recorded.
    least_jitter: float = 0.00125

    #: Healthy windows that make up the baseline, and the number of them that it needs.
    baseline_windows: int = 16
    baseline_windows_min: int = 3

    #: All ranks slower together: steps longer than the baseline's median by this ratio, and by as many times its spread
    #: (1.4826 MAD). A job may change by design, so it is never more than `suspect`.
    changed_ratio: float = 1.1
    changed_spreads: float = 5.0
    changed_windows_min: int = 5

    #: Light rows: waits in a communicator are hidden behind compute where gaps took up this share of their change
    #: (gap_changes.py), and of this many spreads, over windows whose weight falls by `hidden_keep` each.
    hidden_share: float = 0.2
    hidden_spreads: float = 4.0
    hidden_keep: float = 0.8
    #: A wait beyond every gap counts by this part of the largest gap, as hidden if its own gap is below that share.
    hidden_spent: float = 0.25
    hidden_gap: float = 0.1

    #: A collective's floor above its own history by this ratio, without a late rank, is a slow link.
    link_ratio: float = 1.3
    #: Healthy windows of the same collectives needed before there is a history.
    link_history: int = 3
    #: A flow of transfers without a history is slow below the median of its peers by this ratio.
    flow_ratio: float = 1.5
    #: Flows of a window whose rates later windows know; with more, they are compared with each other only.
    most_flows: int = 1024

    #: Alarm: a level is raised when `raise_windows` of the last `raise_of` windows reach it, lowered after
    #: `clear_windows` windows in a row below it.
    raise_windows: int = 2
    raise_of: int = 3
    clear_windows: int = 3

    #: Steps kept behind the slowest live rank for late rows; older rows are counted and dropped. Up to max_steps while
    #: ranks or communicators are missing: one topic may be far behind another then.
    retention_steps: int = 64
    #: Largest number of steps kept, however far the ranks drift from each other; a bound on memory.
    max_steps: int = 4096
    #: Verdicts kept for the alarm; windows.
    history_windows: int = 64
    #: A returned batch that is not acknowledged is returned again after this; ns of the worker's clock.
    resend_ns: int = 30_000_000_000

    def severity(self, share: float) -> int:
        """Return the severity of a window that lost `share` of its time."""
        return int(share >= self.suspect) + int(share >= self.warning) + int(share >= self.critical)

    def block_of(self, step: int) -> int:
        """Return the block of a step: k has steps [k * window_steps, (k + 1) * window_steps), one window or more."""
        return step // self.window_steps
