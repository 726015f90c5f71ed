"""Emitting the steps that all live ranks of a communicator have completed: cut, compared in passes, made batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.parts.joining import allowance_ns
from drumline.streams.core.records import UnreadableValue, stacked
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.block_match import match_blocks
from drumline.streams.lateness.blocks import OpenSteps
from drumline.streams.lateness.collective_join import StepMatch
from drumline.streams.lateness.collective_rows import KIND_ROW, LATENESS_ROW
from drumline.streams.lateness.gap_changes import hidden_parts
from drumline.streams.lateness.lateness_batch import lateness_batch, slices, step_lists
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


#: Step -> its comparison.
Matches = Mapping[int, StepMatch]


def completed_step(state: CommunicatorState, config: StragglerConfig, now_ns: int) -> int:
    """Return the last step that all live ranks have completed; with no live rank, the last step of any."""
    is_whole = 0 < state.world_size <= len(state.members)
    settle_ns = config.settle_ns + allowance_ns(state.world_size)
    settled = is_whole or now_ns - state.first_seen_ns > settle_ns
    if len(state.members) < 2 or not settled:
        return -1
    lowest = state.frontier.lowest()
    return max(state.dirty | {m.complete for m in state.members.values()}) if lowest is None else lowest


def matches_of(cuts: Sequence[Emission], config: StragglerConfig) -> Sequence[Matches | None]:
    """Return the comparison of each cut; None if one of them fails, and each is to be compared alone."""
    try:
        return match_blocks([cut.wanted for cut in cuts], config.quorum, config.whole_share)
    except UnreadableValue:
        raise
    except Exception:
        return [None] * len(cuts)


def lateness_batches(
    state: CommunicatorState, cut: Emission, matches: Matches | None, config: StragglerConfig, now_ns: int
) -> list[Batch]:
    """Return the lateness of the steps of a cut, a batch for each slice of ranks, and record that they are emitted."""
    if matches is None:
        [matches] = match_blocks([cut.wanted], config.quorum, config.whole_share)
    steps = [step for step in cut.steps if step in matches]
    hidden = hidden_parts(steps, matches, config) if state.light else {}
    state.patterns.update(matches[step].pattern for step in steps if matches[step].pattern)
    state.dirty.difference_update(cut.steps)
    rows = stacked([np.zeros(0, LATENESS_ROW), *(matches[step].rows for step in steps)])
    kinds = stacked([np.zeros(0, KIND_ROW), *(matches[step].kinds for step in steps)])
    lists, out = step_lists(kinds, hidden), []
    slices_of_ranks = slices(sorted(state.members))
    for ranks in slices_of_ranks:
        if ranks is slices_of_ranks[-1]:  # complete with the last slice only
            state.emitted = max(state.emitted, cut.through)
        inside = rows[np.isin(rows["rank"], ranks)] if len(slices_of_ranks) > 1 else rows
        out.append(lateness_batch(state, ranks, inside, lists, now_ns))
        state.sequence += 1
    return out
