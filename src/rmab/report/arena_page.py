"""Page of the arena, arena.html: scores, verdicts, regret over the slots, and each problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmab.arena.comparison import ArenaComparison
from rmab.arena.records import ArenaOutcome, ProblemOutcome
from rmab.arena.run import MARGIN
from rmab.arena.scores import SIGMA, Standing
from rmab.arena.verdicts import RULES, Bounds
from rmab.report.canvas import draw_legend, draw_line, save
from rmab.report.html import (
    Markup,
    details,
    drawing,
    escaped,
    file_links,
    join,
    several,
    table,
    tag,
    write_page,
)
from rmab.report.style import STYLE, LineStyle, line_styles
from rmab.studies.results import Curve

__all__ = ["write_arena"]

_LOW, _HIGH = (243, 244, 246), (11, 87, 164)  # colours of scores of 0 and of 1
_BELOW = (250, 214, 190)  # colour of scores below 0
_DARK = 0.55  # least score whose number is white
_COLUMNS = 3
_PANEL = (3.8, 2.5)  # inches
_FIRST = "fedtswi"  # always in colour
_COLOURS = 7  # most policies in colour
_GREY = "#c4c7cd"


def write_arena(folder: Path, outcome: ArenaOutcome, beside: ArenaComparison | None = None) -> Path:
    """Write arena.html, the files of the run, regret.png and regret.svg; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    outcome.write(folder)
    coloured = [outcome.policies[name] for name in _highlighted(outcome)]
    caption = (
        "Regret against Whittle with known dynamics, per agent, with 95 % bands; below zero a "
        f"learner is ahead of it. In colour: {', '.join(coloured)}; all others that learn are "
        "grey, and those far behind leave the panel."
    )
    svg = save(_regrets(outcome), folder, "regret", f"Regret over the slots. {caption}")
    body = [
        tag("h1", "Arena"),
        tag("p", _what_was_run(outcome)),
        _note(outcome),
        tag("h2", "Shares"),
        tag("p", _SHARES),
        _heat(outcome),
        tag("h2", "Verdicts"),
        tag("p", _VERDICTS),
        _verdicts(outcome),
        table("Rules", ["Word", "Rule, the first that holds"], [[w, r] for w, r in RULES]),
        _refused(outcome),
        tag("h2", "Regret"),
        drawing(svg, caption),
        *([] if beside is None else [_beside(beside)]),
        *(_problem(each) for each in outcome.problems),
        file_links(["arena.json", "arena.csv", "regret.png", "regret.svg"]),
    ]
    return write_page(folder, "Arena", body, "arena.html")


def _what_was_run(outcome: ArenaOutcome) -> str:
    played = [name for name in outcome.policies if outcome.of(name)]
    made: Mapping[str, Any] = outcome.made
    text = (
        f"{_policies(len(played))} on {several(len(outcome.problems), 'problem')}, on each problem "
        "all on the same trials."
    )
    if made:
        versions = ", ".join(f"{name} {made['versions'][name]}" for name in ("rmab", "jax"))
        took, begun = made["time"]["seconds"], made["time"]["begun"]
        text += f" Made on {made['device']}, {begun}, in {took:.0f} s, with {versions}."
    return text


def _policies(n: int) -> str:
    return f"{n} policy" if n == 1 else f"{n} policies"


def _note(outcome: ArenaOutcome) -> Markup:
    if not outcome.interrupted:
        return Markup("")
    return tag("p", "Interrupted: the problems below were done, others were not.", "note")


# --------------------------------------------------------------------------------------- overviews


