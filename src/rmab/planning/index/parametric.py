"""Parametric policy iteration for arms observed when played, many arms at once, on NumPy.

The optimal policy of one arm with a subsidy for passivity is followed along the whole line of
subsidies, from one change of policy to the next, like a basis in the parametric simplex method.

An arm in the information state (s, k), state s observed k slots ago, has the belief
b(s, k) = P_1[s] P_0^(k-1); never observed it has mu, the limiting distribution of P_0. What the
observation still tells is the *deviation* d(s, k) = b(s, k) - mu, which fades with the age k. Past
a cap J an arm counts as never observed. Let every passive slot pay a subsidy on top of r_0, and
write lambda for the subsidy plus mu . r_0: what never playing pays. Let beta be the discount, 1 for
average reward, H_s the value of (s, 1) above that of never observed, and t the advantage of leaving
a never-observed arm alone over playing it. While t < 0 never observed is played, and every slot of
waiting costs -t; when t > 0 it is always left alone, and every play costs t. A play renews the
arm: it leads to some (s', 1). So a policy is one *wait* for each s: play again at age n, or never.
Waiting in (s, k) to the age n is worth, above never observed,

    R(s, k) + (to_end(k) t if t < 0) + beta^(n-k) Q(s, n),
    Q(s, n) = d(s, n) . (r_1 + beta H) - R(s, n) - (to_end(n) t if t < 0, else t),

where R(s, k) = sum_{i=k..J} beta^(i-k) d(s, i) . r_0 and to_end(k) = sum_{i=k..J} beta^(i-k) belong
to waiting to the end, and Q(never observed) = 0. So a play in (s, k) has the advantage

    A(s, k) = Q(s, k) - max(beta^(n-k) Q(s, n): n > k, never observed included),

H_s is the worth of the best wait in (s, 1), and

    lambda = mu . (r_1 + beta H) + t.

Given a wait for each s, H solves S equations and is affine in t; so are Q and lambda, and lambda
never falls. (For t < 0 these are the optimality equations of a problem that counts plays instead of
slots and has the gain lambda, for t > 0 those of optimal stopping.) The iteration begins at a t
where every state is active. A *step* goes to the next change of the best waits; until then the
Q(s, n) are straight lines in t and the A(s, k) concave. A state *leaves*, becomes passive, where
its line falls below a later one, and its index is the lambda there. Never observed leaves at t = 0.
Where lambda is constant while t rises, many states share one index: the plateaus of the closed form
(`rmab.planning.channel.whittle`). States of an arm that is not indexable come back; the best waits
are followed all the same, and the index is the lowest lambda from which on the state is passive.

With M(t) = max(beta^(n-k) Q(s, n): n > k, and 0), which is convex, a state is, at the two ends of a
step,

- active at both: active throughout;
- active, then passive: it leaves once, where the first of the later lines crosses its own;
- passive at both: it may be active in between only if M is bent there, that is if the best later
  line is not the same at both ends. The step is then cut where these two lines cross;
- passive, then active: it comes back.

Waits under which the observations fall into several classes leave H undetermined. So a play is
forgotten, that is leads to never observed, with a chance of the order of rounding, and all stays
finite.

Arms differ in how many steps they take. So a batch runs in *lanes*: as soon as a share of the
lanes are done, other arms take them. A long path may be cut into pieces, between fixed t, that are
solved side by side. `rmab.planning.index.parametric_jax` is the same on JAX, indices alone.

Arrays have the ages on the first axis and the arms on the last: every operation runs along the
arms.

References: P. Whittle, "Restless bandits: activity allocation in a changing world", J. Appl. Prob.
25A, 1988; K. Liu and Q. Zhao, "Indexability of restless bandit problems and optimality of Whittle
index for dynamic multichannel access", IEEE Trans. Inf. Theory 56(11), 2010.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.arrays import Array, BoolArray, FloatArray, IntArray
from rmab.linalg import array_namespace, propagate, rounding, solve
from rmab.markov import limiting_distributions

__all__ = [
    "Batch",
    "Interval",
    "Models",
    "Units",
    "ages_of",
    "chance_kept",
    "follow",
    "in_units",
    "later",
    "most_steps",
    "taken",
    "tolerances",
    "values_observed",
]


_MAX_ITERATIONS = 100  # more than policy iteration at one t ever takes
_STATES_AT_ONCE = 40_000  # information states under way at once
_MIN_LANES = 16
_FREED_SHARE = 0.25  # the share of arms done at which others take their places
_LAST_PIECE = 1e-10  # how near to t = 0 the last piece of a path begins
_WIDE_ROW = 120  # numbers of one age with which it is faster to go from age to age


class Models(NamedTuple):
    """B arms: passive, active: (S, S, B); reward_passive, reward_active: (S, B)."""

    passive: Array
    active: Array
    reward_passive: Array
    reward_active: Array


class Batch(NamedTuple):
    """B arms of S states with ages to J, in units in which their rewards are of size 1.

    deviations: (J, S, S, B), d(s, k)[r] at [k - 1, r, s]; limiting: (S, B), mu; scale, shift: (B,),
    what turns a lambda back into a subsidy.
    """

    deviations: Array
    limiting: Array
    scale: Array
    shift: Array


class Tolerances(NamedTuple):
    """In units of rewards of size 1.

    tied: values of t this close are one; flat: rates below this cross nothing; even: an advantage
    below this is none; forgotten: the chance that a play is forgotten.
    """

    tied: float
    flat: float
    even: float
    forgotten: float


_DOUBLE = Tolerances(tied=1e-11, flat=1e-13, even=1e-14, forgotten=1e-14)
_SINGLE = Tolerances(tied=1e-6, flat=1e-5, even=1e-6, forgotten=1e-6)


class Ages(NamedTuple):
    """What depends on the ages alone: fade, to_end: (J, 1, 1), beta^(k-1) and to_end(k)."""

    fade: Array
    to_end: Array


class Units(NamedTuple):
    """Arms with rewards around 0 of size 1: limiting, passive, active: (S, B), mu, r_0 and r_1;
    scale, shift: (B,), as in `Batch`."""

    limiting: Array
    passive: Array
    active: Array
    scale: Array
    shift: Array


class Later(NamedTuple):
    """Of the waits after each age the best, beta^(n-k) Q(s, n), its age less 1, by how much a play
    is better, and whether it is; (J, S, B) each."""

    best: FloatArray
    place: npt.NDArray[np.integer]
    advantage: FloatArray
    plays: BoolArray


class Segment(NamedTuple):
    """What is straight in a step: value, slope: (J, S, B), Q where it begins and its slope in t;
    end: (B,), how far t goes; subsidy, rising: (B,), lambda where it begins and its slope; size:
    (B,), of H per age, or of what its equations make of numbers of size 1."""

    value: FloatArray
    slope: FloatArray
    end: FloatArray
    subsidy: FloatArray
    rising: FloatArray
    size: FloatArray


class Interval(NamedTuple):
    """What one step shows: the best later waits at both ends of its segment."""

    before: Later
    after: Later
    segment: Segment
    beta: float


class Iterate(NamedTuple):
    """Where each arm of a batch is on its subsidy line.

    value: (J, S, B), Q; later: the best later waits there; index: (J, S, B), in lambda, as far as
    it is known; waits: (S, B), the age less 1 at which the wait after each observation ends, J for
    never; held: (S, B), beta^waits Q there; t: (B,); subsidy: (B,), lambda; never: (B,), the lambda
    at which never observed left; idle: (B,), whether it has; limit: (B,), how far the next step may
    go; done: (B,).
    """

    value: FloatArray
    later: Later
    index: Array
    waits: npt.NDArray[np.int32]
    held: FloatArray
    t: FloatArray
    subsidy: FloatArray
    never: FloatArray
    idle: BoolArray
    limit: FloatArray
    done: BoolArray


class _Lanes(NamedTuple):
    """Paths under way, in lanes on the last axis: which paths, what they need, where they are and
    how many steps they have taken."""

    paths: IntArray
    batch: Batch
    at: Iterate
    steps: IntArray


def follow(
    models: Models,
    max_age: int,
    beta: float = 1.0,
    watch: Callable[[IntArray, Batch, Interval], None] | None = None,
    pieces: int = 1,
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Never observed (B,), the index (J, S, B), and whether the line was followed to its end (B,).

    watch(arms, batch, interval) is told what each step shows of the arms under way, in the order of
    the line unless that is cut into pieces.
    """
    S, B = models.reward_active.shape
    lanes, most = max(_MIN_LANES, _STATES_AT_ONCE // (S * max_age)), most_steps(S, max_age)
    bounds = [-np.inf, *(-(_LAST_PIECE ** (i / pieces)) for i in range(1, pieces)), np.inf]
    borders = np.array(bounds)
    arms, piece = np.repeat(np.arange(B), pieces), np.tile(np.arange(pieces), B)
    never, index = np.zeros(B), np.full((max_age, S, B), -np.inf)
    finished = np.ones(B, bool)

    def start(paths: IntArray) -> _Lanes:
        begins = borders[piece[paths]] if pieces > 1 else None
        batch, at = _begin(taken(models, arms[paths]), max_age, beta, begins)
        return _Lanes(paths, batch, at, np.zeros(paths.size, np.intp))

    def go_on(under: _Lanes) -> tuple[_Lanes, BoolArray]:
        """One step, and which paths have come to their end."""
        at, stops = under.at, borders[piece[under.paths] + 1]
        limit = np.minimum(at.limit, np.maximum(stops - at.t, 0))
        at, interval = _step(under.batch, at._replace(limit=limit), beta)
        if watch is not None:
            watch(arms[under.paths], under.batch, interval)
        arrived = at.done | (at.t >= stops - 1e-15)
        return under._replace(at=at, steps=under.steps + 1), arrived

    waiting = min(lanes, arms.size)
    under = start(np.arange(waiting))
    while under.paths.size:
        done = np.zeros(under.paths.size, bool)
        while done.sum() < _FREED_SHARE * done.size:
            under, arrived = go_on(under)
            done = arrived | (under.steps >= most)
        ended = taken(under, np.flatnonzero(done))
        ends, found = _outcome(ended.batch, ended.at)
        finished[arms[under.paths[done & ~arrived]]] = False
        for number in np.unique(piece[ended.paths]):  # so that no arm is here more than once
            which = np.flatnonzero(piece[ended.paths] == number)
            arm = arms[ended.paths[which]]
            index[..., arm] = np.maximum(index[..., arm], found[..., which])
            never[arm] = ends[which] if number == pieces - 1 else never[arm]
        under = taken(under, np.flatnonzero(~done))
        if waiting < arms.size:
            new = np.arange(waiting, min(waiting + lanes - under.paths.size, arms.size))
            under, waiting = _joined(under, start(new)), waiting + new.size
    return never, index, finished


def _outcome(batch: Batch, at: Iterate) -> tuple[FloatArray, FloatArray]:
    """Never observed (B,) and the index (J, S, B) where paths end, in subsidies."""
    index = np.where(at.later.plays, at.subsidy, at.index)
    return at.never * batch.scale + batch.shift, index * batch.scale + batch.shift


def taken(arrays: Any, which: Any) -> Any:
    """Some of the arms of a named tuple of arrays, all of which have the arms last."""
    return type(arrays)(
        *(taken(a, which) if isinstance(a, tuple) else a.take(which, -1) for a in arrays)
    )


def _joined(some: Any, others: Any) -> Any:
    """The arms of one named tuple of arrays and then those of another."""
    return type(some)(
        *(
            _joined(one, other) if isinstance(one, tuple) else np.concatenate([one, other], -1)
            for one, other in zip(some, others, strict=True)
        )
    )


def _begin(
    models: Models, max_age: int, beta: float, begins: FloatArray | None = None
) -> tuple[Batch, Iterate]:
    """The arms, and where their lines begin: every state is active there.

    begins: (B,), where finite, the line is entered at this t < 0 instead, and the index of states
    that are not active there is -inf.
    """
    units = in_units(models)
    deviations = propagate(models.active - units.limiting, models.passive, max_age)
    alone = _to_end(_along(deviations, units.passive), beta)  # R, (J, S, B)
    own = _along(deviations, units.active) - alone  # Q without H and t
    ages, keep = ages_of(max_age, beta, own.dtype), chance_kept(own, beta)

    # At first every observation is followed by a play, and H does not depend on t.
    waits = np.zeros(units.limiting.shape, np.int32)
    H = values_observed(deviations, waits, (alone[0] + own[0])[:, None], beta)[:, 0]
    value = own + _along(deviations, keep * H)
    after = np.concatenate([beta * value[1:], np.zeros_like(value[:1])])
    t = np.minimum((value - after).min((0, 1)), 0)
    value = value - ages.to_end * t
    held, known = value[0], t
    if begins is not None:
        t = np.where(np.isfinite(begins), begins, t)
        waits, held, value, H = _best_waits(deviations, own, alone[0], t, beta)
        known = np.where(np.isfinite(begins), -np.inf, t)
    subsidy = keep * (units.limiting * H).sum(0) + t
    return Batch(deviations, units.limiting, units.scale, units.shift), Iterate(
        value=value,
        later=later(value, beta, tolerances(value).even),
        index=np.zeros_like(value) + (subsidy - t + known),
        waits=waits,
        held=held,
        t=t,
        subsidy=subsidy,
        never=subsidy,
        idle=t >= 0,
        limit=np.full_like(t, np.inf),
        done=np.zeros(t.shape, bool),
    )


def _best_waits(
    deviations: FloatArray, own: FloatArray, alone: FloatArray, t: FloatArray, beta: float
) -> tuple[npt.NDArray[np.int32], FloatArray, FloatArray, FloatArray]:
    """The best waits at given t < 0 and their worth, (S, B), Q, (J, S, B), and H, (S, B), by policy
    iteration; own: Q without H and t; alone: (S, B), R of the first age."""
    J, S, B = own.shape
    ages, keep = ages_of(J, beta, own.dtype), chance_kept(own, beta)
    s, b = np.arange(S)[:, None], np.arange(B)
    waits = np.zeros((S, B), np.int32)
    for _ in range(_MAX_ITERATIONS):
        here = np.minimum(waits, J - 1)
        fade = np.where(waits == J, 0, beta**waits)
        slots = waits if beta == 1 else (1 - beta**waits) / (1 - beta)
        right = alone + fade * own[here, s, b] + slots * t
        H = values_observed(deviations, waits, right[:, None], beta)[:, 0]
        value = own + _along(deviations, keep * H) - ages.to_end * t
        held, worth = fade * value[here, s, b], ages.fade * value
        best = worth.argmax(0)
        top = worth[best, s, b]
        better = np.maximum(top, 0) > held + 1e-13
        if not better.any():
            break
        waits = np.where(better, np.where(top > 0, best, J), waits).astype(np.int32)
    return waits, held, value, H


def _step(batch: Batch, at: Iterate, beta: float) -> tuple[Iterate, Interval]:
    """Each arm from one change of its best waits to the next, and what that shows."""
    near, J = tolerances(at.value), batch.deviations.shape[0]
    ages, keep = ages_of(J, beta, at.value.dtype), chance_kept(at.value, beta)
    waits, idle = at.waits, at.idle
    fade = beta**waits if beta != 1 else np.ones_like(at.held)
    slots = waits if beta == 1 else (1 - fade) / (1 - beta)
    right = np.where(idle, np.where(waits == J, 0, -fade), slots)[:, None]
    # The solution for a vector like any other tells how ill the system is.
    probe = np.cos(np.arange(1, len(right) + 1))[:, None, None]
    right = np.concatenate([right, np.broadcast_to(probe, right.shape)], 1)
    solved = values_observed(batch.deviations, waits, right, beta)
    H = solved[:, 0]  # from here on H and what depends on it are slopes in t
    held = np.where(idle, H, H - ages.to_end[0])
    rising = 1 + keep * (batch.limiting * H).sum(0)  # of lambda
    slope = _along(batch.deviations, keep * H) - np.where(idle, 1, ages.to_end)

    soonest, place = _overtaking(at, held, slope, ages.fade, beta)
    event = soonest.min(0)
    at_rest = ~idle & (event >= -at.t - near.tied)  # t reaches 0
    end = np.where(at_rest, -at.t, event)
    # The waits are the last ones: all lines fall like -t, and the highest is the last to leave.
    over = ~np.isfinite(end)
    end = np.where(over, np.maximum(at.value.max((0, 1)), 0), end)
    end = np.where(at.done, 0, end)
    halfway = at.limit < end
    end = np.minimum(end, at.limit)

    size = np.maximum(np.maximum(np.abs(H), np.abs(at.held)) / J, np.abs(solved[:, -1])).max(0)
    segment = Segment(at.value, slope, end, at.subsidy, rising, size)
    value, cut, interval = _leave(segment, at.index, at.later, near, beta)
    void = cut < end
    moved = np.where(void, 0, end)
    turns = ~(void | halfway | at.done)
    leaves = turns & at_rest
    waits = np.where(turns & ~at_rest & ~over & (soonest <= event), place, waits)
    done = at.done | (turns & over)
    if beta == 1:  # nothing is left then
        done = done | (turns & idle & (waits == J).all(0))
    return Iterate(
        value=value,
        later=interval.after,
        index=at.index,
        waits=waits,
        held=at.held + held * moved,
        t=np.where(leaves, 0, at.t + moved),
        subsidy=at.subsidy + rising * moved,
        never=np.where(leaves, at.subsidy + rising * moved, at.never),
        idle=idle | leaves,
        limit=np.where(void, cut, np.inf),
        done=done,
    ), interval


def _overtaking(
    at: Iterate, held: FloatArray, slope: FloatArray, fade: FloatArray, beta: float
) -> tuple[FloatArray, npt.NDArray[np.int32]]:
    """After each observation, how far t goes until another wait is better than the one held, and
    the age less 1 at which that one ends, (S, B); held: the slope of the one held."""
    flat, J, waits = tolerances(slope).flat, len(slope), at.waits
    value = at.value
    if beta != 1:
        value, slope = fade * value, fade * slope

    def haste(value: Any, slope: Any) -> FloatArray:
        """One over how far t goes until it overtakes; not positive if it does not."""
        return np.asarray((slope - (held + flat)) / np.maximum(at.held - value, 1e-30))

    never, others = np.where(waits == J, -1, haste(0, 0)), haste(value, slope)
    s, b = np.arange(len(waits))[:, None], np.arange(waits.shape[1])
    others[np.minimum(waits, J - 1), s, b] -= np.where(waits == J, 0, np.inf)
    place = others.argmax(0)
    best = others[place, s, b]
    first_to = np.maximum(best, never)
    soonest = np.where(first_to > 0, 1 / np.where(first_to > 0, first_to, 1), np.inf)
    return soonest, np.where(best > never, place, J).astype(np.int32)


def later(value: FloatArray, beta: float, even: float) -> Later:
    """The best waits after each age; a play must be better by more than `even`."""
    J = len(value)
    whole: Any = np.int16 if J < 2**15 else np.int32
    best, place = np.zeros_like(value), np.full(value.shape, J, whole)
    if beta == 1:
        _accumulate(np.maximum, value, best)
    else:
        for age in reversed(range(J - 1)):
            best[age] = beta * np.maximum(value[age + 1], best[age + 1])
    advantage = value - best
    ages = np.arange(J, dtype=whole)[:, None, None]
    records = (advantage <= 0) * (J - ages) + ages  # J where the line is not above all later ones
    _accumulate(np.minimum, records, place)
    return Later(best, place, advantage, advantage > even)


def _accumulate(function: np.ufunc, given: Array, out: Array) -> None:
    """out[k] = function of out[k] and all given[n], n > k; out is filled with one value."""
    if given[0].size < _WIDE_ROW:
        function.accumulate(given[:0:-1], axis=0, out=out[-2::-1])
        function(out[:-1], out[-1], out=out[:-1])
    else:
        for age in reversed(range(len(given) - 1)):
            function(given[age + 1], out[age + 1], out=out[age])


def _leave(
    segment: Segment, index: FloatArray, now: Later, near: Tolerances, beta: float
) -> tuple[FloatArray, FloatArray, Interval]:
    """Q at the end of the step, (J, S, B), where it must be cut first, (B,), and what it shows;
    the index, (J, S, B), of the states that leave is written in place.

    Where the step is to be cut it ends where it began.
    """
    value, slope, end = segment.value, segment.slope, segment.end
    last = slope * end
    last += value
    then = later(last, beta, near.even)
    cut = np.full(end.shape, np.inf)
    # States that leave, and those that are passive at both ends below a bent M.
    here = np.flatnonzero(~then.plays & (now.plays | (now.place != then.place)))
    if not here.size:
        return last, cut, Interval(now, then, segment, beta)
    J, width = len(value), value[0].size
    k, chain = np.divmod(here, width)
    b = chain % end.size
    flat = slope.ravel()

    def best_slope(place: npt.NDArray[np.integer]) -> FloatArray:
        n = place.ravel()[here].astype(np.intp)
        steep = flat[np.minimum(n, J - 1) * width + chain]
        if beta != 1:
            steep *= beta ** (n - k)
        steep[n == J] = 0
        return np.asarray(steep)

    # M is the line `one` where the step begins and `two` where it ends; they cross at `cross`.
    one, two, mine = best_slope(now.place), best_slope(then.place), flat[here]
    leaves, above, far = now.plays.ravel()[here], now.advantage.ravel()[here], end[b]
    bend = now.best.ravel()[here] - then.best.ravel()[here] + two * far
    cross = _over(bend, two - one)
    bent = (cross > near.tied) & (cross < far - near.tied)
    gone = np.flatnonzero(leaves)
    root = np.minimum(
        _over(above[gone], (one - mine)[gone]),
        far[gone] - _over(-then.advantage.ravel()[here[gone]], (two - mine)[gone]),
    )
    several = np.flatnonzero(bent[gone])  # a third line may lie above both in between
    if several.size:
        which = gone[several]
        first = _first_crossing(value, slope, beta, k[which], chain[which])
        root[several] = np.minimum(root[several], first)
    on = b[gone]
    root = np.clip(root, 0, end[on])
    index.ravel()[here[gone]] = segment.subsidy[on] + segment.rising[on] * root

    comes = np.flatnonzero(bent & ~leaves)
    comes = comes[(above + (mine - one) * np.where(bent, cross, 0))[comes] > near.tied]
    if comes.size:
        np.minimum.at(cut, b[comes], cross[comes])
        void = cut < end
        then = Later(*(np.where(void, old, new) for old, new in zip(now, then, strict=True)))
        last, segment = np.where(void, value, last), segment._replace(end=np.where(void, 0, end))
    return last, cut, Interval(now, then, segment, beta)


def _over(top: FloatArray, bottom: FloatArray) -> FloatArray:
    """top / bottom where bottom is positive, else infinity."""
    positive = bottom > 0
    return np.where(positive, top / np.where(positive, bottom, 1), np.inf)


def _first_crossing(
    value: FloatArray, slope: FloatArray, beta: float, k: IntArray, chain: IntArray
) -> FloatArray:
    """How far t goes until the first later line crosses that of each (s, k), (L,).

    chain: the place of (s, b) in (S, B).
    """
    J = len(value)
    lines, slopes = (array.reshape(J, -1).take(chain, 1) for array in (value, slope))  # (J, L)
    own = np.arange(k.size)
    mine, falls = lines[k, own], slopes[k, own]
    ahead = np.arange(J)[:, None] - k
    if beta != 1:
        fade = beta ** np.maximum(ahead, 0)
        lines, slopes = lines * fade, slopes * fade
    # One over how far t goes; lines that never cross are not positive.
    haste = (slopes - falls) / np.maximum(mine - lines, 1e-30)
    haste *= ahead > 0
    soonest = np.maximum(haste.max(0), -falls / np.maximum(mine, 1e-30))
    return _over(np.ones_like(soonest), soonest)


def _to_end(paid: FloatArray, beta: float) -> FloatArray:
    """sum_{i=k..J} beta^(i-k) paid(i) for every age k; (J, S, B)."""
    totals, total = np.empty_like(paid), np.zeros_like(paid[0])
    for age in reversed(range(len(paid))):
        total = totals[age] = paid[age] + beta * total
    return totals


def _along(deviations: FloatArray, vector: FloatArray) -> FloatArray:
    """d(s, k) . vector: (J, S, S, B) and (S, B) give (J, S, B)."""
    return np.asarray(np.einsum("krsb,rb->ksb", deviations, vector))


# What follows works on NumPy and JAX arrays alike.


def most_steps(S: int, J: int) -> int:
    """More than any arm takes that rounding does not lead in circles."""
    return 2 * S * J + 20


def tolerances(array: Array) -> Tolerances:
    """By the array's precision."""
    return _DOUBLE if array.dtype == np.float64 else _SINGLE


@lru_cache(maxsize=64)
def ages_of(J: int, beta: float, number: Any) -> Ages:
    """The ages 1..J in numbers of a type."""
    fade = beta ** np.arange(J)
    to_end = np.cumsum(fade)[::-1] if beta == 1 else (1 - beta * fade[::-1]) / (1 - beta)
    return Ages(*(array.astype(number).reshape(-1, 1, 1) for array in (fade, to_end)))


def chance_kept(array: Array, beta: float) -> float:
    """The discount times the chance that a play is not forgotten."""
    return beta * (1 - tolerances(array).forgotten)


def in_units(models: Models) -> Units:
    """The arms with rewards around what they pay in the limit, of size 1."""
    xp = array_namespace(*models)
    limiting = limiting_distributions(models.passive)
    unpaid = (limiting * models.reward_passive).sum(0)
    paid = (limiting * models.reward_active).sum(0)
    left, played = models.reward_passive - unpaid, models.reward_active - paid
    scale = xp.maximum(xp.abs(left).max(0), xp.abs(played).max(0))
    # Equal rewards, but for rounding, are of size 1.
    equal = scale <= 8 * rounding(models.passive) * (xp.abs(paid) + xp.abs(unpaid))
    scale = xp.where(equal, 1, scale)
    return Units(limiting, left / scale, played / scale, scale, paid - unpaid)


def values_observed(deviations: Array, waits: Array, right: Array, beta: float) -> Array:
    """x with x(s) = right(s) + keep beta^wait d(s, wait) . x; both (S, C, B): the equations of H.

    Never observed has no deviation.
    """
    xp = array_namespace(waits)
    J, S = deviations.shape[:2]
    s, b = np.arange(S)[:, None], np.arange(waits.shape[1])
    told = deviations[xp.minimum(waits, J - 1), :, s, b]  # (S, B, S)
    keep = chance_kept(deviations, beta)
    weight = xp.where(waits == J, 0, keep * (beta**waits if beta != 1 else 1.0))
    matrix = np.eye(S, dtype=right.dtype)[:, :, None] - xp.swapaxes(weight[..., None] * told, 1, 2)
    return solve(matrix, right)
