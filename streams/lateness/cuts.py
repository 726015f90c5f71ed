"""Cutting completed steps of communicators into records that Kafka takes, and into passes that compare many of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from drumline.streams.lateness.blocks import OpenSteps
from drumline.streams.lateness.state import CommunicatorState

#: Bytes of stored values that are compared together.
PASS_BYTES = 16 << 20


class Emission(NamedTuple):
    """Holds steps of a communicator that are emitted in one record for each slice of its ranks.

    Attributes:
        unit: the communicator, as `CommunicatorStage` has it.
        steps: rising.
        through: the last step that is complete with them.
        is_last: nothing behind them is emitted now.
        wanted: the steps to compare: these, and where they are light, those before them.
    """

    unit: tuple[str, str]
    steps: list[int]
    through: int
    is_last: bool
    wanted: OpenSteps


def cut_steps(state: CommunicatorState, frontier: int, most_rows: int) -> list[Emission]:
    """Return the steps up to `frontier` that are not emitted yet, in cuts of at most `most_rows` rows."""
    steps = sorted(step for step in state.dirty if step <= frontier)
    if state.light:  # a step is compared with the step before
        steps = sorted({*steps, *(step + 1 for step in steps if step < state.emitted)})
    most = max(1, most_rows // len(state.members))
    parts = [steps[at : at + most] for at in range(0, len(steps), most)] or [[]]
    ends = [*(part[-1] for part in parts[:-1]), frontier]
    cuts = []
    for part, end in zip(parts, ends, strict=True):
        wanted = sorted({*part, *(step - 1 for step in part)}) if state.light else part
        open_steps = OpenSteps(len(state.members), wanted, state.chunks.of_steps(wanted), state.light)
        cuts.append(Emission((state.run_key, state.communicator), part, end, part is parts[-1], open_steps))
    return cuts


def passes(cuts: Iterable[Emission]) -> Iterator[list[Emission]]:
    """Yield the cuts that are compared together."""
    together: list[Emission] = []
    size = 0
    for cut in cuts:
        together.append(cut)
        size += sum(map(len, cut.wanted.stored))
        if size >= PASS_BYTES:
            yield together
            together, size = [], 0
    if together:
        yield together
