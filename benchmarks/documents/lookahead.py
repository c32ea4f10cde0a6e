"""docs/lookahead.md: what looking ahead earns, exactly and by simulation, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from benchmarks.documents.blocks import Asked, Block, Measurement, Page
from benchmarks.documents.kept import Json, Record, number
from benchmarks.documents.simulated import PAPER, apart, final, mean, paper, ran, seconds
from benchmarks.documents.words import (
    compared,
    earns,
    fixed,
    listed,
    percent,
    rounded,
    table,
    times,
)

import rmab
from rmab.model.arms import Arms
from rmab.planning.joint.optimum import optimal
from rmab.planning.joint.policy_value import known_values, lookahead_value, policy_value
from rmab.planning.lookahead import channel
from rmab.planning.tables import whittle_table
from rmab.studies.study import load

__all__ = ["PAGE", "POOR"]

POOR = rmab.channels([0.13, 0.26, 0.77, 0.57], [0.13, 0.44, 0.48, 0.19], [0.81, 0.38, 0.57, 0.66])
CASES = {  # arms and K, as the tables name them
    "the paper's, K = 1": (PAPER, 1),
    "the paper's, K = 2": (PAPER, 2),
    "the paper's, K = 3": (PAPER, 3),
    "four on which Whittle is poor, K = 1": (POOR, 1),
}
CATALOGUE = ("fading", "gilbert-elliott", "machine", "adherence", "age-of-information")
LEARNERS = ("fedtswi-gap", "fedts-lookahead-gap")
KNOWN = ("whittle", "lookahead")
_DEPTHS = (1, 2, 3)
_SETS = 24  # random sets of channels
_MAX_STATES = 20_000  # of the chains of random sets


# ------------------------------------------------------------------------------------- measurements


def _exact(asked: Asked) -> Json:
    """Exact average rewards with known dynamics."""
    found = {}
    for label, (arms, plays) in CASES.items():
        values = known_values(arms, plays).values
        found[label] = {
            **{name: values[name] for name in ("optimum", "whittle", "myopic")},
            **{f"depth {d}": lookahead_value(arms, plays, d) for d in _DEPTHS},
        }
        asked.say(label)
    return found


def _learning(asked: Asked) -> Json:
    """On the paper's arms, learning from nothing."""
    return {
        f"K = {plays}": ran(asked, paper(asked, (*LEARNERS, *KNOWN), plays=plays), f"K = {plays}")
        for plays in (2, 1)
    }


def _catalogue(asked: Asked) -> Json:
    """Studies of the catalogue, with known dynamics."""
    found = {}
    for name in CATALOGUE:
        study = load(f"catalogue:{name}")
        found[name] = ran(
            asked,
            replace(
                study,
                agents=1,
                horizon=300,
                trials=asked.often,
                policies=KNOWN,
                seed=asked.seed or 0,
            ),
            name,
        )
    return found


def _terminal(asked: Asked) -> Json:
    """Losses against the optimum at depth 2, by how the subsidy of terminal values is chosen."""
    ours = channel._subsidy
    ways: dict[str, Callable[..., Any]] = {"zero": _never, "slope": _slope, "this": ours}
    cases = dict(CASES)
    rng = np.random.default_rng(asked.seed)
    for n in range(asked.often):
        size = int(rng.integers(3, 5))
        p01, p11, reward = rng.uniform(0.05, 0.95, (3, size))
        cases[f"set {n + 1}"] = rmab.channels(p01, p11, reward), int(rng.integers(1, size))
    found: Json = {}
    for label, (arms, plays) in cases.items():
        limits = {} if label in CASES else {"max_states": _MAX_STATES}
        best = optimal(arms, plays, **limits).value
        whittle = policy_value(arms, plays, partial(whittle_table, arms), **limits)
        losses = {"Whittle": 1 - whittle / best}
        for way, subsidy in ways.items():
            with mock.patch.object(channel, "_subsidy", subsidy):
                losses[way] = 1 - lookahead_value(arms, plays, **limits) / best
        found[label] = losses
        asked.say(label)
    return found


