import numpy as np
import pytest
import torch

from nearsight.images import mixing
from nearsight.images.mixing import BatchMix, Mixing, beta_from_unit, beta_quantiles


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Image i is the constant i, so that a mixed pixel tells who was mixed and how."""
    return torch.arange(32.0).view(32, 1, 1, 1).expand(32, 3, 9, 13).contiguous(), torch.arange(32) % 5


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 3.0])
def test_beta_draws_have_the_right_distribution(alpha):
    unit = (torch.arange(100_000) + 0.5) / 100_000
    table = torch.from_numpy(beta_quantiles(alpha)).float()
    ours = np.sort(beta_from_unit(unit, table, alpha).numpy())
    theirs = np.sort(np.random.default_rng(0).beta(alpha, alpha, 100_000))
    assert ours.min() >= 0
    assert ours.max() <= 1
    assert np.abs(ours - theirs).max() < 0.02
    assert abs(ours.var() - 1 / (4 * (2 * alpha + 1))) < 1e-4


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_targets_say_what_the_pixels_show(batch, kind):
    images, labels = batch
    kinds = Mixing(mixup=0.8 * (kind == "mixup"), cutmix=1.0 * (kind == "cutmix"), smoothing=0.0, group=8)
    mixed, targets = BatchMix(kinds, 5)(images, labels, 0, 3)
    partner = torch.arange(32) // 8 * 8 + (torch.arange(32) + 4) % 8
    own = torch.nn.functional.one_hot(labels, 5).float()
    for i in range(32):
        lam = 1 - (mixed[i].mean() - i) / (partner[i] - i)  # holds for a blend as for a pasted rectangle
        assert torch.allclose(targets[i], lam * own[i] + (1 - lam) * own[partner[i]], atol=1e-5)
        values = set(mixed[i].flatten().tolist())
        assert values <= {float(i), float(partner[i])} if kind == "cutmix" else len(values) == 1
    assert torch.allclose(targets.sum(1), torch.ones(32))
    assert len({round(float(targets[g].max()), 5) for g in range(0, 32, 8)}) > 1  # groups have their own λ


@pytest.mark.parametrize("parts", [2, 4])
def test_processes_and_micro_batches_change_nothing(batch, parts):
    images, labels = batch
    mix = BatchMix(Mixing(group=8), 5)
    whole = mix(images, labels, 7, 11)
    size = 32 // parts
    pieces = [mix(images[s : s + size], labels[s : s + size], 7, 11, first=s) for s in range(0, 32, size)]
    for field in (0, 1):
        assert torch.equal(whole[field], torch.cat([piece[field] for piece in pieces]))
    assert not torch.equal(whole[0], mix(images, labels, 7, 12)[0])
    assert torch.equal(whole[0], mix(images, labels, torch.tensor(7), torch.tensor(11))[0])


@pytest.mark.parametrize("prob", [1.0, 0.5])
def test_groups_one_by_one_are_the_bits_of_all_at_once(batch, prob, monkeypatch):
    labels, images = batch[1], torch.randn(32, 3, 9, 13, generator=torch.Generator().manual_seed(0))
    before, mix = images.clone(), BatchMix(Mixing(group=8, prob=prob), 5)
    by_group = [mix(images, labels, 7, step) for step in range(8)]
    assert torch.equal(images, before)
    monkeypatch.setattr(mixing, "may_ask", lambda tensor: False)
    for step, (mixed, targets) in enumerate(by_group):
        at_once = mix(images, labels, 7, step)
        assert torch.equal(mixed, at_once[0])
        assert torch.equal(targets, at_once[1])


def test_smoothing_and_switching_off(batch):
    images, labels = batch
    for switched_off in (Mixing(prob=0.0), Mixing(mixup=0.0, cutmix=0.0)):
        mixed, targets = BatchMix(switched_off, 5)(images, labels, 0, 0)
        assert torch.equal(mixed, images)
        assert torch.allclose(targets[0], torch.tensor([0.92, 0.02, 0.02, 0.02, 0.02]))


def test_both_kinds_occur_in_their_share(batch):
    images, labels = batch
    mix = BatchMix(Mixing(switch=0.25, group=2), 5)
    pasted = [(mix(images, labels, 0, step)[0].flatten(1).var(1) > 0).float().mean() for step in range(200)]
    assert abs(torch.stack(pasted).mean() - 0.25) < 0.04  # some rectangles are empty


def test_batches_of_broken_groups_are_refused(batch):
    images, labels = batch
    mix = BatchMix(Mixing(group=16), 5)
    with pytest.raises(ValueError, match="batch of 24 images from position 0 is not made of whole groups of 16"):
        mix(images[:24], labels[:24], 0, 0)
    with pytest.raises(ValueError, match="from position 8"):
        mix(images, labels, 0, 0, first=8)
    with pytest.raises(ValueError, match="at least two classes"):
        BatchMix(Mixing(), 1)


def test_one_graph_gives_the_eager_result(batch):
    images, labels = batch
    mix = BatchMix(Mixing(), 5)
    compiled = torch.compile(mix, fullgraph=True, backend="aot_eager")
    seed, step = torch.tensor(1), torch.tensor(2)
    for one, other in zip(compiled(images, labels, seed, step), mix(images, labels, seed, step), strict=True):
        assert torch.equal(one, other)
