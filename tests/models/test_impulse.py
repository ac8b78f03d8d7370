"""A plain ViT with an impulse start: where its fresh heads look, and what it refuses."""

import pytest
import torch

from nearsight.functional import nonlocality
from nearsight.models import create_model


def fresh(**options):
    torch.manual_seed(0)
    return create_model("deit_nano_32", width=108, num_classes=10, pool="mean", **options).eval()


def test_fresh_heads_look_near_and_learn():
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    _, even = fresh()(images, need_weights=True)
    model = fresh(attention_start="impulse")
    logits, maps = model(images, need_weights=True)
    for near, far in zip(maps, even, strict=True):
        assert nonlocality(near, (8, 8)).mean() < 0.7 * nonlocality(far, (8, 8)).mean()
    logits.square().sum().backward()
    assert model.pos_embed.grad.abs().max() > 0
    assert all(block.attn.qkv.weight.grad.abs().max() > 0 for block in model.blocks)


def test_nothing_is_added_to_the_architecture():
    plain, impulse = fresh(), fresh(attention_start="impulse")
    assert {name: value.shape for name, value in plain.state_dict().items()} == {
        name: value.shape for name, value in impulse.state_dict().items()
    }


@pytest.mark.parametrize("options", [{"pool": "token"}, {"num_gated_blocks": 2}, {"pos_embed": False}])
def test_blocks_that_cannot_start_so_are_refused(options):
    with pytest.raises(ValueError, match="needs num_gated_blocks=0, pool='mean' and pos_embed=True"):
        create_model("deit_nano_32", **{"pool": "mean", "attention_start": "impulse", **options})
