"""Pages: the reports of a study, of a sweep, and of the figures of `rmab reproduce`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rmab.experiments.figure import FigureResult
from rmab.experiments.registry import summary
from rmab.experiments.verdict import Claim, Verdict
from rmab.report import multiples, plots
from rmab.report.canvas import save
from rmab.report.html import (
    Markup,
    details,
    drawing,
    escaped,
    file_links,
    join,
    link,
    table,
    tag,
    write_page,
)
from rmab.report.tables import (
    arms_table,
    exact_table,
    means_table,
    points_table,
    powers_table,
    settings_table,
    what_was_run,
    where_it_was_run,
)
from rmab.studies.results import Results, SweepResults
from rmab.studies.study import Study
from rmab.studies.sweep import key_label

__all__ = ["write_paper", "write_report", "write_study", "write_sweep"]

_MAX_SLOT_ROWS = 10_000  # longer studies get no CSV file by slot, only by episode


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
        drawing(svg, _CAPTIONS["slot", "reward"]),
        tag("h2", "Means"),
        tag("p", _MEANS),
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
        tag("p", _MEANS),
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
        return _CAPTIONS["slot", "reward"]
    more = multiples.left_out(results.sweep.points)
    return _SWEEP + (f" {more} more panels are left out; the table has them." if more else "")


def write_paper(
    folder: Path, figures: Sequence[FigureResult], *, max_slot_rows: int = _MAX_SLOT_ROWS
) -> Path:
    """Write drawings, tables and claims of figures, and report.html; return the path.

    max_slot_rows: the longest horizon that gets a CSV file with a row for each slot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    claims = {done.name: done.to_json() for done in figures}
    text = json.dumps(claims, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / "claims.json").write_text(text + "\n", encoding="utf-8")
    chapters = [
        (chapter, chosen)
        for key, chapter in _CHAPTERS.items()
        if (chosen := [done for done in figures if done.figure.section == key])
    ]
    first = chapters[0][0] if chapters else _CHAPTERS["paper"]
    body = [tag("h1", first.title), tag("p", f"{first.about} {_READING}"), _overview(figures)]
    for chapter, chosen in chapters:
        if chapter is not first:
            body += [tag("h1", chapter.title), tag("p", chapter.about)]
        for done in chosen:
            files = _write_curves(folder, done, max_slot_rows)
            body.append(_section(folder, done, chapter.claims, files))
    return write_page(folder, first.title, body)


# -------------------------------------------------------------------------------------------- texts

_READING = (
    "Below each figure: what is claimed, what was measured, and the verdict. A claim held, or was "
    "contradicted, where that is four standard errors from the bound, and more with few trials; it "
    "was exceeded where clearly more was measured than was claimed, and is undecided where neither "
    "is certain. Bands "
    "in the drawings are 95 %: 1.96 standard errors to each side. Rewards are averages per agent "
    "and slot, and regret is against the Whittle (WI) policy with known dynamics."
)


class _Chapter(NamedTuple):
    """Section of the report; the page has the title of the first."""

    title: str
    about: str
    claims: str  # above the claims of each figure


