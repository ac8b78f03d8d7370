"""The explorer in a real browser: upload, click, compare, time, playground, bad files, keys, and nobody else is asked.

Needs Debian's `chromium` (scripts/install_chromium.sh) and the playwright package. Outside CI both may be missing.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from explorer_helpers import encoded

from nearsight.analysis import attention_maps
from nearsight.analysis.pictures import fit_picture, in_turn
from nearsight.datasets.sources import open_data
from nearsight.explorer.sources import open_source
from nearsight.functional import convolutional_v_pos, positional_weights

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
IN_CI = bool(os.environ.get("CI"))

if not IN_CI and not os.path.exists(CHROMIUM):
    pytest.skip("chromium is not installed; scripts/install_chromium.sh installs it", allow_module_level=True)
if not IN_CI:
    pytest.importorskip("playwright", reason="the playwright package is not installed")

START = "from nearsight.cli.explore import explore; import sys; explore(*sys.argv[1:], port=0, open_browser=False)"


@pytest.fixture(scope="module")
def address(run_folder, detection_run):
    """The command itself in a process of its own, and the address it prints."""
    arguments = [sys.executable, "-c", START, str(run_folder), "deit_nano_32", "convit_tiny", str(detection_run)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        yield next(word for word in process.stdout.readline().split() if word.startswith("http://"))
        process.terminate()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser, address):
    """A fresh page on the first sample. Whatever happens, no other host is asked and no script fails."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, color_scheme="light")
    page = context.new_page()
    asked, troubles = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda message: troubles.append(message.text) if "Content Security" in message.text else None)
    page.goto(address)
    page.wait_for_selector("#look[data-ready]")
    yield page
    context.close()
    hosts = {urlsplit(url).hostname for url in asked if not url.startswith(("blob:", "data:"))}
    assert hosts == {"127.0.0.1"}
    assert troubles == []


def click_patch(page, row: int, col: int, side: int = 8) -> None:
    area = page.locator("#stage").bounding_box()
    cell = area["width"] / side
    page.mouse.click(area["x"] + (col + 0.5) * cell, area["y"] + (row + 0.5) * cell)
    page.wait_for_function(
        "text => document.getElementById('where').textContent.startsWith(text)",
        arg=f"patch in row {row + 1} of {side}, column {col + 1} of",
    )


def colours(page, pane: int, layer: int, head: int) -> np.ndarray:
    """The pixels of one small map, [rows, cols, 3]."""
    return np.array(
        page.evaluate(
            """([pane, layer, head]) => {
                const cell = document.querySelectorAll('.pane')[pane].querySelector(
                    `.cell[data-layer="${layer}"][data-head="${head}"] canvas`);
                const { width, height } = cell;
                const data = [...cell.getContext('2d').getImageData(0, 0, width, height).data];
                return Array.from({ length: height }, (_, row) => Array.from({ length: width }, (_, col) =>
                    data.slice(4 * (row * width + col), 4 * (row * width + col) + 3)));
            }""",
            [pane, layer, head],
        )
    )


def test_every_layer_and_head_is_there_at_once(page):
    panes = page.locator(".pane")
    assert panes.count() == 2
    for pane in range(2):
        assert panes.nth(pane).locator(".cell").count() == 6 * 9
        assert panes.nth(pane).locator(".heads figure").count() == 9
    assert panes.nth(0).locator(".chip:visible").count() == 4 * 9
    assert panes.nth(1).locator(".chip:visible").count() == 0


def test_a_click_shows_the_model_s_own_maps(page, run_folder):
    click_patch(page, 2, 5)
    model = open_source(str(run_folder)).load()
    name, pixels = next(in_turn(open_data("clothing").val))
    maps = attention_maps(model, fit_picture(name, pixels, (32, 32)).tensor())
    for layer, head in ((0, 0), (1, 7), (5, 4)):
        expected = maps[layer][0, head, 2 * 8 + 5].reshape(8, 8).numpy()
        drawn = colours(page, 0, layer, head).sum(-1)  # the ramp grows brighter with weight
        order = np.argsort(expected, axis=None)
        assert drawn.flat[order[-1]] == drawn.max()
        assert drawn.flat[order[0]] == drawn.min()
        assert np.corrcoef(np.argsort(order), np.argsort(np.argsort(drawn, axis=None)))[0, 1] > 0.9
    left = page.locator("#box").evaluate("box => box.style.left")
    assert left == "62.5%"


def test_hovering_looks_and_leaving_returns(page):
    click_patch(page, 1, 1)
    area = page.locator("#stage").bounding_box()
    page.mouse.move(area["x"] + 0.9 * area["width"], area["y"] + 0.9 * area["height"])
    page.wait_for_function("() => document.getElementById('where').textContent.startsWith('patch in row 8')")
    page.mouse.move(area["x"] + 600, area["y"] + 5)
    page.wait_for_function(
        "() => document.getElementById('where').textContent.startsWith('patch in row 2 of 8, column 2')"
    )


