"""Every detector of results/bccd*.json as a dot: convolution and attention by where they start from.

    python benchmarks/bccd_picture.py --out results/bccd.svg

A bar is the mean of its dots.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from matplotlib import rcParams
from matplotlib.figure import Figure

RESULTS = Path(__file__).resolve().parent.parent / "results"
SETTINGS = {  # of attention's start and of the backbone
    "random start,\nfrom scratch": "bccd.json",
    "local start,\nfrom scratch": "bccd_local.json",
    "random start,\nclassified 20 epochs first": "bccd_pretrained.json",
    "local start,\nclassified 30 epochs first": "bccd_local_pretrained.json",
}
DETECTORS = {
    "retinanet_resnet26": ("convolution", "#444444"),
    "retinanet_sasa_resnet26_convstem_attention_heads": ("attention in backbone and heads", "#d1495b"),
    "retinanet_sasa_resnet26_convstem_attention": ("and in the pyramid", "#edae49"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rcParams["svg.hashsalt"] = "bccd"  # the same picture is the same file
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    for place, file in enumerate(SETTINGS.values()):
        runs = json.loads((RESULTS / file).read_text())["runs"]
        for shift, (model, (label, colour)) in enumerate(DETECTORS.items()):
            values = [run["test"]["mAP"] for run in runs if run["model"] == model]
            if values:
                x = place + 0.25 * (shift - 1)
                shown = label if place == 1 else None
                axes.plot([x] * len(values), values, "o", color=colour, alpha=0.55, markersize=6, label=shown)
                mean = sum(values) / len(values)
                axes.hlines(mean, x - 0.09, x + 0.09, color=colour, linewidth=2)
                above = {"textcoords": "offset points", "ha": "center", "fontsize": 8}
                axes.annotate(f"{mean:.3f}", (x, max(values)), (0, 6), **above)
    axes.set_xticks(range(len(SETTINGS)), list(SETTINGS))
    axes.set_ylabel("mAP on BCCD's test split")
    axes.margins(y=0.15)
    figure.legend(loc="outside upper center", ncols=len(DETECTORS), fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(options.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
