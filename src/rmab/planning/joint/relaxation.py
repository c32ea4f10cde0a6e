"""Lagrangian upper bound: the best average reward with K plays a slot only in the long run.

Ask for K plays a slot only in the long run, eq. (9), and pay a subsidy lambda for every slot an arm
is left alone: the problem decouples into the arms, and

    L(lambda) = sum over n of gain_n(lambda) - lambda (N - K)                      eq. (10)

is at least the best average reward of K plays a slot, for every lambda. gain_n is the best
average reward of arm n by itself, eq. (11), convex and piecewise linear in lambda; its slope is the
share of slots in which the arm is left alone. The bound is the smallest L: where the shares pass
N - K.

*Channels* have gain_n in closed form (`rmab.planning.channel.subsidy`), and the smallest L is found
by bisection. As their rewards are not negative, nothing is gained by lambda < 0 (all arms are
always played) or by lambda above the largest reward (none is).

*Other arms* make it a linear programme over the shares of their slots, which only the number of
plays couples; the dual variable of that equation is the subsidy, of either sign. Each arm
contributes a block of one of two forms.

By waits, for an arm that is observed when played and whose passive chain forgets: z(s, k) is how
often per slot the arm is played k slots after an observation of s, and u the share of slots in
which it is never observed and left alone. With b(s, k) the belief, b0 that of never observed,

    sum over k of z(s', k) = sum over s, k of z(s, k) b(s, k)[s']        observations balance
    sum over s, k of k z(s, k) + u = 1                                   slots add up to 1

for k = 1..J + 1, where b(s, J + 1) = b0; a wait pays for its k - 1 passive slots and its play. A
longer wait is one of J + 1 slots and a part of u. Only states s count that never observed may lead
to; as it can be waited for, the start does not matter.

By states, for any other: with x(i, a) the share of slots in state i with action a,

    sum over a of x(j, a) - sum over i, a of x(i, a) P_a[i, j] = 0       for every state j

and the shares add up to 1. If the arm has several end components (see
`rmab.planning.joint.average_reward`), the start decides between them: with mu its distribution
there are y(i, a) >= 0 with

    sum over a of (x + y)(j, a) - sum over i, a of y(i, a) P_a[i, j] = mu[j]   for every state j.

Arms observed when played that do not forget take this form by their information states.

Only a few waits are in the programme at first; waits worth more than they cost at its prices are
added until there are none.

Beliefs at ages past J are rounded to their limits, which are within a tolerance, in total
variation: 1e-9, or the finest up to 1e-3 that keeps the programme within its limits. This moves
the bound by at most tolerance x K x (largest difference of rewards + span of h), as in
`rmab.planning.joint.optimum`.

Reference: A. Hordijk and L. C. M. Kallenberg, "Linear programming and Markov decision chains",
Management Science 25(4), 1979.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmab.arrays import BoolArray, FloatArray
from rmab.errors import ConvergenceError, TooLargeError
from rmab.markov import limiting_distribution
from rmab.model.arms import Arm, Arms
from rmab.model.expansion import expand, expansion
from rmab.planning.channel.subsidy import SubsidyProblem, solve
from rmab.planning.joint.average_reward import end_components
from rmab.planning.joint.chain import MAX_CAP, merged_ages, rows_of_arms

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["relaxed_value", "upper_bound"]

_TOLERANCES = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
_MAX_COLUMNS = 200_000  # columns of the programme
_MAX_STATES = 2_000  # states of an arm in the second form, whose matrices are dense
_FIRST_WAITS = 12  # waits in the programme at first, for each state last observed
_MIN_WORTH = 1e-10  # columns worth more than this above their cost are added, rewards of size 1
_MAX_ROUNDS = 100  # rounds of adding columns
_BISECTIONS = 60


def upper_bound(arms: Arms, plays: int) -> float:
    """Return the smallest L(lambda) of eq. (10), a bound on any policy's reward per agent and slot.

    For channels it is exact. For other arms beliefs are rounded, at 1e-9 or as finely as fits.

    >>> from rmab.model.arms import channels
    >>> round(upper_bound(channels([0.2, 0.2], [0.8, 0.8], 1.0), plays=1), 5)
    0.68772
    """
    arms.check_plays(plays)
    if not arms.are_channels:
        return relaxed_value(arms, plays)
    passive = len(arms) - plays

    def relaxed(subsidy: float) -> SubsidyProblem:
        return solve(arms.p01, arms.p11, arms.reward, subsidy)

    low, high = 0.0, float(arms.reward.max())
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if relaxed(middle).passive_share.sum() < passive:
            low = middle
        else:
            high = middle
    return float(min(relaxed(x).gain.sum() - x * passive for x in (low, high)))


def relaxed_value(arms: Arms, plays: int, *, max_columns: int = _MAX_COLUMNS) -> float:
    """Return the bound of any arms by a linear programme of at most max_columns columns."""
    from scipy.sparse import block_diag, csr_array, vstack

    arms.check_plays(plays)
    kinds = _alike(arms)
    copies = list(kinds.values())
    blocks = _blocks(Arms(kinds), max_columns)
    reward = np.concatenate([n * block.reward for n, block in zip(copies, blocks, strict=True)])
    played = np.concatenate([n * block.plays for n, block in zip(copies, blocks, strict=True)])
    equations = vstack([block_diag([block.equations for block in blocks]), csr_array(played[None])])
    sides = np.concatenate([*(block.sides for block in blocks), [plays]])
    scale = float(np.abs([arms.reward_passive, arms.reward_active]).max()) or 1.0
    first = np.concatenate([block.first for block in blocks])
    return scale * _maximum(reward / scale, equations.tocsc(), sides, first)


class _Block(NamedTuple):
    """Part of one arm in the programme: equations @ columns = sides, with the reward and plays of
    each column, and whether it is in the programme at first."""

    equations: csr_array[Any, Any]
    sides: FloatArray
    reward: FloatArray
    plays: FloatArray
    first: BoolArray


def _maximum(reward: FloatArray, equations: Any, sides: FloatArray, first: BoolArray) -> float:
    """Maximise reward . x over x >= 0 with equations @ x = sides, adding columns as needed.

    equations: a csc_array, which the stubs of linprog do not know.
    """
    from scipy.optimize import linprog

    used = first.copy()
    for _ in range(_MAX_ROUNDS):
        columns = np.flatnonzero(used)
        solved = linprog(-reward[columns], A_eq=equations[:, columns], b_eq=sides, method="highs")
        if solved.status != 0 or solved.x is None:
            raise ConvergenceError(f"upper bound by linear programme: {solved.message}")
        worth = reward + equations.T @ solved.eqlin.marginals
        missing = (worth > _MIN_WORTH) & ~used
        if not missing.any():
            return float(reward[columns] @ solved.x)
        used |= missing
    raise ConvergenceError(f"upper bound by linear programme: not settled in {_MAX_ROUNDS} rounds")


def _alike(arms: Arms) -> dict[Arm, int]:
    """Return the different arms with their numbers."""
    first: dict[bytes, Arm] = {}
    copies: dict[Arm, int] = {}
    for arm in arms:
        parts = (arm.passive, arm.active, arm.reward_passive, arm.reward_active)
        key = b"".join(part.tobytes() for part in parts) + arm.observed.encode()
        known = first.setdefault(key, arm)
        copies[known] = copies.get(known, 0) + 1
    return copies


def _blocks(arms: Arms, max_columns: int) -> list[_Block]:
    """Return the blocks at the finest tolerance that fits."""
    for tolerance in _TOLERANCES:
        ages = merged_ages(arms, tolerance)
        rows = rows_of_arms(arms, ages)
        by_waits = ages.caps * (ages.wraps == 0) > 0
        if (
            ages.caps.max() <= MAX_CAP
            and rows.sum() <= max_columns
            and np.all(by_waits | (rows <= _MAX_STATES))
        ):
            return [
                _by_waits(arm, cap) if waits else _by_states(arm, cap)
                for arm, cap, waits in zip(arms, ages.caps.tolist(), by_waits, strict=True)
            ]
    raise TooLargeError(
        f"upper bound of {len(arms)} different arms: {rows.sum():,} information states, "
        f"{np.where(by_waits, 0, rows).max():,} of one arm that does not forget, ages up to "
        f"{ages.caps.max():,}, with beliefs rounded at {tolerance:g}; the limits are "
        f"{max_columns:,}, {_MAX_STATES:,} and {MAX_CAP:,}",
        states=int(rows.sum()),
    )


def _by_waits(arm: Arm, cap: int) -> _Block:
    """Return the block by waits: columns z(0, 1), ..., z(0, J + 1), z(1, 1), ... and u."""
    from scipy.sparse import csr_array

    S, chain = arm.states, expansion(arm, cap)
    belief = np.empty((S, cap + 1, S))
    belief[:, :cap] = chain.beliefs[1:].reshape(S, cap, S)
    belief[:, cap] = chain.beliefs[0]
    alone, play = belief @ arm.reward_passive, belief @ arm.reward_active  # (S, J + 1)
    waits = np.arange(1, cap + 2)
    equations = np.zeros((S + 1, play.size + 1))
    equations[:S, :-1] = (np.eye(S)[:, :, None] - np.moveaxis(belief, 2, 0)).reshape(S, -1)
    equations[S] = np.append(np.tile(waits, S), 1)
    met, leads = chain.beliefs[0] > 0, np.asarray((belief > 0).any(1))  # (S,), (S, S)
    for _ in range(S):
        met = met | leads[met].any(0)
    columns = np.append(np.repeat(met, cap + 1), True)
    first = np.isin(waits, np.geomspace(1, cap + 1, _FIRST_WAITS).astype(int))
    return _Block(
        equations=csr_array(equations[:, columns]),
        sides=np.append(np.zeros(S), 1.0),
        reward=np.append(alone.cumsum(1) - alone + play, chain.reward_passive[0])[columns],
        plays=np.append(np.ones(play.size), 0.0)[columns],
        first=np.append(np.tile(first, S), True)[columns],
    )


def _by_states(arm: Arm, cap: int) -> _Block:
    """Return the block by states: columns x(0, 0), ..., x(0, 1), ..., and y if needed."""
    from scipy.sparse import csr_array, hstack, vstack

    if arm.observed == "always":
        start = limiting_distribution(arm.passive)
    else:
        arm = expand(arm, cap)
        start = np.eye(1, arm.states)[0]  # never observed
    S = arm.states
    moves = [csr_array(m / m.sum(1, keepdims=True)) for m in (arm.passive, arm.active)]
    here = csr_array(np.tile(np.eye(S), 2))
    balance = here - hstack([move.T for move in moves])  # (S, 2 S)
    nothing = np.zeros(2 * S)
    reward = np.append(arm.reward_passive, arm.reward_active)
    plays = np.repeat([0.0, 1.0], S)
    labels, _ = end_components(moves)
    if labels.max() == 0:
        shares = csr_array(np.ones((1, 2 * S)))
        equations, sides = vstack([balance, shares]), np.append(np.zeros(S), 1.0)
    else:
        equations = vstack([hstack([balance, csr_array((S, 2 * S))]), hstack([here, balance])])
        sides = np.append(np.zeros(S), start)
        reward, plays = np.append(reward, nothing), np.append(plays, nothing)
    return _Block(csr_array(equations), sides, reward, plays, np.ones(reward.size, bool))