_CHAPTERS = {
    "paper": _Chapter(
        "The paper's figures, run again",
        "Figures of the paper's simulations, computed and drawn again.",
        "What the paper says",
    ),
    "gaps": _Chapter(
        "Learning from observations at any gap",
        "FedTSWI learns from observations of an arm in two consecutive slots and drops all others. "
        "FedTSWI-gap learns from every two successive observations of an arm: if they are g slots "
        "apart, their likelihood is a transition probability of g steps. Both meet the same "
        "channels and have the same episodes, so they differ only in what they learn from. Regret "
        "is per agent, against the Whittle policy with known dynamics.",
        "What is claimed",
    ),
    "privacy": _Chapter(
        "Privacy: noise, liars and strangers",
        "Sums of counts are released with noise: what one slot of an agent's log showed is "
        "differentially private among logs with the same plays, not what it led to. Agents draw "
        "for themselves: their own observations count in full, "
        "and the others' as far as they are alike. Loss is reward per agent and slot less than the "
        "Whittle policy with known dynamics earns on the same trials.",
        "What is claimed",
    ),
    "beyond": _Chapter(
        "Beyond the paper: arms of other kinds",
        "The paper's framework is for arms with any number of states, whose transitions may depend "
        "on the action; its simulations are of two-state channels. These studies are those of the "
        "catalogue. The dynamics are learnt from scratch in the same way, the indices come from "
        "the general solver, and the claims are what the framework promises.",
        "What is claimed",
    ),
}
_MEANS = (
    "Average reward per agent and slot, ± its standard error, over all slots and over the last "
    "tenth of them. Shortfall: how much less than the Whittle policy with known dynamics on the "
    "same trials; its error is that of the paired difference."
)
_SLOTS = (
    "Rewards are averaged over bins of slots. Regret so far is against the WI policy with known "
    "dynamics on the same trials; negative is better than WI. Bands are 95 %."
)
_SWEEP = (
    "Regret is per agent over the whole horizon, against the WI policy with known dynamics on the "
    "same trials; negative is better than WI. Bars are 95 %."
)
_EPISODES = "Episodes that at least half of the trials played to the end. Bands are 95 %."
_SCALING = (
    "Above, the regret per agent; below zero is better than the Whittle policy with known "
    'dynamics. Dashed: power laws, fitted where the regret is clearly positive; "no fit" where it '
    "follows none. Dotted: the growth of Theorem 1's bound, which itself lies far above. Below, "
    "the regret of FedTSWI-gap as a share of FedTSWI's: at 1 nothing is gained, at 0 it earns what "
    "Whittle does. Bands are 95 %."
)
_CAPTIONS = {
    ("episode", "reward"): _EPISODES,
    ("episode", "regret"): _EPISODES,
    ("episode", "error"): _EPISODES,
    ("slot", "reward"): _SLOTS,
    ("slot", "theory"): "Measured, beside the bounds of Lemma 1 and Theorem 1; D is the span of "
    "the optimal relative values. The band is 95 %.",
    ("slot", "regret"): f"{_SCALING} Laws are fitted to the third last decade of slots and to the "
    "last two.",
    ("agents", "regret"): _SCALING,
    ("arms", "regret"): _SCALING,
    ("epsilon", "loss"): "Less noise to the right. Dotted, in the same colours: without noise. "
    "Grey: agents that learn alone. On the right Fed1-UCB, whose agents add noise to their mean "
    "rewards: epsilon there hides one pull in one phase. Bars are 95 %.",
    ("draw", "gain"): "Four channels, p01 and p11 from .05 to .95, rewards from .3 to 1; each at "
    "one place. Bars are 95 %.",
    ("belief", "value"): "Computed, not simulated. The arm is played where playing is worth more.",
}
_POWERS = (
    "Power laws, fitted with the inverse variances of the logarithms as weights. Chi-squared per "
    "degree of freedom is near 1, or below it for slots of one run, where a power law fits; the "
    "slopes from point to point are then alike."
)
_MARKS = {
    Verdict.HELD: "✓",
    Verdict.EXCEEDED: "▲",
    Verdict.CONTRADICTED: "✗",
    Verdict.UNDECIDED: "?",
    Verdict.NOTED: "•",
}


# --------------------------------------------------------------------------------- figure by figure


def _overview(figures: Sequence[FigureResult]) -> Markup:
    """Summary, then all claims with links: the paper's, and the others."""
    if not figures:
        return tag("p", "Interrupted before anything was done: there is nothing to show.")
    tables = []
    for title, chosen in (
        ("Claims of the paper", [x for x in figures if x.figure.section == "paper"]),
        ("Claims beyond the paper", [x for x in figures if x.figure.section != "paper"]),
    ):
        rows = [
            [link(f"#{done.name}", done.figure.label), claim.text, _verdict(claim)]
            for done in chosen
            for claim in done.claims
        ]
        rows += [
            [link(f"#{done.name}", done.figure.label), "not judged: interrupted", ""]
            for done in chosen
            if done.interrupted
        ]
        if rows:
            tables += [tag("h3", title), table(title, ["Figure", "Claim", "Verdict"], rows)]
    return join(tag("h2", "What came out"), tag("p", summary(figures)), *tables)


