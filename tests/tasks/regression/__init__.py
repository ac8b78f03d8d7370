"""One number from a picture: a task of a package outside nearsight, as small as it can be.

python -m regression train FOLDER        FOLDER has pictures and a labels.csv of name,value
"""

from __future__ import annotations

from pathlib import Path

from nearsight.tasks import TaskKind, imported, task_kind
from regression.recipe import RECIPES, RegressionRecipe

KIND = TaskKind(
    name="regression",
    help="images with a number each: a regression",
    data="a folder of pictures with a labels.csv of name,value",
    recipe=RegressionRecipe,
    recipes=RECIPES,
    default_recipe="regression_small",
    selection="r2",
    models=task_kind("classification").models,
    recognises=lambda source: (Path(source) / "labels.csv").is_file(),
    open_task=imported("regression.task:RegressionTask"),
    evaluate=imported("regression.use:evaluate"),
    load=imported("regression.use:Regressor"),
    inspect=imported("regression.use:RegressionRun"),
)
