"""A trained model in one line: `nearsight.load("runs/x")(picture)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nearsight.images.decode import pixels_of, read_image_file
from nearsight.images.imageset import BadImage
from nearsight.models.saving import is_saved, read_config
from nearsight.runs.folder import RunFolder
from nearsight.tasks import Predictor, task_kind


def load(source: str | Path, device: str = "auto") -> Loaded:
    """The trained model of a run, or of a folder that `nearsight export --to hub` wrote, ready to be called.

    `device` is cpu, cuda, mps, or auto for the best there is.
    """
    path = Path(source)
    if not path.is_dir():
        raise ValueError(f"{source} is no folder; give that of a run, or of `nearsight export --to hub`")
    return Loaded(path, task_of(path), device)


def task_of(path: Path) -> str:
    """The task of the model in a run or a saved folder."""
    if is_saved(path):
        return str(read_config(path).get("task", "classification"))
    return RunFolder(path).recipe().task


class Loaded:
    """A trained model. Called with a picture it answers what is on it; with a list, a list of answers.

    A picture is a path, a PIL image, or an array uint8 [H, W, 3] or [H, W]. A classifier answers the likeliest classes
    with their probabilities, likeliest first, as a dict (`top` says how many). A detector answers a list of objects,
    surest first: dicts of `class`, `score` and `box`, which is (left, top, width, height) in pixels of the picture
    (`min_score` says from which score on).
    """

    def __init__(self, path: Path, task: str, device: str = "auto") -> None:
        self.path, self.task = path, task
        self._predictor: Predictor = task_kind(task).load(path, device=device)

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self._predictor.classes)

    @property
    def device(self) -> Any:
        return self._predictor.device

    def __call__(self, pictures: Any, **options: Any) -> Any:
        many = isinstance(pictures, list | tuple)
        images = [_pixels(one) for one in (pictures if many else [pictures])]
        answers = self._predictor.look(images, **options)
        return answers if many else answers[0]

    def __repr__(self) -> str:
        return f"nearsight.load({str(self.path)!r}): {self.task}, {len(self.classes)} classes, on {self.device}"


def _pixels(picture: Any) -> np.ndarray:
    """A picture as uint8 [H, W, 3]."""
    try:
        if isinstance(picture, str | Path):
            return read_image_file(Path(picture), str(picture))
        if isinstance(picture, Image.Image):
            return pixels_of(picture, "the picture")
    except BadImage as error:
        raise ValueError(str(error)) from error
    array = np.asarray(picture)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3):
        raise ValueError(
            "a picture is a path, a PIL image or an array uint8 [height, width, 3] or [height, width], not "
            f"{type(picture).__name__} of {array.dtype} {list(array.shape)}"
        )
    return array if array.ndim == 3 else np.repeat(array[:, :, None], 3, axis=2)
