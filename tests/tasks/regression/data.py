"""A folder of pictures with a labels.csv of name,value: splits, and batches of them."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nearsight.engine.data import EvalBatch, TaskData
from nearsight.engine.task import Inputs, ProcessContext
from nearsight.images.decode import read_image_file
from nearsight.images.epochs import EpochOrder, device_batches
from nearsight.images.imageset import Splits, name_ranks, read_or_replace, share_of
from nearsight.images.transforms import BatchEval, EvalTransform
from regression.recipe import RegressionRecipe

_EVAL_BATCH, _OTHERS = 256, 16


class ValuedImages:
    """Pictures of a folder with a number each: an `images.imageset.ImageSet`."""

    def __init__(self, root: Path, rows: Sequence[tuple[str, float]]) -> None:
        self.root = root
        self.names = [name for name, _ in rows]
        self.values = np.array([value for _, value in rows], dtype=np.float32)

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int) -> np.ndarray:
        return read_image_file(self.root / self.names[index], self.names[index])

    def fingerprint(self) -> str:
        files = [self.root / name for name in self.names]
        sizes = [file.stat().st_size if file.is_file() else -1 for file in files]
        return hashlib.sha256(repr((self.names, self.values.tolist(), sizes)).encode()).hexdigest()


def read_rows(folder: str | Path) -> list[tuple[str, float]]:
    """(name, value) of each picture that labels.csv lists."""
    file = Path(folder) / "labels.csv"
    if not file.is_file():
        raise ValueError(f"{file}: not in {Path.cwd()}; a relative path counts from where training was started")
    with file.open(newline="") as lines:
        try:
            return [(row["name"], float(row["value"])) for row in csv.DictReader(lines)]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{file} needs the columns name and value, a number: {error}") from error


def open_splits(recipe: RegressionRecipe) -> Splits[ValuedImages]:
    """A share of the pictures for val, by hash of seed and name, and of the rest what `fraction` keeps for train."""
    root, rows = Path(recipe.data), read_rows(recipe.data)
    ranks = name_ranks([name for name, _ in rows], recipe.data_seed)
    train = [row for row, rank in zip(rows, ranks, strict=True) if rank >= recipe.val_fraction]
    val = [row for row, rank in zip(rows, ranks, strict=True) if rank < recipe.val_fraction]
    if len(val) < 2:
        raise ValueError(f"{root}: {len(val)} of its {len(rows)} pictures are for validation; raise --val-fraction")
    origin = f"{root}: train {len(train)}, val {len(val)} pictures with a number"
    splits = Splits(ValuedImages(root, train), ValuedImages(root, val), None, origin)
    if recipe.fraction == 1:
        return splits
    kept = share_of([name for name, _ in train], recipe.fraction, recipe.data_seed)
    return splits.with_share(ValuedImages(root, [train[index] for index in kept]))


class PictureBatches:
    """Makes batches for a stream. In place of a picture that cannot be read comes another, with its own value."""

    def __init__(self, images: ValuedImages, size: int) -> None:
        self.images, self.fit = images, EvalTransform(size, crop_ratio=1.0)

    def __call__(self, indices: np.ndarray, keys: np.ndarray, found: dict[str, str]) -> dict[str, Tensor]:
        read = [read_or_replace(self.images, int(index), self._others, found) for index in indices]
        return {
            "images": torch.stack([self.fit(image) for image, _ in read]),
            "indices": torch.tensor([index for _, index in read]),
            "keys": torch.from_numpy(keys),
        }

    def _others(self, index: int) -> tuple[str, Sequence[int]]:
        return "pictures", [(index + step) % len(self.images) for step in range(1, _OTHERS)]


class ValueData(TaskData[ValuedImages]):
    """The pictures of a recipe, and batches of them."""

    def __init__(self, recipe: RegressionRecipe, splits: Splits[ValuedImages]) -> None:
        count = sum(map(len, splits.named.values()))
        super().__init__(recipe, splits, resident_bytes=count * 3 * recipe.image_size**2)
        self._resident: dict[str, dict[str, Tensor]] = {}

    def values(self, split: str, device: torch.device) -> Tensor:
        """The numbers of a split, by the places of its pictures."""
        return torch.from_numpy(self.split(split).values).to(device)

    def epoch(self, order: EpochOrder, parts: list[slice], context: ProcessContext) -> Iterator[Inputs]:
        return self._batches("train", order, parts, context)

    def eval_batches(self, split: str, context: ProcessContext) -> Iterator[EvalBatch]:
        order, parts = self.eval_parts(split, _EVAL_BATCH, context)
        normalise = BatchEval(self.recipe.image_size).to(context.device)
        for batch in self._batches(split, order, parts, context):
            yield EvalBatch(normalise(batch["images"].to(context.device)), batch["indices"].to(context.device))

    def _batches(
        self, split: str, order: EpochOrder, parts: list[slice], context: ProcessContext
    ) -> Iterator[dict[str, Tensor]]:
        """Read by workers, or taken from what is on the device."""
        make = PictureBatches(self.split(split), self.recipe.image_size)
        if not self.resident:
            yield from self.stream(make, split, order, parts, context)
            return
        if split not in self._resident:
            every, found = np.arange(len(self.split(split))), {}
            loaded = make(every, every, found)
            self.bad(split).add(found)
            self._resident[split] = {name: loaded[name].to(context.device) for name in ("images", "indices")}
        kept = self._resident[split]
        for places, keys in device_batches(order, parts, context.device):
            yield {**{name: value[places] for name, value in kept.items()}, "keys": keys}
