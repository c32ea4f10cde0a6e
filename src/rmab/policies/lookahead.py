"""Which K arms to play, by looking a few slots ahead over information states.

Arm n is in row x_n of its information states. A play there shows or leads to state s with chance
c(x_n, s), and the arm is then in (s, 1); left alone it ages by one slot, or, if it is always seen,
moves by P_0. After d slots the arms are worth sum_n v_n(x_n), their terminal values
(`rmab.planning.lookahead.tables`). With V_0 that sum, the best that d slots can bring is

    V_d(x) = max over K-subsets A of  r(x, A) + E[V_(d-1)(x') | x, A].

All that does not depend on what the others do is split off. If every arm were left alone for d
slots it would be worth u_d(x_n), u_0 = v. The *gain* of one play with d slots left,

    a_d(x_n) = r_1 - r_0 + sum_s c(x_n, s) u_(d-1)(s, 1) - E[u_(d-1)(x_n') | left alone],

is what it adds to that, so with W_d = V_d - sum_n u_d

    W_1(x) = sum of the K largest a_1(x_n)
    W_d(x) = max over A of  sum over n in A of a_d(x_n) + E[W_(d-1)(x') | x, A].

The last slot needs no enumeration of sets, and the slot before it none of joint outcomes where
these are many: the K largest of independent values add up to

    K low + integral over t >= low of min(K, number of values above t) dt,

low being the lowest value; the number is a sum of independent indicators, whose law takes X K
steps for X arms. It is exact, as is the sum over outcomes that is taken where they are few.

All K-subsets are tried while sets times outcomes, or MOST_OUTCOMES if they are more, number at most
MOST_WAYS. Beyond, only sets near the K arms of largest a_d, the best by the arms' own values: those
K, and what comes of exchanging one or two of the last NEAR of them for as many of the next NEAR, at
most 1 + NEAR^2 + (NEAR (NEAR - 1) / 2)^2 sets. That bounds the work by a polynomial in N, K and S
at depth 2, and the choice is the best of these sets alone. At depth 3 the outcomes of the first
slot are gone through one by one, so there may be at most MOST_OUTCOMES of them: `check_depth`
refuses more.

Ties, to rounding, go to the set that comes first: in lexicographic order of the arms where all
sets are tried, else in that of the exchanges.

Arrays have the arms first and anything after, on NumPy and JAX alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError
from rmab.linalg import Array, array_namespace, compute_once, repeat, rounding

if TYPE_CHECKING:  # an agent loads no more than it needs
    from rmab.model.arms import ArmKind

__all__ = [
    "DEPTH",
    "DEPTHS",
    "Outlook",
    "Prospect",
    "View",
    "check_depth",
    "choose",
    "expected_largest",
    "table_view",
]

IntArray = npt.NDArray[np.intp]
Compute = Callable[[], Array]

DEPTHS = (1, 2, 3)
DEPTH = 2  # unless told otherwise
MOST_WAYS = 512  # sets times outcomes up to which all sets are tried
MOST_OUTCOMES = 64  # up to which outcomes are gone through one by one
NEAR = 3  # arms on either side of the K-th that are exchanged
UNROLLED = 64  # sets times outcomes up to which a compiled program has each for itself
TIED = 16  # times rounding: values so near are equal


class Prospect(NamedTuple):
    """What arms offer in the next d slots while they are left alone; each tuple by slot.

    gains: d arrays (N, ...), a_d now, a_(d-1) after a slot alone, ...; shows: d - 1 arrays
    (S, N, ...), the chance of each state that a play shows or leads to; drifts: d - 1 arrays
    likewise for arms always seen that are left alone, or None where there are no such arms.
    """

    gains: tuple[Array, ...]
    shows: tuple[Array, ...]
    drifts: tuple[Array, ...] | None = None

    @property
    def aged(self) -> Prospect:
        """After a slot alone."""
        return Prospect(self.gains[1:], self.shows[1:], self.drifts and self.drifts[1:])


class View(NamedTuple):
    """What an agent looks ahead with.

    now: the arms where they are, with d slots left; seen: seen[j][s], the arms in (s, 1) with j + 1
    slots left, j < d - 1; always: (N, ...), which arms are always seen, None if none is.
    """

    now: Prospect
    seen: tuple[tuple[Prospect, ...], ...]
    always: Array | None = None


class Outlook(NamedTuple):
    """Tables over information states, rows as in `rmab.planning.tables`, I = 1 + S max_age.

    shows: S - 1 tables (N, I, ...), the chance of each state but the last that a play shows, or of
    arms always seen leads to; gains: by slots left, a_1, a_2, ..., (N, I, ...) each; drifts: S - 1
    tables like shows for arms always seen that are left alone, None where there are no such arms.
    """

    shows: tuple[Array, ...]
    gains: tuple[Array, ...]
    drifts: tuple[Array, ...] | None


def table_view(
    outlook: Outlook,
    always: npt.NDArray[np.bool_],
    depth: int,
    read: Callable[[Array, int], Array],
) -> View:
    """What arms offer in `depth` slots, from tables of at least that depth.

    always: (N,), which arms are always seen; read(table, j): the entries (N, ...) of a table
    (N, I, ...) for the arms where they are now, after j slots alone.
    """
    xp = array_namespace(outlook.gains[0])
    S = len(outlook.shows) + 1
    max_age = (outlook.gains[0].shape[1] - 1) // S

    def prospect(read: Callable[[Array, int], Array], slots: int) -> Prospect:
        def law(tables: tuple[Array, ...], ahead: int) -> Array:
            chances = [read(table, ahead) for table in tables]
            return compute_once(xp.stack([*chances, 1 - sum(chances)]))

        gains = [compute_once(read(outlook.gains[slots - j - 1], j)) for j in range(slots)]
        shows = [law(outlook.shows, j) for j in range(slots - 1)]
        if outlook.drifts is None:
            return Prospect(tuple(gains), tuple(shows))
        drifts = [law(outlook.drifts, j) for j in range(slots - 1)]
        return Prospect(tuple(gains), tuple(shows), tuple(drifts))

    def looked(state: int) -> Callable[[Array, int], Array]:
        return lambda table, ahead: table[:, 1 + state * max_age + min(ahead, max_age - 1)]

    seen = tuple(tuple(prospect(looked(s), j) for s in range(S)) for j in range(1, depth))
    now = prospect(read, depth)
    if outlook.drifts is None:
        return View(now, seen)
    return View(now, seen, xp.asarray(always.reshape(-1, *[1] * (now.gains[0].ndim - 1))))


def check_depth(kinds: Sequence[ArmKind], plays: int, depth: int) -> None:
    """Refuse a depth at which these arms would take too long."""
    if depth not in DEPTHS:
        raise ModelError(f"depth must be one of {', '.join(map(str, DEPTHS))}, got {depth}")
    if depth > 2 and _count_outcomes(kinds, plays) > MOST_OUTCOMES:
        raise ModelError(
            f"depth must be at most 2 for these arms: what a slot shows of {plays} played arms, "
            f"and of those that are always seen, may turn out in more than {MOST_OUTCOMES} ways; "
            f"got {depth}"
        )


def _count_outcomes(kinds: Sequence[ArmKind], plays: int) -> int:
    """Of a slot, with every arm taken for one of the largest number of states."""
    S = max(kind.states for kind in kinds)
    return int(S ** (len(kinds) if any(kind.fully_observed for kind in kinds) else plays))


def choose(view: View, plays: int, apart: Callable[[Compute], Array] | None = None) -> Array:
    """The arms to play, a mask (N, ...).

    apart: runs a computation whose result a compiler must not compute again for each of its uses.
    """
    gain = view.now.gains[0]
    n_arms, depth = gain.shape[0], len(view.now.gains)
    xp = array_namespace(gain)
    if depth == 1:
        return xp.argsort(_by_gain(gain), 0) < plays
    view, order, sets = _with_sets(view, plays)
    compute = partial(_which, view, sets)
    which = compute() if apart is None else apart(compute)
    masks = (np.arange(n_arms)[:, None, None] == sets).any(-1)  # (N, A)
    if len(sets) <= UNROLLED:  # comparing is faster than looking up
        numbers = np.arange(len(sets)).reshape(-1, *[1] * which.ndim)
        mask = xp.stack([(which == numbers[has]).any(0) for has in masks])
    else:
        mask = xp.asarray(masks)[:, which]
    return mask if order is None else xp.take_along_axis(mask, xp.argsort(order, 0), 0)


def _which(view: View, sets: IntArray) -> Array:
    return _best(view, sets)[1]


def _by_gain(gain: Array) -> Array:
    """The arms (N, ...) by falling gain, the lower of equal ones first."""
    return array_namespace(gain).argsort(-gain, axis=0, stable=True)


def _with_sets(view: View, plays: int) -> tuple[View, Array | None, IntArray]:
    """The sets to try (A, K), in terms of the arms as the view returned has them.

    That is the view itself, or, where not all sets are tried, the view in an order of the arms
    (N, ...), also returned.
    """
    gain = view.now.gains[0]
    n_arms = gain.shape[0]
    if math.comb(n_arms, plays) * min(_outcomes(view, plays), MOST_OUTCOMES) <= MOST_WAYS:
        return view, None, _all_sets(n_arms, plays)
    order = _by_gain(gain)
    xp = array_namespace(gain)

    def ordered(array: Array) -> Array:
        lead = array.ndim - order.ndim  # axes of states before that of the arms
        full = np.broadcast_shapes(array.shape[lead:], order.shape)
        wide = xp.broadcast_to(array, (*array.shape[:lead], *full))
        places = xp.broadcast_to(order, full).reshape((1,) * lead + full)
        return xp.take_along_axis(wide, places, lead)

    always = view.always
    if always is not None:
        always = ordered(xp.asarray(always).reshape(-1, *[1] * (order.ndim - 1)))
    seen = tuple(tuple(_mapped(ordered, part) for part in level) for level in view.seen)
    return View(_mapped(ordered, view.now), seen, always), order, _near_sets(n_arms, plays)


def _outcomes(view: View, plays: int) -> int:
    """Of a slot: the states of the arms that are seen next."""
    S, n_arms = view.now.shows[0].shape[:2]
    return int(S ** (plays if view.always is None else n_arms))


@lru_cache(maxsize=64)
def _all_sets(n_arms: int, plays: int) -> IntArray:
    """(A, K) in lexicographic order."""
    return np.array(list(combinations(range(n_arms), plays)), np.intp)


@lru_cache(maxsize=64)
def _near_sets(n_arms: int, plays: int) -> IntArray:
    """(A, K): the first K of ordered arms, then exchanges of one and of two near the border."""
    inside = range(plays - 1, max(plays - NEAR, 0) - 1, -1)
    outside = range(plays, min(plays + NEAR, n_arms))
    sets = [tuple(range(plays))]
    for number in (1, 2):
        for leave, enter in product(combinations(inside, number), combinations(outside, number)):
            sets.append(tuple(sorted(({*range(plays)} - {*leave}) | {*enter})))
    return np.array(sets, np.intp)


def _mapped(change: Callable[..., Array], *parts: Prospect) -> Prospect:
    """The arrays of several prospects put together as told."""
    gains, shows, drifts = zip(*parts, strict=True)
    return Prospect(
        tuple(map(change, *gains)),
        tuple(map(change, *shows)),
        None if drifts[0] is None else tuple(map(change, *drifts)),
    )


def _where(condition: Array, one: Prospect, other: Prospect) -> Prospect:
    """Of each arm one or the other."""
    xp = array_namespace(condition)
    return _mapped(lambda a, b: xp.where(condition, a, b), one, other)


def _best(view: View, sets: IntArray) -> tuple[Array, Array]:
    """W_d (...) over the sets (A, K), and which set it is, the first of equal ones."""
    xp = array_namespace(view.now.gains[0])
    others = np.array([np.setdiff1d(np.arange(len(view.now.gains[0])), one) for one in sets])
    after = _after_last if len(view.now.gains) == 2 else _after_outcomes
    ways = len(sets) * _outcomes(view, sets.shape[1])
    unrolled = xp is np or (after is _after_last and ways <= UNROLLED)
    # In a compiled loop the number is traced, and a table of sets must be JAX's.
    chosen, rest = (x if unrolled else xp.asarray(x) for x in (sets, others))

    def worth(number: Any) -> Array:
        arms = chosen[number]
        own = _added(_of(view.now.gains[0], arms))
        return own + after(view, arms, rest[number])

    def better(number: Any, found: tuple[Array, Array]) -> tuple[Array, Array]:
        value = worth(number)
        wins = value > found[0] + TIED * rounding(value) * xp.abs(found[0])
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


def _after_last(view: View, arms: Array, rest: Array) -> Array:
    """E[W_1] (...) after playing these arms (K,) and leaving the rest (N - K,) alone."""
    now = view.now
    xp = array_namespace(now.gains[0])
    values = xp.stack([part.gains[0] for part in view.seen[0]])  # (S, N, ...)
    plays = arms.shape[0]
    if view.always is None:
        shows, values = (_of(x, arms, 1) for x in (now.shows[0], values))
        return expected_largest(shows, values, _of(now.gains[1], rest), plays)
    chances, aged = _ways(view, arms), now.gains[1]
    values = xp.where(_shown(view, arms), values, aged)
    return expected_largest(chances, values, aged[:0], plays)


def _of(array: Array, arms: Array, axis: int = 0) -> Array:
    """The arms of an array (N, ...) or (S, N, ...) that are named; by slices where they can be."""
    xp = array_namespace(array)
    if xp is np or not isinstance(arms, np.ndarray) or not arms.size:
        return xp.take(array, arms, axis)
    return xp.stack([array[:, n] if axis else array[n] for n in arms.tolist()], axis)


def _shown(view: View, arms: Array) -> Array:
    """Which arms (N, ...) are seen next: those played, and those that always are."""
    gain = view.now.gains[0]
    xp = array_namespace(gain)
    played = (xp.arange(gain.shape[0])[:, None] == arms).any(1)
    played = played.reshape(-1, *[1] * (gain.ndim - 1))
    return played if view.always is None else played | view.always


def _ways(view: View, arms: Array) -> Array:
    """The chance of each next state (S, N, ...); arms that are not seen next are in the first."""
    shows = view.now.shows[0]
    xp = array_namespace(shows)
    first = xp.arange(shows.shape[0]).reshape(-1, *[1] * (shows.ndim - 1)) == 0
    played = _shown(view._replace(always=None), arms)
    if view.always is None:
        return xp.where(played, shows, first)
    assert view.now.drifts is not None
    return xp.where(played, shows, xp.where(view.always, view.now.drifts[0], first))


def _after_outcomes(view: View, arms: Array, rest: Array) -> Array:  # noqa: ARG001 - as _after_last
    """E[W_(d-1)] (...) after playing these arms (K,), outcome by outcome."""
    now = view.now
    xp = array_namespace(now.gains[0])
    n_arms, S, plays = len(now.gains[0]), len(view.seen[0]), arms.shape[0]
    chances, shown, aged = _ways(view, arms), _shown(view, arms), now.aged
    level = view.seen[len(now.gains) - 2]
    branching = arms if view.always is None else xp.arange(n_arms)
    outcomes = xp.asarray(np.array(list(product(range(S), repeat=branching.shape[0])), np.int32))
    is_one = xp.arange(n_arms)[:, None] == branching  # (N, branching)
    column = (-1, *[1] * (now.gains[0].ndim - 1))

    def add(number: Any, total: tuple[Array]) -> tuple[Array]:
        states = (is_one * outcomes[number]).sum(1).reshape(column)  # (N, 1, ...)
        found = level[0]
        for s in range(1, S):
            found = _where(states == s, level[s], found)
        ahead = _mapped(compute_once, _where(shown, found, aged))
        chance = xp.where(states == 0, chances[0], 0)
        for s in range(1, S):
            chance = xp.where(states == s, chances[s], chance)
        inner, _, sets = _with_sets(View(ahead, view.seen[:-1], view.always), plays)
        return (total[0] + chance.prod(0) * _best(inner, sets)[0],)

    start = xp.zeros(now.gains[0].shape[1:], now.gains[0].dtype)
    return repeat(len(outcomes), add, (start,))[0]


def expected_largest(chances: Array, values: Array, fixed: Array, plays: int) -> Array:
    """E of the sum (...) of the K largest of X independent values and some fixed ones.

    chances, values: (S, X, ...), the law of each; fixed: (F, ...); X + F >= K.
    """
    xp = array_namespace(chances, values)
    if fixed.shape[0] > plays:
        few = fixed.shape[0] * plays <= MOST_OUTCOMES and xp is not np
        fixed = xp.stack(_largest(fixed, plays)) if few else xp.sort(fixed, 0)[::-1][:plays]
    if chances.shape[0] ** chances.shape[1] <= MOST_OUTCOMES:
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
