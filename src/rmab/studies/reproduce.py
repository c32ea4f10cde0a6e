"""The figures of `rmab reproduce`: the paper's and those beyond it, by section of the report.

    section   files             judged in
    paper     paper_figures/    rmab.studies.paper
    gaps      regret_figures/   rmab.studies.scaling: learning from observations at any gap
    beyond    catalogue/        here: arms of other kinds
    privacy   privacy_figures/  rmab.studies.privacy: noise, liars, strangers, random channels; run
                                by name alone

The claims about the catalogue are not the paper's. They say what its framework promises (Section II
is for any arms) and are judged as its own claims are.

It stands alone because it is the one place that knows all figures; commands only print them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rmab.errors import StudyError
from rmab.planning.index.indices import whittle_indices
from rmab.studies import paper, privacy, scaling
from rmab.studies.figures import (
    MIN_SIGMA,
    Claim,
    Figure,
    FigureResult,
    Judge,
    load_figure,
    run_figure,
)
from rmab.studies.run import value

__all__ = ["FIGURES", "figures", "reproduce"]

_MIN_CLOSED = 0.75  # of the distance from random to Whittle, for "approaches"


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
    gap, gap_se = known.final - learnt.final, float(np.hypot(known.final_se, learnt.final_se))
    closed = 1 - gap / (known.final - random.final)
    gain, gain_se = results.difference("fedtswi", "random")
    return [
        Claim(
            "All arms are indexable.",
            f"{proven} of {len(arms)} proven so by the solver"
            + (f"; {reasons}." if reasons else "."),
            proven == len(arms),
        ),
        Claim(
            "FedTSWI approaches Whittle with known dynamics.",
            f"in the last tenth of the slots it has closed {100 * closed:.0f} % of the distance "
            f"from random to Whittle and is {gap:.5f} ± {gap_se:.5f} behind; over the horizon "
            f"{learnt.behind:.5f} ± {learnt.behind_se:.5f}.",
            bool(closed > _MIN_CLOSED),
        ),
        Claim(
            "Learning pays: FedTSWI is better than playing at random.",
            f"by {gain:.5f} ± {gain_se:.5f}.",
            gain > MIN_SIGMA * gain_se,
        ),
    ]


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
