"""Algorithm 1 in plain Python: one trial, slot by slot, on arms of any kind.

Written from the paper with Python's numbers, dictionaries and loops. It shares nothing with the
engine but the random words by which the true states move. What turns counts into dynamics, and
these into indices, is given (`Policy`), and need not be plain.

The engine computes in single precision, so a decision between two indices that are all but equal
may differ. `followed` follows a trial up to the slot where that explains a difference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rmab.markov import limiting_distribution
from rmab.model.arms import Arms
from rmab.model.realisation import BEFORE, BITS
from rmab.rng.variates import CHANNELS, stream, threefry

__all__ = ["Case", "Evidence", "Policy", "Record", "algorithm_1", "followed", "random_words"]

NEAR = 1e-5  # relative: indices closer than this may be ranked either way in single precision


@dataclass(frozen=True)
class Case:
    """What is simulated."""

    arms: Arms
    agents: int
    plays: int
    horizon: int
    schedule: str = "paper"
    shared: bool = False  # whether all agents meet the same states
    weights: tuple[float, ...] | None = None
    draws: str = "shared"
    aggregation: str = "sum"

    @property
    def learners(self) -> int:
        """How many agents learn or draw for themselves; 1: one for all."""
        apart = self.draws == "per-agent" or self.aggregation == "none"
        return self.agents if apart else 1


@dataclass(frozen=True)
class Evidence:
    """What a learner has at the start of an episode."""

    case: Case
    trial: int
    agent: int  # whose stream is drawn from; 0 where one draw serves all
    episode: int  # from 1
    pairs: dict[tuple[int, int, int, int], float]  # (kind, arm, state, next state) -> how many
    visits: dict[tuple[int, int], float]  # (arm, state) -> plays
    agents: float  # how many have counted, by their weights
    before: Any  # what was found for the episode before; None: nothing
    slot: int  # how many slots came before

    def arrays(self, kinds: int, gaps: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Pairs (C, S, S, N) of the first C kinds, and visits (S, N).

        gaps: kinds from this one on are counted as one; 0: kinds past the C-th are left out.
        """
        n_arms, S = len(self.case.arms), self.case.arms.passive.shape[1]
        pairs = np.zeros((kinds, S, S, n_arms), np.float32)
        for (kind, n, was, now), count in self.pairs.items():
            place = min(kind, gaps) if gaps else kind
            if place < kinds:
                pairs[place, was, now, n] += count
        visits = np.zeros((S, n_arms), np.float32)
        for (n, now), count in self.visits.items():
            visits[now, n] = count
        return pairs, visits


@dataclass(frozen=True)
class Policy:
    """What agents play by.

    estimate: from evidence to what `index` reads, or None where that is known from the start.
    index: of an arm, from what was found, the arm's number, the state last observed and its age. A
    fully observed arm has its state of this slot, at age 1. None: agents take turns, and what was
    found is the set of the arms in play.
    slack: absolute difference under which indices count as equal, besides the relative one.
    slots: of an episode, from the evidence of every learner; None: as the schedule says.
    own_visits: whether an agent's own visits, with a play and without, end an episode by doubling.
    explores: whether the plays of an episode are counted as visits; None: they always are.
    """

    estimate: Callable[[Evidence], Any] | None
    index: Callable[[Any, int, int | None, int], float] | None
    known: Any = None
    slack: float = 0.0
    slots: Callable[[list[Evidence]], int] | None = None
    own_visits: bool = False
    explores: Callable[[Evidence], bool] | None = None


@dataclass
class Agent:
    """One agent: where its arms truly are, what it remembers, and what it has counted."""

    state: list[int]
    queue: list[int]  # the arms in the order of their turns
    last_seen: list[int | None]
    played_at: list[int | None]
    pairs: Counter[tuple[int, int, int, int]] = field(default_factory=Counter)
    visits: Counter[tuple[int, int]] = field(default_factory=Counter)
    idle: Counter[tuple[int, int]] = field(default_factory=Counter)  # observed without a play


@dataclass
class Record:
    """What one trial gave; `near` are the slots with a choice between all but equal indices."""

    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    found: list[list[Any]] = field(default_factory=list)  # of every episode and learner
    near: list[int] = field(default_factory=list)
    early: int = 0  # episodes that visits ended


# ------------------------------------------------------------------- the true states