def _heat(outcome: ArenaOutcome) -> Markup:
    """Table of scores, policy by problem; a cell's title has more."""
    head = "".join(
        f'<th scope="col" class="turned"><a href="#{escaped(p.name)}">{escaped(p.name)}</a></th>'
        for p in outcome.problems
    )
    rows = []
    known = False  # a heading stands above the first that is not ranked
    for name, label in outcome.policies.items():
        places = outcome.of(name)
        if not places:
            continue  # refused everywhere
        if next(iter(places.values())).uses_true_dynamics and not known:
            known = True
            rows.append(
                f'<tr class="apart"><th scope="rowgroup" colspan="{len(outcome.problems) + 1}">'
                "Yardsticks: they know the dynamics, or are chance</th></tr>"
            )
        cells = "".join(_heat_cell(problem, name) for problem in outcome.problems)
        rows.append(
            f'<tr><th scope="row" title="{escaped(label)}">{escaped(name)}</th>{cells}</tr>'
        )
    body = "\n".join(rows)
    return Markup(
        '<div class="scroll" role="region" tabindex="0" aria-label="Shares by policy and problem">'
        f'\n<table class="heat">\n<thead><tr><th scope="col">Policy</th>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def _heat_cell(problem: ProblemOutcome, name: str) -> str:
    standing = problem.standings.get(name)
    if standing is None:
        why = problem.refused.get(name, "it was not asked to play")
        return f'<td class="none" title="{escaped(f"{name} on {problem.name}: {why}")}">–</td>'
    if standing.score is None:
        return f'<td title="{escaped(f"{name} on {problem.name}: nothing is to gain")}">?</td>'
    score = standing.score
    percent = f"{100 * score:z.0f}"
    within = min(max(score, 0.0), 1.0)
    mixed = (round(a + within * (b - a)) for a, b in zip(_LOW, _HIGH, strict=True))
    red, green, blue = _BELOW if percent.startswith("-") else mixed
    ink = "#fff" if score >= _DARK else "#1c1c1e"
    error = "" if standing.score_se is None else f" ± {100 * standing.score_se:.1f}"
    about = f"{name} on {problem.name}: {100 * score:z.1f}{error} %"
    if standing.rank is not None:
        about += f", rank {standing.rank}"
    place = problem.place(name)
    about += f", {_PLACES[place]}" if place else ""
    leads = ' class="leads"' if place else ""
    return (
        f'<td{leads} style="background: rgb({red}, {green}, {blue}); color: {ink}" '
        f'title="{escaped(about)}">{percent}</td>'
    )


def _policy(name: str, label: str) -> Markup:
    if name == label:
        return escaped(name)
    return Markup(f"{escaped(label)} <code>{escaped(name)}</code>")


def _verdicts(outcome: ArenaOutcome) -> Markup:
    """Table of learners: the word for each, and its numbers."""
    labels = outcome.policies
    rows = []
    for name, word in outcome.words.items():
        between = f": {word.worst} to {word.best}" if word.best != word.worst else ""
        said = Markup(f"{tag('strong', word.word)}{escaped(between)}")
        slower = outcome.slower(name)
        rows.append(
            [
                _policy(name, labels[name]),
                said,
                _around(word.middle),
                _around(word.least),
                _around(word.failed),
                f"{len(outcome.places(name))} of {len(outcome.of(name))}",
                "" if slower is None else f"{slower:.0f}" if slower >= 10 else f"{slower:.2g}",
            ]
        )
    nothing = [
        n for n, each in outcome.verdicts.items() if n not in outcome.words and outcome.of(n)
    ]
    return join(
        table("Verdicts", _VERDICT_HEAD, rows, numbers_from=2),
        table(
            "Yardsticks",
            ["Yardstick", "Share"],
            [[_policy(name, labels[name]), outcome.verdicts[name]] for name in nothing],
        )
        if nothing
        else Markup(""),
    )


_VERDICT_HEAD = [
    *("Policy", "Word", "Share, median", "Share, smallest", "Failed trials"),
    *("First or tied with it", "Time / fedtswi's"),
]


def _around(number: Bounds) -> str:
    """Write a number in per cent, with its bounds where they are known."""
    if number.value != number.value:
        return "not known"
    text = f"{100 * number.value:z.0f}\N{NO-BREAK SPACE}%"
    if abs(number.high - number.low) == float("inf"):
        return f"{text} (error unknown)"
    return f"{text} ({100 * number.low:z.0f} to {100 * number.high:z.0f})"


def _refused(outcome: ArenaOutcome) -> Markup:
    """Table of refused policies, with problems and reasons."""
    rows = []
    for name, reasons in outcome.refused.items():
        where: dict[str, list[str]] = {}
        for problem, why in reasons.items():
            where.setdefault(why, []).append(problem)
        everywhere = not outcome.of(name) and len(where) == 1
        rows += [
            [name, "all problems" if everywhere else ", ".join(problems), why]
            for why, problems in where.items()
        ]
    if not rows:
        return Markup("")
    return join(
        tag("h2", "Refused policies"),
        tag("p", _REFUSED),
        details(
            f"{_policies(len(outcome.refused))}, and why",
            table("Refused policies", ["Policy", "Refused by", "Why"], rows),
        ),
    )


def _beside(beside: ArenaComparison) -> Markup:
    everything = "Means of both runs"
    head = ["Problem", "Policy", "Here", "There", "Difference", "Standard errors"]

    def means(rows: Sequence[Mapping[str, Any]]) -> Markup:
        cells = [_compared(row) for row in rows]
        return table(everything, head, cells, numbers_from=2) if cells else Markup("")

    differ = beside.differ or ["Nothing: the same versions, problems and policies."]
    listed = Markup("<ul>\n" + "\n".join(tag("li", line) for line in differ) + "\n</ul>")
    return join(
        tag("h2", "Beside another run"),
        tag("p", f"{beside.in_short[0].upper()}{beside.in_short[1:]}."),
        tag("h3", "What differs"),
        listed,
        means(beside.apart),
        details(f"All {len(beside.rows)} means", means(beside.rows), tag("p", _BESIDE)),
    )


def _compared(row: Mapping[str, Any]) -> list[str]:
    error = "" if row["se"] is None else f" ± {row['se']:.5f}"
    return [
        row["problem"],
        row["policy"],
        f"{row['here']:.5f}",
        f"{row['there']:.5f}",
        f"{row['difference']:+.5f}{error}",
        "" if row["sigma"] is None else f"{row['sigma']:+.1f}",
    ]


# ------------------------------------------------------------------------------------- one problem


def _problem(found: ProblemOutcome) -> Markup:
    about = f"{found.reason[0].upper()}{found.reason[1:]}."
    leaders = [found.standings[name].label for name in found.leaders]
    part = " (interrupted)" if found.interrupted else ""
    text = f"{found.size}; {several(found.trials, 'trial')}{part}."
    if leaders:
        text += f" First of those that learn: {leaders[0]}"
        text += f", tied with {', '.join(leaders[1:])}." if leaders[1:] else "."
    rows = [_row(name, each, found.place(name)) for name, each in found.standings.items()]
    parts = [
        tag("h2", found.name),
        tag("p", about),
        tag("p", text),
        _exact(found),
        table(f"Policies on {found.name}", _HEAD, rows, numbers_from=1),
    ]
    explained = found.ranks_explained
    if explained:
        head = "Ranks that differ from the order of means"
        lines = Markup("<ul>\n" + "\n".join(tag("li", line) for line in explained) + "\n</ul>")
        parts.append(details(head, tag("p", _RANKS), lines))
    if found.refused:
        refused = [[name, why] for name, why in found.refused.items()]
        head = f"{len(refused)} did not play"
        parts.append(details(head, table("Refusals", ["Policy", "Why"], refused)))
    body = join(*parts)
    return Markup(f'<section id="{escaped(found.name)}">\n{body}\n</section>')


def _exact(found: ProblemOutcome) -> Markup:
    """Write the long-run averages with known dynamics."""
    shown = {
        "optimum": "optimum",
        "upper_bound": "upper bound",
        "whittle": "Whittle",
        "lookahead": "lookahead",
        "myopic": "myopic",
        "fixed-best": "best fixed arms",
        "random": "random",
    }
    values = [
        f"{word} {found.exact[name]:.5f}"
        for name, word in shown.items()
        if found.exact.get(name) is not None
    ]
    missing = [word for name, word in shown.items() if found.exact.get(name) is None]
    text = f"Known dynamics, exact, in the long run: {', '.join(values)}."
    if missing:
        text += f" Out of reach: {', '.join(missing)}."
    return tag("p", text)


_HEAD = [
    *("Policy", "Mean", "Last tenth", "Regret (95 %)", "Share", "Tied with the first", "Rank"),
    *("Tied with", "Failed trials", "ms a trial"),
]
_PLACES = {"first": "the first", "tied": "tied with the first"}


def _row(name: str, s: Standing, place: str) -> list[str]:
    band = "" if s.regret_low is None else f" ({s.regret_low:.1f} to {s.regret_high:.1f})"
    return [
        _policy(name, s.label),
        _plus_minus(s.mean, s.se),
        _plus_minus(s.final, s.final_se),
        f"{s.regret:.1f}{band}",
        "" if s.score is None else f"{100 * s.score:z.1f} %",
        {"first": "the first", "tied": "yes"}.get(place, "" if s.rank is None else "no"),
        _rank(name, s),
        _tied(s),
        "" if s.failed is None else f"{100 * s.failed:.1f} %",
        "" if s.seconds is None else f"{1000 * s.seconds:.3g}",
    ]


def _rank(name: str, s: Standing) -> str:
    if s.rank is not None:
        return str(s.rank)
    return "known" if s.uses_true_dynamics and name != "random" else ""


def _tied(s: Standing) -> Markup:
    """Name of one policy; of several the number, with their names as title."""
    if len(s.tied) < 2:
        return escaped("".join(s.tied))
    return Markup(f'<span title="{escaped(", ".join(s.tied))}">{len(s.tied)} others</span>')


def _plus_minus(value: float, se: float | None) -> str:
    return f"{value:.5f}" if se is None else f"{value:.5f} ± {se:.5f}"


# ------------------------------------------------------------------------------------------ regret


def _highlighted(outcome: ArenaOutcome) -> list[str]:
    """Policies drawn in colour: FedTSWI, then the learners that were first most often."""

    def merit(name: str) -> tuple[int, float]:
        places = outcome.of(name).values()
        scores = [each.score for each in places if each.score is not None]
        return len(outcome.places(name)), median(scores) if scores else 0.0

    learners = [
        name
        for name in outcome.policies
        if any(not each.uses_true_dynamics for each in outcome.of(name).values())
    ]
    order = sorted(learners, key=merit, reverse=True)
    first = [name for name in order if name == _FIRST]
    return [*first, *(name for name in order if name != _FIRST)][:_COLOURS]


@rc_context(STYLE)
def _regrets(outcome: ArenaOutcome) -> Figure:
    """Draw regret against `whittle` over the slots, a panel for each problem."""
    problems = outcome.problems
    columns = min(_COLUMNS, len(problems))
    rows = -(-len(problems) // columns)
    size = (max(5.8, _PANEL[0] * columns), 1.0 + _PANEL[1] * rows)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    chosen = _highlighted(outcome)
    drawn = line_styles(chosen)
    labels = outcome.policies
    styles = {n: LineStyle(labels[n], s.colour, s.dash, s.marker) for n, s in drawn.items()}
    for place, axes in enumerate(grid.flat):
        if place >= len(problems):
            axes.set_visible(False)
            continue
        _panel(axes, problems[place], chosen, styles)
        if place % columns == 0:
            axes.set_ylabel("Regret")
        if place + columns >= len(problems):
            axes.set_xlabel("Slot")
    draw_legend(figure, grid)
    return figure


def _panel(
    axes: Axes, problem: ProblemOutcome, chosen: Sequence[str], styles: dict[str, LineStyle]
) -> None:
    axes.set_title(problem.name)
    ends = []
    for name, standing in problem.standings.items():
        if standing.uses_true_dynamics:
            continue
        slots, regret, se = (np.asarray(standing.curve[key]) for key in ("slot", "regret", "se"))
        if name in chosen:
            draw_line(axes, styles[name], slots, Curve(regret, se), chosen.index(name))
            ends.append(regret)
        else:
            axes.plot(slots, regret, color=_GREY, linewidth=0.9, zorder=1)
    if ends:  # policies without colour may leave the panel: they are far behind
        low, high = min(x.min() for x in ends), max(x.max() for x in ends)
        room = 0.08 * max(high - low, 1e-9)
        axes.set_ylim(low - room, high + room)
    axes.set_xlim(left=0)


# -------------------------------------------------------------------------------------------- text

_SHARES = (
    "Per cent of the distance from random to the best policy that knows the dynamics, of mean "
    "rewards over the horizon. 100 is as good as knowing, 0 as good as chance; below 0 is worse "
    "than chance. A frame marks the learner with the largest mean, and those tied with it. A dash: "
    "the policy is not for these arms; point at it to read why. Policies come from the largest "
    "median share to the smallest, each over the problems that it plays."
)
_VERDICTS = (
    "A word follows from the shares of a learner and from its failed trials. In brackets is how "
    f"far they may be off: {SIGMA:g} standard errors to each side, more where trials are few. "
    "Where two words are possible within that, the answer is undecided, and more trials decide "
    "it. A word does not follow from ranks and ties: many are tied where trials are few or rewards "
    "vary much. A trial has failed if its last tenth earns less than that of Whittle with known "
    f"dynamics in the same trial by more than {100 * MARGIN:.0f}\N{NO-BREAK SPACE}% of the "
    "distance from random to the best known; what fails by chance, as policies that know the "
    "dynamics tell, is taken off in this table. Time is in the median over problems."
)
_REFUSED = "These policies are not for the arms of a problem, or were left out for their time."
_RANKS = (
    f"A rank is one more than the number of learners that are better by more than {SIGMA:g} "
    "standard errors of the paired difference, trial by trial. That error differs from pair to "
    "pair, so a policy with a smaller mean may have the better rank."
)
_BESIDE = (
    "Standard errors are those of independent trials. Runs of the same seed have the same trials, "
    "and theirs are smaller."
)
