"""Pages and drawings of the figures of `rmab reproduce`, by section of the report.

Regret against the horizon, the agents or the arms has two rows. Above, the regret per agent on
logarithmic axes, where a power law is a straight line: each policy with its band, the law fitted to
it, and a curve that grows as the bound of Theorem 1 does. Below, the regret of learning from
observations at any gap as a share of the paper's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator

from rmab.experiments.figure import FigureResult
from rmab.experiments.powers import PowerLaw
from rmab.experiments.privacy import claims as privacy
from rmab.experiments.privacy_arms.claims import gains
from rmab.experiments.registry import summary
from rmab.experiments.regret_growth import (
    GAP,
    KNOWN,
    MAX_NAMED_PLACES,
    PLAIN,
    GrowthRate,
    Scaling,
    scalings,
)
from rmab.experiments.verdict import Claim, Verdict
from rmab.report.canvas import (
    bin_edges,
    capital,
    draw_bars,
    draw_legend,
    draw_line,
    lines_of,
    log_ticks,
    log_y,
    panels_of,
    save,
    signed_log_y,
)
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
from rmab.report.page import MEANS, SLOTS
from rmab.report.plots import GREY, StudyColumn, slots
from rmab.report.style import STYLE, LineStyle, label, line_styles, spare_style
from rmab.report.tables import arms_table, exact_table, means_table, powers_table, settings_table
from rmab.studies.results import Curve, Floats, PolicyResult

__all__ = ["draw", "write_paper"]

_MAX_SLOT_ROWS = 10_000  # longest horizon with a CSV file by slot
_X_LABELS = {"slot": "Slots T", "agents": "Agents M", "arms": "Arms N"}
_Y_LABELS = {"reward": "Average reward", "regret": "Regret per slot", "error": "MSE"}


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
    svg = save(draw(done), folder, done.name, title)
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
        parts.append(details("Means", tag("p", MEANS), means_table(runs)))
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


# ----------------------------------------------------------------------------------------- drawings


@rc_context(STYLE)
def draw(done: FigureResult) -> Figure:
    """Draw a figure of the report, as far as it was run."""
    return _KINDS[done.figure.x, done.figure.y](done)


def _rewards(done: FigureResult) -> Figure:
    variants = done.figure.variants
    exact = [*done.values, *({} for _ in variants)]
    return slots(
        [StudyColumn(v.label, r, x) for v, r, x in zip(variants, done.results, exact, strict=False)]
    )


def _episodes(done: FigureResult) -> Figure:
    """Draw a line for each variant of one policy, or a panel for each of several."""
    columns = _lines_of_variants(done) if len(done.results[0]) == 1 else _panels_of_policies(done)
    keys: list[Literal["reward", "regret"]] = ["reward", "regret"]
    if len(columns) == 1:
        keys = ["regret" if done.figure.y == "regret" else "reward"]
    figure, panels = panels_of(len(keys), len(columns), share_y="row")
    for row, key in zip(panels, keys, strict=True):
        for axes, (_, lines) in zip(row, columns, strict=True):
            for place, (style, result) in enumerate(lines):
                curve = result.by_episode(key)
                draw_line(axes, style, np.arange(1, len(curve.mean) + 1), curve, place)
        if key == "regret":
            log_y(*row)
        row[0].set_ylabel(_Y_LABELS[key])
    for column, (title, _) in zip(panels.T, columns, strict=True):
        column[0].set_title(capital(title))
        column[-1].set_xlabel("Episodes")
    draw_legend(figure, panels)
    return figure


_Lines = list[tuple[LineStyle, PolicyResult]]


def _lines_of_variants(done: FigureResult) -> list[tuple[str, _Lines]]:
    lines = []
    for place, (variant, results) in enumerate(
        zip(done.figure.variants, done.results, strict=False)
    ):
        ((style, result),) = lines_of(results)
        style = spare_style(variant.label, place) if variant.label else style
        lines.append((style, result))
    return [("", lines)]


def _panels_of_policies(done: FigureResult) -> list[tuple[str, _Lines]]:
    return [
        (variant.label, lines_of(results))
        for variant, results in zip(done.figure.variants, done.results, strict=False)
    ]


def _errors(done: FigureResult) -> Figure:
    """Draw the squared error of the dynamics, a line for each arm."""
    figure, panels = panels_of(1, 1)
    axes = panels[0, 0]
    (result,) = done.results[0].values()
    curve = result.by_episode("error")
    for arm, (mean, se) in enumerate(zip(curve.mean.T, curve.se.T, strict=True)):
        place = np.arange(1, len(mean) + 1)
        draw_line(axes, spare_style(f"Arm {arm + 1}", arm), place, Curve(mean, se), arm)
    log_y(axes)
    axes.set_xlabel("Episodes")
    axes.set_ylabel(_Y_LABELS["error"])
    draw_legend(figure, panels)
    return figure


def _values(done: FigureResult) -> Figure:
    """Draw both value functions and their threshold over the belief, a panel for each arm."""
    arms = done.figure.variants[0].study.arms
    belief = done.series["belief"]
    figure, panels = panels_of(1, len(arms))
    for arm, axes in enumerate(panels[0]):
        axes.plot(
            belief,
            done.series[f"passive {arm}"],
            "--",
            color="#0072b2",
            label="Leave alone, V(b; 0)",
        )
        axes.plot(belief, done.series[f"active {arm}"], "-", color="#d55e00", label="Play, V(b; 1)")
        crossing, above = done.series[f"threshold {arm}"]
        axes.axvline(crossing, color=GREY, linewidth=0.9)
        sides = ((0.0, crossing, not above), (crossing, 1.0, bool(above)))
        for left, right, played in sides:
            if right > left:
                _region(axes, left, right, "play" if played else "leave alone", played)
        axes.set_title(f"p01 = {arms.p01[arm]:g}, p11 = {arms.p11[arm]:g}: b* = {crossing:.3f}")
        axes.set_xlim(0, 1)
        axes.margins(y=0.15)
        axes.set_xlabel("Belief b")
    panels[0, 0].set_ylabel("Relative value")
    draw_legend(figure, panels)
    return figure


def _region(axes: Axes, left: float, right: float, text: str, shaded: bool) -> None:
    if shaded:
        axes.axvspan(left, right, color="#d55e00", alpha=0.08, linewidth=0)
    axes.text(
        (left + right) / 2,
        0.03,
        text,
        transform=axes.get_xaxis_transform(),
        ha="center",
        va="bottom",
        style="italic",
    )


def _theory(done: FigureResult) -> Figure:
    """Draw episodes beside Lemma 1 and regret beside Theorem 1; without bounds, rewards."""
    if not done.series:
        return _rewards(done)
    figure, panels = panels_of(1, 2)
    episodes, regret = panels[0]
    slot = done.series["slot"]
    ((style, result),) = lines_of(done.results[0])
    bound = {"color": "#000000", "linestyle": "--", "label": "Bound"}
    episodes.step(
        slot, done.series["episodes"], where="post", color=style.colour, label=style.label
    )
    episodes.plot(slot, done.series["episode bound"], **bound)
    episodes.set_title("Lemma 1")
    episodes.set_ylabel("Episodes so far")
    edges = bin_edges(len(slot), logarithmic=True)
    ends = edges[1:] - 1
    draw_line(
        regret,
        replace(style, marker=""),
        edges[1:],
        Curve(result.regret.mean[ends], result.regret.se[ends]),
    )
    regret.plot(slot[ends], done.series["regret bound"][ends], **bound)
    (span,) = done.series["span"]
    regret.set_title(f"Theorem 1, D = {span:.3f}")
    regret.set_ylabel("Regret so far")
    log_y(regret)
    for axes in panels[0]:
        axes.set_xlabel("Slots")
    draw_legend(figure, panels)
    return figure


def _scaling(done: FigureResult) -> Figure:
    """Draw regrets above and shares below, with a column for each K that was run."""
    columns = scalings(done)
    figure, panels = panels_of(2, len(columns), share_y="row")
    for (above, below), scaling in zip(panels.T, columns, strict=True):
        above.set_title(scaling.label)
        above.set_xscale("log")
        _regrets(above, scaling)
        _shares(below, scaling)
        below.set_xlabel(_X_LABELS[done.figure.x])
    curves = [curve.mean for scaling in columns for curve in scaling.regret.values()]
    if all((curve > 0).all() for curve in curves):
        log_y(*panels[0])
    else:
        signed_log_y(*panels[0])
    for (_, below), scaling in zip(panels.T, columns, strict=True):
        _x_ticks(below, scaling.at)
    panels[0, 0].set_ylabel("Regret per agent")
    panels[1, 0].set_ylabel(f"Share of {label(PLAIN)}'s regret")
    draw_legend(figure, panels)
    return figure


def _regrets(axes: Axes, scaling: Scaling) -> None:
    """Draw curves and fitted laws; Theorem 1's growth begins where the last law of PLAIN does."""
    rate, styles = scaling.rate, line_styles(scaling.regret)
    for place, (name, curve) in enumerate(scaling.regret.items()):
        draw_line(axes, styles[name], scaling.at, curve, place)
    for place, name in enumerate(scaling.regret):
        fits = scaling.fits(name)
        for law in fits:
            ends = np.asarray([law.start, law.end])
            axes.plot(ends, law.at(ends), color=styles[name].colour, linestyle="--", linewidth=0.9)
        _slopes(axes, styles[name], rate, fits, place)
    for last in scaling.fits(PLAIN)[-1:]:
        start = np.asarray([last.start])
        at = scaling.at[scaling.at >= start]
        growth = last.at(start) * rate.values(at) / rate.values(start)
        axes.plot(at, growth, color=GREY, linestyle=":", label=f"As {rate.formula} (Theorem 1)")


