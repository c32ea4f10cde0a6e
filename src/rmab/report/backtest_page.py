"""Page of a back-test, backtest.html: rewards of policies on a trace, over time and by agent."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from rmab.report.canvas import draw_legend, draw_line, panels_of, save
from rmab.report.html import Markup, drawing, file_links, join, several, table, tag, write_page
from rmab.report.style import STYLE, line_styles
from rmab.report.tables import policy_cell
from rmab.studies.results import Curve
from rmab.traces.outcome import FEWEST_BLOCKS, Backtest, Difference

__all__ = ["draw_differences", "write_backtest"]

_MAX_AGENTS = 100  # in the page's table; agents.csv has all
_BINS = 50  # along the slots
_NAMED_AGENTS = 20  # most agents that have a place of their own in the picture


def write_backtest(folder: Path, name: str, found: Backtest) -> Path:
    """Write backtest.html, backtest.json, time.csv, agents.csv and pictures; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found.to_json(), indent=2, ensure_ascii=False, allow_nan=False)
    (folder / "backtest.json").write_text(text + "\n", encoding="utf-8")
    _write_series(folder, found)
    drawn = [
        join(
            tag("h2", title),
            drawing(save(draw(found), folder, key, caption), caption),
        )
        for key, (draw, title, caption) in _PICTURES.items()
    ]
    body = [
        tag("h1", f"Back-test on {name}"),
        tag("p", _what_was_played(found)),
        *([tag("p", _INTERRUPTED, "note")] if found.interrupted else []),
        tag("p", tag("strong", found.in_short)),
        _means(found),
        tag("p", _about(found)),
        *drawn,
        tag("h2", "Agents"),
        _agents(found),
        file_links(
            ["backtest.json", "time.csv", "agents.csv", *(f"{key}.png" for key in _PICTURES)]
        ),
    ]
    return write_page(folder, f"Back-test on {name}", body, "backtest.html")


def _what_was_played(found: Backtest) -> str:
    trace = found.trace
    agents, slots, arms = trace.state.shape
    left_out = len(trace.never_measured)
    size = f"{several(slots, 'slot')}, {several(trace.n_segments, 'segment')}"
    return (
        f"{several(agents, 'agent')}, {'who' if agents == 1 else 'each of whom'} plays "
        f"{found.plays} of {arms} arms in {size}; {100 * trace.good:.1f} % good, "
        f"{100 * trace.missing:.1f} % missing."
        + (
            f" Never measured and left out: {several(left_out, 'arm')} of agents."
            if left_out
            else ""
        )
        + f" Source: {trace.source}."
    )


def _means(found: Backtest) -> Markup:
    rows = [
        [
            policy_cell(name),
            found.note(name),
            found.mean_text(name),
            _difference(found.over(name, "stay")),
            _difference(found.over(name, "fixed")),
        ]
        for name in found.earned
    ]
    head = ["Policy", "Knows", "Average reward", "Over stay", "Over fixed-best"]
    return table("Average rewards", head, rows, numbers_from=2)


def _difference(each: Difference) -> str:
    return f"{each.difference:+.4f} ({each.interval})"


def _about(found: Backtest) -> str:
    return (
        f"Average reward of all {found.trace.agent_slots:,} (agent, slot) with an arm measured. "
        f"± is a standard error over {found.runs} runs of a policy that draws, the trace being "
        "what it is. In brackets: 95 % intervals by Student's t over blocks of slots, which say "
        "how much of a difference may be luck of the trace. The trace has "
        f"{found.timeline.n_blocks} blocks, each about a fiftieth of it and within a segment; "
        "where a difference is correlated for longer they are joined, and with fewer than "
        f"{FEWEST_BLOCKS} left, or one run of draws, it is undecided. What is fitted to this trace "
        "knows what nobody knew at the time: it is a yardstick and no rival."
    )


