"""Feedback audit: how much one reading changes of an agent's counts, where plays follow readings.

The proof of `rmab.privacy.noise` holds the plays of two logs to be the same. Here an agent is
replayed in two worlds with the same random numbers: arms move alike, plans are drawn alike, and one
reading is flipped, or all K of a slot. The agent is a real `rmab.protocol.player`, its own plans
are those of `rmab.service.agent.local_plan`, and what it is told by others is the same in both
worlds, as in the proof.

Measured is, over trials: how often all later plays stay the same; the squared change of the counts;
the squared change of what noise is added to, |C g - C g'|^2 / ||c||^2, for releases when slots have
doubled, which the proof holds to 6 K; and the epsilon that a change of this size stands for, at the
delta and with the noise that were asked for.

    python -m benchmarks.feedback_audit             # about ten minutes on one core
    python -m benchmarks.feedback_audit --trials 20
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.learning.channel.local_posterior import VAGUE_WEIGHT, PosteriorSummaries
from rmab.model.arms import Dynamics, channels
from rmab.model.information import information_states
from rmab.planning.channel.whittle import whittle_at
from rmab.policies.plans import IndexPlan
from rmab.privacy.accounting import (
    DELTA,
    FIRST_SLOTS,
    Budget,
    noise_multiplier,
    sensitivity_squared,
)
from rmab.privacy.noise import GRID, MOST_RELEASES, factor
from rmab.privacy.prior_summaries import SummariesMessage
from rmab.protocol.messages import RoundMessage
from rmab.protocol.player import Player
from rmab.protocol.shape import Shape
from rmab.service.agent.local_plan import own_plan

__all__ = [
    "Case",
    "changes",
    "epsilon_of",
    "fixed_plan",
    "measure",
    "released_change",
    "replay",
    "table",
]

ARMS = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
PLAYS, GAPS, EPSILON = 2, 8, 1.0
SURVEY = 16  # slots
AGES, WRAP = 64, 2
NAME, INCARNATION = "audit", "0" * 32
LAW_VARIANCE = 0.25  # of log odds, in the laws that agents are told
SHAPE = Shape(PLAYS, (2,) * len(ARMS), GAPS)

Ints = npt.NDArray[np.int64]
Plan = Callable[[int, Ints], IndexPlan]  # of a round, by its number and the agent's counts


@dataclass(frozen=True)
class Case:
    """name: how the agent plays, a key of `PLANS`; readings: of one slot, from 1 to K, that are
    flipped; slots: of a trial, T; trials: how many."""

    name: str
    readings: int
    slots: int
    trials: int


CASES = (
    Case("same plays", PLAYS, 300, 600),
    Case("fixed plan", 1, 300, 600),
    Case("fixed plan", PLAYS, 300, 600),
    Case("own draws", 1, 300, 300),
    Case("own draws", 1, 1000, 150),
    Case("survey", PLAYS, 1000, 150),
)


# ------------------------------------------------------------------------------------ the agent


def fixed_plan(_: int) -> Plan:
    """One plan for all rounds: Whittle indices of the true dynamics."""
    states = information_states(AGES)
    index = whittle_at(Dynamics(*(x[:, None] for x in (ARMS.p01, ARMS.p11, ARMS.reward))), states)
    plan = IndexPlan(AGES, WRAP, np.asarray(index, np.float32), SHAPE.states)

    def same(number: int, counts: Ints) -> IndexPlan:
        del number, counts
        return plan

    return same


def own_plans(trial: int) -> Plan:
    """A plan of each round by the agent's own draw; the laws that it is told stay the same."""
    odds = np.log([ARMS.p01 / (1 - ARMS.p01), ARMS.p11 / (1 - ARMS.p11)])
    spread = np.array([LAW_VARIANCE, 0, LAW_VARIANCE])[:, None] * np.ones(len(ARMS))
    laws = PosteriorSummaries(odds[None, :, :, None], spread[None, :, :, None])
    told = SummariesMessage(NAME, 1, "whittle", GAPS, (1.0, 1.0), VAGUE_WEIGHT, ("all",), laws)

    def plan(number: int, counts: Ints) -> IndexPlan:
        generator = np.random.default_rng([trial, number])
        return own_plan(told, _message(number, _FIXED(0, counts)), counts, generator).plan

    return plan


_FIXED = fixed_plan(0)
PLANS: dict[str, Callable[[int], Plan]] = {
    "same plays": fixed_plan,
    "fixed plan": fixed_plan,
    "own draws": own_plans,
    "survey": own_plans,
}


_SHOWN = {
    "same plays": "the same in both worlds, by one plan",
    "fixed plan": "by one plan for all rounds",
    "own draws": '`draws = "own"`',
    "survey": f'`draws = "own"`, `survey = {SURVEY}`',
}


def _message(number: int, plan: IndexPlan, survey: int = 0) -> RoundMessage:
    """Linear rounds: one slot more each."""
    rewards = tuple((0.0, float(reward)) for reward in ARMS.reward)
    return RoundMessage(
        NAME, "agent", number, number + 1, None, SHAPE, rewards, plan, survey=survey
    )


@dataclass(frozen=True)
class Log:
    """plays: (T, K), arms by slot; counts: (R, cells), after each release, and at the end."""

    plays: Ints
    counts: Ints


