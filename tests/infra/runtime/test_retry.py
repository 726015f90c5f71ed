from drumline.infra.runtime.retry import FIRST_S, LAST_S, Retry, backoff_s


def test_waits_double_up_to_their_bound_and_jitter_spreads_all_of_each():
    bounds = [backoff_s(attempt, 1.0) for attempt in range(1, 50)]
    assert bounds[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert bounds[-1] == max(bounds) == LAST_S
    assert backoff_s(7, 0.5) == backoff_s(7, 1.0) / 2
    assert backoff_s(7, 0.0) == 0.0


def test_a_try_that_works_ends_the_row():
    retry = Retry()
    delays = [retry.failed(now=100.0, jitter=1.0) for _ in range(3)]
    assert delays == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert retry.at == 100.0 + delays[-1]
    retry.worked()
    assert retry.at <= 100.0
    assert retry.failed(now=0.0, jitter=1.0) == FIRST_S
