"""Gains and terminal values of channels in closed form, in any information state.

As in `rmab.planning.lookahead.tables` the terminal values are the relative values V of each
channel with a subsidy lambda = R(K + 1) - R(K) for every passive slot.

The theory and the symbols (waits k_0 and k_1, weights u_0 and u_1, excess e, slope D, h) are those
of `rmab.planning.channel.subsidy`, which solves the same problem by policy iteration over waits of
any length, in double precision, for one known subsidy. Here the subsidy is sought too, for many
draws at once and inside compiled programs, where loops of unknown length do not pay. So the waits
are taken from a list: (w, 1) for memory m = p11 - p01 >= 0, w up to 8 and then each a third or half
longer than the last; (1, 1) or (1, 2) for m < 0. Each pair has an excess that is a line in lambda,
e = (r u_1 - lambda (u_0 + u_1)) / (u_0 k_0 + u_1 k_1), and the highest line, or 0, is that of the
channel; so R(k) is the least value of k lambda + sum_n e_n(lambda). With h(0) = 0, h(1) = D - r and
m^k by products,

    V(b; 1) = h(0) + D b - lambda - e                  play
    V(s, k) = the largest of  V(b; 1),
                              h(s) + (k - 1) e         if k <= k_s: wait as long as is best
                              V(T b; 1) - e            if m < 0: wait for one slot
                              0                        if e = 0: never play.

Where no waits pay off (e = 0), h(1) for m >= 0, or h(0) for m < 0, is the gain of plays while the
state lasts. A channel that never changes (p01 = 0, p11 = 1) has V = 0.

The gain of a play with d slots left is a_d = r b + sum_s c(s) V(s, d) - V(d slots later).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rmab.arrays import Array
from rmab.linalg import array_namespace, compute_once, repeat
from rmab.model.arms import Dynamics
from rmab.model.information import NEVER, InformationStates, deviation, stationary_belief
from rmab.policies.lookahead import LookaheadState, LookaheadTables, PassivePath

__all__ = ["ChannelValues", "channel_state", "channel_tables", "channel_values", "terminal_value"]

# Waits after bad or good; each but the first is the sum of two others, or twice one.
_WAITS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_HALVINGS = 8  # halvings of the interval of subsidies
_MIN_CHANGE = 1e-6  # channels with a smaller p01 + p10 never change


class ChannelValues(NamedTuple):
    """Relative values of channels at one subsidy, arrays (N, ...), in the symbols of the module.

    bad, good: h(0) and h(1); wait_bad, wait_good: k_0 and k_1, infinite for never.
    """

    p01: Array
    p11: Array
    reward: Array
    subsidy: Array
    excess: Array
    slope: Array
    bad: Array
    good: Array
    wait_bad: Array
    wait_good: Array


def channel_values(dynamics: Dynamics, plays: int) -> ChannelValues:
    """Compute relative values of channels at the subsidy of the module; arrays (N, ...)."""
    p01, p11, reward = dynamics
    xp = array_namespace(p01, p11)
    reward = xp.broadcast_to(xp.asarray(reward, p01.dtype), p01.shape)
    lines = _lines(p01, p11, reward)
    subsidy = _subsidy(lines, reward, plays)
    swings, moves = p11 < p01, 1 - p11 + p01 > _MIN_CHANGE
    waits = _waits(p01)
    line = lines.level - subsidy * lines.fall
    excess = xp.maximum(line.max(0), 0)
    wait = xp.where(line >= line.max(0), waits, np.inf).min(0)  # the first of equal ones
    weight = xp.where(waits == wait, lines.weight, 0).sum(0)
    longer = xp.where(swings, 1 - xp.minimum(wait, 2), wait - 1)  # k_0 - k_1
    pays_off = moves & (excess > 0)
    slope = (reward + excess * longer) / weight
    # Where never playing is as good, one of the two states may be worth plays while it lasts.
    chance, stop = xp.where(swings, p01, p11), xp.where(swings, p01, 1 - p11)
    won = xp.maximum(reward * chance - subsidy, 0) / xp.where(stop > _MIN_CHANGE, stop, 1)
    bad = xp.where(pays_off | ~swings | ~moves, 0, won)
    good = xp.where(pays_off, slope - reward, xp.where(swings | ~moves, 0, won))
    return ChannelValues(
        p01=p01,
        p11=p11,
        reward=reward,
        subsidy=subsidy + 0 * p01,
        excess=xp.where(pays_off, excess, 0),
        slope=xp.where(moves, reward + good - bad, 0),
        bad=bad,
        good=good,
        wait_bad=xp.where(pays_off, 1 + xp.maximum(longer, 0), xp.where(bad > 0, 1, np.inf)),
        wait_good=xp.where(pays_off, 1 - xp.minimum(longer, 0), xp.where(good > 0, 1, np.inf)),
    )


class _Lines(NamedTuple):
    """Excess of each of _WAITS as a line in the subsidy: level - subsidy fall, (W, N, ...) each.

    weight: u_0 + u_1.
    """

    level: Array
    fall: Array
    weight: Array


def _waits(like: Array) -> Array:
    """Return _WAITS as (W, 1, ...), to broadcast against (N, ...)."""
    return np.array(_WAITS, like.dtype).reshape(-1, *[1] * like.ndim)


def _lines(p01: Array, p11: Array, reward: Array) -> _Lines:
    xp = array_namespace(p01)
    memory, rest = p11 - p01, stationary_belief(Dynamics(p01, p11, reward))
    moves, swings, waits = 1 - memory > _MIN_CHANGE, memory < 0, _waits(p01)
    powers = {1: xp.maximum(memory, 0)}
    for slots in _WAITS[1:]:
        part = max(w for w in powers if slots - w in powers)
        power = powers[part] * powers[slots - part]
        powers[slots] = xp.where(power > 1e-30, power, 0)  # denormals are slow
    after_bad = xp.where(swings, 1, waits)  # k_0
    after_good = xp.where(swings, xp.minimum(waits, 2), 1)
    good_weight = rest * (1 - xp.where(swings, memory, xp.stack([powers[w] for w in _WAITS])))
    bad_weight = (1 - rest) * (1 - xp.where(swings & (waits > 1), memory * memory, memory))
    weight = xp.where(moves, good_weight + bad_weight, 1)
    cycle = xp.where(moves, bad_weight * after_bad + good_weight * after_good, 1)
    # A channel that never changes is played for ever once it was observed good.
    level = xp.where(moves, reward * good_weight / cycle, rest * reward)
    return _Lines(level, xp.where(moves, weight / cycle, rest), weight)


def _subsidy(lines: _Lines, reward: Array, plays: int) -> Array:
    """Return R(K + 1) - R(K), with R(k) the least of k lambda + sum_n e_n(lambda), by bisection."""
    xp = array_namespace(reward)
    n_arms = reward.shape[0]
    numbers = np.array([plays, min(plays + 1, n_arms)], reward.dtype)
    numbers = numbers.reshape(2, *[1] * (reward.ndim - 1))

    def halve(_: Any, state: tuple[Array, ...]) -> tuple[Array, ...]:
        low, high, least = state
        middle = (low + high) / 2  # (2, ...)
        line = lines.level[:, None] - middle[:, None] * lines.fall[:, None]  # (W, 2, N, ...)
        best = xp.maximum(line.max(0), 0)
        share = xp.where((line >= best) & (best > 0), lines.fall[:, None], 0).max(0)
        more = share.sum(1) > numbers
        cost = middle * numbers + best.sum(1)
        low, high = xp.where(more, middle, low), xp.where(more, high, middle)
        return low, high, xp.minimum(least, cost)

    top = xp.broadcast_to(reward.max(0), (2, *reward.shape[1:]))
    start = xp.zeros_like(top), top, top * n_arms
    least = repeat(_HALVINGS, halve, start)[2]
    return least[1] - least[0]


def terminal_value(values: ChannelValues, last_seen: Array, age: Array, belief: Array) -> Array:
    """Return V of information states and their beliefs; all broadcast against (N, ...)."""
    xp = array_namespace(values.p01)
    excess, memory = values.excess, values.p11 - values.p01
    base = values.bad - values.subsidy - excess
    value = base + values.slope * belief
    later = base + values.slope * (values.p01 + memory * belief) - excess
    value = xp.where(memory < 0, xp.maximum(value, later), value)
    good = xp.asarray(last_seen) == 1
    waiting = (age != NEVER) & (age <= xp.where(good, values.wait_good, values.wait_bad))
    held = xp.where(good, values.good, values.bad) + (age - 1) * excess
    value = xp.where(waiting, xp.maximum(value, held), value)
    return xp.where(excess > 0, value, xp.maximum(value, 0))


def channel_state(values: ChannelValues, states: InformationStates, depth: int) -> LookaheadState:
    """Return the lookahead state of `depth` slots for channels in information states (N, ...)."""
    xp = array_namespace(values.p01, states.age)
    dynamics = Dynamics(values.p01, values.p11, values.reward)
    memory = values.p11 - values.p01

    def path(last_seen: Array, age: Array, belief: Array, slots: int) -> PassivePath:
        beliefs = [belief]
        for _ in range(slots):
            beliefs.append(values.p01 + memory * beliefs[-1])
        older = xp.where(xp.asarray(age) == NEVER, NEVER, age + slots)
        end = terminal_value(values, last_seen, older, beliefs[slots])
        gains = []
        for ahead in range(slots):
            bad, good = played[slots - ahead - 1]
            pays = (values.reward + good - bad) * beliefs[ahead]
            gains.append(compute_once(pays + bad - end))
        shown = [compute_once(xp.stack([1 - b, b])) for b in beliefs[: slots - 1]]
        return PassivePath(tuple(gains), tuple(shown))

    # V(s, d) for d = 1, ..., as (bad, good), of the states after a play d slots before the end.
    played = []
    at = [values.p01, values.p11]
    for age in range(1, depth + 1):
        played.append([terminal_value(values, s, np.int32(age), at[s]) for s in (0, 1)])
        at = [values.p01 + memory * b for b in at]
    observed = tuple(
        tuple(path(s, np.int32(1), (values.p01, values.p11)[s], slots) for s in (0, 1))
        for slots in range(1, depth)
    )
    belief = stationary_belief(dynamics) + deviation(dynamics, states)
    return LookaheadState(path(states.last_seen, states.age, belief, depth), observed)


def channel_tables(values: ChannelValues, states: InformationStates, depth: int) -> LookaheadTables:
    """Return the tables over information states that an agent reads, (N, ...) with the states."""
    gains = [channel_state(values, states, slots).now.gains[0] for slots in range(1, depth + 1)]
    bad = channel_state(values, states, 2).now.observation_probs[0][0]
    return LookaheadTables((bad,), tuple(gains), None)
