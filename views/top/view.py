"""Renders a snapshot of `drumline top` for the size of the terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from drumline.infra.clickhouse.coverage import is_too_little
from drumline.infra.guidance.hangs import hang_guidance
from drumline.infra.guidance.links import slow_link_text
from drumline.infra.runtime.terminal import escape_controls, terminal_console
from drumline.views.report.data import Row
from drumline.views.report.gaps import attempts_text, unreported_text
from drumline.views.report.text import LEVELS, OWNERS, action, labelled, unevaluated
from drumline.views.top.data import Detail, TopSnapshot
from drumline.views.top.keys import HELP, ViewState

#: Width below which the host stands in place of the gauge, and run and hosts in the title.
NARROW = 90
#: Width and height of what is written to a file or a pipe: nothing is folded.
PIPE = (100_000, 100_000)
#: Ranks in it, the latest: a few pages of text, also of jobs of many thousands.
MOST_PIPED = 256
#: Columns of text, which are continued on the next line. Numbers never are.
FOLDED = ("", "alarm", "job", "run", "host", "verdicts")
#: Ranks that are shown however low the terminal is; lines of the cursor; s after which data counts as old.
LEAST_RANKS, CURSOR_LINES, OLD_S = 3, 1, 30.0
#: Characters of the gauge.
GAUGE = 24
#: Colour of the gauge of a rank that is late and has no alarm: another rank holds it up.
VICTIM = "grey50"
#: Part of a step from which on that is stated.
VICTIM_SHARE = 0.1
#: State of the alarm -> its colour.
STATES = {"ok": "green", "cleared": "green", "suspect": "yellow", "warning": "dark_orange", "critical": "bold red",
          "insufficient_data": "dim", "standing": "bold yellow", "hung": "bold red"}  # fmt: skip


def view(
    seen: TopSnapshot, width: int, height: int, header: str, error: str = "", state: ViewState = ViewState()
) -> RenderableType:
    """Return the whole view. `error`: reason why the data shown are old. `state`: selected job, order, help."""
    parts: list[RenderableType] = [Text(header, style="dim")]
    if error:
        parts.append(Text(error, style="bold red"))
    if seen.detail is None:
        nothing = "no data yet: nothing is stored; start a job, `drumline replay` or `make demo`"
        return Group(*parts, Text(seen.missing or nothing))
    if state.has_help:
        parts += [Text(line, style="bold") for line in HELP]
    jobs = [job for job in seen.jobs if job["job"] == seen.detail.job] if state.is_focused else seen.jobs
    parts += [_jobs(jobs, width, state.selected), Text(), *_heading(seen, width, state.web_page)]
    below, latest = _below(seen.detail, width, state), _latest(seen.detail)
    is_piped = height >= PIPE[1]
    shown = latest[:MOST_PIPED]
    if not is_piped:
        free = height - CURSOR_LINES - len(_lines(Group(*parts, *below), width))
        shown = _fitting(seen.detail, width, latest, free)
    hidden = len(latest) - len(shown)
    how = "; --json has more" if is_piped else ""
    rest = [Text(f"less late: {hidden:,} more rank{'s' if hidden > 1 else ''}{how}", style="dim")] if hidden else []
    return Group(*parts, _ranks(seen.detail, width, shown, state.order), *rest, *below)


def _fitting(detail: Detail, width: int, latest: list[int], free: int) -> list[int]:
    """Return the latest ranks that fit into `free` lines, beside the header and the line that counts the others.

    Rows of long texts have several lines; only the first one begins with a rank.
    """
    shown = latest[: max(LEAST_RANKS, free)]
    lines = _lines(_ranks(detail, width, shown, ""), width)
    first = max([len("rank"), *(len(str(rank)) for rank in shown)])
    begins = [number for number, line in enumerate(lines) if line[:first].strip()]
    ends = [*begins[2:], len(lines)]
    if len(shown) == len(latest) and ends[-1] <= free:
        return shown
    return latest[: max(LEAST_RANKS, sum(end < free for end in ends))]


def _lines(whole: RenderableType, width: int) -> list[str]:
    console = terminal_console(file=io.StringIO(), width=width, color_system=None)
    return ["".join(segment.text for segment in line) for line in console.render_lines(whole)]


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, expand=False, padding=(0, 2, 0, 0))
    for name in columns:
        is_text = name in FOLDED
        table.add_column(
            name, justify="right" if name in right else "left", no_wrap=not is_text, overflow="fold",
            min_width=None if is_text else len(name),
        )  # fmt: skip
    return table


def _jobs(jobs: list[Row], width: int, selected: str) -> Table:
    narrow = width < NARROW
    names = ("job", "ranks", "kernels", "dropped", "data") if narrow else (
        "job", "run", "ranks", "hosts", "kernels", "dropped", "data"
    )  # fmt: skip
    table = _table(*names, right=("ranks", "hosts", "kernels", "dropped", "data"))
    for job in jobs:
        cells: dict[str, Text | str] = {
            "job": Text(escape_controls(job["job"]), style="reverse" if job["job"] == selected else ""),
            "run": Text(escape_controls(job["run"])),
            "ranks": str(job["ranks"]),
            "hosts": str(job["hosts"]),
            "kernels": f"{job['kernels']:,}",
            "dropped": Text(f"{job['dropped_rows']:,}", style="red" if job["dropped_rows"] else ""),
            "data": age(job["age_s"]),
        }
        table.add_row(*(cells[name] for name in names))
    return table


def age(seconds: float) -> Text:
    """Return the time since the last record was stored."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        text = f"{seconds:.0f} s ago"
    elif seconds < 7200:
        text = f"{seconds / 60:.0f} min ago"
    else:
        text = f"{seconds / 3600:.0f} h ago"
    return Text(text, style="green" if seconds < OLD_S else "yellow")


