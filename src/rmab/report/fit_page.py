"""fit.html: whether a chain fits a trace, on one page that is read in two minutes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from rmab.report.canvas import save
from rmab.report.fit_plots import PICTURES, draw
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
from rmab.traces.code_length import MODELS
from rmab.traces.fit import Fit
from rmab.traces.verdicts import FITS, UNKNOWN, Verdict

__all__ = ["write_fit"]

# An option with its value, a policy of several words, a key with its value (quotes are escaped).
_SETTING = re.compile(
    r"(--[a-z-]+(?: any-bad)?|(?<!\S)(?:fed[a-z-]+)?-robust|\w+ = (?:&\S+?;\S+?&\S+?;|\d+))"
)
_MAX_ROWS = 500  # of the table of arms; fit.json has all


def write_fit(folder: Path, name: str, fit: Fit) -> Path:
    """fit.html, fit.json and the pictures; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(fit.to_json(), indent=2, ensure_ascii=False, allow_nan=False)
    (folder / "fit.json").write_text(text + "\n", encoding="utf-8")
    drawn = {
        key: drawing(save(draw(key, fit), folder, key, _CAPTIONS[key]), _CAPTIONS[key])
        for key in PICTURES
    }
    body = [
        tag("h1", f"Does a Markov chain fit {name}?"),
        tag("p", _what_was_read(fit)),
        tag("p", tag("strong", fit.in_short)),
        _verdicts(fit.verdicts),
        tag("h2", "Reward: what the chain would promise, and what the trace pays"),
        *(tag("p", each, kind) for each, kind in _order_of_policies(fit)),
        drawn.pop("rewards"),
        tag("h2", "Bits: what each model predicts"),
        tag("p", _BITS),
        _models(fit),
        tag("h2", "Where trace and twins differ"),
        tag("p", _TWINS),
        *(join(tag("h3", _TITLES[key]), each) for key, each in drawn.items()),
        tag("p", _effective(fit)),
        tag("h2", "The arms"),
        _arms(fit),
        file_links(["fit.json", *(f"{key}.png" for key in PICTURES)]),
    ]
    return write_page(folder, f"Fit of {name}", body, "fit.html")


# -------------------------------------------------------------------------------------------- parts


def _what_was_read(fit: Fit) -> str:
    """The trace in a line."""
    trace = fit.trace
    agents, slots, arms = trace.state.shape
    length = "" if trace.slot_s is None else f" of {trace.slot_s:g} s"
    left_out = len(trace.never_measured)
    levels = "" if trace.states == 2 else f" {trace.states} states, of which the highest is good."
    return (
        f"{several(agents, 'agent')}, {several(slots, 'slot')}{length}, {several(arms, 'arm')}, "
        f"{several(trace.n_segments, 'segment')}; "
        f"{100 * trace.good:.1f} % good, {100 * trace.missing:.1f} % missing.{levels} "
        f"{len(fit.tested)} of {len(fit.series)} series have 100 pairs of neighbouring slots and 8 "
        "changes, and are tested."
        + (f" Never measured and left out: {left_out}." if left_out else "")
        + f" Source: {trace.source}."
    )


def _verdicts(verdicts: list[Verdict]) -> Markup:
    rows = [
        [v.question, _mark(v), v.sentence.replace(" %", "\N{NO-BREAK SPACE}%"), _settings(v.so)]
        for v in verdicts
    ]
    return table("Verdicts", ["Question", "Verdict", "What was found", "So"], rows)


def _settings(text: str) -> Markup:
    """A text whose options and settings are not broken over lines."""
    return Markup(_SETTING.sub(r'<code class="whole">\1</code>', escaped(text)))


def _mark(verdict: Verdict) -> Markup:
    kind, mark = _MARKS.get(verdict.answer, ("broken", "✗"))
    return Markup(
        f'<span class="verdict {kind}"><span aria-hidden="true">{mark}</span> '
        f"{escaped(verdict.answer)}</span>"
    )


