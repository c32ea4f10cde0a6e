"""The server's part of Algorithm 1, lines 4 to 9: merged counts in, a plan for the agents out.

The learner and the planner are those that the engine runs (`rmab.policies.registry`), on one
trial, and the draw of round l for lane a is a function of the seed, l, a and the counts alone: so a
served federation and a simulated one with the same seed and observations decide in the same way,
and a server that starts again continues with the same numbers.

Where all arms are channels, tables go up to the age at which indices have settled, at most
CHANNEL_AGES; larger ages fall back by two, since beliefs of channels with negative memory
alternate. Tables of other arms go up to ARM_AGES, and older arms count as never observed. Where all
arms are always observed they have one age.

This module loads JAX; the rest of what a server needs to receive uploads does not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rmab.federation.config import Federation
from rmab.federation.uploads import Merged
from rmab.learning.learners import Evidence, count_kinds, thompson
from rmab.model.arms import Moves
from rmab.policies.filling import Learnt, fill
from rmab.policies.plans import IndexPlan, LookaheadPlan, OwnPlan, Plan, TurnsPlan
from rmab.policies.policy import LookaheadRule, OwnIndexRule, TurnsRule
from rmab.policies.registry import named
from rmab.random import DRAWS, Draws, seed_words, stream

__all__ = ["Planned", "Planner"]

CHANNEL_AGES, ARM_AGES = 256, 32
_INDEX_TOLERANCE = 1e-6  # change of an index, against the largest, that no longer counts
_INTERVAL_ENDS = (0.025, 0.975)  # of a credible interval
_ESTIMATE_TRIAL = 1  # the stream of draws for estimates; agents play by trial 0
_CHANNEL_DRAWS, _ARM_DRAWS = 1024, 256  # for an estimate: of arms of two states, of more


_Interval = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]  # mean, low, high


class Planned(NamedTuple):
    """What a round is played by; limit: the slots of its episodes if the policy sets them."""

    plan: Plan
    limit: int | None


class Planner:
    """Plans and estimates of one federation."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.policy = named(federation.policy, federation.horizon, federation.options)
        self._states = max(federation.shape.states)
        self._pays = jnp.asarray(federation.rewards, jnp.float32)
        self._idle_pays = jnp.asarray(federation.idle_rewards, jnp.float32)
        self._kinds = count_kinds(federation.kinds, self.policy.gaps)
        self._fill = jax.jit(self._filled)
        self._draw = jax.jit(self._drawn, static_argnames="width")

    # ------------------------------------------------------------------------------------- plans

    def plan(self, merged: Merged, number: int, lane: int = 0) -> Planned:
        """The plan of a round for the agents of a lane; lane 0 is everybody's if plans are shared.

        merged: the evidence of the lane's agents, of all that was uploaded before the round.
        """
        rule = self.policy.rule
        if isinstance(rule, OwnIndexRule):  # agents learn by themselves
            return Planned(OwnPlan(self.policy.name, dict(self.federation.options)), None)
        found, filled = self._fill(*self._given(merged), jnp.uint32(number), jnp.uint32(lane))
        if isinstance(rule, TurnsRule):
            limit = int(rule.lengths(found[1], jnp.int32(self.federation.plays))[0])
            return Planned(TurnsPlan(np.asarray(found[1][:, 0]) > 0), limit)
        return Planned(self._plan_of(jax.tree.map(np.asarray, filled)), None)

    def _given(self, merged: Merged) -> tuple[Any, ...]:
        counts = np.asarray(self._steps(merged)[: self._kinds], np.float32)[..., None]
        visits = np.asarray(merged.visits, np.float32)[..., None]
        return counts, visits, np.float32(merged.agents or 1)

    def _steps(self, merged: Merged) -> npt.NDArray[Any]:
        """The counts as learners read them: of an arm that is always observed and moves alike, all
        steps together."""
        alike = [
            n
            for n, kind in enumerate(self.federation.kinds)
            if kind.fully_observed and not kind.action_dependent
        ]
        if not alike:
            return merged.counts
        counts = merged.counts.copy()
        counts[0][..., alike] += counts[1][..., alike]
        counts[1][..., alike] = 0
        return counts

    def _evidence(self, counts: Any, visits: Any, agents: Any, episode: Any) -> Evidence:
        return Evidence(
            counts=counts,
            visits=visits,
            episode=episode,
            rewards=self._pays[:, :, None],
            idle_rewards=self._idle_pays[:, :, None],
            plays=jnp.int32(self.federation.plays),
            agents=agents,
            kinds=self.federation.kinds,
        )

    def _filled(self, counts: Any, visits: Any, agents: Any, number: Any, lane: Any) -> Any:
        """The learner's dynamics, and tables (N, I) of them."""
        federation, policy = self.federation, self.policy
        episode = number[None]
        key = stream(seed_words(federation.seed), jnp.uint32(0), lane, DRAWS)
        assert policy.learner is not None
        found = policy.learner(self._evidence(counts, visits, agents, episode), Draws(key, episode))
        if isinstance(policy.rule, TurnsRule):
            return found, None
        learnt = Learnt(found, self._idle_pays, self._pays, federation.kinds, federation.channels)
        tables = fill(policy, learnt, federation.plays, self._max_age)
        return found, jax.tree.map(lambda table: table[..., 0], tables)

    @property
    def _max_age(self) -> int:
        if self.federation.channels:
            return CHANNEL_AGES
        return ARM_AGES if any(not kind.fully_observed for kind in self.federation.kinds) else 1

    def _plan_of(self, filled: Any) -> Plan:
        tables = jax.tree.map(_finite, filled)
        max_age, wrap = self._max_age, 0
        if self.federation.channels:
            leaves = jax.tree.leaves(tables)
            max_age, wrap = max(_settled_age(table) for table in leaves), 2
            keep = np.concatenate(
                [[0], *(1 + s * CHANNEL_AGES + np.arange(max_age) for s in (0, 1))]
            )
            tables = jax.tree.map(lambda table: table[:, keep], tables)
        if isinstance(self.policy.rule, LookaheadRule):
            always = self.federation.shape.always
            return LookaheadPlan(self.policy.rule.depth, max_age, wrap, tables, always)
        return IndexPlan(max_age, wrap, tables, self.federation.shape.states)

    # --------------------------------------------------------------------------------- estimates

    def estimates(self, merged: Merged) -> list[dict[str, Any]]:
        """What is known of each arm: means and 95 % credible intervals of its probabilities.

        {"p01": x, "p11": x} for two states, {"transitions": [[x, ...], ...]} for more, where x is
        {"mean", "low", "high"}. Of an action-dependent arm these are for a play, and the same for a
        slot without one are under "passive". From steps that were observed they are exact; where
        some were not, they are of draws from the posterior.
        """
        kinds = self.federation.kinds
        hidden = any(kind.action_dependent and not kind.fully_observed for kind in kinds)
        by_draws = self.policy.gaps > 0 or hidden
        found = self._of_draws(merged) if by_draws else self._of_counts(merged)
        rounded = [[np.round(x.astype(np.float64), 6) for x in of_action] for of_action in found]

        def entry(action: int, s: int, to: int, n: int) -> dict[str, float]:
            names = ("mean", "low", "high")
            return {
                name: float(x[s, to, n]) for name, x in zip(names, rounded[action], strict=True)
            }

        def matrix(action: int, n: int) -> dict[str, Any]:
            S = kinds[n].states
            if S == 2:
                return {"p01": entry(action, 0, 1, n), "p11": entry(action, 1, 1, n)}
            rows = [[entry(action, s, to, n) for to in range(S)] for s in range(S)]
            return {"transitions": rows}

        return [
            matrix(1, n) | ({"passive": matrix(0, n)} if kind.action_dependent else {})
            for n, kind in enumerate(kinds)
        ]

    def _of_counts(self, merged: Merged) -> tuple[_Interval, _Interval]:
        """Means and intervals (S, S, N), without a play and with one, where all steps were
        observed."""
        steps = self._steps(merged)
        played = self._of_steps(steps[0])
        apart = any(kind.action_dependent for kind in self.federation.kinds)
        return self._of_steps(steps[1]) if apart else played, played

    def _of_steps(self, steps: npt.NDArray[Any]) -> _Interval:
        """Means and intervals (S, S, N) of rows that are Dirichlet; their entries are Beta."""
        from scipy.special import betaincinv

        prior = self.federation.options.get("prior", 1.0)
        S, sizes = self._states, np.array(self.federation.shape.states)
        before = np.full(S, prior) if isinstance(prior, int | float) else np.array(prior[::-1])
        has = np.arange(S)[:, None] < sizes  # (S, N)
        weights = np.where(has[None], before[None, :, None] + steps, 0.0)
        rest = weights.sum(1, keepdims=True) - weights
        mean = weights / (weights + rest)
        # What an arm does not have gets any distribution; it is never read.
        one, other = np.where(weights > 0, weights, 1), np.where(rest > 0, rest, 1)
        return mean, *(betaincinv(one, other, end) for end in _INTERVAL_ENDS)

    def _of_draws(self, merged: Merged) -> tuple[_Interval, _Interval]:
        width = _CHANNEL_DRAWS if self._states == 2 else _ARM_DRAWS
        found = []
        for drawn in map(np.asarray, self._draw(*self._given(merged), width=width)):
            ends = np.quantile(drawn, _INTERVAL_ENDS, axis=-1)
            found.append((drawn.mean(-1), ends[0], ends[1]))
        return found[0], found[-1]

    def _drawn(self, counts: Any, visits: Any, agents: Any, *, width: int) -> Moves | tuple[Any]:
        """Draws (S, S, N, width) from the posterior, of arms that all move alike one for both."""
        episode = jnp.arange(width, dtype=jnp.uint32)
        key = stream(
            seed_words(self.federation.seed), jnp.uint32(_ESTIMATE_TRIAL), jnp.uint32(0), DRAWS
        )
        counts, visits = (jnp.broadcast_to(x, (*x.shape[:-1], width)) for x in (counts, visits))
        evidence = self._evidence(counts, visits, agents, episode)
        prior = self.federation.options.get("prior", 1.0)
        prior = tuple(prior) if isinstance(prior, list) else prior
        drawn = thompson(evidence, Draws(key, episode), prior=prior, gaps=self.policy.gaps)
        apart = any(kind.action_dependent for kind in self.federation.kinds)
        return drawn if apart else (drawn.passive,)


def _finite(table: Any) -> npt.NDArray[np.float32]:
    most = float(np.finfo(np.float32).max)
    found: npt.NDArray[np.float32] = np.asarray(table, np.float32)
    return np.nan_to_num(found, nan=-most, posinf=most, neginf=-most)


def _settled_age(table: npt.NDArray[np.float32]) -> int:
    """The least even age of a table (N, I) of channels from which on it repeats every two ages."""
    by_age = table[:, 1:].reshape(len(table), 2, CHANNEL_AGES // 2, 2).astype(np.float64)
    off = np.abs(by_age - by_age[:, :, -1:]).max((0, 1, 3))  # by pairs of ages
    moving = np.flatnonzero(off > _INDEX_TOLERANCE * max(float(np.abs(table).max()), 1e-30))
    pairs = int(moving[-1]) + 2 if moving.size else 1
    return 2 * min(pairs, CHANNEL_AGES // 2)
