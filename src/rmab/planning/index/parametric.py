"""One step of the walk up the subsidy line, for many arms seen only when played.

An arm in the information state (s, k) has the belief b(s, k) = P_1[s] P_0^(k-1); never seen it has
mu, the resting law of P_0. What the look still tells is the *news* n(s, k) = b(s, k) - mu, which
fades with the age k. Ages past a cap J are never seen. Let every passive slot pay a subsidy on top
of r_0, and write lambda for the subsidy plus mu . r_0: what idling for ever pays. Let beta be the
discount, 1 for average reward, H_s the value of (s, 1) above that of never seen, and t the
advantage of leaving a never-seen arm alone over playing it. While t < 0 never seen is played, and
every slot of waiting costs -t; when t > 0 it idles for ever, and every play costs t. Waiting in
(s, k) to the age n is worth, above never seen,

    R(s, k) + (to_end(k) t if t < 0) + beta^(n-k) Q(s, n),
    Q(s, n) = n(s, n) . (r_1 + beta H) - R(s, n) - (to_end(n) t if t < 0, else t),

where R(s, k) = sum_{i=k..J} beta^(i-k) n(s, i) . r_0 and to_end(k) = sum_{i=k..J} beta^(i-k) belong
to waiting to the end, and Q(never seen) = 0. So a play in (s, k) has the advantage

    A(s, k) = Q(s, k) - max(beta^(n-k) Q(s, n): n > k, never seen included),

H_s is the worth of the best wait in (s, 1), and

    lambda = mu . (r_1 + beta H) + t.

Given a wait for each s, H solves S equations and is affine in t; so are Q and lambda, and lambda
never falls. (For t < 0 these are the optimality equations of a problem that counts plays instead of
slots and has the gain lambda, for t > 0 those of stopping for ever.) The walk begins at a t where
every state is active and goes from one change of the best waits to the next, like the parametric
simplex method. In between the Q(s, n) are straight lines and the A(s, k) concave; a state leaves
the active ones where its line falls below all later ones, and its index is the lambda there.
Never seen leaves at t = 0. Where lambda stands still while t rises, many states share one index:
the plateaus of the closed form (`rmab.planning.channel.index`). States of an arm that is not
indexable come back; the walk follows the best waits all the same, and the index is the lowest
lambda from which on the state is passive.

Waits under which the looks fall into several classes leave H undetermined. So a play is forgotten,
that is leads to never seen, with a chance of the order of rounding, and all stays finite.

Arrays have the ages on the first axis and the arms on the last: every operation runs along the
arms, on NumPy in float64 and on JAX in float32 alike.

References: P. Whittle, "Restless bandits: activity allocation in a changing world", J. Appl. Prob.
25A, 1988; K. Liu and Q. Zhao, "Indexability of restless bandit problems and optimality of Whittle
index for dynamic multichannel access", IEEE Trans. Inf. Theory 56(11), 2010.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.linalg import computed, resting, rounding
from rmab.model.arms import Array, array_namespace
from rmab.planning.index.crossings import (
    Interval,
    Later,
    Span,
    later,
    part,
    part_compiled,
    tolerances,
)
from rmab.planning.index.news import ages_of, along, fading, keeps, to_the_end, values_of_looks

__all__ = ["Batch", "Course", "Models", "prepare", "step"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

POLICIES = 100  # more than policy iteration ever tries


class Models(NamedTuple):
    """B arms: passive, active: (S, S, B); reward_passive, reward_active: (S, B)."""

    passive: Array
    active: Array
    reward_passive: Array
    reward_active: Array


class Batch(NamedTuple):
    """B arms of S states with ages to J, in units in which their rewards are of size 1.

    news: (J, S, S, B), n(s, k)[r] at [k - 1, r, s]; rest: (S, B), mu; scale, shift: (B,), what
    turns a lambda back into a subsidy.
    """

    news: Array
    rest: Array
    scale: Array
    shift: Array


class Course(NamedTuple):
    """Where each arm of a batch stands on its walk.

    value: (J, S, B), Q; where it is compiled, value is Q where the last interval began, slope:
    (J, S, B) its slope in it, and moved: (B,) how far t has gone since. index: (J, S, B), in
    lambda, as far as it is known; first: (S, B), the age less 1 at which the wait after each look
    ends, J for never seen; held: (S, B), beta^first Q there; spot: (B,), t; subsidy: (B,), lambda;
    never: (B,), the lambda at which never seen left; idle: (B,), whether it has; limit: (B,), how
    far the next interval may go; done: (B,); later: on NumPy, the best later waits at t.
    """

    value: Array
    slope: Array
    moved: Array
    index: Array
    first: Array
    held: Array
    spot: Array
    subsidy: Array
    never: Array
    idle: Array
    limit: Array
    done: Array
    later: Later | None


def prepare(
    models: Models, max_age: int, beta: float = 1.0, spots: FloatArray | None = None
) -> tuple[Batch, Course]:
    """The arms, and where their walks begin: every state is active there.

    spots: (B,), on NumPy: where finite, the walk begins at this t < 0 instead, and the index of
    states that are not met active is -inf.
    """
    xp = array_namespace(*models)
    passive, active, reward_passive, reward_active = models
    rest = resting(passive)
    unpaid, paid = (rest * reward_passive).sum(0), (rest * reward_active).sum(0)
    left, played = reward_passive - unpaid, reward_active - paid
    scale = xp.maximum(xp.abs(left).max(0), xp.abs(played).max(0))
    # Equal rewards, but for rounding, are of size 1.
    scale = xp.where(scale > 8 * rounding(passive) * (xp.abs(paid) + xp.abs(unpaid)), scale, 1)
    left, played = left / scale, played / scale
    news = fading(passive, xp.swapaxes(active - rest, 0, 1), max_age)
    idling = to_the_end(along(news, left), beta)  # R, (J, S, B)
    own = along(news, played) - idling  # Q without H and t

    # At first every look is followed by a play, and H does not depend on t.
    first, keep = xp.zeros_like(rest, np.int32), keeps(rest, beta)
    H = values_of_looks(news, first, (idling[0] + own[0])[:, None], beta)[:, 0]
    value = own + along(news, keep * H)
    after = xp.concatenate([beta * value[1:], xp.zeros_like(value[:1])])
    spot = xp.minimum((value - after).min((0, 1)), 0)
    value = value - ages_of(max_age, beta, value.dtype).to_end * spot
    held, since = value[0], spot
    if spots is not None:
        spot = np.where(np.isfinite(spots), spots, spot)
        first, held, value, H = _best_waits(news, own, idling[0], spot, beta)
        since = np.where(np.isfinite(spots), -np.inf, spot)
    subsidy = keep * (rest * H).sum(0) + spot
    return Batch(news, rest, scale, paid - unpaid), Course(
        value=value,
        slope=xp.zeros_like(value),
        moved=xp.zeros_like(spot),
        index=xp.zeros(value.shape, value.dtype) + (subsidy - spot + since),
        first=first,
        held=held,
        spot=spot,
        subsidy=subsidy,
        never=subsidy,
        idle=spot >= 0,
        limit=xp.full_like(spot, np.inf),
        done=xp.zeros_like(spot, bool),
        later=later(value, beta, tolerances(value).even) if xp is np else None,
    )


def _best_waits(
    news: FloatArray, own: FloatArray, start: FloatArray, spot: FloatArray, beta: float
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """The best waits at given t < 0 and their worth, (S, B), Q, (J, S, B), and H, (S, B), by policy
    iteration; start: (S, B), R of the first age."""
    J, S, B = own.shape
    ages, keep = ages_of(J, beta, own.dtype), keeps(own, beta)
    s, b = np.arange(S)[:, None], np.arange(B)
    first = np.zeros((S, B), np.int32)
    for _ in range(POLICIES):
        here = np.minimum(first, J - 1)
        fade = np.where(first == J, 0, beta**first)
        slots = first if beta == 1 else (1 - beta**first) / (1 - beta)
        right = start + fade * own[here, s, b] + slots * spot
        H = values_of_looks(news, first, right[:, None], beta)[:, 0]
        value = own + along(news, keep * H) - ages.to_end * spot
        held, worth = fade * value[here, s, b], ages.fade * value
        best = worth.argmax(0)
        top = worth[best, s, b]
        better = np.maximum(top, 0) > held + 1e-13
        if not better.any():
            break
        first = np.where(better, np.where(top > 0, best, J), first).astype(np.int32)
    return first, held, value, H


def step(batch: Batch, course: Course, beta: float = 1.0) -> tuple[Course, Interval | None]:
    """One interval of each arm, and on NumPy what was seen of it."""
    xp = array_namespace(course.value)
    near, J = tolerances(course.value), batch.news.shape[0]
    ages, keep = ages_of(J, beta, course.value.dtype), keeps(course.value, beta)
    first, idle = course.first, course.idle
    fade = beta**first if beta != 1 else xp.ones_like(course.held)
    slots = first if beta == 1 else (1 - fade) / (1 - beta)
    right = xp.where(idle, xp.where(first == J, 0, -fade), slots).astype(course.held.dtype)
    right = right[:, None]
    if xp is np:  # the solution for a vector like any other tells how ill the system is
        probe = np.cos(np.arange(1, len(right) + 1))[:, None, None]
        right = np.concatenate([right, np.broadcast_to(probe, right.shape)], 1)
    solved = computed(values_of_looks(batch.news, first, right, beta))
    H = solved[:, 0]  # from here on H and what depends on it are slopes in t
    held = xp.where(idle, H, H - ages.to_end[0])
    rising = 1 + keep * (batch.rest * H).sum(0)  # of lambda
    value = course.value if xp is np else course.value + course.slope * course.moved
    slope = computed(along(batch.news, keep * H) - xp.where(idle, 1, ages.to_end))

    soonest, place = _overtaking(course, held, value, slope, ages.fade, beta)
    event = soonest.min(0)
    at_rest = ~idle & (event >= -course.spot - near.tied)  # t reaches 0
    end = xp.where(at_rest, -course.spot, event)
    # The waits are the last ones: all lines fall like -t, and the highest is the last to leave.
    over = ~xp.isfinite(end)
    end = xp.where(over, xp.maximum(value.max((0, 1)), 0), end)
    end = xp.where(course.done, 0, end)
    halfway = course.limit < end
    end = computed(xp.minimum(end, course.limit))

    size = xp.maximum(xp.maximum(xp.abs(H), xp.abs(course.held)) / J, xp.abs(solved[:, -1])).max(0)
    span = Span(value, slope, end, course.subsidy, rising, size)
    if course.later is None:
        index, cut = part_compiled(span, course.index, near, beta)
        ahead, seen = None, None
    else:
        index = course.index
        value, cut, ahead, seen = part(span, index, course.later, near, beta)
    void = cut < end
    moved = xp.where(void, 0, end)
    turns = ~(void | halfway | course.done)
    leaves = turns & at_rest
    first = xp.where(turns & ~at_rest & ~over & (soonest <= event), place, first)
    done = course.done | (turns & over)
    if beta == 1:  # nothing is left then
        done = done | (turns & idle & (first == J).all(0))
    return Course(
        value=value,
        slope=slope,
        moved=moved,
        index=index,
        first=first,
        held=course.held + held * moved,
        spot=xp.where(leaves, 0, course.spot + moved),
        subsidy=course.subsidy + rising * moved,
        never=xp.where(leaves, course.subsidy + rising * moved, course.never),
        idle=idle | leaves,
        limit=xp.where(void, cut, np.inf),
        done=done,
        later=ahead,
    ), seen


def _overtaking(
    course: Course, held: Array, value: Array, slope: Array, fade: Array, beta: float
) -> tuple[Array, Array]:
    """After each look, how far t goes until another wait is better than the one held, and the age
    less 1 at which that one ends, (S, B); held: the slope of the one held."""
    xp = array_namespace(value)
    flat, J, first = tolerances(value).flat, len(value), course.first
    if beta != 1:
        value, slope = fade * value, fade * slope

    def haste(value: Array, slope: Array) -> Array:
        """One over how far t goes until it overtakes; not positive if it does not."""
        gap = xp.maximum(course.held - value, 1e-30)
        if xp is np:  # in float64 `flat` does no harm, and to choose would take longer
            return (slope - (held + flat)) / gap
        return xp.where(slope - held > flat, slope - held, -1) / gap

    never, others = xp.where(first == J, -1, haste(0, 0)), haste(value, slope)
    if xp is np:
        s, b = np.arange(len(first))[:, None], np.arange(first.shape[1])
        others[np.minimum(first, J - 1), s, b] -= np.where(first == J, 0, np.inf)
        place = others.argmax(0)
        best = others[place, s, b]
    else:
        ages = np.arange(J, dtype=np.int32)[:, None, None]
        others = computed(xp.where(ages == first, -1, others))
        best = others.max(0)
        place = xp.where(others == best, ages, J).min(0)
    first_to = xp.maximum(best, never)
    soonest = xp.where(first_to > 0, 1 / xp.where(first_to > 0, first_to, 1), np.inf)
    return soonest, xp.where(best > never, place, J).astype(np.int32)
