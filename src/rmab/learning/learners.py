"""Learners: merged counts in, dynamics out, eqs. (16), (17) and (36) to (38).

A learner is a function

    learner(evidence, draws) -> Moves, or for channels a pair (p01, p11)

of arrays with arms on the second-to-last and trials on the last axis. `evidence` is what the
server has after merging, `draws` gives random variates. Nothing else is remembered between
episodes: the counts are the whole state.

    thompson   one draw from the posterior of every row (FedTSWI, FedTS-myopic)
    ucb        posterior mean, with a confidence width moved to the best state (FedUCB-WI, -myopic)
    survivors  Fed1-UCB's elimination: 1 for arms still in play, 0 for those dropped

What is counted, and what it shows. counts[c, s, s', n] are pairs of successive observations of arm
n, in state s and then in s':

- c = 0: one slot apart, and the arm was played at the first. The step is by P_1, whose rows have
  Dirichlet posteriors: Beta where there are two states. For an uncontrolled arm (P_0 = P_1) that is
  all there is to learn. If it is fully observed, every slot gives such a pair.
- a fully observed, action-dependent arm, c = 1: one slot apart, not played at the first. The step
  is by P_0, learnt in the same way.
- an action-dependent arm observed when played, 0 < c < WAITS: played, then not played for c slots,
  observed in the next. The steps are P_1 P_0^c: see `hidden_steps`.

With gaps = G the learners use all pairs of observations of uncontrolled arms observed when played:
counts[c] are the pairs c + 1 slots apart up to G, and counts[G] those further apart, which show the
stationary distribution. The likelihood of a gap g is P^g, and the posterior is no longer a product
of Dirichlets: `channel` draws from it for two states, `hidden_steps` for more. An agent's first
observation of an arm is taken as given: it completes no pair.

Action-dependent arms observed when played are learnt from what follows waits alone. Waits of one
slot show P_1 P_0: where P_1 can be inverted that determines P_0. Where it cannot (a restart: P_1
has equal rows) all waits show the distributions along one path, P_1 P_0, P_1 P_0^2, ..., and rows
of P_0 that this path does not distinguish stay as the prior has them; so do all rows while nobody
waits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from rmab.learning.channel.mode import channel_modes
from rmab.learning.channel.posterior import draw_channels, mean_channels
from rmab.learning.hidden_steps import both_matrices, one_matrix
from rmab.model.arms import WAITS, ArmKind, Moves, Tie
from rmab.policies.capabilities import Capabilities, capable
from rmab.rng.variates import Draws, Mask

__all__ = [
    "WAITS",
    "Evidence",
    "Prior",
    "count_kinds",
    "phase_noise",
    "survivors",
    "thompson",
    "ucb",
]

Prior = float | tuple[float, float]  # Dirichlet(a, ..., a), or for two states Beta(a, b)

_BETA = 0.1  # the chance with which noise may be larger than bounds allow for
_WAIT_STREAMS = 1 << 16  # of random numbers: that of arms of S states is this plus S
_TIED_STREAMS = 1 << 17  # that of the n-th tie is this plus n
# Of next states before anything is observed: (1, S, 1, 1), or by state, (2, 2, 1, trials).
_Weights = npt.NDArray[np.float32] | Array


class Evidence(NamedTuple):
    """What the server knows at the start of an episode, merged over agents.

    counts: (C, S, S, N, trials), pairs of observations, see the module; visits: (S, N, trials),
    plays by state observed; episode: (trials,), counted from 1; rewards, idle_rewards: (S, N, 1),
    or (S, N, trials) where agents' differ, what a play pays and what no play does; plays: how many
    arms an agent plays in a slot; agents: how many there are, each counted by its weight; kinds:
    (N,) what is known of each arm; prior: (2, 2, 1, trials), weights of next states by state where
    they were learnt from all arms, in place of the learner's own; slot: how many slots came before,
    in the engine; lanes: A, where agents have evidence of their own: trials are those of the first
    agent, then those of the next.
    """

    counts: Array
    visits: Array
    episode: Array
    rewards: Array
    idle_rewards: Array
    plays: Array
    agents: float
    kinds: tuple[ArmKind, ...]
    prior: Array | None = None
    slot: Array | None = None
    lanes: int = 1

    @property
    def transitions(self) -> Array:
        """(S, S, N, trials): observations in two consecutive slots, by state and next state."""
        return self.counts[0]

    @property
    def reward(self) -> Array:
        """(N, 1 or trials): what a play of each channel pays in its good state."""
        return self.rewards[1]


def count_kinds(kinds: tuple[ArmKind, ...], gaps: int = 0) -> int:
    """C, how many kinds of pairs of observations tell something about these arms.

    With gaps = G > 0 all pairs of observations of arms observed when played do: those 1 to G slots
    apart by their gap, and those further apart.
    """
    least = gaps + 1 if gaps else 1
    if not any(kind.action_dependent for kind in kinds):
        return least
    hidden = any(kind.action_dependent and not kind.fully_observed for kind in kinds)
    return max(least, WAITS if hidden else 2)


@capable(Capabilities(local_draws=True))
def thompson(
    evidence: Evidence,
    draws: Draws,
    *,
    prior: Prior = 1.0,
    gaps: int = 0,
    mode: bool = False,
    tied: bool = False,
) -> Moves:
    """A draw of every row from its posterior, eq. (38): the prior once, and all counts.

    prior = (a, b) is for two states: Beta(a, b) on the probability of state 1 next. gaps: see the
    module; 0 for the paper's, observations in two consecutive slots alone. mode: the posterior's
    mode in place of a draw (`channel.mode`), and of arms of more states the best estimate. tied: of
    arms that say what their rows have in common, one draw of that chance, by all of them.
    """
    before = _prior(prior, evidence)
    found = _dynamics(evidence, before, gaps, None if mode else draws, mode=mode)
    return _with_ties(found, evidence, prior, draws) if tied else found


def ucb(
    evidence: Evidence,
    draws: Draws,  # noqa: ARG001 - every learner takes it; this one is deterministic
    *,
    clip: bool = True,
    prior: Prior = 1.0,
    gaps: int = 0,
    mode: bool = False,
) -> Moves:
    """The mean, with sqrt(log(|A| |S| l) / plays of the arm) more for the best state, Section VI.

    The best state is the one that may pay most; the others share what is left as before. With two
    states that is the paper's bound on p01 and p11; clip = False leaves it above 1. The passive
    rows of an action-dependent arm are as uncertain as observations after passivity are few. mode:
    the posterior's mode in place of its mean.
    """
    n_states = evidence.visits.shape[0]
    valid = _valid(evidence.kinds, n_states)
    sizes = np.array([kind.states for kind in evidence.kinds])[:, None]
    plays = evidence.visits.sum(0)
    after_passivity = evidence.counts[1:WAITS].sum((0, 1, 2))
    uncontrolled = np.array([not kind.action_dependent for kind in evidence.kinds])[:, None]
    unsure = jnp.log(2.0 * sizes * evidence.episode)  # (N, trials)
    active_width, passive_width = (
        jnp.sqrt(unsure / jnp.maximum(observed, 1))
        for observed in (plays, jnp.where(uncontrolled, plays, after_passivity))
    )
    rewards = jnp.maximum(evidence.rewards, evidence.idle_rewards)
    rewards = rewards if valid is None else jnp.where(valid[0], rewards, -jnp.inf)
    highest = n_states - 1 - rewards[::-1].argmax(0)  # (N, 1 or trials), the last of equals
    best = (jnp.arange(n_states)[:, None, None] == highest)[None]  # (1, S, N, 1 or trials)

    def upper(mean: Array, width: Array) -> Array:
        now = jnp.where(best, mean, 0).sum(1, keepdims=True)
        raised = now + width
        raised = jnp.minimum(raised, 1) if clip else raised
        share = jnp.where(now < 1, (1 - raised) / jnp.where(now < 1, 1 - now, 1), 0)
        return jnp.where(best, raised, mean * share)

    passive, active = _dynamics(evidence, _prior(prior, evidence), gaps, None, mode=mode)
    return Moves(upper(passive, passive_width), upper(active, active_width))


def _dynamics(
    evidence: Evidence, before: _Weights, gaps: int, draws: Draws | None, *, mode: bool
) -> Moves:
    """The matrices of every arm by its kind: drawn, or without draws the best estimates; mode: of
    channels learnt from all gaps the posterior's mode, not its mean."""
    kinds, counts, n_states = evidence.kinds, evidence.counts, evidence.visits.shape[0]
    sizes = np.array([kind.states for kind in kinds])
    controlled = np.array([kind.action_dependent for kind in kinds])
    always = np.array([kind.fully_observed for kind in kinds])
    by_gap = ~controlled & ~always & (gaps > 0)
    if by_gap.all() and (sizes == n_states).all():
        whole = _from_gaps(counts[: gaps + 1], before, draws, mode=mode)
        return Moves(whole, whole)
    valid = _valid(kinds, n_states)
    active = _rows(counts[0], before, valid, draws)
    for size in np.unique(sizes[by_gap]).tolist():
        these = np.flatnonzero(by_gap & (sizes == size))
        some = counts[: gaps + 1, :size, :size, these]
        found = _from_gaps(some, before[:, :size], draws, mode=mode)
        active = active.at[:size, :size, these].set(found)
    passive = active
    if (controlled & always).any():
        apart = _rows(counts[1], before, valid, draws)
        passive = jnp.where((controlled & always)[:, None], apart, passive)
    hidden = controlled & ~always
    for size in np.unique(sizes[hidden]).tolist():
        these = np.flatnonzero(hidden & (sizes == size))
        waits = counts[:WAITS, :size, :size, these]
        own_draws = draws and draws.again(_WAIT_STREAMS + size)
        both = both_matrices(waits, before[:, :size], own_draws)
        passive = passive.at[:size, :size, these].set(both[0])
        active = active.at[:size, :size, these].set(both[1])
    return Moves(passive, active)


