"""The pages in real Chromium, driven by Playwright: keyboard, phone, colours, accessibility (axe-core from npm)."""

import shutil
import subprocess
import tarfile
import threading
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from support import migrated_database
from support.stored_job import JOB, store

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
PAGES = ("/", AT, f"{AT}/rank/1", f"{AT}/step/25?rank=1", "/questions", f"/question/top-kernels?job={quote(JOB)}",
         "/causes", "/cause/host_stall", f"/alert/{rules()[0].uid}", "/job/nothing")  # fmt: skip


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
    assert page.locator("h1").inner_text() == JOB
    follow(f"{AT}/rank/1")
    assert "slow copy" in page.locator("section.notice").inner_text()
    titles = ["Evidence", "Check", "Do", "Escalate", "Next"]
    assert [text for text in page.locator("dl.steps dt").all_inner_texts() if text in titles] == titles
    assert problems == []


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
