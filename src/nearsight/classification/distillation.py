"""Learning from a teacher (DeiT, section 4): hard labels or soft ones, from any classifier of the same classes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearsight.acceleration import accelerate
from nearsight.classification.model import build_classifier
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.engine.task import ProcessContext
from nearsight.images.preprocessing import Preprocessing
from nearsight.runs.folder import RunFolder, class_names
from nearsight.weights import chosen_network, find_weights, start_from


def load_teacher(recipe: ClassificationRecipe, classes: Sequence[str]) -> nn.Module:
    """The recipe's teacher, frozen: any source of weights, with ``MODEL=`` where it does not say its network."""
    return accelerate(_read_teacher(recipe, classes)).eval().requires_grad_(False)


def _read_teacher(recipe: ClassificationRecipe, classes: Sequence[str]) -> nn.Module:
    name, _, source = recipe.teacher.rpartition("=")
    run = RunFolder(recipe.teacher)
    if run.has_config:
        taught, source = _taught(run, recipe, classes), recipe.teacher
        wanted = taught.preprocessing
    else:
        found = find_weights(source, download=recipe.download)
        if found.network is None and not name:
            raise ValueError(
                f"teacher {recipe.teacher!r} does not say which network it is: write MODEL={recipe.teacher}, or take a "
                "run, a hub folder or timm:NAME"
            )
        network = chosen_network(name, found)
        taught = recipe.with_changes(model=network.model, model_options=dict(network.options), patch_size=0)
        wanted = found.preprocessing or recipe.preprocessing
    model = build_classifier(taught.with_changes(weights="", drop_path=0.0), len(classes))
    report = start_from(model, find_weights(source, download=recipe.download))
    if report.new:
        raise ValueError(
            f"teacher {recipe.teacher} has other classes than the {len(classes)} of the data: {', '.join(report.new)}"
        )
    same = wanted.normalisation == recipe.preprocessing.normalisation
    return model if same else Renormalised(model, wanted, recipe.preprocessing)


def _taught(run: RunFolder, recipe: ClassificationRecipe, classes: Sequence[str]) -> ClassificationRecipe:
    """How a teacher was trained: on the same classes, at the same size."""
    taught, own = run.recipe(ClassificationRecipe), class_names(run.path)
    if own != list(classes):
        odd = ", ".join(sorted(set(own) ^ set(classes))[:5]) or "their order"
        raise ValueError(f"teacher {run.path} has other classes than the data; they differ in: {odd}")
    if taught.image_size != recipe.image_size:
        raise ValueError(f"the teacher was trained at {taught.image_size} px, this run is at {recipe.image_size} px")
    return taught


def weights_checksum(model: nn.Module) -> str:
    """sha256 of every number of a model, by name."""
    state = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        state.update(f"{name}\0{value.dtype}\0{list(value.shape)}\0".encode())
        state.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return state.hexdigest()


class Renormalised(nn.Module):
    """A model that takes images as the student does and renormalises them as in its own training."""

    scale: Tensor
    shift: Tensor

    def __init__(self, model: nn.Module, wanted: Preprocessing, shown: Preprocessing) -> None:
        super().__init__()
        self.model = model
        own, given = torch.tensor(wanted.normalisation), torch.tensor(shown.normalisation)
        self.register_buffer("scale", (given[1] / own[1]).view(3, 1, 1))
        self.register_buffer("shift", ((given[0] - own[0]) / own[1]).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images * self.scale + self.shift)


class BothHeads(nn.Module):
    """A distilled model in training: logits of the class token and of the distillation token, kept apart."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        from torch.distributed.fsdp import register_fsdp_forward_method  # slow to load; training alone needs it

        register_fsdp_forward_method(model, "forward_distilled")  # or a sharded model's outermost weights stay apart

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.model.forward_distilled(images)  # type: ignore[operator]


def distillation_term(logits: Tensor, teacher_logits: Tensor, recipe: ClassificationRecipe) -> Tensor:
    """Hard: cross-entropy with the teacher's decision. Soft: KL at a temperature τ, times τ²."""
    if recipe.distillation == "hard":
        return F.cross_entropy(logits, teacher_logits.argmax(dim=1))
    tau = recipe.distill_temperature
    student = F.log_softmax(logits.float() / tau, dim=1)
    teacher = F.log_softmax(teacher_logits.float() / tau, dim=1)
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * tau**2


@torch.no_grad()
def ask_teacher(teacher: nn.Module, images: Tensor, context: ProcessContext) -> Tensor:
    """The teacher's logits for the same augmented images that the student sees."""
    with context.autocast():
        return teacher(images)