def _order_of_policies(fit: Fit) -> list[tuple[str, str]]:
    """What the first picture says, in words; a reversal stands out."""
    if fit.reversal_matters:
        more = (
            " A study of these chains would recommend the wrong one: back-test before you choose."
        )
        said = [(fit.order_in_words + more, "note")]
    else:
        said = [(fit.order_in_words, "")]
    outside = [
        f"{name} {'more' if each.trace > each.replicates.max() else 'less'}"
        for name, each in fit.earned.items()
        if not each.replicates.min() <= each.trace <= each.replicates.max()
    ]
    if outside:
        text = "Outside the band of the twins, the trace pays: " + ", ".join(outside) + "."
        said.append((text, ""))
    return said


def _models(fit: Fit) -> Markup:
    rows = []
    for model in MODELS:
        bits, share = fit.bits[model], fit.share[model]
        rows.append(
            [
                Markup(f"{escaped(_MODELS[model])} <code>{model}</code>"),
                "" if bits is None else f"{bits:.4f}",
                "" if share is None else f"{100 * share:.0f} %",
            ]
        )
    head = ["Model of the next state", "Bits a slot", "Share of the best's"]
    return table("Bits by model", head, rows, numbers_from=1)


def _effective(fit: Fit) -> str:
    """What the last picture says of the agents."""
    if fit.correlation is None:
        return ""
    mean = f"a mean correlation rho = {fit.correlation:z.2f} between agents"
    worth = f"M = {several(fit.n_agents, 'agent')} are worth"
    if fit.correlation <= 0:
        return f"With {mean}, {worth} {fit.effective:.1f}: none is lost where rho is not above 0."
    return f"With {mean}, {worth} M / (1 + (M - 1) rho) = {fit.effective:.1f}."


def _arms(fit: Fit) -> Markup:
    agents, arms = fit.trace.agents, fit.trace.arms
    rows = [
        [
            agents[x.agent],
            arms[x.arm],
            f"{x.p01:.4f}",
            f"{x.p11:.4f}",
            f"{x.good:.4f}",
            f"{x.pairs:,}",
        ]
        for x in fit.series[:_MAX_ROWS]
    ]
    more = len(fit.series) - len(rows)
    head = ["Agent", "Arm", "p01", "p11", "Good", "Pairs"]
    return details(
        f"Fitted dynamics of {len(fit.series)} series",
        table("Arms", head, rows, numbers_from=2),
        tag("p", f"{more} more are in fit.json.") if more else Markup(""),
    )


_MARKS = {FITS: ("held", "✓"), UNKNOWN: ("noted", "•")}
_MODELS = {
    "iid": "The share of good",
    "order1": "The chain",
    "order2": "The last two states",
    "ages": "The state and how long it has lasted",
    "regimes": "Chains on pieces of time",
    "flicker": "A hidden chain, seen wrongly",
}
_BITS = (
    "How many bits it takes to say the next state, a slot: fewer is better, and a model pays half "
    "of log2 n for each parameter. Shares are of what the best model saves beyond the share of "
    "good."
)
_TWINS = (
    "A twin has the trace's segments and holes, and in them the chains that were fitted, arms and "
    "agents independent. Bands go from the lowest to the highest of 20 twins. Where the trace "
    "leaves the band, the chain is wrong about that."
)
_TITLES = {
    "strip": "States",
    "runs": "How long good and bad last",
    "blocks": "Good over time",
    "memory": "How fast an observation goes stale",
    "correlation": "Agents and arms together",
}
_CAPTIONS = {
    "rewards": "Average reward of four rules that do not learn; myopic and whittle know the "
    "dynamics fitted to what they play on, genie sees the states.",
    "strip": "The agent and the window with most changes; blue is good, orange is bad, shades "
    "between are states between, and white was not measured.",
    "runs": "Share of runs that last at least so many slots. Of a chain the logarithm falls in "
    "proportion to the length; a trace above the band has longer runs than any chain of its law.",
    "blocks": "Share of good in 48 blocks of time: all series, and the one where pieces save most "
    "bits, with dotted lines where its law is cut.",
    "memory": "Share of good k slots after an observation. Dashed: what the chain predicts, "
    "b0 + m^k (s - b0). A trace that comes back more slowly has a longer memory than the chain.",
    "correlation": "Mean correlation of two agents on one arm, and of two arms of one agent. Arms "
    "that go bad together leave less to choose from than the chain promises.",
}
