"""Gains and terminal values of arms of any kind: the tables that a lookahead reads.

Terminal values. Let every passive slot of an arm pay a subsidy lambda, eq. (10): the
problem decouples, and each arm has its own relative values. They end the lookahead of
`rmab.policies.lookahead.choose`. With R(k) the best average reward of k plays a slot in the long
run, the bound of `rmab.planning.joint.relaxation`, the subsidy is

    lambda = R(K + 1) - R(K),

the value of one more play. It is at most the Lagrangian subsidy, the slope of R at K: the price of
a play that may be delayed until it is worth most, as K plays in every slot may not.
docs/lookahead.md compares the choices.

Channels have them in closed form, `rmab.planning.lookahead.channel`. Other arms have the mean of
the values of n and of n + 1 slots, by backward induction over the rows of a table
(`rmab.planning.tables`); past its highest age an arm is never observed again. R(k) comes from the
same induction at a few subsidies, not from the linear programme of the bound: it is filled anew in
every episode, for many draws at once, on NumPy or JAX.

After d passive slots an arm is worth u_d, u_0 = V; the gain of a play with d slots left is a_d:

    a_d(x) = r_1 - r_0 + sum_s c(x, s) u_(d-1)(s, 1) - E[u_(d-1)(x') | passive].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rmab.arrays import Array, Bool, BoolArray, Float, Int, IntArray
from rmab.linalg import array_namespace, propagate, repeat
from rmab.markov import limiting_distributions
from rmab.model.arms import Arms, Dynamics
from rmab.model.expansion import expansion
from rmab.model.information import InformationStates
from rmab.planning.lookahead.channel import channel_state, channel_values
from rmab.planning.tables import Model
from rmab.policies.lookahead import LookaheadState, LookaheadTables, state_from_tables

__all__ = ["fill_lookahead", "known_lookahead", "known_wraps"]

_SLOTS = 24  # slots of the backward induction
# Subsidies tried first, in units of the largest difference of an arm's rewards.
_SUBSIDIES = (-8.0, -4.0, -2.0, -1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
_FINER_SUBSIDIES = 8  # subsidies tried next, between the best of the first


class _Rows(NamedTuple):
    """Probabilities and rewards of arms over their rows.

    passive_probs are read only for fully observed arms, but filled for all.
    """

    observation_probs: Float[Array, "S N I R"]
    passive_probs: Float[Array, "S N I R"]
    reward_passive: Float[Array, "N I R"]
    reward_active: Float[Array, "N I R"]
    always: Bool[BoolArray, "N 1 1"]
    wraps: Int[IntArray, " N"]

    def played(self, value: Array) -> Array:
        """Return the expectation of values (N, I, R) after a play."""
        return self.after_observing(self.observation_probs, value)

    def unplayed(self, value: Array) -> Array:
        """Return the expectation of values (N, I, R) after a slot without a play."""
        xp = array_namespace(value)
        by_state = self._by_state(value)
        max_age = by_state.shape[2]
        back = np.minimum(max_age - self.wraps, max_age - 1)[:, None, None, None]
        last = xp.where(
            (self.wraps > 0)[:, None, None, None],
            xp.take_along_axis(by_state, xp.asarray(back), 2),
            value[:, :1, None],
        )
        aged = xp.concatenate([by_state[:, :, 1:], last], 2).reshape(value[:, 1:].shape)
        aged = xp.concatenate([value[:, :1], aged], 1)
        if not self.any_always:
            return aged
        return xp.where(self.always, self.after_observing(self.passive_probs, value), aged)

    @property
    def any_always(self) -> bool:
        return bool(self.always.any())

    def _by_state(self, value: Array) -> Array:
        """Reshape (N, I, R) to (N, S, J, R), without never observed."""
        S = self.observation_probs.shape[0]
        return value[:, 1:].reshape(value.shape[0], S, -1, value.shape[2])

    def after_observing(self, chances: Array, value: Array) -> Array:
        """Return the expectation of values when states have these chances (S, N, ...)."""
        fresh = self._by_state(value)[:, :, 0]  # (N, S, R)
        return sum(chances[s] * fresh[:, s, None] for s in range(chances.shape[0]))


def _rows(model: Model, max_age: int, wraps: IntArray | None) -> _Rows:
    wraps = np.zeros(len(model.kinds), np.int64) if wraps is None else wraps
    passive, active = model.moves
    xp: Any = array_namespace(passive, active)
    S, _, N, width = passive.shape
    flat = [m.reshape(S, S, -1) for m in (passive, active)]
    ages = propagate(flat[1], flat[0], max_age)  # (J, next, last, N trials)
    beliefs = xp.moveaxis(ages, 0, 2).reshape(S, S * max_age, N, width)
    rest = _limiting(model)
    shown = xp.moveaxis(xp.concatenate([rest[:, None], beliefs], 1), 2, 1)  # (S, N, I, trials)
    by_row = xp.repeat(xp.moveaxis(passive, 0, 2), max_age, 2)  # (next, N, S J, trials)
    moved = xp.concatenate([rest[:, :, None], by_row], 2)
    always = np.array([kind.fully_observed for kind in model.kinds])[:, None, None]

    def paid(reward: Array) -> Array:
        """Return expected rewards (N, I, R) from rewards (S, N, 1)."""
        expected = (shown * reward[:, :, None]).sum(0)
        if not always.any():
            return expected
        by_row = xp.repeat(xp.moveaxis(reward, 0, 1), max_age, 1)  # (N, S J, 1)
        own = xp.concatenate([(rest * reward).sum(0)[:, None], by_row + 0 * expected[:, 1:]], 1)
        return xp.where(always, own, expected)

    return _Rows(shown, moved, paid(model.reward_passive), paid(model.reward_active), always, wraps)


def _limiting(model: Model) -> Array:
    """Return the limiting distribution under passivity, (S, N, R); 0 for states an arm lacks."""
    passive = model.moves.passive
    xp: Any = array_namespace(passive)
    S, _, N, width = passive.shape
    rest = xp.zeros((S, N, width), passive.dtype)
    # States that an arm does not have would be recurrent classes of its own.
    for states in {kind.states for kind in model.kinds}:
        which = np.flatnonzero([kind.states == states for kind in model.kinds])
        part = limiting_distributions(passive[:states, :states][:, :, which])
        padded = xp.concatenate([part, xp.zeros((S - states, *part.shape[1:]), part.dtype)])
        place = (np.arange(N)[:, None] == which).astype(passive.dtype)  # (N, members)
        rest = rest + (place[None, :, :, None] * padded[:, None]).sum(2)
    return rest


def fill_lookahead(
    model: Model, max_age: int, plays: int, depth: int, wraps: IntArray | None = None
) -> LookaheadTables:
    """Fill the tables of arms of any kind, trials last.

    wraps: (N,) slots by which ages past max_age fall back; 0 or None: they become never observed.
    """
    rows = _rows(model, max_age, wraps)
    value = _terminal_values(rows, plays)
    gains = []
    for _ in range(depth):
        unplayed = rows.unplayed(value)
        gains.append(rows.reward_active - rows.reward_passive + rows.played(value) - unplayed)
        value = rows.reward_passive + unplayed
    passive = tuple(rows.passive_probs[:-1]) if rows.any_always else None
    return LookaheadTables(tuple(rows.observation_probs[:-1]), tuple(gains), passive)


def _terminal_values(rows: _Rows, plays: int) -> Array:
    """Return the terminal value of each row, (N, I, R), relative to the row of (0, 1)."""
    subsidy = _subsidy(rows, plays)

    def induct(_: Any, values: tuple[Array, Array]) -> tuple[Array, Array]:
        return _one_slot_more(rows, subsidy, values[0]), values[0]

    nothing = array_namespace(rows.reward_passive).zeros_like(rows.reward_passive)
    last, before = repeat(_SLOTS + 1, induct, (nothing, nothing))
    value = (last + before) / 2
    return value - value[:, 1:2]


def _one_slot_more(rows: _Rows, subsidy: Array, value: Array) -> Array:
    xp = array_namespace(value)
    left = rows.reward_passive + subsidy + rows.unplayed(value)
    return xp.maximum(left, rows.reward_active + rows.played(value))


def _subsidy(rows: _Rows, plays: int) -> Array:
    """Return R(K + 1) - R(K), (R,), by the gain of the last half of _SLOTS slots.

    R(k) is the least of the sum of gains - (N - k) subsidy over the subsidies tried.
    """
    xp = array_namespace(rows.reward_passive)
    n_arms, width = rows.reward_passive.shape[0], rows.reward_passive.shape[2]
    rewards = [rows.reward_passive, rows.reward_active]
    spread = xp.maximum(*(x.max((0, 1)) for x in rewards)) - xp.minimum(
        *(x.min((0, 1)) for x in rewards)
    )
    spread = xp.where(spread > 0, spread, 1)
    numbers = (plays, min(plays + 1, n_arms))

    def gain(subsidy: Array) -> Array:
        """Return the sum over arms of the average reward from rest, (R,)."""

        def induct(_: Any, state: tuple[Array]) -> tuple[Array]:
            return (_one_slot_more(rows, subsidy, state[0]),)

        half = repeat(_SLOTS // 2, induct, (xp.zeros_like(rows.reward_passive),))
        whole = repeat(_SLOTS // 2, induct, half)
        earned = whole[0] - half[0]
        start = earned[:, 0]
        if rows.any_always:  # at rest it may be in any state
            start = xp.where(
                rows.always[:, 0],
                rows.after_observing(rows.passive_probs[:, :, :1], earned)[:, 0],
                start,
            )
        return start.sum(0) / (_SLOTS // 2)

    def tried(subsidies: Array, best: tuple[Array, Array]) -> tuple[Array, Array]:
        """Return R(K), R(K + 1) and their subsidies, (2, R) each, from subsidies (number, R)."""

        def one(number: Any, best: tuple[Array, Array]) -> tuple[Array, Array]:
            subsidy = subsidies[number]
            total = gain(subsidy)
            costs = xp.stack([total - (n_arms - k) * subsidy for k in numbers])
            lower = costs < best[0]
            return xp.where(lower, costs, best[0]), xp.where(lower, subsidy, best[1])

        result: tuple[Array, Array] = repeat(len(subsidies), one, best)
        return result

    most = xp.full((2, width), np.inf, rows.reward_passive.dtype)
    first = xp.asarray(np.array(_SUBSIDIES, rows.reward_passive.dtype))[:, None] * spread
    coarse = tried(first, (most, xp.zeros_like(most)))
    # Fewer plays cost more: the subsidy of K + 1 is the lower one.
    step = xp.maximum(spread / 4, xp.abs(coarse[1]) / 2)
    low, high = coarse[1][1] - step[1], coarse[1][0] + step[0]
    parts = np.arange(1, _FINER_SUBSIDIES + 1, dtype=rows.reward_passive.dtype)[:, None] / (
        _FINER_SUBSIDIES + 1
    )
    least, _ = tried(low + (high - low) * parts, coarse)
    return least[1] - least[0]


def known_lookahead(
    arms: Arms, plays: int, depth: int, max_age: int
) -> Callable[[InformationStates], LookaheadState]:
    """Return the function from information states (N, X) of known arms to their lookahead state.

    A fully observed arm has its state now as the last observed, and any age. Ages up to max_age are
    distinguished, or all if all arms are channels.
    """
    if arms.are_channels:
        values = channel_values(Dynamics(*(x[:, None] for x in arms.dynamics)), plays)
        return lambda states: channel_state(values, states, depth)
    wraps = known_wraps(arms, max_age)
    tables = fill_lookahead(Model.of(arms), max_age, plays, depth, wraps)
    always = np.array([kind.fully_observed for kind in arms.kinds])
    return lambda states: state_from_tables(tables, states, depth, wraps, always)


def known_wraps(arms: Arms, max_age: int) -> Int[IntArray, " N"]:
    """Return slots by which ages past max_age fall back, 0 where they become never observed."""
    return np.array(
        [0 if arm.observed == "always" else expansion(arm, max_age).wrap for arm in arms]
    )
