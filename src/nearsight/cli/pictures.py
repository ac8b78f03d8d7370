"""What `inspect` looks at when no picture is named: a run's own validation set, else the bundled photographs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from nearsight.data import ImageSet
    from nearsight.explorer.sources import RunSource, Source


@dataclass(frozen=True)
class Pictures:
    """A set of pictures to look at, and what it is called."""

    images: ImageSet
    origin: str

    def take(self, count: int) -> list[tuple[str, np.ndarray]]:
        """(class, uint8 [H, W, 3]), one of each class in turn."""
        from nearsight.analysis.pictures import in_turn

        return in_turn(self.images, count, self.origin)

    def batch(self, asked: int, usual: int, size: tuple[int, int]) -> Tensor:
        """As many as were asked for, or as usual where there are so many, as a model receives them."""
        import torch

        from nearsight.analysis.pictures import fit_picture

        taken = self.take(asked or min(usual, len(self.images)))
        return torch.cat([fit_picture(name, pixels, size).tensor() for name, pixels in taken])


def pictures_for(source: Source) -> Pictures:
    """The validation pictures of a run whose data is still there and unchanged, the bundled ones otherwise."""
    from nearsight.analysis.pictures import SAMPLES
    from nearsight.data import open_data
    from nearsight.explorer.sources import RunSource

    missing = ""
    if isinstance(source, RunSource):
        try:
            return _own_pictures(source)
        except (ValueError, OSError) as error:
            missing = f" (the run's own cannot be used: {error})"
    test = open_data(SAMPLES).test
    assert test is not None
    return Pictures(test, f"the bundled photographs of clothing{missing}")


def _own_pictures(source: RunSource) -> Pictures:
    from nearsight.train.environment import without_home
    from nearsight.train.image_data import ImageData

    images = ImageData(source.recipe.with_changes(download=False)).split("val")
    known = (source.run.read_json("data.json") or {}).get("val")
    if known is not None and images.fingerprint() != known:
        raise ValueError(f"{source.recipe.data} has changed since")
    return Pictures(images, f"the validation pictures of {source.name} ({without_home(source.recipe.data)})")
