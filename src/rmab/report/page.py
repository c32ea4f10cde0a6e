"""Pages of a study and of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rmab.report import multiples, plots
from rmab.report.canvas import save
from rmab.report.html import Markup, drawing, file_links, join, tag, write_page
from rmab.report.tables import (
    arms_table,
    means_table,
    points_table,
    settings_table,
    what_was_run,
    where_it_was_run,
)
from rmab.studies.results import Results, SweepResults
from rmab.studies.study import Study
from rmab.studies.sweep import key_label

__all__ = ["MEANS", "SLOTS", "write_report", "write_study", "write_sweep"]


def write_report(folder: Path, name: str, results: Results | SweepResults) -> Path:
    """Write figure.png, figure.svg and report.html of a study or a sweep; return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(results, Results):
        return write_study(folder, name, results)
    return write_sweep(folder, name, results)


def write_study(folder: Path, name: str, results: Results) -> Path:
    """Write figure.png, figure.svg and report.html of a study; return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    title = _title(name)
    about = f"{title}: average reward over the slots by policy; the table below has the means."
    svg = save(plots.study(results), folder, "figure", about)
    files = ["results.json", "slots.csv", "episodes.csv", "figure.png", "figure.svg"]
    body = [
        tag("h1", title),
        what_was_run(results),
        _noise_notes([("", results.study)]),
        drawing(svg, SLOTS),
        tag("h2", "Means"),
        tag("p", MEANS),
        means_table([("", results)]),
        tag("h2", "Settings"),
        settings_table([("", results.study, results)]),
        arms_table([("", results.study.arms)]),
        file_links(files),
    ]
    return write_page(folder, title, body)


def _title(name: str) -> str:
    """Heading of a study's page, by the name of its file."""
    return "Study" if name.lower() == "study" else f"Study {name}"


def write_sweep(folder: Path, name: str, results: SweepResults) -> Path:
    """Write figure.png, figure.svg and report.html of a sweep; return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    title = _title(name)
    about = f"{title}: average reward and regret by setting and policy; the table has them all."
    svg = save(multiples.sweep(results), folder, "figure", about)
    body = [
        tag("h1", title),
        tag("p", _what_was_swept(results)),
        _sweep_interrupted(results),
        _noise_notes([(text, each.study) for text, each in results.items()]),
        drawing(svg, _sweep_caption(results)),
        tag("h2", "Means"),
        tag("p", MEANS),
        means_table(list(results.items())),
        tag("h2", "Points"),
        points_table(results.sweep),
        tag("h2", "Settings"),
        tag("p", "Of the study, for what a point does not set."),
        settings_table([("", results.sweep.study, None)]),
        arms_table([("", results.sweep.study.arms)]),
        file_links(
            ["results.json", "sweep.csv", "sweep.json", "figure.png", "figure.svg"],
            "The folders points/1, points/2, ... have the curves of each point. ",
        ),
    ]
    return write_page(folder, title, body)


def _what_was_swept(results: SweepResults) -> str:
    points, made = results.sweep.points, results.provenance
    keys = ", ".join(key_label(key) for key in results.sweep.values)
    text = f"{len(points)} point{'s' if len(points) > 1 else ''}; swept: {keys}."
    return text if made is None else f"{text} {where_it_was_run(made)}"


def _sweep_interrupted(results: SweepResults) -> Markup:
    if not results.interrupted:
        return Markup("")
    text = (
        f"Interrupted: {results.trials} of {results.sweep.n_trials} trials were done, of "
        f"{len(results)} of {len(results.sweep.points)} points; numbers are of those."
    )
    return tag("p", text, "note")


def _noise_notes(studies: Sequence[tuple[str, Study]]) -> Markup:
    """Notes on studies where noise costs few agents much, with their points of a sweep."""
    points: dict[str, list[str]] = {}
    for text, study in studies:
        if (warning := study.cost_warning) is not None:
            points.setdefault(warning, []).append(text)
    notes = []
    for warning, at in points.items():
        where = f" ({'; '.join(at)})" if any(at) else ""
        notes.append(tag("p", f"Warning: {warning}{where}.", "note"))
    return join(*notes)


def _sweep_caption(results: SweepResults) -> str:
    if len(results) == 1:
        return SLOTS
    more = multiples.left_out(results.sweep.points)
    return _SWEEP + (f" {more} more panels are left out; the table has them." if more else "")


# -------------------------------------------------------------------------------------------- texts

MEANS = (
    "Average reward per agent and slot, ± its standard error, over all slots and over the last "
    "tenth of them. Shortfall: how much less than the Whittle policy with known dynamics on the "
    "same trials; its error is that of the paired difference."
)
SLOTS = (
    "Rewards are averaged over bins of slots. Regret so far is against the WI policy with known "
    "dynamics on the same trials; negative is better than WI. Bands are 95 %."
)
_SWEEP = (
    "Regret is per agent over the whole horizon, against the WI policy with known dynamics on the "
    "same trials; negative is better than WI. Bars are 95 %."
)
