"""Draw docs/img/web-page.png: a rank of the demo, from a running `drumline serve` after `drumline demo --keep`.

    docs/generate/web_page_picture.py [ADDRESS]

Needs Chromium and the extra `browser`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGE = Path(__file__).parents[1] / "img" / "web-page.png"
PAGE = "/job/demo/rank/2"


def main(address: str) -> None:
    """Write the picture."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("chromium-headless-shell"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1100, "height": 1000})
        page.goto(address + PAGE, timeout=90_000)
        page.screenshot(path=IMAGE)
        browser.close()
    print(f"{IMAGE} is written")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:18080")
