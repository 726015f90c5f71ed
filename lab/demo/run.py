"""Runs the whole platform on this machine: replays one recorded job and checks the results."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from confluent_kafka import KafkaException
from rich.console import Console

from drumline.infra.clickhouse.client import ClickHouseFailed, connect, rows
from drumline.infra.config.settings import Settings
from drumline.infra.kafka.drain import wait_stored
from drumline.infra.runtime.processes import ManagedProcess, ProcessFailed, check_all
from drumline.lab.demo.report import print_counts, print_kernels, print_rates, print_verdicts, verdicts
from drumline.lab.demo.worker import APP_ID, DemoFailed, commit_ends, has_nothing_to_read, require_no_worker
from drumline.lab.demo_recording import DEMO_RECORDING
from drumline.lab.row_counts import RunQuery, counts

#: The recording's phases are 10 to 24 steps long; the default of 20 would leave most of them without a whole window.
WINDOW_STEPS = 5
DRAIN_S = 180.0
#: Time between two lines of a long stage in a pipe; s.
REPORT_S = 10.0
#: Times that a live demo plays the recording, so that there is time to watch it.
LIVE_LOOPS = 8


def drumline(*args: str, ok: tuple[int, ...] = (0,)) -> str:
    """Run `drumline ARGS` and return its stdout. Raises DemoFailed with the end of its stderr."""
    command = [sys.executable, "-m", "drumline.cli.app", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in ok:
        raise DemoFailed(f"drumline {' '.join(args)}: exit {done.returncode}\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def run_json(*args: str, ok: tuple[int, ...] = (0,)) -> Any:
    """Run `drumline ARGS --json` and return the parsed result."""
    return json.loads(drumline(*args, "--json", ok=ok))


class PeakMemory:
    """Samples the resident memory of process trees from a daemon thread, within its block.

    peak: largest sum so far; bytes. Shared pages count once per process.
    """

    def __init__(self, roots: Callable[[], list[int]]) -> None:
        self.peak = 0
        self._roots = roots
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self._stop.wait(0.5):
            seen: dict[int, int] = {}
            for pid in self._roots():
                try:
                    root = psutil.Process(pid)
                    seen |= {p.pid: p.memory_info().rss for p in [root, *root.children(recursive=True)]}
                except psutil.NoSuchProcess:
                    continue
            self.peak = max(self.peak, sum(seen.values()))

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def stage(console: Console, text: str) -> Iterator[None]:
    """Show a text while the block runs, then its time; in a pipe every REPORT_S too, so that none seems dead."""
    started, done = time.monotonic(), threading.Event()

    def report() -> None:
        while not done.wait(REPORT_S):
            console.print(f"  {text}: {time.monotonic() - started:.0f} s so far", soft_wrap=True)

    if not console.is_terminal:
        threading.Thread(target=report, daemon=True).start()
    try:
        with console.status(text):
            yield
    finally:
        done.set()
    console.print(f"  {text} [dim]{time.monotonic() - started:.1f} s[/dim]")


def run_demo(settings: Settings, console: Console, keep: bool, live: bool = False) -> bool:
    """Run the demo on the local stack, which it starts and, without `keep` or `live`, stops.

    `live`: the web page is there first, and the job takes its own time, LIVE_LOOPS times.

    Returns True if all counts are equal, the audit is clean, and exactly the injected stragglers were found. Raises
    DemoFailed.
    """
    require_no_worker(settings)
    users = settings
    settings = settings.model_copy(update={"stream": settings.stream.model_copy(update={"app_id": APP_ID})})
    with stage(console, "Kafka and ClickHouse"):
        was_up = run_json("status", ok=(0, 1))["running"]
        drumline("up", "--servers")
    try:
        is_right = _on_the_stack(settings, users, console, live)
        if keep and not live:
            _show_page(settings, console)
        elif not live:
            console.print("as a web page: make demo KEEP=1, or drumline up", soft_wrap=True)
        return is_right
    except ClickHouseFailed as error:
        raise DemoFailed(f"ClickHouse: {error}; see `drumline status`") from None
    finally:
        if not (keep or live or was_up):
            with stage(console, "Shutting down"):
                drumline("down")


def _show_page(settings: Settings, console: Console, path: str = "/job/demo") -> None:
    """Start the web page, if it is not there, and print its address."""
    from drumline.views.serve.access import AccessNotSafe
    from drumline.views.serve.kept_page import start_page
    from drumline.views.serve.web_server import CannotServe

    try:
        address = start_page(settings)
    except (AccessNotSafe, CannotServe) as error:
        raise DemoFailed(str(error)) from None
    console.print(
        f"\n[bold]web page: {address}{path}[/bold]   (`drumline down` ends it, and the stack)", soft_wrap=True
    )


def _on_the_stack(settings: Settings, users: Settings, console: Console, live: bool) -> bool:
    with stage(console, "Topics and tables"):
        drumline("topics", "apply")
        drumline("migrate")
    logs = settings.local.state / "logs"
    env = {
        "DRUMLINE_STREAM__APP_ID": APP_ID,
        "DRUMLINE_STREAM__WINDOW_STEPS": str(WINDOW_STEPS),
        "DRUMLINE_METRICS_PORT": "0",  # a worker and a sink of the user's may have the default ports
        "DRUMLINE_SINK__BULK_FLUSH_S": "1",  # somebody waits for the end
    }
    programs = [
        ManagedProcess("stream worker", ["stream"], logs / "demo-stream.log", env),
        ManagedProcess("sink", ["sink"], logs / "demo-sink.log", env),
    ]
    roots = _stack_pids()
    with PeakMemory(lambda: [*roots, *(p.pid for p in programs if p.pid), psutil.Process().pid]) as memory:
        try:
            commit_ends(settings)
            leaves_out = has_nothing_to_read(users)
            for program in programs:
                program.start()
            replay_options = ["--speed", "1", "--loop", str(LIVE_LOOPS)] if live else ["--speed", "max"]
            if live:
                _show_page(settings, console, "/")
            with stage(
                console, f"Playing the job {LIVE_LOOPS} times, 18 s each" if live else "Replaying the recording"
            ):
                summary = run_json("replay", str(DEMO_RECORDING), *replay_options, "--job", "demo")
            with stage(console, "Waiting until every row is stored and every window closed"):
                waited = wait_stored(settings, DRAIN_S, lambda: check_all(programs))
                if not waited:
                    raise DemoFailed(f"not drained after {DRAIN_S:.0f} s: {waited.reason}; logs in {logs}")
            if leaves_out:
                commit_ends(users)  # its worker's windows are longer than the phases of the demo's job
        except ProcessFailed as error:
            raise DemoFailed(str(error)) from None
        except KafkaException as error:
            raise DemoFailed(f"Kafka: {error.args[0].str()}; see `drumline status`") from None
        finally:
            for program in programs:
                program.stop()
    return _report(settings, console, summary, memory.peak)


def _reader(settings: Settings) -> RunQuery:
    """Return a function that queries as the read-only user."""
    client = connect(settings, reader=True, database=settings.clickhouse.database)
    return lambda sql, parameters: rows(client, sql, parameters)


def _stack_pids() -> list[int]:
    """Return the pid of the local stack's supervisor; the servers are its children."""
    pid = run_json("status")["processes"].get("supervisor", {}).get("pid")
    return [pid] if pid else []


def _report(settings: Settings, console: Console, summary: dict[str, Any], peak: int) -> bool:
    run = summary["run"]
    query = _reader(settings)
    stored = counts(query, run, summary["rows"])
    audit = run_json("audit", "--run", run, ok=(0, 1))
    report = verdicts(query, run, json.loads((DEMO_RECORDING / "manifest.json").read_text())["phases"])
    print_counts(console, stored)
    console.print(f"audit: {'clean' if audit['clean'] else 'NOT CLEAN'}")
    for finding in audit["findings"]:
        console.print(f"  {finding['kind']} {finding['where']}: {finding['text']}", style="red", markup=False)
    print_verdicts(console, report)
    print_kernels(console, query, run)
    print_rates(console, query, run, settings.stream.window_s)
    written = run_json("report", "--job", "demo", "--run", run, "-o", str(settings.local.state / "demo-report.html"))
    console.print(f"\npeak memory of all processes {peak / 2**20:,.0f} MiB; job demo, run {run}")
    console.print(f"report, to be opened in a browser: {written['path']}", soft_wrap=True)
    return audit["clean"] and report.right and all(c.published == c.stored for c in stored)
