"""Exported models compute what the run's model computes, in other processes and libraries; and `nearsight.load`."""

import json
import subprocess
import sys

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import nearsight
import nearsight.timm
from nearsight.cli.verbs import app
from nearsight.detection.outputs import postprocess
from nearsight.detection.portable import BoxesOf
from nearsight.export import FORMATS, checking, export
from nearsight.models import ResNet, VisionTransformer


@pytest.fixture(scope="module")
def hub(run, tmp_path_factory):
    return export(run, "hub", tmp_path_factory.mktemp("hub") / "colours-hub").path


def test_load_answers_for_every_kind_of_picture(run, pictures):
    model, file = nearsight.load(run, device="cpu"), pictures / "red" / "1.png"
    assert model.classes == ("blue", "green", "red")
    answer = model(file)
    assert sum(answer.values()) == pytest.approx(1)
    assert list(answer.values()) == sorted(answer.values(), reverse=True)
    array = np.asarray(Image.open(file))
    for again in model([str(file), Image.open(file), array]):
        assert again == pytest.approx(answer)
    assert model([]) == []
    assert len(model(file, top=1)) == 1
    grey = array[:, :, 0]
    assert model(grey) == pytest.approx(model(Image.fromarray(grey)))


def test_load_says_what_is_wrong(run, tmp_path):
    model = nearsight.load(run, device="cpu")
    with pytest.raises(ValueError, match=r"an array uint8 \[height, width, 3\]"):
        model(np.zeros((4, 4)))
    with pytest.raises(ValueError, match=r"nothing\.png"):
        model("nothing.png")
    with pytest.raises(ValueError, match="is no folder"):
        nearsight.load(tmp_path / "nothing")


def test_a_hub_folder_answers_in_another_process_and_on_the_command_line(run, hub, pictures, tmp_path):
    file = pictures / "green" / "2.png"
    script = f"import json, nearsight; print(json.dumps(nearsight.load({str(hub)!r}, device='cpu')({str(file)!r})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert json.loads(done.stdout) == pytest.approx(nearsight.load(run, device="cpu")(file)), done.stderr
    assert app(["predict", str(hub), str(file), "--json"], result_action="return_value") == 0


def test_the_card_has_figures_with_their_number_and_no_paths(hub, run, pictures):
    card = (hub / "README.md").read_text()
    assert "| val, which selected these weights | top-1" in card
    assert "n = 10, [" in card
    assert "TODO: the licence" in card
    assert str(pictures.parent) not in card
    assert str(run.parent) not in card


def test_a_hub_folder_opens_in_timm(run, hub):
    theirs = timm.create_model(f"local-dir:{hub}", pretrained=True).eval()
    images = torch.randn(2, 3, 32, 40)
    own = nearsight.load(run, device="cpu")._predictor.portable().forward
    torch.testing.assert_close(theirs(images), own(images), atol=1e-5, rtol=1e-4)


def test_safetensors_and_a_graph_of_torch(run, tmp_path):
    assert export(run, "safetensors", tmp_path / "w.safetensors").notes == ("read again: the same to the bit",)
    made = export(run, "torch-export", tmp_path / "x.pt2")
    extra = {"nearsight.json": ""}
    graph = torch.export.load(made.path, extra_files=extra).module()
    assert json.loads(json.loads(extra["nearsight.json"])["classes"]) == ["blue", "green", "red"]
    assert graph(torch.zeros(1, 3, 48, 64)).shape == (1, 3)


