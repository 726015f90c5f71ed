"""The pages in real Chromium, driven by Playwright: keyboard, phone, colours, accessibility (axe-core from npm)."""

import shutil
import subprocess
import tarfile
import threading
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from support import migrated_database
from support.stored_job import JOB, START, store

from drumline.infra.clickhouse.client import connect
from drumline.infra.config.clickhouse_settings import ClickHouseSettings
from drumline.infra.grafana.provisioning.rules import rules
from drumline.infra.localstack.ephemeral import ephemeral_settings
from drumline.views.serve.web_server import listen, page_address, server

CHROMIUM = next((path for name in ("chromium", "chromium-headless-shell") if (path := shutil.which(name))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install 'drumline[browser]'")
pytestmark = [
    pytest.mark.long,
    pytest.mark.stack,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; on Debian: apt-get install chromium"),
]
AT = f"/job/{quote(JOB, safe='')}"
PAGES = ("/", "/hosts", "/host/h", "/costs", f"{AT}/compare?run=r1", AT, f"{AT}/rank/1", f"{AT}/step/25?rank=1",
         "/questions", f"/question/top-kernels?job={quote(JOB)}", "/causes", "/cause/host_stall",
         f"/alert/{rules()[0].uid}", "/job/nothing")  # fmt: skip


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """The script of axe-core, fetched for the test and never kept in the repository."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    done = npm and subprocess.run(
        [npm, "pack", "axe-core@4"], cwd=folder, capture_output=True, timeout=100, check=False
    )
    packed = next(folder.glob("*.tgz"), None)
    if not done or packed is None:
        pytest.skip("no npm, or no registry: axe-core cannot be had")
    with tarfile.open(packed) as archive:
        member = archive.extractfile("package/axe.min.js")
        return member.read().decode()


@contextmanager
def served(settings):
    """Yield the address of a server of the pages."""
    settings = settings.model_copy(update={"serve": settings.serve.model_copy(update={"port": 0})})
    listener = listen(settings.serve)
    pages = server(settings)
    thread = threading.Thread(target=pages.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield page_address(settings.serve, listener.getsockname()[1])
    pages.should_exit = True
    thread.join(20)


@pytest.fixture
def address(clean_stack):
    """The address of a server of the pages with a stored job."""
    migrated_database.create(clean_stack)
    store(clean_stack)
    with served(clean_stack) as address:
        yield address


@pytest.fixture
def chromium():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def test_from_the_fleet_to_what_to_do_by_keyboard(address, chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 800})
    problems = []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.goto(address + "/", timeout=90_000)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")

    def follow(prefix):
        for _ in range(40):
            page.keyboard.press("Tab")
            if (page.evaluate("document.activeElement.getAttribute('href')") or "").startswith(prefix):
                page.keyboard.press("Enter")
                page.wait_for_load_state(timeout=90_000)
                return
        raise AssertionError(f"no link to {prefix} by keyboard")

    follow(AT)
    assert page.locator("h1").inner_text().startswith(f"{JOB} ended, last data ")
    follow(f"{AT}/rank/1")
    assert "slow copy" in page.locator("section.notice").inner_text()
    titles = ["Evidence", "Check", "Do", "Escalate", "Next"]
    assert [text for text in page.locator("dl.steps dt").all_inner_texts() if text in titles] == titles
    assert problems == []


def middle_of(page, name, column, row=0.5):
    """The place on the screen of a share of a chart's plot."""
    chart = page.locator(f'[aria-label^="{name}"][data-chart]')
    chart.scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    left, top, width, height = chart.evaluate("c => (b => [b.left, b.top, b.width, b.height])(plane(c))")
    return left + column * width, top + row * height


@pytest.fixture
def job(address, chromium):
    """The page of the job in a browser that finds no fault in its scripts."""
    page = chromium.new_page(viewport={"width": 1280, "height": 800})
    problems = []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address + AT, timeout=90_000)
    yield page
    assert problems == []


def test_values_stand_below_the_pointer(job):
    job.mouse.move(*middle_of(job, "Time of a step", 0.63))
    tip = job.locator(".tip")
    assert tip.inner_text() == "step 25\nmedian: 1,000 ms\nshortest: 1,000 ms\nlongest: 1,000 ms"
    job.mouse.move(*middle_of(job, "How late", 0.6, 0.75))
    assert tip.inner_text() == "rank 1\nsteps 20 to 29\n60 ms late a step"
    job.locator("[aria-roledescription=bar]").first.hover()
    assert "1. kernel" in tip.inner_text()
    job.keyboard.press("Escape")
    assert not tip.is_visible()


def test_charts_of_an_answer_have_values_below_the_pointer(address, chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 800})
    page.goto(f"{address}/question/top-kernels?job={quote(JOB)}", timeout=90_000)
    page.locator("[aria-roledescription=bar]").first.hover()
    tip = page.locator(".tip")
    assert "kernel" in tip.inner_text()
    page.goto(f"{address}/question/gpu-idle?job={quote(JOB)}&group=10", timeout=90_000)
    before = page.url
    page.mouse.move(*middle_of(page, "Answer", 0.02))
    assert tip.inner_text().startswith("from_step 0\nidle_percent: ")
    page.mouse.down()
    page.mouse.move(*middle_of(page, "Answer", 0.9))
    page.mouse.up()
    assert page.url == before, "of an answer no part can be chosen"
    page.locator('[aria-label^="Answer"][data-chart]').focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.url == before


