"""`nearsight export`: a trained model, taken elsewhere."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from nearsight.text import LONGEST_PATH, printable

To = Literal["onnx", "onnx-int8", "torch-export", "hub", "timm", "safetensors"]


def export(
    run: Path,
    /,
    *,
    to: Annotated[To, Parameter(show_choices=True)],
    out: Path | None = None,
) -> int:
    """Write a run's model in another form, and check it by running what was written.

    Parameters
    ----------
    run
        Folder of the run, or one that `--to hub` wrote.
    to
        onnx (onnxruntime), onnx-int8 (smaller), torch-export (torch.export.load), hub (a folder with a model card),
        timm (a folder that timm opens), safetensors (weights alone).
    out
        Where to write; by default beside you, by the name of the run.
    """
    from nearsight.export import export as write

    made = write(run, to, out)
    for note in made.notes:
        print(printable(note, LONGEST_PATH))
    print(f"written: {printable(str(made.path), LONGEST_PATH)}")
    return 0
