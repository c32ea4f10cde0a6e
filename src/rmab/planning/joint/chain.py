"""Joint chain of several arms as one player observes them: rows, size and transitions.

Each arm is a finite chain of *rows*. One that is observed when played has the rows of
`rmab.model.expansion`: never observed, (0, 1), ..., (0, J), (1, 1), ...; one that is fully
observed has a row for each state. Both have the same shape: an action leads to one of a few rows,
at random, and pays an expected reward. An arm observed when played ages for sure when it is left
alone; all other moves may branch.

*Where ages end.* J_n, the cap of arm n, is the least age from which on every belief that is
replaced by another is within a `tolerance` of it, in total variation. Past its cap the age of an
arm falls back by `wraps[n]` slots; a wrap of 0 stands for never observed again. Beliefs of arms
whose passive chain forgets tend to that of never observed; those of other arms come to repeat with
its period.

*Codes.* A joint code is a mixed-radix number, arm 1 the most significant: code = sum_n digit_n
stride_n, stride_n = prod over m > n of the number of rows of arm m. The digit of an arm is its row:
its state if it is fully observed, else 0 for never observed and 1 + s J_n + k - 1 for (s, k).

*Size*, known before the chain is built. In every slot after the first exactly K arms were just
played, and those of them that are observed when played have age 1. So the joint states number at
most

    (product of S_n over fully observed arms) x (sum over j of the coefficient of z^j in
        prod over the others of (S_n z + u_n)),     K - (fully observed arms) <= j <= K,

where u_n counts the rows of an arm that was not just played; plus those before the first slot. With
at most b_n rows to go to when left alone and c_n when played, the transitions from a state number
at most the coefficient of z^K in prod_n (b_n + c_n z).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmab.arrays import Array, Float, FloatArray, Int, IntArray
from rmab.errors import TooLargeError
from rmab.linalg import array_namespace
from rmab.markov import forgets, limit, limiting_distribution, period
from rmab.model.arms import Arm, Arms
from rmab.model.expansion import expansion, settled_age
from rmab.model.information import InformationStates, row_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = [
    "MAX_CAP",
    "MAX_CODES",
    "MAX_TRANSITIONS",
    "TOLERANCES",
    "Ages",
    "JointChain",
    "Layout",
    "Start",
    "check_caps",
    "count_outcomes",
    "count_states",
    "count_transitions",
    "explore",
    "fully_observed_states",
    "joint_chain",
    "joint_code",
    "joint_rows",
    "kept_ages",
    "merged_ages",
    "readable",
    "rows_of_arms",
    "table_size",
    "transitions",
]

# Tolerances of beliefs, from fine to coarse: 1e-9, 3e-9, ... 1e-2.
TOLERANCES: tuple[float, ...] = tuple(10.0 ** -(half / 2) for half in range(18, 3, -1))
MAX_CAP = 5_000  # an arm that takes longer to forget makes a chain that takes too long to settle
MAX_CODES = 2**62  # codes must fit an integer
MAX_TRANSITIONS = 50_000_000  # each takes 12 bytes


# ------------------------------------------------------------------------------- where ages end


class Ages(NamedTuple):
    """Caps and wraps of the arms; 0 for arms that are fully observed."""

    caps: Int[IntArray, " N"]
    wraps: Int[IntArray, " N"]

    def at_least(self, age: int) -> Ages:
        """Raise caps to an age."""
        return self._replace(caps=np.where(self.caps > 0, np.maximum(self.caps, age), 0))


def merged_ages(arms: Arms, tolerance: float) -> Ages:
    """Return the ages with the fewest rows: past its cap an arm that forgets is never observed."""
    return _ages(arms, tolerance, _cycle)


def kept_ages(arms: Arms, tolerance: float) -> Ages:
    """Return ages where an arm that forgets stays at its cap, on its side of the limit.

    An index that tends to a rival's from below, say, must not be taken for equal.
    """
    return _ages(arms, tolerance, lambda arm: _cycle(arm) or 1 + _swings(arm))


def _ages(arms: Arms, tolerance: float, wrap_of: Callable[[Arm], int]) -> Ages:
    hidden = [arm.observed != "always" for arm in arms]
    wraps = [wrap_of(arm) if aging else 0 for arm, aging in zip(arms, hidden, strict=True)]
    caps = [
        _cap(arm, wrap, tolerance) if aging else 0
        for arm, wrap, aging in zip(arms, wraps, hidden, strict=True)
    ]
    return Ages(np.array(caps), np.array(wraps))


@lru_cache(maxsize=4096)
def _cycle(arm: Arm) -> int:
    """Return the period of the passive chain, 0 if it forgets."""
    return 0 if forgets(arm.passive) else period(arm.passive)


@lru_cache(maxsize=4096)
def _swings(arm: Arm) -> bool:
    """Whether the belief of an arm that forgets oscillates around its limit."""
    eigenvalues = np.linalg.eigvals(arm.passive)
    second = eigenvalues[np.argsort(-np.abs(eigenvalues))[1]]
    return bool(second.real < -1e-9 and second.imag == 0)


@lru_cache(maxsize=4096)
def _cap(arm: Arm, wrap: int, tolerance: float) -> int:
    """Return J, the least cap with settled beliefs; MAX_CAP + 1 or more if that takes too long."""
    if arm.states > 2 and wrap > 0:  # two beliefs near one limit, perhaps on either side of it
        tolerance /= 2
    age = settled_age(arm, tolerance, MAX_CAP + 1)
    if age == wrap:  # as long as a period, or just that: is it settled at age 1 already?
        away = np.eye(arm.states) - limit(np.linalg.matrix_power(arm.passive, wrap))
        if float(np.abs(arm.active @ away).sum(1).max()) / 2 <= tolerance:
            return age
    return int(age + max(wrap - 1, 0))


def check_caps(coarsest: Ages) -> None:
    """Raise TooLargeError if an arm forgets too slowly even at the coarsest tolerance."""
    slow = int(coarsest.caps.argmax())
    if coarsest.caps[slow] > MAX_CAP:
        raise TooLargeError(
            f"arm {slow + 1} takes more than {MAX_CAP:,} slots to forget what was seen, with "
            f"beliefs rounded at {TOLERANCES[-1]:g}; that is the limit",
            states=int(coarsest.caps[slow]),
        )


# ------------------------------------------------------------------------------------- the size


def rows_of_arms(arms: Arms, ages: Ages) -> Int[IntArray, " N"]:
    """Return the number of rows of each arm."""
    return np.where(ages.caps > 0, 1 + arms.sizes * ages.caps, arms.sizes)


def table_size(arms: Arms, ages: Ages) -> int:
    """Return the number of joint codes."""
    return math.prod(rows_of_arms(arms, ages).tolist())


def fully_observed_states(arms: Arms) -> int:
    """Return the number of joint states of the fully observed arms."""
    return math.prod(arm.states for arm in arms if arm.observed == "always")


def count_states(arms: Arms, ages: Ages, plays: int) -> int:
    """Bound the number of reachable joint states; see the module."""
    ways = [1] + [0] * plays  # by the number of arms of age 1
    for arm, cap, wrap in zip(arms, ages.caps.tolist(), ages.wraps.tolist(), strict=True):
        if arm.observed != "always":
            # Never observed, or of age 2..J; of age 1 too if J falls back to it.
            aged = 1 + arm.states * (cap - 1 + (cap == wrap))
            ways = _times(ways, aged, arm.states)
    fewest = plays - arms.observed.count("always")
    return fully_observed_states(arms) * (sum(ways[max(fewest, 0) :]) + 1)


def count_transitions(arms: Arms, plays: int) -> int:
    """Bound the transitions from a joint state, all choices of K arms together."""
    ways = [1] + [0] * plays
    for arm in arms:
        ways = _times(ways, *_widths(arm))
    return ways[plays]


def count_outcomes(arms: Arms, plays: int) -> int:
    """Bound the transitions from a joint state under one policy."""
    always = math.prod(max(_widths(arm)) for arm in arms if arm.observed == "always")
    hidden = sorted(arm.states for arm in arms if arm.observed != "always")
    return always * math.prod(hidden[-plays:])


def _times(ways: list[int], stay: int, play: int) -> list[int]:
    """Multiply a polynomial by (stay + play z), up to its degree."""
    return [stay * w + play * v for w, v in zip(ways, [0, *ways[:-1]], strict=True)]


def _widths(arm: Arm) -> tuple[int, int]:
    """Return the most rows that an arm may go to from one row, without and with a play."""
    if arm.observed != "always":
        return 1, arm.states
    widest = [int(np.count_nonzero(moves, axis=1).max()) for moves in (arm.passive, arm.active)]
    return widest[0], widest[1]


def readable(count: int) -> str:
    """Format a number of states; from 10^12 on only its order of magnitude."""
    return f"{count:,}" if count < 10**12 else f"about 10^{math.log10(count):.0f}"


# ------------------------------------------------------------------------------------ the chain


class Layout(NamedTuple):
    """Map from information states to joint codes: arrays (N,).

    caps: J_n; wraps: slots by which ages past the cap fall back, 0 if they become never observed;
    always: whether the arm is fully observed, which has neither cap nor wrap.
    """

    caps: Array
    wraps: Array
    strides: Array
    always: Array


def joint_code(last_seen: Array, age: Array, layout: Layout) -> Array:
    """Return joint codes (...) of information states (N, ...), NumPy or JAX; ages are folded.

    last_seen is the state last observed, or the state now of fully observed arms, whose age is
    ignored.
    """
    xp = array_namespace(last_seen, age)
    column = (-1,) + (1,) * (age.ndim - 1)
    caps, wraps, strides, always = (x.reshape(column) for x in layout)
    row = row_of(InformationStates(last_seen, age), caps, wraps)
    return (xp.where(always, last_seen, row) * strides).sum(0)


class JointChain(NamedTuple):
    """Chains of all arms; arm n has `radices[n]` of the I rows of the tables, from offset_n on.

    codes, chances: next rows after an action (0: passive, 1: play), as digit x stride, and their
    probabilities; widths: number of the B columns that the rows of an arm use; aged: code of an arm
    observed when played after a slot without a play, 0 for fully observed arms; idle, extra:
    expected reward without a play, and the reward that a play adds.
    """

    layout: Layout
    radices: Int[IntArray, " N"]
    offsets: Int[IntArray, " N"]
    codes: Int[IntArray, "2 I B"]
    chances: Float[FloatArray, "2 I B"]
    widths: Int[IntArray, "2 N"]
    aged: Int[IntArray, " I"]
    idle: Float[FloatArray, " I"]
    extra: Float[FloatArray, " I"]


class _ArmChain(NamedTuple):
    """One arm of I rows: next rows and their probabilities, (I, B) each, and rewards (I,)."""

    passive: tuple[IntArray, FloatArray]
    active: tuple[IntArray, FloatArray]
    reward_passive: FloatArray
    reward_active: FloatArray


def joint_chain(arms: Arms, ages: Ages) -> JointChain:
    """Return the joint chain of arms with given ages; fewer than 2^62 codes."""
    radices = rows_of_arms(arms, ages)
    strides = np.append(np.cumprod(radices[:0:-1])[::-1], 1)
    each = [
        _fully_observed(arm) if arm.observed == "always" else _observed_when_played(arm, cap, wrap)
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


def _observed_when_played(arm: Arm, cap: int, wrap: int) -> _ArmChain:
    chain = expansion(arm, cap)
    rows = len(chain.after)
    after = chain.after.copy()
    ends = np.arange(cap, rows, cap)
    after[ends] = ends + 1 - wrap if wrap else 0
    # Certain moves must be so to the last digit, or states open that are never reached.
    chances = np.round(chain.beliefs, 15)
    return _ArmChain(
        (after[:, None], np.ones((rows, 1))),
        _narrowed(np.broadcast_to(chain.played, chances.shape), chances),
        chain.reward_passive,
        chain.reward_active,
    )


def _fully_observed(arm: Arm) -> _ArmChain:
    targets = np.broadcast_to(np.arange(arm.states), arm.passive.shape)
    passive, active = (
        _narrowed(targets, moves / moves.sum(1, keepdims=True))
        for moves in (arm.passive, arm.active)
    )
    return _ArmChain(passive, active, arm.reward_passive, arm.reward_active)


def _narrowed(targets: IntArray, chances: FloatArray) -> tuple[IntArray, FloatArray]:
    """Move each row's positive chances to the front and drop the columns without any."""
    order = np.argsort(chances == 0, axis=1, kind="stable")
    order = order[:, : int(np.count_nonzero(chances, axis=1).max())]
    return np.take_along_axis(targets, order, 1), np.take_along_axis(chances, order, 1)


