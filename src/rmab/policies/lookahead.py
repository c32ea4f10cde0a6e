"""Lookahead: K arms to play, by looking a few slots ahead over information states.

Arm n is in row x_n of its information states. A play there shows or leads to state s with chance
c(x_n, s), and the arm is then in (s, 1); left alone it ages by one slot, or, if it is fully
observed, moves by P_0. After d slots the arms are worth sum_n v_n(x_n), their terminal values
(`rmab.planning.lookahead`). With V_0 that sum, the best that d slots can bring is

    V_d(x) = max over K-subsets A of  r(x, A) + E[V_(d-1)(x') | x, A].

All that does not depend on the other arms is split off. If every arm were left alone for d
slots it would be worth u_d(x_n), u_0 = v. The *gain* of one play with d slots left,

    a_d(x_n) = r_1 - r_0 + sum_s c(x_n, s) u_(d-1)(s, 1) - E[u_(d-1)(x_n') | left alone],

is what it adds to that, so with W_d = V_d - sum_n u_d

    W_1(x) = sum of the K largest a_1(x_n)
    W_d(x) = max over A of  sum over n in A of a_d(x_n) + E[W_(d-1)(x') | x, A].

The last slot needs no enumeration of sets, and the slot before it none of joint outcomes where
these are many: the K largest of independent values add up to

    K low + integral over t >= low of min(K, number of values above t) dt,

low being the lowest value; the number is a sum of independent indicators, whose distribution takes
X K steps for X arms. It is exact, as is the sum over outcomes that is taken where they are few.

All K-subsets are tried while sets times outcomes, or `SearchLimits.outcomes` if they are more,
number at most `SearchLimits.ways`. Beyond, only sets near the K arms of largest a_d, the best by
the arms' own values: those K, and those after exchanging one or two of the last
m = `SearchLimits.margin` of them for as many of the next m, at most 1 + m^2 + (m (m - 1) / 2)^2
sets. That bounds the work by a polynomial in N, K and S at depth 2, and the choice is the best of
these sets. At depth 3 the outcomes of the first slot are enumerated, so there may be at most
`SearchLimits.outcomes` of them: `check_depth` refuses more.

Ties, to rounding, go to the set that comes first: in lexicographic order of the arms where all
sets are tried, else in that of the exchanges.

This module has no solver: the tables of gains and chances come from `rmab.planning.lookahead`, and
an agent reads and chooses with only NumPy. Arrays have the arms first and anything after, on NumPy
and JAX alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError
from rmab.linalg import Array, array_namespace, compute_once, repeat, rounding
from rmab.model.information import InformationStates, after, row_of
from rmab.policies.constraint import Constraint

if TYPE_CHECKING:  # an agent loads only what it needs
    from rmab.model.arms import ArmKind

__all__ = [
    "DEPTH",
    "DEPTHS",
    "LookaheadState",
    "LookaheadTables",
    "PassivePath",
    "SearchLimits",
    "check_depth",
    "choose",
    "expected_largest",
    "state_from_tables",
    "table_entries",
]

IntArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]
Compute = Callable[[], Array]

DEPTHS = (1, 2, 3)
DEPTH = 2  # unless a policy's options say otherwise
_MAX_UNROLLED = 64  # sets times outcomes up to which a compiled program has each for itself
_TIE_ROUNDINGS = 16  # values that differ by less, in units of rounding, are equal


@dataclass(frozen=True)
class SearchLimits:
    """Limits of the search of a lookahead.

    ways: sets times outcomes up to which all sets are tried; outcomes: of a slot, up to which they
    are enumerated; margin: arms on either side of the K-th that are exchanged where not all sets
    are tried.
    """

    ways: int = 512
    outcomes: int = 64
    margin: int = 3


_LIMITS = SearchLimits()


class PassivePath(NamedTuple):
    """The next d slots of arms that are left alone, and the effect of a play in each; each tuple by
    slot.

    gains: d arrays (N, ...), a_d now, a_(d-1) after a slot alone, ...; observation_probs: d - 1
    arrays (S, N, ...), the chance of each state that a play shows or leads to; passive_probs: d - 1
    arrays likewise for fully observed arms that are left alone, None where there are no such arms.
    """

    gains: tuple[Array, ...]
    observation_probs: tuple[Array, ...]
    passive_probs: tuple[Array, ...] | None = None

    @property
    def aged(self) -> PassivePath:
        """Path after a slot without a play."""
        passive = self.passive_probs and self.passive_probs[1:]
        return PassivePath(self.gains[1:], self.observation_probs[1:], passive)


class LookaheadState(NamedTuple):
    """All that a lookahead of d slots needs to know about the arms.

    now: the arms where they are, with d slots left; observed: observed[j][s], the arms in (s, 1)
    with j + 1 slots left, j < d - 1; fully_observed: (N, ...), None if no arm is.
    """

    now: PassivePath
    observed: tuple[tuple[PassivePath, ...], ...]
    fully_observed: Array | None = None


class LookaheadTables(NamedTuple):
    """Tables over information states, rows as in `rmab.planning.tables`, I = 1 + S max_age.

    observation_probs: S - 1 tables (N, I, ...), the chance of each state but the last that a play
    shows, or of fully observed arms leads to; gains: by slots left, a_1, a_2, ..., (N, I, ...)
    each; passive_probs: S - 1 tables like observation_probs for fully observed arms that are left
    alone, None where there are no such arms.
    """

    observation_probs: tuple[Array, ...]
    gains: tuple[Array, ...]
    passive_probs: tuple[Array, ...] | None


# ---------------------------------------------------------------------------------------- reading


def table_entries(table: Array, rows: Array) -> Array:
    """The entries (N, A, ...) of a table (N, I, A, ...) in rows (N, A, ...).

    A table of A = 1 serves any number of agents; axes after that broadcast.
    """
    xp = array_namespace(table, rows)
    if table.shape[2] == 1:
        return xp.take_along_axis(table[:, :, 0], rows, axis=1)
    return xp.take_along_axis(table, rows[:, None], axis=1)[:, 0]


def state_from_tables(
    tables: LookaheadTables,
    states: InformationStates,
    depth: int,
    wraps: Array,
    fully_observed: BoolArray | None = None,
) -> LookaheadState:
    """Return the input of a lookahead of `depth` slots in information states (N, A, ...).

    tables: of at least that depth, see `table_entries`; states: of a fully observed arm the state
    now and any age; wraps: (N,), (N, A) or one for all, how far ages past the highest of the tables
    fall back, 0: they become never observed; fully_observed: (N,), None if no arm is.
    """
    xp = array_namespace(tables.gains[0], states.age)
    S = len(tables.observation_probs) + 1
    max_age = (tables.gains[0].shape[1] - 1) // S
    column = (-1, *[1] * (states.age.ndim - 1))
    if tables.passive_probs is not None:
        assert fully_observed is not None
        always = xp.asarray(fully_observed.reshape(column))
        states = states._replace(age=xp.where(always, 1, states.age))
    else:
        always = None
    if wraps.ndim < 2:
        wraps = wraps.reshape(column)
    else:  # by arm and agent
        wraps = wraps.reshape(*wraps.shape, *column[2:])
    rows = [row_of(after(states, ahead), max_age, wraps) for ahead in range(depth)]

    def path(read: Callable[[Array, int], Array], slots: int) -> PassivePath:
        """Return a path, by a function that reads a table after some slots alone."""

        def law(tables: tuple[Array, ...], ahead: int) -> Array:
            chances = [read(table, ahead) for table in tables]
            return compute_once(xp.stack([*chances, 1 - sum(chances)]))

        gains = [compute_once(read(tables.gains[slots - j - 1], j)) for j in range(slots)]
        shown = [law(tables.observation_probs, j) for j in range(slots - 1)]
        if tables.passive_probs is None:
            return PassivePath(tuple(gains), tuple(shown))
        passive = [law(tables.passive_probs, j) for j in range(slots - 1)]
        return PassivePath(tuple(gains), tuple(shown), tuple(passive))

    def after_observing(state: int) -> Callable[[Array, int], Array]:
        return lambda table, ahead: table[:, 1 + state * max_age + min(ahead, max_age - 1)]

    observed = tuple(
        tuple(path(after_observing(s), slots) for s in range(S)) for slots in range(1, depth)
    )
    now = path(lambda table, ahead: table_entries(table, rows[ahead]), depth)
    return LookaheadState(now, observed, always)


# --------------------------------------------------------------------------------------- choosing


def check_depth(kinds: Sequence[ArmKind], plays: int, depth: int) -> None:
    """Refuse a depth at which these arms would take too long."""
    if depth not in DEPTHS:
        raise ModelError(f"depth must be one of {', '.join(map(str, DEPTHS))}, got {depth}")
    most = _LIMITS.outcomes
    if depth > 2 and _count_outcomes(kinds, plays) > most:
        raise ModelError(
            f"depth must be at most 2 for these arms: what a slot shows of {plays} played arms, "
            f"and of those that are fully observed, may turn out in more than {most} ways; "
            f"got {depth}"
        )


def _count_outcomes(kinds: Sequence[ArmKind], plays: int) -> int:
    """Return the outcomes of a slot, with every arm as large as the largest."""
    S = max(kind.states for kind in kinds)
    return int(S ** (len(kinds) if any(kind.fully_observed for kind in kinds) else plays))


def choose(
    state: LookaheadState,
    plays: int,
    once: Callable[[Compute], Array] | None = None,
    limits: SearchLimits = _LIMITS,
) -> Array:
    """The arms to play, a mask (N, ...).

    once: runs a computation whose result a compiler must not compute again for each of its uses.
    """
    gain = state.now.gains[0]
    n_arms, depth = gain.shape[0], len(state.now.gains)
    xp = array_namespace(gain)
    if depth == 1:
        return Constraint(plays).select(gain)
    state, order, sets = _with_sets(state, plays, limits)
    compute = partial(_which, state, sets, limits)
    which = compute() if once is None else once(compute)
    masks = (np.arange(n_arms)[:, None, None] == sets).any(-1)  # (N, A)
    if len(sets) <= _MAX_UNROLLED:  # comparing is faster than looking up
        numbers = np.arange(len(sets)).reshape(-1, *[1] * which.ndim)
        mask = xp.stack([(which == numbers[has]).any(0) for has in masks])
    else:
        mask = xp.asarray(masks)[:, which]
    return mask if order is None else xp.take_along_axis(mask, xp.argsort(order, 0), 0)


def _which(state: LookaheadState, sets: IntArray, limits: SearchLimits) -> Array:
    return _best(state, sets, limits)[1]


def _by_gain(gain: Array) -> Array:
    """The arms (N, ...) by falling gain, the lower of equal ones first."""
    return array_namespace(gain).argsort(-gain, axis=0, stable=True)


def _with_sets(
    state: LookaheadState, plays: int, limits: SearchLimits
) -> tuple[LookaheadState, Array | None, IntArray]:
    """The sets to try (A, K), in terms of the arms as the state returned has them.

    That is the state itself, or, where not all sets are tried, the state in an order of the arms
    (N, ...), also returned.
    """
    gain = state.now.gains[0]
    n_arms = gain.shape[0]
    ways = math.comb(n_arms, plays) * min(_outcomes(state, plays), limits.outcomes)
    if ways <= limits.ways:
        return state, None, Constraint(plays).subsets(n_arms)
    order = _by_gain(gain)
    xp = array_namespace(gain)

    def ordered(array: Array) -> Array:
        lead = array.ndim - order.ndim  # axes of states before that of the arms
        full = np.broadcast_shapes(array.shape[lead:], order.shape)
        wide = xp.broadcast_to(array, (*array.shape[:lead], *full))
        places = xp.broadcast_to(order, full).reshape((1,) * lead + full)
        return xp.take_along_axis(wide, places, lead)

    always = state.fully_observed
    if always is not None:
        always = ordered(xp.asarray(always).reshape(-1, *[1] * (order.ndim - 1)))
    observed = tuple(tuple(_mapped(ordered, path) for path in level) for level in state.observed)
    moved = LookaheadState(_mapped(ordered, state.now), observed, always)
    return moved, order, _near_sets(n_arms, plays, limits.margin)


def _outcomes(state: LookaheadState, plays: int) -> int:
    """Return the number of joint states of the arms that are observed next."""
    S, n_arms = state.now.observation_probs[0].shape[:2]
    return int(S ** (plays if state.fully_observed is None else n_arms))


@lru_cache(maxsize=64)
def _near_sets(n_arms: int, plays: int, margin: int) -> IntArray:
    """(A, K): the first K of ordered arms, then exchanges of one and of two near the border."""
    inside = range(plays - 1, max(plays - margin, 0) - 1, -1)
    outside = range(plays, min(plays + margin, n_arms))
    sets = [tuple(range(plays))]
    for number in (1, 2):
        for leave, enter in product(combinations(inside, number), combinations(outside, number)):
            sets.append(tuple(sorted(({*range(plays)} - {*leave}) | {*enter})))
    return np.array(sets, np.intp)


def _mapped(change: Callable[..., Array], *paths: PassivePath) -> PassivePath:
    """A function of the corresponding arrays of several paths."""
    gains, shown, passive = zip(*paths, strict=True)
    return PassivePath(
        tuple(map(change, *gains)),
        tuple(map(change, *shown)),
        None if passive[0] is None else tuple(map(change, *passive)),
    )


def _where(condition: Array, one: PassivePath, other: PassivePath) -> PassivePath:
    """Select one of two paths for each arm."""
    xp = array_namespace(condition)
    return _mapped(lambda a, b: xp.where(condition, a, b), one, other)


def _best(state: LookaheadState, sets: IntArray, limits: SearchLimits) -> tuple[Array, Array]:
    """W_d (...) over the sets (A, K), and which set it is, the first of equal ones."""
    gains = state.now.gains
    xp = array_namespace(gains[0])
    others = np.array([np.setdiff1d(np.arange(len(gains[0])), one) for one in sets])
    last_but_one = len(gains) == 2
    ways = len(sets) * _outcomes(state, sets.shape[1])
    unrolled = xp is np or (last_but_one and ways <= _MAX_UNROLLED)
    # In a compiled loop the number is traced, and a table of sets must be JAX's.
    chosen, rest = (x if unrolled else xp.asarray(x) for x in (sets, others))

    def worth(number: Any) -> Array:
        arms = chosen[number]
        own = _added(_of(gains[0], arms))
        if last_but_one:
            return own + _after_last(state, arms, rest[number], limits)
        return own + _after_outcomes(state, arms, limits)

    def better(number: Any, found: tuple[Array, Array]) -> tuple[Array, Array]:
        value = worth(number)
        wins = value > found[0] + _TIE_ROUNDINGS * rounding(value) * xp.abs(found[0])
        return xp.where(wins, value, found[0]), xp.where(wins, number, found[1])

    first = worth(0)
    found = first, xp.zeros(first.shape, np.int32)
    if unrolled:
        for number in range(1, len(sets)):
            found = better(number, found)
        return found
    best: tuple[Array, Array]
    best = repeat(len(sets) - 1, lambda number, now: better(number + 1, now), found)
    return best


def _after_last(state: LookaheadState, arms: Array, rest: Array, limits: SearchLimits) -> Array:
    """E[W_1] (...) after playing these arms (K,) and leaving the rest (N - K,) alone."""
    now = state.now
    xp = array_namespace(now.gains[0])
    values = xp.stack([path.gains[0] for path in state.observed[0]])  # (S, N, ...)
    plays = arms.shape[0]
    if state.fully_observed is None:
        chances, values = (_of(x, arms, 1) for x in (now.observation_probs[0], values))
        return expected_largest(chances, values, _of(now.gains[1], rest), plays, limits.outcomes)
    aged = now.gains[1]
    values = xp.where(_observed_next(state, arms), values, aged)
    chances = _next_state_probs(state, arms)
    return expected_largest(chances, values, aged[:0], plays, limits.outcomes)


def _of(array: Array, arms: Array, axis: int = 0) -> Array:
    """The arms of an array (N, ...) or (S, N, ...) that are named; by slices where they can be."""
    xp = array_namespace(array)
    if xp is np or not isinstance(arms, np.ndarray) or not arms.size:
        return xp.take(array, arms, axis)
    return xp.stack([array[:, n] if axis else array[n] for n in arms.tolist()], axis)


def _observed_next(state: LookaheadState, arms: Array) -> Array:
    """Return the mask (N, ...) of arms observed next: those played, and those that always are."""
    played = _played(state, arms)
    return played if state.fully_observed is None else played | state.fully_observed


def _played(state: LookaheadState, arms: Array) -> Array:
    """A mask (N, 1, ...) of the arms (K,)."""
    gain = state.now.gains[0]
    xp = array_namespace(gain)
    played = (xp.arange(gain.shape[0])[:, None] == arms).any(1)
    return played.reshape(-1, *[1] * (gain.ndim - 1))


def _next_state_probs(state: LookaheadState, arms: Array) -> Array:
    """The chance of each next state (S, N, ...); arms not observed next are in the first."""
    shown = state.now.observation_probs[0]
    xp = array_namespace(shown)
    first = xp.arange(shown.shape[0]).reshape(-1, *[1] * (shown.ndim - 1)) == 0
    played = _played(state, arms)
    if state.fully_observed is None:
        return xp.where(played, shown, first)
    assert state.now.passive_probs is not None
    passive = state.now.passive_probs[0]
    return xp.where(played, shown, xp.where(state.fully_observed, passive, first))


def _after_outcomes(state: LookaheadState, arms: Array, limits: SearchLimits) -> Array:
    """E[W_(d-1)] (...) after playing these arms (K,), outcome by outcome."""
    now = state.now
    xp = array_namespace(now.gains[0])
    n_arms, S, plays = len(now.gains[0]), len(state.observed[0]), arms.shape[0]
    chances, observed, aged = _next_state_probs(state, arms), _observed_next(state, arms), now.aged
    level = state.observed[len(now.gains) - 2]
    branching = arms if state.fully_observed is None else xp.arange(n_arms)
    outcomes = xp.asarray(np.array(list(product(range(S), repeat=branching.shape[0])), np.int32))
    is_one = xp.arange(n_arms)[:, None] == branching  # (N, branching)
    column = (-1, *[1] * (now.gains[0].ndim - 1))

    def add(number: Any, total: tuple[Array]) -> tuple[Array]:
        states = (is_one * outcomes[number]).sum(1).reshape(column)  # (N, 1, ...)
        found = level[0]
        for s in range(1, S):
            found = _where(states == s, level[s], found)
        ahead = _mapped(compute_once, _where(observed, found, aged))
        chance = xp.where(states == 0, chances[0], 0)
        for s in range(1, S):
            chance = xp.where(states == s, chances[s], chance)
        inner = LookaheadState(ahead, state.observed[:-1], state.fully_observed)
        inner, _, sets = _with_sets(inner, plays, limits)
        return (total[0] + chance.prod(0) * _best(inner, sets, limits)[0],)

    start = xp.zeros(now.gains[0].shape[1:], now.gains[0].dtype)
    return repeat(len(outcomes), add, (start,))[0]


def expected_largest(
    chances: Array,
    values: Array,
    fixed: Array,
    plays: int,
    max_outcomes: int = _LIMITS.outcomes,
) -> Array:
    """E of the sum (...) of the K largest of X independent values and some fixed ones.

    chances, values: (S, X, ...), the distribution of each; fixed: (F, ...); X + F >= K;
    max_outcomes: up to which outcomes are enumerated.
    """
    xp = array_namespace(chances, values)
    if fixed.shape[0] > plays:
        few = fixed.shape[0] * plays <= max_outcomes and xp is not np
        fixed = xp.stack(_largest(fixed, plays)) if few else xp.sort(fixed, 0)[::-1][:plays]
    if chances.shape[0] ** chances.shape[1] <= max_outcomes:
        return _by_outcomes(chances, values, _largest(fixed, plays), plays)
    return _by_counts(chances, values, fixed, plays)


def _added(values: Array) -> Array:
    """The sum over a short first axis: term by term, which compiles to better code."""
    return sum(values[i] for i in range(1, values.shape[0])) + values[0]


def _largest(values: Array, plays: int) -> list[Array]:
    """The K largest of (F, ...), or all if there are fewer, in falling order."""
    best: list[Array] = []
    for value in values:
        best = _inserted(best, value, plays)
    return best


def _inserted(best: list[Array], value: Array, plays: int) -> list[Array]:
    """At most K values in falling order, with one more."""
    xp = array_namespace(value)
    found = []
    for other in best:
        found.append(xp.maximum(other, value))
        value = xp.minimum(other, value)
    return found if len(found) == plays else [*found, value]


def _by_outcomes(chances: Array, values: Array, best: list[Array], plays: int) -> Array:
    """The arms one after the other, each in all its states."""
    xp = array_namespace(values)
    S, X = values.shape[:2]
    if X == 1:  # what it adds to the largest of the others
        full = len(best) == plays
        added = xp.maximum(values[:, 0] - best[-1], 0) if full else values[:, 0]
        return sum(best, _added(chances[:, 0] * added))
    return sum(
        chances[s, 0]
        * _by_outcomes(chances[:, 1:], values[:, 1:], _inserted(best, values[s, 0], plays), plays)
        for s in range(S)
    )


def _by_counts(chances: Array, values: Array, fixed: Array, plays: int) -> Array:
    """The integral over t of E[min(K, number of values above t)]; see the module."""
    xp = array_namespace(values)
    S, X = values.shape[:2]
    rest = np.broadcast_shapes(values.shape[2:], chances.shape[2:], fixed.shape[1:])
    chances, values = (xp.broadcast_to(x, (S, X, *rest)) for x in (chances, values))
    fixed = xp.broadcast_to(fixed, (fixed.shape[0], *rest))
    points = xp.concatenate([values.reshape(S * X, *rest), fixed])
    points = xp.sort(points, 0)
    below = points[:-1]  # (P, ...)
    number = xp.arange(plays + 1).reshape(-1, *[1] * below.ndim)
    sure = (fixed[:, None] > below).sum(0)
    law = (number == xp.minimum(sure, plays)).astype(values.dtype)  # (K + 1, P, ...)

    def one_more(arm: Any, state: tuple[Array]) -> tuple[Array]:
        law = state[0]
        above = (xp.where(values[:, arm][:, None] > below, chances[:, arm][:, None], 0)).sum(0)
        moved = law * above
        up = xp.concatenate([xp.zeros_like(moved[:1]), moved[:-2], moved[-2:-1] + moved[-1:]])
        return (law - moved + up,)

    law = repeat(X, one_more, (law,))[0]
    expected = (number * law).sum(0)
    return plays * points[0] + ((points[1:] - below) * expected).sum(0)
