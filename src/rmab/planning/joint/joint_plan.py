"""Joint optimum of drawn dynamics, for many trials at once: compiled relative value iteration.

The decision process is that of `rmab.planning.joint.optimum`: a joint state holds the information
state of every arm, a choice is a set of K arms. Here ages are cut at J for all arms alike: an arm
observed when played has the rows never observed, (0, 1), ..., (0, J), (1, 1), ..., and stays in
(s, J) while it is not played; a fully observed one has a row for each state. Codes and digits are
those of `rmab.planning.joint.chain`, with every wrap 1.

All codes take part, reachable or not, as an array with an axis for each arm and trials last. For a
set of arms A the value ahead comes axis by axis: arms outside A age, those in A are shown in s' and
go to (s', 1), fully observed ones move by their matrices.

The chance that an arm is shown in s' may be known to lie between two ends. A choice then is worth
the best of all corners: the value is linear in each arm's chance, so no point inside is better.

Values move by a part of their increments w, since ages make the process nearly periodic. min w and
max w bracket the gain (Odoni), and iteration ends when they agree to an accuracy.

References: M. L. Puterman, "Markov Decision Processes", 1994, Section 8.5; T. Jaksch, R. Ortner,
P. Auer, "Near-optimal regret bounds for reinforcement learning", JMLR 11, 2010 (extended value
iteration).
"""

from __future__ import annotations

from itertools import combinations, product
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from rmab.linalg import propagate
from rmab.markov import limiting_distributions
from rmab.model.arms import ArmKind, Intervals
from rmab.planning.joint.chain import Layout
from rmab.planning.tables import Model

__all__ = ["JointPlan", "JointSpace", "bounded_arms", "drawn_arms", "joint_plan"]

IntArray = npt.NDArray[np.int64]

MAX_SWEEPS = 500  # of a draw whose arms hardly move: the plan is then as good as these allow
_DAMPING = 0.9  # the part of an increment by which values move


class JointSpace:
    """Joint codes of arms of these kinds with ages up to J, and the sets of K arms.

    rows: of each arm, (N,); layout: of the codes; subsets: (A, N) in the order of
    `rmab.planning.joint.optimum`.
    """

    def __init__(self, kinds: tuple[ArmKind, ...], plays: int, ages: int) -> None:
        self.kinds, self.ages = kinds, ages
        always = np.array([kind.fully_observed for kind in kinds])
        states = np.array([kind.states for kind in kinds])
        self.rows = tuple(np.where(always, states, 1 + states * ages).tolist())
        caps = np.where(always, 0, ages)
        strides = np.append(np.cumprod(self.rows[:0:-1], dtype=np.intp)[::-1], 1)
        self.layout = Layout(caps, np.where(always, 0, 1), strides, always)
        sets = combinations(range(len(kinds)), plays)
        self.subsets = np.array([np.isin(np.arange(len(kinds)), each) for each in sets])

    @property
    def size(self) -> int:
        """Number of codes."""
        return int(np.prod(self.rows))

    def shown(self, arm: int) -> IntArray:
        """Return the rows of (0, 1), (1, 1), ... of an arm that is observed when played, (S,)."""
        return 1 + self.ages * np.arange(self.kinds[arm].states)

    def aged(self, arm: int) -> IntArray:
        """Return the row after a slot without a play, of an arm observed when played, (I,)."""
        after = np.arange(self.rows[arm]) + 1
        after[0] = 0
        after[self.ages :: self.ages] -= 1
        return after


class JointPlan(NamedTuple):
    """Plan: actions (codes, R), a row of `JointSpace.subsets` for each code; low, high: (R,),
    between which the gain lies."""

    actions: Array
    low: Array
    high: Array


class JointArm(NamedTuple):
    """One arm of I rows and S states; trials last.

    Parameters
    ----------
    chances : Array, (E, I, S, R)
        Chance of each state if the arm is played, at each of E ends.
    alone : Array or None, (S, S, R)
        Passive matrix of an arm that is fully observed.
    pays, idle : Array, (S, R or 1) and (I, R or 1)
        Pay of a play by state; expected pay without a play by row.
    """

    chances: Array
    alone: Array | None
    pays: Array
    idle: Array


def drawn_arms(model: Model, space: JointSpace) -> list[JointArm]:
    """Return the arms of drawn dynamics."""
    arms = []
    for n, kind in enumerate(space.kinds):
        S = kind.states
        passive, active = (m[:S, :S, n] for m in model.moves)
        idle, pays = (r[:S, n] for r in (model.reward_passive, model.reward_active))
        if kind.fully_observed:
            arms.append(JointArm(active[None], passive, pays, idle))
        else:
            seen = jnp.moveaxis(propagate(active, passive, space.ages), 2, 0)  # by state and age
            never = limiting_distributions(passive)[None]
            beliefs = jnp.concatenate([never, seen.reshape(-1, *never.shape[1:])])
            arms.append(JointArm(beliefs[None], None, pays, (beliefs * idle).sum(1)))
    return arms


