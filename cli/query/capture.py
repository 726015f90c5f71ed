"""`drumline capture`: a deep window on a running job."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT, FAILED, INTERRUPTED
from drumline.infra.runtime.terminal import echo, escape_controls, terminal_console
from drumline.schemas.topics import Topic

if TYPE_CHECKING:
    from drumline.schemas.control import Control
    from drumline.views.control.windows import RankState

app = typer.Typer(add_completion=False)
#: Time after the window in which its rows are stored: a sink writes large topics every 10 s.
STORED_S = 20.0
#: Time between two questions about answers and numbers of kernels until the first rows, for at most so long, and
#: between two later, or about all of the rows: their joins cost the engine more; s.
POLL_S, FIRST_S, ROWS_S = 0.25, 15.0, 1.0


@app.command()
def capture(
    job: Annotated[str, typer.Option(help="The job's name; `drumline sql jobs` lists them.")],
    run: Annotated[str, typer.Option(help="A run of it; default: the newest.")] = "",
    ranks: Annotated[str, typer.Option(help="Ranks: 3,7 or 0-7; default: all.")] = "",
    late: Annotated[
        bool, typer.Option("--culprit", help="The rank that cost most in the newest window, and a healthy one.")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Steps, the same on all ranks.")] = 20,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Seconds instead of steps.")] = None,
    lead: Annotated[
        float, typer.Option(min=1, max=120, help="Seconds until the first step: more where hosts are under load.")
    ] = 5.0,
    kinds: Annotated[
        str,
        typer.Option(
            "--with",
            help="kernels (and copies, ranges); launches: when, by which thread, in which scope; stacks: of Python; "
            "pc: what one rank's warps wait for (policy always, CUPTI 13.5.25).",
        ),
    ] = "kernels",
    as_json: Annotated[bool, typer.Option("--json", help="Print what came of it as one JSON object.")] = False,
) -> None:
    """Record a running job in depth for some steps, wait, and print what it got: kernels, copies, launches, stacks.

    CUPTI records all named ranks from some steps before the window to just behind it, then goes. Until then a launch
    costs 1 us more; launch-bound steps take 14 % longer with kernels, 20 % with launches and stacks. A rank that
    begins late misses steps: raise --lead. Processes of policy `light` refuse. Needs Write on drumline.control.v1,
    and ClickHouse. Ctrl-C ends the window. Clocks of hosts may differ by seconds. After pc, a process whose kernels
    are switched off has none until it ends, nor does torch.profiler. DRUMLINE_LOG_LEVEL=WARNING leaves out the
    progress. Steps that are over, of policy `rollup`: `drumline pull`.

    Exit codes: 0 all ranks gave kernels of all steps. 1 some did not, it states why; or a server does not answer or
    rejects. 2 no such job, run or rank, or no step to begin with. 130 Ctrl-C.
    """
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect, rows
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.kafka.connect import BrokerUnreachable
    from drumline.infra.kafka.tail import NoSuchTopic
    from drumline.schemas.control import BadControl
    from drumline.views.control import windows
    from drumline.views.control.control_topic import write
    from drumline.views.control.ranks import BadRankList, ranks_of
    from drumline.views.report.data import NoSuchRun, find_run
    from drumline.views.report.text import timeline_command

    if late and ranks:
        exit_with("capture", BAD_INPUT, "--culprit names the ranks: leave out --ranks")
    config = settings()
    with (
        exit_on_error("capture", NoSuchRun, BadRankList, BadControl, windows.CannotCapture, code=BAD_INPUT),
        exit_on_error("capture", ClickHouseFailed, StackError, NoSuchTopic, BrokerUnreachable),
    ):
        client = connect(config, reader=True, database=config.clickhouse.database)

        def query(sql: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
            return rows(client, sql, values)

        run = str(find_run(query, job, run)[0]["run"])
        named = windows.culprit(query, job, run) if late else ranks_of(ranks)
        wanted = windows.kinds_of(kinds, named)
        known = {row["rank"] for row in query(windows.PROCESSES, {"job": job, "run": run})}
        if strange := sorted(set(named) - known):
            raise NoSuchRun(f"run {run} has no rank {', '.join(map(str, strange))}")
        now_ns = time.time_ns()
        window = (
            windows.window_of_steps(query, job, run, named, steps, now_ns, lead)
            if seconds is None
            else windows.window_of_seconds(job, run, named, seconds, now_ns)
        )
        window = replace(window, stacks="stacks" in wanted, launches="launches" in wanted, pc="pc" in wanted)
        write(config, [(window.key, window)])
        try:
            states_now, first_s = _wait(
                partial(windows.states, query, window, job, run), window, sorted(named or known)
            )
        except KeyboardInterrupt:
            write(config, [(window.key, None)])
            exit_with("capture", INTERRUPTED, f"{window.key} is cleared")
    last = window.last_step if window.last_step >= 0 else window.first_step
    command = timeline_command(job, run, window.first_step, last) if last >= 0 else ""
    if as_json:
        echo(json.dumps({"name": window.key, "job": job, "run": run, "first_step": window.first_step,
                         "last_step": window.last_step, "first_row_s": first_s, "next": command,
                         "ranks": [windows.as_row(state) for state in states_now]}))  # fmt: skip
    else:
        _print(states_now, window, command)
    missing = sorted(set(named or known) - {state.rank for state in states_now if state.kernels})
    if missing:
        exit_with(
            "capture", FAILED, f"no kernels of rank {', '.join(map(str, missing))}: {_reasons(states_now, missing)}"
        )
    if short := windows.short_of_steps(states_now, window):
        of = f"of {window.last_step - window.first_step + 1} steps"
        texts = ", ".join(f"of {state.steps} {of} of rank {state.rank}" for state in short[:5])
        more = f", and not of all of {len(short) - 5} more ranks" if len(short) > 5 else ""
        exit_with("capture", FAILED, f"kernels {texts}{more}: begun late (raise --lead), or records are lost")


def _wait(
    states: Callable[[str], list[RankState]], window: Control, ranks: list[int]
) -> tuple[list[RankState], float | None]:
    """Return the last states, and the seconds from the question to the first stored row; None without one."""
    from drumline.views.control.windows import COUNTS, ROWS, are_over, is_complete

    began = time.monotonic() - (time.time_ns() - window.requested_ns) / 1e9
    until = began + (window.until_ns - window.requested_ns) / 1e9 + STORED_S
    first_s, text, rows_at = None, "", 0.0
    before: list[RankState] = []
    changed_at = began
    while True:
        states_now = states(COUNTS)
        if first_s is None and any(state.kernels for state in states_now):
            first_s = round(time.monotonic() - began, 2)
        line = _progress(states_now, len(ranks), window)
        if line != text and settings().log_level in ("DEBUG", "INFO"):
            text = line
            echo(f"{time.monotonic() - began:5.1f} s  {line}", err=True)
        is_late = time.monotonic() >= until
        if is_late or (are_over(states_now, ranks) and time.monotonic() >= rows_at):
            states_now, rows_at = states(ROWS), time.monotonic() + ROWS_S
            changed_at = changed_at if states_now == before else time.monotonic()
            before = states_now
            if is_late or is_complete(states_now, ranks, time.monotonic() - changed_at):
                return states_now, first_s
        # Two queries a time; a reader may make 600 a minute.
        is_first = first_s is None and time.monotonic() - began < FIRST_S
        time.sleep(POLL_S if is_first else ROWS_S)


def _progress(states_now: list[RankState], ranks: int, window: Control) -> str:
    counts = {answer: sum(state.answer == answer for state in states_now) for answer in dict.fromkeys(
        state.answer for state in states_now if state.answer)}  # fmt: skip
    answers = ", ".join(f"{number} {answer}" for answer, number in sorted(counts.items())) or "no answer yet"
    steps = f", steps {window.first_step} to {window.last_step}" if window.last_step >= 0 else ""
    return f"{window.key}{steps}, {ranks} ranks: {answers}; {sum(state.kernels for state in states_now):,} kernels"


def _print(states_now: list[RankState], window: Control, command: str) -> None:
    table = Table(
        "rank",
        "host",
        "answer",
        "kernels",
        "copies",
        "launches",
        "steps",
        "stacks",
        "samples",
        box=None,
        pad_edge=False,
    )
    for state in states_now:
        texts = (str(state.rank), state.host, state.answer or "none", f"{state.kernels:,}", f"{state.copies:,}",
                 f"{state.launches:,}", str(state.steps), str(state.stacks), f"{state.samples:,}")  # fmt: skip
        table.add_row(*(escape(escape_controls(text)) for text in texts))
    terminal_console().print(table)
    if command:
        echo(f"next: {command}")
    sys.stdout.flush()


def _reasons(states_now: list[RankState], missing: list[int]) -> str:
    by_rank = {state.rank: state for state in states_now}
    reasons = []
    for rank in missing[:5]:
        state = by_rank.get(rank)
        reason = state.reason or f"its answer is {state.answer or 'none'}" if state else "no such process"
        if state and state.answer == "accepted":
            reason = "it is accepted, but the process has marked no step or scope since (drumline.step)"
        if state and not state.answer:
            reason = f"no answer: is `drumline agent` up on its host, with Read on {Topic.CONTROL}?"
        reasons.append(f"rank {rank}: {reason}")
    return "; ".join(dict.fromkeys(reasons))
