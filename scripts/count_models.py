"""Counts every model on the meta device and writes src/nearsight/costs.json, which `nearsight models` prints.

python scripts/count_models.py        # after a model was added or changed: a minute
"""

import argparse
import json
from pathlib import Path

import nearsight
from nearsight import list_models
from nearsight.cost import model_cost

if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    path = Path(nearsight.__file__).with_name("costs.json")
    lines = [f" {json.dumps(name)}: {json.dumps(model_cost(name))}" for name in list_models()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(lines)} models written to {path}")
