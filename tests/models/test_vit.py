"""One ViT: sizes and aspects, tokens, pooling, and the ablations of the ConViT paper as arguments."""

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer

from nearsight.models import create_model
from nearsight.nn import GatedPositionalSelfAttention, PositionalSelfAttention, SelfAttention
from nearsight.weights import from_timm, load_weights


def kinds(model):
    return [type(block.attn) for block in model.blocks]


def small(name="convit_nano_32", **arguments):
    return create_model(name, num_classes=5, **arguments).eval()


@pytest.mark.parametrize("name", ["deit_nano_32", "convit_nano_32", "convit_nano_32_distilled"])
@pytest.mark.parametrize("size", [(20, 28), (32, 32), (48, 16), (4, 64)])
def test_any_size_and_aspect_the_patch_divides(name, size):
    model = small(name)
    images = torch.randn(2, 3, *size)
    logits, maps = model(images, need_weights=True)
    assert logits.shape == (2, 5)
    patches = size[0] * size[1] // 16
    assert {m.shape[-1] for m in maps} <= {patches, patches + 1, patches + 2}
    _, intermediates = model.forward_intermediates(images, indices=[0, -1])
    assert [m.shape[-2:] for m in intermediates] == [(size[0] // 4, size[1] // 4)] * 2


def test_position_embedding_is_resized_as_timm_resizes_it():
    theirs = TimmVisionTransformer(
        img_size=32, patch_size=4, embed_dim=144, depth=2, num_heads=9, num_classes=5, dynamic_img_size=True
    ).eval()
    ours = small("deit_nano_32", depth=2, qkv_bias=True)
    load_weights(ours, from_timm(theirs.state_dict()), "theirs")
    images = torch.randn(1, 3, 20, 28)
    torch.testing.assert_close(ours(images), theirs(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["deit_nano_32", "convit_nano_32"])
def test_the_last_intermediate_is_the_features_without_the_tokens(name):
    model, images = small(name), torch.randn(1, 3, 20, 28)
    features, maps = model.forward_intermediates(images, indices=1, norm=True)
    torch.testing.assert_close(maps[0].flatten(2).transpose(1, 2), features[:, 1:])


def test_drop_path_grows_linearly_and_acts_in_training_only():
    model = create_model("deit_nano_32", drop_path_rate=0.5)
    rates = [getattr(block.drop_path, "drop_prob", 0.0) for block in model.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    images = torch.randn(8, 3, 32, 32)
    assert not torch.equal(model.train()(images), model(images))
    assert torch.equal(model.eval()(images), model(images))


def test_resizing_for_good_equals_resizing_on_the_fly():
    model, images = small(), torch.randn(1, 3, 20, 28)
    on_the_fly = model(images)
    model.set_input_size((20, 28))
    assert model.pos_embed.shape[1] == 35
    torch.testing.assert_close(model(images), on_the_fly)


def test_relative_parts_need_nothing_at_another_size():
    model = small(pos_embed=False)
    inside = torch.randn(1, 3, 32, 32)
    wide = model.blocks[0].attn(torch.randn(1, 35, 144), (5, 7))
    assert model(inside).shape == (1, 5)
    assert wide.shape == (1, 35, 144)


def test_a_frozen_position_embedding_stays_frozen_when_resized():
    model = small()
    model.pos_embed.requires_grad_(False)
    model.set_input_size(48)
    assert not model.pos_embed.requires_grad


def test_patches_of_two_pixels():
    model = small(patch_size=2)
    assert model.grid_size == (16, 16)
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 5)


def test_tokens_join_after_the_last_gated_block():
    _, maps = small("convit_nano_32_distilled")(torch.randn(1, 3, 32, 32), need_weights=True)
    assert [m.shape[-1] for m in maps] == [64] * 4 + [66] * 2
    _, maps = small("deit_nano_32")(torch.randn(1, 3, 32, 32), need_weights=True)
    assert [m.shape[-1] for m in maps] == [65] * 6


def test_all_blocks_gated_reads_the_mean_of_the_patches():
    model = small(num_gated_blocks=6)
    assert model.pool == "mean"
    assert model.cls_token is None
    features = model.forward_features(torch.randn(2, 3, 32, 32))
    torch.testing.assert_close(model.forward_head(features, pre_logits=True), features.mean(1))


def test_distilled_heads_are_averaged_and_can_be_kept_apart():
    model = small("deit_nano_32_distilled")
    features = model.forward_features(torch.randn(2, 3, 32, 32))
    by_class, by_teacher = model.forward_heads(features)
    torch.testing.assert_close(model.forward_head(features), (by_class + by_teacher) / 2)
    assert not torch.equal(by_class, by_teacher)


def test_ablations_of_the_paper_are_arguments():
    assert kinds(small())[:4] == [GatedPositionalSelfAttention] * 4
    assert kinds(small(depth=4)) == [GatedPositionalSelfAttention] * 2 + [SelfAttention] * 2
    assert kinds(small(num_gated_blocks=2)) == [GatedPositionalSelfAttention] * 2 + [SelfAttention] * 4
    assert kinds(small(positional_layer="psa"))[:4] == [PositionalSelfAttention] * 4
    frozen_gates = small(gate=0.0, train_gate=False)
    assert not any(block.attn.gate.requires_grad for block in frozen_gates.blocks[:4])
    assert all(block.attn.qk.weight.requires_grad for block in frozen_gates.blocks[:4])
    no_conv = small(conv_init=False)
    assert no_conv.blocks[0].attn.v_pos.abs().max() < 0.1
    frozen = small(train_attention=False)
    assert not any(p.requires_grad for block in frozen.blocks[:4] for p in block.attn.parameters())
    assert all(p.requires_grad for block in frozen.blocks[4:] for p in block.attn.parameters())
    assert all(p.requires_grad for block in frozen.blocks[:4] for p in block.mlp.parameters())
    strong = small(locality_strength=4.0)
    torch.testing.assert_close(strong.blocks[0].attn.v_pos, 4 * small().blocks[0].attn.v_pos)


def test_every_parameter_gets_a_gradient():
    for name in ("convit_nano_32", "deit_nano_32", "convit_nano_32_distilled"):
        model = create_model(name, num_classes=5)
        model(torch.randn(2, 3, 32, 32)).sum().backward()
        assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_a_convolutional_stem_makes_the_same_grid():
    model = small(stem="conv")
    assert model(torch.randn(2, 3, 20, 28)).shape == (2, 5)
    assert model.patch_embed(torch.randn(1, 3, 20, 28)).shape == (1, 35, 144)
    with pytest.raises(ValueError, match="patch_size=6 is no power of two"):
        small(stem="conv", img_size=36, patch_size=6)
