"""Write docs/reference/dashboards.md: the dashboards from their sources."""

from __future__ import annotations

from page import NOTE, REFERENCE, table, write

from drumline.infra.grafana.catalog import DASHBOARDS
from drumline.infra.grafana.model import FOLDER

PAGE = REFERENCE / "dashboards.md"
#: Dashboards that the recording has nothing for are not drawn.
PICTURES = REFERENCE.parent / "img" / "dashboards"
HEAD = f"""{NOTE.format(name="dashboards_page")}# Dashboards

Which dashboards does drumline have? They are in Grafana's folder `{FOLDER}`. [Grafana](../guide/grafana.md) explains
how to install and change them; [alerts](alerts.md) lists the alert rules.

The [pictures](#pictures) show the demo's recording. Grafana's own components draw numbers, tables and lines; where only
a server has a panel, a stand-in is drawn, and the picture states it.

"""


def page() -> str:
    """Return the page's text."""
    rows = []
    for dashboard in DASHBOARDS:
        choices = ", ".join(variable.label.lower() for variable in dashboard.variables)
        rows.append((dashboard.title, dashboard.description, dashboard.start, choices))
    names = {dashboard.title: dashboard.uid.removeprefix("drumline-") for dashboard in DASHBOARDS}
    drawn = {title: name for title, name in names.items() if (PICTURES / f"{name}.png").exists()}
    pictures = "".join(f"\n### {title}\n\n![{title}](../img/dashboards/{name}.png)\n" for title, name in drawn.items())
    return HEAD + table(("dashboard", "answers", "time range", "choices"), rows) + "\n## Pictures\n" + pictures


if __name__ == "__main__":
    write(PAGE, page())
