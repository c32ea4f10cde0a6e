"""The engine against a slow, plain Algorithm 1, decision by decision.

The plain one below is written from the paper with Python's floats, dictionaries and loops, and
shares nothing with the engine but the random numbers: the channels' true states, and the posterior
draws, which the learner makes from the plain one's own counts. Rewards differ from arm to arm, so
that their sum tells which good arms were played.

The engine computes in single precision, so a decision between two indices that are all but equal
may differ. A trial is followed up to the slot where that explains a difference, and such trials
must be few.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab.engine.program import simulator
from rmab.engine.setting import Setting
from rmab.engine.world import BEFORE, BITS, truth
from rmab.learning.learners import Evidence, thompson
from rmab.model.arms import ArmKind, channels
from rmab.planning.tables import whittle_at
from rmab.policies.policy import Policy
from rmab.policies.registry import named
from rmab.random import CHANNELS, DRAWS, Draws, seed_words, stream, threefry

SEED = seed_words(0x0123_4567_89AB_CDEF)
TRIALS = range(1000, 1064)
NEAR = 1e-5  # relative: indices closer than this may be ranked either way in single precision

Theta = tuple[float, float]  # (p01, p11)


@dataclass(frozen=True)
class Case:
    arms: tuple[tuple[float, float, float], ...]  # (p01, p11, reward)
    agents: int
    plays: int
    horizon: int
    schedule: str = "paper"
    shared: bool = False
    weights: tuple[float, ...] | None = None
    draws: str = "shared"

    @property
    def weight(self) -> tuple[float, ...]:
        return self.weights or (1.0,) * self.agents


PAPER = ((0.2, 0.8, 0.4137), (0.89, 0.17, 0.9021), (0.1, 0.9, 0.7333), (0.9, 0.16, 0.6179))
NINE = (
    *PAPER,
    (0.5, 0.5, 0.5417),
    (0.05, 0.93, 0.8111),
    (0.7, 0.3, 0.4829),
    (0.3, 0.6, 0.9713),
    (0.02, 0.4, 1.3107),
)
CASES = {
    "two agents": Case(PAPER, agents=2, plays=2, horizon=150),
    "one agent, visits end episodes": Case(PAPER[:3], agents=1, plays=1, horizon=200),
    "many arms, one realisation, weights": Case(
        NINE, agents=3, plays=4, horizon=80, schedule="linear", shared=True, weights=(1, 0, 2.25)
    ),
    "doubling, light weights": Case(
        PAPER, agents=2, plays=3, horizon=120, schedule="doubling", weights=(0.25, 0.125)
    ),
    "phases, light weights": Case(NINE[:5], agents=2, plays=2, horizon=600, weights=(0.25, 0.125)),
    "phases, heavy weights": Case(NINE[:5], agents=2, plays=2, horizon=600, weights=(300.0, 200.0)),
}


# ------------------------------------------------------------------- shared: the random numbers


@lru_cache
def true_states(case: Case) -> np.ndarray:
    """Whether each channel is good: (trials, slots, agents, arms).

    From the counters that the engine names: (slot, arm), where the two words of a call serve the
    first and the second half of the arms, and BEFORE for the state before the first slot.
    """
    n_arms = len(case.arms)
    trial = jnp.asarray(TRIALS, jnp.uint32)[:, None, None, None]
    lane = jnp.arange(1 if case.shared else case.agents)[:, None, None]
    key = stream(SEED, trial, lane, CHANNELS)
    slot = jnp.arange(case.horizon, dtype=jnp.uint32)[:, None]
    arm = jnp.arange(n_arms, dtype=jnp.uint32)
    moves = np.concatenate(threefry(key, slot, arm[: math.ceil(n_arms / 2)]), axis=-1)
    before = np.asarray(threefry(key, jnp.uint32(BEFORE), arm)[0])[:, :, 0]  # (R, lanes, N)
    p01, p11 = (np.array([a[i] for a in case.arms]) for i in (0, 1))

    def happens(word: np.ndarray, probability: np.ndarray) -> np.ndarray:
        return word >> (32 - BITS) < np.round(probability * 2.0**BITS)

    good = happens(before, p01 / (p01 + (1 - p11)))
    states = []
    for t in range(case.horizon):
        good = happens(moves[:, :, t, :n_arms], np.where(good, p11, p01))
        states.append(good)
    return np.broadcast_to(np.stack(states, 1), (len(TRIALS), case.horizon, case.agents, n_arms))


@jax.jit
def posterior_draw(
    trial: jax.Array, agent: jax.Array, episode: jax.Array, counts: jax.Array
) -> jax.Array:
    """(p01, p11) of each arm, (2, N), from the counts (2, 2, N) of one trial.

    agent: whose stream is drawn from; 0 where one draw serves all.
    """
    unread, n_arms = jnp.zeros(0), counts.shape[-1]
    kinds = (ArmKind(2, fully_observed=False, action_dependent=False),) * n_arms
    visits = counts.sum(1)[..., None]
    pairs = counts[None, ..., None]
    evidence = Evidence(pairs, visits, episode[None], unread, unread, unread, 1, kinds)
    draws = Draws(stream(SEED, trial[None], agent, DRAWS), episode[None])
    return jnp.asarray(thompson(evidence, draws).passive[:, 1, :, 0])


# ------------------------------------------------------------------- the plain algorithm


def belief(theta: Theta, last_seen: int | None, age: int) -> float:
    """Eq. (27), slot by slot; an arm never seen is in its stationary law."""
    p01, p11 = theta
    if last_seen is None:
        return p01 / (1 + p01 - p11)
    b = float(last_seen)
    for _ in range(age):
        b = b * p11 + (1 - b) * p01
    return b


def whittle(theta: Theta, last_seen: int | None, age: int) -> float:
    """Eqs. (34) and (35) as printed, without the reward."""
    p01, p11 = theta
    b, b0 = belief(theta, last_seen, age), p01 / (1 + p01 - p11)

    def step(x: float) -> float:
        return x * p11 + (1 - x) * p01

    if p11 >= p01:
        if b <= p01 or b >= p11:
            return b
        if b >= b0:
            return b / (1 - p11 + b)
        slots, reached = 0, p01  # L(p01, b) and T^L(p01)
        while reached <= b:
            if step(reached) <= reached:  # b is b0 but for the last digits
                return b / (1 - p11 + b)
            slots, reached = slots + 1, step(reached)
        drift = b - step(b)
        bottom = 1 - p11 + drift * slots + reached
        # Upper bounds beyond 1 can turn the sign: the equation says nothing there.
        return (drift * (slots + 1) + reached) / bottom if bottom > 0 else b
    if b <= p11 or b >= p01:
        return b
    if b < b0:
        return (b + p01 - step(b)) / (1 + p01 - step(p11) + step(b) - b)
    if b < step(p11):
        return p01 / (1 + p01 - step(p11))
    return p01 / (1 + p01 - b)


Counts = dict[tuple[int, int, int, int], float]  # (gap, arm, last seen, seen) -> pairs, merged
Visits = dict[tuple[int, int], float]  # (arm, seen) -> plays, merged
Estimate = Callable[["Server", int, Counts, Visits], list[Theta]]


@dataclass
class Server:
    """What turns merged counts into what the agents play by."""

    case: Case
    trial: int
    estimate: Estimate | None
    alive: set[int] = field(default_factory=set)
    agent: int = 0  # for whom it draws

    @property
    def pulls(self) -> int:
        return int(10 * math.log(self.case.horizon))

    def limit(self, previous: int) -> int:
        """The most slots of the next episode."""
        if self.estimate is None:
            return self.case.horizon
        if self.estimate is eliminate:
            left, plays = len(self.alive), self.case.plays
            return math.ceil(self.pulls * left / plays) if left > plays else self.case.horizon
        return 2 * previous if self.case.schedule == "doubling" else previous + 1


def draw(server: Server, episode: int, counts: Counts, visits: Visits) -> list[Theta]:
    n_arms = len(server.case.arms)
    table = np.zeros((2, 2, n_arms), np.float32)
    for (gap, arm, was, seen), count in counts.items():
        if gap == 1:
            table[was, seen, arm] = count
    names = np.uint32(server.trial), np.uint32(server.agent), np.int32(episode)
    drawn = np.asarray(posterior_draw(*names, table))
    return [(p01, p11) for p01, p11 in drawn.T.tolist()]


def upper_bound(clip: bool) -> Estimate:
    def estimate(server: Server, episode: int, counts: Counts, visits: Visits) -> list[Theta]:
        thetas = []
        for n in range(len(server.case.arms)):
            width = math.sqrt(math.log(4 * episode) / max(1, visits[n, 0] + visits[n, 1]))
            both = []
            for was in (0, 1):
                good, bad = 1 + counts[1, n, was, 1], 1 + counts[1, n, was, 0]  # prior Beta(1, 1)
                upper = good / (good + bad) + width
                both.append(min(1.0, upper) if clip else upper)
            thetas.append((both[0], both[1]))
        return thetas

    return estimate


def by_gaps(server: Server, episode: int, counts: Counts, visits: Visits) -> list[Theta]:
    """Means of what was seen next, in which every gap weighs otherwise."""
    thetas = []
    for n in range(len(server.case.arms)):
        both = []
        for was in (0, 1):
            bad, good = (
                1 + sum(WEIGHTS[gap - 1] * counts[gap, n, was, now] for gap in range(1, GAPS + 2))
                for now in (0, 1)
            )
            both.append(good / (good + bad))
        thetas.append((both[0], both[1]))
    return thetas


def mean_by_gaps(evidence: Evidence, draws: Draws) -> tuple[jax.Array, jax.Array]:
    """The same for the engine."""
    assert evidence.counts.shape[0] == GAPS + 1
    pairs = 1 + jnp.tensordot(jnp.asarray(WEIGHTS), evidence.counts, 1)  # (2, 2, N, trials)
    p01, p11 = pairs[:, 1] / pairs.sum(1)
    return p01, p11


def eliminate(server: Server, episode: int, counts: Counts, visits: Visits) -> list[Theta]:
    """Fed1-UCB: 1 for the arms in play, 0 for the others."""
    case = server.case
    if episode == 1:
        server.alive = set(range(len(case.arms)))
    elif len(server.alive) > case.plays:
        pulled = {n: visits[n, 0] + visits[n, 1] for n in server.alive}
        mean = {n: case.arms[n][2] * visits[n, 1] / max(1, pulled[n]) for n in server.alive}
        width = {
            n: math.sqrt(4 * SIGMA**2 * math.log(case.horizon) / max(1, pulled[n]))
            for n in server.alive
        }
        kth = sorted(mean.values(), reverse=True)[case.plays - 1]
        server.alive = {n for n in server.alive if mean[n] + width[n] >= kth - width[n]}
    return [(1.0, 1.0) if n in server.alive else (0.0, 0.0) for n in range(len(case.arms))]


INDICES: dict[str, Callable[[Theta, float, int | None, int], float]] = {
    "whittle": lambda theta, reward, seen, age: reward * whittle(theta, seen, age),
    "myopic": lambda theta, reward, seen, age: reward * belief(theta, seen, age),
    "fixed": lambda theta, reward, seen, age: belief(theta, None, 0),
    "fixed-best": lambda theta, reward, seen, age: reward * belief(theta, None, 0),
}
# name -> how the server estimates, which index agents use (None: they take turns)
PLAIN: dict[str, tuple[Estimate | None, str | None]] = {
    "fedtswi": (draw, "whittle"),
    "fedts-myopic": (draw, "myopic"),
    "feducb-wi": (upper_bound(clip=True), "whittle"),
    "feducb-wi unclipped": (upper_bound(clip=False), "whittle"),
    "feducb-myopic unclipped": (upper_bound(clip=False), "myopic"),
    "means by gaps": (by_gaps, "whittle"),
    "fed1-ucb": (eliminate, None),
    "whittle": (None, "whittle"),
    "myopic": (None, "myopic"),
    "fixed": (None, "fixed"),
    "fixed-best": (None, "fixed-best"),
}
GAPS = 5  # told apart by the learner below; all further ones count together
WEIGHTS = (1.0, 0.5, 0.25, 2.0, 0.125, 4.0)
LEARNT_BY_GAPS = Policy("means by gaps", whittle_at, mean_by_gaps, statewise=True, gaps=GAPS)
SIGMA = 0.12  # of Fed1-UCB: narrow enough for arms to be dropped within these horizons


@dataclass
class Agent:
    queue: list[int]  # the arms in the order of their turns
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)  # arm -> (state, slot)
    pairs: Counter[tuple[int, int, int, int]] = field(default_factory=Counter)
    visits: Counter[tuple[int, int]] = field(default_factory=Counter)


@dataclass
class Record:
    """What one trial gave; `near` are the slots with a choice between all but equal indices."""

    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    errors: list[list[float]] = field(default_factory=list)
    near: list[int] = field(default_factory=list)
    early: int = 0  # episodes that visits ended
    in_play: int = 0  # arms that Fed1-UCB had left at the end


def algorithm_1(case: Case, policy: str, trial: int, states: np.ndarray) -> Record:
    """One trial; states: (slots, agents, arms)."""
    n_arms = len(case.arms)
    estimate, index = PLAIN[policy]
    server = Server(case, trial, estimate)
    agents = [Agent(list(range(n_arms))) for _ in range(case.agents)]
    record = Record()
    slot, previous = 0, 1  # T_0 = 1
    true_ones = [(p01, p11) for p01, p11, _ in case.arms]
    while slot < case.horizon:
        each_has = [true_ones] * case.agents
        if estimate is not None:
            merged: Counts = {}
            for key in product(range(1, GAPS + 2), range(n_arms), (0, 1), (0, 1)):
                each = zip(case.weight, agents, strict=True)
                merged[key] = sum(w * agent.pairs[key] for w, agent in each)
            visits: Visits = {}
            for place in ((n, now) for n in range(n_arms) for now in (0, 1)):
                each = zip(case.weight, agents, strict=True)
                visits[place] = sum(w * agent.visits[place] for w, agent in each)
            each_has = []
            for m in range(case.agents if case.draws == "per-agent" else 1):
                server.agent = m
                each_has.append(estimate(server, len(record.lengths) + 1, merged, visits))
            each_has = (each_has * case.agents)[: case.agents]
        off = np.array(each_has) - np.array(true_ones)  # (agents, arms, 2)
        record.errors.append((off**2).mean((0, 2)).tolist())
        table: dict[tuple[int, int, int | None, int], float] = {}  # the indices of this episode
        at_start = [agent.visits.copy() for agent in agents]
        limit, length, tripped = server.limit(previous), 0, False
        while slot < case.horizon and length < limit and not tripped:
            paid = 0.0
            for m, agent in enumerate(agents):
                if index is None:
                    played = [n for n in agent.queue if n in server.alive][: case.plays]
                    agent.queue = [n for n in agent.queue if n not in played] + played
                else:
                    scores = {}
                    for n in range(n_arms):
                        state, when = agent.seen.get(n, (None, slot))
                        where = (m if case.draws == "per-agent" else 0, n, state, slot - when)
                        if where not in table:
                            theta, reward = each_has[m][n], case.arms[n][2]
                            table[where] = INDICES[index](theta, reward, *where[2:])
                        scores[n] = table[where]
                    ranked = sorted(scores, key=lambda n: (-scores[n], n))
                    played = ranked[: case.plays]
                    if case.plays < n_arms:
                        last, next_one = (scores[ranked[case.plays - i]] for i in (1, 0))
                        if last - next_one <= NEAR * abs(last):
                            record.near.append(slot)
                for n in played:
                    now = int(states[slot, m, n])
                    paid += now * case.arms[n][2]
                    if n in agent.seen:
                        was, when = agent.seen[n]
                        agent.pairs[min(slot - when, GAPS + 1), n, was, now] += 1
                    agent.visits[n, now] += 1
                    agent.seen[n] = (now, slot)
            record.rewards.append(paid)
            slot, length = slot + 1, length + 1
            tripped = case.schedule == "paper" and None not in (estimate, index)
            tripped = tripped and any(
                count > 2**case.agents * max(1, start[key])
                for agent, start in zip(agents, at_start, strict=True)
                for key, count in agent.visits.items()
            )
        record.early += tripped and length < limit
        record.lengths.append(length)
        previous = length
    record.in_play = len(server.alive)
    return record


# ------------------------------------------------------------------- the comparison


def run_engine(case: Case, policy: str) -> tuple[np.ndarray, ...]:
    """Rewards, numbers of episodes, their lengths, and squared errors; trials last."""
    options: dict[str, object] = {}
    name = policy.removesuffix(" unclipped")
    if name != policy:
        options["clip"] = False
    if name == "fed1-ucb":
        options["sigma"] = SIGMA
    p01, p11, reward = zip(*case.arms, strict=True)
    arms = channels(p01, p11, reward)
    setting = Setting.of(
        arms,
        case.agents,
        case.horizon,
        shared=case.shared,
        schedule=case.schedule,
        weights=case.weights,
        draws=case.draws,
    )
    own = policy == LEARNT_BY_GAPS.name
    made = LEARNT_BY_GAPS if own else named(name, case.horizon, options)
    program = simulator(setting, made, len(TRIALS))
    trials = jnp.asarray(TRIALS, jnp.uint32)
    out = program(SEED, trials, truth(arms), jnp.int32(case.plays), None)
    return tuple(np.asarray(x) for x in (out.rewards, out.episodes, out.lengths, out.error))


def compare(case: Case, policy: str) -> list[Record]:
    """Both ways of running every trial of a case; the plain ones' records."""
    rewards, episodes, lengths, errors = run_engine(case, policy)
    states = true_states(case)
    records, excused = [], 0
    for r, trial in enumerate(TRIALS):
        plain = algorithm_1(case, policy, trial, states[r])
        records.append(plain)
        count = len(plain.lengths)
        unequal = np.flatnonzero(np.abs(rewards[:, r] - np.array(plain.rewards)) > 1e-5)
        if unequal.size or episodes[r] != count or lengths[:count, r].tolist() != plain.lengths:
            until = unequal[0] if unequal.size else case.horizon
            close = [slot for slot in plain.near if slot <= until]
            assert close, f"trial {trial} differs at slot {until}, and no choice was close"
            excused += 1
            continue
        assert not lengths[count:, r].any()
        if len(errors):
            np.testing.assert_allclose(errors[:count, :, r], plain.errors, rtol=1e-3, atol=1e-6)
    assert excused <= 0.02 * len(TRIALS)
    return records