def test_a_drag_over_step_times_shows_that_part_and_back_the_whole_run(job):
    whole = job.url
    job.mouse.move(*middle_of(job, "Time of a step", 0.26))
    job.mouse.down()
    job.mouse.move(*middle_of(job, "Time of a step", 0.5), steps=4)
    assert job.locator(".tip").inner_text() == "only steps 10 to 20"
    job.mouse.up()
    job.wait_for_url("**?from=*", timeout=90_000)
    begin = int(START.timestamp()) * 1000
    assert f"from={begin + 10_000}&to={begin + 21_001}" in job.url
    assert "part of the run" in job.locator("h1 + p").inner_text()
    job.mouse.move(*middle_of(job, "Time of a step", 0.01))
    assert job.locator(".tip").inner_text().startswith(("step 9\n", "step 10\n"))
    job.go_back(timeout=90_000)
    assert job.url == whole


def test_a_strip_of_steps_opens_one_by_a_click_and_shows_fewer_by_a_drag(address, chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 800})
    page.goto(f"{address}{AT}/step/25?rank=1&from_step=0&to_step=39", timeout=90_000)
    page.mouse.move(*middle_of(page, "Time of steps", 0.26))
    page.mouse.down()
    page.mouse.move(*middle_of(page, "Time of steps", 0.63), steps=4)
    assert page.locator(".tip").inner_text() == "only steps 10 to 25"
    page.mouse.up()
    page.wait_for_url("**from_step=10&to_step=25**", timeout=90_000)
    assert page.locator("h1").inner_text() == "Step 25 across ranks"
    with page.expect_download(timeout=90_000) as file:
        page.get_by_text("Perfetto file of steps 10 to 25").click()
    assert file.value.suggested_filename == "steps-10-to-25.pftrace"
    page.mouse.click(*middle_of(page, "Time of steps", 0.05))
    page.wait_for_url("**/step/10?*", timeout=90_000)
    page.locator('[aria-label^="Time of steps"]').focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    page.wait_for_url("**/step/11?*", timeout=90_000)


def test_a_click_on_a_cell_of_lateness_opens_the_step_in_which_its_rank_came_latest(job):
    job.mouse.click(*middle_of(job, "How late", 0.6, 0.75))
    job.wait_for_url("**/step/20?*", timeout=90_000)
    assert job.locator("h1").inner_text() == "Step 27 across ranks"
    assert job.locator("tr.chosen th").inner_text().startswith("rank 1")


