"""One update: augmentation, forward, backward, clipping, optimiser and average, without waiting for the device.

Losses, gradient norms and whether each step was skipped stay on the device in a small ring buffer until it is read. A
step whose loss or gradient is not finite is skipped on the device, by the fused optimiser's own switch. On CUDA the
whole update can be captured in a graph and replayed: what changes from step to step lives in fixed buffers.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from nearsight.engine.distributed import World
from nearsight.engine.optimizer import set_rates
from nearsight.engine.sharding import full_tensor
from nearsight.engine.state import TrainState
from nearsight.engine.task import Batch, Inputs, Task

_WARM_UP_STEPS = 3  # real steps run before a capture: they compile, choose kernels and make the optimiser's state
_LARGEST_SCALE, _GROWTH_INTERVAL = 2.0**16, 2000


@dataclass(frozen=True)
class StepResult:
    """What one update did."""

    loss: float
    grad_norm: float
    skipped: bool
    overflow: bool = False
    """Skipped for fp16's range alone: the loss was finite and its scale can still be lowered."""


@dataclass(frozen=True)
class StepSettings:
    """How updates are carried out on this machine."""

    device: torch.device
    precision: torch.dtype
    clip_grad: float
    micro_batch: int
    accumulation: int
    window: int
    """Most steps between two calls of ``read``."""
    compile: bool
    capture: bool


