"""The server's part of Algorithm 1, lines 4 to 9: merged counts in, a plan for the agents out.

The learner and the planner are those that the engine runs (`rmab.policies.registry`), on one
trial, and the draw of round l for lane a is a function of only the seed, l, a and the counts: so a
served federation and a simulated one with the same seed and observations decide in the same way,
and a server that starts again continues with the same numbers.

Where all arms are channels, tables go up to the age at which indices have settled, at most
CHANNEL_AGES; larger ages fall back by two, since beliefs of channels with negative memory
alternate. Tables of other arms go up to ARM_AGES, and older arms count as never observed. Where all
arms are always observed they have one age.

This module loads JAX; the modules that receive uploads do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rmab.learning.channel.local_draws import summaries_of
from rmab.learning.channel.local_posterior import PosteriorSummaries
from rmab.learning.evidence import Evidence, count_kinds
from rmab.learning.evidence_state import recall_of
from rmab.learning.forgetting import Memory, pick_expert
from rmab.learning.population import fit_population
from rmab.learning.thompson import thompson
from rmab.model.arms import Moves
from rmab.policies.plans import Plan
from rmab.policies.policy import POPULATION
from rmab.policies.registry import named
from rmab.policies.rules.dynamics import LearnedArms
from rmab.privacy.accounting import cell_noise
from rmab.privacy.denoising import LEAST_FOR_SUMMARIES, denoised
from rmab.privacy.noise import MOST_RELEASES
from rmab.privacy.prior_summaries import SummariesMessage
from rmab.protocol.config import Federation
from rmab.protocol.growth import LaneCounts, Merged
from rmab.protocol.round_memory import RoundMemory
from rmab.rng.variates import DRAWS, EXPERTS, Draws, seed_words, stream

__all__ = ["Planned", "Planner"]

CHANNEL_AGES, ARM_AGES = 256, 32
_INDEX_TOLERANCE = 1e-6  # change of an index, against the largest, that no longer counts
_INTERVAL_ENDS = (0.025, 0.975)  # of a credible interval
_ESTIMATE_TRIAL = 1  # the stream of draws for estimates; agents play by trial 0
_CHANNEL_DRAWS, _ARM_DRAWS = 1024, 256  # for an estimate: of arms of two states, of more


_Interval = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]  # mean, low, high


class _Seen(NamedTuple):
    """Evidence of the learners of A lanes, where counts are not simply added up.

    counts: (C, S, S, N, A); visits: (S, N, A); agents: (A,); prior: (2, 2, 1, 1) or None.
    """

    counts: Any
    visits: Any
    agents: Any
    prior: Any


class Planned(NamedTuple):
    """Plan of a round; limit: the slots of its episodes if the policy sets them."""

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
        self._kinds = count_kinds(federation.kinds, self.policy.learner.gaps)
        self._recall = recall_of(self.policy, federation.shares)
        # What learners of a round see, and what it was made from: a round has many lanes.
        self._last: tuple[tuple[Any, ...], _Seen] | None = None
        self._fill = jax.jit(self._filled)
        self._tell = jax.jit(partial(summaries_of, self.policy))
        self._share = jax.jit(self._shared, static_argnames="merged")
        self._advance = jax.jit(self._advanced)
        self._draw = jax.jit(self._drawn, static_argnames="width")

    # ------------------------------------------------------------------------------------- plans

    def plan(
        self,
        merged: Merged,
        number: int,
        lane: int = 0,
        each: LaneCounts | None = None,
        memory: RoundMemory | None = None,
    ) -> Planned:
        """The plan of a round for the agents of a lane; lane 0 is everybody's if plans are shared.

        merged: the evidence of the lane's agents, of all that was uploaded before the round. Where
        a policy forgets, learns its prior or compares agents it is the sum of all; each: the
        counts of the agent of each lane, None where the sum is enough; memory: of earlier rounds.
        """
        rule, merged = self.policy.rule, self._mended(merged)
        standing = rule.standing_plan(self.policy.name, self.federation.options)
        if standing is not None:
            return Planned(standing, None)
        if self._recall is None:
            given = *self._given(merged), None
        else:
            seen = self._seen(merged, each, memory, number, lane)
            place = lane if seen.counts.shape[-1] > 1 else 0
            own = (seen.counts, seen.visits, seen.agents)
            given = *(x[..., place : place + 1] for x in own), seen.prior
        filled, slots = self._fill(*given, jnp.uint32(number), jnp.uint32(lane))
        limit = None if slots is None else int(slots[0])
        tables = jax.tree.map(np.asarray, filled)
        return Planned(rule.plan(tables, self.federation.shape, self._cut), limit)

    def laws(
        self, merged: Merged, number: int, groups: Mapping[int, Merged] | None = None
    ) -> SummariesMessage:
        """Return the posterior summaries for agents that draw for themselves.

        merged: as of its plan; groups: the sum of each, where there are several.
        """
        sums = {"all": self._mended(merged, least=LEAST_FOR_SUMMARIES)}
        for group, each in (groups or {}).items():
            sums[f"group-{group}"] = self._mended(each, 1, least=LEAST_FOR_SUMMARIES)
        # One after another: another number of groups is no other program.
        found = [
            self._tell(np.asarray(each.counts[: self._kinds], np.float32)[..., None])
            for each in sums.values()
        ]
        prior = self.policy.learner.prior
        assert not isinstance(prior, str)
        return SummariesMessage(
            federation=self.federation.name,
            round=number,
            index=self.policy.rule.name,
            gaps=self.policy.learner.gaps,
            prior=prior if isinstance(prior, tuple) else (float(prior), float(prior)),
            doubt=float(self.federation.doubt),
            names=tuple(sums),
            summaries=PosteriorSummaries(
                *(np.concatenate(x, dtype=np.float64) for x in zip(*found, strict=True))
            ),
        )

    def _mended(self, merged: Merged, groups: int | None = None, least: float = 1.0) -> Merged:
        """Sums with noise as counts, by the noise that they have after all releases: before, they
        have a little less. groups: of how many it is the sum; None: of all."""
        budget, privacy = self.federation.budget, self.federation.privacy
        if budget is None or privacy is None:
            return merged
        s = cell_noise(budget, self.federation.plays, MOST_RELEASES) * math.sqrt(
            groups or privacy.groups
        )
        return merged._replace(counts=denoised(merged.counts, s, least=least))

    def _given(self, merged: Merged) -> tuple[Any, ...]:
        counts = np.asarray(self._steps(merged.counts)[: self._kinds], np.float32)[..., None]
        visits = np.asarray(merged.visits, np.float32)[..., None]
        return counts, visits, np.float32(merged.agents or 1)

    def _steps(self, counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Counts (..., C, S, S, N) as learners read them: of an arm that is always observed and
        moves alike, all steps together."""
        alike = [
            n
            for n, kind in enumerate(self.federation.kinds)
            if kind.fully_observed and not kind.action_dependent
        ]
        if not alike:
            return counts
        counts = counts.copy()
        first, second = counts[..., 0, :, :, :], counts[..., 1, :, :, :]
        first[..., alike] += second[..., alike]
        second[..., alike] = 0
        return counts

    # ---------------------------------------------------------- counts that are not added up

    def remember(
        self, memory: RoundMemory | None, before: LaneCounts | None, now: LaneCounts, length: int
    ) -> RoundMemory:
        """Return the memory when a round closes, from which the next one is planned.

        memory: that of when it opened, None before the first; before, now: agents' counts then and
        now; length: the slots of its episodes. Of an agent whose counts were
        taken out meanwhile, only its counts since then are left.
        """
        assert self._recall is not None
        size, n_lanes = _padded(len(now.counts)), len(now.counts)
        counts, visits = self._lanes(now, size)
        kept = self._recall.start(counts.shape[:-1], visits.shape[:-1], size, 1)
        assert kept is not None
        if memory is not None and memory.log_weights.shape == kept.log_weights.shape[:1]:
            kept = Memory(*(_put(x, old) for x, old in zip(kept, memory, strict=True)))
            if before is not None:
                was = self._lanes(before, size)
                less = (counts < was[0]).any((0, 1, 2, 3)) | (visits < was[1]).any((0, 1))
                there: npt.NDArray[Any] = np.asarray(~less, np.float32)  # (L, 1)
                counts, visits = counts - was[0] * there, visits - was[1] * there
                kept = kept._replace(
                    counts=np.asarray(kept.counts) * there[..., None],
                    visits=np.asarray(kept.visits) * there[..., None],
                )
        else:
            length = 0
        lasted = np.array([length], np.int32)
        found = self._advance(kept, counts, visits, lasted, self._weights(now, size))
        none = np.zeros((0,), np.float32)
        whole = [none if x is None else np.asarray(x)[..., 0] for x in found]
        for place, lanes in ((0, whole[0]), (1, whole[1]), (3, whole[3])):
            if lanes.ndim > 1 and lanes.shape[-2] > 1:
                whole[place] = lanes[..., :n_lanes, :]
        return RoundMemory(*whole)

    def _lanes(self, each: LaneCounts, size: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return pairs (C, S, S, N, L, 1) and visits (S, N, L, 1) as learners read them, L = size.

        Agents that have given nothing have zeros.
        """
        counts = self._steps(each.counts)[:, : self._kinds]
        return _by_lane(counts, size), _by_lane(each.visits, size)

    @staticmethod
    def _weights(each: LaneCounts, size: int) -> npt.NDArray[np.float32]:
        weights = np.ones(size, np.float32)
        if each.weights is not None:
            weights[: len(each.weights)] = each.weights
        return weights

    def _advanced(
        self, kept: Memory, counts: Any, visits: Any, length: Any, weights: Any
    ) -> Memory:
        assert self._recall is not None
        return self._recall.advanced(kept, counts, visits, length, weights)[0]

    def _seen(
        self,
        merged: Merged,
        each: LaneCounts | None,
        memory: RoundMemory | None,
        number: int,
        lane: int,
    ) -> _Seen:
        """Return the evidence of learners in a round, of all lanes up to this one and more."""
        assert self._recall is not None
        made_from = (number, merged.counts, each, memory)
        if self._last is not None:
            known, last = self._last
            alike = all(a is b for a, b in zip(known[1:], made_from[1:], strict=True))
            if known[0] == number and alike and (lane < last.counts.shape[-1] or each is None):
                return last
        whole = each is None
        if each is None:  # the sum is enough, or all there is
            each = LaneCounts(merged.counts[None], merged.visits[None])
        size = _padded(max(len(each.counts), lane + 1)) if not whole else 1
        counts, visits = self._lanes(each, size)
        given = (visits.sum((0, 1)) > 0).astype(np.float32)  # (L, 1)
        if self._recall.forgetting is not None:
            if memory is None:
                memory = self.remember(None, None, each, 0)
            counts, visits = self._of_expert(memory, number, size)
        weights = self._weights(each, size)
        seen: _Seen = self._share(counts, visits, given, weights, merged=whole)
        if whole:
            seen = seen._replace(agents=np.array([merged.agents or 1], np.float32))
        self._last = (made_from, seen)
        return seen

    def _of_expert(
        self, memory: RoundMemory, number: int, size: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Pairs and visits by the expert that plays the round, as `_lanes` has them."""
        key = stream(
            seed_words(self.federation.seed), jnp.zeros(1, jnp.uint32), jnp.uint32(0), EXPERTS
        )
        chance = Draws(key, jnp.array([number])).uniform()
        expert = int(pick_expert(jnp.asarray(memory.log_weights)[:, None], chance)[0])
        return _wide(memory.counts[..., expert], size), _wide(memory.visits[..., expert], size)

    def _shared(self, counts: Any, visits: Any, given: Any, weights: Any, *, merged: bool) -> _Seen:
        """given: (L, 1), 1 for who has given anything."""
        recall = self._recall
        assert recall is not None
        found = recall.learnt(counts, visits, weights, merged=merged)
        own = weights if found.weights is None else found.weights

        def combined(numbers: Any) -> Any:
            return numbers if merged else recall.aggregation.combine(numbers, own)

        prior = None if found.prior is None else found.prior[:, :, :, 0]
        agents = jnp.maximum(combined(given)[..., 0], 1)
        return _Seen(found.pairs[..., 0], combined(visits)[..., 0], agents, prior)

    def _evidence(
        self, counts: Any, visits: Any, agents: Any, episode: Any, prior: Any = None
    ) -> Evidence:
        return Evidence(
            counts=counts,
            visits=visits,
            episode=episode,
            rewards=self._pays[:, :, None],
            idle_rewards=self._idle_pays[:, :, None],
            plays=jnp.int32(self.federation.plays),
            agents=agents,
            kinds=self.federation.kinds,
            prior=prior,
        )

    def _filled(
        self, counts: Any, visits: Any, agents: Any, prior: Any, number: Any, lane: Any
    ) -> Any:
        """Return the arrays of the plan, (N, ...), and the policy's own length, (1,)."""
        federation, policy = self.federation, self.policy
        episode = number[None]
        key = stream(seed_words(federation.seed), jnp.uint32(0), lane, DRAWS)
        assert policy.learner.function is not None
        evidence = self._evidence(counts, visits, agents, episode, prior)
        output = policy.learner.function(evidence, Draws(key, episode))
        slots = policy.episodes.own_slots(evidence, output)
        kinds, channels = federation.kinds, federation.channels
        learnt = LearnedArms(output, self._idle_pays, self._pays, kinds, channels)
        tables = policy.rule.fill(policy.name, learnt, federation.plays, self._max_age)
        return jax.tree.map(lambda table: table[..., 0], tables), slots

    @property
    def _max_age(self) -> int:
        if self.federation.channels:
            return CHANNEL_AGES
        return ARM_AGES if any(not kind.fully_observed for kind in self.federation.kinds) else 1

    def _cut(self, filled: Any) -> tuple[Any, int, int]:
        """Return finite tables up to the age that is sent, that age, and their wrap."""
        tables = jax.tree.map(_finite, filled)
        max_age, wrap = self._max_age, 0
        if self.federation.channels:
            leaves = jax.tree.leaves(tables)
            max_age, wrap = max(_settled_age(table) for table in leaves), 2
            keep = np.concatenate(
                [[0], *(1 + s * CHANNEL_AGES + np.arange(max_age) for s in (0, 1))]
            )
            tables = jax.tree.map(lambda table: table[:, keep], tables)
        return tables, max_age, wrap

    # --------------------------------------------------------------------------------- estimates

    def estimates(self, merged: Merged) -> list[dict[str, Any]]:
        """Estimate each arm: means and 95 % credible intervals of its probabilities.

        {"p01": x, "p11": x} for two states, {"transitions": [[x, ...], ...]} for more, where x is
        {"mean", "low", "high"}. Of an action-dependent arm these are for a play, and the same for a
        slot without one are under "passive". From steps that were observed they are exact; where
        some were not, they are of draws from the posterior.
        """
        kinds = self.federation.kinds
        hidden = any(kind.action_dependent and not kind.fully_observed for kind in kinds)
        by_draws = self.policy.learner.gaps > 0 or hidden
        merged = self._mended(merged)
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
        steps = self._steps(merged.counts)
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
        prior, learnt = self.federation.settings.get("prior", 1.0), None
        if prior == POPULATION:
            law = fit_population(counts[..., None, :1], prior, compares=False)
            learnt, prior = jnp.broadcast_to(law.prior[:, :, None], (2, 2, 1, width)), 1.0
        prior = tuple(prior) if isinstance(prior, list) else prior
        evidence = self._evidence(counts, visits, agents, episode, learnt)
        gaps = self.policy.learner.gaps
        drawn = thompson(evidence, Draws(key, episode), prior=prior, gaps=gaps)
        apart = any(kind.action_dependent for kind in self.federation.kinds)
        return drawn if apart else (drawn.passive,)


def _padded(lanes: int) -> int:
    """So many lanes or a few more: another number of them is another compilation."""
    return 1 << (lanes - 1).bit_length()


def _wide(numbers: npt.NDArray[Any], size: int) -> npt.NDArray[np.float32]:
    """Return numbers (..., L) as (..., size, 1): of more lanes, and one trial."""
    whole = np.zeros((*numbers.shape[:-1], size, 1), np.float32)
    whole[..., : numbers.shape[-1], 0] = numbers
    return whole


def _by_lane(numbers: npt.NDArray[Any], size: int) -> npt.NDArray[np.float32]:
    """Numbers (L, ...) of lanes as `_wide` has them."""
    return _wide(np.moveaxis(numbers, 0, -1), size)


def _put(fresh: Any, old: npt.NDArray[np.float32]) -> Any:
    """Put memory (..., L, B) into arrays (..., size, B, 1) of as many lanes or more; weights have
    no lanes."""
    if fresh is None:
        return None
    whole = np.array(fresh)
    if whole.ndim == 2:
        whole[:, 0] = old
    else:
        whole[..., : old.shape[-2], :, 0] = old
    return whole


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
