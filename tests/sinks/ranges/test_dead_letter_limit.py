from drumline.sinks.ranges.dead_letter_limit import PRODUCERS, DeadLetterLimit, FloodGuard


def test_a_few_bad_records_do_not_stop_it():
    gauge = DeadLetterLimit(run=10, ratio=0.5)
    assert not any(gauge.add(i % 5 == 0) for i in range(10_000))


def test_a_run_of_bad_records_stops_it():
    gauge = DeadLetterLimit(run=10, ratio=1.0)
    verdicts = [gauge.add(rejected) for rejected in [False] * 50 + [True] * 10]
    assert not any(verdicts[:-1])
    assert "10 rejected records in a row" in verdicts[-1]


def test_a_share_of_bad_records_stops_it():
    gauge = DeadLetterLimit(run=10, ratio=0.5)
    verdicts = [gauge.add(i % 2 == 0) for i in range(20)]
    assert any("of the last" in v for v in verdicts)


def test_old_records_are_forgotten():
    gauge = DeadLetterLimit(run=10, ratio=0.5, window=20)
    for i in range(12):
        gauge.add(i % 3 == 0)
    for _ in range(1_000):
        assert not gauge.add(False)
    assert any(gauge.add(i % 2 == 0) for i in range(40)), "the good thousand before counts no more"


def test_a_producer_that_floods_is_isolated_and_its_partition_goes_on():
    guard = FloodGuard(run=10, ratio=0.5)
    answers = [guard.add("bad", True) for _ in range(30)]
    assert [bool(isolated) for isolated, _ in answers] == [False] * 9 + [True] * 21
    assert not any(paused for _, paused in answers)
    assert not any(any(guard.add("good", False)) for _ in range(300))
    assert guard.add("bad", True)[0], "for as long as it goes on"


def test_rejected_records_of_many_producers_slow_the_partition_down():
    guard = FloodGuard(run=10, ratio=0.5)
    answers = [guard.add(f"key-{i}", True) for i in range(10)]
    assert "10 rejected records in a row" in answers[-1][1]
    assert not any(paused for _, paused in answers[:-1])
    assert guard.add("key-0", True) == ("", ""), "counts from the start"


def test_invented_keys_take_no_memory():
    guard = FloodGuard(run=10, ratio=0.5)
    for i in range(3 * PRODUCERS):
        guard.add(f"key-{i}", True)
    assert len(guard._producers) == PRODUCERS
