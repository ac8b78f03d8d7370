"""Reports for people: sound words, rounded numbers, figures that say how to be read, links that stay in the folder."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
from PIL import Image

from nearsight import tasks
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.reports import plots
from nearsight.reports.page import Page, Picture, page_html, picture_file
from nearsight.reports.run_report import run_files
from nearsight.reports.words import measure_words, measured, model_words
from nearsight.tasks import task_kind
from nearsight.text import value_words


def test_values_as_a_person_types_them():
    assert value_words(100.0) == "100"
    assert value_words({"stem": "conv", "width": 0.25}) == "stem=conv, width=0.25"
    assert value_words(True) == "yes"
    assert value_words({}) == ""


def test_measures_have_units_and_no_more_digits_than_they_are_worth():
    assert measured("top1", 47.31182795698925) == "top-1 47.3 %"
    assert measured("mAP", 0.40449999) == "mAP 0.404"
    assert measure_words("top5") == "top-5 (%)"
    assert measure_words("loss") == "loss"


def test_a_model_is_named_with_what_was_changed_in_it():
    recipe = ClassificationRecipe(
        model="convit_nano_64", model_options={"width": 108, "depth": 5}, image_size=48, patch_size=8
    )
    assert model_words(recipe) == "convit_nano_64 (width=108, depth=5, patch_size=8) at 48 px"
    assert model_words(ClassificationRecipe(model="deit_tiny")) == "deit_tiny at 224 px"


def test_names_captions_and_links_cannot_leave_their_place():
    pages = [Page("P", pictures=(Picture("<b>", b"png", "a < b"),), links=(("javascript:x", "<i>"), ("a b.json", "c")))]
    page = page_html("T", pages)
    assert "<figcaption><b>&lt;b&gt;.</b> a &lt; b</figcaption>" in page
    assert 'href="javascript%3Ax"' in page
    assert 'href="a%20b.json"' in page
    assert "&lt;i&gt;" in page
    assert picture_file("../Worst mistakes") == "worst_mistakes.png"


def test_links_lead_to_what_is_there(tmp_path):
    (tmp_path / "config.yaml").write_text("")
    assert [path for path, _ in run_files(tmp_path, "convit/")] == ["convit/config.yaml"]


def test_the_square_is_drawn_around_the_marked_patch():
    dark = np.zeros((6, 6, 3), dtype=np.uint8)

    def red(marks):
        with Image.open(io.BytesIO(plots.picture_grid([dark, dark], ["", ""], columns=2, marks=marks))) as picture:
            pixels = np.asarray(picture.convert("RGB")).astype(int)
        rows, cols = np.nonzero((pixels[..., 0] > 200) & (pixels[..., 1:].max(axis=-1) < 70))
        return pixels.shape, rows, cols

    assert len(red([])[1]) == 0
    (_, width, _), rows, cols = red([plots.Mark(3, 3, 1), plots.Mark(0, 0, 2)])
    left, right = cols < width / 2, cols >= width / 2
    assert left.any()
    assert right.any()
    assert rows[left].mean() > rows[right].mean()  # lower in the first picture
    assert np.ptp(cols[right]) > 1.5 * np.ptp(cols[left])  # twice as wide in the second


def test_measures_of_every_task_have_their_units(monkeypatch):
    kind = dataclasses.replace(task_kind("classification"), name="labels", recipes={}, percents={"kappa": "κ"})
    assert measured("kappa", 50.0) == "kappa 50.000"
    monkeypatch.setattr(tasks, "_KINDS", {"labels": kind})
    assert measured("kappa", 50.0) == "κ 50.0 %"
    assert measured("top1", 50.0) == "top-1 50.0 %"
