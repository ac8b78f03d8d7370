"""What is kept of a picture is what the model computes, and a query reads the right rows of it."""

import numpy as np
import pytest
import timm
import torch

from nearsight.analysis import attention_maps, inspectable
from nearsight.analysis.pictures import fit_picture
from nearsight.classification.use import top_classes
from nearsight.explorer.inspection import PARTS, inspect_picture, query_index
from nearsight.models import ResNet, VisionTransformer


def only_logits(logits, size):
    return top_classes(logits)


@pytest.fixture
def picture():
    pixels = np.random.default_rng(1).integers(0, 256, (90, 70, 3), dtype=np.uint8)
    return fit_picture("noise", pixels, (40, 56))


def read(inspection, row, col):
    """The server's answer, cut as the page cuts it: {part: [layer: heads × keys, or None]}."""
    flat = np.frombuffer(inspection.maps_at(row, col), dtype="<f2").astype(np.float32)
    place, parts = 0, {}
    for part in PARTS:
        parts[part] = []
        for layer in inspection.layers:
            if part not in layer.maps:
                parts[part].append(None)
                continue
            keys = layer.key_grid[0] * layer.key_grid[1] if layer.kernel_size is None else layer.kernel_size**2
            size = len(layer.heads) * keys
            parts[part].append(flat[place : place + size].reshape(len(layer.heads), keys))
            place += size
    assert place == len(flat)
    return parts


def test_rows_of_a_convit(picture):
    model = VisionTransformer(
        width=36, depth=3, num_heads=9, num_gated_blocks=2, patch_size=8, img_size=(40, 56), num_classes=7
    ).eval()
    inspection = inspect_picture(model, picture, lambda logits, size: top_classes(logits, ["a", "b", "c"]))
    row, col = 3, 5
    answer = read(inspection, (row + 0.5) / 5, (col + 0.5) / 7)
    for part in PARTS:
        expected = attention_maps(model, picture.tensor(), [0, 1], part=part)
        for layer in (0, 1):
            np.testing.assert_allclose(answer[part][layer], expected[layer][0, :, row * 7 + col], atol=2e-4, rtol=2e-3)
    assert answer["position"][2] is None
    assert answer["content"][2] is None
    np.testing.assert_allclose(answer["mixed"][2].sum(-1), 1, atol=2e-3)
    described = inspection.describe()
    assert described["layers"][0]["heads"][0]["gate_value"] == pytest.approx(0.731, abs=1e-3)
    assert described["layers"][0]["heads"][0]["center"] == pytest.approx((-1.0, -1.0))
    assert described["layers"][2]["heads"][0]["center"] is None
    with torch.no_grad():
        best = model(picture.tensor())[0].softmax(-1)
    assert [p["probability"] for p in described["predictions"]] == pytest.approx(best.topk(5).values.tolist())
    place = int(best.argmax())
    assert described["predictions"][0]["label"] == ("abc"[place] if place < 3 else f"class {place}")


def test_windows_of_a_sasa_resnet(picture):
    model = ResNet(layers=(1, 1, 1, 1), attention_stages=(3, 4), num_heads=2, kernel_size=5, num_classes=3).eval()
    wide = fit_picture("noise", picture.pixels, (128, 192))
    inspection = inspect_picture(model, wide, only_logits)
    answer = read(inspection, 0.0, 0.999)
    expected = attention_maps(model, wide.tensor())
    for layer in (0, 1):
        windows = expected[layer][0, 0, -1].flatten(1)
        np.testing.assert_allclose(answer["mixed"][layer], windows, atol=1e-3)
        assert windows[:, :5].max() == 0  # above the picture's edge
    assert inspection.layers[0].kernel_size == 5


def test_timm_models(picture):
    vit = timm.create_model("vit_tiny_patch16_224", pretrained=False, depth=2, img_size=(48, 80), num_classes=0)
    inspection = inspect_picture(vit.eval(), fit_picture("n", picture.pixels, (48, 80)), only_logits)
    assert [layer.key_grid for layer in inspection.layers] == [(3, 5), (3, 5)]
    convit = timm.create_model("convit_tiny", pretrained=False).eval()
    inspection = inspect_picture(inspectable(convit), fit_picture("n", picture.pixels, (224, 224)), only_logits)
    assert [layer.kind for layer in inspection.layers] == ["gpsa"] * 10 + ["plain"] * 2
    # What one convit_tiny holds for one picture: 12 mixed, 10 content and 10 positional layers of 4 heads, in float16.
    assert inspection.num_bytes == 224 * 224 * 3 + (12 + 10 + 10) * 4 * 196**2 * 2


def test_shares_name_cells():
    assert query_index((5, 7), 0.0, 0.0) == 0
    assert query_index((5, 7), 0.999, 0.999) == 34
    assert query_index((5, 7), 0.2, 0.5) == 1 * 7 + 3
