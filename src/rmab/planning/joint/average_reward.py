"""Average reward of finite Markov chains and decision processes, with bounds.

States are 0..R-1. For each of A choices there is a sparse transition matrix P_a, (R, R), and a
vector of expected rewards r_a, (R,). The gain g(x) is the largest average reward per slot from x.
Where it is the same from all states, it solves, with the relative value h,

    g + h(x) = max_a r_a(x) + sum_x' P_a(x, x') h(x').

Value iteration: for any v the increments w = max_a (r_a + P_a v) - v bracket the gain, min w <= g
<= max w (Odoni), so a run ends when they agree to a precision in units of the largest reward. v
moves by a part of w only: periodic chains need that.

The gain may differ between states, where chance decides once and for all. A run whose bounds
hardly move therefore computes the *end components*: sets of states that some choices never leave
and in which these lead from every state to every other. Every policy ends up in end
components, and inside one the gain is the same from all states. So

1. the gain of each component, over the choices that stay in it, comes from value iteration;
2. the best mean over the components, from each state, solves a stopping problem,

       g(x) = max(gain of the component of x, max_a sum_x' P_a(x, x') g(x')),

   where a component counts as one state, which only choices that leave it can leave: iterations
   from below and from above then meet;
3. a state whose component is worth staying in plays the best choice that stays. Any other plays
   one of largest mean g that leads nearer to a state which is decided already.

References: M. L. Puterman, "Markov Decision Processes", 1994, Sections 8.5 and 9.4;
A. R. Odoni, "On finding the maximal gain for Markov decision processes", Oper. Res. 17(5), 1969;
L. de Alfaro, "Formal verification of probabilistic systems", 1997, Section 3.3 (end components);
S. Haddad and B. Monmege, "Interval iteration algorithm for MDPs and IMDPs", TCS 735, 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.arrays import Bool, BoolArray, Float, FloatArray, Int, IntArray
from rmab.errors import ConvergenceError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["MAX_SWEEPS", "Solution", "chain_gain", "end_components", "optimal_gain"]

MAX_SWEEPS = 50_000
_MAX_WORK = 4e9  # transitions read in all sweeps
_PRECISION = 1e-9  # precision of a gain, in units of the largest reward
_DAMPING = 0.8  # part of an increment by which values move
_FIRST_CHECK = 32  # sweeps before the first check of the bounds, doubled for each further check
_STALLED_RATIO = 0.5  # bounds have stalled if a check does not find them narrowed to this ratio


class Solution(NamedTuple):
    """Gain and relative value of the best choices.

    value: gain from the start; gain: from each state; relative: h, up to a constant in each end
    component that is worth staying in; span: largest span of h within one of them; choices: the
    lowest of the best choices in each state.
    """

    value: float
    gain: Float[FloatArray, " R"]
    relative: Float[FloatArray, " R"]
    span: float
    choices: Int[IntArray, " R"]


def optimal_gain(
    moves: Sequence[csr_array[Any, Any]],
    rewards: Sequence[FloatArray],
    start: Float[FloatArray, " R"],
    *,
    max_sweeps: int = MAX_SWEEPS,
) -> Solution:
    """Compute the largest gain from a distribution of the first state.

    Raises ConvergenceError after max_sweeps sweeps, or fewer where the transitions are many.
    """
    sweeps = _sweeps(moves, max_sweeps)
    precision = _precision(rewards)
    value = np.zeros(start.size)
    everything = _Classes(np.zeros(start.size, np.int64))
    allowed = np.ones((len(moves), 1), bool)
    ahead = partial(_ahead, moves, rewards, allowed)
    before, check = np.inf, _FIRST_CHECK
    for sweep, (low, high) in enumerate(_bounds(ahead, value, everything, precision, sweeps)):
        gap = float(high[0] - low[0])
        if gap <= precision:
            break
        if sweep == check:
            if gap > _STALLED_RATIO * before:
                labels, stays = end_components(moves)
                if labels.max() > 0:
                    components = _Classes(labels)
                    sweeps = _sweeps(moves, max_sweeps)
                    return _by_components(moves, rewards, start, value, components, stays, sweeps)
                before = np.inf  # with one component the bounds will meet
            else:
                before, check = gap, 2 * check
    gain = (low + high) / 2  # (1,)
    return Solution(
        value=float(gain[0]),
        gain=np.full(start.size, gain[0]),
        relative=value,
        span=float(np.ptp(value)),
        choices=_lowest_best(moves, rewards, allowed, value, precision),
    )


def chain_gain(
    move: csr_array[Any, Any],
    reward: Float[FloatArray, " R"],
    start: Float[FloatArray, " R"],
    *,
    max_sweeps: int = MAX_SWEEPS,
) -> float:
    """Compute the gain of a chain without choices; ConvergenceError as for `optimal_gain`."""
    from scipy.sparse.csgraph import connected_components

    move.eliminate_zeros()
    _, part = connected_components(move, connection="strong")
    closed = np.ones(int(part.max()) + 1, bool)
    closed[part[_leaves(move, part)]] = False
    classes = _Classes(np.where(closed, np.cumsum(closed) - 1, -1)[part])
    sweeps = _sweeps([move], max_sweeps)
    weights = np.ones(1) if classes.count == 1 else _absorbed(move, classes, start, sweeps)
    ahead = partial(_ahead, [move], [reward], np.ones((1, 1), bool))
    value, precision = np.zeros(reward.size), _precision([reward])
    return float(_settled(_bounds(ahead, value, classes, precision, sweeps), precision) @ weights)


def end_components(
    moves: Sequence[csr_array[Any, Any]],
) -> tuple[Int[IntArray, " R"], Bool[BoolArray, "A R"]]:
    """Return the maximal end components as a label 0.. for each state, -1 for none, and the choices
    that stay in the component of their state."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    for move in moves:
        move.eliminate_zeros()
    size = moves[0].shape[0]
    stays = np.ones((len(moves), size), bool)
    while True:
        # An edge for every transition that a choice which stays may take.
        kept = [move[np.flatnonzero(stay)] for move, stay in zip(moves, stays, strict=True)]
        target = np.concatenate([part.indices for part in kept])
        counts = np.concatenate([np.diff(part.indptr) for part in kept])
        del kept  # as large as all moves
        source = np.repeat(np.nonzero(stays)[1].astype(np.int32), counts)
        edges = csr_array((np.ones(target.size, bool), (source, target)), shape=(size, size))
        _, labels = connected_components(edges, connection="strong")
        left = np.stack([_leaves(move, labels) for move in moves]) & stays
        if not left.any():
            break
        stays &= ~left
        _drop_dead_ends(moves, stays)
    inside = stays.any(0)
    named = np.full(size, -1, np.int64)
    named[inside] = np.unique(labels[inside], return_inverse=True)[1]
    return named, stays


