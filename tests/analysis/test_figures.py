"""Every figure is drawn in every format, its numbers lie beside it, and they are the model's own."""

import csv
import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from nearsight.analysis import attention_maps
from nearsight.analysis.figures import (
    attention_figure,
    averaged_figure,
    figure3,
    gates_figure,
    nonlocality_figure,
    relative_logits_figure,
    window_attention_figure,
)
from nearsight.analysis.figures.training import read_curves
from nearsight.analysis.pictures import batch_for, fit_picture, sample_images
from nearsight.functional import convolutional_v_pos, positional_weights
from nearsight.geometry import head_centers
from nearsight.images.decode import read_image_file
from nearsight.models import ResNet, VisionTransformer


@pytest.fixture
def convit() -> VisionTransformer:
    return VisionTransformer(
        width=32, depth=4, num_heads=4, num_gated_blocks=2, patch_size=8, img_size=(40, 56), num_classes=3
    )


@pytest.fixture
def deit() -> VisionTransformer:
    return VisionTransformer(width=24, depth=4, num_heads=3, patch_size=8, img_size=(40, 56), num_classes=3)


@pytest.fixture
def picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figure_3_and_its_numbers(tmp_path, convit, picture, suffix):
    written = figure3(convit, ("p", picture), tmp_path / "new" / f"three.{suffix}", query=(1, 2))
    assert [path.name for path in written] == [f"three.{suffix}", "three.json"]
    assert written[0].stat().st_size > 5000
    data = json.loads(written[1].read_text())
    assert data["grid_size"] == [5, 7]
    drawn = torch.tensor(data["rows"][2]["maps"])
    expected = positional_weights(convolutional_v_pos(head_centers(4), 2.0), (5, 7))[:, 1 * 7 + 2]
    torch.testing.assert_close(drawn, expected, atol=1e-6, rtol=1e-5)
    assert all(sum(weights) == pytest.approx(1, abs=1e-4) for row in data["rows"] for weights in row["maps"])


def test_figure_3_leaves_the_random_numbers_alone(tmp_path, picture, convit):
    before = torch.get_rng_state()
    figure3(convit, ("p", picture), tmp_path / "a.png")
    assert torch.equal(before, torch.get_rng_state())


def test_a_picture_is_the_same_file_twice(tmp_path, convit, picture):
    first, second = (figure3(convit, ("p", picture), tmp_path / f"{name}.svg")[0].read_bytes() for name in "ab")
    assert first == second


@pytest.mark.parametrize("stacked", [False, True, None])
def test_figures_7_16_17(tmp_path, deit, convit, picture, stacked):
    pictures = [("one", picture), ("two", picture[::-1])]
    written = attention_figure({"D": deit, "C": convit}, pictures, tmp_path / "f.png", query=(4, 0), stacked=stacked)
    panels = json.loads(written[1].read_text())["panels"]
    assert [(panel["model"], panel["picture"]) for panel in panels] == [
        ("D", "one"), ("D", "two"), ("C", "one"), ("C", "two"),
    ]  # fmt: skip
    layer = panels[3]["layers"][0]
    assert layer["layer"] == 2
    assert layer["gate_values"] == pytest.approx([0.731059] * 4)
    expected = attention_maps(convit, fit_picture("two", picture[::-1], (40, 56)).tensor(), [1])[1][0, :, 4 * 7]
    torch.testing.assert_close(torch.tensor(layer["maps"]).flatten(1), expected, atol=1e-6, rtol=1e-4)
    assert panels[0]["layers"][0]["gate_values"] is None


def test_figure_15_averages(tmp_path, deit):
    rng = np.random.default_rng(0)
    pictures = [(str(number), rng.integers(0, 256, (60, 70, 3), dtype=np.uint8)) for number in range(5)]
    images = batch_for(deit, pictures)
    written = averaged_figure({"before": deit, "after": deit}, pictures, tmp_path / "f.png", layers=[4])
    data = json.loads(written[1].read_text())
    assert data["num_images"] == 5
    expected = attention_maps(deit, images, [3])[3].mean(0)[:, 2 * 7 + 2]
    torch.testing.assert_close(torch.tensor(data["panels"][0]["maps"]).flatten(1), expected, atol=1e-6, rtol=1e-4)
    with pytest.raises(ValueError, match="no layer 5; layers count from 1 to 4"):
        averaged_figure({"before": deit}, pictures, tmp_path / "f.png", layers=[5])