def _never(_: Any, reward: Any, __: int) -> Any:
    """A subsidy at which no play pays: terminal values of 0."""
    return 1e6 + 0 * reward.max(0)


def _slope(lines: Any, reward: Any, plays: int) -> Any:
    """The Lagrangian subsidy: where K arms are played in the long run, by bisection."""
    low, high = 0.0, float(reward.max())
    for _ in range(60):
        middle = (low + high) / 2
        line = lines.level - middle * lines.fall
        best = np.maximum(line.max(0), 0)
        share = np.where((line >= best) & (best > 0), lines.fall, 0).max(0)
        low, high = (middle, high) if share.sum() > plays else (low, middle)
    return np.asarray(high + 0 * reward.max(0))


def _many(asked: Asked) -> Json:
    """With more arms: the sets of eight whose values are published, and copies of the paper's."""
    eight = rmab.channels(
        [0.1, 0.2, 0.5, 0.5, 0.1, 0.2, 0.7, 0.9], [0.4, 0.1, 0.2, 0.8, 0.7, 0.8, 0.5, 0.8], 1.0
    )
    copies = Arms([arm for arm in PAPER for _ in range(16)])
    keys = {"agents": 1, "horizon": 300}
    found = {}
    for label, arms, plays in (("8 arms, K = 3", eight, 3), ("64 arms, K = 16", copies, 16)):
        study = replace(paper(asked, KNOWN, plays=3, **keys), arms=arms, plays=plays)
        found[label] = ran(asked, study, label)
    return found


def _cost(asked: Asked) -> Json:
    """Seconds of a trial on one core, of the best batch."""
    copies = Arms([arm for arm in PAPER for _ in range(16)])
    of_paper = paper(asked, KNOWN)
    large = replace(of_paper, arms=copies, plays=16, agents=1, horizon=100)
    found = {"the paper's, M = 4, K = 2, T = 1,000": seconds(of_paper)}
    asked.say("the paper's")
    found["64 arms, M = 1, K = 16, T = 100"] = seconds(large)
    asked.say("64 arms")
    return found


# ------------------------------------------------------------------------------------------- blocks


def _exact_table(record: Record) -> str:
    heads = ("optimum", "whittle", "myopic", *(f"depth {d}" for d in _DEPTHS))
    rows = [
        [label, *(fixed(number(values[head]), 6) for head in heads)]
        for label, values in record.data.items()
    ]
    losses = {
        label: (
            1 - values["whittle"] / values["optimum"],
            1 - values["depth 2"] / values["optimum"],
        )
        for label, values in record.data.items()
    }
    said = listed([f"{percent(two, 3)} ({label})" for label, (_, two) in losses.items()])
    lost = listed([percent(whittle, 2) for whittle, _ in losses.values()])
    return (
        table(["arms", "optimum", "Whittle", "myopic", *heads[3:]], rows)
        + f"\n\nLoss against the optimum at depth 2: {said}. Whittle loses {lost}."
    )


def _catalogue_table(record: Record) -> str:
    rows = [
        [
            f"`{name}`",
            rounded(mean(found, "whittle")),
            rounded(mean(found, "lookahead")),
            rounded(apart(found, "lookahead", "whittle"), sign=True),
            {"more": "more", "less": "less", "undecided": "undecided"}[
                compared(*apart(found, "lookahead", "whittle"))
            ],
        ]
        for name, found in record.data.items()
    ]
    return table(["study", "Whittle", "lookahead", "difference", "lookahead earns"], rows)


def _learning_table(record: Record) -> str:
    names = {**{n: f"`{n}`" for n in LEARNERS}, **{n: f"`{n}`, known dynamics" for n in KNOWN}}
    rows, said = [], []
    for label, found in record.data.items():
        for name, shown in names.items():
            rows.append([label, shown, rounded(mean(found, name)), rounded(final(found, name))])
        late = [final(found, name) for name in ("fedts-lookahead-gap", "whittle")]
        ahead = late[0][0] - late[1][0], float(np.hypot(late[0][1], late[1][1]))
        learnt = earns(
            "`fedts-lookahead-gap`",
            "`fedtswi-gap`",
            apart(found, "fedts-lookahead-gap", "fedtswi-gap"),
        )
        at_last = earns("the learner", "Whittle with known dynamics", ahead)
        said.append(f"- {label}: over all slots {learnt}. In the last tenth {at_last}.")
    return (
        table(["K", "policy", "all slots", "last tenth"], rows)
        + "\n\n"
        + "\n".join(said)
        + "\n\nDifferences over all slots are paired; that of the last tenth has the error of "
        "independent trials, which is larger."
    )


