"""A trained ResNet as attention: how far its outputs and its accuracy are from what they were, by kind and start.

    PYTHONPATH=src python benchmarks/convert_exact.py runs/cnn --data cifar100.npz --out results/convert_exact.json

The run's validation pictures (at most --pictures, evenly) are classified by the network and by its conversions, in
float32 on one thread. `same` counts pictures that have the same class as before; differences are of logits.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor, nn

from nearsight.bench.measure import environment
from nearsight.classification.data import open_splits
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.convert import to_attention
from nearsight.datasets.loading import load_all
from nearsight.images.transforms import BatchEval
from nearsight.runs.folder import RunFolder
from nearsight.weights.conversion import selected_model

STARTS = ((14.0, 14.0), (8.0, 8.0), (6.0, 6.0), (5.0, 4.0), (3.0, 4.0), (3.0, 3.0), (1.0, 2.0))
"""Gates and locality strengths; the first are the defaults."""


@torch.no_grad()
def logits(model: nn.Module, images: Tensor, side: int, crop: float) -> Tensor:
    shown = BatchEval(side, crop_ratio=crop)
    return torch.cat([model(shown(batch)) for batch in images.split(100)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of a ResNet")
    parser.add_argument("--data", default="", help="where its data lies now")
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("results/convert_exact.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    run = RunFolder(options.run)
    recipe = run.recipe(ClassificationRecipe)
    val = open_splits(recipe.with_changes(data=options.data or recipe.data)).val
    shown = torch.arange(len(val))[:: max(1, len(val) // options.pictures)][: options.pictures]  # of all classes alike
    images, labels = load_all(val, recipe.image_size)[shown], torch.from_numpy(val.labels)[shown]
    cnn = selected_model(run)
    before = logits(cnn, images, recipe.image_size, 1.0)

    def row(kind: str, stages: list[int], gate: float, strength: float) -> dict:
        gates = {"gate": gate} if kind == "gpsa" else {}
        model = to_attention(cnn, stages, kind, locality_strength=strength, **gates).model  # type: ignore[arg-type]
        after = logits(model, images, recipe.image_size, 1.0)
        found = {
            "kind": kind,
            "stages": stages,
            **gates,
            "locality_strength": strength,
            "top1": round(100 * (after.argmax(1) == labels).double().mean().item(), 2),
            "same": int((after.argmax(1) == before.argmax(1)).sum()),
            "largest_difference": (after - before).abs().max().item(),
        }
        print(found, flush=True)
        return found

    whole, last = [1, 2, 3, 4], [4]
    rows = [row(kind, stages, *STARTS[0]) for kind in ("gpsa", "local") for stages in (whole, last)]
    rows += [row("gpsa", [3, 4], gate, strength) for gate, strength in STARTS]
    record = {
        "network": {"model": recipe.model, **recipe.stated_options, "image_size": recipe.image_size},
        "pictures": len(images),
        "top1": round(100 * (before.argmax(1) == labels).double().mean().item(), 2),
        "spread_of_logits": before.std().item(),
        "environment": environment(torch.device("cpu")),
        "rows": rows,
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
