"""Parametric policy iteration for arms observed when played, many arms at once, on NumPy.

The optimal policy of one arm with a subsidy for passivity is followed along the whole line of
subsidies, from one change of policy to the next, like a basis in the parametric simplex method.

An arm in the information state (s, k), state s observed k slots ago, has the belief
b(s, k) = P_1[s] P_0^(k-1); never observed it has mu, the limiting distribution of P_0. The
*deviation* d(s, k) = b(s, k) - mu fades with the age k. Past a cap J an arm counts as never
observed. Let every passive slot pay a subsidy on top of r_0, and write lambda for the subsidy plus
mu . r_0, the reward of never playing. Let beta be the discount, 1 for
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
are still followed, and the index is the lowest lambda above which the state is passive.

With M(t) = max(beta^(n-k) Q(s, n): n > k, and 0), which is convex, a state is, at the two ends of a
step,

- active at both: active throughout;
- active, then passive: it leaves once, where the first of the later lines crosses its own;
- passive at both: it may be active in between only if M is bent there, that is if the best later
  line is not the same at both ends. The step is then cut where these two lines cross;
- passive, then active: it comes back.

Waits under which the observations fall into several classes leave H undetermined. So a play is
forgotten, that is leads to never observed, with a chance of the order of rounding, which keeps H
finite.

Arms need different numbers of steps. So a batch runs in *lanes*: as soon as a share of the lanes
are done, other arms take them. A long path may be cut into pieces, between fixed t, that are solved
side by side. `rmab.planning.index.parametric_jax` is the same on JAX, for indices only.

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

from rmab.arrays import Array, Bool, BoolArray, Float, FloatArray, Int, IntArray
from rmab.linalg import array_namespace, propagate, rounding, solve
from rmab.markov import limiting_distributions

__all__ = [
    "ArmBatch",
    "Models",
    "ScaledArms",
    "StepRecord",
    "age_weights",
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
_STATES_AT_ONCE = 40_000  # information states in all lanes
_MIN_LANES = 16
_FREED_SHARE = 0.25  # share of lanes done at which other arms take them
_LAST_PIECE = 1e-10  # distance from t = 0 at which the last piece of a path begins
_WIDE_ROW = 120  # numbers of one age from which on a loop over ages is faster


class Models(NamedTuple):
    """Transition probabilities and rewards of B arms."""

    passive: Float[Array, "S S B"]
    active: Float[Array, "S S B"]
    reward_passive: Float[Array, "S B"]
    reward_active: Float[Array, "S B"]


class ArmBatch(NamedTuple):
    """B arms of S states with ages to J, in units in which their rewards are of size 1.

    deviations: d(s, k)[r] at [k - 1, r, s]; limiting: mu; the subsidy is lambda scale + shift.
    """

    deviations: Float[Array, "J S S B"]
    limiting: Float[Array, "S B"]
    scale: Float[Array, " B"]
    shift: Float[Array, " B"]


class Tolerances(NamedTuple):
    """Tolerances in units of rewards of size 1.

    tied: values of t this close are equal; flat: rates below this cross nothing; even: advantages
    below this are 0; forgotten: chance that a play is forgotten.
    """

    tied: float
    flat: float
    even: float
    forgotten: float


_DOUBLE = Tolerances(tied=1e-11, flat=1e-13, even=1e-14, forgotten=1e-14)
_SINGLE = Tolerances(tied=1e-6, flat=1e-5, even=1e-6, forgotten=1e-6)


class AgeWeights(NamedTuple):
    """Discounts by age: fade is beta^(k-1), to_end is to_end(k); (J, 1, 1) each."""

    fade: Array
    to_end: Array


class ScaledArms(NamedTuple):
    """Arms with rewards around 0 of size 1: mu, r_0, r_1, and the scale and shift of `ArmBatch`."""

    limiting: Float[Array, "S B"]
    passive: Float[Array, "S B"]
    active: Float[Array, "S B"]
    scale: Float[Array, " B"]
    shift: Float[Array, " B"]


class Later(NamedTuple):
    """Best wait after each age: beta^(n-k) Q(s, n), its age less 1, and a play's advantage over it;
    (J, S, B) each."""

    best: FloatArray
    place: npt.NDArray[np.integer]
    advantage: FloatArray
    plays: BoolArray


class Segment(NamedTuple):
    """Straight lines of a step: Q where it begins and its slope in t; end, the length of the step
    in t; lambda where it begins and its slope; size of H per age, or of the equations' solution for
    numbers of size 1."""

    value: Float[FloatArray, "J S B"]
    slope: Float[FloatArray, "J S B"]
    end: Float[FloatArray, " B"]
    subsidy: Float[FloatArray, " B"]
    subsidy_slope: Float[FloatArray, " B"]
    size: Float[FloatArray, " B"]


class StepRecord(NamedTuple):
    """Best later waits at both ends of a step's segment."""

    before: Later
    after: Later
    segment: Segment
    beta: float


