"""RetinaNet: SASA's Table 2, and torchvision's RetinaNet with the same weights."""

import pytest
import torch
from costs import local_attention_multiply_adds
from torch.nn import functional as F
from torchvision.models.detection import retinanet_resnet50_fpn
from torchvision.models.detection.image_list import ImageList

from nearsight.cost import count_cost
from nearsight.detection.anchors import AnchorGrid, anchor_sizes
from nearsight.detection.outputs import detection_loss, pad_targets, postprocess
from nearsight.detection.pyramid import DetectionHead, DetectionHeads, FeaturePyramid, attention_mixer, group_norm
from nearsight.detection.retinanet import RetinaNet, build_retinanet
from nearsight.models import create_model
from nearsight.nn import LocalSelfAttention2d
from nearsight.weights import fit

# SASA's Table 2: FLOPS in B, parameters in M
TABLE_2 = {
    "retinanet_resnet50": (182, 33.4),
    "retinanet_sasa_resnet50_convstem": (173, 25.9),
    "retinanet_sasa_resnet50": (173, 25.9),
    "retinanet_sasa_resnet50_convstem_attention_heads": (111, 22.0),
    "retinanet_sasa_resnet50_attention_heads": (110, 22.0),
}
SMALL = {"layers": (1, 1, 1, 1), "width_multiplier": 0.25, "channels": 32, "head_depth": 1}


def on_meta(name):
    with torch.device("meta"):
        return create_model(name)


@pytest.fixture(scope="module")
def table_2_costs():
    return {name: count_cost(on_meta(name), 640) for name in TABLE_2}


def test_parameters_and_flops_are_those_of_table_2(table_2_costs):
    for name, (flops, parameters) in TABLE_2.items():
        cost = table_2_costs[name]
        assert abs(cost.parameters / 1e6 - parameters) < 0.2, (name, cost)
        assert abs(cost.flops / 1e9 / flops - 1) < 0.03, (name, cost)


def test_savings_are_those_of_the_abstract(table_2_costs):
    baseline = table_2_costs["retinanet_resnet50"]
    attention = table_2_costs["retinanet_sasa_resnet50_attention_heads"]
    assert round(100 * (1 - attention.parameters / baseline.parameters)) == 34
    # The 39 % of the abstract needs qᵀr counted once for each row and column of the window, as the rebuttal counts it.
    factored = attention.flops - _relative_saving()
    assert 100 * (1 - factored / baseline.flops) == pytest.approx(39, abs=0.8)


