"""Draw docs/img/dashboards: each dashboard over the demo's recording, with Grafana's own components in Chromium.

Needs npm, a registry on the first call, and Chromium. The packages (650 MB) stay in ~/.cache/drumline/pictures.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.migrate import migrate
from drumline.infra.config.clickhouse_settings import ClickHouseSettings, RetentionSettings
from drumline.infra.config.settings import Settings
from drumline.infra.grafana.catalog import DASHBOARDS
from drumline.infra.grafana.model import Dashboard
from drumline.infra.grafana.render.dashboard import dashboard_json
from drumline.infra.localstack.clickhouse.engine import temporary_engine
from drumline.infra.localstack.ephemeral import ephemeral_settings
from drumline.lab.bench.direct_load import JobCopy, Repetition, load, repeat
from drumline.lab.bench.grafana_macros import ALL_VALUES, PanelRequest, expand
from drumline.lab.demo_recording import DEMO_RECORDING

SOURCES = Path(__file__).parent / "dashboard_pictures"
PICTURES = Path(__file__).parents[1] / "img" / "dashboards"
CACHE = Path.home() / ".cache" / "drumline" / "pictures"
CHROMIUM = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "chrome")
#: Of a screen, without Grafana's menu.
WIDTH = 1440
COLOURS = 24
JOB, SOURCE = "demo", "demo-once"
#: The recording lasts 11 s and 126 steps; repeated it fills some minutes.
PERIOD_NS, STEPS, TIMES = 11_500_000_000, 126, 15
#: The run before: a similar job, recorded three hours later, whose end is a minute before the demo's begin.
OTHER_RECORDING = Path(__file__).parents[2] / "tests" / "data" / "traces" / "ddp-mild"
OTHER_SHIFT_NS = -10_700_000_000_000
#: Dashboards whose pictures show less than the whole run; s.
CLOSE = {"drumline-timeline": 0.15, "drumline-scopes": 20.0, "drumline-stragglers": 60.0, "drumline-job": 80.0}
#: Rank 1 stalls on its host in the recording, twice.
CHOICES: Mapping[str, str] = {"job": JOB, "run": "r2", "rank": "1", "price": "2.5", "run_a": "r1", "run_b": "r2"}
INTERVALS = {"1s": 1_000, "5s": 5_000, "10s": 10_000, "1m": 60_000, "": 1_000}


def tool(*names: str) -> str:
    """Return the path of the first program that is installed. Exits with the packages to install."""
    for name in names:
        if path := shutil.which(name):
            return path
    sys.exit(
        f"no {names[0]}: pictures of dashboards need npm and Chromium (apt-get install npm chromium-headless-shell)"
    )


def bundle(npm: str) -> None:
    """Install Grafana's packages into CACHE and build picture.js there."""
    CACHE.mkdir(parents=True, exist_ok=True)
    wanted, installed = (SOURCES / "package.json").read_text(), CACHE / "package.json"
    if not installed.exists() or installed.read_text() != wanted:
        print(f"installing Grafana's components into {CACHE} (a minute, 650 MB)", flush=True)
        installed.write_text(wanted)
        command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        if subprocess.run(command, cwd=CACHE, check=False).returncode:
            installed.unlink()
            sys.exit(f"npm could not install {SOURCES / 'package.json'}: does it reach a registry?")
    for source in SOURCES.glob("*.ts*"):
        shutil.copy(source, CACHE)
    options = [
        "--bundle",
        "--minify",
        "--format=iife",
        "--jsx=automatic",
        "--log-level=error",
        "--define:global=window",
    ]
    options += ['--define:process.env.NODE_ENV="production"', "--loader:.svg=dataurl", "--loader:.ttf=empty"]
    subprocess.run(
        [CACHE / "node_modules/.bin/esbuild", "picture.tsx", "--outfile=picture.js", *options], cwd=CACHE, check=True
    )


@contextmanager
def demo_data() -> Iterator[Settings]:
    """Run an engine that has the demo's recording as two runs, the second one with four times the steps."""
    with tempfile.TemporaryDirectory(prefix="drumline-pictures-") as state:
        kept = RetentionSettings(**dict.fromkeys(RetentionSettings.model_fields, 0))
        settings = ephemeral_settings(Path(state) / "state", clickhouse=ClickHouseSettings(retention=kept))
        with temporary_engine(settings):
            fill(settings)
            yield settings


def fill(settings: Settings) -> None:
    """Migrate, and store both runs."""
    client = clickhouse.connect(settings)
    migrate(client, settings)
    client = clickhouse.connect(settings, database=settings.clickhouse.database)
    load(client, settings, JobCopy(OTHER_RECORDING, JOB, "r1", shift_ns=OTHER_SHIFT_NS))
    load(client, settings, JobCopy(DEMO_RECORDING, SOURCE, "r2"))
    repeat(client, settings.clickhouse.database, Repetition(SOURCE, JOB, TIMES, PERIOD_NS, STEPS), lambda _: None)