class _Classes:
    """Sets of states, from labels (R,): 0.., or -1 for states in none of them."""

    def __init__(self, labels: IntArray) -> None:
        self.labels, self.count = labels, int(labels.max()) + 1
        members = np.argsort(labels, kind="stable")[np.count_nonzero(labels < 0) :]
        self.starts = np.flatnonzero(np.diff(labels[members], prepend=-1))  # (C,)
        whole = self.count == 1 and members.size == labels.size
        self.inside = slice(None) if whole else members

    def lowest(self, values: FloatArray) -> FloatArray:
        """Return the least of values (R,) in each class, (C,)."""
        return np.asarray(np.minimum.reduceat(values[self.inside], self.starts))

    def highest(self, values: FloatArray) -> FloatArray:
        """Return the largest of values (R,) in each class, (C,)."""
        return np.asarray(np.maximum.reduceat(values[self.inside], self.starts))

    def spread(self, by_class: FloatArray, elsewhere: FloatArray) -> FloatArray:
        """Return by_class (C,) for states of the classes, elsewhere (R,) for the others, (R,)."""
        return np.where(self.labels >= 0, by_class[self.labels], elsewhere)


def _precision(rewards: Sequence[FloatArray]) -> float:
    return _PRECISION * max(float(np.abs(reward).max()) for reward in rewards)


def _sweeps(moves: Sequence[csr_array[Any, Any]], max_sweeps: int) -> int:
    """Return the largest number of sweeps allowed, by the number of transitions."""
    return max(1, min(max_sweeps, int(_MAX_WORK / sum(move.nnz for move in moves))))


def _ahead(
    moves: Sequence[csr_array[Any, Any]],
    rewards: Sequence[FloatArray],
    allowed: BoolArray,
    value: FloatArray,
) -> FloatArray:
    """Return max_a r_a + P_a v over the allowed choices (A, R), (R,); -inf without any."""
    best = np.full(value.size, -np.inf)
    for move, reward, choice in zip(moves, rewards, allowed, strict=True):
        worth = move @ value
        worth += reward
        if not choice.all():
            worth[~choice] = -np.inf
        np.maximum(best, worth, out=best)
    return best


