"""Draw the pictures of docs/img from the demo: a rank on the web page, the report, and `drumline top`.

    drumline demo --keep
    docs/generate/page_pictures.py [ADDRESS]

Needs Chromium and the extra `browser`.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright
from rich.console import Console

from drumline.infra.clickhouse.client import connect, rows
from drumline.infra.config.settings import settings
from drumline.views.report.loading import load
from drumline.views.report.page import page as report
from drumline.views.top.data import snapshot
from drumline.views.top.view import view

IMAGES = Path(__file__).parents[1] / "img"
JOB = "demo"
RANK_PAGE = f"/job/{JOB}/rank/2"
#: Columns and lines of the terminal.
TERMINAL = (92, 24)


def query(sql: str, values: Any) -> list[dict[str, Any]]:
    """Ask the demo's engine as the read-only user."""
    config = settings()
    return rows(connect(config, reader=True, database=config.clickhouse.database), sql, values)


def draw_web_page(page: Page, address: str) -> None:
    """Write the picture of a rank."""
    page.set_viewport_size({"width": 1100, "height": 1000})
    page.goto(address + RANK_PAGE, timeout=90_000)
    page.screenshot(path=IMAGES / "web-page.png")


def draw_report(page: Page) -> None:
    """Write the report's begin, and its part from the kernels to the GPUs."""
    page.set_viewport_size({"width": 1000, "height": 1240})
    page.set_content(report(load(query, JOB, "", "", "", 0.0)))
    page.screenshot(path=IMAGES / "report.png")
    first, last = (page.get_by_role("heading", name=name).bounding_box() for name in ("Top kernels", "Basis"))
    assert first
    assert last
    part = {"x": 0.0, "y": first["y"] - 10, "width": 1000.0, "height": last["y"] - first["y"] - 20}
    page.screenshot(path=IMAGES / "report-gpus.png", full_page=True, clip=part)


def draw_top(page: Page) -> None:
    """Write what a terminal shows."""
    console = Console(record=True, file=io.StringIO(), width=TERMINAL[0], force_terminal=True)
    console.print(view(snapshot(query, JOB), *TERMINAL, "drumline top  every 2 s, ? for keys"))
    page.set_viewport_size({"width": 1000, "height": 800})
    page.set_content(console.export_svg(title="drumline top"))
    page.locator("svg").first.screenshot(path=IMAGES / "top.png")


def main(address: str) -> None:
    """Write all."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("chromium-headless-shell"), args=["--no-sandbox"]
        )
        draw_web_page(browser.new_page(), address)
        draw_report(browser.new_page())  # a page of its own: the web page's Content-Security-Policy stays with a page
        draw_top(browser.new_page())
        browser.close()
    print(f"pictures in {IMAGES} are written")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:18080")
