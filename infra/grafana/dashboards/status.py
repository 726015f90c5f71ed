"""Numbers in the first row of a dashboard, and columns that several tables have."""

from __future__ import annotations

from collections.abc import Iterable

from drumline.infra.grafana.model import Panel, PanelQuery
from drumline.infra.grafana.thresholds import ANY


def cause(rows: str) -> str:
    """Return SQL of a verdict's cause and detail for people. `rows`: the table's alias, as `cause` may be one."""
    detail = f"if({rows}.detail = '', '', concat(': ', {rows}.detail))"
    return f"replaceAll(concat({rows}.cause, {detail}), '_', ' ')"


def in_sql(texts: Iterable[str]) -> str:
    """Return texts as an array in SQL, without the backticks of code, which Grafana's tables would show."""
    plain = (text.replace("`", "").replace("\\", "\\\\").replace("'", "\\'") for text in texts)
    return "[" + ", ".join(f"'{text}'" for text in plain) + "]"


def stat(
    title: str,
    description: str,
    query: str,
    unit: str = "short",
    *,
    width: int = 4,
    limits: tuple[tuple[float, str], ...] = (),
    levels: bool = False,
    decimals: int | None = None,
    empty: str = "none",
) -> Panel:
    """Return a number. It is green below its limits; a number without limits has the colour of text."""
    if decimals is None and unit not in ("short", "none"):
        decimals = 1
    return Panel(
        "stat", title, description, PanelQuery(query, "value:n", "table"), unit, width=width, height=4,
        thresholds=limits, base="green" if limits else "text", levels=levels, decimals=decimals, empty=empty,
    )  # fmt: skip


def faults(title: str, description: str, query: str, width: int = 4) -> Panel:
    """Return a count of which any is red."""
    return stat(title, description, query, width=width, limits=ANY)
