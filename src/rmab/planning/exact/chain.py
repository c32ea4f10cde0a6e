"""The joint chain of several arms as one player sees them: rows, codes, steps, reachable states.

Each arm is a finite chain of *rows*. One that is seen only when played has the rows of
`rmab.model.information`: never seen, (0, 1), ..., (0, J), (1, 1), ...; one that is always seen has
a row for each state. Both have the same shape: an action leads to one of a few rows, by chance, and
pays an expected reward. An arm seen only when played ages for sure when it is left alone; all other
moves may branch. `rmab.planning.exact.ages` says where ages end and how large the chain is.

A joint code is a mixed-radix number, arm 1 the most significant: code = sum_n digit_n stride_n,
stride_n = prod over m > n of the number of rows of arm m. The digit of an arm is its row: its state
if it is always seen, else 0 for never seen and 1 + s J_n + k - 1 for (s, k).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import TooLargeError
from rmab.linalg import Array, array_namespace
from rmab.markov import limiting_distribution
from rmab.model.arms import Arm, Arms
from rmab.model.beliefs import NEVER
from rmab.model.information import expansion
from rmab.planning.exact.ages import Ages, rows_of_arms

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = [
    "JointChain",
    "Layout",
    "explore",
    "joint_chain",
    "joint_code",
    "joint_rows",
    "start_law",
    "transitions",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Layout(NamedTuple):
    """How information states become joint codes: arrays (N,).

    caps: J_n; wraps: how far ages past the cap fall back, 0 if they become never seen; strides; and
    always: whether the arm is always seen, which has neither cap nor wrap.
    """

    caps: Array
    wraps: Array
    strides: Array
    always: Array


def joint_code(last_seen: Array, age: Array, layout: Layout) -> Array:
    """Joint codes (...) of information states (N, ...), NumPy or JAX; any age is folded.

    last_seen: the state last seen, of arms always seen the state now; age: slots since, 0 if never
    seen, of no meaning for arms always seen.
    """
    xp = array_namespace(last_seen, age)
    column = (-1,) + (1,) * (age.ndim - 1)
    caps, wraps, strides, always = (x.reshape(column) for x in layout)
    beyond = caps + 1 - wraps + (age - caps - 1) % xp.maximum(wraps, 1)
    beyond = xp.where(wraps > 0, beyond, NEVER)
    folded = xp.where(age > caps, beyond, age)
    looked = xp.where(folded == NEVER, 0, folded + caps * last_seen)
    return (xp.where(always, last_seen, looked) * strides).sum(0)


class JointChain(NamedTuple):
    """The arms' chains side by side; arm n owns `radices[n]` rows of the tables from offset_n on.

    codes, chances: (2, rows, B), where an action (0: left alone, 1: played) leads from a row, as
    digit x stride, and how likely; widths: (2, N), how many of the B columns the rows of an arm
    use; aged: (rows,), the one code that an arm seen only when played has after a slot alone, 0 for
    arms always seen; idle, extra: (rows,), the expected reward alone, and what a play adds to it.
    """

    layout: Layout
    radices: IntArray
    offsets: IntArray
    codes: IntArray
    chances: FloatArray
    widths: IntArray
    aged: IntArray
    idle: FloatArray
    extra: FloatArray


class _ArmChain(NamedTuple):
    """One arm of I rows: where it goes and how likely, (I, B) each, and what it pays, (I,) each."""

    passive: tuple[IntArray, FloatArray]
    active: tuple[IntArray, FloatArray]
    reward_passive: FloatArray
    reward_active: FloatArray


def joint_chain(arms: Arms, ages: Ages) -> JointChain:
    """The joint chain of arms whose ages end as told; fewer than 2^62 codes."""
    radices = rows_of_arms(arms, ages)
    strides = np.append(np.cumprod(radices[:0:-1])[::-1], 1)
    each = [
        _always_seen(arm) if arm.observed == "always" else _seldom_seen(arm, cap, wrap)
        for arm, cap, wrap in zip(arms, ages.caps.tolist(), ages.wraps.tolist(), strict=True)
    ]
    offsets = np.append(0, np.cumsum(radices)[:-1])
    widths = np.array([[arm.passive[0].shape[1], arm.active[0].shape[1]] for arm in each]).T
    codes = np.zeros((2, radices.sum(), widths.max()), np.int64)
    chances = np.zeros(codes.shape)
    for arm, first, stride in zip(each, offsets, strides, strict=True):
        for action, (targets, chance) in enumerate((arm.passive, arm.active)):
            place = (action, slice(first, first + len(targets)), slice(targets.shape[1]))
            codes[place], chances[place] = targets * stride, chance
    idle = np.concatenate([arm.reward_passive for arm in each])
    return JointChain(
        layout=Layout(ages.caps, ages.wraps, strides, ages.caps == 0),
        radices=radices,
        offsets=offsets,
        codes=codes,
        chances=chances,
        widths=widths,
        aged=np.where(np.repeat(ages.caps > 0, radices), codes[0, :, 0], 0),
        idle=idle,
        extra=np.concatenate([arm.reward_active for arm in each]) - idle,
    )


def _seldom_seen(arm: Arm, cap: int, wrap: int) -> _ArmChain:
    chain = expansion(arm, cap)
    rows = len(chain.after)
    after = chain.after.copy()
    ends = np.arange(cap, rows, cap)
    after[ends] = ends + 1 - wrap if wrap else 0
    # What is certain must be so to the last digit, or states open that are never reached.
    chances = np.round(chain.beliefs, 15)
    return _ArmChain(
        (after[:, None], np.ones((rows, 1))),
        _narrowed(np.broadcast_to(chain.played, chances.shape), chances),
        chain.reward_passive,
        chain.reward_active,
    )


def _always_seen(arm: Arm) -> _ArmChain:
    targets = np.broadcast_to(np.arange(arm.states), arm.passive.shape)
    passive, active = (
        _narrowed(targets, moves / moves.sum(1, keepdims=True))
        for moves in (arm.passive, arm.active)
    )
    return _ArmChain(passive, active, arm.reward_passive, arm.reward_active)


def _narrowed(targets: IntArray, chances: FloatArray) -> tuple[IntArray, FloatArray]:
    """The columns (I, B) that are needed once each row has its chances above 0 first."""
    order = np.argsort(chances == 0, axis=1, kind="stable")
    order = order[:, : int(np.count_nonzero(chances, axis=1).max())]
    return np.take_along_axis(targets, order, 1), np.take_along_axis(chances, order, 1)


def start_law(chain: JointChain, arms: Arms) -> tuple[IntArray, FloatArray]:
    """The joint codes before the first slot and their chances: all arms were left alone for ever.

    An arm seen only when played is never seen; one always seen is in any state of its resting law.
    """
    codes, chances = np.zeros(1, np.int64), np.ones(1)
    for arm, stride in zip(arms, chain.layout.strides, strict=True):
        if arm.observed == "always":
            law = limiting_distribution(arm.passive)
            states = np.flatnonzero(law)
            codes = np.add.outer(codes, states * stride).ravel()
            chances = np.outer(chances, law[states]).ravel()
    return codes, chances


def joint_rows(chain: JointChain, codes: IntArray) -> IntArray:
    """The table rows (X, N) of joint codes (X,)."""
    return np.asarray(codes[:, None] // chain.layout.strides % chain.radices + chain.offsets)


def _step(
    chain: JointChain, rows: IntArray, played: IntArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Next codes (X, B), their probabilities (X, B) and the expected reward (X,).

    played: the arms played, (X, K), or (K,) for all states alike.
    """
    who = np.atleast_2d(played)  # (X, K), or (1, K)
    looked = np.take_along_axis(rows, np.broadcast_to(who, (len(rows), who.shape[1])), axis=1)
    certain = chain.aged[rows].sum(1) - chain.aged[looked].sum(1)
    codes, chances = certain[:, None], np.ones((len(rows), 1))
    for k in range(who.shape[1]):
        seldom = ~chain.layout.always[who[:, k]]
        if not seldom.any():
            continue
        width = chain.widths[1, who[seldom, k]].max()
        ahead = chain.codes[1, :, :width][looked[:, k]]
        chance = chain.chances[1, :, :width][looked[:, k]]
        if not seldom.all():  # arms always seen have their turn below
            ahead = np.where(seldom[:, None], ahead, 0)
            chance = np.where(seldom[:, None], chance, np.eye(1, width))
        codes, chances = _branch(codes, chances, ahead, chance)
    for n in np.flatnonzero(chain.layout.always):
        action = np.any(who == n, axis=1).astype(np.int64)
        width = chain.widths[np.unique(action), n].max()
        ahead = chain.codes[action, rows[:, n], :width]
        codes, chances = _branch(codes, chances, ahead, chain.chances[action, rows[:, n], :width])
    reward = chain.extra[looked].sum(1)
    if chain.idle.any():
        reward += chain.idle[rows].sum(1)
    return codes, chances, reward


