"""What policies that do not learn would have earned on a trace, in plain NumPy.

The rules of a back-test, for policies that are fixed before the first slot:

- an arm may be played in a slot only if it was measured there; with fewer than K such arms all are
  played, with none the slot is skipped for that agent;
- a play shows the state and pays 1 for good; ages grow in every slot;
- at the first slot of a segment every arm is never observed; ties go to the lower arm;
- the average reward is over all (agent, slot) with an arm measured.

So segments do not know of one another. They lie side by side in lanes, and a step of the loop is
one slot of every lane, of every agent, of every trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rmab.errors import StudyError
from rmab.model.arms import Dynamics
from rmab.model.information import NEVER, InformationStates, deviation, stationary_belief
from rmab.planning.channel.whittle import whittle_at
from rmab.traces.pairs import Bools, Floats, Ints, States, lanes_of
from rmab.traces.trace import MISSING, Trace

__all__ = ["RULES", "Fitted", "fitted_dynamics", "rewards_of_rules", "rewards_of_states"]

_LONGEST = 1 << 30  # an age above all: so ranks of `stay` and `round-robin` are one number


class Fitted(NamedTuple):
    """Dynamics counted in neighbouring measured slots of a segment; all (..., arms)."""

    p01: Floats
    p11: Floats
    good: Floats  # share of measured slots
    pairs: Floats


class _Seen(NamedTuple):
    """What a rule may look at in a slot; all (rows, arms)."""

    last_seen: States
    age: Ints  # slots since, NEVER before the first observation
    now: States  # the states themselves, for `genie` alone


def fitted_dynamics(state: States, segment: Ints) -> Fitted:
    """p01 = (n01 + 1/2) / (n0 + 1) and so on, over all slots; state: (..., slots, arms)."""
    before, after = state[..., :-1, :], state[..., 1:, :]
    joined = (segment[1:] == segment[:-1])[:, None] & (before >= 0) & (after >= 0)

    def p(last: int) -> Floats:
        from_last = joined & (before == last)
        n = from_last.sum(-2)
        n_good = (from_last & (after == 1)).sum(-2)
        return np.asarray((n_good + 0.5) / (n + 1))

    n_measured = (state >= 0).sum(-2)
    good = (state == 1).sum(-2) / np.maximum(n_measured, 1)
    return Fitted(p(0), p(1), good, joined.sum(-2).astype(float))


def rewards_of_rules(trace: Trace, plays: int, policies: Sequence[str]) -> dict[str, float]:
    """The average reward of each policy on a trace of two states."""
    found = rewards_of_states(trace.state[None], trace.segment, plays, policies)
    return {name: float(rewards[0]) for name, rewards in found.items()}


def rewards_of_states(
    state: States, segment: Ints, plays: int, policies: Sequence[str]
) -> dict[str, Floats]:
    """The average reward of each policy on each of several traces: (traces,).

    state: (traces, agents, slots, arms), all with the same segments.
    """
    unknown = [name for name in policies if name not in RULES]
    if unknown:
        raise StudyError(f"policies must be of {', '.join(RULES)}, got {unknown[0]!r}")
    n_traces, n_arms = state.shape[0], state.shape[-1]
    fitted = fitted_dynamics(state, segment)
    lanes = lanes_of(segment)
    steps, n_lanes = lanes.slots.shape
    found = state[:, :, lanes.slots]  # (traces, agents, steps, lanes, arms)
    found[:, :, lanes.slots < 0] = MISSING
    rows = np.moveaxis(found, 2, 0).reshape(steps, -1, n_arms)
    law = Fitted(*(np.repeat(x.reshape(-1, n_arms), n_lanes, axis=0) for x in fitted))
    n_slots = (state >= 0).any(-1).sum((1, 2))  # (traces,) agents and slots with an arm measured
    rewards = {}
    for name in policies:
        earned = _play(rows, lanes.begins, RULES[name](law), plays)
        rewards[name] = earned.reshape(n_traces, -1).sum(-1) / np.maximum(n_slots, 1)
    return rewards


def _play(rows: States, begins: Bools, index: Callable[[_Seen], Floats], plays: int) -> Ints:
    """What each row earned: (rows,); rows: (steps, rows, arms), lanes last; begins: of Lanes."""
    _, n_rows, n_arms = rows.shape
    n_lanes = begins.shape[1]
    last_seen = np.zeros((n_rows, n_arms), np.int8)
    age = np.full((n_rows, n_arms), NEVER, np.int64)
    earned = np.zeros(n_rows, np.int64)
    for step, now in enumerate(rows):
        if begins[step].any():
            age[np.tile(begins[step], n_rows // n_lanes)] = NEVER
        measured = now >= 0
        worth = np.where(measured, index(_Seen(last_seen, age, now)), -np.inf)
        played = _largest(worth, plays) & measured
        earned += (played & (now == 1)).sum(-1)
        last_seen = np.where(played, now, last_seen)
        age = np.where(played, 1, age + (age != NEVER))
    return earned


def _largest(worth: Floats, plays: int) -> Bools:
    """(rows, arms): the arms of the largest entries, of equal ones the lower."""
    if plays == 1:
        return np.asarray(worth.argmax(-1)[:, None] == np.arange(worth.shape[-1]))
    chosen = np.zeros(worth.shape, bool)
    first = np.argsort(-worth, axis=-1, kind="stable")[:, :plays]
    np.put_along_axis(chosen, first, True, axis=-1)
    return chosen


# -------------------------------------------------------------------------------------------- rules


def _stay(_law: Fitted) -> Callable[[_Seen], Floats]:
    def index(seen: _Seen) -> Floats:
        stays = (seen.last_seen == 1) & (seen.age == 1)
        return np.where(stays, 2.0 * _LONGEST, _turns(seen))

    return index


def _turns(seen: _Seen) -> Floats:
    """Never observed, then the age."""
    return np.where(seen.age == NEVER, float(_LONGEST), seen.age)


def _myopic(law: Fitted) -> Callable[[_Seen], Floats]:
    dynamics = Dynamics(law.p01, law.p11, np.ones_like(law.p01))
    rest = stationary_belief(dynamics)

    def index(seen: _Seen) -> Floats:
        away = deviation(dynamics, InformationStates(seen.last_seen, seen.age))
        return np.asarray(rest + away)

    return index


def _whittle(law: Fitted) -> Callable[[_Seen], Floats]:
    dynamics = Dynamics(law.p01, law.p11, np.ones_like(law.p01))
    return lambda seen: whittle_at(dynamics, InformationStates(seen.last_seen, seen.age))


RULES: Mapping[str, Callable[[Fitted], Callable[[_Seen], Floats]]] = {
    "stay": _stay,
    "round-robin": lambda _law: _turns,
    "myopic": _myopic,
    "whittle": _whittle,
    "fixed-best": lambda law: lambda _seen: law.good,
    "genie": lambda _law: lambda seen: seen.now.astype(float),
}