class Start(NamedTuple):
    """Joint codes before the first slot and their chances."""

    codes: Int[IntArray, " X"]
    chances: Float[FloatArray, " X"]

    @classmethod
    def of(cls, chain: JointChain, arms: Arms) -> Start:
        """Return the start of arms that were never played before.

        An arm observed when played is never observed; a fully observed one is in any state of its
        limiting distribution under passivity.
        """
        codes, chances = np.zeros(1, np.int64), np.ones(1)
        for arm, stride in zip(arms, chain.layout.strides, strict=True):
            if arm.observed == "always":
                limiting = limiting_distribution(arm.passive)
                states = np.flatnonzero(limiting)
                codes = np.add.outer(codes, states * stride).ravel()
                chances = np.outer(chances, limiting[states]).ravel()
        return cls(codes, chances)

    def over(self, reachable: Int[IntArray, " R"]) -> Float[FloatArray, " R"]:
        """Return the chances of all reachable codes, sorted."""
        chances = np.zeros(reachable.size)
        chances[np.searchsorted(reachable, self.codes)] = self.chances
        return chances


def joint_rows(chain: JointChain, codes: Int[IntArray, " X"]) -> Int[IntArray, "X N"]:
    """Return the table rows of joint codes."""
    return np.asarray(codes[:, None] // chain.layout.strides % chain.radices + chain.offsets)


def _step(
    chain: JointChain, rows: IntArray, played: IntArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return next codes (X, B), their probabilities (X, B) and the expected reward (X,).

    played: arms played, (X, K), or (K,) for all states.
    """
    who = np.atleast_2d(played)  # (X, K), or (1, K)
    active = np.take_along_axis(rows, np.broadcast_to(who, (len(rows), who.shape[1])), axis=1)
    certain = chain.aged[rows].sum(1) - chain.aged[active].sum(1)
    codes, chances = certain[:, None], np.ones((len(rows), 1))
    for k in range(who.shape[1]):
        hidden = ~chain.layout.always[who[:, k]]
        if not hidden.any():
            continue
        width = chain.widths[1, who[hidden, k]].max()
        ahead = chain.codes[1, :, :width][active[:, k]]
        chance = chain.chances[1, :, :width][active[:, k]]
        if not hidden.all():  # fully observed arms follow below
            ahead = np.where(hidden[:, None], ahead, 0)
            chance = np.where(hidden[:, None], chance, np.eye(1, width))
        codes, chances = _branch(codes, chances, ahead, chance)
    for n in np.flatnonzero(chain.layout.always):
        action = np.any(who == n, axis=1).astype(np.int64)
        width = chain.widths[np.unique(action), n].max()
        ahead = chain.codes[action, rows[:, n], :width]
        codes, chances = _branch(codes, chances, ahead, chain.chances[action, rows[:, n], :width])
    reward = chain.extra[active].sum(1)
    if chain.idle.any():
        reward += chain.idle[rows].sum(1)
    return codes, chances, reward


def _branch(
    codes: IntArray, chances: FloatArray, ahead: IntArray, chance: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Combine next codes (X, B) with those of one more arm (X, C): (X, B C)."""
    shape = (len(codes), codes.shape[1] * ahead.shape[1])
    return (
        (codes[:, :, None] + ahead[:, None, :]).reshape(shape),
        (chances[:, :, None] * chance[:, None, :]).reshape(shape),
    )


def explore(
    chain: JointChain,
    start: Int[IntArray, " X"],
    choices: Callable[[IntArray], Sequence[IntArray] | IntArray],
    limit: int,
) -> Int[IntArray, " R"]:
    """Return all codes reachable from the start, sorted; TooLargeError beyond the limit.

    choices maps rows (X, N) to the sets of arms that may be played there, each (X, K) or (K,).
    """
    known = frontier = np.unique(start)
    while frontier.size:
        rows = joint_rows(chain, frontier)
        fresh = []
        for played in choices(rows):
            codes, chances, _ = _step(chain, rows, played)
            fresh.append(np.unique(codes[chances > 0]))
        reached = np.unique(np.concatenate(fresh))
        place = np.searchsorted(known, reached)
        new = known[np.minimum(place, known.size - 1)] != reached
        frontier = reached[new]
        known = np.insert(known, place[new], frontier)
        if known.size > limit:
            raise TooLargeError(f"more than {limit:,} joint information states", known.size)
    return known


def transitions(
    chain: JointChain, codes: IntArray, played: IntArray
) -> tuple[csr_array[Any, Any], FloatArray]:
    """Return the transition matrix (R, R) and expected rewards (R,) of one choice per state."""
    from scipy.sparse import csr_array

    ahead, chances, reward = _step(chain, joint_rows(chain, codes), played)
    columns = np.searchsorted(codes, ahead).astype(np.int32)
    columns[chances == 0] = 0  # such a code may be unknown; the weight keeps it out
    starts = np.arange(len(codes) + 1, dtype=np.int32) * ahead.shape[1]
    size = (len(codes), len(codes))
    return csr_array((chances.ravel(), columns.ravel(), starts), shape=size), reward
