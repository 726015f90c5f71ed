"""A step of several ranks as one drawing: a row per rank, what its GPU did, and how long it waited for the others.

All rows begin where the rank's last collective before the step ended. That moment is the same for ranks that meet in
it, so clocks of hosts do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from drumline.infra.runtime.terminal import escape_controls
from drumline.views.report.data import NoSuchRun, Query, Row, find_run
from drumline.views.serve import queries

#: Rows of the drawing: the latest ranks, and ranks that were not late.
LATE_RANKS, PEERS = 4, 4
#: Parts of the drawing in which the kind with most time is drawn.
BINS = 600
#: Kind -> (text, colour): what fills most of the time first.
KINDS = {
    "matrix": ("matrix kernels", "--series-1"),
    "other": ("other kernels", "--series-7"),
    "copy": ("copies", "--series-5"),
}
WIDTH, SLIM, ROW, LABEL, TOP = 960, 370, 44, 92, 8


@dataclass(frozen=True)
class StepPage:
    """Holds a step: its ranks with budget and lateness, the latest first, and what is drawn of some."""

    job: str
    run: Row
    step: int
    rank: int | None
    ranks: list[Row]
    drawn: list[Row]
    length_ms: float
    segments: list[TimelinePart]


@dataclass(frozen=True)
class TimelinePart:
    """A coloured part of a row, ms from the step's begin. kind: of KINDS, "transfer", "wait". note: shown on it."""

    rank: int
    kind: str
    begin_ms: float
    end_ms: float
    note: str = ""


def step_page(query: Query, job: str, run: str, step: int, rank: int | None) -> StepPage:
    """Load a step. Raises NoSuchRun and the query's errors."""
    chosen, _ = find_run(query, job, run)
    scope = {"job": job, "run": chosen["run"], "since": chosen["started"], "until": chosen["ended"], "step": step}
    rows = query(queries.STEP, scope)
    if not rows:
        raise NoSuchRun(f"run {chosen['run']!r} of job {job!r} has no step {step} with GPU times")
    late = {row["rank"]: row for row in query(queries.STEP_LATENESS, scope)}
    unknown = {"late_ms": None, "wait_ms": None}
    ranks = [{**row, **{k: late.get(row["rank"], unknown)[k] for k in unknown}} for row in rows]
    ranks.sort(key=lambda row: (-(row["late_ms"] or 0), row["rank"]))
    drawn = choose(ranks, rank)
    length_ms = max(row["step_ms"] for row in drawn)
    begins = [_ns(row["begin"]) for row in drawn]
    numbers = [row["rank"] for row in drawn]
    times = {
        **scope, "ranks": numbers, "begins": begins, "length_ns": round(length_ms * 1e6), "bins": BINS,
        "since": _text(min(begins) - 10**9), "until": _text(max(begins) + round(length_ms * 1e6)),
    }  # fmt: skip
    work = merge(query(queries.STEP_WORK, times), length_ms)
    starts = dict(zip(numbers, begins, strict=True))
    collectives = [segment for row in query(queries.STEP_COLLECTIVES, times) for segment in _collective(row, starts)]
    return StepPage(job, chosen, step, rank, ranks, drawn, length_ms, work + collectives)


def latest_step(
    query: Query, job: str, run: str, steps: tuple[int, int], ranks: tuple[int, int]
) -> tuple[int, int] | None:
    """Return the step and rank, of those between the given, in which a rank came latest to its collectives.

    Without lateness it is the first step that is known; None without one. Raises NoSuchRun and the query's errors.
    """
    chosen, _ = find_run(query, job, run)
    cell = {"job": job, "run": chosen["run"], "first": steps[0], "last": steps[1], "first_rank": ranks[0],
            "last_rank": ranks[1]}  # fmt: skip
    rows = query(queries.LATEST_STEP, cell) or query(queries.FIRST_STEP, cell)
    return (rows[0]["step"], rows[0]["rank"]) if rows else None


def choose(ranks: list[Row], rank: int | None) -> list[Row]:
    """Return the ranks to draw, by number: `rank`, the latest ones, and some that wait. `ranks`: the latest first."""
    latest = sorted(ranks, key=lambda row: row["rank"] != rank)
    chosen = latest[:LATE_RANKS] + latest[LATE_RANKS:][-PEERS:]
    return sorted(chosen, key=lambda row: row["rank"])


def merge(rows: Sequence[Row], length_ms: float) -> list[TimelinePart]:
    """Return neighbouring parts of one kind as one segment. A part that is mostly empty is not drawn."""
    width = length_ms / BINS
    best: dict[tuple[int, int], tuple[float, str]] = {}
    busy: dict[tuple[int, int], float] = {}
    for row in rows:
        if row["kind"] == "communication":  # drawn below, from the collectives
            continue
        place = (row["rank"], row["bin"])
        best[place] = max(best.get(place, (0.0, "")), (row["ns"], row["kind"]))
        busy[place] = busy.get(place, 0.0) + row["ns"]
    parts = [(*place, kind) for place, (_, kind) in sorted(best.items()) if busy[place] >= width * 1e6 / 3]
    segments = []
    for (rank, kind, _), group in groupby(
        enumerate(parts), lambda item: (item[1][0], item[1][2], item[1][1] - item[0])
    ):
        bins = [part[1] for _, part in group]
        segments.append(TimelinePart(rank, kind, bins[0] * width, (bins[-1] + 1) * width))
    return segments