def _agents(found: Backtest) -> Markup:
    by_policy = [found.by_agent(name) for name in found.earned]
    rows = [
        [agent, *("-" if x[m] != x[m] else f"{x[m]:.4f}" for x in by_policy)]
        for m, agent in enumerate(found.trace.agents[:_MAX_AGENTS])
    ]
    more = len(found.trace.agents) - len(rows)
    return join(
        table("Average reward by agent", ["Agent", *found.earned], rows, numbers_from=1),
        tag("p", f"agents.csv has {several(more, 'more agent')}.") if more else Markup(""),
    )


def _write_series(folder: Path, found: Backtest) -> None:
    import pandas as pd

    times, agents = [], []
    for name in found.earned:
        slot, mean, se = found.over_time(name)
        times.append(pd.DataFrame({"policy": name, "slot": slot, "mean": mean, "se": se}))
        each = {"policy": name, "agent": found.trace.agents, "mean": found.by_agent(name)}
        agents.append(pd.DataFrame(each))
    pd.concat(times).to_csv(folder / "time.csv", index=False)
    pd.concat(agents).to_csv(folder / "agents.csv", index=False)


# ----------------------------------------------------------------------------------------- pictures


@rc_context(STYLE)
def draw_differences(found: Backtest) -> Figure:
    """Draw a row for each policy: its mean reward over `stay`, with the interval."""
    names = [name for name in found.earned if name != "stay"] or list(found.earned)
    styles = line_styles(names)
    figure = Figure(figsize=(7.2, 1.0 + 0.36 * len(names)), layout="constrained")
    axes = figure.subplots()
    for row, name in enumerate(names):
        apart = found.over(name, "stay")
        low, high, middle = apart.low, apart.high, apart.difference
        axes.errorbar(
            [middle],
            [row],
            xerr=None if low is None or high is None else [[middle - low], [high - middle]],
            fillstyle="none" if apart.undecided else "full",
            color=styles[name].colour,
            marker=styles[name].marker or "o",
            capsize=3,
        )
    axes.axvline(0, color="#555555", linewidth=0.9)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("Average reward over that of stay")
    return figure


@rc_context(STYLE)
def _draw_time(found: Backtest) -> Figure:
    """Draw average rewards in bins of slots."""
    figure, panels = panels_of(1, 1)
    axes = panels[0, 0]
    figure.set_figwidth(9.0)
    styles = line_styles(found.earned)
    for place, name in enumerate(found.earned):
        x, mean, se = found.over_time(name, _BINS)
        draw_line(axes, styles[name], x, Curve(mean, se), place)
    axes.set_xlabel("Slots")
    axes.set_ylabel("Average reward")
    draw_legend(figure, panels)
    return figure


@rc_context(STYLE)
def _draw_agents(found: Backtest) -> Figure:
    """Draw average rewards of agents, each policy's in rising order where they are many."""
    figure, panels = panels_of(1, 1)
    axes = panels[0, 0]
    figure.set_figwidth(9.0)
    styles = line_styles(found.earned)
    names = found.trace.agents
    few = len(names) <= _NAMED_AGENTS
    place = np.arange(len(names))
    for name in found.earned:
        style, rewards = styles[name], found.by_agent(name)
        axes.plot(
            place,
            rewards if few else np.sort(rewards),
            color=style.colour,
            marker=(style.marker or "o") if few else "",
            linestyle="none" if few else style.dash,
            label=style.label,
        )
    if few:
        axes.set_xticks(place, names, rotation=30)
    else:
        axes.set_xlabel("Agents, from the one that earned least")
    axes.set_ylabel("Average reward")
    draw_legend(figure, panels)
    return figure


_INTERRUPTED = "Interrupted: the policies below were done, others were not."
_PICTURES = {
    "differences": (
        draw_differences,
        "Over stay",
        "How much more each policy earned than stay, which learns nothing: it stays with an arm "
        "while that is good, and else takes the one unobserved longest. Bars are 95 % "
        "intervals; where there is none, the difference is undecided.",
    ),
    "time": (
        _draw_time,
        "Over time",
        "Average reward over the slots, in bins. Bands are 95 % over runs.",
    ),
    "agents": (
        _draw_agents,
        "By agent",
        "Average reward of each agent; where they are many, from the one that earned least to the "
        "one that earned most, for each policy by itself.",
    ),
}