def _section(
    folder: Path, done: FigureResult, claims_title: str, curve_files: Sequence[str]
) -> Markup:
    figure = done.figure
    title = f"{done.figure.label}: {figure.title}"
    svg = save(plots.paper(done), folder, done.name, title)
    files = [*curve_files, f"{done.name}.png", f"{done.name}.svg", "claims.json"]
    runs = [
        (variant.label, results)
        for variant, results in zip(figure.variants, done.results, strict=False)
    ]
    parts = [
        tag("h2", title),
        _interrupted(done),
        drawing(svg, _CAPTIONS[figure.x, figure.y]),
        _claims(done.claims, claims_title),
        _powers(done),
        exact_table([variant.label for variant in figure.variants], done.values),
    ]
    if runs:
        parts.append(details("Means", tag("p", _MEANS), means_table(runs)))
    parts += [
        details("Settings", *_figure_settings(done)),
        file_links(files, _took(done)),
    ]
    return Markup(f'<section id="{escaped(done.name)}">\n{join(*parts)}\n</section>')


def _took(done: FigureResult) -> str:
    """Write the duration, and the device of a simulation."""
    devices = {x.provenance.described for x in done.results if x.provenance is not None}
    return " on ".join([f"Took {done.seconds:.1f} s", *sorted(devices)]) + ". "


def _interrupted(done: FigureResult) -> Markup:
    if not done.interrupted:
        return Markup("")
    asked = done.figure.n_trials
    trials = sum(results.trials for results in done.results)
    text = f"Interrupted: {trials} of {asked} trials were done. Shown is what there is; "
    return tag("p", f"{text}the claims were not judged.", "note")


def _claims(claims: Sequence[Claim], title: str) -> Markup:
    if not claims:
        return Markup("")
    items = [
        tag(
            "li",
            join(
                tag("p", Markup(f"{_verdict(claim)} {tag('strong', claim.text)}")),
                tag("p", f"Measured: {claim.found}"),
            ),
        )
        for claim in claims
    ]
    return join(tag("h3", title), tag("ul", join(*items), "claims"))


def _verdict(claim: Claim) -> Markup:
    word = claim.verdict
    return Markup(
        f'<span class="verdict {word}"><span aria-hidden="true">{_MARKS[word]}</span> {word}</span>'
    )


def _powers(done: FigureResult) -> Markup:
    if not done.fits:
        return Markup("")
    return join(tag("h3", "Powers"), tag("p", _POWERS), powers_table(done.fits))


def _figure_settings(done: FigureResult) -> list[Markup]:
    variants = done.figure.variants
    arms = arms_table([(variant.label, variant.study.arms) for variant in variants])
    if done.figure.is_computed:
        return [tag("p", f"Subsidy {done.figure.subsidy:g}."), arms]
    results = [*done.results, *[None] * len(variants)]
    return [
        settings_table([(v.label, v.study, r) for v, r in zip(variants, results, strict=False)]),
        arms,
    ]


def _write_curves(folder: Path, done: FigureResult, max_slot_rows: int) -> list[str]:
    """Write the curves as CSV files, variants below one another; return the names."""
    import pandas as pd

    names = []
    if done.series:
        first, *_ = done.series.values()
        name = f"{done.name}-series.csv"
        curves = {key: curve for key, curve in done.series.items() if len(curve) == len(first)}
        pd.DataFrame(curves).to_csv(folder / name, index=False)
        names.append(name)
    longest = max((results.study.horizon for results in done.results), default=0)
    kinds = ("episode",) if longest > max_slot_rows else ("slot", "episode")
    for kind in kinds if done.results else ():
        rows = [
            {"variant": variant.label, **row}
            for variant, results in zip(done.figure.variants, done.results, strict=False)
            for row in getattr(results, f"{kind}_rows")()
        ]
        name = f"{done.name}-{kind}s.csv"
        pd.DataFrame(rows).to_csv(folder / name, index=False)
        names.append(name)
    return names
