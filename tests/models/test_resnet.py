import pytest
import torch
from torch import nn

from nearsight.cost import count_parameters
from nearsight.models import create_model
from nearsight.nn import AttentionStem2d, LocalSelfAttention2d


def mixers(model):
    return [[type(block.mixer) for block in stage] for stage in model.stages]


def test_any_choice_of_stages():
    model = create_model("sasa_resnet26_convstem", attention_stages=(3, 4), kernel_size=5)
    assert mixers(model)[:2] == [[nn.Conv2d], [nn.Conv2d] * 2]
    assert mixers(model)[2:] == [[LocalSelfAttention2d] * 4, [LocalSelfAttention2d]]
    assert {m.kernel_size for m in model.modules() if isinstance(m, LocalSelfAttention2d)} == {5}


def test_head_dims_are_8_16_32_64():
    model = create_model("sasa_resnet26")
    assert [stage[0].mixer.head_dim for stage in model.stages] == [8, 16, 32, 64]
    assert isinstance(model.stem.attention, AttentionStem2d)


def test_attention_runs_before_the_pool_at_the_blocks_input_size():
    model = create_model("sasa_resnet26_convstem", num_classes=2).eval()
    _, maps = model(torch.randn(1, 3, 64, 96), need_weights=True)
    # stage 1 at stride 4; the first block of each later stage still at its input's stride
    assert [tuple(m.shape[1:3]) for m in maps] == [(16, 24)] * 2 + [(8, 12)] * 2 + [(4, 6)] * 4


@pytest.mark.parametrize("name", ["resnet26", "sasa_resnet26_convstem", "sasa_resnet26"])
@pytest.mark.parametrize("size", [(32, 64), (36, 52)])
def test_any_size(name, size):
    model = create_model(name, num_classes=4).eval()
    assert model(torch.randn(1, 3, *size)).shape == (1, 4)


@pytest.mark.parametrize("multiplier", [0.25, 0.5, 1.5])
def test_width_multiplier(multiplier):
    model = create_model("sasa_resnet26", num_classes=4, width_multiplier=multiplier).eval()
    assert model.num_features == round(2048 * multiplier)
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 4)
    assert (count_parameters(model) < count_parameters(create_model("sasa_resnet26", num_classes=4))) == (
        multiplier < 1
    )


def test_the_attention_stem_is_attention_then_norm_then_pool():
    model = create_model("sasa_resnet26")
    model.train()(torch.randn(4, 3, 32, 32) * 3 + 1)  # give the norm statistics that are not the identity
    model.eval()
    images = torch.randn(1, 3, 32, 64)
    attended = model.stem.attention(images)
    norm = model.stem.bn1
    shape = (1, -1, 1, 1)
    scaled = (attended - norm.running_mean.view(shape)) / (norm.running_var.view(shape) + norm.eps).sqrt()
    assert not torch.allclose(scaled, attended, atol=1e-2)
    torch.testing.assert_close(model.stem(images), nn.functional.max_pool2d(scaled, 4))


def test_the_number_of_heads_leaves_a_convolutional_network_alone():
    assert count_parameters(create_model("resnet26", num_heads=4)) == count_parameters(create_model("resnet26"))


def test_attention_options_reach_every_layer():
    model = create_model(
        "sasa_resnet26_convstem", attention={"border": "zeros", "downsample": "stride", "content": False}
    )
    layers = [m for m in model.modules() if isinstance(m, LocalSelfAttention2d)]
    assert len(layers) == 8
    assert all(m.border == "zeros" and m.downsample == "stride" and not m.content for m in layers)


def test_a_local_start_is_left_out_where_heads_are_too_thin():
    model = create_model("sasa_resnet26_convstem", width_multiplier=0.25, attention={"start": "local"}, num_classes=0)
    starts = [layer.start for layer in model.modules() if isinstance(layer, LocalSelfAttention2d)]
    assert starts == ["random"] + ["local"] * 7  # 2 channels a head, then 4 and more
