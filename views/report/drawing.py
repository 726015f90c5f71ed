"""Draws charts with vl-convert in a child process, `python -m ...report.drawing`, which reads a specification a line.

vl-convert holds Python's lock while it draws: in this process nothing else would run meanwhile. The child loads the
library, which takes as long as all charts of a report, while this process queries.
"""

from __future__ import annotations

import atexit
import json
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec

from drumline.infra.runtime.terminal import write_stream

#: Version of Vega-Lite that specifications are written for.
VEGA_LITE = "6.4"
#: Loads all that a chart needs.
EMPTY = '{"data": {"values": []}, "mark": "point"}'
#: A chart takes 0.1 to 0.8 s of CPU, the library's start 1 s; s.
TIMEOUT_S = 60.0


class ChartProcess:
    """Owns the child, which starts with the first use and ends with this process; safe for several threads.

    One chart is drawn at a time. A child that died, or dies of a chart, is replaced for the next one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._registered = False
        self._closings = 0

    def start(self) -> None:
        """Start the child, unless it runs, and return at once. Does nothing where vl-convert is not installed."""
        if find_spec("vl_convert") is not None:
            with self._lock:
                self._running()

    def draw(self, spec: str) -> str:
        """Return the SVG of a specification, which is JSON in one line.

        Raises:
            ModuleNotFoundError: vl-convert is not installed.
            ValueError: vl-convert refuses the specification, died of it, or takes longer than a minute; or it was
                closed before the chart's turn.
        """
        if find_spec("vl_convert") is None:
            raise ModuleNotFoundError("No module named 'vl_convert'", name="vl_convert")
        closings = self._closings
        with self._lock:
            if closings != self._closings:  # a program that ends does not start a child for each chart that waits
                raise ValueError("the process that draws charts was closed")
            child = self._running()
            assert child.stdin is not None
            assert child.stdout is not None
            answer = ""
            try:
                with suppress(BrokenPipeError):
                    child.stdin.write(f"{spec}\n")
                    child.stdin.flush()
                    if select.select([child.stdout], [], [], TIMEOUT_S)[0]:
                        answer = child.stdout.readline()
            finally:
                if not answer.endswith("\n"):  # the next chart must not get what comes of this one
                    self._end()
            if not answer.endswith("\n"):
                raise ValueError(f"the process that draws charts ended with {child.returncode}")
        svg, error = json.loads(answer)
        if error:
            raise ValueError(error)
        return str(svg)

    def close(self) -> None:
        """End the child, in the middle of a chart too, and drop charts that wait. The next one starts another child."""
        self._closings += 1
        child = self._child
        if child is not None:
            child.kill()  # a thread that draws has the lock until then
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[str]:
        if self._child is not None and self._child.poll() is not None:
            self._end()
        if self._child is None:
            if not self._registered:
                atexit.register(self.close)
                self._registered = True
            command = [sys.executable, "-P", "-m", "drumline.views.report.drawing"]
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="ascii")
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()  # it keeps nothing, and what it does not return is not waited for
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # of a specification that it did not read
                    pipe.close()
        child.wait()


def main() -> None:
    """Draw each line of stdin, and write a line [SVG, error] for it, until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the command, and with it this process
    import vl_convert

    vl_convert.vegalite_to_svg(EMPTY, vl_version=VEGA_LITE)
    for line in sys.stdin:
        try:
            answer = [vl_convert.vegalite_to_svg(line, vl_version=VEGA_LITE), ""]
        except ValueError as error:
            answer = ["", str(error) or "unknown error"]
        write_stream([f"{json.dumps(answer)}\n".encode()])


if __name__ == "__main__":
    main()
