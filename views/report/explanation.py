"""Explains the verdicts of a run: which rank, why, at which cost, how to check it, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from drumline.infra.guidance.causes import SLOW_LINK, guidance
from drumline.infra.guidance.entry import DRUMLINE, cause_text
from drumline.infra.guidance.hangs import hang_guidance
from drumline.infra.runtime.terminal import escape_controls
from drumline.views.report import queries
from drumline.views.report.data import LISTED, NoSuchRun, Query, Row, find_run, verdicts_of
from drumline.views.report.deep_window import EPISODE, QUESTION, DeepWindow, deep_window
from drumline.views.report.gaps import spans
from drumline.views.report.link_state import link_evidence
from drumline.views.report.rank_state import state_lines
from drumline.views.report.text import evidence, filled, hang, quoted, seconds, share, subject, timeline_command

#: Ranks that an answer for programs explains without `--rank`.
MOST_RANKS = 5


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explains the most expensive episode of a rank (-1: the job as a whole). Costs are of all its episodes.

    `place`: where its main thread was when it was sampled last, "" where it was not. `states`: see state_lines. `deep`:
    its deep window, "" where none is stored.
    """

    rank: int
    host: str
    state: str
    episodes: int
    first_step: int
    last_step: int
    started: str
    share_of_time: str
    gpu_seconds: float
    cause: str
    detail: str
    confidence: str
    meaning: str
    evidence: list[str]
    check: str
    act: str
    escalate: str
    commands: list[str]
    place: str = ""
    states: tuple[str, ...] = ()
    deep: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as `drumline explain --json` prints it."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the text of one screen."""
        steps = f"steps {self.first_step} to {self.last_step}"
        when = f"{steps}, {self.started[:19]} UTC" + (f", and {self.episodes - 1} times more" * (self.episodes > 1))
        name = subject({"rank": self.rank, "host": self.host})
        return [
            f"{name}: {self.state}, {self.share_of_time} of the job's time, {seconds(self.gpu_seconds)}",
            f"  when      {when}",
            f"  cause     {cause_text(self.cause, self.detail)} (confidence {self.confidence})",
            f"  meaning   {self.meaning}",
            f"  evidence  {'; '.join(self.evidence) or 'none'}",
            *([f"  python    {self.place}"] if self.place else []),
            *(f"  {line}" for line in self.states),
            *([f"  deep      {self.deep}"] if self.deep else []),
            f"  check     {self.check}",
            f"  do        {self.act}",
            f"  escalate  to {self.escalate}",
            *(f"  next      {command}" for command in self.commands),
        ]


class Explained(NamedTuple):
    """Holds the run, its explanations with the most expensive rank first, the counts of its windows, its hangs.

    `also_late`: ranks that are late too, explained without their states. `episodes`, `stacks`: the rows it is made of.
    """

    run: Row
    texts: list[Explanation]
    windows: Row
    hangs: list[Row]
    also_late: list[Explanation]
    episodes: list[Row]
    stacks: list[Row]

    @property
    def is_cut(self) -> bool:
        """True if there may be more episodes, and late ranks, than are read."""
        return len(self.episodes) >= queries.MOST_EPISODES


def hang_lines(rows: list[Row], job: str) -> list[str]:
    """Return when the job stood still, for whom it waits, and what to do."""
    lines = []
    for row in rows:
        entry = hang_guidance(row["reason"])
        lines.append(hang(row))
        lines += (
            [f"  check     {filled(entry.check, job)}", f"  do        {entry.act}", f"  escalate  to {entry.escalate}"]
            if entry
            else []
        )
    return lines


