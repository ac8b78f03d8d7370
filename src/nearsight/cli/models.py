"""`nearsight models`: every model with its cost, beside what its paper reports."""

from pathlib import Path


def models(pattern: str = "*", /, *, img_size: int | None = None, json: Path | None = None) -> int:
    """List models: parameters and FLOPs (counted), and the papers' figures (reported).

    Parameters
    ----------
    pattern
        Names to list, as a shell pattern: `convit_*`, `*_64`.
    img_size
        Side of the square input to count at; each model's own by default.
    json
        Write the table to this file as well.
    """
    import json as json_format

    import torch
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from nearsight.models import count_cost, create_model, list_models
    from nearsight.models.flops import module_multiply_adds, own_size
    from nearsight.models.reported import REPORTED
    from nearsight.models.vit import VisionTransformer

    names = list_models(pattern)
    if not names:
        raise ValueError(f"no model matches {pattern!r}; `nearsight models` lists them all")
    console = Console()
    table = Table(caption="ours: counted, for one image; paper: reported, parameters / operations / ImageNet top-1")
    table.add_column("name", no_wrap=True)
    for heading in ("input", "parameters", "GFLOPs", "paper"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = []
    for name in track(names, "counting", console=Console(stderr=True), transient=True):
        with torch.device("meta"):
            model = create_model(name)
        size = (img_size, img_size) if img_size else own_size(model)
        cost = count_cost(model, size)
        row = {"name": name, "input": list(size), "parameters": cost.parameters, "flops": cost.flops}
        if isinstance(model, VisionTransformer):
            row["module_multiply_adds"] = module_multiply_adds(model, size)
        paper = REPORTED.get(name)
        if paper is not None:
            row["reported"] = paper._asdict()
        rows.append(row)
        reported = f"{paper.parameters} / {paper.operations} / {paper.top1:.1f}" if paper else ""
        side = f"{size[0]}" if size[0] == size[1] else f"{size[0]}×{size[1]}"
        table.add_row(name, side, f"{cost.parameters / 1e6:.2f} M", f"{cost.flops / 1e9:.2f}", reported)
    console.print(table)
    console.print(
        "A FLOP is one multiplication or addition of the equations as written. SASA reports these (B); ConViT (G) "
        "reports multiply-adds of modules, without QKᵀ and AV: `module_multiply_adds` in the --json table.",
        soft_wrap=False,
    )
    if json is not None:
        json.write_text(json_format.dumps(rows, indent=2) + "\n")
        console.print(f"written to {json}")
    return 0
