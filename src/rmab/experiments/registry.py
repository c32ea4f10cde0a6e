"""Registry of the figures of `rmab reproduce`, by section of the report.

    section   figures
    paper     the paper's
    gaps      regret, and learning from observations at any gap
    beyond    arms of other kinds, from the catalogue
    privacy   noise, liars, strangers, random channels; run only if named, as they take long

A figure is a folder of this package, its name with _ for -:

    study.toml   the study, its [sweep] and its [figure] table
    claims.py    `judge`, which states the claims; perhaps `extend`, which adds variants to the
                 figure that no sweep can state
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from rmab.errors import StudyError
from rmab.experiments.figure import Figure, FigureResult, Judge, load_figure, run_figure
from rmab.experiments.verdict import Verdict

__all__ = ["FIGURES", "SECTIONS", "figures", "reproduce", "summary"]

# In the order of the report.
SECTIONS: Mapping[str, Sequence[str]] = {
    "paper": (
        *("fig06", "fig07", "fig08", "fig09a", "fig09b"),
        *("fig10", "fig11", "fig12", "fig13", "theory"),
    ),
    "gaps": ("regret-horizon", "regret-agents", "regret-arms"),
    "beyond": ("fading", "machine", "adherence"),
    "privacy": ("privacy", "privacy-arms"),
}
_ONLY_BY_NAME = ("privacy",)
_CLAIMS = {
    name: import_module(f"rmab.experiments.{name.replace('-', '_')}.claims")
    for names in SECTIONS.values()
    for name in names
}
FIGURES: dict[str, Judge] = {name: claims.judge for name, claims in _CLAIMS.items()}


def figures(names: Sequence[str] = (), trials: int | None = None) -> list[Figure]:
    """Load figures by name, in the order of the report.

    names: if empty, all except the section `privacy`; trials: of each variant, the file's if None.
    """
    for name in names:
        if name not in FIGURES:
            raise StudyError(f"unknown figure {name!r}; known are {', '.join(FIGURES)}")
    return [
        getattr(_CLAIMS[name], "extend", _unchanged)(load_figure(name, section, trials))
        for section, members in SECTIONS.items()
        for name in members
        if (name in names if names else section not in _ONLY_BY_NAME)
    ]


def _unchanged(figure: Figure) -> Figure:
    return figure


def reproduce(figure: Figure, progress: Callable[[int], None] | None = None) -> FigureResult | None:
    """Run a figure and judge its claims; None if interrupted before anything was run."""
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
    """Summarise the verdicts in three sentences.

    The first is about the paper's claims, the second about the others, the third names the figures
    with contradicted or exceeded claims.
    """
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
    """Count the claims by verdict, in a sentence."""
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
    """Figures with claims of this verdict, and their number if there are several."""
    counts = {each.figure.label: [c.verdict for c in each.claims].count(verdict) for each in done}
    return [
        label if count == 1 else f"{label} ({count})" for label, count in counts.items() if count
    ]


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