@pytest.mark.parametrize("policy", PLAIN)
def test_two_agents(policy):
    case = CASES["two agents"]
    records = compare(case, policy)
    assert np.mean([np.mean(r.rewards) for r in records]) > 0.8
    if policy == "fed1-ucb":
        in_play = {r.in_play for r in records}
        assert in_play >= {2, 3}, "the horizon should see arms dropped"


# What ends an episode does not depend on the learner.
@pytest.mark.parametrize(
    "policy", ["fedtswi", pytest.param("feducb-wi unclipped", marks=pytest.mark.slow)]
)
def test_visits_end_the_episodes_of_one_agent(policy):
    records = compare(CASES["one agent, visits end episodes"], policy)
    assert np.mean([r.early for r in records]) > 2


@pytest.mark.parametrize("policy", ["fedtswi", "means by gaps", "whittle"])
def test_many_arms_in_one_realisation_with_weights(policy):
    compare(CASES["many arms, one realisation, weights"], policy)


def test_doubling_episodes_with_light_weights():
    records = compare(CASES["doubling, light weights"], "fedts-myopic")
    assert all(r.lengths == [2, 4, 8, 16, 32, 58] for r in records)


@pytest.mark.parametrize("weights", ["light", "heavy"])
def test_dropped_arms_stay_dropped_whatever_agents_weigh(weights):
    records = compare(CASES[f"phases, {weights} weights"], "fed1-ucb")
    assert sum(len(r.lengths) > 2 for r in records) > 5, "some trials should see a second phase"


@pytest.mark.parametrize("plays", [1, 3, 4])
@pytest.mark.parametrize("policy", ["fedtswi", "whittle"])
def test_any_number_of_plays(policy, plays):
    compare(replace(CASES["two agents"], plays=plays), policy)


@pytest.mark.parametrize("policy", ["fedtswi", "feducb-wi"])
def test_draws_of_each_agent(policy):
    """Every agent by a stream of its own, the first by the one that all share otherwise."""
    compare(replace(CASES["two agents"], agents=3, horizon=100, draws="per-agent"), policy)
