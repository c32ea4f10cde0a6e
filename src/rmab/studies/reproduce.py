"""Figures run and judged: the paper's and those beyond it, by section of the report.

A figure's file is a study with a `[figure]` table: title, axes, and `vary`, a list of changes to
the study with a label each. `copies` among the changes repeats the study's arms that many times.

    section   files           judged in
    paper     figures/        rmab.studies.paper
    looks     regret/         rmab.studies.scaling: learning from every look
    beyond    catalogue/      rmab.studies.beyond: arms of other kinds
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import NamedTuple

from rmab.errors import StudyError
from rmab.studies import beyond, paper, scaling
from rmab.studies.figure import Claim, Drawn, Figure, Variant
from rmab.studies.run import run
from rmab.studies.study import from_table, read_table

__all__ = ["FIGURES", "SECTIONS", "figures", "reproduce"]

Judge = Callable[[Drawn], list[Claim]]


class Section(NamedTuple):
    """Where a section's figures are, and who judges them."""

    folder: str
    judges: Mapping[str, Judge]


SECTIONS = {
    "paper": Section("figures", paper.FIGURES),
    "looks": Section("regret", scaling.FIGURES),
    "beyond": Section("catalogue", beyond.FIGURES),
}
FIGURES: dict[str, Judge] = {
    name: judge for section in SECTIONS.values() for name, judge in section.judges.items()
}


def figures(names: Sequence[str] = (), trials: int | None = None) -> list[Figure]:
    """The figures of these names, all if none is given, with that many trials each."""
    for name in names:
        if name not in FIGURES:
            raise StudyError(f"unknown figure {name!r}; known are {', '.join(FIGURES)}")
    return [
        _figure(key, section.folder, name, trials)
        for key, section in SECTIONS.items()
        for name in section.judges
        if not names or name in names
    ]


def _figure(section: str, folder: str, name: str, trials: int | None) -> Figure:
    with resources.as_file(resources.files("rmab.studies") / folder / f"{name}.toml") as path:
        table = read_table(path)
    about = table.pop("figure")
    variants = []
    for changes in about.pop("vary", [{}]):
        label = changes.pop("label", "")
        arms = table["arm"] * changes.pop("copies", 1)
        study = from_table({**table, "arm": arms, **changes})
        variants.append(Variant(label, study if trials is None else replace(study, trials=trials)))
    return Figure(name=name, variants=tuple(variants), section=section, **about)


def reproduce(figure: Figure, progress: Callable[[int], None] | None = None) -> Drawn | None:
    """Run a figure's studies and judge the claims; None if interrupted before any."""
    drawn = Drawn(figure, [])
    begun = time.perf_counter()
    try:
        if figure.x == "belief":
            drawn.series = paper.value_functions(figure)
            if progress is not None:
                progress(1)
        else:
            for variant in figure.variants:
                drawn.results.append(run(variant.study, progress))
                if drawn.results[-1].interrupted:
                    raise KeyboardInterrupt
        drawn.claims = FIGURES[figure.name](drawn)
    except KeyboardInterrupt:
        if not drawn.results:
            return None
        drawn.interrupted = True
    drawn.seconds = time.perf_counter() - begun
    return drawn
