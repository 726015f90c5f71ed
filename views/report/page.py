"""The report as one HTML page. It loads nothing: no script, font or picture."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata, resources
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from drumline.infra.guidance.entry import cause_page
from drumline.infra.runtime.terminal import LAYOUT, escape_controls
from drumline.views.report import charts, heat_map, text
from drumline.views.report.advice import advice
from drumline.views.report.data import ReportData
from drumline.views.report.device_queries import MOST_GPUS
from drumline.views.report.flame_graph import speedscope

if TYPE_CHECKING:
    from jinja2 import Environment

#: Most bytes of the flame graph in a page; the stacks with least GPU time are left out.
MOST_FLAME_GRAPH = 1 << 18
#: Column of a GPU sample -> (unit on the axis, caption).
DEVICES = {
    "util": ("%", "Busy: any kernel running, as NVML reports it"),
    "power_w": ("W", "Power"),
    "clock_mhz": ("MHz", "SM clock"),
    "celsius": ("°C", "Temperature"),
}
#: Chart -> (field of ReportData without which there is none, its specification).
CHARTS: dict[str, tuple[str, Callable[..., charts.Spec]]] = {
    "steps": ("step_times", charts.step_times),
    "lateness": ("lateness", heat_map.lateness),
    "bands": ("bands", heat_map.bands),
    "kernels": ("kernels", charts.kernels),
    "memcpys": ("memcpys", charts.memcpys),
}
#: Chart -> all fields that it shows.
NEEDED = {
    **dict.fromkeys(DEVICES, frozenset({"device_times", "length_s"})),
    "kernels": {"kernels"},
    "memcpys": {"memcpys"},
    **dict.fromkeys(("lateness", "bands"), frozenset({"lateness", "bands", "windows", "steps"})),
    "steps": {"steps", "step_times", "windows", "episodes"},
}


def page(data: ReportData, created: datetime | None = None, web_page: str = "") -> str:
    """Return the HTML of the whole report; all text from the job is escaped. `created`: time shown as that of the
    report. `web_page`: of `drumline serve`, which causes lead to; "" = none that readers reach.
    """

    def cause_url(cause: str, detail: str) -> str:
        return web_page and web_page + cause_page(cause, detail)

    return (
        environment()
        .get_template("page.html")
        .render(
            **(sections(data, cause_url) | {"flame_graph": _flame_graph(data)}),
            style=style(),
            summary=text.summary(data, web_page=web_page),
            version=metadata.version("drumline"),
            created=f"{created or datetime.now(UTC):%Y-%m-%d %H:%M}",
        )
    )


def style() -> str:
    """Return the style sheet, which is safe to put into a page as it is."""
    from markupsafe import Markup

    return Markup((resources.files("drumline.views.report") / "style.css").read_text("utf-8"))


@lru_cache
def environment(*templates: str) -> Environment:
    """Return the environment of the report's templates, and of those in the folder `templates` of other packages.

    It escapes all text, and control characters too.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    folders = [PackageLoader(package, "templates") for package in templates]
    result = Environment(
        loader=ChoiceLoader([*folders, PackageLoader("drumline.views.report", "")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=lambda value: escape_controls(value, LAYOUT) if type(value) is str else value,
    )
    result.filters["with_code"] = with_code
    return result


def with_code(message: str) -> Any:
    """Return a text of the guidance as HTML: what stands between backticks is code."""
    from markupsafe import Markup, escape

    parts = escape_controls(message, LAYOUT).split("`")
    return Markup("").join(Markup("<code>{}</code>").format(p) if i % 2 else escape(p) for i, p in enumerate(parts))


def sections(
    data: ReportData, cause_url: Callable[[str, str], str] = cause_page, *, with_slim: bool = False
) -> dict[str, Any]:
    """Return the variables of sections.html: the data, and the charts as drawn.

    `cause_url`: "" = without a link. `with_slim`: each wide chart is followed by one for phones; the style shows one.
    """
    from markupsafe import Markup

    slim = {name: _slim(name, data) for name in CHARTS if with_slim and getattr(data, CHARTS[name][0])}
    for spec in slim.values():
        charts.draw_ahead(spec)
    drawn = {name: Markup(charts.svg(spec)) for name, spec in _charts(data).items()}
    drawn |= {name: drawn[name] + Markup(charts.svg(spec)) for name, spec in slim.items()}
    return {
        "d": data,
        "text": text,
        "advice": advice(data.episodes, data.job),
        "charts": dict.fromkeys(("steps", "lateness", "bands", "kernels", "memcpys"), "") | drawn,
        "most_gpus": MOST_GPUS,
        "devices": [(name, caption) for name, (_, caption) in DEVICES.items() if name in drawn],
        "shown_ranks": len({row["rank"] for row in data.lateness}),
        "band_ranks": heat_map.band_ranks(data.bands),
        "total_s": data.ranks * data.length_s,
        "kernel_s": sum(row["gpu_s"] for row in data.families),
        "flame_graph": "",  # too large for a page that is loaded again every few seconds
        "cause_url": cause_url,
        "copy_name": charts.copy_name,
        "number": _number,
    }


def draw_ahead(known: Mapping[str, Any], new: tuple[str, ...], *, with_slim: bool = False) -> None:
    """Begin to draw the charts for which the `new` fields of ReportData were missing. `with_slim`: as of `sections`."""
    data: Any = SimpleNamespace(**known)
    for name, needed in NEEDED.items():
        if not needed.isdisjoint(new) and needed <= known.keys() and (spec := _spec(name, data)) is not None:
            charts.draw_ahead(spec)
            if with_slim and name in CHARTS:
                charts.draw_ahead(_slim(name, data))


def prepare() -> None:
    """Load what a page needs, so that it is there when the data are. Does nothing without Jinja, as `page` states."""
    with suppress(ModuleNotFoundError):
        environment().get_template("page.html")


def device_charts(data: ReportData) -> dict[str, charts.Spec]:
    """Return the charts of GPUs over time for which there are data, by the column of a sample."""
    return {name: spec for name in DEVICES if (spec := _spec(name, data)) is not None}


def _charts(data: ReportData) -> dict[str, charts.Spec]:
    """Return the charts for which there are data."""
    return {name: spec for name in NEEDED if (spec := _spec(name, data)) is not None}


def _spec(name: str, data: ReportData) -> charts.Spec | None:
    if name in DEVICES:
        return charts.device(data, name, DEVICES[name][0])
    rows, spec_of = CHARTS[name]
    return spec_of(data) if getattr(data, rows) else None


def _slim(name: str, data: ReportData) -> charts.Spec:
    return CHARTS[name][1](data, charts.SLIM)


def _flame_graph(data: ReportData) -> str:
    """Return GPU time by stack as the URL of a file for speedscope, which the page holds; "" without stacks."""
    stacks = data.hot_stacks
    while stacks:
        content = b64encode(speedscope(stacks, f"{data.job}, run {data.run['run']}").encode())
        if len(content) <= MOST_FLAME_GRAPH:
            return f"data:application/json;base64,{content.decode()}"
        stacks = stacks[: len(stacks) // 2]
    return ""


def _number(value: Any, form: str) -> str:
    return "-" if value is None else form % value