def test_content_position_and_mix(page):
    click_patch(page, 4, 4)
    mixed = colours(page, 0, 0, 0)
    page.locator("#parts span", has_text="position").click()
    position = colours(page, 0, 0, 0)
    # Head 1 looks at the patch above and to the left; plain layers have no positional map.
    assert np.unravel_index(position.sum(-1).argmax(), (8, 8)) == (3, 3)
    assert page.locator(".pane").nth(0).locator(".cell.empty").count() == 2 * 9
    page.keyboard.press("2")
    assert page.locator("#parts input:checked").get_attribute("value") == "content"
    content = colours(page, 0, 0, 0)
    assert not np.array_equal(content, position)
    assert not np.array_equal(content, mixed)
    assert page.locator(".cell.empty").count() == 0


def test_layers_slide_and_heads_tell_their_numbers(page):
    page.locator("#layer").fill("3")
    assert page.locator(".pane h3").first.inner_text().startswith("Layer 3")
    caption = page.locator(".pane").first.locator(".heads figcaption").first.inner_text()
    assert "σ(λ) 0.50" in caption
    assert "Δ −1.0, −1.0" in caption
    assert "span 0.71" in caption
    page.locator(".pane").nth(1).locator('.cell[data-layer="5"][data-head="2"]').click()
    assert page.locator("#layer-value").inner_text() == "6 of 6"
    assert page.locator('.pane .cell[aria-selected="true"]').count() == 2


def test_one_model_or_two_side_by_side(page):
    page.locator("#compare").uncheck()
    assert page.locator(".pane").count() == 1
    page.locator("#compare").check()
    page.wait_for_function("() => document.querySelectorAll('.pane .cell').length === 108")
    second = page.locator(".pane").nth(1)
    second.locator("select").select_option(label="nano-1")
    page.wait_for_function(
        "() => document.querySelectorAll('.pane')[1].querySelectorAll('.chip:not([hidden])').length === 36"
    )


def test_training_time(page):
    pane = page.locator(".pane").first
    chip = pane.locator(".chip").first
    slider = pane.get_by_label("Training time")
    seen = []
    for moment, gate in (("0", "0.73"), ("1", "0.50"), ("2", "0.27")):
        slider.fill(moment)
        page.wait_for_function("gate => document.querySelector('.pane .chip').textContent === gate", arg=gate)
        seen.append(pane.locator("output.moment").first.inner_text())
    assert seen == ["before training", "step 4 (selected)", "step 8"]
    pane.get_by_role("button", name="Play").click()
    page.wait_for_function("() => document.querySelector('.pane .play-button').textContent === 'Play'", timeout=20_000)
    assert chip.inner_text() == "0.27"


def test_what_a_detector_found_is_framed(page):
    count = """() => {
        const { width, height } = document.getElementById('picture');
        const data = document.getElementById('picture').getContext('2d').getImageData(0, 0, width, height).data;
        let framed = 0;
        for (let i = 0; i < data.length; i += 4) framed += data[i] < 110 && data[i + 1] > 170 && data[i + 2] > 140;
        return framed / (width * height);
    }"""
    page.locator("#overlay").uncheck()
    before = page.evaluate(count)
    page.locator(".pane select").first.select_option(label="cells-1")
    page.wait_for_function("() => document.getElementById('picture').width === 128")
    page.wait_for_function(f"least => ({count})() > least", arg=before + 0.02)
    assert page.locator(".pane").first.locator(".predictions li").count() == 3


def test_predictions_are_text(page):
    predicted = page.locator(".pane").first.locator(".predictions li").first
    assert predicted.locator("span").inner_text() == "<b>skirt</b>"
    assert "%" in predicted.locator("b").inner_text()


def test_upload_and_bad_files(page, tmp_path):
    pixels = np.zeros((60, 90, 3), dtype=np.uint8)
    pixels[:, :45] = (250, 10, 10)
    (tmp_path / "red.png").write_bytes(encoded(pixels))
    before = page.locator("#look").get_attribute("data-ready")
    page.set_input_files("#file", tmp_path / "red.png")
    page.wait_for_function("before => document.getElementById('look').dataset.ready !== before", arg=before)
    assert page.locator("#samples button").first.get_attribute("aria-label") == "red.png"
    page.locator("#overlay").uncheck()
    corner = page.evaluate(
        "() => [...document.getElementById('picture').getContext('2d').getImageData(2, 16, 1, 1).data]"
    )
    assert corner[0] > 200 > 60 > corner[1]
    (tmp_path / "notes.png").write_text("these are words")
    page.set_input_files("#file", tmp_path / "notes.png")
    page.wait_for_function("() => document.getElementById('message').textContent !== ''")
    assert page.get_by_role("alert").inner_text() == "notes.png: not an image of a known format"
    (tmp_path / "huge.png").write_bytes(b"\0" * (11 * 2**20))
    page.set_input_files("#file", tmp_path / "huge.png")
    page.wait_for_function("() => document.getElementById('message').textContent.startsWith('huge.png')")
    click_patch(page, 3, 3)  # it goes on