_WAYS = ("Whittle", "zero", "slope", "this")


def _terminal_table(record: Record) -> str:
    sets = [losses for label, losses in record.data.items() if label.startswith("set ")]
    rows = [
        [label, *(percent(losses[way], 3) for way in _WAYS)]
        for label, losses in record.data.items()
        if not label.startswith("set ")
    ]
    each = {way: np.array([losses[way] for losses in sets]) for way in _WAYS}
    rows.append(
        [
            f"{len(sets)} random sets of 3 or 4 channels, mean",
            *(percent(float(each[way].mean()), 3) for way in _WAYS),
        ]
    )
    rows.append(["the same, worst", *(percent(float(each[way].max()), 3) for way in _WAYS)])
    said = []
    for way in ("zero", "slope"):
        more = each[way] - each["this"]
        estimate = float(more.mean()), float(more.std(ddof=1) / np.sqrt(len(sets)))
        word = compared(*estimate)
        found = (
            "cannot be told apart from it on this many sets"
            if word == "undecided"
            else f"loses {word} than it"
        )
        said.append(f'"{way}" {found} ({rounded([100 * x for x in estimate], sign=True)} points)')
    return (
        table(["arms", *_WAYS], rows)
        + f"\n\nBeside the subsidy of this page, on the random sets {listed(said)}."
    )


def _many_table(record: Record) -> str:
    rows = [
        [
            label,
            rounded(mean(found, "whittle")),
            rounded(apart(found, "lookahead", "whittle"), True),
        ]
        for label, found in record.data.items()
    ]
    said = listed(
        [
            f"with {label} "
            + {
                "more": "it earns more than Whittle",
                "less": "it earns less than Whittle",
                "undecided": "a difference to Whittle is undecided",
            }[compared(*apart(found, "lookahead", "whittle"))]
            for label, found in record.data.items()
        ]
    )
    return table(["arms", "Whittle", "lookahead less Whittle"], rows) + (
        f"\n\n{said[0].upper()}{said[1:]}."
    )


def _cost_table(record: Record) -> str:
    rows = [
        [
            label,
            *(f"{fixed(1e6 * found[name], 0)} µs" for name in KNOWN),
            times(found["lookahead"] / found["whittle"]),
        ]
        for label, found in record.data.items()
    ]
    return table(["a trial on one core", "Whittle", "lookahead", "ratio"], rows)


PAGE = Page(
    "lookahead.md",
    blocks={
        "lookahead-exact": Block(_exact_table, ("lookahead-exact",)),
        "lookahead-catalogue": Block(_catalogue_table, ("lookahead-catalogue",)),
        "lookahead-learning": Block(_learning_table, ("lookahead-learning",)),
        "lookahead-terminal": Block(_terminal_table, ("lookahead-terminal",)),
        "lookahead-many": Block(_many_table, ("lookahead-many",)),
        "lookahead-cost": Block(_cost_table, ("lookahead-cost",)),
    },
    measurements={
        "lookahead-exact": Measurement(_exact, minutes=0.5, seed=None),
        "lookahead-catalogue": Measurement(_catalogue, minutes=0.5, trials=256),
        "lookahead-learning": Measurement(_learning, minutes=1.5, trials=10_000),
        "lookahead-terminal": Measurement(_terminal, minutes=1, trials=_SETS, unit="sets"),
        "lookahead-many": Measurement(_many, minutes=0.5, trials=512),
        "lookahead-cost": Measurement(_cost, minutes=0.3, trials=256),
    },
)
