"""The report in a real browser: it loads without an error, draws, and fits light, dark, wide and narrow screens."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest
from support.report_data import report_data

from drumline.views.report.page import page

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium; on Debian: apt-get install chromium-headless-shell"),
]

#: What a page measures of itself: sizes in CSS pixels, labels that stick out of their chart, colours.
MEASURE = """<script>addEventListener("load", () => {
  const box = e => e.getBoundingClientRect(), all = (s, of = document) => [...of.querySelectorAll(s)];
  const out = svg => all("text", svg).filter(t => box(t).left < box(svg).left - 1 || box(t).right > box(svg).right + 1);
  const seen = {
    charts: all("svg").map(s => [box(s).width, box(s).height, s.querySelectorAll("path,line,text").length]),
    cut: all("svg").flatMap(out).map(t => t.textContent),
    wider: document.documentElement.scrollWidth - innerWidth,
    page: getComputedStyle(document.body).backgroundColor,
    label: getComputedStyle(document.querySelector("svg text")).fill,
    line: getComputedStyle(document.querySelector("svg .mark-line path")).stroke };
  document.body.setAttribute("data-seen", JSON.stringify(seen)); })</script>"""


def browse(path, profile, width, dark):
    """(DOM after loading, what the browser wrote on its console)."""
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
         f"--user-data-dir={profile}", f"--window-size={width},1200", "--host-resolver-rules=MAP * ~NOTFOUND",
         f"--blink-settings=preferredColorScheme={0 if dark else 1}", path.as_uri()],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def html():
    return page(report_data())


def test_the_page_loads_without_an_error(html, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(html, "utf-8")
    dom, console = browse(path, tmp_path / "profile", 1000, dark=False)
    assert dom.count("<svg") == 8
    assert console == []


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1000, True), (390, False)])
def test_charts_are_drawn_and_nothing_is_cut(html, tmp_path, width, dark):
    path = tmp_path / "report.html"
    # The page itself allows no script; this copy does.
    path.write_text(re.sub(r"<meta http-equiv[^>]*>", MEASURE, html), "utf-8")
    dom, _ = browse(path, tmp_path / "profile", width, dark)
    seen = json.loads(unescape(re.search(r'data-seen="([^"]*)"', dom)[1]))
    assert len(seen["charts"]) == 8
    assert all(w > 250 and h > 30 and marks > 5 for w, h, marks in seen["charts"])
    assert seen["cut"] == []
    assert seen["wider"] <= 0
    light, night = "rgb(255, 255, 255)", "rgb(13, 17, 23)"
    assert seen["page"] == (night if dark else light)
    assert seen["label"] == ("rgb(230, 237, 243)" if dark else "rgb(27, 31, 36)")
    assert seen["line"] == ("rgb(88, 166, 255)" if dark else "rgb(10, 102, 194)")
