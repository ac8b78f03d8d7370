"""Models in folders and on Hugging Face's hub: weights as safetensors, beside them config.json as timm writes it.

    model.save_pretrained("folder");  model.push_to_hub("me/name")
    model = VisionTransformer.from_pretrained("folder" or "me/name")

The methods are those of huggingface_hub's PyTorchModelHubMixin, which is slow to import and keeps the arguments of a
class; ours are kept by name. timm reads the folder too, once `nearsight.timm` is imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from ..images.preprocessing import Preprocessing, preprocessing_of
from ..untrusted.files import check_plain_file, read_bytes
from ..untrusted.limits import SETTINGS_BYTES, WEIGHT_BYTES
from ..untrusted.model_size import check_size

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
PREFIX = "nearsight_"
"""How the names of our models begin in a config.json, and in timm's registry."""

Model = TypeVar("Model", bound="Saved")


class Saved(nn.Module):
    """A model that `create_model` made, which can be written down as its name, its arguments and its weights."""

    made_as: tuple[str, dict[str, Any]] | None = None
    """What `create_model` was told: a name and arguments."""

    def save_pretrained(self, folder: str | Path, *, config: Mapping[str, Any] | None = None) -> Path:
        """Write config.json, with `config` added, and model.safetensors into a folder, which is made."""
        return save_folder(self, folder, {**self.config(), **(config or {})})

    def push_to_hub(
        self,
        repo_id: str,
        *,
        config: Mapping[str, Any] | None = None,
        private: bool | None = None,
        token: str | None = None,
        commit_message: str = "Weights of a nearsight model",
    ) -> str:
        """Upload what `save_pretrained` writes as OWNER/NAME; returns the address of the commit. Connects."""
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, config=config)
            return push_folder(folder, repo_id, private=private, token=token, commit_message=commit_message)

    @classmethod
    def from_pretrained(
        cls: type[Model],
        source: str | Path,
        *,
        revision: str | None = None,
        token: str | None = None,
        local_files_only: bool = False,
    ) -> Model:
        """The model in a folder, or in the repository OWNER/NAME of the hub where there is no such folder.

        The latter connects, unless `local_files_only` asks for what is there already. In evaluation mode.
        """
        folder = Path(source)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            found = snapshot_download(
                str(source), revision=revision, token=token, local_files_only=local_files_only,
                allow_patterns=[CONFIG, WEIGHTS],
            )  # fmt: skip
            folder = Path(found)
        model = model_in_folder(folder)
        if not isinstance(model, cls):
            raise ValueError(f"{source} has a {type(model).__name__}, not a {cls.__name__}")
        return model

    def config(self) -> dict[str, Any]:
        """config.json: what the model is, and how timm shows it pictures."""
        if self.made_as is None:
            raise ValueError(
                "only models that nearsight.create_model made know their name and arguments, which a folder is to hold"
            )
        from .registry import arguments_of

        name, arguments = self.made_as
        now = {"num_classes": self.num_classes, "img_size": self.img_size}  # heads and sizes may have been changed
        arguments = {**arguments, **{key: value for key, value in now.items() if key in arguments_of(name)}}
        return config_of(PREFIX + name, arguments, timm_config(self))


def config_of(architecture: str, arguments: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
    """config.json as timm reads it."""
    return {
        "architecture": architecture,
        "num_classes": shown["num_classes"],
        "model_args": dict(arguments),
        "pretrained_cfg": dict(shown),
        "library_name": "nearsight",
        "library_version": version("nearsight"),
    }


def timm_config(model: nn.Module) -> dict[str, Any]:
    """What timm's `pretrained_cfg` says of a network, besides its weights."""
    names = [name for name, _ in model.named_parameters()]
    size, is_map = tuple(model.img_size), "fc.weight" in names or hasattr(model, "avgpool")  # type: ignore[arg-type]
    first = next((name for name in names if name.startswith(("patch_embed.", "stem."))), "")
    heads = [head for head in ("head", "head_dist", "fc") if f"{head}.weight" in names]
    return {
        "input_size": (model.in_chans, *size),
        "pool_size": (size[0] // model.stride, size[1] // model.stride) if is_map else None,
        "num_classes": model.num_classes,
        **preprocessing_of(model)._asdict(),
        "crop_pct": 0.875,
        "crop_mode": "center",
        "fixed_input_size": False,
        "first_conv": first.removesuffix(".weight") if first.endswith(".weight") else (),
        "classifier": heads[0] if len(heads) == 1 else tuple(heads),
    }


def save_folder(model: nn.Module, folder: str | Path, config: Mapping[str, Any]) -> Path:
    """Write config.json and model.safetensors into a folder, which is made."""
    from safetensors.torch import save

    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    (path / WEIGHTS).write_bytes(save(tensors, metadata={"format": "pt"}))  # save_file lets nobody else read it
    (path / CONFIG).write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def push_folder(
    folder: str | Path, repo_id: str, *, private: bool | None, token: str | None, commit_message: str
) -> str:
    """Upload a folder to the hub, into a repository that is made where there is none. Connects."""
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    name = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    return str(api.upload_folder(repo_id=name, folder_path=folder, commit_message=commit_message))


def is_saved(folder: str | Path) -> bool:
    """Whether a folder is one that `save_pretrained` or timm writes."""
    return (Path(folder) / CONFIG).is_file() and (Path(folder) / WEIGHTS).is_file()


def read_config(folder: str | Path) -> dict[str, Any]:
    """config.json of a folder, with a name and arguments; a ValueError says what is wrong with it."""
    path = Path(folder) / CONFIG
    try:
        config = json.loads(read_bytes(path, SETTINGS_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable JSON: {error}") from error
    config = config if isinstance(config, dict) else {}
    config.setdefault("model_args", {})
    config.setdefault("pretrained_cfg", {})
    if not isinstance(config.get("architecture"), str) or not all(
        isinstance(config[part], dict) for part in ("model_args", "pretrained_cfg")
    ):
        raise ValueError(f"{path} names no architecture with its model_args and pretrained_cfg")
    return config


def model_in_folder(folder: str | Path) -> nn.Module:
    """The model of ours that a folder holds, with its weights, in evaluation mode."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from .registry import create_model

    config = read_config(folder)
    name = config["architecture"]
    if not name.startswith(PREFIX):
        raise ValueError(f"{folder} has a {name!r:.80} of timm: take timm.create_model('local-dir:{folder}')")
    build = partial(create_model, name.removeprefix(PREFIX), **config["model_args"])
    check_size(build, f"the model of {folder}")
    model = build()
    try:
        check_plain_file(Path(folder) / WEIGHTS, WEIGHT_BYTES)
        model.load_state_dict(load_file(Path(folder) / WEIGHTS))
    except (OSError, RuntimeError, SafetensorError, ValueError) as error:
        raise ValueError(f"the weights of {folder} do not fit its config.json: {error}") from error
    shown = Preprocessing.of_config(config["pretrained_cfg"])
    model.pretrained_cfg = {**config["pretrained_cfg"], **shown._asdict()}  # type: ignore[assignment]
    return model.eval()