def bounded_arms(between: Intervals, reward_passive: Array, reward_active: Array) -> list[JointArm]:
    """Return arms of two states observed when played, whose chances lie between two ends; rewards:
    (2, N, trials or 1). The pay of an arm that is not played is taken in the middle."""
    arms = []
    for n in range(between.lower.shape[1]):
        good = jnp.stack([between.lower[:, n], between.upper[:, n]])
        chances = jnp.stack([1 - good, good], 2)
        idle = (chances.mean(0) * reward_passive[:, n]).sum(1)
        arms.append(JointArm(chances, None, reward_active[:, n], idle))
    return arms


def joint_plan(arms: list[JointArm], space: JointSpace, accuracy: Array | float) -> JointPlan:
    """Return the best choice in every joint code; accuracy: of the gain, a number or (R,)."""
    width = max(arm.chances.shape[-1] for arm in arms)
    shape = (*space.rows, width)

    def ahead(value: Array) -> list[Array]:
        """Return the worth of each set of arms, (*rows, R) each."""
        flat = value.reshape(space.size, width)
        return [_worth(arms, space, subset, flat) for subset in space.subsets]

    def sweep(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        number, before, *ends = state
        best = ahead(before)
        most = best[0]
        for other in best[1:]:
            most = jnp.maximum(most, other)
        gain = most - before
        axes = tuple(range(len(space.rows)))
        value = before + _DAMPING * gain
        value = value - value.reshape(-1, width)[0]
        # A trial that is done waits for the others as it is: it does not depend on them.
        done = ends[1] - ends[0] <= accuracy
        low, high = (
            jnp.where(done, old, new)
            for old, new in zip(ends, (gain.min(axes), gain.max(axes)), strict=True)
        )
        return number + 1, jnp.where(done, before, value), low, high

    def goes_on(state: tuple[Array, Array, Array, Array]) -> Array:
        number, _, low, high = state
        return (number < MAX_SWEEPS) & (high - low > accuracy).any()

    unknown = jnp.full(width, jnp.inf, jnp.float32)
    start = jnp.int32(0), jnp.zeros(shape, jnp.float32), -unknown, unknown
    _, value, low, high = lax.while_loop(goes_on, sweep, start)
    best = ahead(value)
    most, actions = best[0], jnp.zeros(shape, np.min_scalar_type(-len(best)))
    for number, other in enumerate(best[1:], 1):
        actions = jnp.where(other > most, number, actions).astype(actions.dtype)
        most = jnp.maximum(most, other)
    return JointPlan(actions.reshape(space.size, width), low, high)


def _worth(
    arms: list[JointArm], space: JointSpace, subset: npt.NDArray[np.bool_], value: Array
) -> Array:
    """Return the worth of playing a set of arms in every code, (*rows, R); value: (codes, R)."""
    N = len(arms)
    hidden = [not kind.fully_observed for kind in space.kinds]
    shown = [n for n in range(N) if subset[n] and hidden[n]]
    digits = [
        (space.shown(n) if subset[n] else space.aged(n)) if hidden[n] else np.arange(space.rows[n])
        for n in range(N)
    ]
    codes = sum(
        place * stride for place, stride in zip(np.ix_(*digits), space.layout.strides, strict=True)
    )
    after = value[np.asarray(codes)]  # (rows, or S where an arm is shown; R)

    def along(n: int, x: Array) -> Array:
        """(I, R) with axes of length 1 for all other arms."""
        return x.reshape(*[x.shape[0] if m == n else 1 for m in range(N)], x.shape[-1])

    for n, arm in enumerate(arms):
        if not hidden[n]:
            after = _moved(after, arm.chances[0] if subset[n] else arm.alone, n)
            after = after + along(n, arm.pays if subset[n] else arm.idle)
        elif subset[n]:
            after = after + along(n, arm.pays)
        else:
            after = after + along(n, arm.idle)
    most: Array | None = None
    for corner in product(*(range(len(arms[n].chances)) for n in shown)):
        worth = after
        for n, end in zip(shown, corner, strict=True):
            worth = _moved(worth, arms[n].chances[end], n)
        most = worth if most is None else jnp.maximum(most, worth)
    assert most is not None
    return most


def _moved(value: Array, chances: Array | None, axis: int) -> Array:
    """Return the expected value where an arm goes from row i to state s with chances (I, S, R): an
    axis of S values becomes one of I."""
    assert chances is not None
    found: Array | float = 0.0
    for s in range(chances.shape[1]):
        lead = [1] * (value.ndim - 1)
        lead[axis] = chances.shape[0]
        weight = chances[:, s].reshape(*lead, chances.shape[-1])
        found = found + weight * lax.slice_in_dim(value, s, s + 1, axis=axis)
    return jnp.asarray(found)
