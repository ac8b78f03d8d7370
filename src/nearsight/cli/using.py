"""`nearsight eval` and `nearsight predict`, for runs of every task."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from nearsight.cli.options import given_options, option_class
from nearsight.cli.parameters import Device, Json, Run
from nearsight.cli.words import Raw, Words, all_kinds, call_verb, read_words
from nearsight.tasks import TaskKind, task_kind


def evaluate(*words: Raw) -> int:
    """Find the task of the run, and measure it with its options."""
    read = read_words(words)
    kinds = _kinds_of_run(read)
    options = option_class(*((kind.eval_options, kind.eval_options()) for kind in kinds))
    return call_verb("eval", "RUN [DATA]", _evaluate_verb(kinds), options, read, kinds, "eval_options")


def predict(*words: Raw) -> int:
    """Find the task of the run, and have it look at pictures."""
    read = read_words(words)
    kinds = _kinds_of_run(read)
    options = option_class(*((kind.predict_options, kind.predict_options()) for kind in kinds))
    return call_verb("predict", "RUN IMAGES...", _predict_verb(kinds), options, read, kinds, "predict_options")


def _kinds_of_run(words: Words) -> Sequence[TaskKind]:
    """The task of the run; all of them where no run is named, for the help."""
    if not words.positional:
        return all_kinds()
    from nearsight.runs.folder import RunFolder  # not for help: it imports torch

    return [task_kind(RunFolder(words.positional).recipe().task)]


def _evaluate_verb(kinds: Sequence[TaskKind]) -> Any:
    def evaluate(
        run: Run,
        data: str = "",
        /,
        *,
        split: str = "",
        device: Device = "auto",
        json: Json = False,
        options: Any = None,
    ) -> int:
        """Measure a run's selected weights on its own data or on DATA.

        Parameters
        ----------
        data
            Another source of images with the same classes, of which nothing is set aside; the run's own by default.
        split
            train, val or test; by default test (classification) or val (detection) where there is one.
        """
        from nearsight.cli.output import print_evaluation
        from nearsight.runs.exits import reported

        (kind,) = kinds
        with reported():
            chosen = kind.eval_options(**given_options(options))
            found = kind.evaluate(run, data, split=split, device=device, options=chosen)
        print_evaluation(found, as_json=json)
        return 0

    return evaluate


def _predict_verb(kinds: Sequence[TaskKind]) -> Any:
    def predict(
        run: Run,
        images: Annotated[list[Path], Parameter(consume_multiple=True)],
        /,
        *,
        device: Device = "auto",
        json: Json = False,
        options: Any = None,
    ) -> int:
        """Have a run's selected weights look at pictures: their classes, or the objects in them.

        Parameters
        ----------
        images
            Picture files, or folders of them.
        """
        (kind,) = kinds
        return predict_and_tell(kind, run, images, given_options(options), device=device, json=json)

    return predict


def predict_and_tell(
    kind: TaskKind, run: Path, images: Sequence[Path], options: dict[str, Any], *, device: str, json: bool = False
) -> int:
    """Print what a run says of pictures; 1 where one of them could not be read."""
    from nearsight.cli.output import print_predictions
    from nearsight.images.decode import picture_files
    from nearsight.runs.exits import reported

    chosen = kind.predict_options(**options)
    with reported():
        files = list(picture_files(images))  # a mistake in their names is told before the run is opened
        predictor = kind.load(run, device=device)
        readable = print_predictions(predictor.predict(files, chosen), as_json=json)
    for note in () if json else predictor.notes:
        print(note)
    return 0 if readable else 1
