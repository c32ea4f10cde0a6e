"""Whittle and Gittins indices of one arm, whatever its kind.

The Whittle index of a state is the subsidy for leaving the arm alone at which both actions are
equally good there. `rmab.planning.index.finite` defines it, and with it the verdict: whether the
arm is indexable, in doubt or not, and why.

- A fully observed arm has one index for each state.
- An arm observed when played has one for each information state (last observed state, age) and one
  for never observed; its chain of information states is that of `rmab.model.information`, and
  `rmab.planning.index.hidden` solves it by its structure. How many ages are asked for does not
  change their indices.
- A channel under average reward has the closed form of `rmab.planning.channel.index`, and is proven
  to be indexable; one that never changes has a gain that depends on its state.

The Gittins index of a rested arm (passive freezes the state and pays nothing) is the Whittle index
of just that arm; as a reward rate it is (1 - beta) times the largest value per discounted slot.

Reference: J. C. Gittins, "Bandit processes and dynamic allocation indices", JRSS B 41(2), 1979.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError
from rmab.model.arms import Arm, Arms
from rmab.model.beliefs import information_states
from rmab.model.information import settled_age
from rmab.planning.channel.index import whittle_at
from rmab.planning.index.finite import Indices, finite_indices
from rmab.planning.index.hidden import information_indices

__all__ = ["Indices", "gittins_indices", "whittle_indices"]

FloatArray = npt.NDArray[np.float64]

_MAX_AGE = 1000  # reported where no age is asked for


def whittle_indices(arm: Arm, discount: float | None = None, max_age: int | None = None) -> Indices:
    """The Whittle index of every state of an arm and whether it is indexable.

    discount None: average reward. index: (S,) of a fully observed arm. Of an arm observed when
    played, index is (S, max_age), that of (s, k) at [s, k - 1], never_seen is a number, and a
    witness is of (last observed, age); max_age None: as many ages as the belief needs to settle,
    1000 at most.

    >>> whittle_indices(Arm([[0.8, 0.2], [0.2, 0.8]], reward=[0, 1]), max_age=2).index.round(6)
    array([[0.2     , 0.392857],
           [0.8     , 0.772727]])
    """
    if arm.observed == "always":
        if max_age is not None:
            raise ModelError(
                f'max_age must not be given for an arm observed "always", got {max_age}'
            )
        return finite_indices(arm, discount)
    ages = settled_age(arm, most=_MAX_AGE) if max_age is None else max_age
    if discount is None and arm.is_channel:
        return _of_channel(arm, ages)
    return information_indices([arm], ages, discount)[0]


def _of_channel(arm: Arm, max_age: int) -> Indices:
    """By the closed form, average reward."""
    dynamics = Arms([arm]).dynamics
    index = np.asarray(whittle_at(dynamics, information_states(max_age)))
    frozen = bool(dynamics.p01 == 0 and dynamics.p11 == 1 and dynamics.reward > 0)
    return Indices(
        index=index[1:].reshape(2, max_age),
        indexable=None if frozen else True,
        reason="depends on the starting class: the arm never changes" if frozen else "",
        witness=None,
        never_seen=float(index[0]),
    )


def gittins_indices(arm: Arm, discount: float) -> FloatArray:
    """Gittins index of every state of the arm when played, as a reward rate, shape (S,).

    What the arm does and pays when left alone plays no part: a rested arm freezes.
    """
    if arm.observed != "always":
        raise ModelError(
            f'Gittins indices need an arm observed "always": its state is seen {arm.observed}'
        )
    rested = Arm(np.eye(arm.states), arm.active, reward_active=arm.reward_active, observed="always")
    return finite_indices(rested, discount).index
