"""As `nearsight bench models`, but models are compiled side by side, a process for each, and then timed one at a time.

    PYTHONPATH=src python benchmarks/models_together.py --out results/benchmarks --only convit_small,convit_base

Compiling takes nearly all of the time, on one or two cores for each model: where there are many cores this is several
times faster. The GPU's memory must hold what all of them train with, about 125 GiB for the two groups above.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from nearsight.bench.measure import Row, as_row, as_table, environment, make_folder, write_results
from nearsight.bench.models import COLUMNS, Entry, entries, measure, ratios, wanted_entries

CUDA = torch.device("cuda")


def answer(asked: Connection, group: str, name: str, batch: int, repeats: int) -> None:
    """A process of one model: it says when all is compiled, waits for its turn, and sends what it measured."""

    def wait_for_turn() -> None:
        torch.cuda.empty_cache()
        asked.send("compiled")
        asked.recv()

    entry = next(entry for entry in entries() if (entry.group, entry.name) == (group, name))
    timed = partial(measure, entry, batch=batch, device=CUDA, train=True, repeats=repeats)
    compiled = timed(compiled=True, wait=wait_for_turn)
    asked.send(timed(compiled=False) + compiled)


def measure_together(wanted: list[Entry], batch: int, repeats: int) -> list[Row]:
    spawn = multiprocessing.get_context("spawn")
    askers: list[Connection] = []
    for entry in wanted:
        asker, asked = spawn.Pipe()
        spawn.Process(target=answer, args=(asked, entry.group, entry.name, batch, repeats), daemon=True).start()
        asked.close()  # so that a process that dies is noticed
        askers.append(asker)
    alive = []
    for asker, entry in zip(askers, wanted, strict=True):
        try:
            alive.append((asker, entry, asker.recv()))
        except EOFError:
            print(f"{entry.group}, {entry.name}: failed, see above", flush=True)
    rows: list[Row] = []
    for asker, entry, _ in alive:
        asker.send("your turn")
        try:
            measured = asker.recv()
        except EOFError:
            print(f"{entry.group}, {entry.name}: failed, see above", flush=True)
            continue
        print("\n".join(as_row(row, COLUMNS) for row in measured), flush=True)
        rows += measured
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="convit_small,convit_base")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    wanted = [entry for entry in wanted_entries(options.only) if entry.img_size == 224]
    if not wanted:
        sys.exit(f"--only {options.only}: these are of other sizes than 224 pixels; `nearsight bench models` has them")
    if not torch.cuda.is_available():
        sys.exit("there is no CUDA device; `nearsight bench models` and benchmarks/convit_cpu.py measure on a CPU")
    make_folder(options.out)
    print(as_table([], COLUMNS), flush=True)
    rows = measure_together(wanted, options.batch, options.repeats)
    firsts = {entry.group: entry.name for entry in reversed(wanted)}  # which the others are compared with
    whole = {row["group"] for row in rows if row["model"] == firsts[row["group"]]}
    print("\n".join(ratios([row for row in rows if row["group"] in whole])))
    if options.out is not None:
        where = environment(CUDA) | {"batch": str(options.batch)}
        print(f"written to {write_results(options.out, 'models_together', rows, COLUMNS, where)}")


if __name__ == "__main__":
    main()
