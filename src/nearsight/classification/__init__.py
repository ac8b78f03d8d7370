"""Image classification, complete: recipe, data, model, loss, report, use."""

from __future__ import annotations

from dataclasses import dataclass

from nearsight.classification.recipe import CLASSIFICATION_RECIPES, ClassificationRecipe
from nearsight.recipes.fields import check_fields, option
from nearsight.tasks import TaskKind, imported


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Where the images may come from."""

    download: bool = option(False, "known datasets may be fetched from the network", connects=True)


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """What is printed for each picture."""

    top: int = option(5, "how many classes to show for each picture", low=1)

    def __post_init__(self) -> None:
        check_fields(self)


def _models() -> list[str]:
    from nearsight.models.registry import backbone_of, list_models

    return [name for name in list_models() if backbone_of(name) is None]


KIND = TaskKind(
    name="classification",
    help="images with classes: a classifier",
    data="a folder of class folders, a table of names and labels (.csv, .tsv, .txt, .parquet) or a folder with one, "
    ".npz, .parquet, shards, an archive, a known dataset, or `clothing`, which comes "
    "with nearsight",
    recipe=ClassificationRecipe,
    recipes=CLASSIFICATION_RECIPES,
    default_recipe="small",
    selection="top1",
    percents={
        "top1": "top-1",
        "top5": "top-5",
        "balanced": "balanced accuracy",
        "f1": "macro F1",
        "recall": "recall",
        "precision": "precision",
    },
    eval_split="test",
    eval_options=EvalOptions,
    predict_options=PredictOptions,
    models=_models,
    recognises=lambda source: True,
    complete_recipe=imported("nearsight.classification.model:with_weights"),
    open_task=imported("nearsight.classification.task:ClassificationTask"),
    evaluate=imported("nearsight.classification.use:evaluate"),
    load=imported("nearsight.classification.use:Classifier"),
    inspect=imported("nearsight.classification.use:ClassificationRun"),
)
