"""Whole models against timm's and plain ones of the same width, without the command line installed.

    PYTHONPATH=src python benchmarks/models.py --out results/benchmarks --only convit_small,resnet50

The same as `nearsight bench models`. On one H200 a group takes about a minute eager and two or three compiled.
"""

import argparse
from pathlib import Path

from nearsight.cli.bench import models

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--modes", default="eager,compiled")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--no-train", dest="train", action="store_false")
    models(**vars(parser.parse_args()))
