"""Emitting the steps that all live ranks of a communicator have completed: comparing them, and making their batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.parts.parts import allowance_ns
from drumline.streams.core.records import UnreadableValue, stacked
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.block_match import match_blocks
from drumline.streams.lateness.collective_join import KIND_ROW, LATENESS_ROW, StepMatch
from drumline.streams.lateness.cuts import Emission
from drumline.streams.lateness.gap_changes import hidden_parts
from drumline.streams.lateness.lateness_batch import lateness_batch, slices, step_lists
from drumline.streams.lateness.state import CommunicatorState

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