def _slopes(
    axes: Axes, style: LineStyle, rate: GrowthRate, fits: Sequence[PowerLaw], place: int
) -> None:
    """Write the fitted laws into a free corner: below falling curves, above others."""
    if not fits:
        return
    powers = ", ".join(
        f"{rate.symbol}^{law.slope:.2f}{'' if law.fits else ' (no fit)'}" for law in fits
    )
    falls = rate.values(np.asarray([2.0]))[0] < rate.values(np.asarray([1.0]))[0]
    axes.text(
        0.03,
        (0.16 if falls else 0.97) - 0.08 * place,
        f"{style.label}: {powers}".replace("^-", "^\N{MINUS SIGN}"),
        transform=axes.transAxes,
        va="top",
        color=style.colour,
    )


def _shares(axes: Axes, scaling: Scaling) -> None:
    styles = line_styles([PLAIN, GAP, KNOWN])
    draw_line(axes, styles[GAP], scaling.at, scaling.share, 1)
    axes.axhline(1, color=styles[PLAIN].colour, linewidth=0.9)
    axes.axhline(0, color=styles[KNOWN].colour, linewidth=0.9, linestyle="--")


def _x_ticks(axes: Axes, at: Floats) -> None:
    """Set ticks at the places if they are few, else at powers of ten."""
    log_ticks(axes.xaxis)
    axes.xaxis.set_major_locator(
        FixedLocator(list(at)) if len(at) <= MAX_NAMED_PLACES else LogLocator()
    )


