"""Learners: merged counts in, dynamics out, eqs. (16), (17) and (36) to (38).

A learner is a function

    learner(evidence, draws) -> Moves, or for channels a pair (p01, p11)

of arrays with arms on the second-to-last and trials on the last axis. `evidence` is what the
server has after merging, `draws` gives random variates. Nothing else is remembered between
episodes: the counts are the whole state.

    thompson   one draw from the posterior of every row (FedTSWI, FedTS-myopic)
    ucb        posterior mean, with a confidence width moved to the best state (FedUCB-WI, -myopic)
    survivors  Fed1-UCB's elimination: 1 for arms still in play, 0 for those dropped

What is counted, and what it tells. counts[c, s, s', n] are pairs of successive looks at arm n, at
state s and then at s':

- c = 0: the looks are one slot apart and the arm was played at the first. They move by P_1, whose
  rows have Dirichlet posteriors: Beta where there are two states. For an arm known to move alike,
  played or not, that is all there is to learn. If it is always seen, every slot gives such a pair.
- an arm always seen, c = 1: one slot apart, left alone at the first. They move by P_0, learnt in
  the same way.
- an arm seen only when played, c > 0: played, then left alone for c slots, seen in the next. They
  move by P_1 P_0^c. What happened in between was not seen; `rmab.learning.paths` fills it in.

With gaps = G the learners use all pairs of looks at arms that move alike and are seen only when
played: counts[c] are the pairs c + 1 slots apart up to G, and counts[G] those further apart, which
tell the stationary law of the arm. The likelihood of a gap g is P^g, and the posterior is no longer
a product of Dirichlets: `channel_posterior` draws from it for two states, `matrix_posterior` for
more. An agent's first look at an arm is taken as given: it completes no pair.

Arms that do not move alike and are seen only when played are learnt from what follows waits alone.
Waits of one slot tell P_1 P_0: where P_1 can be inverted that determines P_0. Where it cannot (a
restart: P_1 has equal rows) all waits tell the laws of one path, P_1 P_0, P_1 P_0^2, ..., and rows
of P_0 that this path does not tell apart stay as the prior has them; so do all rows while nobody
waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

from rmab.learning.channel_posterior import draw_channels, mean_channels
from rmab.learning.matrix_posterior import draw_matrices, mean_matrices
from rmab.learning.paths import fill_in
from rmab.model.arms import ArmKind, Moves
from rmab.random import Draws

__all__ = ["WAITS", "Evidence", "Prior", "count_kinds", "survivors", "thompson", "ucb"]

Prior = float | tuple[float, float]  # Dirichlet(a, ..., a), or for two states Beta(a, b)
WAITS = 8  # c is counted below this for arms seen only when played that do not move alike


class Evidence(NamedTuple):
    """What the server knows at the start of an episode, merged over agents.

    counts: (C, S, S, N, trials), pairs of looks, see the module; visits: (S, N, trials), plays by
    state seen; episode: (trials,), counted from 1; rewards, idle_rewards: (S, N, 1) what a play
    pays and what no play does; plays: how many arms an agent plays in a slot; agents: how many
    there are, each counted by its weight; kinds: (N,) what is known of each arm.
    """

    counts: Array
    visits: Array
    episode: Array
    rewards: Array
    idle_rewards: Array
    plays: Array
    agents: float
    kinds: tuple[ArmKind, ...]

    @property
    def transitions(self) -> Array:
        """(S, S, N, trials): looks at an arm in two consecutive slots, by state and next state."""
        return self.counts[0]

    @property
    def reward(self) -> Array:
        """(N, 1): what a play of each channel pays in its good state."""
        return self.rewards[1]


def count_kinds(kinds: tuple[ArmKind, ...], gaps: int = 0) -> int:
    """C, how many kinds of pairs of looks tell something about these arms.

    With gaps = G > 0 all pairs of looks at arms seen only when played do: those 1 to G slots apart
    by their gap, and those further apart.
    """
    least = gaps + 1 if gaps else 1
    if not any(kind.action_dependent for kind in kinds):
        return least
    hidden = any(kind.action_dependent and not kind.fully_observed for kind in kinds)
    return max(least, WAITS if hidden else 2)


def thompson(evidence: Evidence, draws: Draws, *, prior: Prior = 1.0, gaps: int = 0) -> Moves:
    """A draw of every row from its posterior, eq. (38): the prior once, and all counts.

    prior = (a, b) is for two states: Beta(a, b) on the probability of state 1 next. gaps: see the
    module; 0 for the paper's, looks in two consecutive slots alone.
    """
    n_states = evidence.visits.shape[0]
    before = _prior(prior, n_states)
    least = float(before.min())
    valid = _valid(evidence.kinds, n_states)

    def drawn(counts: Array) -> Array:
        return draws.dirichlet(jnp.asarray(before + counts), least, axis=1, valid=valid)

    def from_gaps(counts: Array) -> Array:
        if counts.shape[1] == 2:
            return _matrix(*draw_channels(counts, _pair(before), draws))
        return draw_matrices(counts, before[:, : counts.shape[1]], draws)

    return _both_actions(evidence, drawn, before, draws, (gaps, from_gaps))


def ucb(
    evidence: Evidence,
    draws: Draws,  # noqa: ARG001 - every learner takes it; this one is deterministic
    *,
    clip: bool = True,
    prior: Prior = 1.0,
    gaps: int = 0,
) -> Moves:
    """The mean, with sqrt(log(|A| |S| l) / plays of the arm) more for the best state, Section VI.

    The best state is the one that may pay most; the others share what is left as before. With two
    states that is the paper's bound on p01 and p11; clip = False leaves it above 1. Where an arm
    does not move alike, its passive rows are as uncertain as looks after passivity are few.
    """
    n_states = evidence.visits.shape[0]
    before = _prior(prior, n_states)
    valid = _valid(evidence.kinds, n_states)
    sizes = np.array([kind.states for kind in evidence.kinds])[:, None]
    plays = evidence.visits.sum(0)
    looks = evidence.counts[1:WAITS].sum((0, 1, 2))  # after passivity
    alike = np.array([not kind.action_dependent for kind in evidence.kinds])[:, None]
    unsure = jnp.log(2.0 * sizes * evidence.episode)  # (N, trials)
    after_play, after_drift = (
        jnp.sqrt(unsure / jnp.maximum(seen, 1)) for seen in (plays, jnp.where(alike, plays, looks))
    )
    rewards = jnp.maximum(evidence.rewards, evidence.idle_rewards)
    rewards = rewards if valid is None else jnp.where(valid[0], rewards, -jnp.inf)
    highest = n_states - 1 - rewards[::-1, :, 0].argmax(0)  # (N,), the last of equals
    best = (jnp.arange(n_states)[:, None] == highest)[None, :, :, None]  # (1, S, N, 1)

    def upper(mean: Array, width: Array) -> Array:
        now = jnp.where(best, mean, 0).sum(1, keepdims=True)
        raised = now + width
        raised = jnp.minimum(raised, 1) if clip else raised
        share = jnp.where(now < 1, (1 - raised) / jnp.where(now < 1, 1 - now, 1), 0)
        return jnp.where(best, raised, mean * share)

    def mean(counts: Array) -> Array:
        weights = jnp.asarray(before + counts)
        weights = weights if valid is None else jnp.where(valid, weights, 0)
        return jnp.asarray(weights / weights.sum(1, keepdims=True))

    def from_gaps(counts: Array) -> Array:
        if counts.shape[1] == 2:
            return _matrix(*mean_channels(counts, _pair(before)))
        return mean_matrices(counts, before[:, : counts.shape[1]])

    passive, active = _both_actions(evidence, mean, before, None, (gaps, from_gaps))
    return Moves(upper(passive, after_drift), upper(active, after_play))


def _both_actions(
    evidence: Evidence,
    rows: Callable[[Array], Array],
    before: npt.NDArray[np.float32],
    draws: Draws | None,
    gapped: tuple[int, Callable[[Array], Array]],
) -> Moves:
    """The matrices of every arm by its kind; rows: from counts (S, S, N, trials) to a matrix.

    gapped: G, and what makes matrices (S, S, n, trials) of counts (G + 1, S, S, n, trials) of arms
    of exactly S states.
    """
    kinds, n_states = evidence.kinds, evidence.visits.shape[0]
    apart = np.array([kind.action_dependent for kind in kinds])
    always = np.array([kind.fully_observed for kind in kinds])
    gaps, from_gaps = gapped
    sizes = np.array([kind.states for kind in kinds])
    by_gap = ~apart & ~always if gaps else np.zeros(len(kinds), bool)
    if by_gap.all() and (sizes == n_states).all():
        whole = from_gaps(evidence.counts[: gaps + 1])
        return Moves(whole, whole)
    active = rows(evidence.counts[0])
    for size in np.unique(sizes[by_gap]).tolist():
        these = np.flatnonzero(by_gap & (sizes == size))
        found = from_gaps(evidence.counts[: gaps + 1, :size, :size, these])
        active = active.at[:size, :size, these].set(found)
    passive = active
    if (apart & always).any():
        passive = jnp.where((apart & always)[:, None], rows(evidence.counts[1]), passive)
    hidden = np.flatnonzero(apart & ~always)
    if hidden.size:
        valid = _valid(tuple(kinds[n] for n in hidden), n_states)
        filled = fill_in(evidence.counts[:WAITS, :, :, hidden], before, draws, valid)
        passive = passive.at[:, :, hidden].set(filled[0])
        active = active.at[:, :, hidden].set(filled[1])
    return Moves(passive, active)


def _matrix(p01: Array, p11: Array) -> Array:
    """(2, 2, n, trials), from what a channel is known by, each (n, trials)."""
    return jnp.stack([jnp.stack([1 - p01, p01]), jnp.stack([1 - p11, p11])])


def _pair(before: npt.NDArray[np.float32]) -> tuple[float, float]:
    """The Beta prior of the probability of state 1 next, from the weights of next states."""
    return float(before[0, 1, 0, 0]), float(before[0, 0, 0, 0])


def _prior(prior: Prior, n_states: int) -> npt.NDArray[np.float32]:
    """The weights of next states, (1, S, 1, 1)."""
    weights = [prior[1], prior[0]] if isinstance(prior, tuple) else [prior] * n_states
    return np.array(weights, np.float32)[None, :, None, None]


def _valid(kinds: tuple[ArmKind, ...], n_states: int) -> npt.NDArray[np.bool_] | None:
    """Which next states an arm has, (1, S, N, 1); None where all arms have all."""
    sizes = np.array([kind.states for kind in kinds])
    if (sizes == n_states).all():
        return None
    return (np.arange(n_states)[:, None] < sizes)[None, :, :, None]


def survivors(
    evidence: Evidence,
    draws: Draws,  # noqa: ARG001 - every learner takes it; this one is deterministic
    *,
    pulls: int,
    horizon: int,
    sigma: float = 0.5,
) -> tuple[Array, Array]:
    """Fed1-UCB: drop arms whose upper bound lies under the lower bound of the K-th best.

    In each phase every agent pulls every arm in play `pulls` times, so an arm still in play is
    one whose pulls are within half a phase of the most: no other memory is needed.
    """
    pulled = evidence.visits.sum(0)
    playing = pulled >= pulled.max(0) - evidence.agents * pulls / 2
    mean = (evidence.rewards * evidence.visits).sum(0) / jnp.maximum(pulled, 1)
    width = jnp.sqrt(4 * sigma**2 * jnp.log(float(horizon)) / jnp.maximum(pulled, 1))
    ranked = jnp.sort(jnp.where(playing, mean, -jnp.inf), axis=0)[::-1]
    kth_best = jnp.take(ranked, evidence.plays - 1, axis=0)
    alive = (playing & (mean + width >= kth_best - width)).astype(jnp.float32)
    return alive, alive
