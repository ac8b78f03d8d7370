"""An epoch in batches: read by dataloader workers, or as indices of what is on the device already.

Same samples in the same order either way. They do not depend on the number of workers or processes, nor on the step
the epoch starts at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from nearsight.images.order import EpochOrder
from nearsight.images.unreadable import BadImageLog, TooManyBadImages

MakeBatch = Callable[[np.ndarray, np.ndarray, dict[str, str]], dict[str, Tensor]]
"""(indices [b], augmentation keys [b], where to note unreadable images) → the batch, tensors by name."""


class _Batches(Dataset):
    """Item `part` is the batch of that slice of the order, the bad images met, and what stopped it, if so."""

    def __init__(self, make: MakeBatch, order: EpochOrder) -> None:
        self.make, self.order = make, order

    def __getitem__(self, part: slice) -> tuple[dict[str, Tensor] | None, dict[str, str], str]:
        found: dict[str, str] = {}
        try:
            return self.make(self.order.indices[part], self.order.keys[part], found), found, ""
        except TooManyBadImages as error:  # returned, not raised: the loader would wrap it in a worker's traceback
            return None, found, str(error)


class BatchStream:
    """The batches of parts of an epoch's order (see `EpochOrder.parts`), made by `workers` processes.

    The global random generators of Python, NumPy and torch are left as they are.
    """

    def __init__(
        self,
        make: MakeBatch,
        order: EpochOrder,
        parts: Sequence[slice],
        *,
        workers: int = 0,
        bad: BadImageLog | None = None,
        pin_memory: bool = False,
    ) -> None:
        self.bad = BadImageLog(len(order)) if bad is None else bad
        self._loader = DataLoader(
            _Batches(make, order),
            batch_size=None,
            sampler=parts,
            num_workers=workers,
            # The loader draws one number per epoch from its generator, by default the global one: give it its own.
            generator=torch.Generator().manual_seed(0),
            pin_memory=pin_memory,
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for batch, found, error in self._loader:
            if found:
                self.bad.add(found)
            if error:
                raise TooManyBadImages(error)
            yield batch


def device_batches(
    order: EpochOrder, parts: Sequence[slice], device: torch.device | str = "cpu"
) -> Iterator[tuple[Tensor, Tensor]]:
    """(indices, augmentation keys) of parts of an epoch's order, for images that are on the device already.

    The order is copied once; a batch is a slice of it and never waits for the device.
    """
    indices, keys = torch.from_numpy(order.indices).to(device), torch.from_numpy(order.keys).to(device)
    return ((indices[part], keys[part]) for part in parts)
