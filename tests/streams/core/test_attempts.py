"""Attempts of a run: which start of a job a batch belongs to, by the processes that sent it."""

from drumline.streams.core.attempts import CARRIED_NS, Attempts, Sighting
from drumline.streams.core.records import split_run_key
from drumline.streams.core.state_budget import ChargedStore, StateBudget, StateLimits

S, T = 1_000_000_000, 1_700_000_000_000_000_000


class Seen:
    """Places batches of a job, at seconds from its begin."""

    def __init__(self, limits=None):
        self.data = {}
        self.budget = StateBudget(limits)
        self.attempts = Attempts(ChargedStore(self.data, self.budget))

    def restart(self):
        self.attempts = Attempts(ChargedStore(self.data, self.budget))

    def place(self, rank, started, at=None, world=4, name="", stated=True):
        at = started + 10 if at is None else at
        start_ns = T + int(started * S) if stated else 0
        seen = Sighting(rank, name or f"{rank}@{started}", start_ns, T + int(at * S), world)
        return self.attempts.place("job", "run", seen).unit

    def begin(self, second, ranks=4, world=None, **more):
        """Return the units in which the ranks of an attempt begin, each a little later."""
        return {self.place(rank, second + rank / 4, world=world or ranks, **more) for rank in range(ranks)}


def test_processes_that_start_together_are_one_attempt_and_their_successors_the_next():
    seen = Seen()
    [first], [second], [third] = seen.begin(0), seen.begin(100), seen.begin(200)
    assert len({first, second, third}) == 3
    assert split_run_key(second) == ("job", "run")
    assert [a.begin_ns - T for a in map(seen.attempts.of_unit, (first, second, third))] == [0, 100 * S, 200 * S]
    assert seen.place(3, 0.75, at=99) == first, "a late batch of the first attempt belongs to it"
    assert [seen.attempts.is_over(unit) for unit in (first, second, third)] == [True, True, False]


def test_the_order_in_which_ranks_report_changes_nothing():
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        seen = Seen()
        placed = [{seen.place(rank, begin + rank / 4) for rank in order} for begin in (0, 50)]
        assert [len(units) for units in placed] == [1, 1]
        assert placed[0] != placed[1]
        [unit] = placed[1]
        assert seen.attempts.of_unit(unit).started_ns() == T + 50 * S, "the name is that of the first process"


def test_a_restarted_decoder_is_another_source_of_the_same_process():
    seen = Seen()
    [only] = seen.begin(0)
    assert seen.place(2, 0.5, at=40, name="decoder 2") == only
    assert seen.place(2, 0.5000001, at=50, name="the other tier") == only, "which read the clock at another moment"
    assert seen.begin(100) != {only}


def test_more_and_fewer_ranks_are_other_attempts():
    for order in (range(4), range(3, -1, -1)):
        seen = Seen()
        [four], [two] = seen.begin(0), seen.begin(100, ranks=2)
        again = {seen.place(rank, 200 + rank / 4) for rank in order}
        assert len(again | {four, two}) == 3
        assert [len(seen.attempts.of_unit(unit).processes) for unit in (four, two, *again)] == [4, 2, 4]
        assert [seen.attempts.of_unit(unit).world_size for unit in (four, two, *again)] == [4, 2, 4]


def test_a_host_that_is_late_by_minutes_reports_its_old_attempt_first():
    seen = Seen()
    first = {seen.place(rank, rank / 4) for rank in (0, 1)}
    second = {seen.place(rank, 300 + rank / 4) for rank in (0, 1)}
    assert {seen.place(rank, rank / 4) for rank in (2, 3)} == first
    assert {seen.place(rank, 300 + rank / 4) for rank in (2, 3)} == second


def test_an_attempt_that_is_only_known_when_the_next_one_runs_is_the_one_before():
    seen = Seen()
    [second], [first] = seen.begin(300), seen.begin(0)
    assert first != second
    assert seen.attempts.is_over(first)
    assert not seen.attempts.is_over(second)


def test_the_clock_of_a_host_may_be_wrong_by_hours():
    for error in (-3 * 3600, 3 * 3600):
        seen = Seen()
        for begin in (0, 600):
            healthy = {seen.place(rank, begin + rank / 4) for rank in (0, 1, 2)}
            assert healthy == {seen.place(3, begin + error)}
            assert len(healthy) == 1


def test_ranks_that_did_not_restart_are_carried_into_the_next_attempt():
    seen = Seen()
    [first] = seen.begin(0)
    second = seen.place(1, 100)
    assert second != first
    assert seen.place(0, 0, at=101) == first, "launchers need some time to kill the others"
    quiet = 100 + CARRIED_NS // S + 20
    assert {seen.place(rank, rank / 4, at=quiet) for rank in (0, 2, 3)} == {second}
    assert seen.place(1, 0.25, at=quiet) == first, "that was replaced"
    assert seen.place(2, 300) not in (first, second)


def test_a_rank_that_there_is_no_more_is_carried_nowhere():
    seen = Seen()
    [first] = seen.begin(0)
    [second] = seen.begin(100, ranks=2)
    assert seen.place(3, 0.75, at=500, world=4) == first
    assert seen.attempts.of_unit(second).processes.keys() == {0, 1}


def test_a_producer_that_does_not_state_the_start_is_known_by_its_process_ids():
    seen = Seen()
    [first], [second] = (seen.begin(begin, stated=False) for begin in (0, 100))
    assert first != second
    assert seen.place(2, 0.5, at=90, stated=False) == first


def test_attempts_are_the_same_after_a_restart_of_the_worker():
    seen = Seen()
    [first], [second] = seen.begin(0), seen.begin(100)
    seen.restart()
    assert {seen.place(rank, 100 + rank / 4, at=150) for rank in range(4)} == {second}
    assert seen.place(3, 0.75, at=50) == first
    assert seen.begin(200).isdisjoint({first, second})
    seen.attempts.keep({second}, ())
    assert not [name for name in seen.data if first in name]
    assert seen.place(3, 100.75, at=160) == second


def test_no_attempt_is_taken_in_while_the_worker_is_full():
    seen = Seen(StateLimits(worker_bytes=1))
    seen.budget.charge("job", 2)
    assert seen.place(0, 0) != seen.place(0, 100)
    assert not seen.data
    assert seen.attempts.at("job", "run", T) is None


def test_samples_belong_to_the_attempt_of_their_time():
    seen = Seen()
    [first], [second] = seen.begin(0), seen.begin(100)
    times = {-5: first, 50: first, 99: first, 101: second, 500: second}
    assert {at: seen.attempts.at("job", "run", T + at * S).unit for at in times} == times
