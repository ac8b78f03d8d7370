"""Our classifiers with the methods that timm calls on a model; parameters, names and outputs are those of the model.

The class of a built model is changed, as `accelerate` does: the layers stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nearsight.acceleration import FastVisionTransformer, accelerate
from nearsight.models import ResNet, VisionTransformer, create_model
from nearsight.models.model import Classifier, chosen_layers
from nearsight.models.resnet import ConvStem
from nearsight.nn.checks import require_images

Indices = int | Sequence[int] | None


def timm_form(name: str, *, global_pool: str | None = None, device: Any = None, dtype: Any = None, **arguments: Any):
    """The model of this name as timm wants it. `device` and `dtype` are those of its parameters."""
    with torch.device("cpu" if device is None else device):
        model = accelerate(create_model(name, **arguments))
    if dtype is not None:
        model = model.to(dtype)
    assert isinstance(model, Classifier)
    form: type[TimmForm] = TimmVisionTransformer if isinstance(model, VisionTransformer) else TimmResNet
    model.__class__ = form
    assert isinstance(model, TimmForm)
    model.set_pool(global_pool)
    return model


class TimmForm(Classifier):
    """What both families do alike for timm."""

    global_pool: str
    pools: tuple[str, ...]

    @property
    def head_hidden_size(self) -> int:
        return self.num_features

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Channels, stride and place of every map that `forward_intermediates` returns."""
        raise NotImplementedError

    def get_classifier(self) -> Any:
        raise NotImplementedError

    def set_pool(self, global_pool: str | None) -> None:
        """How `forward_head` makes one vector of the features; "" leaves them as they are, None as it is."""
        if global_pool is not None and global_pool not in self.pools:
            raise ValueError(f"global_pool must be one of {', '.join(map(repr, self.pools))}, not {global_pool!r}")

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        super().reset_classifier(num_classes)
        self.set_pool(global_pool)
        self.train(self.training)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        if self.global_pool:
            return super().forward_head(features, pre_logits)
        return features if pre_logits or self.num_classes == 0 else self.get_classifier()(features)


class TimmVisionTransformer(TimmForm, FastVisionTransformer):
    pools = ("", "avg", "token")

    @property
    def embed_dim(self) -> int:
        return self.width

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        return [
            {"num_chs": self.width, "reduction": self.patch_size, "module": f"blocks.{index}"}
            for index in range(len(self.blocks))
        ]

    @property
    def global_pool(self) -> str:  # type: ignore[override]
        return {"token": "token", "mean": "avg", "none": ""}[self.pool]

    def set_pool(self, global_pool: str | None) -> None:
        super().set_pool(global_pool)
        if global_pool == "token" and self.cls_token is None:
            raise ValueError("global_pool='token' needs a class token, and this model has none; use 'avg'")
        if global_pool == "avg" and self.distilled:
            raise ValueError("a distilled model reads its two tokens: leave global_pool='avg' out")
        if global_pool is not None:
            self.pool = {"token": "token", "avg": "mean", "": "none"}[global_pool]  # type: ignore[assignment]

    def head_tokens(self, images: Tensor) -> Tensor:
        return super().head_tokens(images) if self.pool == "token" else self.forward_features(images)

    def get_classifier(self) -> nn.Module | tuple[nn.Module, nn.Module]:
        return self.head if self.head_dist is None else (self.head, self.head_dist)

    def forward_intermediates(
        self,
        images: Tensor,
        indices: Indices = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """timm's: features and the patches after chosen blocks, as maps ("NCHW") or as tokens ("NLC").

        With `return_prefix_tokens` each is a pair with the class and distillation tokens, of which there are none
        before they join.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt must be 'NCHW' or 'NLC', not {output_fmt!r}")
        wanted = chosen_layers(indices, len(self.blocks))
        x, grid_size = self.embed(images)
        found: list[Any] = []
        for index, block in enumerate(self.blocks):
            if stop_early and index > max(wanted):
                break
            x = self._run(block, self.before_block(index, x), grid_size)
            if index in wanted:
                tokens = self.norm(x) if norm else x
                prefix = tokens.shape[1] - grid_size[0] * grid_size[1]
                patches = tokens[:, prefix:]
                if output_fmt == "NCHW":
                    patches = patches.transpose(1, 2).unflatten(2, grid_size).contiguous()
                found.append((patches, tokens[:, :prefix]) if return_prefix_tokens else patches)
        return found if intermediates_only else (self.norm(x), found)

    def prune_intermediate_layers(
        self, indices: Indices = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Leave out what these intermediates do not need; returns them, counted from the first."""
        wanted = sorted(chosen_layers(indices, len(self.blocks)))
        if prune_head:
            self.reset_classifier(0, "")
        self.blocks = self.blocks[: wanted[-1] + 1]
        if prune_norm:
            self.norm = nn.Identity()  # type: ignore[assignment]
        if len(self.blocks) <= self.num_gated_blocks > 0:  # no token joins any more
            self.cls_token = self.dist_token = None
        return wanted


class TimmResNet(TimmForm, ResNet):
    """Intermediates as timm's ResNets have them: 0 is the stem before it pools, 1 to 4 are the stages."""

    pools = ("", "avg")
    global_pool = "avg"

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        first = 2 if isinstance(self.stem, ConvStem) else 1
        stages = enumerate(self.stage_widths, start=1)
        stem = {"num_chs": self.stem.bn1.num_features, "reduction": first, "module": "stem.bn1"}  # type: ignore[union-attr]
        return [
            stem,
            *(
                {"num_chs": width, "reduction": 2 ** (1 + number), "module": f"layer{number}"}
                for number, width in stages
            ),
        ]

    def set_pool(self, global_pool: str | None) -> None:
        super().set_pool(global_pool)
        if global_pool is not None:
            self.global_pool = global_pool

    def get_classifier(self) -> nn.Module:
        return self.fc

    def forward_intermediates(
        self,
        images: Tensor,
        indices: Indices = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """timm's: features and the maps after the stem and chosen stages. There is no last norm to apply."""
        if output_fmt != "NCHW":
            raise ValueError(f"output_fmt must be 'NCHW', not {output_fmt!r}")
        wanted = chosen_layers(indices, 5)
        # The stem's last layer pools; what is before it is kept first.
        *before_pooling, pool = self.stem.children()
        require_images(images, self.in_chans, next(self.stem.parameters()).dtype)
        x = images
        for layer in before_pooling:
            x = layer(x)
        found = [x] if 0 in wanted else []
        x = pool(x)
        for number, stage in enumerate(self.stages, start=1):
            if stop_early and number > max(wanted):
                break
            x = self._run_stage(stage, x)
            if number in wanted:
                found.append(x)
        return found if intermediates_only else (x, found)

    def prune_intermediate_layers(
        self, indices: Indices = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Leave out what these intermediates do not need; returns them, counted from the stem."""
        wanted = sorted(chosen_layers(indices, 5))
        if prune_head:
            self.reset_classifier(0, "")
        for number in range(wanted[-1] + 1, 5):
            setattr(self, f"layer{number}", nn.Sequential())
        return wanted