def _with_ties(found: Moves, evidence: Evidence, prior: Prior, draws: Draws) -> Moves:
    """The same, where arms whose rows are tied have one chance: Beta, by how often its event
    happened and how often it did not, in all rows."""
    weights = prior if isinstance(prior, tuple) else (prior, prior)
    by_tie: dict[Tie, list[int]] = {}
    for arm, kind in enumerate(evidence.kinds):
        if kind.tie is not None:
            by_tie.setdefault(kind.tie, []).append(arm)
    passive, active = found
    for number, (tie, arms) in enumerate(by_tie.items()):
        for_sure, never = np.array(tie.for_sure, np.float32), np.array(tie.never, np.float32)
        S, these = for_sure.shape[-1], np.array(arms)
        may = (for_sure != never).any(-1, keepdims=True)  # which rows have the event
        happened = may & (for_sure > 0)
        controlled = evidence.kinds[arms[0]].action_dependent
        # Kind 0 are steps after a play, of arms that move alike all steps; kind 1 those after none.
        steps = [(1, evidence.counts[0])] + ([(0, evidence.counts[1])] if controlled else [])
        did, did_not = (
            jnp.stack(
                [
                    jnp.where(where[action][:, :, None, None], counts[:S, :S, these], 0).sum((0, 1))
                    for action, counts in steps
                ]
            ).sum(0)
            for where in (happened, may & ~happened)
        )
        one = draws.again(_TIED_STREAMS + number)
        chance = one.beta(weights[0] + did, weights[1] + did_not, min(weights))
        rows = jnp.asarray(never)[..., None, None] + chance * (for_sure - never)[..., None, None]
        passive = passive.at[:S, :S, these].set(rows[0])
        active = active.at[:S, :S, these].set(rows[1])
    return Moves(passive, active)


