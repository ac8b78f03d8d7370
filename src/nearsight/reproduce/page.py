"""docs/reproduction.md, its figures, and README's summary: made from claims and results, never by hand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from nearsight.intervals import Estimate
from nearsight.reproduce.claim import STATUSES, Claim, check_files, load_claims
from nearsight.reproduce.evidence import Result
from nearsight.reproduce.experiment import SCALES, Experiment, all_experiments
from nearsight.reproduce.figures import curves_svg, digest
from nearsight.reproduce.formula import Formula
from nearsight.reproduce.plan import duration, make_plan
from nearsight.reproduce.verdict import Evidence, Judge, Verdict

PAGE, README, FIGURES, RESULTS = "docs/reproduction.md", "README.md", "docs/figures", "results/reproduction"
MARKS = ("<!-- reproduction -->", "<!-- end of reproduction -->")
_WIDTH = 120
_MEASURED = SCALES[1:]
"""`smoke` tests the machinery and says nothing of the papers."""

_INTRODUCTION = """# What is reproduced

Every claim of both papers, its status, and what the status rests on. `nearsight reproduce --write` makes this page
from `src/nearsight/reproduce/claims` and `results/reproduction`; nothing in it is written by hand.

A status follows from a rule that was written before the runs. A value comes with its 95 % interval over test pictures
and seeds. With three seeds or more: *confirmed* when the whole interval lies where the rule says, *contradicted* when
all of it lies elsewhere, *confirmed in direction* when only each seed's own value does, else *not seen*. With fewer
seeds *confirmed in direction* is the most there is; with one, the interval over test pictures must lie there. *Reduced*
says that the claim was tested on something smaller than the paper's experiment: the status is of that, not of
ImageNet. Intervals are not corrected for the number of claims.
"""


@dataclass(frozen=True)
class Report:
    """All claims with their verdicts, and the evidence."""

    claims: list[Claim]
    verdicts: dict[str, Verdict]
    judge: Judge

    @classmethod
    def gather(cls, root: Path) -> Report:
        claims = load_claims()
        check_files(claims, root)
        judge = Judge(root / RESULTS)
        return cls(claims, {claim.id: judge.verdict(claim) for claim in claims}, judge)

    def measured(self) -> Iterator[tuple[Experiment, str, Evidence]]:
        """Experiments with results of their own, at each scale that has some."""
        for experiment in all_experiments():
            for scale in _MEASURED:
                if scale in experiment.scales and self.has_own(experiment, scale):
                    yield experiment, scale, self.judge.evidence(experiment, scale)

    def has_own(self, experiment: Experiment, scale: str) -> bool:
        """Whether there are results besides those of the experiment that it is like."""
        results = self.judge.evidence(experiment, scale).results.values()
        return any(one.run.experiment.name == experiment.name for one in results)


def write_page(root: Path) -> list[Path]:
    """Write the page, the figures and README's summary below a checkout's root; the paths."""
    if not (root / README).is_file() or not (root / "docs").is_dir():
        raise ValueError(f"{root.resolve()} is no checkout of nearsight: --write needs README.md and docs/ here")
    report = Report.gather(root)
    written = [root / PAGE, root / README]
    texts = [page_text(report), with_summary((root / README).read_text(), summary(report))]
    for path, text in zip(written, texts, strict=True):
        path.write_text(text)
    for experiment, scale, evidence in report.measured():
        written.append(root / FIGURES / _figure_name(experiment, scale))
        written[-1].write_text(curves_svg(experiment.question, list(evidence.results.values())))
    return written


def stale(root: Path) -> list[str]:
    """What no longer agrees with claims and results, by name."""
    report = Report.gather(root)
    readme = (root / README).read_text()
    found = []
    if not (root / PAGE).is_file() or (root / PAGE).read_text() != page_text(report):
        found.append(PAGE)
    if readme != with_summary(readme, summary(report)):
        found.append(README)
    for experiment, scale, evidence in report.measured():
        figure = root / FIGURES / _figure_name(experiment, scale)
        wanted = f"results {digest(list(evidence.results.values()))}"
        if not figure.is_file() or wanted not in figure.read_text():
            found.append(f"{FIGURES}/{figure.name}")
    return found


def with_summary(readme: str, text: str) -> str:
    """README with the summary between its marks."""
    start, end = (readme.find(mark) for mark in MARKS)
    if not 0 <= start < end:
        raise ValueError(f"README.md has no place for the summary: it needs {MARKS[0]} and {MARKS[1]}")
    return f"{readme[: start + len(MARKS[0])]}\n{text}{readme[end:]}"


def summary(report: Report) -> str:
    """How many claims have each status, by paper."""
    return "\n".join([*_counts(report), "", ""])


def page_text(report: Report) -> str:
    lines = [_INTRODUCTION, *_counts(report), ""]
    for paper in _papers(report):
        lines += [f"## {paper}", ""]
        own = [claim for claim in report.claims if claim.paper == paper]
        for place in dict.fromkeys(_place(claim) for claim in own):
            lines += [f"### {place}", "", "| claim | paper | status | evidence | scope |", "|---|---|---|---|---|"]
            lines += [_claim_row(claim, report.verdicts[claim.id]) for claim in own if _place(claim) == place]
            lines += [""]
    lines += ["## Experiments", ""]
    for experiment in all_experiments():
        lines += [*_experiment_lines(experiment, report), ""]
    return "\n".join(lines).rstrip() + "\n"


def _counts(report: Report) -> list[str]:
    """What is counted or proved and what is measured stand apart: the first is the easier to confirm."""
    found = Counter(
        (report.verdicts[claim.id].status, claim.paper, claim.scope == "analytic") for claim in report.claims
    )
    columns = [(paper, analytic) for paper in _papers(report) for analytic in (True, False)]
    heads = [f"{paper.split(',')[0]}, {'analytic' if analytic else 'measured'}" for paper, analytic in columns]
    lines = [f"| claims | {' | '.join(heads)} |", f"|---|{'---|' * len(columns)}"]
    for status in STATUSES:
        counts = [str(found[status, paper, analytic]) for paper, analytic in columns]
        lines.append(f"| {status} | {' | '.join(counts)} |")
    return lines


def _papers(report: Report) -> list[str]:
    return list(dict.fromkeys(claim.paper for claim in report.claims))


def _place(claim: Claim) -> str:
    """The table or figure that a claim is listed under: the first that its source names."""
    return re.split(r"[,;(]", claim.source)[0].strip().capitalize()


def _claim_row(claim: Claim, verdict: Verdict) -> str:
    cells = (
        f"{claim.statement} `{claim.id}`",
        claim.reported or "–",
        f"**{verdict.status}**",
        _evidence(claim, verdict),
        _scope(claim),
    )
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _scope(claim: Claim) -> str:
    how = [claim.reduction] if claim.reduction else []
    if claim.rule is not None and claim.scope == "reduced":
        how.insert(0, f"as [{claim.rule.experiment.name}](#{claim.rule.experiment.name})")
    return ": ".join([claim.scope, *(["; ".join(how)] if how else [])])


def _evidence(claim: Claim, verdict: Verdict) -> str:
    parts = []
    if claim.tests:
        parts.append(", ".join(f"`{test}`" for test in claim.tests))
    if claim.costs is not None:
        odd = [one.text for one in verdict.found if one.status != "confirmed"]
        near = "a unit of the last digit" if claim.costs.within == "digit" else f"{100 * float(claim.costs.within):g} %"
        parts.append(f"{len(verdict.found) - len(odd)} of {len(verdict.found)} figures within {near}")
        parts += odd
    if claim.rule is not None and verdict.scale:
        at = f"n = {min(one.value.n for one in verdict.found if one.value)}, scale {verdict.scale}"
        parts += [f"`{one.text}`: {words(one.value)}" for one in verdict.found if one.value]
        parts.append(f"{at}, [{claim.rule.experiment.name}](#{claim.rule.experiment.name})")
    elif claim.stated is not None:
        n = (
            f" (n = {claim.stated.n}, [{Path(claim.stated.file).name}](../{claim.stated.file}))"
            if claim.stated.n
            else ""
        )
        parts.append(claim.stated.reason + n)
    elif claim.rule is not None:
        parts.append(f"`nearsight reproduce {claim.rule.experiment.name}` has no results yet")
    if claim.rule is not None:
        parts.append(f"rule of {claim.rule.written}{': ' + claim.confirm if claim.confirm else ''}")
    return "; ".join([*parts, *([claim.note] if claim.note else [])])


def words(value: Estimate) -> str:
    """A value with its interval, with a digit for each power of ten that it is small."""
    digits = 1 if max(abs(value.low), abs(value.high), abs(value.value)) >= 5 else 2
    if value.low != value.low:  # of one seed, without test pictures, there is no interval
        return f"{value.value:.{digits}f}"
    return f"{value.value:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def _figure_name(experiment: Experiment, scale: str) -> str:
    return f"reproduction_{experiment.name}_{scale}.svg"


def _experiment_lines(experiment: Experiment, report: Report) -> Iterator[str]:
    yield f'<a id="{experiment.name}"></a>'
    yield f"### {experiment.name}"
    yield ""
    yield from wrap(f"{experiment.question} ({experiment.source}.)", _WIDTH)
    for scale in _MEASURED:
        if scale in experiment.scales:
            yield ""
            yield from wrap(_scale_line(experiment, scale, report), _WIDTH)
            yield f"`nearsight reproduce {experiment.name} --scale {scale}`"
            if report.has_own(experiment, scale):
                yield ""
                yield from _table_lines(experiment, scale, report.judge.evidence(experiment, scale))


def _scale_line(experiment: Experiment, scale: str, report: Report) -> str:
    """What a scale is, how much of it has been run, and how to go on."""
    at, plan = experiment.scale(scale), make_plan(experiment, scale, report.judge.results)
    left = f", {duration(plan.total(plan.left, 1))} for the rest, one at a time" if plan.left else ""
    return (
        f"**{scale}**{f' ({at.reduction})' if at.reduction else ''}: {at.data}, {at.samples:,} samples a run. "
        f"{len(plan.done)} of {len(plan.done) + len(plan.left)} runs have a result{left}:"
    )


def _table_lines(experiment: Experiment, scale: str, evidence: Evidence) -> Iterator[str]:
    at, results = experiment.scale(scale), list(evidence.results.values())
    yield f"| row | paper | parameters | {' | '.join(f'{100 * fraction:g} %' for fraction in at.fractions)} |"
    yield f"|---|---|---|{'---|' * len(at.fractions)}"
    for row in at.rows:
        own = [one for one in results if one.run.row.name == row]
        if own:
            cells = [_cell(evidence, row, fraction) for fraction in at.fractions]
            parameters = f"{own[0].record['parameters'] / 1e6:.2f} M"
            title = f"{experiment.rows[row].title} `{row}`"
            yield f"| {' | '.join((title, experiment.rows[row].reported or '–', parameters, *cells))} |"
    yield ""
    yield from wrap(_conditions(scale, results), _WIDTH)
    yield f"`nearsight reproduce {experiment.name} --scale {scale} --rows {results[0].run.row.name}`"
    yield ""
    yield f"![Curves of {experiment.name}](figures/{_figure_name(experiment, scale)})"


def _cell(evidence: Evidence, row: str, fraction: float) -> str:
    found = evidence.value(Formula(f"{row}[{100 * fraction:g}]")) if row.isidentifier() else None
    if found is not None:
        return f"{words(found[0])}, n = {found[0].n}"
    own = [one.accuracy for key, one in evidence.results.items() if key[:2] == (row, fraction)]
    return f"{sum(own) / len(own):.1f}, n = {len(own)}" if own else "–"


def _conditions(scale: str, results: Sequence[Result]) -> str:
    """One paragraph: what the accuracies are of, on which hardware, and how to run a row again."""
    record = results[0].record
    split = record["test"]["split"] if record["test"] else "val"
    pictures = record["data"]["pictures"][split]
    intervals = " with 95 % intervals" if split == "test" else ""
    hardware = " and ".join(sorted({one.record["hardware"] for one in results}))
    versions = " and ".join(sorted({one.record["environment"]["packages"]["torch"] for one in results}))
    dates = sorted(one.record["date"] for one in results)
    return (
        f"*Measured*: {split} top-1 in per cent{intervals}, last weights, {pictures:,} {split} pictures of "
        f"{record['data']['source']}; {hardware}, torch {versions}, {dates[0][:10]} to {dates[-1][:10]}. Files: "
        f"`{RESULTS}/{scale}`. Once its files there are moved away, a row is run again by"
    )