def random_words(case: Case, seed: Any, trials: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The engine's words: (trials, lanes, slots, arms), and before the first slot without slots.

    From the counters that the engine names: (slot, arm), where the two words of a call serve the
    first and the second half of the arms, and BEFORE for the state before the first slot. A lane is
    an agent, or all of them where they meet the same states.
    """
    n_arms = len(case.arms)
    trial = jnp.asarray(trials, jnp.uint32)[:, None, None, None]
    lane = jnp.arange(1 if case.shared else case.agents)[:, None, None]
    key = stream(seed, trial, lane, CHANNELS)
    slot = jnp.arange(case.horizon, dtype=jnp.uint32)[:, None]
    arm = jnp.arange(n_arms, dtype=jnp.uint32)
    moves = np.concatenate(threefry(key, slot, arm[: math.ceil(n_arms / 2)]), axis=-1)
    before = np.asarray(threefry(key, jnp.uint32(BEFORE), arm)[0])[:, :, 0]
    return moves[..., :n_arms] >> (32 - BITS), before >> (32 - BITS)


def _levels(law: np.ndarray) -> list[int]:
    """A word under the j-th of them stands for a state of at least j, from 1."""
    return [round(float(law[j:].sum()) * 2**BITS) for j in range(1, law.size)]


class _World:
    """How the arms move in one trial."""

    def __init__(self, case: Case, moves: np.ndarray, before: np.ndarray) -> None:
        self.moves, self.before = moves.tolist(), before.tolist()
        self.rest = [_levels(limiting_distribution(arm.passive)) for arm in case.arms]
        self.levels = [
            [[_levels(law) for law in matrix] for matrix in (arm.passive, arm.active)]
            for arm in case.arms
        ]

    def first(self, agent: int) -> list[int]:
        """The states in the first slot: one passive move from the limiting distribution."""
        lane = agent % len(self.before)
        start = [
            _reached(w, levels) for w, levels in zip(self.before[lane], self.rest, strict=True)
        ]
        return self.next(agent, 0, start, [])

    def next(self, agent: int, slot: int, states: list[int], played: list[int]) -> list[int]:
        """The states in that slot, from those before it."""
        words = self.moves[agent % len(self.moves)][slot]
        return [
            _reached(words[n], self.levels[n][n in played][state]) for n, state in enumerate(states)
        ]


def _reached(word: int, levels: list[int]) -> int:
    return sum(word < level for level in levels)


# ------------------------------------------------------------------- the algorithm


def algorithm_1(
    case: Case, policy: Policy, trial: int, moves: np.ndarray, before: np.ndarray
) -> Record:
    """One trial; moves: (lanes, slots, arms) and before: (lanes, arms), its random words."""
    n_arms = len(case.arms)
    world = _World(case, moves, before)
    agents = [
        Agent(world.first(m), list(range(n_arms)), [None] * n_arms, [None] * n_arms)
        for m in range(case.agents)
    ]
    record = Record()
    slot, previous = 0, 1  # T_0 = 1
    found: list[Any] = [policy.known]
    evidence: list[Evidence] = []
    while slot < case.horizon:
        if policy.estimate is not None:
            earlier = record.found[-1] if record.found else [None] * case.learners
            episode = len(record.lengths) + 1
            evidence = [
                _evidence(case, agents, trial, m, episode, last, slot)
                for m, last in enumerate(earlier)
            ]
            found = [policy.estimate(each) for each in evidence]
        record.found.append(found)
        table: dict[tuple[int, int, int | None, int], float] = {}  # the indices of this episode
        at_start = [(agent.visits.copy(), agent.idle.copy()) for agent in agents]
        limit, length, tripped = _limit(case, policy, found, previous), 0, False
        if policy.slots is not None:
            limit = policy.slots(evidence)
        visits_count = policy.explores is None or policy.explores(evidence[0])
        while slot < case.horizon and length < limit and not tripped:
            paid = 0.0
            for m, agent in enumerate(agents):
                which = m % len(found)
                if policy.index is None:
                    played = [n for n in agent.queue if n in found[which]][: case.plays]
                    agent.queue = [n for n in agent.queue if n not in played] + played
                else:
                    scores = []
                    for n in range(n_arms):
                        where = (which, n, *_known(case, agent, n, slot))
                        if where not in table:
                            table[where] = policy.index(found[which], *where[1:])
                        scores.append(table[where])
                    ranked = sorted(range(n_arms), key=lambda n: (-scores[n], n))
                    played = ranked[: case.plays]
                    if case.plays < n_arms:
                        last, next_one = (scores[ranked[case.plays - i]] for i in (1, 0))
                        if last - next_one <= NEAR * abs(last) + policy.slack:
                            record.near.append(slot)
                paid += _observe(case, agent, played, slot, visits_count)
                if slot + 1 < case.horizon:
                    agent.state = world.next(m, slot + 1, agent.state, played)
            record.rewards.append(paid)
            slot, length = slot + 1, length + 1
            watched = case.schedule == "paper" and None not in (policy.estimate, policy.index)
            factor = 2 if policy.own_visits else 2**case.agents
            tripped = (watched and policy.slots is None) and any(
                count > factor * max(1, start[key])
                for agent, starts in zip(agents, at_start, strict=True)
                for now, start in zip(
                    (agent.visits, agent.idle)[: 1 + policy.own_visits], starts, strict=False
                )
                for key, count in now.items()
            )
        record.early += tripped and length < limit
        record.lengths.append(length)
        previous = length
    return record


def _limit(case: Case, policy: Policy, found: list[Any], previous: int) -> int:
    """The most slots of an episode; previous: the length of the last."""
    if policy.estimate is None:
        return case.horizon
    if policy.index is None:  # each agent pulls each of its arms so often; the longest phase counts
        pulls, left = int(10 * math.log(case.horizon)), max(len(in_play) for in_play in found)
        return math.ceil(pulls * left / case.plays) if left > case.plays else case.horizon
    return 2 * previous if case.schedule == "doubling" else previous + 1


def _evidence(
    case: Case,
    agents: list[Agent],
    trial: int,
    learner: int,
    episode: int,
    before: Any,
    slot: int,
) -> Evidence:
    """The weighted sum of what all have counted, or what one agent has."""
    if case.aggregation == "none":
        heard = [(1.0, agents[learner])]
    else:
        assert case.aggregation == "sum"
        heard = list(zip(case.weights or (1.0,) * case.agents, agents, strict=True))
    pairs: dict[tuple[int, int, int, int], float] = {}
    visits: dict[tuple[int, int], float] = {}
    for weight, agent in heard:
        for pair, count in agent.pairs.items():
            pairs[pair] = pairs.get(pair, 0.0) + weight * count
        for visit, count in agent.visits.items():
            visits[visit] = visits.get(visit, 0.0) + weight * count
    total = sum(weight for weight, _ in heard)
    return Evidence(case, trial, learner, episode, pairs, visits, total, before, slot)


def _known(case: Case, agent: Agent, n: int, slot: int) -> tuple[int | None, int]:
    """The state of an arm last observed, None if it never was, and its age."""
    if case.arms[n].observed == "always":
        return agent.state[n], 1
    when = agent.played_at[n]
    return (None, 0) if when is None else (agent.last_seen[n], slot - when)


def _observe(case: Case, agent: Agent, played: list[int], slot: int, visits_count: bool) -> float:
    """What a slot pays; the agent remembers and counts what it sees.

    A pair of observations is of kind c: c slots without a play lie between them. Of a fully
    observed arm every slot completes a pair: of kind 0 after a play, or where plays make no
    difference, else 1.
    """
    paid = 0.0
    for n, arm in enumerate(case.arms):
        now, was, when = agent.state[n], agent.last_seen[n], agent.played_at[n]
        always, plays_it = arm.observed == "always", n in played
        paid += float((arm.reward_active if plays_it else arm.reward_passive)[now])
        if (plays_it or always) and was is not None:
            kind = int(arm.action_dependent and when != slot - 1)
            if not always:
                assert when is not None
                kind = slot - when - 1
            agent.pairs[kind, n, was, now] += 1
        if plays_it or always:
            agent.last_seen[n] = now
        if plays_it:
            agent.visits[n, now] += visits_count
            agent.played_at[n] = slot
        elif always:
            agent.idle[n, now] += 1
    return paid


# ------------------------------------------------------------------- the comparison


def followed(
    records: Sequence[Record],
    rewards: npt.ArrayLike,
    episodes: npt.ArrayLike,
    lengths: npt.ArrayLike,
    tolerance: float,
) -> list[int]:
    """The places of the trials in which rewards (T, R), in every slot, and the lengths (L, R) of
    all episodes (R,) are those of the records. Any other must have met a close choice before."""
    rewards, episodes, lengths = np.asarray(rewards), np.asarray(episodes), np.asarray(lengths)
    same = []
    for r, plain in enumerate(records):
        count = len(plain.lengths)
        unequal = np.flatnonzero(np.abs(rewards[:, r] - np.array(plain.rewards)) > tolerance)
        if unequal.size or episodes[r] != count or lengths[:count, r].tolist() != plain.lengths:
            until = unequal[0] if unequal.size else len(plain.rewards)
            close = [slot for slot in plain.near if slot <= until]
            assert close, f"trial {r} differs at slot {until}, and no choice was close"
            continue
        assert not lengths[count:, r].any()
        same.append(r)
    return same