class Iterate(NamedTuple):
    """Position of each arm of a batch on its subsidy line.

    value: Q; later: best later waits; index: lambda where a state left, as far as known; waits: age
    less 1 at which the wait after each observation ends, J for never; held: beta^waits Q there;
    subsidy: lambda; never: lambda at which never observed left; idle: whether it has left; limit:
    largest length of the next step.
    """

    value: Float[FloatArray, "J S B"]
    later: Later
    index: Float[Array, "J S B"]
    waits: Int[npt.NDArray[np.int32], "S B"]
    held: Float[FloatArray, "S B"]
    t: Float[FloatArray, " B"]
    subsidy: Float[FloatArray, " B"]
    never: Float[FloatArray, " B"]
    idle: Bool[BoolArray, " B"]
    limit: Float[FloatArray, " B"]
    done: Bool[BoolArray, " B"]


class _Lanes(NamedTuple):
    """Paths in progress, in lanes on the last axis, and the number of steps they have taken."""

    paths: IntArray
    batch: ArmBatch
    at: Iterate
    steps: IntArray


def follow(
    models: Models,
    max_age: int,
    beta: float = 1.0,
    watch: Callable[[IntArray, ArmBatch, StepRecord], None] | None = None,
    pieces: int = 1,
) -> tuple[Float[FloatArray, " B"], Float[FloatArray, "J S B"], Bool[BoolArray, " B"]]:
    """Return the indices of never observed and of all states, and which lines reached their end.

    watch(arms, batch, record) is called after each step with the arms in progress, in the order of
    the line unless it is cut into pieces.
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
        """Take one step; return also which paths have reached their end."""
        at, stops = under.at, borders[piece[under.paths] + 1]
        limit = np.minimum(at.limit, np.maximum(stops - at.t, 0))
        at, record = _step(under.batch, at._replace(limit=limit), beta)
        if watch is not None:
            watch(arms[under.paths], under.batch, record)
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
        ends, indices = _outcome(ended.batch, ended.at)
        finished[arms[under.paths[done & ~arrived]]] = False
        for number in np.unique(piece[ended.paths]):  # so that no arm is here more than once
            which = np.flatnonzero(piece[ended.paths] == number)
            arm = arms[ended.paths[which]]
            index[..., arm] = np.maximum(index[..., arm], indices[..., which])
            never[arm] = ends[which] if number == pieces - 1 else never[arm]
        under = taken(under, np.flatnonzero(~done))
        if waiting < arms.size:
            new = np.arange(waiting, min(waiting + lanes - under.paths.size, arms.size))
            under, waiting = _joined(under, start(new)), waiting + new.size
    return never, index, finished


def _outcome(batch: ArmBatch, at: Iterate) -> tuple[FloatArray, FloatArray]:
    """Return the indices of never observed and of all states where paths end, in subsidies."""
    index = np.where(at.later.plays, at.subsidy, at.index)
    return at.never * batch.scale + batch.shift, index * batch.scale + batch.shift


def taken(arrays: Any, which: Any) -> Any:
    """Select arms of a named tuple of arrays that have the arms last."""
    return type(arrays)(
        *(taken(a, which) if isinstance(a, tuple) else a.take(which, -1) for a in arrays)
    )


def _joined(some: Any, others: Any) -> Any:
    """Join two named tuples of arrays along the arms."""
    return type(some)(
        *(
            _joined(one, other) if isinstance(one, tuple) else np.concatenate([one, other], -1)
            for one, other in zip(some, others, strict=True)
        )
    )


def _begin(
    models: Models, max_age: int, beta: float, begins: FloatArray | None = None
) -> tuple[ArmBatch, Iterate]:
    """Return the arms and the starts of their lines, where every state is active.

    Where `begins` (B,) is finite, the line is entered at this t < 0 instead, and the index of
    states that are not active there is -inf.
    """
    units = in_units(models)
    deviations = propagate(models.active - units.limiting, models.passive, max_age)
    alone = _to_end(_along(deviations, units.passive), beta)  # R, (J, S, B)
    own = _along(deviations, units.active) - alone  # Q without H and t
    ages, keep = age_weights(max_age, beta, own.dtype), chance_kept(own, beta)

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
    return ArmBatch(deviations, units.limiting, units.scale, units.shift), Iterate(
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
    """Return the best waits at given t < 0, their values, Q and H, by policy iteration.

    own: Q without H and t; alone: (S, B), R of the first age.
    """
    J, S, B = own.shape
    ages, keep = age_weights(J, beta, own.dtype), chance_kept(own, beta)
    s, b = np.arange(S)[:, None], np.arange(B)
    waits = np.zeros((S, B), np.int32)
    for _ in range(_MAX_ITERATIONS):
        here = np.minimum(waits, J - 1)
        fade = np.where(waits == J, 0, beta**waits)
        slots = waits if beta == 1 else (1 - beta**waits) / (1 - beta)
        right = alone + fade * own[here, s, b] + slots * t
        H = values_observed(deviations, waits, right[:, None], beta)[:, 0]
        value = own + _along(deviations, keep * H) - ages.to_end * t
        held, values = fade * value[here, s, b], ages.fade * value
        best = values.argmax(0)
        top = values[best, s, b]
        better = np.maximum(top, 0) > held + 1e-13
        if not better.any():
            break
        waits = np.where(better, np.where(top > 0, best, J), waits).astype(np.int32)
    return waits, held, value, H


def _step(batch: ArmBatch, at: Iterate, beta: float) -> tuple[Iterate, StepRecord]:
    """Take each arm from one change of its best waits to the next."""
    near, J = tolerances(at.value), batch.deviations.shape[0]
    ages, keep = age_weights(J, beta, at.value.dtype), chance_kept(at.value, beta)
    waits, idle = at.waits, at.idle
    fade = beta**waits if beta != 1 else np.ones_like(at.held)
    slots = waits if beta == 1 else (1 - fade) / (1 - beta)
    right = np.where(idle, np.where(waits == J, 0, -fade), slots)[:, None]
    # The solution for an arbitrary vector shows how ill-conditioned the system is.
    probe = np.cos(np.arange(1, len(right) + 1))[:, None, None]
    right = np.concatenate([right, np.broadcast_to(probe, right.shape)], 1)
    solved = values_observed(batch.deviations, waits, right, beta)
    H = solved[:, 0]  # from here on H, held and slope are slopes in t
    held = np.where(idle, H, H - ages.to_end[0])
    subsidy_slope = 1 + keep * (batch.limiting * H).sum(0)
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
    segment = Segment(at.value, slope, end, at.subsidy, subsidy_slope, size)
    value, cut, record = _leave(segment, at.index, at.later, near, beta)
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
        later=record.after,
        index=at.index,
        waits=waits,
        held=at.held + held * moved,
        t=np.where(leaves, 0, at.t + moved),
        subsidy=at.subsidy + subsidy_slope * moved,
        never=np.where(leaves, at.subsidy + subsidy_slope * moved, at.never),
        idle=idle | leaves,
        limit=np.where(void, cut, np.inf),
        done=done,
    ), record


def _overtaking(
    at: Iterate, held: FloatArray, slope: FloatArray, fade: FloatArray, beta: float
) -> tuple[FloatArray, npt.NDArray[np.int32]]:
    """Return the distance in t to the next better wait after each observation, and its age less 1.

    held: slope of the current wait's value; results are (S, B).
    """
    flat, J, waits = tolerances(slope).flat, len(slope), at.waits
    value = at.value
    if beta != 1:
        value, slope = fade * value, fade * slope

    def inverse_time(value: Any, slope: Any) -> FloatArray:
        """Return the inverse of the distance to the crossing, not positive without one."""
        return np.asarray((slope - (held + flat)) / np.maximum(at.held - value, 1e-30))

    never, others = np.where(waits == J, -1, inverse_time(0, 0)), inverse_time(value, slope)
    s, b = np.arange(len(waits))[:, None], np.arange(waits.shape[1])
    others[np.minimum(waits, J - 1), s, b] -= np.where(waits == J, 0, np.inf)
    place = others.argmax(0)
    best = others[place, s, b]
    first_to = np.maximum(best, never)
    soonest = np.where(first_to > 0, 1 / np.where(first_to > 0, first_to, 1), np.inf)
    return soonest, np.where(best > never, place, J).astype(np.int32)


def later(value: FloatArray, beta: float, even: float) -> Later:
    """Find the best wait after each age; a play must be better by more than `even`."""
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
    """Set out[k] to the function of out[k] and all given[n], n > k; out has one value at first."""
    if given[0].size < _WIDE_ROW:
        function.accumulate(given[:0:-1], axis=0, out=out[-2::-1])
        function(out[:-1], out[-1], out=out[:-1])
    else:
        for age in reversed(range(len(given) - 1)):
            function(given[age + 1], out[age + 1], out=out[age])


class _Lines(NamedTuple):
    """Lines of states, and of M above them at the start and the end of a step; (L,) each.

    state: number in (J, S, B); age: less 1; chain: number of (s, b) in (S, B); slope, first, last:
    slopes of the state's line and of M's at the start and the end; cross: t at which those two
    cross; bent: whether that lies inside the step.
    """

    state: IntArray
    age: IntArray
    chain: IntArray
    arm: IntArray
    slope: FloatArray
    first: FloatArray
    last: FloatArray
    cross: FloatArray
    bent: BoolArray


def _leave(
    segment: Segment, index: FloatArray, now: Later, near: Tolerances, beta: float
) -> tuple[FloatArray, FloatArray, StepRecord]:
    """Return Q at the end of the step and where it must be cut first, (B,); write the index of
    states that leave in place.

    Where the step is to be cut it ends where it began.
    """
    value, end = segment.value, segment.end
    final = segment.slope * end
    final += value
    then = later(final, beta, near.even)
    cut = np.full(end.shape, np.inf)
    # States that leave, and those that are passive at both ends below a bent M.
    states = np.flatnonzero(~then.plays & (now.plays | (now.place != then.place)))
    if not states.size:
        return final, cut, StepRecord(now, then, segment, beta)
    lines, leaves = _lines(states, segment, now, then, near, beta), now.plays.ravel()[states]

    leaving = taken(lines, np.flatnonzero(leaves))
    root, on = _departures(leaving, segment, now, then, beta), leaving.arm
    index.ravel()[leaving.state] = segment.subsidy[on] + segment.subsidy_slope[on] * root

    under = taken(lines, np.flatnonzero(lines.bent & ~leaves))
    above = now.advantage.ravel()[under.state] + (under.slope - under.first) * under.cross
    comes = above > near.tied  # active in between
    if comes.any():
        np.minimum.at(cut, under.arm[comes], under.cross[comes])
        void = cut < end
        then = Later(*(np.where(void, old, new) for old, new in zip(now, then, strict=True)))
        final, segment = np.where(void, value, final), segment._replace(end=np.where(void, 0, end))
    return final, cut, StepRecord(now, then, segment, beta)


def _lines(
    states: IntArray, segment: Segment, now: Later, then: Later, near: Tolerances, beta: float
) -> _Lines:
    """Return the lines of some states, and the best later ones at the two ends of a step."""
    J, width = len(segment.value), segment.value[0].size
    age, chain = np.divmod(states, width)
    arm = chain % segment.end.size
    slopes = segment.slope.ravel()

    def slope_of(place: npt.NDArray[np.integer]) -> FloatArray:
        n = place.ravel()[states].astype(np.intp)
        slope = slopes[np.minimum(n, J - 1) * width + chain]
        if beta != 1:
            slope *= beta ** (n - age)
        slope[n == J] = 0
        return np.asarray(slope)

    first, last, end = slope_of(now.place), slope_of(then.place), segment.end[arm]
    bend = now.best.ravel()[states] - then.best.ravel()[states] + last * end
    cross = _over(bend, last - first)
    bent = (cross > near.tied) & (cross < end - near.tied)
    return _Lines(states, age, chain, arm, slopes[states], first, last, cross, bent)


def _departures(
    lines: _Lines, segment: Segment, now: Later, then: Later, beta: float
) -> FloatArray:
    """Return the distance in t to which each of these states stays active, (L,)."""
    end = segment.end[lines.arm]
    root = np.minimum(
        _over(now.advantage.ravel()[lines.state], lines.first - lines.slope),
        end - _over(-then.advantage.ravel()[lines.state], lines.last - lines.slope),
    )
    bent = np.flatnonzero(lines.bent)  # a third line may lie above both in between
    if bent.size:
        crossing = _first_crossing(
            segment.value, segment.slope, beta, lines.age[bent], lines.chain[bent]
        )
        root[bent] = np.minimum(root[bent], crossing)
    return np.clip(root, 0, end)


def _over(top: FloatArray, bottom: FloatArray) -> FloatArray:
    """Return top / bottom where bottom is positive, else infinity."""
    positive = bottom > 0
    return np.where(positive, top / np.where(positive, bottom, 1), np.inf)


def _first_crossing(
    value: FloatArray, slope: FloatArray, beta: float, k: IntArray, chain: IntArray
) -> FloatArray:
    """Return the distance in t to the first crossing of each state's line by a later one, (L,)."""
    J = len(value)
    lines, slopes = (array.reshape(J, -1).take(chain, 1) for array in (value, slope))  # (J, L)
    own = np.arange(k.size)
    mine, falls = lines[k, own], slopes[k, own]
    ahead = np.arange(J)[:, None] - k
    if beta != 1:
        fade = beta ** np.maximum(ahead, 0)
        lines, slopes = lines * fade, slopes * fade
    # Inverse distances, not positive for lines that never cross.
    inverse = (slopes - falls) / np.maximum(mine - lines, 1e-30)
    inverse *= ahead > 0
    soonest = np.maximum(inverse.max(0), -falls / np.maximum(mine, 1e-30))
    return _over(np.ones_like(soonest), soonest)


