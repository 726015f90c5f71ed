"""GPU times from events of a fake CUDA: nothing is waited for, and a stream that is captured stays as it is."""

from drumline.producers.engines.gpu_events import MOST_PENDING, GpuEvents


class FakeCuda:
    """A clock that the test advances; events after it are not over."""

    def __init__(self):
        self.now_ms, self.reached_ms, self.capturing, self.created = 0.0, 0.0, False, 0

    def is_current_stream_capturing(self):
        return self.capturing

    def Event(self, enable_timing):  # noqa: N802
        cuda = self
        cuda.created += 1

        class Event:
            at = 0.0

            def record(self, stream=None):
                self.at = cuda.now_ms

            def query(self):
                return self.at <= cuda.reached_ms

            def elapsed_time(self, end):
                return end.at - self.at

        return Event()


def test_times_and_idle_times_come_once_the_gpu_got_there_and_events_are_used_again():
    cuda = FakeCuda()
    events, seen = GpuEvents(cuda), []
    for number in range(50):
        begin = events.begin()
        cuda.now_ms += 2.0
        events.end(number, begin)
        cuda.now_ms += 0.5
        cuda.reached_ms = cuda.now_ms - 4.0
        seen += events.read()
    cuda.reached_ms = cuda.now_ms
    seen += events.read()
    assert seen == [(n, 2_000_000, -1 if n == 0 else 500_000) for n in range(50)]
    assert cuda.created < 14


def test_nothing_is_recorded_into_a_graph_or_beyond_the_bound():
    cuda = FakeCuda()
    events = GpuEvents(cuda)
    cuda.capturing = True
    assert events.begin() is None
    cuda.capturing = False
    cuda.now_ms = 1.0
    for number in range(MOST_PENDING):
        events.end(number, events.begin())
    assert events.begin() is None