def _relative_saving():
    """FLOPs that the rebuttal's way of counting leaves out of the last row of Table 2, at 640 pixels."""
    blocks, widths, sides = (3, 4, 6, 3), (64, 128, 256, 512), (160, 80, 40, 20)
    layers = [(256, sum((640 // 2**level) ** 2 for level in (3, 4, 5, 6, 7)))] * 10
    for stage, (depth, width, side) in enumerate(zip(blocks, widths, sides, strict=True)):
        first = sides[max(stage - 1, 0)]  # attention runs before the pool
        layers += [(width, first**2)] + [(width, side**2)] * (depth - 1)
    return 2 * sum(
        positions * (local_attention_multiply_adds(7, width, factored=False) - local_attention_multiply_adds(7, width))
        for width, positions in layers
    )


@pytest.fixture(scope="module")
def twins():
    """torchvision's RetinaNet with random weights, and ours with the same."""
    torch.manual_seed(0)
    theirs = retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=11).eval()
    with torch.no_grad():
        for module in theirs.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 1.5)
                module.weight.uniform_(0.5, 1.0)
        # Spread the scores, or nothing passes the threshold and the comparison of detections is empty.
        theirs.head.classification_head.cls_logits.weight.normal_(std=0.2)
        theirs.head.classification_head.cls_logits.bias.fill_(-3.0)
    ours = create_model("retinanet_resnet50", num_classes=11, norm="none", sizes=theirs.anchor_generator.sizes).eval()
    fit(ours, theirs.state_dict(), "torchvision")
    return theirs, ours


IMAGES = torch.rand(2, 3, 128, 256, generator=torch.Generator().manual_seed(1))
TARGETS = [
    {"boxes": torch.tensor([[10.0, 20.0, 90.0, 100.0], [100.0, 5.0, 250.0, 120.0]]), "labels": torch.tensor([3, 7])},
    {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)},
]


def torchvision_raw(theirs, images):
    batch = ImageList(images, [tuple(image.shape[-2:]) for image in images])
    features = list(theirs.backbone(images).values())
    return theirs.head(features), theirs.anchor_generator(batch, features), features


@torch.no_grad()
def test_raw_outputs_equal_torchvisions(twins):
    theirs, ours = twins
    outputs, (expected, anchors, _) = ours(IMAGES), torchvision_raw(theirs, IMAGES)
    torch.testing.assert_close(torch.cat(outputs.class_logits, 1), expected["cls_logits"], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.cat(outputs.box_regression, 1), expected["bbox_regression"], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.cat(outputs.anchors), anchors[0], atol=0, rtol=0)


@torch.no_grad()
def test_loss_equals_torchvisions(twins):
    theirs, ours = twins
    expected_outputs, anchors, _ = torchvision_raw(theirs, IMAGES)
    expected = theirs.compute_loss(TARGETS, expected_outputs, anchors)
    loss = detection_loss(ours(IMAGES), pad_targets([t["boxes"] for t in TARGETS], [t["labels"] for t in TARGETS], 5))
    torch.testing.assert_close(loss.classes, expected["classification"], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(loss.boxes, expected["bbox_regression"], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(loss.total, sum(expected.values()), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_detections_equal_torchvisions(twins):
    theirs, ours = twins
    raw, anchors, features = torchvision_raw(theirs, IMAGES)
    counts = [9 * level.shape[-2] * level.shape[-1] for level in features]
    sizes = [(128, 256), (100, 200)]
    expected = theirs.postprocess_detections(
        {name: value.split(counts, 1) for name, value in raw.items()}, [a.split(counts) for a in anchors], sizes
    )
    found = postprocess(ours(IMAGES), sizes, max_detections=300)
    assert any(len(one.scores) for one in found)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.boxes, other["boxes"], atol=1e-3, rtol=1e-4)
        torch.testing.assert_close(one.scores, other["scores"], atol=1e-4, rtol=1e-4)
        assert torch.equal(one.labels, other["labels"])


def test_frozen_batch_norm_eps_is_folded_into_the_weights(twins):
    theirs, _ = twins
    ours = create_model("retinanet_resnet50", num_classes=11, norm="none", scales_per_level=3)
    weights = {name: value for name, value in theirs.state_dict().items() if not name.endswith("num_batches_tracked")}
    fit(ours, weights, "torchvision", batch_norm_eps=0.0)
    x = torch.randn(2, 64, 5, 7)
    norm, source = ours.eval().backbone.stem.bn1, theirs.backbone.body.bn1
    expected = (x - source.running_mean[:, None, None]) / source.running_var.sqrt()[:, None, None]
    expected = expected * source.weight[:, None, None] + source.bias[:, None, None]
    torch.testing.assert_close(norm(x), expected)


def test_other_weights_are_refused(twins):
    theirs, _ = twins
    with pytest.raises(ValueError, match=r"does not fit the model: missing: .*norms"):
        fit(create_model("retinanet_resnet50"), theirs.state_dict(), "torchvision")


@pytest.mark.parametrize("name", ["retinanet_resnet26", "retinanet_sasa_resnet26_attention", "retinanet_convit_tiny"])
@pytest.mark.parametrize("size", [(64, 96), (70, 45)])
def test_any_image_size_forward_and_backward(name, size):
    shape = {"channels": 32, "head_depth": 1, "depth": 3, "num_gated_blocks": 2} if "convit" in name else SMALL
    model = create_model(name, num_classes=4, **shape)
    outputs = model(torch.randn(2, 3, *size))
    rows, cols = -(-size[0] // 32) * 4, -(-size[1] // 32) * 4
    assert outputs.class_logits[0].shape == (2, rows * cols * 6, 4)
    assert [len(a) for a in outputs.anchors] == [logits.shape[1] for logits in outputs.class_logits]
    targets = pad_targets([torch.tensor([[4.0, 6.0, 30.0, 40.0]])] * 2, [torch.tensor([2])] * 2)
    detection_loss(outputs, targets).total.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_padding_is_what_the_caller_would_have_padded():
    model = create_model("retinanet_sasa_resnet26_attention", num_classes=4, **SMALL).eval()
    images = torch.randn(1, 3, 45, 70)
    padded = torch.nn.functional.pad(images, (0, 26, 0, 19))
    with torch.no_grad():
        for one, other in zip(model(images).class_logits, model(padded).class_logits, strict=True):
            assert torch.equal(one, other)


def test_attention_takes_every_3x3_of_pyramid_and_heads():
    model = build_retinanet("sasa_resnet26_convstem", pyramid="attention", heads="attention", num_classes=4)
    for part, layers in ((model.pyramid, 5), (model.heads, 10)):
        attentions = [module for module in part.modules() if isinstance(module, LocalSelfAttention2d)]
        assert len(attentions) == layers
        for attention in attentions:
            assert (attention.out_channels, attention.kernel_size, attention.num_heads) == (256, 7, 8)
            assert 0.009 < attention.weight[1].std() < 0.011
        assert all(m.kernel_size == (1, 1) for m in part.modules() if isinstance(m, torch.nn.Conv2d))


def test_a_fresh_class_head_believes_in_background():
    model = create_model("retinanet_resnet26", num_classes=4, **SMALL).eval()
    with torch.no_grad():
        scores = torch.cat(model(torch.randn(1, 3, 64, 64)).class_logits, 1).sigmoid()
    assert 0.003 < scores.mean() < 0.03


def test_parts_that_do_not_fit_are_refused():
    backbone = build_retinanet("resnet26", num_classes=3, **SMALL).backbone
    pyramid = FeaturePyramid(backbone.stage_widths[1:], 32)
    heads = DetectionHeads(DetectionHead(32, 9, 3), DetectionHead(32, 9, 4))
    with pytest.raises(ValueError, match="9 anchors a position, the grid has 6"):
        RetinaNet(backbone, pyramid, heads, AnchorGrid())
    with pytest.raises(ValueError, match="for each of the 5 levels"):
        AnchorGrid(anchor_sizes(2, num_levels=4))
    with pytest.raises(ValueError, match="did you mean retinanet_resnet50"):
        create_model("retinanet_resnet5")
    with pytest.raises(ValueError, match="heads must be one of 'conv', 'attention', not 'mlp'"):
        create_model("retinanet_resnet26", heads="mlp")
    with pytest.raises(ValueError, match="num_classes must be a whole number of at least 1, not 0"):
        create_model("retinanet_resnet26", num_classes=0)
    with pytest.raises(ValueError, match="does not take the argument 'colour'"):
        create_model("retinanet_resnet26", colour="red")
    with pytest.raises(ValueError, match="expected 3 channels"):
        create_model("retinanet_resnet26", **SMALL)(torch.zeros(1, 1, 64, 64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": 3}, "sizes must list the anchors' sides of each level, not 3"),
        ({"sizes": [3, 4, 5, 6, 7]}, "each level of sizes must be a list of positive numbers, not 3"),
        ({"aspect_ratios": [0.5, "a"]}, r"aspect_ratios must be a list of positive numbers, not \[0.5, 'a'\]"),
        ({"aspect_ratios": []}, r"aspect_ratios must be a list of positive numbers, not \[\]"),
        ({"smallest_anchor": "x"}, "smallest_anchor must be a whole number of at least 1, not 'x'"),
        ({"scales_per_level": 0}, "scales_per_level must be a whole number of at least 1, not 0"),
    ],
)
def test_anchors_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        create_model("retinanet_resnet26", **options)


def test_a_batch_of_no_images():
    outputs = create_model("retinanet_resnet26", num_classes=3, **SMALL)(torch.zeros(0, 3, 64, 96))
    assert [tuple(level.shape) for level in outputs.class_logits[:2]] == [(0, 8 * 12 * 6, 3), (0, 4 * 6 * 6, 3)]
    assert postprocess(outputs, []) == []


def _detail(kind):
    """How much neighbours differ after the last hidden layer of a fresh head, as a share of the map's deviation."""
    torch.manual_seed(0)
    head = DetectionHead(64, 3, 4, kind=kind, norm=group_norm)
    hidden = []
    head.predictor.register_forward_pre_hook(lambda module, inputs: hidden.append(inputs[0]))
    with torch.no_grad():
        head([torch.randn(2, 64, 9, 11, generator=torch.Generator().manual_seed(1))])
    (last,) = hidden
    return last.diff(dim=-1).square().mean().sqrt() / last.std()


def test_a_fresh_attention_head_keeps_the_detail_it_reads():
    """Five attentions in a row without a way around them keep a twelfth of what convolutions keep."""
    assert _detail("attention") > 0.5 * _detail("conv")


def test_attention_that_says_nothing_leaves_pyramid_and_heads_their_input():
    pyramid = FeaturePyramid((8, 16, 24), 16, mixer=attention_mixer(3, 2, value_std=0.0), shortcut=True)
    maps = [torch.randn(2, 8, 11, 13), torch.randn(2, 16, 6, 7), torch.randn(2, 24, 3, 5)]
    *_, fifth, sixth, seventh = pyramid(maps)
    torch.testing.assert_close(fifth, pyramid.lateral[2](maps[2]))
    torch.testing.assert_close(sixth, F.avg_pool2d(fifth, 2, ceil_mode=True))
    torch.testing.assert_close(seventh, F.avg_pool2d(F.relu(sixth), 2, ceil_mode=True))
    head = DetectionHead(16, 1, 4, kind="attention", depth=2, attention={"kernel_size": 3, "num_heads": 2})
    for mixer in head.mixers:
        torch.nn.init.zeros_(mixer.weight[1])
    torch.testing.assert_close(head([fifth])[0], head.predictor(F.relu(fifth)).permute(0, 2, 3, 1).reshape(2, -1, 4))


def test_the_papers_detector_without_shortcuts_can_be_built_by_name():
    model = create_model("retinanet_sasa_resnet26_attention", shortcut=False, num_classes=2, **SMALL)
    assert not any(part.shortcut for part in (model.pyramid, model.heads.classes, model.heads.boxes))
    own = create_model("retinanet_sasa_resnet26_attention", num_classes=2, **SMALL)
    assert all(part.shortcut for part in (own.pyramid, own.heads.classes, own.heads.boxes))
    model.load_state_dict(own.state_dict())
    images = torch.randn(1, 3, 64, 64)
    assert not torch.allclose(model.eval()(images).class_logits[0], own.eval()(images).class_logits[0])
    maps = [torch.randn(2, 8, 11, 13), torch.randn(2, 16, 6, 7), torch.randn(2, 24, 3, 5)]
    silent = FeaturePyramid((8, 16, 24), 16, mixer=attention_mixer(3, 2, value_std=0.0))
    assert not any(level.any() for level in silent(maps))


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({}, "local"),
        ({"attention": {"border": "zeros"}}, "local"),
        ({"attention": {"start": "random"}}, "random"),
        ({"attention": {"positions": "absolute"}}, "random"),
        ({"kernel_size": 1}, "random"),
    ],
)
def test_attention_in_a_backbone_starts_near_where_nothing_else_is_said(options, start):
    model = create_model("retinanet_sasa_resnet26_convstem", channels=16, **options)
    starts = {layer.start for layer in model.backbone.modules() if isinstance(layer, LocalSelfAttention2d)}
    assert starts == {start}


ATTENTION_HEADS = "retinanet_sasa_resnet26_convstem_attention_heads"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (ATTENTION_HEADS, {"head_attention": {"star": "local"}}, "head_attention has no option 'star'; choose from"),
        (ATTENTION_HEADS, {"head_attention": "local"}, "head_attention holds options of the attention layers"),
        (ATTENTION_HEADS, {"head_attention": {"value_std": "small"}}, "value_std must be a finite number"),
        (ATTENTION_HEADS, {"head_attention": {"bias": "no"}}, "bias must be true or false, not 'no'"),
        (ATTENTION_HEADS, {"attention": {"star": "local"}}, "attention has no option 'star'"),
        (ATTENTION_HEADS, {"head_atention": {"start": "random"}}, "did you mean head_attention"),
        (ATTENTION_HEADS, {"shortcut": 0}, "shortcut must be true or false, not 0"),
        ("retinanet_resnet26", {"shortcut": False}, "both are of convolutions"),
        (
            ATTENTION_HEADS,
            {"backend": "cuda"},
            "backend 'cuda' is unknown; choose one of triton, numba, cpu, reference",
        ),
        (ATTENTION_HEADS, {"channels": True}, "channels must be a whole number"),
        ("retinanet_resnet26", {"attention": {"start": "random"}}, "resnet26 has no local attention"),
        ("retinanet_deit_tiny", {"attention": {"start": "random"}}, "deit_tiny has no local attention"),
        ("retinanet_resnet26", {"head_attention": {"border": "zeros"}}, "both are of convolutions"),
    ],
)
def test_options_that_cannot_be_or_do_nothing_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        create_model(name, **options)
