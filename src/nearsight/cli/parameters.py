"""Parameters that several verbs have, each with its help."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Run = Annotated[Path, Parameter(help="Folder of the run.")]
Device = Annotated[str, Parameter(help="cpu, cuda, mps; auto takes the best there is.")]
Json = Annotated[bool, Parameter(negative="", help="Print JSON.")]
Override = Annotated[
    bool, Parameter(negative="", help="Let a resumed run change settings that alter what is learned, such as lr.")
]
Show = Annotated[Literal["auto", "plain", "json", "quiet"], Parameter(help="How to report progress.")]
Pretrained = Annotated[bool, Parameter(negative="", help="Fetch the weights of a `timm:` model from the network.")]
Weights = Annotated[
    Path | None,
    Parameter(
        help="A .safetensors or .pth file of weights for a model given by name, under our names, timm's or the "
        "released ConViT's."
    ),
]
