"""Whittle and Gittins indices of one arm, whatever its kind.

The Whittle index of a state is the subsidy for leaving the arm alone at which both actions are
equally good there. `rmab.planning.index.finite` defines it, and with it the verdict: whether the
arm is indexable, in doubt or not, and why.

- A fully observed arm has one index for each state.
- An arm observed when played has one for each information state (last observed state, age) and one
  for never observed; its chain of information states is that of `rmab.model.information`, and
  `rmab.planning.index.hidden` solves it by its structure. How many ages are asked for does not
  change their indices.
- An arm of two states that moves alike whatever is done has, under average reward, the closed form
  of `rmab.planning.channel.whittle`, and is proven to be indexable; one that never changes has a
  gain that depends on its state.

The Gittins index of a rested arm (passive freezes the state and pays nothing) is the Whittle index
of just that arm, as a reward rate; `rmab.planning.index.gittins` has a method of its own for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

import numpy as np

from rmab.arrays import FloatArray
from rmab.errors import ModelError
from rmab.markov import recurrent
from rmab.model.arms import Arm, Arms, Dynamics
from rmab.model.beliefs import information_states
from rmab.model.information import settled_age
from rmab.planning.channel.whittle import whittle_at
from rmab.planning.index.finite import Indices, checked_discount, finite_indices
from rmab.planning.index.gittins import eliminate
from rmab.planning.index.hidden import information_indices

__all__ = ["Indices", "gittins_indices", "whittle_indices"]


_MAX_AGE = 1000  # reported where no age is asked for
_MAX_NUMBERS = 10_000_000  # indices of one arm that may be asked for
_SAME_GAIN = 1e-12  # average rewards this close, relative to the largest, are one


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
    """The Whittle index of every state of an arm and whether it is indexable.

    discount None: average reward. index: (S,) of a fully observed arm. Of an arm observed when
    played, index is (S, max_age), that of (s, k) at [s, k - 1], never_seen is a number, and a
    witness is of (last observed, age); max_age None: as many ages as the belief needs to settle,
    1000 at most. An index that could not be found is NaN, and the reason says why.

    Several arms, as `Arms` or a list, are solved together and give a list; max_age then says
    nothing of those that are fully observed.

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
    """The indices of each arm; those that have information states are solved together."""
    if max_age is not None:
        _check_age(max_age, max((arm.states for arm in arms), default=1))
    solved: dict[int, Indices] = {}
    others: dict[int, int] = {}  # the ages of those that are solved together
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
    """By the closed form, average reward; the arm moves alike whatever is done.

    So r_0 is paid at every play, too, as it were, a play pays r_1 - r_0 on top of it, and but for
    a constant that is a channel whose good state pays more.
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
    """Gittins index of every state of the arm when played, as a reward rate, shape (S,).

    What the arm does and pays when left alone plays no part: a rested arm freezes. With a discount
    the indices are always those of an optimal policy. discount None gives their limits as it tends
    to 1, with a verdict as `whittle_indices` has it.

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
    """Whether the limit is right for every start; last: the last state of each closed class."""
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
