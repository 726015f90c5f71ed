"""The process that draws charts."""

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import vl_convert

from drumline.views.report import drawing
from drumline.views.report.drawing import VEGA_LITE, ChartProcess

SPEC = json.dumps({
    "data": {"values": [{"x": 1, "name": "é\u2028 <b>"}]},
    "mark": "bar",
    "encoding": {"x": {"field": "x", "type": "quantitative"}, "y": {"field": "name", "type": "nominal"}},
})  # fmt: skip


@pytest.fixture
def process():
    drawn = ChartProcess()
    yield drawn
    drawn.close()


def child(process):
    return process._child


def test_a_chart_is_the_one_that_vl_convert_draws(process):
    process.start()
    assert process.draw(SPEC) == vl_convert.vegalite_to_svg(SPEC, vl_version=VEGA_LITE)


def test_threads_run_while_a_chart_is_drawn(process):
    process.start()
    os.kill(child(process).pid, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        drawn = pool.submit(process.draw, SPEC)
        try:
            assert not drawn.done()  # and this thread is here, not in vl-convert
        finally:
            os.kill(child(process).pid, signal.SIGCONT)
        assert drawn.result().startswith("<svg")


def test_a_refused_specification_is_an_error_and_the_next_chart_is_drawn(process):
    with pytest.raises(ValueError, match="conversion failed"):
        process.draw('{"mark": "no such mark", "data": {"values": []}, "encoding": 5}')
    assert process.draw(SPEC).startswith("<svg")


def test_a_process_that_died_between_two_charts_is_replaced(process):
    process.start()
    exited = child(process)
    exited.kill()
    exited.wait()
    assert process.draw(SPEC).startswith("<svg")
    assert child(process).pid != exited.pid


@pytest.mark.parametrize("end", ["killed", "too late"])
def test_a_process_that_does_not_return_a_chart_is_replaced_for_the_next(process, monkeypatch, end):
    process.start()
    stuck = child(process)
    os.kill(stuck.pid, signal.SIGSTOP)
    monkeypatch.setattr(drawing, "TIMEOUT_S", 0.1 if end == "too late" else 60.0)
    if end == "killed":
        threading.Timer(0.2, stuck.kill).start()
    with pytest.raises(ValueError, match="ended with -9"):
        process.draw(SPEC)
    monkeypatch.undo()
    assert process.draw(SPEC).startswith("<svg")
    assert child(process).pid != stuck.pid


def test_the_end_does_not_wait_for_a_chart(process):
    process.start()
    os.kill(child(process).pid, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        drawn = pool.submit(process.draw, SPEC)
        while not process._lock.locked():
            pass
        process.close()
        with pytest.raises(ValueError, match="ended with -9"):
            drawn.result()


class CountedLock:
    """A lock that knows who came for it."""

    def __init__(self):
        self.lock, self.came = threading.Lock(), []

    def __enter__(self):
        self.came.append(threading.get_ident())
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


def test_charts_that_wait_at_the_end_start_no_other_process(process, monkeypatch):
    process.start()
    os.kill(child(process).pid, signal.SIGSTOP)
    lock, started, begin = CountedLock(), [], drawing.subprocess.Popen
    monkeypatch.setattr(process, "_lock", lock)
    monkeypatch.setattr(drawing.subprocess, "Popen", lambda *a, **k: started.append(1) or begin(*a, **k))
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(process.draw, SPEC) for _ in range(4)]
        while len(lock.came) < 4:
            pass
        process.close()
        assert all(isinstance(drawn.exception(), ValueError) for drawn in waiting)
    assert not started


def test_no_process_remains_after_the_end(process):
    process.start()
    ended = child(process)
    process.close()
    assert ended.poll() is not None
    process.close()
