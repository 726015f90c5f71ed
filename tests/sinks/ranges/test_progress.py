from drumline.sinks.ranges.progress import STALLED_S, Progress

PLACE, OTHER = ("gpu.kernel.v1", 3), ("gpu.step.v1", 0)


def test_a_partition_with_lag_that_does_not_move_is_stalled():
    progress = Progress()
    for second in range(int(STALLED_S)):
        assert progress.stalled({PLACE: 7, OTHER: second}, float(second)) == []
    assert progress.stalled({PLACE: 7, OTHER: 99}, STALLED_S) == [PLACE]
    assert progress.stalled({PLACE: 8}, STALLED_S + 1) == [], "it has moved"


def test_a_partition_without_lag_may_stand_still():
    progress = Progress()
    progress.stalled({PLACE: 7}, 0.0)
    progress.stalled({}, 1.0)
    assert progress.stalled({PLACE: 7}, 2 * STALLED_S) == [], "there was nothing to read"
