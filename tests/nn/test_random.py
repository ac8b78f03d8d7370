"""Random weights and random depth: the bits that timm makes of the same seed."""

import pytest
import torch
from timm.layers import DropPath as TimmDropPath
from timm.layers import trunc_normal_ as timm_trunc_normal_

from nearsight.nn.random import DropPath, trunc_normal_


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("std", [0.02, 1.0])
def test_weights_are_timms_to_the_bit(std, dtype):
    ours, theirs = torch.empty(300, 70, dtype=dtype), torch.empty(300, 70, dtype=dtype)
    torch.manual_seed(5)
    assert trunc_normal_(ours, std=std) is ours
    after = torch.rand(3)
    torch.manual_seed(5)
    timm_trunc_normal_(theirs, std=std)
    assert torch.equal(ours, theirs)
    assert torch.equal(after, torch.rand(3))
    assert ours.abs().max() <= 2
    assert not torch.equal(ours, torch.nn.init.trunc_normal_(theirs.clone(), std=std))


@pytest.mark.parametrize("shape", [(6, 5, 7), (6, 3, 4, 5), (6, 2)])
@pytest.mark.parametrize("training", [True, False])
def test_depth_is_timms_to_the_bit_in_both_directions(shape, training):
    x, results = torch.randn(shape, requires_grad=True), []
    for kind in (DropPath, TimmDropPath):
        torch.manual_seed(3)
        layer = kind(0.4).train(training)
        out = layer(x)
        results.append((out, torch.autograd.grad(out.square().sum(), x)[0], torch.rand(3)))
        assert repr(layer) == "DropPath(drop_prob=0.400)"
    assert all(map(torch.equal, *results))
    dropped = [bool((row == 0).all()) for row in results[0][0]]
    assert any(dropped) == training
    assert not all(dropped)