def _rows(counts: Array, before: _Weights, valid: Mask | None, draws: Draws | None) -> Array:
    """Rows (S, S, N, trials) from steps that were observed: Dirichlet draws, or their means."""
    weights = jnp.asarray(before + counts)
    if draws is not None:
        least = float(before.min()) if isinstance(before, np.ndarray) else 0.0
        return draws.dirichlet(weights, least, axis=1, valid=valid)
    weights = weights if valid is None else jnp.where(valid, weights, 0)
    return jnp.asarray(weights / weights.sum(1, keepdims=True))


def _from_gaps(counts: Array, before: _Weights, draws: Draws | None, *, mode: bool) -> Array:
    """P, (S, S, n, trials), of arms of exactly S states from counts (G + 1, S, S, n, trials)."""
    n_states = counts.shape[1]
    if n_states > 2:
        return one_matrix(counts, before, draws and draws.again(n_states))
    if mode:
        p01, p11, _ = channel_modes(counts, jnp.asarray(before))
    elif isinstance(before, np.ndarray):
        beta = float(before[0, 1, 0, 0]), float(before[0, 0, 0, 0])
        p01, p11 = draw_channels(counts, beta, draws) if draws else mean_channels(counts, beta)
    else:  # a prior that is learnt
        counts = counts.at[0].add(before)  # pseudo-counts are pairs one slot apart
        flat = (1.0, 1.0)
        p01, p11 = draw_channels(counts, flat, draws) if draws else mean_channels(counts, flat)
    return jnp.stack([jnp.stack([1 - p01, p01]), jnp.stack([1 - p11, p11])])