def replay(
    states: Ints,
    plan: Plan,
    flipped: tuple[int, Sequence[int]] = (0, ()),
    plays: Ints | None = None,
    survey: int = 0,
) -> Log:
    """An agent's log; states: (T, N), of all arms; flipped: a slot, and the arms of which it shows
    the other state; plays: those that are played whatever the plan says, None: by the plan;
    survey: the slots that are given, 0: all."""
    nothing = np.zeros((GAPS + 1, 2, 2, len(ARMS)), np.int64)
    player = Player(_message(1, plan(1, nothing), survey), INCARNATION)
    marks = {FIRST_SLOTS * 2**n for n in range(MOST_RELEASES)} | {len(states)}
    made, counts = [], []
    for slot, state in enumerate(states):
        if player.over:
            number = player.round + 1
            player.begin(_message(number, plan(number, player.own_counts), survey))
        arms = player.choose().tolist() if plays is None else plays[slot].tolist()
        others = flipped[1] if slot == flipped[0] else ()
        assert set(others) <= set(arms), f"arms {others} are not all played in slot {slot}"
        shown = [int(state[arm]) ^ int(arm in others) for arm in arms]
        player.observe(arms, shown)
        made.append(arms)
        if slot + 1 in marks:
            counts.append(player.counts.ravel().copy())
    return Log(np.array(made), np.array(counts))


# --------------------------------------------------------------------------------- what is measured


def released_change(one: Log, other: Log) -> float:
    """|C g - C g'|^2 / ||c||^2, of all releases; what is counted after the last is in the next."""
    increments = np.diff(one.counts - other.counts, axis=0, prepend=0)
    c = np.array(factor()) / GRID
    rows = np.zeros((MOST_RELEASES, increments.shape[1]))
    for place, increment in enumerate(increments):
        rows[place:] += c[: MOST_RELEASES - place, None] * increment
    return float((rows**2).sum() / (c @ c))


def epsilon_of(squared: float, *, delta: float = DELTA) -> float:
    """Of noise that hides a squared change of 6 K at epsilon = EPSILON: the epsilon at which it
    hides one of this size; 0 of none."""
    if not squared:
        return 0.0
    wanted = noise_multiplier(EPSILON, delta) * math.sqrt(sensitivity_squared(PLAYS) / squared)
    low, high = 1e-6, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if noise_multiplier(middle, delta) > wanted else (low, middle)
    return high


def _states(rng: np.random.Generator, slots: int) -> Ints:
    """The states of all arms in all slots, (T, N), from the stationary law on."""
    p01, p11 = np.asarray(ARMS.p01), np.asarray(ARMS.p11)
    found = np.zeros((slots, len(ARMS)), np.int64)
    found[0] = rng.random(len(ARMS)) < p01 / (1 + p01 - p11)
    for slot in range(1, slots):
        found[slot] = rng.random(len(ARMS)) < np.where(found[slot - 1], p11, p01)
    return found


def changes(
    case: Case, seed: int = 0
) -> tuple[npt.NDArray[np.bool_], Ints, npt.NDArray[np.float64]]:
    """Of each trial: whether all plays stay the same, the squared change of the counts, and that of
    what noise is added to. The flipped reading is one of the first half of the slots, or of the
    survey."""
    same, counted, released = [], [], []
    for trial in range(case.trials):
        rng = np.random.default_rng([seed, trial])
        states, plan = _states(rng, case.slots), PLANS[case.name](trial)
        survey = SURVEY if case.name == "survey" else 0
        first = replay(states, plan, survey=survey)
        slot = int(rng.integers(survey or case.slots // 2))
        arms = rng.choice(first.plays[slot], case.readings, replace=False).tolist()
        forced = first.plays if case.name == "same plays" else None
        second = replay(states, plan, (slot, arms), forced, survey)
        same.append(np.array_equal(first.plays, second.plays))
        counted.append(int(((first.counts[-1] - second.counts[-1]) ** 2).sum()))
        released.append(released_change(first, second))
    return np.array(same), np.array(counted), np.array(released)


def measure(cases: Sequence[Case] = CASES, seed: int = 0) -> dict[str, Any]:
    """Rows of the table: of each case the share of trials whose plays stay the same; median, 95th
    percentile and largest of both changes, and the epsilon of each."""
    rows = []
    for case in cases:
        same, counted, released = changes(case, seed)
        row: dict[str, Any] = asdict(case)
        row["same"] = float(same.mean())
        row["same_se"] = float(np.sqrt(same.mean() * (1 - same.mean()) / case.trials))
        for key, values in (("counts", counted), ("released", released)):
            levels = np.quantile(values, [0.5, 0.95, 1.0])
            row[key] = [float(level) for level in levels]
        row["epsilon"] = [epsilon_of(level) for level in row["released"]]
        rows.append(row)
    budget = Budget(EPSILON)
    return {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "plays": PLAYS,
        "gaps": GAPS,
        "seed": seed,
        "bound": sensitivity_squared(PLAYS),
        "rows": rows,
    }


def table(measured: Mapping[str, Any]) -> str:
    """The rows as a table of a document."""
    lines = [
        "| plays | readings flipped | T | trials | all later plays the same | "
        "squared change: median, 95 %, largest | ε of these |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in measured["rows"]:
        change = ", ".join(f"{level:.0f}" for level in row["released"])
        epsilon = ", ".join(f"{level:.1f}" for level in row["epsilon"])
        same = f"{100 * row['same']:.1f} ± {100 * row['same_se']:.1f} %"
        lines.append(
            f"| {_SHOWN[row['name']]} | {row['readings']} | {row['slots']:,} | {row['trials']:,} | "
            f"{same} | {change} | {epsilon} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, help="at most so many of each case")
    given = parser.parse_args()
    most = given.trials or max(case.trials for case in CASES)
    print(
        json.dumps(
            measure([replace(case, trials=min(case.trials, most)) for case in CASES]), indent=1
        )
    )


if __name__ == "__main__":
    main()