class Reader:
    """Answers the statements of dashboards as the user of Grafana."""

    def __init__(self, settings: Settings) -> None:
        changed = settings.clickhouse.model_copy(update={"reader": "grafana"})
        self._client = clickhouse.connect(
            settings.model_copy(update={"clickhouse": changed}), reader=True, database=settings.clickhouse.database
        )

    def answer(self, sql: str) -> dict[str, Any]:
        """Return columns and rows, as ClickHouse's JSONCompact has them."""
        answer: dict[str, Any] = json.loads(self._client.raw_query(sql, fmt="JSONCompact"))
        return {"meta": answer["meta"], "data": answer["data"]}

    def span(self, job: str, run: str) -> tuple[int, int]:
        """Return the first and last ms of a run's kernels."""
        ms = "toUnixTimestamp64Milli"
        sql = f"SELECT {ms}(min(start)), {ms}(max(end_time)) FROM kernels WHERE job = '{job}' AND run = '{run}'"
        first, last = self.answer(sql)["data"][0]
        return int(first), int(last)


def board_input(reader: Reader, dashboard: Dashboard, first: int, last: int) -> dict[str, Any]:
    """Return what picture.tsx draws of a dashboard over a time range; ms."""
    if dashboard.uid in CLOSE:
        first += 20_000
        last = first + int(CLOSE[dashboard.uid] * 1000)
    values: dict[str, str | list[str]] = {}
    options: dict[str, list[str]] = {}
    shown: dict[str, str] = {}
    for variable in dashboard.variables:
        value = CHOICES.get(variable.name, ALL_VALUES if variable.has_all else variable.default)
        if variable.name == "rank" and variable.multi:
            value = ALL_VALUES
        values[variable.name] = [value] if variable.multi else value
        shown[variable.name] = "All" if value == ALL_VALUES else value
        if variable.query:
            at = PanelRequest(first, last, 1_000, values, options)
            options[variable.name] = [str(row[0]) for row in reader.answer(expand(variable.sql, at))["data"]]
    model = dashboard_json(dashboard)
    answers = {}
    for panel in model["panels"]:
        if panel.get("targets"):
            width = max(INTERVALS[panel.get("interval", "")], (last - first) // 500)
            at = PanelRequest(first, last, width, values, options)
            answers[panel["id"]] = reader.answer(expand(panel["targets"][0]["rawSql"], at))
    return {"dashboard": model, "answers": answers, "variables": shown, "from": first, "to": last}


def height(model: Mapping[str, Any]) -> int:
    """Return the pixels that a dashboard needs, as picture.tsx places panels."""
    return 90 + 38 * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in model["panels"])


def draw(chromium: str, drawn: Mapping[str, Any], picture: Path) -> None:
    """Draw one dashboard into a PNG. Exits where a panel failed."""
    data = json.dumps(drawn).replace("</", "<\\/")
    page = CACHE / "page.html"
    page.write_text(
        '<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="picture.css"><body style="margin:0">'
        f'<div id="root"></div><script>window.INPUT = {data}</script><script src="picture.js"></script>'
    )
    raw = CACHE / "page.png"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files"]
    options += [f"--window-size={WIDTH},{height(drawn['dashboard'])}", "--virtual-time-budget=6000"]
    options += ["--enable-logging=stderr", f"--screenshot={raw}", page.as_uri()]
    done = subprocess.run([chromium, *options], capture_output=True, text=True, timeout=180, check=False)
    failed = [line for line in done.stderr.splitlines() if "PANEL " in line or "Uncaught" in line]
    if done.returncode or failed:
        sys.exit(f"{drawn['dashboard']['title']}: {failed or done.stderr[-2000:]}")
    shrink = (
        f"require('sharp')({json.dumps(str(raw))}).png({{palette: true, colours: {COLOURS}, dither: 0, effort: 10}})"
    )
    subprocess.run([tool("node"), "-e", f"{shrink}.toFile({json.dumps(str(picture))})"], cwd=CACHE, check=True)
    print(f"{picture} is written ({picture.stat().st_size / 1000:.0f} kB)", flush=True)


def main() -> None:
    """Draw the dashboards whose uids are arguments, or all."""
    npm, chromium = tool("npm"), tool(*CHROMIUM)
    bundle(npm)
    PICTURES.mkdir(parents=True, exist_ok=True)
    with demo_data() as settings:
        reader = Reader(settings)
        first, last = reader.span(JOB, "r2")
        before, _ = reader.span(JOB, "r1")
        for dashboard in DASHBOARDS:
            if len(sys.argv) == 1 or dashboard.uid in sys.argv:
                begin = first if "run" in {v.name for v in dashboard.variables} else before
                drawn = board_input(reader, dashboard, begin - 2_000, last + 8_000)
                draw(chromium, drawn, PICTURES / f"{dashboard.uid.removeprefix('drumline-')}.png")


if __name__ == "__main__":
    main()
