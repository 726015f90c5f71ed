"""Settings of rolling windows: their length and hop, and how long they wait for late rows and silent processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from drumline.infra.config.settings import StreamSettings

Array = NDArray[Any]
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """Holds the times of rolling windows, all in ns.

    Windows start at multiples of `hop_ns`, which divides `window_ns`.
    """

    window_ns: int = 10 * SECOND_NS
    #: Two windows overlap: what lasts half a window lies whole in one of them. More would each cost as much again.
    hop_ns: int = 5 * SECOND_NS
    #: For so long a closed window accepts late rows: a batch waits at most seconds on its way to the spool, and what
    #: waits longer, such as during an outage of Kafka, waits with its watermark.
    grace_ns: int = 30 * SECOND_NS
    #: A process without a batch for this long is silent; worker's clock.
    idle_ns: int = 5 * SECOND_NS
    #: How far a row may lie after the time its batch was sent, and before the newest row of its batch. Rows outside
    #: come from a broken clock: they are counted as late and allocate nothing.
    horizon_ns: int = 3600 * SECOND_NS
    #: Silence after which panes are dropped, and after which all state of a process is.
    retire_ns: int = 600 * SECOND_NS
    forget_ns: int = 86_400 * SECOND_NS

    def __post_init__(self) -> None:
        if self.hop_ns <= 0 or self.window_ns <= 0 or self.window_ns % self.hop_ns:
            raise ValueError(f"hop of {self.hop_ns} ns does not divide the window of {self.window_ns} ns")

    @classmethod
    def of(cls, settings: StreamSettings) -> WindowConfig:
        """Return the configuration of settings."""
        hop_ns = round(settings.window_s * SECOND_NS / 2)
        return cls(window_ns=2 * hop_ns, hop_ns=hop_ns, idle_ns=round(settings.idle_s * SECOND_NS))

    def pane_of(self, time_ns: Array) -> Array:
        """Return the start of the pane that each time falls in; i8[n]."""
        return time_ns // self.hop_ns * self.hop_ns

    def windows_of(self, pane: int) -> range:
        """Return the starts of the windows that a pane is part of."""
        return range(pane - self.window_ns + self.hop_ns, pane + self.hop_ns, self.hop_ns)

    def panes_of(self, window: int) -> range:
        """Return the starts of the panes that a window consists of."""
        return range(window, window + self.window_ns, self.hop_ns)

    def pane_is_done(self, pane: int, watermark_ns: int) -> bool:
        """Return whether no window needs the pane any more."""
        return pane + self.window_ns + self.grace_ns <= watermark_ns
