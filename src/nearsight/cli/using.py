"""`nearsight eval` and `nearsight predict`, for runs of every task."""

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from nearsight.cli.options import Device, Json, Raw, Run, Words, call_verb, given_options, read_words
from nearsight.reports.words import decimals, measured
from nearsight.runs.metrics_log import json_line
from nearsight.tasks import Evaluation, Prediction, TaskKind, all_kinds, task_kind, task_names, task_of_data
from nearsight.text import LONGEST_PATH, printable

_MOST_CLASSES = 40
_CSV_HELP = "Also write the values to this CSV file, with a row for each class."


def evaluate(*words: Raw) -> int:
    """Measure a run's model on a dataset."""
    read = read_words(words)
    kinds = _kinds_of_run(read)
    usual = ", ".join(f"{kind.eval_split} ({kind.name})" for kind in kinds)

    def measure(
        run: Run,
        data: str = "",
        /,
        *,
        split: Annotated[
            str, Parameter(help=f"train, val or test; by default, where there is one, {usual}.", show_default=False)
        ] = "",
        device: Device = "auto",
        json: Json = False,
        table: Annotated[Path | None, Parameter(name="--csv", help=_CSV_HELP)] = None,
        options: Any = None,
    ) -> int:
        """Measure a run's selected weights on its own data or on DATA.

        Parameters
        ----------
        data
            Other data of the same kind, from which no validation split is taken; the run's own data by default.
        """
        from nearsight.runs.exits import reported
        from nearsight.runs.folder import RunFolder

        with reported():
            chosen = kinds[0].eval_options(**given_options(options))
            suited = task_of_data(data) if data else kinds[0]
            if suited.name not in (kinds[0].name, task_names()[0]):
                raise ValueError(f"{data} is for {suited.name}, and {run} is a run of {kinds[0].name}")
            found = kinds[0].evaluate(run, data, split=split, device=device, options=chosen)
            if not RunFolder(run).was_trained_on(found.fingerprints):
                warning = f"warning: {RunFolder(run).recipe().data} has changed since the run was trained on it"
                found = replace(found, notes=(*found.notes, warning))
        if table is not None:
            write_evaluation(found, table)
        print_evaluation(found, as_json=json)
        return 0

    return call_verb("eval", "RUN [DATA]", measure, read, kinds, "eval_options", [k.eval_options() for k in kinds])


def predict(*words: Raw) -> int:
    """Predict with a run's model what pictures show."""
    read = read_words(words)
    kinds = _kinds_of_run(read)

    def look(
        run: Run,
        images: Annotated[list[Path], Parameter(consume_multiple=True)],
        /,
        *,
        device: Device = "auto",
        json: Json = False,
        options: Any = None,
    ) -> int:
        """Predict with a run's selected weights, for each picture.

        Parameters
        ----------
        images
            Picture files, or folders of them.
        """
        return predict_and_tell(kinds[0], run, images, given_options(options), device=device, json=json)

    values = [kind.predict_options() for kind in kinds]
    return call_verb("predict", "RUN IMAGES...", look, read, kinds, "predict_options", values)


def _kinds_of_run(words: Words) -> Sequence[TaskKind]:
    """The task of the run; all of them where no run is named, for the help."""
    if not words.positional:
        return all_kinds()
    from nearsight.export.loading import task_of  # not for help: it imports torch

    return [task_kind(task_of(Path(words.positional)))]


def predict_and_tell(
    kind: TaskKind, run: Path, images: Sequence[Path], options: dict[str, Any], *, device: str, json: bool = False
) -> int:
    """Print predictions for pictures; 1 if one of them could not be read."""
    from nearsight.images.files import PassedOver, picture_files
    from nearsight.runs.exits import reported

    chosen = kind.predict_options(**options)
    with reported():
        passed = PassedOver()
        files = list(picture_files(images, passed))  # a mistake in their names is told before the run is opened
        for note in passed.notes(len(files)):
            print(note, file=sys.stderr)
        predictor = kind.load(run, device=device)
        readable = print_predictions(predictor.predict(files, chosen), as_json=json)
    for note in () if json else predictor.notes:
        print(note)
    return 0 if readable else 1


def print_evaluation(found: Evaluation, *, as_json: bool) -> None:
    """Measured values, and what there is to say about the images they were measured on."""
    if as_json:
        classes = {"classes": found.per_class} if found.per_class else {}
        notes = list(found.notes)
        print(json_line({"data": found.origin, "split": found.split, **found.values, **classes, "notes": notes}))
        return
    print(found.origin)
    for words in with_intervals(found.values):
        print(f"{found.split}: {words}")
    ranked = sorted(found.per_class.items(), key=lambda item: next(iter(item[1].values())))
    shown = found.per_class.items() if len(ranked) <= _MOST_CLASSES else ranked[:_MOST_CLASSES]
    for label, values in shown:
        print(f"{printable(label)}: {', '.join(with_intervals(values))}")
    if len(ranked) > _MOST_CLASSES:
        print(f"these are the {_MOST_CLASSES} worst of {len(ranked)} classes; --csv FILE or --json has all")
    for note in found.notes:
        print(printable(note))


def with_intervals(values: Mapping[str, float]) -> list[str]:
    """Values as a person reads them; `x_low` and `x_high` are the ends of the 95 % interval of `x`."""
    ends = {f"{name}_{end}" for name in values for end in ("low", "high")}
    told = []
    for name, value in values.items():
        if name in ends:
            continue
        interval = [f"{values[end]:.{decimals(name)}f}" for end in (f"{name}_low", f"{name}_high") if end in values]
        told.append(measured(name, value) + (f" [{', '.join(interval)}]" if interval else ""))
    return told


def write_evaluation(found: Evaluation, path: Path) -> None:
    """A CSV file: a row of all images, whose class is empty, and one of each class."""
    rows = [{"class": "", **found.values}, *({"class": name, **values} for name, values in found.per_class.items())]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    try:
        with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            table = csv.DictWriter(file, columns)
            table.writeheader()
            table.writerows(rows)
    except OSError as error:
        raise ValueError(f"--csv: {path} cannot be written ({error.strerror}); choose another file") from error


def print_predictions(predictions: Iterable[Prediction], *, as_json: bool) -> bool:
    """One JSON object per picture as they come, or a table. Whether all pictures could be read."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    columns = (Column(name, overflow="fold") for name in ("picture", "prediction"))  # a path cut short is of no use
    table = Table(*columns)
    readable = True
    for one in predictions:
        readable = readable and not one.problem
        if as_json:
            print(json_line(one.record), flush=True)
        else:
            table.add_row(escape(printable(one.name, LONGEST_PATH)), escape(one.words))
    if not as_json:
        Console().print(table)
    return readable
