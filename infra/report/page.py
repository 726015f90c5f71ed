"""The report as one HTML page. It loads nothing: no script, font or picture."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import metadata, resources
from typing import Any

from drumline.infra.report import charts, text
from drumline.infra.report.data import ReportData
from drumline.infra.runtime.terminal import LAYOUT, escape_controls

#: Column of a GPU sample -> (unit on the axis, caption).
DEVICES = {
    "util": ("%", "Busy: any kernel running, as NVML reports it"),
    "power_w": ("W", "Power"),
    "clock_mhz": ("MHz", "SM clock"),
    "celsius": ("°C", "Temperature"),
}


def page(data: ReportData, created: datetime | None = None) -> str:
    """Return the HTML of the whole report; all text from the job is escaped. `created`: time shown as that of the
    report.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    source = (resources.files("drumline.infra.report") / "page.html").read_text("utf-8")
    drawn = {name: Markup(charts.svg(spec)) for name, spec in _charts(data).items()}
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=lambda value: escape_controls(value, LAYOUT) if type(value) is str else value,
    )
    return environment.from_string(source).render(
        d=data,
        summary=text.summary(data),
        text=text,
        charts=dict.fromkeys(("steps", "lateness", "kernels", "memcpys"), "") | drawn,
        devices=[(name, caption) for name, (_, caption) in DEVICES.items() if name in drawn],
        shown_ranks=len({row["rank"] for row in data.lateness}),
        total_s=data.ranks * data.length_s,
        kernel_s=sum(row["gpu_s"] for row in data.families),
        copy_name=charts.copy_name,
        number=_number,
        version=metadata.version("drumline"),
        created=f"{created or datetime.now(UTC):%Y-%m-%d %H:%M}",
    )


def _charts(data: ReportData) -> dict[str, charts.Spec]:
    """Return the charts for which there are data."""
    specs: dict[str, charts.Spec | None] = {
        "steps": charts.step_times(data) if data.step_times else None,
        "lateness": charts.lateness(data) if data.lateness else None,
        "kernels": charts.kernels(data) if data.kernels else None,
        "memcpys": charts.memcpys(data) if data.memcpys else None,
    }
    specs |= {name: charts.device(data, name, unit) for name, (unit, _) in DEVICES.items()}
    return {name: spec for name, spec in specs.items() if spec is not None}


def _number(value: Any, form: str) -> str:
    return "-" if value is None else form % value
