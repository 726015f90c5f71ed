"""A suspect's Python is compared with its peer's: a difference counts where it is no chance, and not a single event."""

import numpy as np
import pytest

from drumline.producers.stacks import plan, sampling_run, verdicts
from drumline.streams.stragglers.inspection.comparison import PARTS, MainThread, difference
from drumline.streams.stragglers.inspection.sampled_stacks import PEER, SUSPECT

LOOP, LOAD, WAIT = "main (/a/train.py:9)", "load (/a/data.py:4)", "item (/a/train.py:30)"
SAMPLES = 25


def thread(places, folder="/a"):
    """`places`: PARTS lists of the line that runs in each sample, one of LAYERS, or a frame."""
    out = MainThread()
    for part, lines in enumerate(places):
        texts, counts = np.unique([f"{LOOP};{line}".replace("/a", folder) for line in lines], return_counts=True)
        out.add(part, len(lines), zip(texts.tolist(), counts.tolist(), strict=True))
    return out


def layers(dice, samples=SAMPLES, run=1):
    """Samples of a rank that computes in eight layers, `run` of them in a row in the same one."""
    lines = [f"layer (/a/net.py:{layer})" for layer in dice.integers(1, 9, PARTS * samples // run + 1).repeat(run)]
    return [lines[part * samples : (part + 1) * samples] for part in range(PARTS)]


def mixed(dice, places, frame, share):
    return [[frame if dice.random() < share else line for line in lines] for lines in places]


def test_parts_kinds_and_roles_are_the_agents():
    assert (PARTS, SUSPECT, PEER) == (sampling_run.SUSPECT_PARTS, verdicts.SUSPECT, plan.PEER)


@pytest.mark.parametrize(("share", "chance"), [(0.25, 1e-10), (0.1, 1e-4)])
def test_the_line_that_only_the_suspect_is_in_is_shown_and_no_chance(share, chance):
    dice = np.random.default_rng(0)
    late = thread(mixed(dice, layers(dice), LOAD, share))
    peer = thread(mixed(dice, layers(dice), WAIT, share))
    matched = difference(late, peer)
    assert matched.at == "load (data.py:4)"
    assert matched.share == pytest.approx(share, abs=0.03)
    assert matched.peer_share == 0.0
    assert matched.chance < chance


@pytest.mark.parametrize("run", [1, 10, 25])
def test_a_difference_by_chance_is_as_rare_as_stated_however_long_a_layer_takes(run):
    dice = np.random.default_rng(run)
    chances = [difference(thread(layers(dice, run=run)), thread(layers(dice, run=run))).chance for _ in range(300)]
    assert sum(chance < 0.05 for chance in chances) <= 25
    assert min(chances) > 1e-4


def test_one_checkpoint_in_the_sampling_is_no_reason():
    dice = np.random.default_rng(1)
    places = layers(dice)
    places[6:8] = [["save (/a/train.py:50)"] * SAMPLES] * 2
    matched = difference(thread(places), thread(mixed(dice, layers(dice), WAIT, 0.1)))
    assert (matched.at, matched.share) == ("save (train.py:50)", 0.1)
    assert matched.chance > 0.05


def test_what_takes_longer_in_many_places_is_shown_around_them():
    dice = np.random.default_rng(2)

    def inside(places, share):
        return [[line if dice.random() < share else WAIT for line in lines] for lines in places]

    def slow(share):
        return thread([[f"forward (/a/net.py:20);{line}" if line != WAIT else line for line in lines]
                       for lines in inside(layers(dice), share)])  # fmt: skip

    matched = difference(slow(0.95), slow(0.6))
    assert matched.at == "forward (net.py:20)"
    assert matched.chance < 1e-6


def test_a_program_in_another_folder_is_the_same_and_another_program_is_not_compared():
    dice = np.random.default_rng(3)
    first, second = thread(layers(dice)), thread(layers(dice), folder="/b")
    assert difference(first, second).chance > 0.01
    other = MainThread()
    for part in range(PARTS):
        other.add(part, SAMPLES, [("run (<frozen runpy>:1);serve (/a/other.py:1)", SAMPLES)])
        first.counts.setdefault("run (<frozen runpy>:1)", []).append(SAMPLES)
    assert difference(first, other) is None


def test_a_sampling_that_ended_early_is_not_compared_and_a_part_counts_once():
    dice = np.random.default_rng(4)
    short, whole = thread(layers(dice)[:-1]), thread(layers(dice))
    assert difference(short, whole) is None
    short.add(0, SAMPLES, [(LOOP, SAMPLES)])
    assert difference(short, whole) is None
    short.add(99, SAMPLES, [(f"{LOOP};layer (/a/net.py:1)", SAMPLES)])
    assert difference(short, whole) is not None