def _heading(seen: TopSnapshot, width: int, web_page: str) -> list[RenderableType]:
    """Return the job's name, the steps that are compared, and whether it stands still."""
    detail = seen.detail
    assert detail is not None
    whole = next((row for row in detail.window if row["rank"] == -1), None)
    title = escape_controls(detail.job)
    if owner := labelled(detail.labels, OWNERS):
        title += f" ({escape_controls(owner)})"
    if width < NARROW:
        hosts = next((row["hosts"] for row in seen.jobs if row["job"] == detail.job), 0)
        title += f", run {escape_controls(detail.run)}, {hosts} host{'s' if hosts != 1 else ''}"
    if whole is None:
        title += ": insufficient data: no window of steps could be evaluated yet"
    else:
        title += f": steps {whole['first_step']} to {whole['last_step']}, the last that could be evaluated"
    lines = [_hang(row, web_page) for row in detail.hang]
    for row in detail.coverage:
        if is_too_little(row["windows"], row["evaluated"], row["reason"]):
            lines.append(Text(escape_controls(unevaluated(row, detail.job)), style="bold yellow"))
    if restarted := attempts_text(vars(detail), detail.job):
        lines.append(Text(restarted, style="dim"))
    if unreported := unreported_text(vars(detail)):
        lines.append(Text(unreported, style="bold yellow"))
    return [Text(title, style="bold"), *lines]


def _below(detail: Detail, width: int, state: ViewState) -> list[RenderableType]:
    """Return what is below the ranks: the last verdicts, and what was lost."""
    lost = {"dropped": detail.dropped_rows, "late": detail.late_rows, "unreadable": detail.dead}
    counts = ", ".join(f"{count:,} {name}" for name, count in lost.items())
    doubled = f"; {detail.duplicates:,} came twice, stored once" if detail.duplicates else ""
    line = Text(f"rows and records: {counts}{doubled}", style="red" if any(lost.values()) else "dim")
    return [line] if state.is_focused else [Text(), _verdicts(detail, width, state.web_page), line]


def _hang(row: Row, web_page: str) -> Text:
    since = f"{row['seconds']:.0f} s" if row["seconds"] < 120 else f"{row['seconds'] / 60:.0f} min"
    entry = hang_guidance(row["reason"])
    more = f" More: {web_page}{entry.page}" if entry and web_page else ""
    text = f"{row['state']} for {since}: {row['note']}{more}"
    return Text(escape_controls(text), style=STATES[row["state"]])


def _awaited(detail: Detail) -> dict[int, str]:
    """Return the ranks that the job waits for -> standing or hung, which outranks the verdict of their last window."""
    return {rank: row["state"] for row in detail.hang for rank in row["awaited"]}


def _latest(detail: Detail) -> list[int]:
    """Return all ranks: those that the job waits for, then the latest first."""
    late = {row["rank"]: row["late_ms"] for row in detail.window if row["rank"] >= 0}
    awaited = _awaited(detail)
    ranks = late.keys() | awaited.keys() | {row["rank"] for row in detail.steps}
    return sorted(ranks, key=lambda rank: (rank not in awaited, -late.get(rank, 0), rank))


