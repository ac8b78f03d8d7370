"""Maps: they sum to one, and maps × values are what the layer itself computes."""

import pytest
import timm
import torch

from nearsight.analysis import attention_maps, looking, walk
from nearsight.analysis.views import GlobalView, LocalView
from nearsight.analysis.walk import inspectable, local_view, num_attention_layers
from nearsight.functional import windows
from nearsight.models import ResNet, VisionTransformer, create_model
from nearsight.nn import LocalSelfAttention2d

SETTINGS = {"width": 36, "depth": 4, "num_heads": 9, "num_gated_blocks": 2, "patch_size": 8, "img_size": (40, 56)}


def vit(**options) -> VisionTransformer:
    model = VisionTransformer(**{**SETTINGS, "num_classes": 7, **options})
    with torch.no_grad():
        for block in model.blocks:
            for name, parameter in block.attn.named_parameters():
                if name.endswith("weight") or name in ("v_pos", "gate"):
                    parameter.normal_(std=0.4)  # no layer is uniform or a convolution any more
    return model


def images(count: int = 3, height: int = 40, width: int = 56) -> torch.Tensor:
    return torch.randn(count, 3, height, width)


def heads_output(view: GlobalView | LocalView) -> torch.Tensor:
    """maps × values: [B, n, T, d], or [B, I, J, n, d] for windows."""
    if isinstance(view, GlobalView):
        return view.weights() @ view.value
    values = windows(view.value, view.kernel_size, view.stride)
    return torch.einsum("bijnrc,bijndrc->bijnd", view.weights(), values)


def outputs_of_attention(model, x) -> list[torch.Tensor]:
    """What each attention layer really returns, caught on its way."""
    caught: list[torch.Tensor] = []
    hooks = [block.attn.register_forward_hook(lambda module, given, out: caught.append(out)) for block in model.blocks]
    with looking(model):
        model(x)
    for hook in hooks:
        hook.remove()
    return caught


@pytest.mark.parametrize(
    "options", [{}, {"positional_layer": "psa"}, {"num_gated_blocks": 0, "qkv_bias": True}, {"distilled": True}]
)
def test_maps_times_values_is_the_layer(options):
    model, x = vit(**options), images()
    expected = outputs_of_attention(model, x)
    with looking(model):
        for view, output, block in zip(walk(model, x), expected, model.blocks, strict=True):
            joined = block.attn.proj(heads_output(view).transpose(1, 2).flatten(2))
            torch.testing.assert_close(joined, output, atol=1e-5, rtol=1e-5)


def test_maps_times_values_is_timm_s_layer():
    model = timm.create_model(
        "vit_tiny_patch16_224", pretrained=False, depth=2, img_size=(48, 80), qk_norm=True, reg_tokens=2
    )
    x = torch.randn(2, 3, 48, 80)
    expected = outputs_of_attention(model, x)
    with looking(model):
        for view, output, block in zip(walk(model, x), expected, model.blocks, strict=True):
            assert view.num_prefix_tokens == 3
            joined = block.attn.proj(heads_output(view).transpose(1, 2).flatten(2))
            torch.testing.assert_close(joined, output, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "attention",
    [
        {},
        {"border": "zeros", "share_positions": False},
        {"positions": "absolute", "projections": "grouped", "bias": True},
        {"content": False, "downsample": "stride"},
    ],
)
def test_maps_times_values_is_the_local_layer(attention):
    model = ResNet(layers=(1, 2, 1, 1), attention_stages=(2, 3), num_heads=4, kernel_size=5, attention=attention)
    caught: list[torch.Tensor] = []
    for module in model.modules():
        if isinstance(module, LocalSelfAttention2d):
            module.register_forward_hook(lambda module, given, out: caught.append(out))
    x = torch.randn(2, 3, 96, 160)
    with looking(model):
        model(x)
        for view, output in zip(list(walk(model, x)), caught[:3], strict=True):
            assert isinstance(view, LocalView)
            weights = view.inside_weights()
            torch.testing.assert_close(weights.sum(dim=(-2, -1)), torch.ones_like(weights[..., 0, 0]))
            y = heads_output(view).flatten(3).permute(0, 3, 1, 2)
            if y.shape[2:] != output.shape[2:]:
                y = torch.nn.functional.avg_pool2d(y, 2, 2, ceil_mode=True)
            torch.testing.assert_close(y, output, atol=1e-5, rtol=1e-5)