def test_a_transformer_in_onnx_at_another_size_and_batch(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    made = export(run, "onnx", tmp_path / "x.onnx")
    session = onnxruntime.InferenceSession(str(made.path), providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == ["blue", "green", "red"]
    assert json.loads(about["preprocessing"])["input_size"] == [3, 32, 32]
    images = torch.randn(5, 3, 40, 64)
    own = nearsight.load(run, device="cpu")._predictor.portable().forward
    (logits,) = session.run(None, {"images": images.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), own(images).detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_eight_bits_tell_both_accuracies(run, tmp_path):
    pytest.importorskip("onnxruntime")
    notes = export(run, "onnx-int8", tmp_path / "x.onnx").notes
    assert "on the 10 validation images: float32" in notes[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["x.onnx"]


def test_nothing_is_left_where_the_result_differs_and_nothing_is_overwritten(run, tmp_path, monkeypatch):
    def wrong(source, path):
        path.write_text("half")
        return [
            checking.compare(source, lambda images: [source.model.forward(images) + 1e-2], [torch.randn(1, 3, 32, 32)])
        ]

    monkeypatch.setitem(FORMATS, "torch-export", FORMATS["torch-export"]._replace(write=wrong))
    with pytest.raises(ValueError, match=r"differs from the model by 1\.0e-02"):
        export(run, "torch-export", tmp_path / "x.pt2")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "x.pt2").write_text("mine")
    with pytest.raises(ValueError, match="is there already"):
        export(run, "torch-export", tmp_path / "x.pt2")
    with pytest.raises(ValueError, match="to must be one of onnx"):
        export(run, "caffe", tmp_path / "y")


def test_saved_models_are_read_again_with_changed_heads_and_sizes(tmp_path):
    model = nearsight.create_model("convit_nano_32", depth=3, num_classes=7).eval()
    model.reset_classifier(2)
    model.set_input_size((32, 48))
    again = VisionTransformer.from_pretrained(model.save_pretrained(tmp_path / "saved"))
    images = torch.randn(1, 3, 32, 48)
    assert torch.equal(again(images), model(images))
    with pytest.raises(ValueError, match="has a VisionTransformer, not a ResNet"):
        ResNet.from_pretrained(tmp_path / "saved")
    made_by_hand = ResNet(layers=(1, 1, 1, 1))
    with pytest.raises(ValueError, match=r"nearsight\.create_model made"):
        made_by_hand.save_pretrained(tmp_path / "other")


def test_pushing_uploads_what_was_saved(monkeypatch):
    import huggingface_hub

    calls = []

    class Api:
        def __init__(self, token=None):
            calls.append(token)

        def create_repo(self, name, **options):
            calls.append((name, options))
            return type("Repo", (), {"repo_id": name})()

        def upload_folder(self, *, repo_id, folder_path, commit_message):
            calls.append(sorted(path.name for path in folder_path.iterdir()) if hasattr(folder_path, "iterdir") else [])
            return "address"

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    model = nearsight.create_model("convit_nano_32", depth=3)
    assert model.push_to_hub("me/name", private=True, token="secret") == "address"
    assert calls[:2] == ["secret", ("me/name", {"private": True, "exist_ok": True})]


def test_boxes_in_one_list_are_those_of_each_image():
    torch.manual_seed(0)
    model = nearsight.create_model(
        "retinanet_resnet26", num_classes=3, layers=(1, 1, 1, 1), width_multiplier=0.25, channels=32, head_depth=1
    ).eval()
    images = torch.randn(3, 3, 96, 128)
    boxes, scores, labels, image = BoxesOf(model)(images)
    for index, one in enumerate(postprocess(model(images), [(96, 128)] * 3, score_threshold=0.0)):
        own = image == index
        assert own.sum() == len(one.boxes) == 100
        torch.testing.assert_close(scores[own], one.scores)
        torch.testing.assert_close(boxes[own], one.boxes)
        assert torch.equal(labels[own], one.labels)


def test_a_strangers_folder_is_data(hub, tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((hub / "model.safetensors").read_bytes())
    config = json.loads((hub / "config.json").read_text())
    for changes, said in (
        ({"architecture": "local-dir:/etc"}, "is no name of timm's list"),
        ({"architecture": "resnet18", "model_args": {"pretrained": True}}, "pretrained"),
        ({"label_names": "abc"}, "label_names"),
        ({"pretrained_cfg": {**config["pretrained_cfg"], "std": [0, 1, 1]}}, "std must be of positive numbers"),
        ({"pretrained_cfg": {**config["pretrained_cfg"], "input_size": [3, 10**9, 10**9]}}, "input_size"),
        ({"model_args": {"depth": 2}}, "num_gated_blocks|Unexpected|does not fit"),
    ):
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises((ValueError, RuntimeError), match=said):
            nearsight.load(folder, device="cpu")


def test_a_saved_model_keeps_how_its_pictures_are_shown(tmp_path):
    from nearsight.images.preprocessing import Preprocessing, preprocessing_of
    from nearsight.models.saving import model_in_folder
    from nearsight.weights import show_as

    shown = Preprocessing((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), "bilinear")
    model = nearsight.create_model("deit_nano_32", width=18, depth=1, num_classes=2)
    show_as(model, shown)
    model.save_pretrained(tmp_path / "saved")
    assert preprocessing_of(model_in_folder(tmp_path / "saved")) == shown
    modes = {path.stat().st_mode for path in (tmp_path / "saved").iterdir()}
    assert len(modes) == 1, "weights may be read by whoever may read config.json"