def _collective(row: Row, starts: dict[int, int]) -> list[TimelinePart]:
    """Return the waiting part of a collective, and its transfer: as long as on the rank that came last."""
    begin = (row["begin_ns"] - starts[row["rank"]]) / 1e6
    end, wait = begin + row["ns"] / 1e6, (row["ns"] - row["shortest_ns"]) / 1e6
    name = f"{row['operation']} {row['ordinal']}, {row['bytes'] / 1e6:,.1f} MB"
    parts = [TimelinePart(row["rank"], "transfer", begin + wait, end, f"{name}: {row['ns'] / 1e6:,.2f} ms")]
    if wait > 0:
        parts.append(TimelinePart(row["rank"], "wait", begin, begin + wait, f"{name}: waits {wait:,.2f} ms for others"))
    return parts


def svgs(page: StepPage) -> str:
    """Draw the step twice: for a wide screen and for a phone, of which the style shows one."""
    return svg(page) + svg(page, SLIM)


def svg(page: StepPage, width: int = WIDTH) -> str:
    """Draw the step, `width` pixels wide. The text is safe to put into a page as it is."""
    places = {row["rank"]: number for number, row in enumerate(page.drawn)}
    height = TOP + ROW * len(page.drawn) + 34
    scale = (width - LABEL - 8) / page.length_ms
    out = [
        f'<svg class="timeline" viewBox="0 0 {width} {height}" role="img" aria-label="Step {page.step} of '
        f'{len(page.drawn)} ranks; the table below has its numbers">',
        f'<defs><pattern id="wait-{width}" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="2.4" height="6" fill="var(--late)"/></pattern></defs>',
    ]
    for row in page.drawn:
        y = TOP + ROW * places[row["rank"]]
        weight = ' font-weight="700"' if row["rank"] == page.rank else ""
        out.append(
            f'<text x="0" y="{y + 16}" fill="currentColor" font-size="14"{weight}>rank {row["rank"]}</text>'
            f'<text x="0" y="{y + 31}" class="dim" font-size="11">{_cut(row["host"])}</text>'
            f'<rect x="{LABEL}" y="{y}" width="{row["step_ms"] * scale:.1f}" height="34" class="idle"/>'
        )
    for segment in page.segments:
        y = TOP + ROW * places[segment.rank]
        begin, end = max(0.0, segment.begin_ms), min(page.length_ms, segment.end_ms)
        if end <= begin:
            continue
        low = segment.kind in ("transfer", "wait")
        fill = {"transfer": "var(--series-4)", "wait": f"url(#wait-{width})"}.get(segment.kind, "") or (
            f"var({KINDS[segment.kind][1]})"
        )
        title = segment.note or f"{KINDS[segment.kind][0]}: {end - begin:,.2f} ms"
        out.append(
            f'<rect x="{LABEL + begin * scale:.1f}" y="{y + 23 if low else y}" '
            f'width="{max(0.6, (end - begin) * scale):.1f}" height="{11 if low else 22}" fill="{fill}">'
            f"<title>{escape(escape_controls(title))}</title></rect>"
        )
    out += _axis(page, scale, height, 8 if width == WIDTH else 3)
    return "".join([*out, "</svg>"])


def _axis(page: StepPage, scale: float, height: int, ticks: int) -> list[str]:
    tick = next(t for power in range(-3, 9) for t in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
                if page.length_ms / t <= ticks)  # fmt: skip
    y = height - 26
    return [
        f'<g fill="currentColor" font-size="11"><line x1="{LABEL + at * scale:.1f}" x2="{LABEL + at * scale:.1f}" '
        f'y1="{y}" y2="{y + 5}" stroke="currentColor"/><text x="{LABEL + at * scale:.1f}" y="{y + 17}" '
        f'text-anchor="{"middle" if at else "start"}">{at:g}{" ms" if not at else ""}</text></g>'
        for at in (number * tick for number in range(int(page.length_ms / tick) + 1))
    ]


def _cut(name: str, most: int = 14) -> str:
    name = escape_controls(name)
    return escape(name if len(name) <= most else f"{name[: most - 1]}…")


def _ns(text: str) -> int:
    """Return ns since the epoch of a DateTime64(9, 'UTC') as ClickHouse writes it."""
    from datetime import UTC, datetime

    second = datetime.strptime(text[:19], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    return int(second.timestamp()) * 10**9 + int(text[20:29] or 0)


def _text(ns: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(ns // 10**9, UTC):%Y-%m-%d %H:%M:%S}.{ns % 10**9:09d}"
