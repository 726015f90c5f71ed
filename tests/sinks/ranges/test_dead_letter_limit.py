from drumline.sinks.ranges.dead_letter_limit import DeadLetterLimit


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
