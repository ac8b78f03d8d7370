"""Local attention against the convolution it replaces, unfold and FlexAttention, without the command line installed.

    PYTHONPATH=src python benchmarks/layers.py --out results/benchmarks

The same as `nearsight bench layers`. On one H200: about a minute, most of it FlexAttention's compilation.
"""

import argparse
from pathlib import Path

from nearsight.cli.bench import layers

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--explain", action="store_true")
    layers(**vars(parser.parse_args()))