class TrainStep:
    """Call it once per step; ``read`` gives what happened since it was last called."""

    def __init__(self, task: Task, state: TrainState, settings: StepSettings, world: World) -> None:
        self.settings, self.world, self.task = settings, world, task
        self.model, self.module, self.memory_format = state.model, state.module, state.memory_format
        self.optimizer, self.averaged = state.optimizer, state.averaged
        self.parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
        self.statistics = [b for b in state.module.buffers() if b.is_floating_point()]  # of batch norms
        device = settings.device
        self.ema_weight = torch.zeros((), device=device)
        self.step_number = torch.zeros((), dtype=torch.int64, device=device)
        self.ring = torch.zeros(4, settings.window, device=device)  # loss, gradient norm, skipped, overflow
        self.slot = torch.zeros(1, dtype=torch.int64, device=device)
        scale = _LARGEST_SCALE if settings.precision == torch.float16 else 1.0
        self.scale = torch.full((), scale, device=device)
        self.growth = torch.zeros((), device=device)
        self.pending = 0
        self.steps_run = 0
        self._forward: Any = torch.compile(state.module, dynamic=False) if settings.compile else state.module
        self._graph: torch.cuda.CUDAGraph | None = None
        self._side: torch.cuda.Stream | None = None
        self._buffers: list[dict[str, Tensor]] = []  # of the last batch
        self._seed = 0

    def __call__(
        self, step: int, inputs: Sequence[Inputs], lr: float, ema_weight: float, seed: int, body: float = 1.0
    ) -> None:
        """Carry out update ``step``. ``seed`` fixes dropout and drop-path; everything else random is the task's.

        ``body`` is the share of the learning rate that all but the head has.
        """
        if self.pending == self.settings.window:
            raise RuntimeError("the ring is full: read() before the next step")
        set_rates(self.optimizer, lr, body)
        self.ema_weight.fill_(ema_weight)
        self.step_number.fill_(step)
        self.slot.fill_(self.pending)
        self._seed = seed
        torch.manual_seed(seed)
        if not self.settings.capture:
            self._buffers = [self._on_device(micro) for micro in inputs]
            self._update(self._buffers)
        else:
            self._captured_update(inputs)
        self.pending += 1
        self.steps_run += 1

    def read(self) -> list[StepResult]:
        """Wait for the device and empty the ring. Over several processes the losses are averaged: all must call."""
        if not self.pending:
            return []
        values = self.ring[:, : self.pending].clone()
        self.world.average(values[0])
        self.pending = 0
        rows = values.cpu().T.tolist()
        return [StepResult(loss, norm, bool(skipped), bool(overflow)) for loss, norm, skipped, overflow in rows]

    def diagnosis(self) -> str:
        """In words, which gradients of the last batch are not finite; empty if all are.

        They are computed once more, since clipping spreads a NaN to all of them. All processes must call.
        """
        self._graph = None  # its memory is needed
        self.optimizer.zero_grad(set_to_none=True)
        if self.settings.device.type == "cuda":
            torch.cuda.empty_cache()
        statistics = self._flat_statistics()
        torch.manual_seed(self._seed)
        for index, inputs in enumerate(self._buffers):
            self._forward_backward(inputs, index, last=index == len(self._buffers) - 1)
        self._unscale()
        self._restore_statistics(statistics, torch.ones((), device=self.settings.device))
        gradients = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        largest = {name: full_tensor(gradient.abs().max()).item() for name, gradient in gradients.items()}
        bad = [name for name, size in largest.items() if not math.isfinite(size)]
        if bad:
            return f"{len(bad)} of {len(largest)} gradients are not finite; that of {bad[-1]} is nearest the loss."
        if not torch.isfinite(full_tensor(get_total_norm(list(gradients.values())))):
            name = max(largest, key=lambda one: largest[one])
            return f"Every gradient is finite, but not their norm: up to {largest[name]:.1e} in {name}."
        return ""

    def _on_device(self, inputs: Inputs) -> dict[str, Tensor]:
        return {name: value.to(self.settings.device, non_blocking=True) for name, value in inputs.items()}

    def _captured_update(self, inputs: Sequence[Inputs]) -> None:
        """Real steps on a side stream first, then one capture, then replays of it with new buffer contents."""
        if not self._buffers:
            self._buffers = [
                {k: torch.empty_like(v, device=self.settings.device) for k, v in m.items()} for m in inputs
            ]
        for buffers, micro in zip(self._buffers, inputs, strict=True):
            for name, value in micro.items():
                buffers[name].copy_(value, non_blocking=True)
        if self.steps_run < _WARM_UP_STEPS:
            self._side = self._side or torch.cuda.Stream()
            side, main = self._side, torch.cuda.current_stream()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                self._update(self._buffers)
            main.wait_stream(side)
            return
        if self._graph is None:
            self.optimizer.zero_grad(set_to_none=True)  # so that the graph's own memory holds the gradients
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._update(self._buffers)
        self._graph.replay()

    def _update(self, micro_batches: Sequence[Inputs]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        statistics = self._flat_statistics()
        loss = torch.zeros((), device=self.settings.device)
        for index, inputs in enumerate(micro_batches):
            loss += self._forward_backward(inputs, index, last=index == len(micro_batches) - 1)
        self._unscale()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = full_tensor(get_total_norm(gradients))
        finite = torch.stack([torch.isfinite(norm) & torch.isfinite(loss), torch.isfinite(loss)])
        trouble = 1.0 - finite.float()
        self.world.maximum(trouble)  # all processes skip alike
        bad, lost = trouble
        if self.settings.clip_grad:
            clip_grads_with_norm_(self.parameters, self.settings.clip_grad, norm)
        self.optimizer.found_inf = bad  # type: ignore[attr-defined]
        self.optimizer.step()
        self._restore_statistics(statistics, bad)
        if self.averaged is not None:
            self.averaged.update(self.ema_weight)
        overflow = bad * (1.0 - lost) * (self.scale > 1)
        self._adapt_scale(bad)
        self.ring.index_copy_(1, self.slot, torch.stack([loss.detach(), norm, bad, overflow]).unsqueeze(1))

    def _flat_statistics(self) -> Tensor | None:
        return torch.cat([buffer.flatten() for buffer in self.statistics]) if self.statistics else None

    def _restore_statistics(self, before: Tensor | None, bad: Tensor) -> None:
        """A skipped step leaves no trace in the batch norms either, which the forward pass has changed by then."""
        after = self._flat_statistics()
        if before is None or after is None:
            return
        kept = torch.where(bad > 0, before, after).split([buffer.numel() for buffer in self.statistics])
        values = [value.view_as(buffer) for value, buffer in zip(kept, self.statistics, strict=True)]
        torch._foreach_copy_(self.statistics, values)

    def _forward_backward(self, inputs: Inputs, index: int, last: bool) -> Tensor:
        settings = self.settings
        first = self.world.rank * settings.micro_batch * settings.accumulation + index * settings.micro_batch
        with torch.no_grad():
            batch: Batch = self.task.prepare(inputs, self.step_number, first)
            if isinstance(batch.inputs, Tensor) and batch.inputs.dim() == 4:
                batch = batch._replace(inputs=batch.inputs.contiguous(memory_format=self.memory_format))
        low = settings.precision != torch.float32
        autocast = torch.autocast(settings.device.type, settings.precision) if low else contextlib.nullcontext()
        with self._syncing(last):
            with autocast:
                loss = self.task.loss(self._forward(batch.inputs), batch).float() / settings.accumulation
            (loss * self.scale if settings.precision == torch.float16 else loss).backward()
        return loss.detach()

    def _syncing(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Gradients are reduced over processes once per update, with its last micro-batch."""
        if not last and isinstance(self.module, DistributedDataParallel):
            return self.module.no_sync()
        return contextlib.nullcontext()

    def _unscale(self) -> None:
        if self.settings.precision == torch.float16:
            torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], self.scale.reciprocal())

    def _adapt_scale(self, bad: Tensor) -> None:
        """fp16: halve the scale after an overflow, double it after many steps without one."""
        if self.settings.precision != torch.float16:
            return
        self.growth.add_(1).mul_(1 - bad)
        grows = (self.growth >= _GROWTH_INTERVAL).float()
        self.scale.mul_(1 - 0.5 * bad).mul_(1 + grows).clamp_(1.0, _LARGEST_SCALE)
        self.growth.mul_(1 - grows)
