"""Image classification, whole: recipe, data, model, loss, report, use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nearsight.classification.recipe import ClassificationRecipe
from nearsight.classification.recipes import CLASSIFICATION_RECIPES
from nearsight.recipes.fields import check_fields, option
from nearsight.tasks import Evaluation, TaskKind

if TYPE_CHECKING:
    from nearsight.classification.inspection import ClassificationRun
    from nearsight.classification.task import ClassificationTask
    from nearsight.classification.use import Classifier
    from nearsight.runs.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Classification has none of its own."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """What a classifier says of each picture."""

    top: int = option(5, "how many classes to show for each picture", low=1)

    def __post_init__(self) -> None:
        check_fields(self)


def _models() -> list[str]:
    from nearsight.models.registry import backbone_of, list_models

    return [name for name in list_models() if backbone_of(name) is None]


def _open_task(recipe: ClassificationRecipe, *, fit_batch: bool = False) -> ClassificationTask:
    from nearsight.classification.task import ClassificationTask

    return ClassificationTask(recipe, fit_batch=fit_batch)


def _evaluate(*arguments: Any, **named: Any) -> Evaluation:
    from nearsight.classification.use import evaluate

    return evaluate(*arguments, **named)


def _load(*arguments: Any, **named: Any) -> Classifier:
    from nearsight.classification.use import Classifier

    return Classifier(*arguments, **named)


def _inspect(run: RunFolder) -> ClassificationRun:
    from nearsight.classification.inspection import ClassificationRun

    return ClassificationRun(run)


KIND = TaskKind(
    name="classification",
    help="images with classes: a classifier",
    recipe=ClassificationRecipe,
    recipes=CLASSIFICATION_RECIPES,
    default_recipe="small",
    selection="top1",
    eval_options=EvalOptions,
    predict_options=PredictOptions,
    models=_models,
    recognises=lambda source: True,
    open_task=_open_task,
    evaluate=_evaluate,
    load=_load,
    inspect=_inspect,
)
