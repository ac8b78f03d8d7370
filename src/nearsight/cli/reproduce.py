"""``nearsight reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Switch = Annotated[bool, Parameter(negative="")]


def reproduce(
    what: Annotated[str, Parameter(show_default=False)] = "",
    /,
    *,
    scale: Literal["smoke", "cpu", "gpu", "full"] = "cpu",
    jobs: int = 1,
    data: Annotated[str, Parameter(show_default=False)] = "",
    download: Switch = False,
    plan: Switch = False,
    runs: Path = Path("runs/reproduction"),
    results: Path = Path("results/reproduction"),
) -> int:
    """Run the papers' experiments: what has no result yet.

    Stop it at any time: the same command goes on. A run that has a result is never repeated.

    Parameters
    ----------
    what
        An experiment, by name or as a .yaml file; `all` for every one. Without it, they are listed.
    scale
        How large: `smoke` takes a minute and says nothing about the papers; `cpu` hours of two cores; `gpu` hours of
        one GPU; `full` is as in the papers.
    jobs
        Runs at a time. Each has an equal share of the processor cores.
    data
        Take this in place of the experiment's data, such as a .npz file of CIFAR-100.
    download
        Known datasets may be fetched from the network.
    plan
        Print what would run, and the expected time, and stop.
    runs
        Folder of the runs. It may be deleted when their results are there.
    results
        Folder of the results: one small file for each run.
    """
    from nearsight.reproduce.experiment import all_experiments, experiment_names, load_experiment
    from nearsight.reproduce.plan import make_plan, plan_lines
    from nearsight.reproduce.runner import Runner, Where

    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}")
    if not what:
        for experiment in all_experiments():
            print(f"{experiment.name} ({', '.join(experiment.scales)}): {experiment.question}")
        return 0
    chosen = map(load_experiment, experiment_names() if what == "all" else [what])
    code = 0
    for experiment in [one for one in chosen if what != "all" or scale in one.scales]:
        for line in plan_lines(experiment, scale, make_plan(experiment, scale, results), jobs):
            print(line, flush=True)
        if not plan:
            where = Where(runs, results, data, download)
            code = code or Runner(experiment, scale, where, jobs=jobs, tell=lambda text: print(text, flush=True)).run()
    return code
