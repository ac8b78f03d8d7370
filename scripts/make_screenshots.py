"""Draw docs/figures/explorer-*.png: python scripts/make_screenshots.py CONVIT_RUN DEIT_RUN

Needs chromium (scripts/install_chromium.sh) and the playwright package.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

START = "from nearsight.cli.explore import explore; import sys; explore(*sys.argv[1:], port=0, open_browser=False)"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
INTO = Path(__file__).parent.parent / "docs" / "figures"
PICTURE = "#samples button:nth-child(7)"
PATCH = (0.44, 0.31)  # column and row, as shares of the picture


def click_patch(page: Page) -> None:
    page.locator(PICTURE).click()
    page.wait_for_selector('#look[data-ready$="sample-6"]')
    area = page.locator("#stage").bounding_box()
    assert area is not None
    page.mouse.click(area["x"] + PATCH[0] * area["width"], area["y"] + PATCH[1] * area["height"])
    page.mouse.move(5, 5)
    page.wait_for_timeout(800)


def main(sources: list[str]) -> None:
    process = subprocess.Popen([sys.executable, "-c", START, *sources], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = next(word for word in process.stdout.readline().split() if word.startswith("http://"))
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            for scheme in ("light", "dark"):
                size = {"width": 1500, "height": 1060}
                page = browser.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
                page.goto(address)
                page.wait_for_selector("#look[data-ready]")
                click_patch(page)
                page.screenshot(path=INTO / f"explorer-{scheme}.png")
                if scheme == "light":
                    page.locator("#tab-play").click()
                    page.get_by_role("button", name="as ConViT starts").click()
                    page.set_viewport_size({"width": 1500, "height": 760})
                    page.screenshot(path=INTO / "explorer-playground.png")
                page.close()
            browser.close()
    finally:
        process.terminate()
        process.wait(20)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs=2, metavar="RUN")
    main(parser.parse_args().runs)
