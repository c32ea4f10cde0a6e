"""Whittle and Gittins indices of arms of every kind.

The Whittle index of a state is the subsidy for leaving the arm alone at which both actions are
equally good there. `rmab.planning.index.finite` defines it, and with it the verdict: indexable, in
doubt or not, and why.

- A fully observed arm has one index for each state.
- An arm observed when played has one for each information state (last observed state, age) and one
  for never observed; its chain of information states is that of `rmab.model.expansion`, and
  `rmab.planning.index.hidden` solves it by its structure. Indices do not depend on the number of
  ages.
- An uncontrolled arm of two states has, under average reward, the closed form of
  `rmab.planning.channel.whittle`, and is proven to be indexable; one that never changes has a gain
  that depends on its state.

A *rested* arm moves by P and pays r(s) when played; left alone it freezes and pays nothing. Its
Gittins index is the Whittle index of that arm as a reward rate, the largest reward per slot that a
play from s can have, both discounted, over all stopping times tau >= 1:

    G(s) = max over tau of  E sum_{t < tau} beta^t r / E sum_{t < tau} beta^t.

It is found by state elimination, which shares no step with the methods for Whittle indices. The
state with the largest r has it for its index, and lower states only pass through it. So it is
eliminated: a visit to a state s continues, with the chance P(s, z), through z until z is left,
which adds to the reward, the time and the next states of a visit. Among the states that remain the
largest ratio of reward and time is again an index. Rewards are counted from the smallest, and the
chance of leaving z is summed, not subtracted from 1: without any subtraction every index keeps its
digits however near beta comes to 1. With beta = 1 the results are the limits of the discounted
indices, and a state z that is never left adds an infinite reward and time: states that may come to
it have its index. Whether one policy is then best for every start is the verdict.

References: I. M. Sonin, "A generalized Gittins index for a Markov chain and its recursive
calculation", Stat. Prob. Letters 78(12), 2008; J. C. Gittins, "Bandit processes and dynamic
allocation indices", JRSS B 41(2), 1979.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

import numpy as np

from rmab.arrays import Float, FloatArray, IntArray
from rmab.errors import ModelError
from rmab.markov import recurrent
from rmab.model.arms import Arm, Arms, Dynamics
from rmab.model.expansion import settled_age
from rmab.model.information import information_states
from rmab.planning.channel.whittle import whittle_at
from rmab.planning.index.finite import Indices, checked_discount, finite_indices
from rmab.planning.index.hidden import information_indices

__all__ = ["Indices", "eliminate", "gittins_indices", "whittle_indices"]

_MAX_AGE = 1000  # largest age reported unless max_age is given
_MAX_NUMBERS = 10_000_000  # largest number of indices of one arm
_SAME_GAIN = 1e-12  # average rewards this close, relative to the largest, are equal


@overload
def whittle_indices(
    arm: Arm, discount: float | None = None, max_age: int | None = None
) -> Indices: ...
@overload
def whittle_indices(
    arm: Iterable[Arm], discount: float | None = None, max_age: int | None = None
) -> list[Indices]: ...
def whittle_indices(
    arm: Arm | Iterable[Arm], discount: float | None = None, max_age: int | None = None
) -> Indices | list[Indices]:
    """Compute the Whittle index of every state of an arm, and decide whether it is indexable.

    Parameters
    ----------
    arm : one arm, or several as `Arms` or a list, which are solved together.
    discount : in (0, 1), or None for average reward.
    max_age : largest age of information states, at least 1; None for the age at which beliefs
        settle, at most 1000. Ignored for fully observed arms of several.

    Returns
    -------
    Indices, or a list of them for several arms: `index` is (S,) for a fully observed arm, else
    (S, max_age) with (s, k) at [s, k - 1], and `never_seen` is a number. The witness of an arm
    observed when played has the form (last observed state, age). Indices that were not found are
    NaN, and `reason` says why.

    >>> whittle_indices(Arm([[0.8, 0.2], [0.2, 0.8]], reward=[0, 1]), max_age=2).index.round(6)
    array([[0.2     , 0.392857],
           [0.8     , 0.772727]])
    """
    discount = checked_discount(discount)
    if isinstance(arm, Arm):
        if arm.observed == "always" and max_age is not None:
            raise ModelError(
                f'max_age must not be given for an arm observed "always", got {max_age}'
            )
        return _of_all([arm], discount, max_age)[0]
    return _of_all(list(Arms(arm)), discount, max_age)


def _of_all(arms: list[Arm], discount: float | None, max_age: int | None) -> list[Indices]:
    """Compute the indices of each arm; arms with information states are solved together."""
    if max_age is not None:
        _check_age(max_age, max((arm.states for arm in arms), default=1))
    solved: dict[int, Indices] = {}
    others: dict[int, int] = {}  # ages of the arms that are solved together
    for place, arm in enumerate(arms):
        if arm.observed == "always":
            solved[place] = finite_indices(arm, discount)
            continue
        ages = settled_age(arm, most=_MAX_AGE) if max_age is None else int(max_age)
        if discount is None and arm.states == 2 and not arm.action_dependent:
            solved[place] = _of_two_states(arm, ages)
        else:
            others[place] = ages
    if others:
        together = information_indices(
            [arms[place] for place in others], list(others.values()), discount
        )
        solved.update(zip(others, together, strict=True))
    return [solved[place] for place in range(len(arms))]


def _check_age(max_age: Any, states: int) -> None:
    if not isinstance(max_age, int | np.integer) or isinstance(max_age, bool):
        raise ModelError(f"max_age must be a whole number, got {max_age!r}")
    if int(max_age) < 1:
        raise ModelError(f"max_age must be at least 1, got {max_age}")
    most = _MAX_NUMBERS // states
    if int(max_age) > most:
        raise ModelError(f"max_age must be at most {most:,} for {states} states, got {max_age:,}")


def _of_two_states(arm: Arm, max_age: int) -> Indices:
    """Compute the indices of an uncontrolled arm of two states by the closed form, average reward.

    Every slot pays r_0 and a play r_1 - r_0 on top of it. Up to a constant that is a channel whose
    good state pays more.
    """
    worth = arm.reward_active - arm.reward_passive
    good = int(worth[1] >= worth[0])
    bad, P = 1 - good, arm.passive
    reward = worth[good] - worth[bad]
    index = np.asarray(
        whittle_at(Dynamics(P[bad, good], P[good, good], reward), information_states(max_age))
    )
    index = index + worth[bad] if worth[bad] else index
    by_state = index[1:].reshape(2, max_age)
    frozen = bool(P[bad, good] == 0 and P[good, good] == 1 and reward > 0)
    return Indices(
        index=by_state if good else by_state[::-1],
        indexable=None if frozen else True,
        reason="depends on the starting class: the arm never changes" if frozen else "",
        witness=None,
        never_seen=float(index[0]),
    )


@overload
def gittins_indices(arm: Arm, discount: float) -> FloatArray: ...
@overload
def gittins_indices(arm: Arm, discount: None) -> Indices: ...
def gittins_indices(arm: Arm, discount: float | None) -> FloatArray | Indices:
    """Compute the Gittins index of every state of a rested arm, as a reward rate.

    The passive transitions and rewards are ignored: a rested arm freezes. With a discount the
    result is (S,), and the indices are always those of an optimal policy. discount None gives
    their limits as it tends to 1, with a verdict as in `whittle_indices`.

    >>> arm = Arm([[0.5, 0.5], [0.0, 1.0]], reward=[0, 1], observed="always")
    >>> gittins_indices(arm, 0.5).round(6)
    array([0.333333, 1.      ])
    >>> gittins_indices(arm, None).indexable
    True
    """
    if arm.observed != "always":
        raise ModelError(
            f'Gittins indices need an arm observed "always": its state is observed {arm.observed}'
        )
    discount = checked_discount(discount)
    P = arm.active / arm.active.sum(1, keepdims=True)
    if discount is not None:
        return eliminate(P, arm.reward_active, discount)[0]
    index, last = eliminate(P, arm.reward_active, 1.0)
    return Indices(index, *_verdict(P, index, last), witness=None)


def _verdict(P: FloatArray, index: FloatArray, last: list[int]) -> tuple[bool | None, str]:
    """Decide whether the limit is right for every start; last: last state of each closed class."""
    if len(last) == 1:
        return True, ""
    gains = index[last]
    low, high = last[int(gains.argmin())], last[int(gains.argmax())]
    if index[high] - index[low] > _SAME_GAIN * np.abs(index).max():
        return None, (
            f"depends on the starting class: the average reward is {index[low]:.9g} from "
            f"state {low} and {index[high]:.9g} from state {high}"
        )
    transient = recurrent(P) < 0
    if not transient.any():
        return True, ""
    state = int(transient.argmax())
    return None, (
        f"depends on the starting class: state {state} leads to one of several closed classes of "
        "the same average reward"
    )


def eliminate(
    P: Float[FloatArray, "S S"], rewards: Float[FloatArray, " S"], beta: float
) -> tuple[Float[FloatArray, " S"], list[int]]:
    """Compute Gittins indices, and with beta = 1 the last state of each closed class.

    0 < beta <= 1. The index of the last state of a closed class is the average reward of the class.

    >>> eliminate(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([0.0, 1.0]), 0.5)[0].round(6)
    array([0.333333, 1.      ])
    """
    least = float(rewards.min())
    P, reward, time = beta * P, rewards - least, np.ones(len(P))
    ended = np.full(len(P), 1 - beta)  # chance that a visit is the last, by discounting
    index, last = np.empty(len(P)), []
    left = np.arange(len(P))
    while left.size:
        ratio = reward[left] / time[left]
        z = int(left[ratio.argmax()])
        index[z] = ratio.max()
        left = left[left != z]
        leaves = ended[z] + P[z, left].sum()
        if leaves == 0:
            last.append(z)
            left = _take(P, left, z, index)
            continue
        through = P[left, z] / leaves
        P[np.ix_(left, left)] += np.outer(through, P[z, left])
        reward[left] += through * reward[z]
        time[left] += through * time[z]
        ended[left] += through * ended[z]
    return index + least, last


def _take(P: FloatArray, left: IntArray, z: int, index: FloatArray) -> IntArray:
    """Give states that may come to z its index, and return the others."""
    ahead = [z]
    while ahead:
        comes = P[left, ahead.pop()] > 0
        index[left[comes]] = index[z]
        ahead += left[comes].tolist()
        left = left[~comes]
    return left
