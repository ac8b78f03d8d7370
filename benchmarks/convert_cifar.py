"""Does attention that a trained CNN has become gain by being fine-tuned? CIFAR-100, a small network, several seeds.

    PYTHONPATH=src python benchmarks/convert_cifar.py cifar100.npz --runs runs/convert --seeds 0 1 2
    PYTHONPATH=src python benchmarks/convert_cifar_measure.py cifar100.npz --runs runs/convert --seeds 0 1 2

The first command trains and writes one file for each arm and seed under --runs; killed and started again it goes on.
The second one reads the test set, once, when everything is trained, and writes results/convert_cifar.json.

The network is resnet26 at a quarter of its width, on images of 32 px. Its stem leaves the pool out, so that the stages
have 16, 8, 4 and 2 pixels a side instead of 8, 4, 2 and 1. The arms, for each seed:

- `cnn`: trained for BASE samples, and then on for MORE samples, a fresh cosine each (the start of the next two is the
  network after BASE);
- `exact`: that network with stages 3 and 4 as GPSA at the defaults of `to_attention`, then trained for MORE samples;
- `loose`: the same with gates of 3 and a locality strength of 4, which leaves the function a little at once;
- `scratch`: the attention network with random weights (gates and strengths of 1, as ConViT's), for BASE + MORE samples.

AdamW, weight decay 0.05 (none on vectors, gates, v_pos), batch 100, padded crops and flips, label smoothing 0.1, one
thread. Rates: 4e-3 where weights start at random, 1e-3 where they are trained; gates and v_pos have 0.02. They were set
before the first run and not searched. 500 training images of every ten thousand, the same share of each class, are val.

The rule, written before the first run. Conversion helps if the 95 % interval of (`exact` − `cnn`) or of (`loose` −
`cnn`), over test pictures and seeds (nearsight.intervals), lies above zero; it harms if below; otherwise this
experiment shows no difference. It is read twice: for accuracy on clean pictures, and for the mean accuracy over the
corruptions. Two arms are read, so one of them alone counts only with the interval of both stated.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearsight import create_model
from nearsight.convert import to_attention
from nearsight.images.augmentation import Augment, BatchAugment
from nearsight.images.transforms import BatchEval
from nearsight.randomness import permutation, sample_keys

BASE, MORE, BATCH = 60_000, 30_000, 100
STAGES = (3, 4)
FRESH_RATE, TRAINED_RATE, POSITION_RATE = 4e-3, 1e-3, 0.02
ARMS = {
    "base": ("", BASE, FRESH_RATE, None),
    "cnn": ("base", MORE, TRAINED_RATE, None),
    "exact": ("base", MORE, TRAINED_RATE, {}),
    "loose": ("base", MORE, TRAINED_RATE, {"gate": 3.0, "locality_strength": 4.0}),
    "scratch": ("", BASE + MORE, FRESH_RATE, {"gate": 1.0, "locality_strength": 1.0}),
}
"""Name → (the arm whose weights it starts from, samples, rate, options of `to_attention` or None for the CNN)."""
CORRUPTED = 5_000  # test pictures that are also corrupted, the same share of each class


def fresh_cnn(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = create_model("resnet26", num_classes=100, width_multiplier=0.25)
    model.stem.maxpool = nn.Identity()
    return model


def load(folder: Path, arm: str, seed: int) -> nn.Module:
    """The trained network of an arm."""
    return build(arm, seed, torch.load(folder / f"{arm}-{seed}.pt", weights_only=True)["weights"])


def build(arm: str, seed: int, weights: dict | None = None) -> nn.Module:
    model, options = fresh_cnn(seed), ARMS[arm][3]
    if options is not None:
        torch.manual_seed(1000 + seed)
        model = to_attention(model, STAGES, "gpsa", **options).model
    if weights is not None:
        model.load_state_dict(weights)
    return model


def started(folder: Path, arm: str, seed: int) -> nn.Module:
    """The network of an arm before its training."""
    start, _, _, options = ARMS[arm]
    if not start:
        return build(arm, seed)
    model = load(folder, start, seed)
    if options is None:
        return model
    torch.manual_seed(1000 + seed)
    return to_attention(model, STAGES, "gpsa", **options).model


def splits(data: np.lib.npyio.NpzFile) -> dict[str, tuple[Tensor, Tensor]]:
    """Train and val of the training images: of each class the last twentieth in a fixed random order is val."""
    labels = data["train_labels"]
    val = np.concatenate(
        [(own := np.flatnonzero(labels == label))[permutation(len(own), 7, int(label))][-len(own) // 20 :]
         for label in np.unique(labels)]
    )  # fmt: skip
    kept = np.setdiff1d(np.arange(len(labels)), val)
    images = torch.from_numpy(data["train_images"]).permute(0, 3, 1, 2)
    return {name: (images[part], torch.from_numpy(labels[part])) for name, part in (("train", kept), ("val", val))}


def groups(model: nn.Module, rate: float) -> list[dict]:
    kinds: dict[str, list[Tensor]] = {"positions": [], "decayed": [], "spared": []}
    for name, parameter in model.named_parameters():
        positional = name.endswith(("v_pos", ".gate"))
        kinds["positions" if positional else "decayed" if parameter.ndim > 1 else "spared"].append(parameter)
    return [
        {"params": kinds["positions"], "peak": POSITION_RATE, "weight_decay": 0.0},
        {"params": kinds["decayed"], "peak": rate, "weight_decay": 0.05},
        {"params": kinds["spared"], "peak": rate, "weight_decay": 0.0},
    ]


def train(arm: str, seed: int, folder: Path, sets: dict[str, tuple[Tensor, Tensor]]) -> None:
    _, samples, rate, _ = ARMS[arm]
    model = started(folder, arm, seed).to(memory_format=torch.channels_last)
    before = accuracy(model, *sets["val"])
    images, labels = sets["train"]
    augment = BatchAugment(Augment(size=32, crop="pad"))
    optimizer = torch.optim.AdamW([group for group in groups(model, rate) if group["params"]], fused=True, eps=1e-12)
    steps, warmup, stage = samples // BATCH, 45, list(ARMS).index(arm)
    epoch_steps, losses = len(images) // BATCH, []
    first, seconds, kept = 0, 0.0, folder / f"{arm}-{seed}.state"
    if kept.exists():
        state = torch.load(kept, weights_only=True)
        first, seconds, before = state["step"], state["seconds"], state["before"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    cpu = time.process_time()
    model.train()
    for step in range(first, steps):
        if step % 25 == 0 and step > first:
            state = {"step": step, "seconds": seconds + time.process_time() - cpu, "before": before}
            write({**state, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, kept)
        epoch, place = divmod(step, epoch_steps)
        order = permutation(len(images), seed, stage, epoch)[place * BATCH : (place + 1) * BATCH]
        share = min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * share
        pixels = augment(images[order], sample_keys(seed, stage * 1000 + epoch, torch.from_numpy(order)))
        loss = F.cross_entropy(model(pixels.to(memory_format=torch.channels_last)), labels[order], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    record = {
        "weights": model.state_dict(),
        "val_before": before,
        "val": accuracy(model, *sets["val"]),
        "loss": sum(losses[-25:]) / len(losses[-25:]),
        "cpu_seconds": seconds + time.process_time() - cpu,
    }
    write(record, folder / f"{arm}-{seed}.pt")
    kept.unlink(missing_ok=True)
    print(arm, seed, {name: round(value, 3) for name, value in record.items() if name != "weights"}, flush=True)


def write(record: dict, path: Path) -> None:
    part = path.with_suffix(".part")
    torch.save(record, part)
    part.rename(path)


@torch.no_grad()
def correct(model: nn.Module, images: Tensor, labels: Tensor, corrupt=lambda batch: batch) -> np.ndarray:
    """Zeros and ones for every uint8 image."""
    model.eval()
    normalise = BatchEval(32)
    found = [
        model(normalise(corrupt(batch)).to(memory_format=torch.channels_last)).argmax(1) == truth
        for batch, truth in zip(images.split(500), labels.split(500), strict=True)
    ]
    return torch.cat(found).numpy()


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    return 100 * float(correct(model, images, labels).mean())


def chosen(description: str | None) -> argparse.Namespace:
    """Data, folder of runs and seeds, as the command line says: for training and for measuring."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="CIFAR-100 as .npz: train_images, train_labels, test_images, test_labels")
    parser.add_argument("--runs", type=Path, default=Path("runs/convert"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.runs.mkdir(parents=True, exist_ok=True)
    return options


def main() -> None:
    options = chosen(__doc__)
    sets = splits(np.load(options.data))
    for seed in options.seeds:
        for arm in ARMS:
            if not (options.runs / f"{arm}-{seed}.pt").exists():
                train(arm, seed, options.runs, sets)


if __name__ == "__main__":
    main()
