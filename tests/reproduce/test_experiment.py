"""Experiment files: what they become, and what is refused in them."""

import pytest
import torch
from tiny_experiment import EXPERIMENT, write_experiment

from nearsight.classification.model import build_classifier
from nearsight.reproduce.experiment import experiment_names, load_experiment


@pytest.mark.parametrize("name", experiment_names())
def test_every_experiment_can_be_read(name):
    experiment = load_experiment(name)
    for scale in experiment.scales:
        runs = experiment.runs(scale)
        assert len({run.name for run in runs}) == len(runs)


def test_all_rows_and_fractions_of_a_seed_come_before_the_next_seed(tmp_path):
    names = [run.name for run in load_experiment(str(write_experiment(tmp_path))).runs("smoke")]
    assert names[:4] == ["deit-f50-s0", "convit-f50-s0", "deit-f100-s0", "convit-f100-s0"]
    assert names[4:] == [name.replace("s0", "s1") for name in names[:4]]


def test_every_run_has_the_same_number_of_samples_and_of_evaluations():
    run = load_experiment("sample_efficiency").run("cpu", "deit-f5-s0")
    length = run.length(44_959)
    per_epoch = 44_959 // run.recipe().batch
    steps, between = round(length["epochs"] * per_epoch), round(length["eval_every"] * per_epoch)
    assert steps == 10 * between
    assert steps * run.recipe().batch == pytest.approx(run.scale.samples, rel=0.01)


def test_rows_of_rates_differ_in_their_rate_alone():
    runs = load_experiment("sample_efficiency_rates").runs("cpu")
    base = load_experiment("sample_efficiency").run("cpu", "deit-f10-s0").changes()
    rates = {run.row.name: run.changes() for run in runs}
    assert {**rates["deit-0.0005"], "lr": 0, "seed": 0} == {**base, "lr": 0}
    assert rates["deit-0.002"]["lr"] == 2e-3


def test_a_scale_with_a_recipe_of_its_own_starts_from_it_alone():
    recipe = load_experiment("sample_efficiency").run("full", "convit-f100-s0").recipe()
    assert (recipe.model, recipe.image_size, recipe.mixup, recipe.batch) == ("convit_small", 224, 0.8, 1024)


def test_the_hash_is_of_what_is_learned(tmp_path):
    def hashes(text):
        return [run.hash() for run in load_experiment(str(write_experiment(tmp_path, text))).runs("smoke")]

    usual = hashes(EXPERIMENT)
    assert len(set(usual)) == len(usual)
    assert hashes(EXPERIMENT.replace("save_every: 10", "save_every: 5")) == usual
    for change in (("samples: 160", "samples: 320"), ("batch: 8", "batch: 16"), ("depth: 3", "depth: 4")):
        assert not set(hashes(EXPERIMENT.replace(*change))) & set(usual), change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("question:", "qestion:"), "unknown key 'qestion'; did you mean 'question'"),
        (("samples: 160, ", ""), "scale smoke: 'samples' is missing"),
        (("batch: 8", "bach: 8"), "there is no field 'bach'; did you mean 'batch'"),
        (("batch: 8", "epochs: 8"), "'epochs' is set by the run itself"),
        (("  smoke:", "  large:"), "the scales are smoke, cpu, gpu, full"),
        (("seeds: [0, 1]", "seeds: []"), "seeds: expected a list of one value or more"),
        (("seeds: [0, 1]", "seeds: [0], rows: [vit]"), "there is no row 'vit'; there are deit, convit"),
        (("title: gated", "title: gated, teacher: cnn"), "its teacher 'cnn' is no row"),
    ],
)
def test_a_fault_is_refused_by_name(tmp_path, change, words):
    with pytest.raises(ValueError, match=r"tiny") as caught:
        load_experiment(str(write_experiment(tmp_path, EXPERIMENT.replace(*change))))
    assert words in str(caught.value)


def test_an_unknown_experiment_is_refused_by_name():
    with pytest.raises(ValueError, match="there is no experiment 'tabel2'; there are"):
        load_experiment("tabel2")


@pytest.mark.parametrize("name", experiment_names())
def test_every_model_can_be_built(name):
    experiment = load_experiment(name)
    for scale in experiment.scales:
        for run in {run.row.name: run for run in experiment.runs(scale)}.values():
            with torch.device("meta"):
                model = build_classifier(run.recipe(), 100)
            assert model.num_classes == 100


def test_a_row_of_another_follows_it():
    ablation, base = load_experiment("gate_ablations").runs("cpu"), load_experiment("sample_efficiency")
    recipes = {run.row.name: run.recipe() for run in ablation}
    convit = base.run("cpu", "convit-f10-s0").recipe()
    options = {**convit.model_options, "conv_init": False}
    assert recipes["random_start"].with_changes(seed=0) == convit.with_changes(model_options=options)


def test_runs_in_which_nothing_is_changed_are_not_repeated():
    runs = {run.row.name: run for run in load_experiment("locality_strength").runs("cpu")}
    assert {name: run.experiment.name for name, run in runs.items() if not name.startswith(("gated", "alpha"))} == {
        "deit": "sample_efficiency",
        "convit": "sample_efficiency",
    }
    assert runs["alpha_2"].experiment.name == "locality_strength"
    taught = load_experiment("distillation").run("cpu", "convit_taught-f100-s0")
    assert taught.teacher.experiment.name == "sample_efficiency"