def _bounds(
    ahead: Callable[[FloatArray], FloatArray],
    value: FloatArray,
    classes: _Classes,
    precision: float,
    sweeps: int,
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield bounds (C,) on the gain of each class after each sweep; value (R,) moves towards h."""
    for _ in range(sweeps):
        gain = ahead(value) - value
        low, high = classes.lowest(gain), classes.highest(gain)
        yield low, high
        value[classes.inside] += _DAMPING * gain[classes.inside]
    raise ConvergenceError(
        f"value iteration over {value.size:,} states: the gain is known to "
        f"{np.max(high - low):.1e} after {sweeps:,} sweeps, {precision:.1e} is asked"
    )


def _settled(bounds: Iterator[tuple[FloatArray, FloatArray]], precision: float) -> FloatArray:
    """Return the gain of each class, (C,), once its bounds meet."""
    low, high = next(pair for pair in bounds if np.max(pair[1] - pair[0]) <= precision)
    return (low + high) / 2


def _lowest_best(
    moves: Sequence[csr_array[Any, Any]],
    rewards: Sequence[FloatArray],
    allowed: BoolArray,
    value: FloatArray,
    near: float,
) -> IntArray:
    """Return the lowest allowed choice that is best up to `near`, (R,); -1 without any."""
    enough = _ahead(moves, rewards, allowed, value) - near
    choices = np.full(value.size, -1)
    for a in reversed(range(len(moves))):
        choices[allowed[a] & (rewards[a] + moves[a] @ value >= enough)] = a
    return choices


def _by_components(
    moves: Sequence[csr_array[Any, Any]],
    rewards: Sequence[FloatArray],
    start: FloatArray,
    value: FloatArray,
    components: _Classes,
    stays: BoolArray,
    sweeps: int,
) -> Solution:
    """Solve where the gain differs between states: steps 1 to 3 of the module."""
    precision = _precision(rewards)
    inside = partial(_ahead, moves, rewards, stays)
    own = _settled(_bounds(inside, value, components, precision, sweeps), precision)  # (C,)

    nothing, leaves = [np.zeros(1)] * len(moves), ~stays

    def stop_or_leave(gain: FloatArray) -> FloatArray:
        on = _ahead(moves, nothing, leaves, gain)
        return components.spread(np.maximum(own, components.highest(on)), on)

    low = components.spread(own, np.full(start.size, own.min()))
    high = np.full(start.size, own.max())
    for _ in range(sweeps):
        if np.max(high - low) <= precision:
            break
        low, high = stop_or_leave(low), stop_or_leave(high)
    else:
        raise ConvergenceError(
            f"{start.size:,} states with {components.count:,} end components: the best mean is "
            f"known to {np.max(high - low):.1e} after {sweeps:,} sweeps, {precision:.1e} is asked"
        )
    gain, near = (low + high) / 2, 2 * precision

    worth_staying = components.lowest(gain) <= own + near  # (C,)
    staying = (components.labels >= 0) & worth_staying[components.labels]
    choices = np.where(staying, _lowest_best(moves, rewards, stays, value, precision), -1)
    _lead_on(moves, gain, near, choices)
    widths = components.highest(value) - components.lowest(value)
    return Solution(float(start @ gain), gain, value, float(widths[worth_staying].max()), choices)


def _lead_on(
    moves: Sequence[csr_array[Any, Any]], gain: FloatArray, near: float, choices: IntArray
) -> None:
    """Give every state without a choice (-1) one that keeps the mean gain and leads on."""
    keeps = np.stack([move @ gain >= gain - near for move in moves])  # (A, R)
    while True:
        open_, decided = choices < 0, (choices >= 0).astype(np.float64)
        if not open_.any():
            return
        reaches = np.zeros(gain.size)
        for a, move in enumerate(moves):
            chance = np.where(open_ & keeps[a], move @ decided, 0)
            nearer = chance > reaches + 1e-12  # chances that differ by rounding are equal
            choices[nearer], reaches[nearer] = a, chance[nearer]
        if not reaches.any():
            raise ConvergenceError(
                f"{np.count_nonzero(open_):,} of {gain.size:,} states have no choice that keeps "
                f"the best mean to {near:.1e}"
            )


def _leaves(move: csr_array[Any, Any], labels: npt.NDArray[np.integer[Any]]) -> BoolArray:
    """Whether a state may go to a state of another label, (R,)."""
    elsewhere = np.repeat(labels, np.diff(move.indptr)) != labels[move.indices]
    return np.logical_or.reduceat(elsewhere, move.indptr[:-1])  # no row is empty


def _drop_dead_ends(moves: Sequence[csr_array[Any, Any]], stays: BoolArray) -> None:
    """Drop choices that may lead to a state in which no choice stays."""
    dead = np.zeros(stays.shape[1], bool)
    while (fresh := ~stays.any(0) & ~dead).any():
        dead |= fresh
        for move, stay in zip(moves, stays, strict=True):
            stay &= (move @ fresh.astype(np.float64)) == 0


def _absorbed(
    move: csr_array[Any, Any], classes: _Classes, start: FloatArray, slots: int
) -> FloatArray:
    """Return the chances (C,) of ending up in each class from the start, within `slots` slots."""
    mass = start
    for _ in range(slots):
        # The mass that is not absorbed yet comes first.
        by_class = np.bincount(classes.labels + 1, mass, classes.count + 1).astype(np.float64)
        if by_class[0] < _PRECISION:
            return by_class[1:] / float(by_class[1:].sum())
        mass = mass @ move
    raise ConvergenceError(
        f"a chain of {start.size:,} states is on its way to a class after {slots:,} slots"
    )
