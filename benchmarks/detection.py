"""Speed and memory of every row of SASA's Table 2, training and inference, beside torchvision's RetinaNet.

    PYTHONPATH=src python benchmarks/detection.py --out results/detection_speed.json

One image size, bf16 autocast (CUDA), channels-last, synthetic images and boxes on the device. Training is forward,
loss, backward and an SGD update; inference is forward and post-processing. torchvision's model is its own: 91 classes,
9 anchors, its own loss and post-processing, batch norms that learn; it gets the same pixels and no resizing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nearsight.acceleration import accelerate
from nearsight.detection.outputs import BoxTargets, detection_loss, postprocess
from nearsight.models import create_model

ROWS = (
    "torchvision",
    "retinanet_resnet50",
    "retinanet_sasa_resnet50_convstem",
    "retinanet_sasa_resnet50",
    "retinanet_sasa_resnet50_convstem_attention_heads",
    "retinanet_sasa_resnet50_attention_heads",
    "retinanet_sasa_resnet50_convstem_attention",
    "retinanet_sasa_resnet50_attention",
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", nargs="+", default=list(ROWS))
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--boxes", type=int, default=8, help="in each image")
    parser.add_argument("--steps", type=int, default=10, help="measured, after --warmup")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile our models and torchvision's backbone")
    return parser.parse_args()


def synthetic(options: argparse.Namespace) -> tuple[torch.Tensor, BoxTargets]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(options.batch, 3, options.size, options.size, generator=generator)
    corner = torch.rand(options.batch, options.boxes, 2, generator=generator) * options.size * 0.6
    extent = (0.05 + 0.35 * torch.rand(options.batch, options.boxes, 2, generator=generator)) * options.size
    boxes = torch.cat((corner, corner + extent), dim=2)
    labels = torch.randint(0, 80, (options.batch, options.boxes), generator=generator)
    shown = images.to(options.device).contiguous(memory_format=torch.channels_last)
    return shown, BoxTargets(boxes.to(options.device), labels.to(options.device))


def build(row: str, options: argparse.Namespace) -> tuple[nn.Module, Callable[..., torch.Tensor], Callable[..., Any]]:
    """The model, its training loss and its inference, as functions of images and targets."""
    torch.manual_seed(0)
    if row == "torchvision":
        from torchvision.models.detection import retinanet_resnet50_fpn

        model = retinanet_resnet50_fpn(
            weights=None, weights_backbone=None, min_size=options.size, max_size=options.size,
            image_mean=[0.0] * 3, image_std=[1.0] * 3,
        )  # fmt: skip
        if options.compile:
            model.backbone = torch.compile(model.backbone)

        def their_loss(images: torch.Tensor, targets: BoxTargets) -> torch.Tensor:
            pairs = zip(targets.boxes, targets.labels, strict=True)
            listed = [{"boxes": boxes, "labels": labels} for boxes, labels in pairs]
            return sum(model(list(images), listed).values())

        return model, their_loss, lambda images, _: model(list(images))
    model = accelerate(create_model(row))
    called: Any = torch.compile(model) if options.compile else model

    def loss(images: torch.Tensor, targets: BoxTargets) -> torch.Tensor:
        return detection_loss(called(images), targets).total

    def infer(images: torch.Tensor, _: BoxTargets) -> Any:
        return postprocess(called(images), [(options.size, options.size)] * len(images))

    return model, loss, infer


def timed(work: Callable[[], Any], options: argparse.Namespace) -> dict[str, float | int | None]:
    """Milliseconds for a batch (median and spread) and the peak of memory."""
    cuda = options.device.startswith("cuda")

    def wait() -> float:
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    for _ in range(options.warmup):
        work()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    laps = []
    for _ in range(options.steps):
        start = wait()
        work()
        laps.append((wait() - start) * 1e3)
    middle = statistics.median(laps)
    return {
        "milliseconds": round(middle, 3),
        "spread": round(max(laps) - min(laps), 3),
        "images_per_second": round(options.batch / middle * 1e3, 1),
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if cuda else None,
    }


def measure(row: str, options: argparse.Namespace) -> dict[str, Any]:
    images, targets = synthetic(options)
    model, loss, infer = build(row, options)
    model.to(options.device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    # Not every CPU has bf16; there the numbers only show that the script runs.
    autocast = torch.autocast(options.device.split(":")[0], torch.bfloat16, enabled=options.device.startswith("cuda"))

    def train_step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast:
            value = loss(images, targets)
        value.backward()
        optimizer.step()

    def infer_step() -> None:
        with torch.no_grad(), autocast:
            infer(images, targets)

    result: dict[str, Any] = {"row": row, "parameters": sum(parameter.numel() for parameter in model.parameters())}
    model.train()
    result["training"] = timed(train_step, options)
    optimizer.zero_grad(set_to_none=True)
    model.eval()
    result["inference"] = timed(infer_step, options)
    return result


def main() -> None:
    options = arguments()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    results = []
    for row in options.rows:
        try:
            results.append(measure(row, options))
        except torch.OutOfMemoryError as error:
            results.append({"row": row, "error": str(error).splitlines()[0]})
        print(json.dumps(results[-1]), flush=True)
        if options.device.startswith("cuda"):
            torch.cuda.empty_cache()
        content = {
            "what": "RetinaNet training and inference, measured",
            "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu",
            "torch": torch.__version__,
            "settings": {name: str(value) for name, value in vars(options).items()},
            "rows": results,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
