"""All dashboards, and every statement in them, for the generator, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from drumline.infra.config.servers import WEB_PAGE
from drumline.infra.grafana.dashboards.compare import COMPARE
from drumline.infra.grafana.dashboards.cost import COST
from drumline.infra.grafana.dashboards.devices import DEVICES
from drumline.infra.grafana.dashboards.fleet import FLEET
from drumline.infra.grafana.dashboards.health import HEALTH
from drumline.infra.grafana.dashboards.job import JOB_BOARD
from drumline.infra.grafana.dashboards.kernels import KERNELS
from drumline.infra.grafana.dashboards.memcpy import MEMCPY
from drumline.infra.grafana.dashboards.rank import RANK_BOARD
from drumline.infra.grafana.dashboards.scopes import SCOPES
from drumline.infra.grafana.dashboards.serving import SERVING_BOARD
from drumline.infra.grafana.dashboards.stragglers import STRAGGLERS
from drumline.infra.grafana.dashboards.timeline import TIMELINE_BOARD
from drumline.infra.grafana.model import Dashboard, Panel, PanelQuery
from drumline.infra.grafana.render.dashboard import dashboard_json, text

DASHBOARDS: tuple[Dashboard, ...] = (
    FLEET, JOB_BOARD, RANK_BOARD, STRAGGLERS, COMPARE, KERNELS, TIMELINE_BOARD, SCOPES, MEMCPY, SERVING_BOARD, DEVICES,
    COST, HEALTH,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Statement:
    """Holds one statement of a dashboard, with its macros. `query`: None for a variable's."""

    dashboard: Dashboard
    kind: str
    name: str
    sql: str
    query: PanelQuery | None
    panel: Panel | None = None

    @property
    def id(self) -> str:
        """Return "dashboard: name"."""
        return f"{self.dashboard.uid.removeprefix('drumline-')}: {self.name}"


def statements() -> Iterator[Statement]:
    """Yield the statements of every panel, annotation and variable."""
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            if panel.query is not None:
                yield Statement(dashboard, "panel", panel.title, panel.query.sql, panel.query, panel)
        for mark in dashboard.annotations:
            yield Statement(dashboard, "annotation", mark.name, mark.query.sql, mark.query)
        for variable in dashboard.variables:
            if variable.query:
                yield Statement(dashboard, "variable", variable.name, variable.sql, None)


def dashboard_files(web_page: str = WEB_PAGE) -> dict[Path, str]:
    """Return path in the folder of files -> content. `web_page`: address of `drumline serve`, for links."""
    folder = Path("dashboards")
    return {folder / f"{board.uid}.json": text(dashboard_json(board, web_page)) for board in DASHBOARDS}
