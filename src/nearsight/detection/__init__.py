"""Object detection, whole: boxes, readers, model, loss, mAP, recipe, report, use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nearsight.detection.recipe import DetectionRecipe
from nearsight.detection.recipes import DETECTION_RECIPES
from nearsight.recipes.fields import check_fields, option
from nearsight.tasks import Evaluation, TaskKind

if TYPE_CHECKING:
    from nearsight.detection.inspection import DetectionRun
    from nearsight.detection.task import DetectionTask
    from nearsight.detection.use import Detector
    from nearsight.runs.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """What the evaluation of a detector writes."""

    results: str = option("", "also write the detections to this file, in COCO's results format")


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """What a detector draws, and where."""

    out: str = option("predictions", "folder for the drawn pictures and results.json")
    min_score: float = option(0.3, "smallest score that is drawn and written", low=0, high=1)

    def __post_init__(self) -> None:
        check_fields(self)


def _recognises(source: str) -> bool:
    from nearsight.detection.sources import has_boxes

    return has_boxes(source)


def _models() -> list[str]:
    from nearsight.models.registry import backbone_of, list_models

    return [name for name in list_models() if backbone_of(name) is not None]


def _open_task(recipe: DetectionRecipe, *, fit_batch: bool = False) -> DetectionTask:
    from nearsight.detection.task import DetectionTask

    return DetectionTask(recipe, fit_batch=fit_batch)


def _complete_recipe(recipe: DetectionRecipe, run: RunFolder) -> DetectionRecipe:
    from nearsight.detection.model import with_backbone_options

    return with_backbone_options(recipe, run)


def _evaluate(*arguments: Any, **named: Any) -> Evaluation:
    from nearsight.detection.use import evaluate

    return evaluate(*arguments, **named)


def _load(*arguments: Any, **named: Any) -> Detector:
    from nearsight.detection.use import Detector

    return Detector(*arguments, **named)


def _inspect(run: RunFolder) -> DetectionRun:
    from nearsight.detection.inspection import DetectionRun

    return DetectionRun(run)


KIND = TaskKind(
    name="detection",
    help="images with boxes: a detector",
    recipe=DetectionRecipe,
    recipes=DETECTION_RECIPES,
    default_recipe="retinanet_small",
    selection="mAP",
    eval_options=EvalOptions,
    predict_options=PredictOptions,
    models=_models,
    recognises=_recognises,
    open_task=_open_task,
    complete_recipe=_complete_recipe,
    evaluate=_evaluate,
    load=_load,
    inspect=_inspect,
)
