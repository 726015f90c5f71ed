"""Names and widths of columns, so that a table fits into its panel and its headers are words."""

from __future__ import annotations

from drumline.infra.grafana.model import Field, Panel

#: Width of a column that states none, by kind; px.
WIDTHS = {"t": 165, "s": 110, "n": 80}
#: From which width on a column of times has ms.
MS_WIDTH = 200
#: Width of a header's character, and what surrounds the header; px.
CHARACTER, AROUND = 8.2, 18
#: Parts of column names that are written in another way; units are shown beside each value.
WRITTEN = {"gpu": "GPU", "cpu": "CPU", "sm": "SM", "sms": "SMs", "xid": "XID", "ns": "", "pid": "PID", "uuid": "UUID"}


def header(name: str, shown: Field | None = None) -> str:
    """Return the name of a column for people."""
    if shown is not None and shown.header:
        return shown.header
    text = " ".join(part for part in (WRITTEN.get(part, part) for part in name.split("_")) if part)
    return text[:1].upper() + text[1:]


def visible(panel: Panel) -> list[tuple[str, str, Field]]:
    """Return (name, kind, field) of each column that a table shows."""
    columns = panel.query.declared if panel.query else []
    fields = ((name, kind, panel.fields.get(name, Field())) for name, kind in columns)
    return [(name, kind, shown) for name, kind, shown in fields if not shown.hidden]


def widths(panel: Panel) -> dict[str, int]:
    """Return the width of each visible column of a table; px. The one that fills the panel has its least width."""
    return {
        name: max(shown.width or WIDTHS[kind], round(len(header(name, shown)) * CHARACTER) + AROUND)
        for name, kind, shown in visible(panel)
    }


def filling(panel: Panel) -> str:
    """Return the column that takes what is left of the panel: the one that says so, else the first of texts."""
    columns = visible(panel)
    chosen = [name for name, _, shown in columns if shown.fills] or [name for name, kind, _ in columns if kind == "s"]
    return (chosen or [columns[0][0]])[0]