def test_charts_answer_to_the_keyboard(job):
    job.locator('[aria-label^="Time of a step"]').focus()
    for key in (*["ArrowRight"] * 11, *["Shift+ArrowRight"] * 5):
        job.keyboard.press(key)
    assert job.locator(".tip").inner_text() == "only steps 10 to 15"
    job.locator('[aria-label^="How late"]').focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "ArrowRight"):
        job.keyboard.press(key)
    assert job.locator(".tip").inner_text().startswith("rank 1\nsteps 20 to 29")
    job.keyboard.press("Enter")
    job.wait_for_url("**/step/20?*", timeout=90_000)


def test_a_first_tap_shows_a_cell_and_a_second_opens_it(address, chromium):
    context = chromium.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    page = context.new_page()
    page.goto(address + AT, timeout=90_000)
    place = middle_of(page, "How late", 0.3, 0.25)
    page.touchscreen.tap(*place)
    assert page.locator(".tip").inner_text().startswith("rank 0\nsteps 10 to 19")
    assert "/step/" not in page.url
    page.touchscreen.tap(*place)
    page.wait_for_url("**/step/10?*", timeout=90_000)


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_no_chart_is_cut_and_one_of_each_is_shown(address, chromium, width):
    page = chromium.new_page(viewport={"width": width, "height": 844})
    for path in (AT, f"{AT}/rank/1", f"{AT}/step/25?rank=1"):
        page.goto(address + path, timeout=90_000)
        charts = page.locator("figure .wide:visible")
        assert charts.count() > 0
        for chart in charts.all():
            assert chart.evaluate("part => part.scrollWidth - part.clientWidth") <= 0, path
            shown = chart.evaluate("part => [...part.querySelectorAll(':scope > svg')].map(svg => svg.clientWidth > 0)")
            assert shown.count(True) == 1, path


SCREENS = pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])


def scan(chromium, axe, width, scheme, addresses):
    # bypass_csp: only for the script of axe.
    context = chromium.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    for address in addresses:
        page.goto(address, timeout=90_000)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, address
        page.evaluate(axe)
        violations = page.evaluate("axe.run()")["violations"]
        assert [(rule["id"], rule["impact"], rule["nodes"][0]["html"]) for rule in violations] == [], address
    return page


@SCREENS
def test_no_page_is_wider_than_the_screen_or_has_a_fault_that_axe_finds(address, chromium, axe, width, scheme):
    scan(chromium, axe, width, scheme, [address + path for path in PAGES])


@SCREENS
def test_the_page_without_clickhouse_has_no_fault_either(chromium, axe, width, scheme, tmp_path):
    away = ClickHouseSettings(url="http://127.0.0.1:9", reader_password="a-password")
    with served(ephemeral_settings(tmp_path, clickhouse=away)) as address:
        page = scan(chromium, axe, width, scheme, [address + "/"])
        assert "ClickHouse does not answer" in page.locator("h1").inner_text()


def test_a_page_shows_new_rows_by_itself_and_leaves_a_form_alone(address, chromium, clean_stack):
    page = chromium.new_page()
    page.goto(address + "/", timeout=90_000)
    page.evaluate("document.getElementById('main').dataset.every = 2")
    before = page.locator("tbody tr").count()
    client = connect(clean_stack, database=clean_stack.clickhouse.database)
    client.command(
        "INSERT INTO ledger (topic, published, disposition, job, run, rank, host, rows, time_min, time_max) VALUES "
        "('gpu.step.v1', now64(3), 'stored', 'new-job', 'r1', 0, 'h', 1, now64(9), now64(9))"
    )
    client.close()
    page.locator("tbody tr", has_text="new-job").wait_for(timeout=60_000)
    assert page.locator("tbody tr").count() == before + 1