def _to_end(paid: FloatArray, beta: float) -> FloatArray:
    """Return sum_{i=k..J} beta^(i-k) paid(i) for every age k; (J, S, B)."""
    totals, total = np.empty_like(paid), np.zeros_like(paid[0])
    for age in reversed(range(len(paid))):
        total = totals[age] = paid[age] + beta * total
    return totals


def _along(deviations: FloatArray, vector: FloatArray) -> FloatArray:
    """Return d(s, k) . vector: (J, S, S, B) and (S, B) give (J, S, B)."""
    return np.asarray(np.einsum("krsb,rb->ksb", deviations, vector))


# The functions below work on NumPy and JAX arrays alike.


def most_steps(S: int, J: int) -> int:
    """Return an upper bound on the steps of an arm that rounding does not lead in circles."""
    return 2 * S * J + 20


def tolerances(array: Array) -> Tolerances:
    """Return the tolerances of the array's precision."""
    return _DOUBLE if array.dtype == np.float64 else _SINGLE


@lru_cache(maxsize=64)
def age_weights(J: int, beta: float, number: Any) -> AgeWeights:
    """Return the discounts of ages 1..J in numbers of a type."""
    fade = beta ** np.arange(J)
    to_end = np.cumsum(fade)[::-1] if beta == 1 else (1 - beta * fade[::-1]) / (1 - beta)
    return AgeWeights(*(array.astype(number).reshape(-1, 1, 1) for array in (fade, to_end)))


