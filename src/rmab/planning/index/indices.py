"""Whittle and Gittins indices of one arm, whatever its kind.

The Whittle index of a state is the subsidy for leaving the arm alone at which both actions are
equally good there. `rmab.planning.index.finite` defines it, and with it the verdict: whether the
arm is indexable, in doubt or not, and why.

- An arm whose state is always seen has one index for each state.
- An arm seen only when played has one for each information state (last seen state, age) and one for
  never seen; its chain of information states is that of `rmab.model.information`, and
  `rmab.planning.index.hidden` solves it by its structure. How many ages are asked for does not
  change their indices.

The Gittins index of a rested arm (passive freezes the state and pays nothing) is the Whittle index
of just that arm; as a reward rate it is (1 - beta) times the largest value per discounted slot.

Reference: J. C. Gittins, "Bandit processes and dynamic allocation indices", JRSS B 41(2), 1979.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError
from rmab.model.arms import Arm
from rmab.model.information import settled_age
from rmab.planning.index.finite import Indices, finite_indices
from rmab.planning.index.hidden import information_indices

__all__ = ["Indices", "gittins_indices", "whittle_indices"]

FloatArray = npt.NDArray[np.float64]

MOST_AGES = 1000  # reported where no age is asked for


def whittle_indices(arm: Arm, discount: float | None = None, max_age: int | None = None) -> Indices:
    """The Whittle index of every state of an arm and whether it is indexable.

    discount None: average reward. index: (S,) if the state is always seen. If it is seen only when
    played, index is (S, max_age), that of (s, k) at [s, k - 1], never_seen is a number, and a
    witness is of (last seen, age); max_age None: as many ages as the belief needs to settle, 1000
    at most.

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
    ages = settled_age(arm, most=MOST_AGES) if max_age is None else max_age
    return information_indices([arm], ages, discount)[0]


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
