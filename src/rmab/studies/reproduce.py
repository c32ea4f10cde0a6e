"""Figures run and judged: the paper's, from the files in `figures/`, and those beyond it.

A figure's file is a study with a `[figure]` table: title, axes, and `vary`, a list of changes to
the study with a label each. Those beyond the paper are studies of the catalogue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import resources

from rmab.errors import StudyError
from rmab.studies import beyond, paper
from rmab.studies.figure import Claim, Drawn, Figure, Variant
from rmab.studies.running import run
from rmab.studies.study import from_table, read_table

__all__ = ["FIGURES", "figures", "reproduce"]

FIGURES: dict[str, Callable[[Drawn], list[Claim]]] = {**paper.FIGURES, **beyond.FIGURES}


def figures(names: Sequence[str] = (), trials: int | None = None) -> list[Figure]:
    """The figures of these names, all if none is given, with that many trials each."""
    for name in names:
        if name not in FIGURES:
            raise StudyError(f"unknown figure {name!r}; known are {', '.join(FIGURES)}")
    return [_figure(name, trials) for name in FIGURES if not names or name in names]


def _figure(name: str, trials: int | None) -> Figure:
    folder = "catalogue" if name in beyond.FIGURES else "figures"
    with resources.as_file(resources.files("rmab.studies") / folder / f"{name}.toml") as path:
        table = read_table(path)
    about = table.pop("figure")
    variants = []
    for changes in about.pop("vary", [{}]):
        label = changes.pop("label", "")
        study = from_table({**table, **changes})
        variants.append(Variant(label, study if trials is None else replace(study, trials=trials)))
    return Figure(name=name, variants=tuple(variants), beyond=name in beyond.FIGURES, **about)


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
