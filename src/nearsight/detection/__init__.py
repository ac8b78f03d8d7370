"""Object detection, complete: boxes, readers, model, loss, mAP, recipe, report, use."""

from __future__ import annotations

from dataclasses import dataclass

from nearsight.detection.recipe import DETECTION_RECIPES, DetectionRecipe
from nearsight.recipes.fields import check_fields, option
from nearsight.tasks import TaskKind, imported


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """What the evaluation of a detector writes."""

    results: str = option("", "also write the detections to this file, in COCO's results format")


MIN_SCORE = 0.3  # of boxes that are shown


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """What a detector draws, and where."""

    out: str = option("predictions", "folder for the drawn pictures and results.json")
    min_score: float = option(MIN_SCORE, "smallest score that is drawn and written", low=0, high=1)

    def __post_init__(self) -> None:
        check_fields(self)


def _models() -> list[str]:
    from nearsight.models.registry import backbone_of, list_models

    return [name for name in list_models() if backbone_of(name) is not None]


KIND = TaskKind(
    name="detection",
    help="images with boxes: a detector",
    data="a COCO, Pascal VOC or YOLO folder or archive, or `bccd`, which comes with nearsight",
    recipe=DetectionRecipe,
    recipes=DETECTION_RECIPES,
    default_recipe="retinanet_small",
    selection="mAP",
    eval_options=EvalOptions,
    predict_options=PredictOptions,
    models=_models,
    recognises=imported("nearsight.detection.sources:has_boxes"),
    open_task=imported("nearsight.detection.task:DetectionTask"),
    complete_recipe=imported("nearsight.detection.model:with_weights"),
    evaluate=imported("nearsight.detection.use:evaluate"),
    load=imported("nearsight.detection.use:Detector"),
    inspect=imported("nearsight.detection.use:DetectionRun"),
)
