"""Which layer each parameter belongs to, counted from the head: for rates that fall towards the input, and freezing."""

from __future__ import annotations

from torch import nn

from nearsight.recipes.recipe import Recipe


def by_layer(recipe: Recipe) -> bool:
    """Whether a recipe treats layers differently."""
    return recipe.layer_decay != 1 or recipe.head_rate != 1 or recipe.frozen_epochs > 0


def layers_from_head(model: nn.Module) -> dict[str, int]:
    """Name of each parameter → its layer: 0 for the head, 1 for the last block, and so on to the stem.

    A model says its layers by `group_matcher`, as timm's and ours do: the stem, the blocks, and all else is the head.
    """
    matcher = getattr(model, "group_matcher", None)
    if matcher is None:
        raise ValueError(
            f"{type(model).__name__} does not say which layers it has (group_matcher): leave --layer-decay and "
            "--head-rate at 1 and --frozen-epochs at 0"
        )
    from timm.models import group_parameters  # slow to load; few recipes need it

    layers = group_parameters(model, matcher(coarse=False), reverse=True)
    last = max(layers.values())
    return {name: last - layer for name, layer in layers.items()}


def head_names(model: nn.Module) -> set[str]:
    return {name for name, layer in layers_from_head(model).items() if layer == 0}
