"""What each arm is worth by itself at the end of a lookahead, and what plays add until then.

Terminal values. Let every slot in which an arm is left alone pay a subsidy lambda, eq. (10): the
arms part, and each has relative values of its own. They end the lookahead of
`rmab.policies.lookahead.choose`. With R(k) the best average reward of k plays a slot in the
long run, the bound of `rmab.planning.exact.bounds`, the subsidy is

    lambda = R(K + 1) - R(K),

what one more play would be worth. It is at most the Lagrangian subsidy, the slope of R at K: that
is the price of a play that may be put off until it is worth most, which K plays in every slot may
not. Loss against the optimum at depth 2, in %, with terminal values of 0, at the Lagrangian subsidy
and at this one (exact, known dynamics):

    arms                                       K   Whittle   zero    slope   this
    the paper's                                1    .647     .001    .361    .001
                                               2    .239     .072    .084    .043
                                               3    .140     .019    .005    .000
    four arms on which Whittle is poor         1   4.358     .040    .238    .040
    89 sets of 3 or 4 random channels, mean  1-3    .289     .111    .115    .072
                                     worst         3.882    1.380   4.541   1.139

Subsidies in between did as well on the random sets; docs/lookahead.md says which were tried. With a
terminal value of 0 plays that pay off only after the lookahead are never made.

Channels have them in closed form, `rmab.planning.lookahead.channel`.

*Other arms* have the mean of what SLOTS and SLOTS + 1 more slots are worth, by backward induction
over the rows of a table (`rmab.planning.tables`); past its highest age an arm is never seen again.

Left alone for d slots an arm is worth u_d, u_0 = V; the gain of a play with d slots left is a_d:

    a_d(x) = r_1 - r_0 + sum_s c(x, s) u_(d-1)(s, 1) - E[u_(d-1)(x') | left alone].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.linalg import Array, array_namespace, propagate, repeat
from rmab.markov import limiting_distributions
from rmab.model.arms import Arms, Dynamics
from rmab.model.beliefs import InformationStates, after, row_of
from rmab.model.information import expansion
from rmab.planning.lookahead.channel import channel_outlook, channel_view
from rmab.planning.tables import Model
from rmab.policies.lookahead import Outlook, View, table_view

__all__ = [
    "fill_outlook",
    "known_view",
    "known_wraps",
    "terminal_values",
]

IntArray = npt.NDArray[np.int64]

SLOTS = 24  # after which the values of arms that are not channels are taken
# Subsidies tried first, in units of the largest difference of an arm's rewards.
SUBSIDIES = (-8.0, -4.0, -2.0, -1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
FINER = 8  # subsidies tried next, between those that were best


class _Rows(NamedTuple):
    """The arms over their rows: how they move (S, N, I, trials), what they pay (N, I, trials).

    drifts are read for arms always seen alone, rows of other arms are as if they were too.
    """

    shows: Array
    drifts: Array
    idle: Array
    pays: Array
    always: npt.NDArray[np.bool_]  # (N, 1, 1)
    wraps: IntArray  # (N,)

    def played(self, value: Array) -> Array:
        """E of values (N, I, trials) after a play."""
        return self._seen(self.shows, value)

    def alone(self, value: Array) -> Array:
        """E of values (N, I, trials) after a slot alone."""
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
        return (
            xp.where(self.always, self._seen(self.drifts, value), aged) if self.any_always else aged
        )

    @property
    def any_always(self) -> bool:
        return bool(self.always.any())

    def _by_state(self, value: Array) -> Array:
        """(N, I, trials) as (N, S, J, trials), without never seen."""
        S = self.shows.shape[0]
        return value[:, 1:].reshape(value.shape[0], S, -1, value.shape[2])

    def _seen(self, chances: Array, value: Array) -> Array:
        looked = self._by_state(value)[:, :, 0]  # (N, S, trials)
        return sum(chances[s] * looked[:, s, None] for s in range(chances.shape[0]))


def _rows(model: Model, max_age: int, wraps: IntArray | None) -> _Rows:
    wraps = np.zeros(len(model.kinds), np.int64) if wraps is None else wraps
    passive, active = model.moves
    xp: Any = array_namespace(passive, active)
    S, _, N, width = passive.shape
    flat = [m.reshape(S, S, -1) for m in (passive, active)]
    ages = propagate(flat[1], flat[0], max_age)  # (J, next, seen, N trials)
    seen = xp.moveaxis(ages, 0, 2).reshape(S, S * max_age, N, width)
    # States that an arm does not have must not count as places to rest.
    rest = xp.zeros((S, N, width), passive.dtype)
    for states in {kind.states for kind in model.kinds}:
        which = np.flatnonzero([kind.states == states for kind in model.kinds])
        law = limiting_distributions(passive[:states, :states][:, :, which])
        padded = xp.concatenate([law, xp.zeros((S - states, *law.shape[1:]), law.dtype)])
        place = (np.arange(N)[:, None] == which).astype(passive.dtype)  # (N, members)
        rest = rest + (place[None, :, :, None] * padded[:, None]).sum(2)
    shows = xp.moveaxis(xp.concatenate([rest[:, None], seen], 1), 2, 1)  # (S, N, I, trials)
    drift = xp.repeat(xp.moveaxis(passive, 0, 2), max_age, 2)  # (next, N, S J, trials)
    drifts = xp.concatenate([rest[:, :, None], drift], 2)
    always = np.array([kind.fully_observed for kind in model.kinds])[:, None, None]

    def paid(reward: Array) -> Array:
        """(S, N, 1) to (N, I, trials)."""
        expected = (shows * reward[:, :, None]).sum(0)
        if not always.any():
            return expected
        by_row = xp.repeat(xp.moveaxis(reward, 0, 1), max_age, 1)  # (N, S J, 1)
        own = xp.concatenate([(rest * reward).sum(0)[:, None], by_row + 0 * expected[:, 1:]], 1)
        return xp.where(always, own, expected)

    return _Rows(
        shows, drifts, paid(model.reward_passive), paid(model.reward_active), always, wraps
    )


def fill_outlook(
    model: Model, max_age: int, plays: int, depth: int, wraps: IntArray | None = None
) -> Outlook:
    """The tables of arms of any kind, trials last.

    wraps: (N,), how far ages past max_age fall back; 0, or no wraps: they become never seen.
    """
    rows = _rows(model, max_age, wraps)
    value = _terminal(rows, plays)
    gains = []
    for _ in range(depth):
        alone = rows.alone(value)
        gains.append(rows.pays - rows.idle + rows.played(value) - alone)
        value = rows.idle + alone
    drifts = tuple(rows.drifts[:-1]) if rows.any_always else None
    return Outlook(tuple(rows.shows[:-1]), tuple(gains), drifts)


def terminal_values(model: Model, max_age: int, plays: int, wraps: IntArray | None = None) -> Array:
    """What each row is worth at the end, (N, I, trials), against the row of (0, 1)."""
    return _terminal(_rows(model, max_age, wraps), plays)


def _terminal(rows: _Rows, plays: int) -> Array:
    subsidy = _subsidy(rows, plays)

    def induct(_: Any, values: tuple[Array, Array]) -> tuple[Array, Array]:
        return _one_slot_more(rows, subsidy, values[0]), values[0]

    nothing = array_namespace(rows.idle).zeros_like(rows.idle)
    last, before = repeat(SLOTS + 1, induct, (nothing, nothing))
    value = (last + before) / 2
    return value - value[:, 1:2]


def _one_slot_more(rows: _Rows, subsidy: Array, value: Array) -> Array:
    xp = array_namespace(value)
    left = rows.idle + subsidy + rows.alone(value)
    return xp.maximum(left, rows.pays + rows.played(value))


def _subsidy(rows: _Rows, plays: int) -> Array:
    """R(K + 1) - R(K), (trials,), with what SLOTS slots bring after as many others.

    R(k) is the least of the sum of gains - (N - k) subsidy over the subsidies tried.
    """
    xp = array_namespace(rows.idle)
    n_arms, width = rows.idle.shape[0], rows.idle.shape[2]
    rewards = [rows.idle, rows.pays]
    spread = xp.maximum(*(x.max((0, 1)) for x in rewards)) - xp.minimum(
        *(x.min((0, 1)) for x in rewards)
    )
    spread = xp.where(spread > 0, spread, 1)
    numbers = (plays, min(plays + 1, n_arms))

    def gain(subsidy: Array) -> Array:
        """The sum over arms of the average reward, (trials,), from rest."""

        def induct(_: Any, state: tuple[Array]) -> tuple[Array]:
            return (_one_slot_more(rows, subsidy, state[0]),)

        half = repeat(SLOTS // 2, induct, (xp.zeros_like(rows.idle),))
        whole = repeat(SLOTS // 2, induct, half)
        earned = whole[0] - half[0]
        start = earned[:, 0]
        if rows.any_always:  # at rest it may be in any state
            start = xp.where(
                rows.always[:, 0], rows._seen(rows.drifts[:, :, :1], earned)[:, 0], start
            )
        return start.sum(0) / (SLOTS // 2)

    def tried(subsidies: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        """R(K), R(K + 1) and where they are, (2, trials) each, from subsidies (number, trials)."""

        def one(number: Any, found: tuple[Array, Array]) -> tuple[Array, Array]:
            subsidy = subsidies[number]
            total = gain(subsidy)
            costs = xp.stack([total - (n_arms - k) * subsidy for k in numbers])
            lower = costs < found[0]
            return xp.where(lower, costs, found[0]), xp.where(lower, subsidy, found[1])

        best: tuple[Array, Array] = repeat(len(subsidies), one, found)
        return best

    most = xp.full((2, width), np.inf, rows.idle.dtype)
    first = xp.asarray(np.array(SUBSIDIES, rows.idle.dtype))[:, None] * spread
    found = tried(first, (most, xp.zeros_like(most)))
    # Fewer plays cost more: the subsidy of K + 1 is the lower one.
    step = xp.maximum(spread / 4, xp.abs(found[1]) / 2)
    low, high = found[1][1] - step[1], found[1][0] + step[0]
    parts = np.arange(1, FINER + 1, dtype=rows.idle.dtype)[:, None] / (FINER + 1)
    least, _ = tried(low + (high - low) * parts, found)
    return least[1] - least[0]


def known_view(
    arms: Arms, plays: int, depth: int, max_age: int
) -> Callable[[InformationStates], View]:
    """For known arms: from information states (N, X) to what is offered there.

    An arm always seen has its state as the last seen and any age; max_age: ages that are told apart
    unless all arms are channels.
    """
    if arms.are_channels:
        channels = channel_outlook(Dynamics(*(x[:, None] for x in arms.dynamics)), plays)
        return lambda states: channel_view(channels, states, depth)
    wraps = known_wraps(arms, max_age)
    outlook = fill_outlook(Model.of(arms), max_age, plays, depth, wraps)
    always = np.array([kind.fully_observed for kind in arms.kinds])

    def view(states: InformationStates) -> View:
        age = np.where(always[:, None], 1, states.age)

        def read(table: Array, ahead: int) -> Array:
            there = after(InformationStates(states.last_seen, age), ahead)
            row = row_of(there, max_age, wraps[:, None])
            return np.take_along_axis(table[:, :, 0], row, 1)

        return table_view(outlook, always, depth, read)

    return view


def known_wraps(arms: Arms, max_age: int) -> IntArray:
    """(N,) how far ages past max_age fall back; 0: they become never seen."""
    return np.array(
        [0 if arm.observed == "always" else expansion(arm, max_age).wrap for arm in arms]
    )