def _losses(done: FigureResult) -> Figure:
    """Draw loss against epsilon, a line for each M: the learner, and beside it the baseline."""
    named = [name for name in (privacy.LEARNER, privacy.BASELINE) if privacy.curves(done, name)]
    figure, panels = panels_of(1, len(named))
    for axes, name in zip(panels[0], named, strict=True):
        curves, learner = privacy.curves(done, name), name == privacy.LEARNER
        for place, (agents, (at, curve)) in enumerate(curves.items()):
            style = spare_style(f"M = {agents}", place)
            draw_bars(axes, style, np.asarray(at), curve, joined=True)
            level = privacy.levels(done).get(f"M = {agents}, no noise")
            if learner and level is not None:
                axes.axhline(level[0], color=style.colour, linewidth=1.1, linestyle=":")
        alone = privacy.levels(done).get("alone")
        if learner and alone is not None:
            axes.axhline(alone[0], color=GREY, linewidth=0.9, label="Alone")
        axes.set_title(label(name))
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        _x_ticks(axes, np.asarray(at))
        axes.set_xlabel("epsilon")
    panels[0, 0].set_ylabel("Loss per slot against WI policy")
    draw_legend(figure, panels)
    return figure


def _gains(done: FigureResult) -> Figure:
    """Draw gains over isolated agents, from the least to the most."""
    figure, panels = panels_of(1, 1)
    (axes,) = panels.flat
    gain = gains(done)
    order = gain.mean.argsort()
    style = line_styles([privacy.LEARNER])[privacy.LEARNER]
    places = np.arange(1, len(order) + 1)
    draw_bars(axes, style, places, Curve(gain.mean[order], gain.se[order]), joined=False)
    axes.axhline(0, color=GREY, linewidth=0.9, label="Alone")
    axes.set_xlabel("Draws of channels, by gain")
    axes.set_ylabel("Gain per slot over learning alone")
    draw_legend(figure, panels)
    return figure


_KINDS: dict[tuple[str, str], Callable[[FigureResult], Figure]] = {
    ("episode", "reward"): _episodes,
    ("episode", "regret"): _episodes,
    ("episode", "error"): _errors,
    ("slot", "reward"): _rewards,
    ("slot", "theory"): _theory,
    ("belief", "value"): _values,
    ("slot", "regret"): _scaling,
    ("agents", "regret"): _scaling,
    ("arms", "regret"): _scaling,
    ("epsilon", "loss"): _losses,
    ("draw", "gain"): _gains,
}


# -------------------------------------------------------------------------------------------- text

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
    ("slot", "reward"): SLOTS,
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
