"""What `inspect` and `explore` show when no picture is named: a run's own validation set, else bundled pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from PIL import Image

from nearsight.analysis.pictures import SAMPLES, in_turn
from nearsight.datasets.sources import open_data
from nearsight.explorer.sources import RunSource, Source
from nearsight.runs.identity import without_home
from nearsight.runs.layout import DATA

NamedPicture = tuple[str, np.ndarray]


@dataclass(frozen=True)
class Pictures:
    """A set of pictures to look at, in which order, and what it is called."""

    images: Any
    in_turn: Callable[[Any], Iterator[NamedPicture]]
    origin: str

    def take(self, count: int) -> list[NamedPicture]:
        """(name, uint8 [H, W, 3]) of exactly this many."""
        taken = self.at_most(count)
        if len(taken) < count:
            raise ValueError(f"{self.origin}: there are {len(taken)} pictures, not {count}")
        return taken

    def at_most(self, count: int) -> list[NamedPicture]:
        """As `take`, fewer where there are fewer that can be read."""
        return list(islice(self.in_turn(self.images), count))

    def samples(self, count: int = 12, longest: int = 1024) -> list[NamedPicture]:
        """A few, none of them large."""
        shown = []
        for name, pixels in self.at_most(count):
            image = Image.fromarray(pixels)
            image.thumbnail((longest, longest))
            shown.append((name, np.asarray(image)))
        return shown


def pictures_of(sources: Sequence[Source]) -> Pictures:
    """What all sources are shown: the validation pictures of the first run among them whose data is still there and
    unchanged, the bundled ones otherwise."""
    missing = ""
    run = next((source for source in sources if isinstance(source, RunSource)), None)
    if run is not None:
        try:
            return _own_pictures(run)
        except (ValueError, OSError) as error:
            missing = f" (the run's own cannot be used: {error})"
    return Pictures(open_data(SAMPLES).test, in_turn, f"the bundled photographs of clothing{missing}")


def _own_pictures(source: RunSource) -> Pictures:
    images = source.inspected.validation_images()
    data = source.inspected.recipe.data
    known = (source.run.read_json(DATA) or {}).get("val")
    if known is not None and images.fingerprint() != known:
        raise ValueError(f"{data} has changed since")
    origin = f"the validation pictures of {source.name} ({without_home(data)})"
    return Pictures(images, source.inspected.in_turn, origin)