def _ranks(detail: Detail, width: int, shown: list[int], order: str) -> Table:
    """Return ranks in an order of ORDERS; a gauge is the part of the step that the rank was late."""
    narrow = width < NARROW
    names = ("rank", "step", "step ms", "late ms", "host", "alarm") if narrow else (
        "rank", "host", "step", "step ms", "late ms", "", "alarm"
    )  # fmt: skip
    table = _table(*names, right=("rank", "step", "step ms", "late ms"))
    steps = {row["rank"]: row for row in detail.steps}
    verdicts, awaited = {row["rank"]: row for row in detail.window if row["rank"] >= 0}, _awaited(detail)
    scale = max([row["step_ms"] for row in verdicts.values()] + [1e-9])
    keys: dict[str, Callable[[int], Any]] = {
        "rank": lambda rank: rank,
        "step": lambda rank: (steps.get(rank, {"step": -1})["step"], rank),
        "host": lambda rank: ((steps.get(rank) or verdicts.get(rank) or {})["host"], rank),
    }
    for rank in sorted(shown, key=keys[order]) if order in keys else shown:
        step, verdict = steps.get(rank), verdicts.get(rank)
        cells: dict[str, RenderableType] = {
            "rank": str(rank),
            "host": Text(escape_controls((step or verdict or {}).get("host", ""))),
            "step": f"{step['step']:,}" if step else "-",
            "step ms": f"{step['step_ms']:.1f}" if step and step["step_ms"] else "-",
            "late ms": "-",
            "": "",
            "alarm": Text("insufficient data", style="dim"),
        }
        if verdict:
            late, style = verdict["late_ms"], STATES.get(verdict["state"], "")
            style = VICTIM if verdict["state"] == "ok" else style
            cells["late ms"] = f"{late:.1f}"
            cells[""] = ProgressBar(scale, min(late, scale), width=GAUGE, complete_style=style, finished_style=style)
            cells["alarm"] = _verdict_text(verdict, is_victim=late > VICTIM_SHARE * scale)
        if rank in awaited:
            cells["alarm"] = Text(f"{awaited[rank]}: the job waits for it", style=STATES[awaited[rank]])
        table.add_row(*(cells[name] for name in names))
    return table


def _plain(cell: str | Text) -> Text:
    return Text(cell) if isinstance(cell, str) else cell


def _verdict_text(row: Row, is_victim: bool = False, narrow: bool = False) -> Text:
    text = Text().append(escape_controls(row["state"]).replace("_", " "), style=STATES.get(row["state"], ""))
    if row["state"] == "ok" and is_victim:
        return text.append("; held up by others", style="dim")
    if row["state"] not in LEVELS:
        return text
    if row["cause"] == "ok":  # an alarm that is in force until enough windows were good
        return text.append("; this window is ok")
    cause = " ".join(part.replace("_", " ") for part in (row["cause"], row["detail"]) if part)
    return text.append(f" {row['lost_share']:.0%}{' lost' * (not narrow)}: {escape_controls(cause)}")


def _verdicts(detail: Detail, width: int, web_page: str) -> RenderableType:
    if not detail.verdicts:
        return Text("no verdict so far", style="dim")
    narrow = width < NARROW
    lost = "GPU-s" if narrow else "GPU-s lost"
    names = ("verdicts", "UTC", "steps", "", lost) if narrow else ("verdicts", "host", "UTC", "steps", "", lost)
    table = _table(*names, right=("steps", lost))
    for row in detail.verdicts:
        subject = "job" if row["rank"] < 0 else f"rank {row['rank']}"
        host = escape_controls(row["host"])
        place = [f"{subject} {host}".strip()] if narrow else [subject, Text(host)]
        cells = [row["started"][11:19], f"{row['first_step']}–{row['last_step']}", _verdict_text(row, narrow=narrow)]
        table.add_row(*map(_plain, [*place, *cells, f"{row['gpu_seconds']:.1f}"]))
    worst = max(detail.verdicts, key=lambda row: (row["last_step"], row["gpu_seconds"]))
    todo = action(worst["cause"], worst["detail"], detail.job, web_page)
    subject = "the job" if worst["rank"] < 0 else f"rank {worst['rank']}"
    if link := slow_link_text(worst.get("evidence", "")):
        todo = f"{link}. {todo}"
    return Group(table, Text(f"what to do about {subject}: {escape_controls(todo)}", style="dim")) if todo else table