def explain(
    query: Query,
    job: str,
    run: str,
    rank: int | None,
    since: str = "",
    until: str = "",
    most: int | None = MOST_RANKS,
) -> Explained:
    """Explain the `most` expensive ranks of a run (None: all that are late), or one rank.

    `since`, `until`: as in data.load. Raises NoSuchRun, and the query's ClickHouseFailed.
    """
    chosen, _ = find_run(query, job, run)
    query = verdicts_of(query, chosen)
    scope = {"job": job, "run": chosen["run"], "since": since or chosen["started"], "until": until or chosen["ended"]}
    if rank is not None and rank >= 0:
        require_rank([row["rank"] for row in query(queries.RANKS, scope)], rank, chosen["run"])
    windows = query(queries.WINDOWS, scope)[0]
    if rank is None:
        episodes, stacks = query(queries.EPISODES, scope), query(queries.STACKS, scope)
    else:
        selected = {**scope, "rank": rank}
        episodes, stacks = query(queries.RANK_EPISODES, selected), query(queries.RANK_STACKS, selected)
    by_rank: dict[int, list[Row]] = {}
    for row in episodes:
        by_rank.setdefault(row["rank"], []).append(row)
    ranked = sorted(by_rank.values(), key=lambda rows: -sum(row["gpu_seconds"] for row in rows))
    places: dict[int, str] = {}
    for row in stacks:
        if row["is_main"] and row["rank"] not in places:
            places[row["rank"]] = place_of(row)
    pids = {row["rank"]: row["pid"] for row in query(queries.PIDS, {**scope, "ranks": [*by_rank]})} if by_rank else {}
    texts, also_late = [], []
    for number, rows in enumerate(ranked):
        pid = pids.get(rows[0]["rank"], 0)
        text = _explanation(job, chosen["run"], rows, float(windows["evaluated_s"]), pid)
        if rank is None and most is not None and number >= most:
            also_late.append(text)
            continue
        worst = rows[0]  # EPISODES has the most expensive first
        episode = {**scope, **{name: worst[name] for name in EPISODE}}
        states = state_lines(query, episode)
        links = link_evidence(query, episode) if text.cause == SLOW_LINK else []
        text = replace(text, place=places.get(text.rank, ""), states=tuple(states), evidence=[*text.evidence, *links])
        if text.rank >= 0 and (deep := deep_window(query, episode)):
            text = replace(
                text, deep=deep.text(), commands=[*text.commands[:-1], *_deep_commands(job, text, deep, chosen)]
            )
        texts.append(text)
    return Explained(chosen, texts, windows, query(queries.HANGS, scope), also_late, episodes, stacks)


def _deep_commands(job: str, text: Explanation, deep: DeepWindow, run: Row) -> list[str]:
    """Return the commands that show a deep window: the question about it, and its trace, else that of the verdict."""
    scope = f"--job {quoted(job)} --run {quoted(run['run'])} --rank {text.rank}"
    return [
        f"drumline sql {QUESTION} {scope} --first-step {deep.verdict_step}",
        timeline_command(job, run["run"], deep.first_step, deep.last_step)
        if deep.first_step >= 0
        else text.commands[-1],
    ]


def also_late_line(job: str, explained: Explained) -> str:
    """Return the sentence that names late ranks that are not explained, and how to see them."""
    also_late = explained.also_late
    names = [f"{'the job as a whole' if text.rank < 0 else f'rank {text.rank}'} ({seconds(text.gpu_seconds)})"
             for text in also_late[:LISTED]]  # fmt: skip
    least = "at least " if explained.is_cut else ""
    more = f" and {least}{len(also_late) - LISTED} more" if len(also_late) > LISTED else ""
    command = f"drumline explain {quoted(job)}"
    return (
        f"Late too: {', '.join(names)}{more}. `{command} --rank {also_late[0].rank}` shows one, `{command} --all` all."
    )


def require_rank(ranks: Sequence[int], rank: int, run: str) -> None:
    """Check that a run with these ranks, in order, has this one; one without any may. Raises NoSuchRun."""
    if ranks and rank not in ranks:
        raise NoSuchRun(f"run {run} has no rank {rank}; its ranks are {spans([(known, known) for known in ranks])}")


def place_of(row: Row) -> str:
    """Return where a main thread was, from a row of `hot_stacks`."""
    text = f"{row['at']}, {row['culprit_share']:.0%} of the time"
    text += f" (a healthy rank: {row['peer_share']:.0%})" if row["peers"] else ""
    if row["finding"]:
        text += f"; waits for the GIL, which is held by {row['gil_holder']}"
    return escape_controls(text)


def _explanation(job: str, run: str, rows: list[Row], evaluated_s: float, pid: int) -> Explanation:
    worst = rows[0]
    entry = guidance(worst["cause"], worst["detail"])
    scope = f"--job {quoted(job)} --run {quoted(run)}" + (f" --rank {worst['rank']}" if worst["rank"] >= 0 else "")
    return Explanation(
        rank=worst["rank"],
        host=worst["host"],
        state=worst["state"],
        episodes=len(rows),
        first_step=worst["first_step"],
        last_step=worst["last_step"],
        started=worst["started"],
        share_of_time=share(sum(row["lost_s"] for row in rows), evaluated_s),
        gpu_seconds=sum(row["gpu_seconds"] for row in rows),
        cause=worst["cause"],
        detail=worst["detail"],
        confidence=worst["confidence"],
        meaning=entry.meaning if entry else "",
        evidence=evidence(worst["evidence"], worst["evidence_steps"]),
        check=filled(entry.check, job, pid) if entry else "",
        act=filled(entry.act, job, pid) if entry else "",
        escalate=entry.escalate if entry else DRUMLINE,
        commands=[
            f"drumline {'sql around-verdict' if worst['rank'] >= 0 else 'report'} {scope}",
            timeline_command(job, run, worst["first_step"], worst["last_step"]),
        ],
    )
