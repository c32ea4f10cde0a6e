"""The figures of `rmab reproduce`: the paper's and those beyond it, by section of the report.

    section   files             judged in
    paper     paper_figures/    rmab.experiments.paper
    gaps      regret_figures/   rmab.experiments.regret: learning from observations at any gap
    beyond    catalogue/        here: arms of other kinds
    privacy   privacy_figures/  rmab.experiments.privacy: noise, liars, strangers, random channels;
                                run by name alone

The claims about the catalogue are not the paper's. They say what its framework promises (Section II
is for any arms) and are judged as its own claims are.

It is a module of its own because it is the one place that knows all figures; commands only print
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rmab.errors import StudyError
from rmab.experiments import paper, privacy
from rmab.experiments import regret as scaling
from rmab.experiments.figure import Figure, FigureResult, Judge, load_figure, run_figure
from rmab.planning.index.api import whittle_indices
from rmab.studies.results import PolicyResult
from rmab.studies.run import value
from rmab.studies.verdict import Claim, Effect, Estimate, Verdict

__all__ = ["FIGURES", "figures", "reproduce", "summary"]

_MIN_CLOSED = 0.75  # of the distance from random to Whittle, for "approaches"
_INDEXABLE = {True: 1.0, False: 0.0, None: np.nan}


def _any_arms(done: FigureResult) -> list[Claim]:
    """The claims about FedTSWI on arms of any kind."""
    results = done.results[0]
    arms = results.study.arms
    done.values = [value(results.study)]
    verdicts = [whittle_indices(arm) for arm in arms]
    proven = sum(found.indexable is True for found in verdicts)
    reasons = "; ".join(
        f"arm {n}: {found.reason}"
        for n, found in enumerate(verdicts, start=1)
        if found.indexable is not True
    )
    learnt, known, random = (results[name] for name in ("fedtswi", "whittle", "random"))
    gap = Estimate(known.final, known.final_se).less(Estimate(learnt.final, learnt.final_se))
    closed = _closed(learnt, known, random)
    gain, gain_se = results.difference("fedtswi", "random")
    return [
        Claim(
            "All arms are indexable.",
            f"{proven} of {len(arms)} proven so by the solver"
            + (f"; {reasons}." if reasons else "."),
            [
                Effect(f"arm {n}", _INDEXABLE[found.indexable], 0.0, 1.0, "about", 0.5)
                for n, found in enumerate(verdicts, start=1)
            ],
        ),
        Claim(
            "FedTSWI approaches Whittle with known dynamics.",
            f"in the last tenth of the slots it has closed {100 * closed.mean:.0f} % of the "
            f"distance from random to Whittle and is {gap.mean:.5f} ± {gap.se:.5f} behind; over "
            f"the horizon {learnt.behind:.5f} ± {learnt.behind_se:.5f}. Asked is "
            f"{100 * _MIN_CLOSED:.0f} %.",
            [Effect("the share that is closed", *closed, _MIN_CLOSED, trials=results.trials)],
        ),
        Claim(
            "Learning pays: FedTSWI is better than playing at random.",
            f"by {gain:.5f} ± {gain_se:.5f}.",
            [Effect("fedtswi less random", gain, gain_se, trials=results.trials)],
        ),
    ]


def _closed(learnt: PolicyResult, known: PolicyResult, random: PolicyResult) -> Estimate:
    """The share of the distance from random to Whittle, in the last tenth of the slots; errors are
    added, as it is not known how the three are correlated."""
    distance = known.final - random.final
    share = 1 - (known.final - learnt.final) / distance
    error = learnt.final_se + abs(share) * known.final_se + abs(1 - share) * random.final_se
    return Estimate(share, error / abs(distance))


class _Section(NamedTuple):
    """The folder of a section's figures, and their judges; extended: adds variants that no file can
    say; by_name: whether its figures are run only when they are named, as they take long."""

    folder: str
    judges: Mapping[str, Judge]
    extended: Callable[[Figure], Figure] | None = None
    by_name: bool = False

    def figure(self, name: str, key: str, trials: int | None) -> Figure:
        found = load_figure(self.folder, name, key, trials)
        return found if self.extended is None else self.extended(found)


_SECTIONS = {
    "paper": _Section("paper_figures", paper.JUDGES),
    "gaps": _Section("regret_figures", scaling.JUDGES),
    "beyond": _Section("catalogue", dict.fromkeys(("fading", "machine", "adherence"), _any_arms)),
    "privacy": _Section("privacy_figures", privacy.JUDGES, privacy.with_cases, by_name=True),
}
FIGURES: dict[str, Judge] = {
    name: judge for section in _SECTIONS.values() for name, judge in section.judges.items()
}


def figures(names: Sequence[str] = (), trials: int | None = None) -> list[Figure]:
    """The figures of these names, with that many trials each; without names all but those that take
    long."""
    for name in names:
        if name not in FIGURES:
            raise StudyError(f"unknown figure {name!r}; known are {', '.join(FIGURES)}")
    return [
        section.figure(name, key, trials)
        for key, section in _SECTIONS.items()
        for name in section.judges
        if (name in names if names else not section.by_name)
    ]


def reproduce(figure: Figure, progress: Callable[[int], None] | None = None) -> FigureResult | None:
    """Run a figure and judge it by name; None if interrupted before anything was run."""
    return run_figure(figure, FIGURES[figure.name], progress)


# ------------------------------------------------------------------------------------------ summary

_VERBS = {
    Verdict.HELD: ("held", "held"),
    Verdict.EXCEEDED: ("was exceeded", "were exceeded"),
    Verdict.CONTRADICTED: ("was contradicted", "were contradicted"),
    Verdict.UNDECIDED: ("is undecided", "are undecided"),
    Verdict.NOTED: ("is noted without a verdict", "are noted without a verdict"),
}


def summary(done: Sequence[FigureResult]) -> str:
    """Three sentences that say what came out: the paper's claims, those beyond it, and of which
    figures claims were contradicted or exceeded."""
    paper_ones = [each for each in done if each.figure.section == "paper"]
    beyond = [each for each in done if each.figure.section != "paper"]
    against, more = (
        _listed(_figures_with(verdict, done))
        for verdict in (Verdict.CONTRADICTED, Verdict.EXCEEDED)
    )
    last = f"Contradicted were claims of {against}" if against else "None was contradicted"
    if more:
        last += f", and more than was claimed was measured in {more}"
    return f"{_counted(paper_ones, 'of the paper')} {_counted(beyond, 'beyond the paper')} {last}."


def _counted(done: Sequence[FigureResult], which: str) -> str:
    """How many claims there are, by verdict, in a sentence."""
    counts = Counter(claim.verdict for each in done for claim in each.claims)
    if not counts:
        return f"No claim {which} was judged."
    words = [
        f"{counts[verdict]} {verbs[counts[verdict] > 1]}"
        for verdict, verbs in _VERBS.items()
        if counts[verdict]
    ]
    total = counts.total()
    return f"Of {total} claim{'s' if total > 1 else ''} {which}, {_listed(words)}."


def _figures_with(verdict: Verdict, done: Sequence[FigureResult]) -> list[str]:
    """The figures with such claims, and how many if there are several."""
    counts = {each.figure.label: [c.verdict for c in each.claims].count(verdict) for each in done}
    return [
        label if count == 1 else f"{label} ({count})" for label, count in counts.items() if count
    ]


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