def chance_kept(array: Array, beta: float) -> float:
    """Return the discount times the chance that a play is not forgotten."""
    return beta * (1 - tolerances(array).forgotten)


def in_units(models: Models) -> ScaledArms:
    """Shift rewards by their means in the limit and scale them to size 1."""
    xp = array_namespace(*models)
    limiting = limiting_distributions(models.passive)
    unpaid = (limiting * models.reward_passive).sum(0)
    paid = (limiting * models.reward_active).sum(0)
    left, played = models.reward_passive - unpaid, models.reward_active - paid
    scale = xp.maximum(xp.abs(left).max(0), xp.abs(played).max(0))
    # Rewards that are equal up to rounding keep their size.
    equal = scale <= 8 * rounding(models.passive) * (xp.abs(paid) + xp.abs(unpaid))
    scale = xp.where(equal, 1, scale)
    return ScaledArms(limiting, left / scale, played / scale, scale, paid - unpaid)


def values_observed(deviations: Array, waits: Array, right: Array, beta: float) -> Array:
    """Solve x(s) = right(s) + keep beta^wait d(s, wait) . x, the equations of H; both (S, C, B).

    Never observed has no deviation.
    """
    xp = array_namespace(waits)
    J, S = deviations.shape[:2]
    s, b = np.arange(S)[:, None], np.arange(waits.shape[1])
    ended = deviations[xp.minimum(waits, J - 1), :, s, b]  # (S, B, S)
    keep = chance_kept(deviations, beta)
    weight = xp.where(waits == J, 0, keep * (beta**waits if beta != 1 else 1.0))
    matrix = np.eye(S, dtype=right.dtype)[:, :, None] - xp.swapaxes(weight[..., None] * ended, 1, 2)
    return solve(matrix, right)