def test_every_part_sums_to_one_and_the_gate_mixes_them():
    model, x = vit(), images()
    with looking(model):
        for view in walk(model, x):
            assert isinstance(view, GlobalView)
            parts = ["mixed", "content"] + ["position"] * (view.v_pos is not None)
            maps = {part: view.patch_weights(part) for part in parts}
            for weights in maps.values():
                assert weights.shape == (3, 9, 35, 35)
                torch.testing.assert_close(weights.sum(-1), torch.ones(3, 9, 35))
            if view.kind == "gpsa":
                gate = view.gate_value[:, None, None]
                torch.testing.assert_close(maps["mixed"], (1 - gate) * maps["content"] + gate * maps["position"])
            else:
                assert view.gate_value is None
                torch.testing.assert_close(maps["mixed"], maps["content"])
                with pytest.raises(ValueError, match="no positional map"):
                    view.patch_weights("position")


def test_maps_at_another_size_and_aspect_than_the_model_s():
    maps = attention_maps(vit(), images(2, 24, 72))
    assert [tuple(weights.shape) for weights in maps.values()] == [(2, 9, 27, 27)] * 4


def test_chosen_blocks():
    model, x = vit(), images(5)
    every = attention_maps(model, x)
    chosen = attention_maps(model, x, [1, -1])
    assert list(chosen) == [1, 3]
    torch.testing.assert_close(chosen[3], every[3])
    with pytest.raises(ValueError, match="no layer 4; this model has 4"):
        attention_maps(model, x, [4])


def test_local_parts():
    model = ResNet(layers=(1, 1, 1, 1), attention_stages=(4,), num_heads=4, kernel_size=3)
    x = torch.randn(2, 3, 64, 96)
    with looking(model):
        (view,) = walk(model, x)
        logits = [view.weights(part).log() for part in ("mixed", "content", "position")]
    # The window's softmax is over the sum of both terms, so the logarithms add up but for a constant of each query.
    inside = view.inside()[None, :, :, None].expand_as(logits[0])
    rest = torch.where(inside, logits[0] - logits[1] - logits[2], 0.0)
    constant = rest.amax(dim=(-2, -1), keepdim=True)
    peak = torch.where(inside, rest, constant)
    torch.testing.assert_close(peak.amin(dim=(-2, -1)), peak.amax(dim=(-2, -1)), atol=1e-4, rtol=1e-4)


def test_a_detector_is_its_body_and_the_local_attention_behind_it(monkeypatch):
    detector = create_model("retinanet_sasa_resnet26_attention", num_classes=2, channels=32, kernel_size=3)
    detector.eval()
    x = torch.randn(2, 3, 64, 96)
    given = []
    forward = LocalSelfAttention2d.forward
    monkeypatch.setattr(
        LocalSelfAttention2d, "forward", lambda self, x, *rest: (given.append(x), forward(self, x, *rest))[1]
    )
    with torch.no_grad():
        detector(x)
    monkeypatch.undo()
    with looking(detector):
        views = list(walk(detector, x))
    depth = len([view for view in views if view.name.startswith("stage")])
    assert depth == 8
    assert [view.index for view in views] == list(range(len(views)))
    assert [view.name for view in views[depth : depth + 6]] == [
        *(f"pyramid.output.{level}" for level in range(3)), "pyramid.coarser.0", "pyramid.coarser.1",
        "heads.classes.mixers.0",
    ]  # fmt: skip
    assert len(views) == num_attention_layers(detector) == depth + 5 + 2 * 5
    assert {view.grid_size for view in views[depth + 5 :]} == {(8, 12)}  # what heads read first is the finest map
    layers = dict(detector.named_modules())
    for view, x in zip(views[depth : depth + 6], given[depth : depth + 6], strict=True):
        expected = local_view(layers[view.name], x, view.index, view.name)
        torch.testing.assert_close(view.weights(), expected.weights(), atol=1e-5, rtol=1e-4)
    assert not any(module._forward_pre_hooks for module in detector.modules())


def test_a_transformer_in_a_detector_sees_what_it_sees_alone():
    detector = create_model("retinanet_convit_tiny", num_classes=2, channels=16).eval()
    x = torch.randn(1, 3, 64, 80)  # 80 is padded to 96
    body = detector.body
    padded = torch.nn.functional.pad(x, (0, 16, 0, 0))
    with looking(detector):
        views, alone = list(walk(detector, x)), list(walk(body, padded))
    assert len(views) == len(alone) == num_attention_layers(detector) == 12
    torch.testing.assert_close(views[10].weights(), alone[10].weights())
    with pytest.raises(ValueError, match="no attention layers to look into"):
        inspectable(create_model("retinanet_resnet26", num_classes=2, channels=16))
