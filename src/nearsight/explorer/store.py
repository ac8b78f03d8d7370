"""What the server remembers: models, pictures and inspections, each bounded, all in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import nn

from nearsight.analysis.pictures import fit_picture, sample_images
from nearsight.explorer.inspection import Inspection, inspect_picture
from nearsight.explorer.sources import NUM_SAMPLES, Source

MAX_UPLOADS = 16
MAX_UPLOAD_BYTES = 256 * 2**20
MAX_UPLOADS_UNDER_WAY = 8
MAX_MODELS = 6
MAX_INSPECTION_BYTES = 400 * 2**20
MAX_WAITING = 8


class BusyError(Exception):
    """Too many inspections or uploads are waiting."""


@dataclass(frozen=True, eq=False)
class StoredPicture:
    name: str
    pixels: np.ndarray


class Store:
    """Thread-safe: requests come from a pool. One inspection is computed at a time; the others wait, up to a number."""

    def __init__(self, sources: Sequence[Source], samples: Sequence[tuple[str, np.ndarray]] | None = None) -> None:
        self.sources = list(sources)
        chosen = sample_images(NUM_SAMPLES) if samples is None else samples
        self.samples = [StoredPicture(name, pixels) for name, pixels in chosen]
        self._by_id = {f"sample-{index}": sample for index, sample in enumerate(self.samples)}
        self._uploads: OrderedDict[str, StoredPicture] = OrderedDict()
        self._models: OrderedDict[tuple[int, int | None], nn.Module] = OrderedDict()
        self._inspections: OrderedDict[str, Inspection] = OrderedDict()
        self._lock = threading.Lock()  # of what is stored here; never held while computing
        self._work = threading.Lock()  # held while computing
        self._waiting = 0
        self._num_uploads = 0
        self._uploads_under_way = 0
        for index, source in enumerate(self.sources):
            self._model(index, source.selected_step)  # what cannot be looked into is an error now, not in the page

    def describe_models(self) -> list[dict[str, Any]]:
        return [
            {
                "id": index,
                "name": source.name,
                "snapshots": [asdict(snapshot) for snapshot in source.snapshots],
                "selected": source.selected_step,
                "num_classes": source.num_classes,
            }
            for index, source in enumerate(self.sources)
        ]

    @contextmanager
    def upload_place(self) -> Iterator[None]:
        """One of the few places of uploads that are being received or decoded."""
        with self._lock:
            if self._uploads_under_way >= MAX_UPLOADS_UNDER_WAY:
                raise BusyError(f"{MAX_UPLOADS_UNDER_WAY} pictures are being uploaded already; try again in a moment")
            self._uploads_under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._uploads_under_way -= 1

    def add_picture(self, name: str, pixels: np.ndarray) -> str:
        """Keep an uploaded picture for as long as it is among the newest, by number and by bytes; its id."""
        with self._lock:
            self._num_uploads += 1
            picture_id = f"upload-{self._num_uploads}"
            self._uploads[picture_id] = StoredPicture(name, pixels)
            while len(self._uploads) > MAX_UPLOADS or (
                len(self._uploads) > 1 and sum(kept.pixels.nbytes for kept in self._uploads.values()) > MAX_UPLOAD_BYTES
            ):
                self._uploads.popitem(last=False)
        return picture_id

    def picture(self, picture_id: str) -> StoredPicture:
        with self._lock:
            found = self._uploads.get(picture_id) or self._by_id.get(picture_id)
        if found is None:
            raise KeyError("this picture is no longer kept; choose or drop it again")
        return found

    def inspection(self, inspection_id: str) -> Inspection:
        with self._lock:
            if inspection_id not in self._inspections:
                raise KeyError("this view is no longer kept; choose the picture again")
            self._inspections.move_to_end(inspection_id)
            return self._inspections[inspection_id]

    def inspect(self, model_id: int, step: int | None, picture_id: str) -> tuple[str, Inspection]:
        """The inspection of a picture in a snapshot of a model: kept from before, or computed now."""
        if not 0 <= model_id < len(self.sources):
            raise KeyError(f"there is no model {model_id}")
        source = self.sources[model_id]
        if step not in [snapshot.step for snapshot in source.snapshots] and step is not None:
            raise KeyError(f"{source.name} kept no snapshot of step {step}")
        stored = self.picture(picture_id)
        inspection_id = f"{model_id}.{'selected' if step is None else step}.{picture_id}"
        with self._turn():
            with self._lock:
                known = self._inspections.get(inspection_id)
            if known is None:
                model = self._model(model_id, step)
                picture = fit_picture(stored.name, stored.pixels, source.image_size(model), model)
                known = inspect_picture(model, picture, source.predictions)
                self._keep(inspection_id, known)
        return inspection_id, known

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self._lock:
            if self._waiting >= MAX_WAITING:
                raise BusyError(f"{MAX_WAITING} pictures are being looked at already; try again in a moment")
            self._waiting += 1
        try:
            with self._work:
                yield
        finally:
            with self._lock:
                self._waiting -= 1

    def _model(self, model_id: int, step: int | None) -> nn.Module:
        key = (model_id, step)
        if key not in self._models:
            self._models[key] = self.sources[model_id].load(step)
            while len(self._models) > MAX_MODELS:
                self._models.popitem(last=False)
        self._models.move_to_end(key)
        return self._models[key]

    def _keep(self, inspection_id: str, inspection: Inspection) -> None:
        with self._lock:
            self._inspections[inspection_id] = inspection
            while (
                len(self._inspections) > 1
                and sum(kept.num_bytes for kept in self._inspections.values()) > MAX_INSPECTION_BYTES
            ):
                self._inspections.popitem(last=False)
