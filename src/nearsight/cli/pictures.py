"""What `inspect` and `explore` look at when no picture is named: a run's own validation set, else bundled pictures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from nearsight.datasets.labelled import LabelledImages
    from nearsight.explorer.sources import RunSource, Source


@dataclass(frozen=True)
class Pictures:
    """A set of pictures to look at, and what it is called."""

    images: LabelledImages
    origin: str

    def take(self, count: int) -> list[tuple[str, np.ndarray]]:
        """(class, uint8 [H, W, 3]), one of each class in turn."""
        taken = self.at_most(count)
        if len(taken) < count:
            raise ValueError(f"{self.origin}: there are {len(taken)} pictures, not {count}")
        return taken

    def at_most(self, count: int) -> list[tuple[str, np.ndarray]]:
        """As `take`, fewer where there are fewer that can be read."""
        from itertools import islice

        from nearsight.analysis.pictures import in_turn

        return list(islice(in_turn(self.images), count))


def pictures_of(sources: Sequence[Source]) -> Pictures:
    """What all sources are shown: pictures of the first run among them; says which."""
    from nearsight.explorer.sources import RunSource

    pictures = pictures_for(next((source for source in sources if isinstance(source, RunSource)), sources[0]))
    print(f"pictures: {pictures.origin}", file=sys.stderr)
    return pictures


def samples_of(sources: Sequence[Source], count: int = 12, longest: int = 1024) -> list[tuple[str, np.ndarray]] | None:
    """A few pictures of the first run among the sources, none of them large; None where there is no run."""
    import numpy as np
    from PIL import Image

    from nearsight.explorer.sources import RunSource

    if not any(isinstance(source, RunSource) for source in sources):
        return None
    shown = []
    for name, pixels in pictures_of(sources).at_most(count):
        image = Image.fromarray(pixels)
        image.thumbnail((longest, longest))
        shown.append((name, np.asarray(image)))
    return shown or None


def pictures_for(source: Source) -> Pictures:
    """The validation pictures of a run whose data is still there and unchanged, the bundled ones otherwise."""
    from nearsight.analysis.pictures import SAMPLES
    from nearsight.datasets.sources import open_data
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
    from nearsight.classification.data import open_splits
    from nearsight.runs.environment import without_home
    from nearsight.runs.layout import DATA

    images = open_splits(source.recipe.with_changes(download=False)).val
    known = (source.run.read_json(DATA) or {}).get("val")
    if known is not None and images.fingerprint() != known:
        raise ValueError(f"{source.recipe.data} has changed since")
    return Pictures(images, f"the validation pictures of {source.name} ({without_home(source.recipe.data)})")
