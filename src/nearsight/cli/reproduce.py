"""``nearsight reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from nearsight.reproduce.claim import Claim
    from nearsight.reproduce.experiment import Experiment

Switch = Annotated[bool, Parameter(negative="")]


def reproduce(
    what: Annotated[str, Parameter(show_default=False)] = "",
    /,
    *,
    scale: Literal["smoke", "cpu", "gpu", "full"] = "cpu",
    jobs: int = 1,
    rows: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="", show_default=False)] = None,
    data: Annotated[str, Parameter(show_default=False)] = "",
    download: Switch = False,
    plan: Switch = False,
    show: Switch = False,
    write: Switch = False,
    runs: Path = Path("runs/reproduction"),
    results: Path = Path("results/reproduction"),
) -> int:
    """Run the papers' experiments, as far as they have no result yet, and find the status of their claims.

    Stop it at any time: the same command goes on. A run that has a result is never repeated.

    Parameters
    ----------
    what
        An experiment, by name or as a .yaml file; a claim, or the beginning of claims' names, such as convit-table2;
        `all`. Without it, experiments are listed.
    scale
        How large: `smoke` takes a minute and says nothing about the papers; `cpu` hours of two cores; `gpu` hours of
        one GPU; `full` is as in the papers.
    jobs
        Runs at a time. Each has an equal share of the processor cores.
    rows
        Only these rows of the experiment.
    data
        Take this in place of the experiment's data, such as a .npz file of CIFAR-100.
    download
        Known datasets may be fetched from the network.
    plan
        Print what would run, and the expected time, and stop.
    show
        Print the claims and their status, and stop.
    write
        Run nothing; write docs/reproduction.md, its figures and README's summary, in a checkout.
    runs
        Folder of the runs. It may be deleted when their results are there.
    results
        Folder of the results: one small file for each run.
    """
    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}")
    if write:
        from nearsight.reproduce.page import write_page

        for path in write_page(Path()):
            print(path)
        return 0
    claims, experiments = _chosen(what)
    if show:
        _print_claims(claims, results)
        return 0
    if not what:
        for experiment in experiments:
            print(f"{experiment.name} ({', '.join(experiment.scales)}): {experiment.question}")
        print(f"{len(claims)} claims: nearsight reproduce --show prints them with their status")
        return 0
    from nearsight.reproduce.plan import plan_lines
    from nearsight.reproduce.runner import Runner, Where

    there = [experiment for experiment in experiments if scale in experiment.scales]
    if not there:
        scales = " or ".join(sorted({one for experiment in experiments for one in experiment.scales}))
        remedy = f"add --scale {scales}" if scales else "no experiment tests it; --show tells its status"
        raise ValueError(f"{what} has nothing to run at scale {scale}; {remedy}")
    code = 0
    for experiment in there:
        where = Where(runs, results, data, download)
        runner = Runner(experiment, scale, where, jobs=jobs, rows=rows or (), tell=lambda text: print(text, flush=True))
        for line in plan_lines(experiment, scale, runner.plan, jobs):
            print(line, flush=True)
        if not plan:
            ended = runner.run()
            if ended and ended != 1:
                return ended
            code = code or ended
    return code


def _chosen(what: str) -> tuple[list[Claim], list[Experiment]]:
    """The claims that a word names and their experiments, or an experiment and its claims."""
    from nearsight.reproduce.claim import load_claims
    from nearsight.reproduce.experiment import all_experiments, experiment_names, load_experiment

    claims = load_claims()
    if what in ("", "all"):
        return claims, list(all_experiments())
    if what in experiment_names() or what.endswith(".yaml"):
        return [one for one in claims if one.rule and one.rule.experiment.name == what], [load_experiment(what)]
    chosen = [one for one in claims if one.id == what] or [one for one in claims if one.id.startswith(what)]
    if not chosen:
        names = ", ".join(experiment_names())
        raise ValueError(f"there is no claim and no experiment {what!r}; the experiments are {names}")
    return chosen, list({one.rule.experiment.name: one.rule.experiment for one in chosen if one.rule}.values())


def _print_claims(claims: list[Claim], results: Path) -> None:
    from nearsight.reproduce.page import words
    from nearsight.reproduce.verdict import Judge

    judge = Judge(results)
    for claim in claims:
        verdict = judge.verdict(claim)
        print(f"{claim.id} ({claim.source}): {verdict.status}")
        print(f"  {claim.statement}")
        for found in verdict.found:
            if claim.rule is not None and found.value is not None:
                print(f"  {found.text}: {words(found.value)}, n = {found.value.n}, scale {verdict.scale}")
