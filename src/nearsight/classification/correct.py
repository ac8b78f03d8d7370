"""Which pictures of a split a finished run names rightly: what intervals over pictures are made of."""

from __future__ import annotations

import numpy as np
import torch

from nearsight.classification.task import ClassificationTask
from nearsight.engine.device import pick_device, pick_precision
from nearsight.engine.task import ProcessContext
from nearsight.runs.folder import RunFolder
from nearsight.weights import trained_model


@torch.no_grad()
def correct_pictures(task: ClassificationTask, split: str, folder: RunFolder) -> np.ndarray:
    """[pictures] True for each picture that the run's weights name rightly, in the order of the split."""
    place = pick_device(task.recipe.device)
    precision = pick_precision(task.recipe.precision, place)
    model = trained_model(task.build_model(), folder, place)
    correct = np.zeros(len(task.data.split(split)), dtype=bool)
    labels = torch.from_numpy(task.data.split(split).labels).to(place)
    for batch in task.data.eval_batches(split, ProcessContext(place, precision=precision)):
        with torch.autocast(place.type, precision, enabled=precision != torch.float32):
            chosen = model(batch.images).argmax(dim=1)
        correct[batch.indices.cpu().numpy()] = (chosen == labels[batch.indices]).cpu().numpy()
    return correct
