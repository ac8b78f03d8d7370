"""Settings from a stranger are data: they make no library fetch, read or write anything."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from strangers import CLASSES, make_run
from verbs import nearsight

from nearsight.classification.distillation import load_teacher
from nearsight.classification.model import timm_model
from nearsight.classification.recipe import ClassificationRecipe
from nearsight.explorer.sources import open_source
from nearsight.recipes.files import apply_changes, named_recipe, resolve_recipe, thaw
from nearsight.recipes.foreign import connecting
from nearsight.recipes.recipe import Recipe
from nearsight.reports.compare import compare_runs
from nearsight.tasks import all_kinds

TINY_VIT = {"depth": 1, "embed_dim": 24, "num_heads": 3}
EVIL = [
    ("vit_tiny_patch16_224", {"checkpoint_path": "evil.pth"}, "must leave out 'checkpoint_path'"),
    ("vit_tiny_patch16_224", {"pretrained": "evil.pth"}, "must leave out 'pretrained'"),
    ("vit_tiny_patch16_224", {"pretrained_cfg": {"url": "http://127.0.0.1/w"}}, "must leave out 'pretrained_cfg'"),
    ("vit_tiny_patch16_224", {"pretrained_cfg_overlay": {"url": "x"}}, "must leave out 'pretrained_cfg_overlay'"),
    ("vit_tiny_patch16_224", {"cache_dir": "written"}, "must leave out 'cache_dir'"),
    ("vit_tiny_patch16_224", {"features_only": True}, "with the argument 'features_only'; its class takes .*depth"),
    ("vit_tiny_patch16_224", {"pretrained_strict": False}, "with the argument 'pretrained_strict'"),
    ("vit_tiny_patch16_224", {"weight_init": "../evil"}, "weight_init must be a number, a word"),
    ("vit_tiny_patch16_224", {"norm_layer": "http://127.0.0.1/x"}, "norm_layer must be a number, a word"),
    ("vit_tiny_patch16_224", {"depth": {"file": 3}}, "depth must be a number, a word"),
    ("hf-hub:evil/model", {}, "is no name of timm's list"),
    ("hf_hub:evil/model", {}, "is no name of timm's list"),
    ("local-dir:/etc", {}, "is no name of timm's list"),
    ("evil/model", {}, "is no name of timm's list"),
]


@pytest.fixture(autouse=True)
def attempts(monkeypatch, tmp_path):
    """The network is not there; what was tried is listed. Files are written to the current folder, if at all."""
    tried: list[object] = []

    def refuse(*arguments, **named):
        tried.append(arguments)
        raise OSError("there is no network here")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield tried
    assert tried == []
    assert list(Path.cwd().iterdir()) == []


@pytest.fixture
def picture(tmp_path) -> Path:
    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.png")
    return tmp_path / "red.png"


def _evaluated(run, picture):
    return nearsight("eval", run)


def _compared(run, picture):
    return compare_runs([run, run.parent / "other"])


def _asked(run, picture):
    recipe = ClassificationRecipe(model="convit_nano_32", image_size=32, teacher=str(run), distillation="hard")
    return load_teacher(recipe, CLASSES)


USES = {
    "predict": lambda run, picture: nearsight("predict", run, picture),
    "eval": _evaluated,
    "inspect": lambda run, picture: nearsight("inspect", run),
    "explore": lambda run, picture: open_source(str(run)).load(),
    "resume": lambda run, picture: nearsight("resume", run),
    "compare": _compared,
    "teacher": _asked,
}


def _refusal(use, run, picture, capsys) -> str:
    """What a use of a run says when it ends in a mistake."""
    with pytest.raises((ValueError, SystemExit)) as caught:
        USES[use](run, picture)
    return str(caught.value) if isinstance(caught.value, ValueError) else capsys.readouterr().err


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(("model", "options"), [("vit_tiny_patch16_224", EVIL[0][1]), ("hf-hub:evil/model", {})])
def test_every_use_of_a_run_is_behind_the_gate(use, model, options, tmp_path, picture, capsys):
    run = make_run(tmp_path / "run", model=f"timm:{model}", model_options=options)
    words = _refusal(use, run, picture, capsys)
    assert "must leave out 'checkpoint_path'" in words or "is no name of timm's list" in words
    assert str(run) in words


@pytest.mark.parametrize(("model", "options", "words"), EVIL)
def test_what_settings_may_not_ask_of_timm(model, options, words, tmp_path):
    run = make_run(tmp_path / "run", model=f"timm:{model}", model_options=options)
    with pytest.raises(ValueError, match=words):
        open_source(str(run)).load()


def test_a_checkpoint_that_timm_would_read_is_never_opened(tmp_path, picture):
    evil = tmp_path / "evil.pth"
    torch.save({"weights": torch.zeros(1)}, evil)
    before = evil.stat().st_atime_ns
    run = make_run(tmp_path / "run", model="timm:vit_tiny_patch16_224", model_options={"checkpoint_path": str(evil)})
    with pytest.raises(ValueError, match="checkpoint_path"):
        nearsight("predict", run, picture)
    assert evil.stat().st_atime_ns == before


def test_names_that_timm_looks_up_elsewhere_are_refused_by_its_builder_too():
    for name in ("hf-hub:evil/model", "local-dir:/etc", "../vit", "a.b.c", ""):
        with pytest.raises(ValueError, match="is no name of timm's list"):
            timm_model(name)


def test_a_run_of_a_timm_model_is_used_as_ever(tmp_path, picture, capsys):
    model = timm_model("vit_tiny_patch16_224", num_classes=3, img_size=32, **TINY_VIT)
    settings = {"model": "timm:vit_tiny_patch16_224", "model_options": {**TINY_VIT, "global_pool": "token"}}
    run = make_run(tmp_path / "run", weights=model.state_dict(), **settings)
    assert nearsight("predict", run, picture, "--json") == 0
    assert '"shoes"' in capsys.readouterr().out


@pytest.mark.parametrize("use", ["eval", "resume"])
def test_a_download_that_a_run_was_once_allowed_is_not_allowed_for_ever(use, tmp_path, picture, capsys):
    run = make_run(tmp_path / "run", data=f"cifar10:{tmp_path / 'nothing'}", download=True)
    assert "allow the download (--download)" in _refusal(use, run, picture, capsys)


def test_a_teacher_of_public_weights_is_fetched_only_where_the_command_says_so(tmp_path, picture, capsys):
    run = make_run(tmp_path / "run", teacher="timm:resnet10t", distillation="hard", download=True)
    assert "timm:resnet10t are not on this machine; --download" in _refusal("resume", run, picture, capsys)


def test_no_file_gives_leave_to_connect(tmp_path):
    run = make_run(tmp_path / "run", download=True, wandb=True)
    recipe = thaw(run / "config.yaml")
    assert recipe.download is False
    assert recipe.wandb is False
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"recipe": "small", "download": True}))
    with pytest.raises(ValueError, match=r"mine\.yaml: download: a file cannot make a command connect; add --download"):
        resolve_recipe("", file)
    assert resolve_recipe("", file, {"download": True}).download is True
    assert resolve_recipe("", file, {"download": False}).download is False
    assert apply_changes(named_recipe("small"), {"wandb": True}, where="here").wandb is True


def test_fields_that_connect_say_so():
    """A field whose help speaks of the network, or of a service in it, is declared to connect."""
    for kind in all_kinds():
        for field in dataclasses.fields(kind.recipe):
            told = any(word in field.metadata["help"].lower() for word in ("network", "weights & biases", "mlflow"))
            assert told == (field.name in connecting(kind.recipe)), field.name
    assert connecting(Recipe) == ["wandb"]
