"""Pages: the report of a study and the report of figures, the paper's and those beyond it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rmab.report import plots
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
    settings_table,
    what_was_run,
)
from rmab.studies.figure import Claim, Drawn
from rmab.studies.results import Results

__all__ = ["write_paper", "write_study"]

MOST_SLOTS = 10_000  # in the table of a figure's slots; longer ones have their curves alone


def write_study(folder: Path, name: str, results: Results) -> Path:
    """figure.png, figure.svg and report.html of a study; returns the report's path."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"Average reward over the slots by policy, study {name}; the table below has the means."
    svg = save(plots.study(results), folder, "figure", about)
    files = ["results.json", "slots.csv", "episodes.csv", "figure.png", "figure.svg"]
    body = [
        tag("h1", f"Study {name}"),
        what_was_run(results),
        drawing(svg, CAPTIONS["slot", "reward"]),
        tag("h2", "Means"),
        tag("p", MEANS),
        means_table([("", results)]),
        tag("h2", "Settings"),
        settings_table([("", results.study, results)]),
        arms_table([("", results.study.arms)]),
        file_links(files),
    ]
    return write_page(folder, f"Study {name}", body)


def write_paper(folder: Path, drawn: list[Drawn]) -> Path:
    """Drawings, tables and claims of figures, by section, and report.html; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    claims = {each.name: each.to_json() for each in drawn}
    text = json.dumps(claims, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / "claims.json").write_text(text + "\n", encoding="utf-8")
    body = [tag("h1", TITLE), tag("p", INTRODUCTION), _overview(drawn)]
    for key, chapter in CHAPTERS.items():
        figures = [each for each in drawn if each.figure.section == key]
        if figures and chapter.title:
            body += [tag("h1", chapter.title), tag("p", chapter.about)]
        body += [_section(folder, each, chapter.claims) for each in figures]
    return write_page(folder, TITLE, body)


# -------------------------------------------------------------------------------------------- texts

TITLE = "The paper's figures, run again"
INTRODUCTION = (
    "Each figure of the paper's simulations was computed anew and drawn. Below each stands what "
    "the paper says of it, what was measured, and whether it held. A difference counts when it "
    "exceeds four standard errors. Bands in the drawings are 95 %: 1.96 standard errors to each "
    "side. Rewards are averages per agent and slot, and regret is counted against the Whittle "
    "(WI) policy with known dynamics."
)


class Chapter(NamedTuple):
    """A section of the report; the paper's own needs no title below the page's."""

    title: str
    about: str
    claims: str  # above the claims of each figure


CHAPTERS = {
    "paper": Chapter("", "", "What the paper says"),
    "looks": Chapter(
        "Learning from every look",
        "FedTSWI learns from looks at an arm in two consecutive slots and drops all others. "
        "FedTSWI-gap learns from every two successive looks at an arm, however far apart: g slots "
        "apart, what was seen has the probability of a move of g steps. Both meet the same "
        "channels and have the same episodes, so what they learn from is all that differs. Regret "
        "is per agent, against the Whittle policy with known dynamics.",
        "What is claimed",
    ),
    "beyond": Chapter(
        "Beyond the paper: arms of other kinds",
        "The paper's framework is for arms of any number of states, whose moves may depend on "
        "being played; its simulations are of two-state channels. These studies are of the "
        "catalogue. The dynamics are learnt from nothing in the same way, the indices come from "
        "the general solver, and what is claimed is what the framework promises.",
        "What is claimed",
    ),
}
MEANS = (
    "Average reward per agent and slot, ± its standard error, over all slots and over the last "
    "tenth of them. Behind whittle: how much less than the Whittle policy with known dynamics on "
    "the same trials; the error is of the difference, trial by trial."
)
_SLOTS = (
    "Rewards are averaged over bins of slots. Regret so far is against the WI policy with known "
    "dynamics on the same trials; negative is better than WI. Bands are 95 %."
)
_EPISODES = "Episodes that at least half of the trials played to the end. Bands are 95 %."
_SCALING = (
    "Above, regret per agent; below zero is better than the Whittle policy with known dynamics. "
    "Dashed, the power laws fitted to it, where it is clearly positive; dotted, what grows as the "
    "bound of Theorem 1 does, whose own height is far above. Below, the regret of FedTSWI-gap as a "
    "share of FedTSWI's: at 1 nothing is gained, at 0 it earns what Whittle does. Bands are 95 %."
)
CAPTIONS = {
    ("episode", "reward"): _EPISODES,
    ("episode", "regret"): _EPISODES,
    ("episode", "error"): _EPISODES,
    ("slot", "reward"): _SLOTS,
    ("slot", "theory"): "Measured, beside the bounds of Lemma 1 and Theorem 1 once computed; D is "
    "the span of the optimal relative values. The band is 95 %.",
    ("slot", "regret"): f"{_SCALING} Laws are fitted to the third last decade of slots and to the "
    "last two.",
    ("agents", "regret"): _SCALING,
    ("arms", "regret"): _SCALING,
    ("belief", "value"): "Computed, not simulated. The arm is played where playing is worth more.",
}
MARKS = {True: ("held", "✓"), False: ("broken", "✗"), None: ("noted", "•")}


# --------------------------------------------------------------------------------- figure by figure


def _overview(drawn: Sequence[Drawn]) -> Markup:
    """All claims in one table, with links."""
    if not drawn:
        return tag("p", "Interrupted before anything was done: there is nothing to show.")
    rows = [
        [link(f"#{each.name}", _number(each.name)), claim.text, _verdict(claim)]
        for each in drawn
        for claim in each.claims
    ]
    rows += [
        [link(f"#{each.name}", _number(each.name)), "not judged: interrupted", ""]
        for each in drawn
        if each.interrupted
    ]
    counts = Counter(claim.verdict for each in drawn for claim in each.claims)
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return join(
        tag("h2", "All claims"),
        tag("p", f"{counts.total()} claims: {words}." if counts else "No claim was judged."),
        table("All claims", ["Figure", "Claim", "Verdict"], rows),
    )


def _section(folder: Path, drawn: Drawn, claims_title: str) -> Markup:
    figure = drawn.figure
    title = f"{_number(drawn.name)}: {figure.title}"
    svg = save(plots.paper(drawn), folder, drawn.name, title)
    files = [*_tables(folder, drawn), f"{drawn.name}.png", f"{drawn.name}.svg", "claims.json"]
    done = [
        (variant.label, results)
        for variant, results in zip(figure.variants, drawn.results, strict=False)
    ]
    parts = [
        tag("h2", title),
        _interrupted(drawn),
        drawing(svg, CAPTIONS[figure.x, figure.y]),
        _claims(drawn.claims, claims_title),
        exact_table([variant.label for variant in figure.variants], drawn.values),
    ]
    if done:
        parts.append(details("Means", tag("p", MEANS), means_table(done)))
    parts += [
        details("Settings", *_figure_settings(drawn)),
        file_links(files, f"Took {drawn.seconds:.1f} s. "),
    ]
    return Markup(f'<section id="{escaped(drawn.name)}">\n{join(*parts)}\n</section>')


def _interrupted(drawn: Drawn) -> Markup:
    if not drawn.interrupted:
        return Markup("")
    asked = drawn.figure.n_trials
    trials = sum(results.trials for results in drawn.results)
    return tag(
        "p",
        f"Interrupted: {trials} of {asked} trials were done. Shown is what there is; the "
        "claims were not judged.",
        "note",
    )


def _claims(claims: Sequence[Claim], title: str) -> Markup:
    if not claims:
        return Markup("")
    items = [
        tag(
            "li",
            join(
                tag("p", Markup(f"{_verdict(claim)} {tag('strong', claim.text)}")),
                tag("p", f"Measured: {claim.measured}"),
            ),
        )
        for claim in claims
    ]
    return join(tag("h3", title), tag("ul", join(*items), "claims"))


def _verdict(claim: Claim) -> Markup:
    kind, mark = MARKS[claim.held]
    return Markup(
        f'<span class="verdict {kind}"><span aria-hidden="true">{mark}</span> '
        f"{escaped(claim.verdict)}</span>"
    )


def _figure_settings(drawn: Drawn) -> list[Markup]:
    variants = drawn.figure.variants
    arms = arms_table([(variant.label, variant.study.arms) for variant in variants])
    if drawn.figure.x == "belief":
        return [tag("p", f"Subsidy {drawn.figure.subsidy:g}."), arms]
    results = [*drawn.results, *[None] * len(variants)]
    return [
        settings_table([(v.label, v.study, r) for v, r in zip(variants, results, strict=False)]),
        arms,
    ]


def _tables(folder: Path, drawn: Drawn) -> list[str]:
    """Write the curves as CSV files, variants below one another; returns the files' names."""
    import pandas as pd

    names = []
    if drawn.series:
        first, *_ = drawn.series.values()
        name = f"{drawn.name}-series.csv"
        curves = {key: curve for key, curve in drawn.series.items() if len(curve) == len(first)}
        pd.DataFrame(curves).to_csv(folder / name, index=False)
        names.append(name)
    longest = max((results.study.horizon for results in drawn.results), default=0)
    kinds = ("episode",) if longest > MOST_SLOTS else ("slot", "episode")
    for kind in kinds if drawn.results else ():
        rows = [
            {"variant": variant.label, **row}
            for variant, results in zip(drawn.figure.variants, drawn.results, strict=False)
            for row in getattr(results, f"{kind}_rows")()
        ]
        name = f"{drawn.name}-{kind}s.csv"
        pd.DataFrame(rows).to_csv(folder / name, index=False)
        names.append(name)
    return names


def _number(name: str) -> str:
    """fig09a is Fig. 9(a), regret-arms is Regret, arms."""
    found = re.fullmatch(r"fig0*(\d+)([a-z]?)", name)
    if found is None:
        return name.capitalize().replace("-", ", ")
    number, letter = found.groups()
    return f"Fig. {number}" + (f"({letter})" if letter else "")
