"""arena.html: how all policies stand on all problems, on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rmab.arena.run import MARGIN
from rmab.arena.scores import ArenaOutcome, Comparison, ProblemOutcome, Standing
from rmab.report.arena_plots import highlighted, regrets
from rmab.report.canvas import save
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
from rmab.studies.words import RULES, SIGMA, Bounds

__all__ = ["write_arena"]

_LOW, _HIGH = (243, 244, 246), (11, 87, 164)  # colours of a share of 0 and of 1,
_BELOW = (250, 214, 190)  # and of less than 0
_DARK = 0.55  # from this share on the number is white


def write_arena(folder: Path, outcome: ArenaOutcome, beside: Comparison | None = None) -> Path:
    """arena.html, arena.json, arena.csv, regret.png and regret.svg; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    outcome.write(folder)
    coloured = [outcome.policies[name] for name in highlighted(outcome)]
    caption = (
        "Regret against Whittle with known dynamics, per agent, with 95 % bands; below zero a "
        f"learner is ahead of it. In colour: {', '.join(coloured)}; all others that learn are "
        "grey, and those far behind leave the panel."
    )
    svg = save(regrets(outcome), folder, "regret", f"Regret over the slots. {caption}")
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
    """Policy by problem; a cell says more when pointed at."""
    head = "".join(
        f'<th scope="col" class="turned"><a href="#{escaped(p.name)}">{escaped(p.name)}</a></th>'
        for p in outcome.problems
    )
    rows = []
    yardstick = False
    for name, label in outcome.policies.items():
        places = outcome.of(name)
        if not places:
            continue  # refused everywhere
        if next(iter(places.values())).knows and not yardstick:
            yardstick = True
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
    if standing.share is None:
        return f'<td title="{escaped(f"{name} on {problem.name}: nothing is to gain")}">?</td>'
    share = standing.share
    percent = f"{100 * share:z.0f}"
    within = min(max(share, 0.0), 1.0)
    mixed = (round(a + within * (b - a)) for a, b in zip(_LOW, _HIGH, strict=True))
    red, green, blue = _BELOW if percent.startswith("-") else mixed
    ink = "#fff" if share >= _DARK else "#1c1c1e"
    error = "" if standing.share_se is None else f" ± {100 * standing.share_se:.1f}"
    about = f"{name} on {problem.name}: {100 * share:z.1f}{error} %"
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
    """A row for each learner: its word, and what that follows from."""
    labels = outcome.policies
    rows = []
    for name, found in outcome.words.items():
        between = f": {found.worst} to {found.best}" if found.best != found.worst else ""
        said = Markup(f"{tag('strong', found.word)}{escaped(between)}")
        slower = outcome.slower(name)
        rows.append(
            [
                _policy(name, labels[name]),
                said,
                _around(found.middle),
                _around(found.least),
                _around(found.failed),
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
    "Policy",
    "Word",
    "Share, median",
    "Share, smallest",
    "Failed trials",
    "First or tied with it",
    "Time / fedtswi's",
]


def _around(number: Bounds) -> str:
    """In per cent, with bounds where they are known."""
    if number.value != number.value:
        return "not known"
    text = f"{100 * number.value:z.0f}\N{NO-BREAK SPACE}%"
    if abs(number.high - number.low) == float("inf"):
        return f"{text} (error unknown)"
    return f"{text} ({100 * number.low:z.0f} to {100 * number.high:z.0f})"


def _refused(outcome: ArenaOutcome) -> Markup:
    """Which policies did not play, where, and why."""
    rows = []
    for name, reasons in outcome.refused.items():
        where: dict[str, list[str]] = {}
        for problem, why in reasons.items():
            where.setdefault(why, []).append(problem)
        everywhere = not outcome.of(name)
        rows += [
            [
                name,
                "all problems" if everywhere and len(where) == 1 else ", ".join(problems),
                why,
            ]
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


def _beside(beside: Comparison) -> Markup:
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
        told = "Ranks that differ from the order of means"
        lines = Markup("<ul>\n" + "\n".join(tag("li", line) for line in explained) + "\n</ul>")
        parts.append(details(told, tag("p", _RANKS), lines))
    if found.refused:
        refused = [[name, why] for name, why in found.refused.items()]
        told = f"{len(refused)} did not play"
        parts.append(details(told, table("Refusals", ["Policy", "Why"], refused)))
    body = join(*parts)
    return Markup(f'<section id="{escaped(found.name)}">\n{body}\n</section>')


def _exact(found: ProblemOutcome) -> Markup:
    """Long-run averages with known dynamics, in a sentence."""
    shown = {
        "optimum": "optimum",
        "upper_bound": "upper bound",
        "whittle": "Whittle",
        "lookahead": "lookahead",
        "myopic": "myopic",
        "fixed-best": "best fixed arms",
        "random": "random",
    }
    told = [
        f"{word} {found.exact[name]:.5f}"
        for name, word in shown.items()
        if found.exact.get(name) is not None
    ]
    missing = [word for name, word in shown.items() if found.exact.get(name) is None]
    text = f"Known dynamics, exact, in the long run: {', '.join(told)}."
    if missing:
        text += f" Out of reach: {', '.join(missing)}."
    return tag("p", text)


_HEAD = [
    "Policy",
    "Mean",
    "Last tenth",
    "Regret (95 %)",
    "Share",
    "Tied with the first",
    "Rank",
    "Tied with",
    "Failed trials",
    "ms a trial",
]
_PLACES = {"first": "the first", "tied": "tied with the first"}


def _row(name: str, s: Standing, place: str) -> list[str]:
    band = "" if s.regret_low is None else f" ({s.regret_low:.1f} to {s.regret_high:.1f})"
    return [
        _policy(name, s.label),
        _plus_minus(s.mean, s.se),
        _plus_minus(s.final, s.final_se),
        f"{s.regret:.1f}{band}",
        "" if s.share is None else f"{100 * s.share:z.1f} %",
        {"first": "the first", "tied": "yes"}.get(place, "" if s.rank is None else "no"),
        "known" if s.knows and name != "random" else "" if s.rank is None else str(s.rank),
        _tied(s),
        "" if s.stuck is None else f"{100 * s.stuck:.1f} %",
        "" if s.seconds is None else f"{1000 * s.seconds:.3g}",
    ]


def _tied(s: Standing) -> Markup:
    """One by name; of several how many, and their names when pointed at."""
    if len(s.tied) < 2:
        return escaped("".join(s.tied))
    return Markup(f'<span title="{escaped(", ".join(s.tied))}">{len(s.tied)} others</span>')


def _plus_minus(value: float, se: float | None) -> str:
    return f"{value:.5f}" if se is None else f"{value:.5f} ± {se:.5f}"


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