def write_run(folder, gated: bool):
    folder.mkdir()
    with (folder / "metrics.jsonl").open("w") as log:
        for epoch in range(3):
            log.write(json.dumps({"kind": "train", "step": epoch, "loss": 1.0}) + "\n")
            record = {"kind": "eval", "epoch": float(epoch), "nonlocality": [5 - epoch, 4.0, 3 + math.sin(epoch)]}
            if gated:
                record["gates"] = [[0.7, 0.1 * epoch], [0.5, 0.5]]
            log.write(json.dumps(record) + "\n")
        log.write('{"kind": "eval", "epoch": 3.0, "nonloc')  # the run is writing
    return read_curves(folder)


def test_figures_5_10_13_from_logs(tmp_path):
    runs = [write_run(tmp_path / "deit-1", False), write_run(tmp_path / "convit-1", True)]
    written = nonlocality_figure(runs, tmp_path / "five.pdf")
    with written[2].open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 3 * 3
    assert rows[3] == {"run": "deit-1", "epoch": "1.0", "layer": "1", "nonlocality": "4.0"}
    assert json.loads(written[1].read_text())["runs"][1]["gates"][2][0] == [0.7, 0.2]


def test_figures_6_14_from_logs(tmp_path):
    convit, deit = write_run(tmp_path / "convit-1", True), write_run(tmp_path / "deit-1", False)
    written = gates_figure([convit, convit], tmp_path / "six.png")
    with written[2].open() as file:
        assert len(list(csv.DictReader(file))) == 2 * 3 * 2 * 2
    with pytest.raises(ValueError, match="deit-1 has no gates"):
        gates_figure([deit], tmp_path / "six.png")


def test_folders_without_curves_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no metrics"):
        read_curves(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
    with pytest.raises(ValueError, match="wait for its first evaluation"):
        read_curves(tmp_path)


def test_windows(tmp_path, picture, convit):
    model = ResNet(layers=(1, 1, 1, 1), attention_stages=(3, 4), num_heads=2, kernel_size=5, num_classes=3)
    written = relative_logits_figure(model, torch.randn(2, 3, 64, 96), tmp_path / "logits.png")
    with written[2].open() as file:
        assert len(list(csv.DictReader(file))) == 2 * 2 * 25
    written = window_attention_figure(model, ("p", picture), tmp_path / "w.png", size=(160, 224), point=(0.99, 0.0))
    layers = json.loads(written[1].read_text())["layers"]
    assert [layer["grid_size"] for layer in layers] == [[20, 28], [10, 14]]
    for layer in layers:
        maps = np.array(layer["maps"])
        np.testing.assert_allclose(maps.sum((-2, -1)), 1, atol=1e-4)
        row, col = layer["query"]
        assert (row, col) == (layer["grid_size"][0] - 1, 0)
        assert maps[:, : row - 2].max() == 0
        assert maps[:, :, col + 3 :].max() == 0
    with pytest.raises(ValueError, match="give it a sasa_resnet"):
        relative_logits_figure(convit, torch.randn(1, 3, 40, 56), tmp_path / "x.png")
    with pytest.raises(ValueError, match="as shares"):
        window_attention_figure(model, ("p", picture), tmp_path / "w.png", point=(5, 5))


def test_mistakes(tmp_path, convit, picture):
    with pytest.raises(ValueError, match=r"saved as \.png, \.svg, \.pdf, not 'f.gif'"):
        figure3(convit, ("p", picture), tmp_path / "f.gif")
    with pytest.raises(ValueError, match="outside the grid of 5x7"):
        figure3(convit, ("p", picture), tmp_path / "f.png", query=(5, 0))
    resnet = ResNet(layers=(1, 1, 1, 1), attention_stages=(4,), num_heads=2)
    with pytest.raises(ValueError, match="needs one of nearsight's ViTs"):
        figure3(resnet, ("p", picture), tmp_path / "f.png")
    with pytest.raises(ValueError, match="use --figure sasa-attention"):
        attention_figure({"r": resnet}, [("p", picture)], tmp_path / "f.png", layers=[1])


def test_sample_pictures_and_fitting(tmp_path):
    samples = sample_images(12)
    assert len({name for name, _ in samples[:10]}) == 10
    assert all(pixels.dtype == np.uint8 for _, pixels in samples)
    wide = np.zeros((10, 40, 3), dtype=np.uint8)
    wide[:, 15:25] = 255
    fitted = fit_picture("wide", wide, (20, 20))
    assert fitted.pixels.shape == (20, 20, 3)
    assert fitted.pixels[:, 2:-2].min() > 250  # the centred square alone
    path = tmp_path / "wide.png"
    Image.fromarray(wide).save(path)
    read = fit_picture(path.name, read_image_file(path, path.name), (20, 20))
    np.testing.assert_array_equal(read.pixels, fitted.pixels)