def _branch(
    codes: IntArray, chances: FloatArray, ahead: IntArray, chance: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Every way so far (X, B), with every way of one more arm (X, C): (X, B C)."""
    shape = (len(codes), codes.shape[1] * ahead.shape[1])
    return (
        (codes[:, :, None] + ahead[:, None, :]).reshape(shape),
        (chances[:, :, None] * chance[:, None, :]).reshape(shape),
    )


def explore(
    chain: JointChain,
    start: IntArray,
    choices: Callable[[IntArray], Sequence[IntArray] | IntArray],
    limit: int,
) -> IntArray:
    """All codes (R,) reachable from those of the start, sorted; TooLargeError beyond the limit.

    choices: from rows (X, N) to the sets of arms that may be played there, each (X, K) or (K,).
    """
    known = frontier = np.unique(start)
    while frontier.size:
        rows = joint_rows(chain, frontier)
        fresh = []
        for played in choices(rows):
            codes, chances, _ = _step(chain, rows, played)
            fresh.append(np.unique(codes[chances > 0]))
        found = np.unique(np.concatenate(fresh))
        place = np.searchsorted(known, found)
        new = known[np.minimum(place, known.size - 1)] != found
        frontier = found[new]
        known = np.insert(known, place[new], frontier)
        if known.size > limit:
            raise TooLargeError(f"more than {limit:,} joint information states", known.size)
    return known


def transitions(
    chain: JointChain, codes: IntArray, played: IntArray
) -> tuple[csr_array[Any, Any], FloatArray]:
    """The transition matrix (R, R) and expected rewards (R,) of one choice in each state."""
    from scipy.sparse import csr_array

    ahead, chances, reward = _step(chain, joint_rows(chain, codes), played)
    columns = np.searchsorted(codes, ahead).astype(np.int32)
    columns[chances == 0] = 0  # such a code may be unknown; the weight keeps it out
    starts = np.arange(len(codes) + 1, dtype=np.int32) * ahead.shape[1]
    size = (len(codes), len(codes))
    return csr_array((chances.ravel(), columns.ravel(), starts), shape=size), reward