def _prior(prior: Prior, evidence: Evidence) -> _Weights:
    if evidence.prior is not None:
        return evidence.prior
    n_states = evidence.visits.shape[0]
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
    draws: Draws,
    *,
    pulls: int,
    horizon: int,
    sigma: float = 0.5,
    epsilon: float | None = None,
) -> tuple[Array, Array]:
    """Fed1-UCB: drop arms whose upper bound lies under the lower bound of the K-th best.

    In each phase every agent pulls every arm in play `pulls` times, so an arm still in play is
    one whose pulls are within half a phase of the most: no other memory is needed.

    With epsilon each of M agents adds Lap(d / (epsilon f)) to its mean of a phase of f pulls, d the
    range of the arm's rewards, and after p phases bounds are wider by
    d ln(4 N p^2 / beta) / (epsilon f sqrt(M)).
    """
    pulled = evidence.visits.sum(0)
    playing = pulled >= pulled.max(0) - evidence.agents * pulls / 2
    mean = (evidence.rewards * evidence.visits).sum(0) / jnp.maximum(pulled, 1)
    width = jnp.sqrt(4 * sigma**2 * jnp.log(float(horizon)) / jnp.maximum(pulled, 1))
    if epsilon is not None:
        shared = isinstance(evidence.agents, int | float)
        agents = round(evidence.agents) if shared else 1  # where agents are alone, each is one
        phases = jnp.maximum(evidence.episode - 1, 1)
        span = (evidence.rewards.max(0) - evidence.rewards.min(0)) / (epsilon * pulls)
        mean = mean + span * phase_noise(draws, phases, agents, mean.shape[0])
        unsure = jnp.log(4 * mean.shape[0] * phases.astype(jnp.float32) ** 2 / _BETA)
        width = width + span * unsure / math.sqrt(agents)
    ranked = jnp.sort(jnp.where(playing, mean, -jnp.inf), axis=0)[::-1]
    kth_best = jnp.take(ranked, evidence.plays - 1, axis=0)
    keeps = mean + width >= kth_best - width
    if epsilon is not None:  # before the first phase there is noise alone
        keeps = keeps | (evidence.episode <= 1)
    alive = (playing & keeps).astype(jnp.float32)
    return alive, alive


def phase_noise(draws: Draws, phases: Array, agents: int, n_arms: int) -> Array:
    """The mean over phases and agents of Laplace numbers of scale 1, (N, trials).

    Those of a phase are a function of its number, so that they are the same in all later ones.
    """

    def add(number: Array, total: Array) -> Array:
        uniform = draws.of_episode(number + 1).uniform(agents, n_arms) - 0.5
        laplace = -jnp.sign(uniform) * jnp.log1p(-2 * jnp.abs(uniform))
        return total + jnp.where(number < phases, laplace.mean(0), 0)

    zeros = jnp.zeros((n_arms, phases.shape[-1]), jnp.float32)
    total: Array = lax.fori_loop(0, phases.max(), add, zeros)
    return total / phases
