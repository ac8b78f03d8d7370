"""Nonlocality, gates and entropy of layers, against the numbers that theory and the released code give."""

import weakref

import pytest
import timm
import torch
from timm.models.vision_transformer import ParallelScalingBlock

from nearsight.analysis import attention_maps, head_profiles, inspectable, layer_summaries, nonlocality_by_layer
from nearsight.analysis.views import GlobalView
from nearsight.functional import nonlocality
from nearsight.models import ResNet, VisionTransformer, create_model


def small_vit(**options) -> VisionTransformer:
    torch.manual_seed(3)
    settings = {"width": 36, "depth": 4, "num_heads": 9, "num_gated_blocks": 3, "patch_size": 8, "img_size": (40, 56)}
    return VisionTransformer(**{**settings, "num_classes": 7, **options})


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(5, 3, 40, 56, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("side", "expected"), [(7, 3.609), (8, 4.136), (14, 7.281), (16, 8.326), (32, 16.677)])
def test_uniform_attention(side, expected):
    uniform = torch.full((side**2, side**2), 1 / side**2)
    assert nonlocality(uniform, (side, side)).item() == pytest.approx(expected, abs=5e-4)


def test_fresh_convit_small():
    torch.manual_seed(0)
    summaries = layer_summaries(create_model("convit_small", depth=3, num_gated_blocks=1), torch.randn(2, 3, 224, 224))
    assert [summary.kind for summary in summaries] == ["gpsa", "plain", "plain"]
    assert summaries[0].mean_nonlocality == pytest.approx(2.881, abs=2e-3)
    # A fresh plain layer is nearly uniform over the grid, class token left out.
    assert summaries[1].mean_nonlocality == pytest.approx(7.281, abs=2e-2)
    assert summaries[0].gate_values == pytest.approx([0.7310586] * 9)
    assert summaries[1].gate_values is None


@pytest.mark.parametrize(("name", "expected"), [("tiny", 0.986), ("small", 1.262), ("base", 1.562)])
def test_positional_part_alone(name, expected):
    model = create_model(f"convit_{name}", depth=1, num_gated_blocks=1, gate=60.0)
    (summary,) = layer_summaries(model, torch.randn(1, 3, 224, 224))
    assert summary.mean_nonlocality == pytest.approx(expected, abs=5e-4)


def test_summaries_equal_the_model_s_own_maps(images):
    model = small_vit().eval()
    with torch.no_grad():
        _, weights = model.forward_attention(images)
    expected = []
    for layer in weights:
        patches = layer[:, :, layer.shape[-1] - 35 :, layer.shape[-1] - 35 :]
        expected.append(nonlocality(patches / patches.sum(-1, keepdim=True), (5, 7)).mean(0))
    got = layer_summaries(model, images, batch_size=2)
    torch.testing.assert_close(torch.tensor([summary.nonlocality for summary in got]), torch.stack(expected))
    assert nonlocality_by_layer(model, images) == pytest.approx([layer.mean().item() for layer in expected])


def test_entropy_of_uniform_and_single_key_heads(images):
    model = small_vit(num_gated_blocks=3, gate=60.0, locality_strength=80.0)
    for block in model.blocks[3:]:
        torch.nn.init.zeros_(block.attn.qkv.weight)
    summaries = layer_summaries(model, images)
    assert summaries[0].entropy == pytest.approx([0.0] * 9, abs=1e-4)
    assert summaries[3].entropy == pytest.approx([torch.tensor(35.0).log().item()] * 9, abs=1e-5)


def test_released_code_protocol_ignores_depth_and_class_token(images):
    model = small_vit(num_gated_blocks=0)
    torch.nn.init.normal_(model.blocks[0].attn.qkv.weight)  # far from uniform maps
    model.blocks[3].attn.load_state_dict(model.blocks[0].attn.state_dict())
    # Position and earlier blocks reach true activations alone.
    torch.nn.init.normal_(model.pos_embed, std=10.0)
    raw = nonlocality_by_layer(model, images, protocol="released_code", batch_size=2)
    assert raw[0] == pytest.approx(raw[3], rel=1e-6)
    true = nonlocality_by_layer(model, images)
    assert abs(true[0] - true[3]) > 1e-3
    with torch.no_grad():
        embedded = model.patch_embed(images)
        _, weights = model.blocks[0].attn(embedded, need_weights=True)
    assert raw[0] == pytest.approx(nonlocality(weights, (5, 7)).mean().item(), rel=1e-5)


