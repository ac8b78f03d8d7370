"""Published weights by name: timm's and others' on the Hugging Face hub, and torchvision's. Fetched only when asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from torch import Tensor

from nearsight.images.preprocessing import Preprocessing
from nearsight.weights.files import read_file
from nearsight.weights.sources import (
    HUB,
    HUB_CONFIG,
    HUB_WEIGHTS,
    TIMM,
    TORCHVISION,
    Network,
    Weights,
    of_config,
    read_config,
    timm_network,
)

_SIDES = [[side, int(side * 2 ** (1 / 3)), int(side * 2 ** (2 / 3))] for side in (32, 64, 128, 256, 512)]
_RETINANET = {"norm": "none", "sizes": _SIDES}  # whole pixels, as its anchors are
_TORCHVISION_TWINS = {"resnet50": Network("resnet50", {}, 224)}
_SAME_AS_TIMM = ("resnet18", "resnet34", "resnet101", "resnet152")  # tensor by tensor
_FROZEN_EPS = 0.0  # of the batch norms that torchvision's first detectors were trained with on COCO


def find_published(source: str, *, download: bool) -> Weights:
    """`timm:NAME`, `hub:OWNER/NAME` or `torchvision:NAME`."""
    prefix, _, name = source.partition(":")
    found = {TIMM: _of_timm, HUB: _of_hub, TORCHVISION: _of_torchvision}[f"{prefix}:"]
    return found(source, name, download)


def _of_timm(source: str, name: str, download: bool) -> Weights:
    import timm

    config = timm.get_pretrained_cfg(name) if timm.is_model(name.partition(".")[0]) else None
    if config is None or not config.hf_hub_id:
        known = timm.list_pretrained(f"*{name.partition('.')[0]}*")[:3]
        hint = f"; did you mean {' or '.join(known)}?" if known else ""
        raise ValueError(f"timm has no published weights named {name!r}{hint}")
    repo = str(config.hf_hub_id)
    files = (config.hf_hub_filename,) if config.hf_hub_filename else HUB_WEIGHTS
    shown = {key: getattr(config, key) for key in ("mean", "std", "interpolation", "input_size")}
    return Weights(
        source,
        lambda: read_file(_hub_file(source, repo, files, download)),
        timm_network(name, {}, shown),
        Preprocessing.of_config(shown),
    )


def _of_hub(source: str, repo: str, download: bool) -> Weights:
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repo):
        raise ValueError(f"{source!r}: a repository of the hub is written hub:OWNER/NAME")
    config = read_config(_hub_file(source, repo, (HUB_CONFIG,), download))
    return of_config(source, config, lambda: read_file(_hub_file(source, repo, HUB_WEIGHTS, download)))


def _hub_file(source: str, repo: str, names: Sequence[str], download: bool) -> Path:
    """The first of these files of a repository that is on this machine, else fetched."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    for name in names:
        cached = huggingface_hub.try_to_load_from_cache(repo, name)
        if isinstance(cached, str):
            return Path(cached)
    if not download:
        raise _not_here(source, f"the repository {repo} of the hub")
    for name in names:
        try:
            return Path(huggingface_hub.hf_hub_download(repo, name))
        except LocalEntryNotFoundError as error:  # no connection
            raise _not_fetched(source, error) from error
        except EntryNotFoundError:
            continue
        except (HfHubHTTPError, OSError, ValueError) as error:
            raise _not_fetched(source, error) from error
    raise ValueError(f"{source}: the repository {repo} of the hub has none of {', '.join(names)}")


def _of_torchvision(source: str, name: str, download: bool) -> Weights:
    from torchvision import models

    try:
        weights: Any = models.get_weight(name) if "." in name else models.get_model_weights(name).DEFAULT
    except (ValueError, KeyError, AttributeError) as error:
        known = ", ".join([*_TORCHVISION_TWINS, *_SAME_AS_TIMM, "retinanet_resnet50_fpn"])
        raise ValueError(f"torchvision has no weights named {name!r}; ours can take those of {known}") from error
    model = name if "." not in name else _model_of(type(weights))
    detector = model == "retinanet_resnet50_fpn"
    network = _TORCHVISION_TWINS.get(model)
    if detector:
        network = Network("retinanet_resnet50", _RETINANET, 0)
    elif model in _SAME_AS_TIMM:
        network = Network(TIMM + model, {}, 224)
    elif network is None:
        raise ValueError(f"no network here is the same as torchvision's {model}")
    shown = {}
    if not detector:
        preset = weights.transforms()
        shown = {"mean": preset.mean, "std": preset.std, "interpolation": preset.interpolation.value}

    def read() -> dict[str, Tensor]:
        return read_file(_torchvision_file(source, weights.url, download))

    eps = _FROZEN_EPS if detector else None
    return Weights(source, read, network, Preprocessing.of_config(shown), batch_norm_eps=eps)


def _model_of(weights: type) -> str:
    from torchvision import models

    return next(name for name in models.list_models() if models.get_model_weights(name) is weights)


def _torchvision_file(source: str, url: str, download: bool) -> Path:
    import torch

    name = Path(urlparse(url).path).name
    path = Path(torch.hub.get_dir()) / "checkpoints" / name
    if path.is_file():
        return path
    if not download:
        raise _not_here(source, url)
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = re.search(r"-([0-9a-f]{8,})\.", name)
    try:
        torch.hub.download_url_to_file(url, str(path), digest and digest[1], progress=False)
    except (OSError, RuntimeError) as error:
        raise _not_fetched(source, error) from error
    return path


def _not_here(source: str, where: str) -> ValueError:
    return ValueError(
        f"the weights {source} are not on this machine; --download (in Python download=True) fetches them from {where}"
    )


def _not_fetched(source: str, error: Exception) -> ValueError:
    return ValueError(f"the weights {source} could not be fetched: {' '.join(str(error).split())[:300]}")