def test_keys_alone_are_enough(page):
    page.locator("#stage").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(
        "() => document.getElementById('where').textContent.startsWith('patch in row 4 of 8, column 4')"
    )
    page.keyboard.press("PageDown")
    page.wait_for_function(
        "() => document.getElementById('announce').textContent.includes('layer 3: head 1 looks most at row')"
    )
    page.locator('.pane .cell[tabindex="0"]').first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator("#layer-value").inner_text() == "4 of 6"
    page.locator("#tab-look").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#play").is_visible()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select')].filter((control) =>
            !(control.textContent.trim() || control.getAttribute('aria-label') || control.labels?.length)).length"""
    )
    assert nameless == 0


def test_playground(page):
    page.locator("#tab-play").click()
    page.get_by_role("button", name="as ConViT starts").click()
    kernel = page.evaluate(
        "() => [...document.querySelectorAll('.kernel')[0].querySelectorAll('td')].map(td => +td.dataset.value)"
    )
    gate = torch.tensor(1.0).sigmoid().item()
    exact = positional_weights(convolutional_v_pos(torch.tensor([[0.0, -1.0]]), 1.0), (15, 15))[0, 7 * 15 + 7]
    mixed = ((1 - gate) / 225 + gate * exact).reshape(15, 15)[6:9, 6:9]
    np.testing.assert_allclose(np.array(kernel).reshape(3, 3), mixed, atol=1e-6)
    page.get_by_role("button", name="a convolution").click()
    assert "It is that convolution: 99" in page.locator(".verdict").inner_text()
    area = page.locator(".field").bounding_box()
    middle = (area["x"] + area["width"] / 2, area["y"] + area["height"] / 2)
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + area["width"] / 15, middle[1] + area["width"] / 15, steps=4)
    page.mouse.up()
    assert "1 below and 1 to the right" in page.locator(".verdict").inner_text()
    ideal = page.evaluate(
        "() => [...document.querySelectorAll('.kernel')[1].querySelectorAll('td')].map(td => +td.dataset.value)"
    )
    assert ideal == [0, 0, 0, 0, 0, 0, 0, 0, 1]
    page.locator("#play-strength").fill("-2")
    assert "far from that convolution" in page.locator(".verdict").inner_text()
    page.get_by_role("button", name="layer 2, head 1 of nano-1").click()
    assert page.locator('output[for="play-gate"]').inner_text() == "0.00, σ(λ) = 0.50"
    assert page.locator('output[for="play-row"]').inner_text() == "−1.00"


def test_what_is_shown_can_be_saved(page):
    click_patch(page, 2, 3)
    with page.expect_download() as pending:
        page.locator("#save-json").click()
    data = json.loads(pending.value.path().read_text())
    assert [pane["model"] for pane in data["panes"]] == ["nano-1", "deit_nano_32"]
    layer = data["panes"][0]["layers"][0]
    assert layer["query"] == {"row": 2, "col": 3}
    assert sum(layer["heads"][0]["map"]) == pytest.approx(1, abs=5e-3)
    with page.expect_download() as pending:
        page.locator("#save-png").click()
    assert pending.value.path().read_bytes().startswith(b"\x89PNG")
    page.locator("#tab-play").click()
    with page.expect_download() as pending:
        page.locator("#save-json").click()
    assert json.loads(pending.value.path().read_text())["kernel_size"] == 3
    with page.expect_download() as pending:
        page.locator("#save-png").click()
    assert pending.value.path().read_bytes().startswith(b"\x89PNG")


def test_light_and_dark(page):
    def ground():
        return page.evaluate("() => getComputedStyle(document.body).backgroundColor")

    light = ground()
    page.emulate_media(color_scheme="dark")
    dark = ground()
    assert light != dark
    page.locator("#theme").click()
    assert ground() == light
    page.locator("#theme").click()
    page.emulate_media(color_scheme="light")
    assert ground() == dark


def test_latency_beside_the_model_s_own_forward(page, record_property):
    """From a patch to its maps in the page, for convit_tiny at 224 pixels, in units of the model's forward pass."""
    page.locator("#compare").uncheck()
    page.locator(".pane select").select_option(label="convit_tiny")
    page.wait_for_function("() => document.getElementById('where').textContent.includes('of 14, column')")
    taken = []
    for place in range(14):
        click_patch(page, place, 13 - place, side=14)
        taken.append(float(page.locator("#latency").get_attribute("data-milliseconds")))
    model = open_source("convit_tiny").load()
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        model(images)
        began = time.perf_counter()
        for _ in range(5):
            model(images)
        forward = 1000 * (time.perf_counter() - began) / 5
    click = float(np.median(taken))
    assert len(set(taken)) > 1
    record_property(
        "explorer_latency",
        f"{click:.0f} ms from patch to maps, {click / forward:.2f} × one forward pass ({forward:.0f} ms)",
    )