def test_modes_are_put_back_and_dropout_is_off(images):
    model = small_vit(drop_path_rate=0.9, proj_drop_rate=0.5).train()
    model.blocks[1].eval()
    first, second = (layer_summaries(model, images) for _ in range(2))
    assert first == second
    assert model.training
    assert model.blocks[0].training
    assert not model.blocks[1].training
    assert torch.is_grad_enabled()


def test_psa_and_local_layers(images):
    psa = layer_summaries(small_vit(positional_layer="psa"), images)
    assert [summary.kind for summary in psa] == ["psa"] * 3 + ["plain"]
    resnet = ResNet(layers=(1, 1, 1, 1), attention_stages=(2, 4), num_classes=3, kernel_size=5, num_heads=4)
    local = layer_summaries(resnet, torch.randn(2, 3, 96, 64))
    assert [summary.name for summary in local] == ["stage 2, block 1", "stage 4, block 1"]
    assert all(0 < value < 8**0.5 for summary in local for value in summary.nonlocality)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_timm_vit(name):
    model = timm.create_model(name, pretrained=False, depth=2, img_size=(48, 80), num_classes=5)
    summaries = layer_summaries(model, torch.randn(2, 3, 48, 80))
    assert len(summaries) == 2
    assert all(len(summary.nonlocality) == 3 for summary in summaries)
    assert len(nonlocality_by_layer(model, torch.randn(2, 3, 48, 80), protocol="released_code")) == 2


def test_timm_convit_equals_ours():
    theirs = timm.create_model("convit_tiny", pretrained=False).eval()
    images = torch.randn(2, 3, 224, 224)
    got = attention_maps(theirs, images, [0])[0]
    with torch.no_grad():
        theirs(images)  # timm fills its table of distances on the first pass
        tokens = theirs.patch_embed(images) + theirs.pos_embed
        expected = theirs.blocks[0].attn.get_attention(theirs.blocks[0].norm1(tokens))
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-4)


def test_errors_name_the_remedy(images):
    with pytest.raises(ValueError, match="protocol must be"):
        nonlocality_by_layer(small_vit(), images, protocol="other")
    with pytest.raises(ValueError, match="cannot look inside a Linear"):
        layer_summaries(torch.nn.Linear(2, 2), images)
    with pytest.raises(ValueError, match="at least one"):
        layer_summaries(small_vit(), images[:0])
    with pytest.raises(ValueError, match="no attention layers"):
        inspectable(create_model("resnet26"))
    parallel = timm.create_model("vit_tiny_patch16_224", depth=1, block_fn=ParallelScalingBlock)
    with pytest.raises(ValueError, match="block 1 of this timm model is a ParallelScalingBlock, not timm's plain"):
        inspectable(parallel)
    with pytest.raises(ValueError, match="use protocol='activations'"):
        nonlocality_by_layer(create_model("sasa_resnet26"), torch.randn(1, 3, 64, 64), protocol="released_code")
    with pytest.raises(ValueError, match="resize to 40x56"):
        nonlocality_by_layer(small_vit(), images[..., :39, :55], protocol="released_code")


@pytest.mark.parametrize("measure", [layer_summaries, head_profiles])
def test_a_deep_model_s_maps_are_held_one_layer_at_a_time(measure, monkeypatch):
    model = VisionTransformer(
        width=20, depth=20, num_heads=5, num_gated_blocks=18, patch_size=8, img_size=(40, 56), num_classes=3
    )
    true_weights, made = GlobalView.weights, []

    def watched(view):
        assert all(reference() is None for reference in made), "a map of an earlier layer is still held"
        weights = true_weights(view)
        made.append(weakref.ref(weights))
        return weights

    monkeypatch.setattr(GlobalView, "weights", watched)
    measure(model, torch.randn(6, 3, 40, 56), batch_size=3)
    assert len(made) == 2 * 20
