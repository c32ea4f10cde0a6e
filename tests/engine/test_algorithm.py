"""The engine against a slow, plain Algorithm 1 on channels, decision by decision.

The plain one (tests/oracles/algorithm_1.py) shares nothing with the engine but the random numbers:
the channels' true states, and the posterior draws, which the learner makes from the plain one's own
counts. All other learners and the indices are written below from the paper. Rewards differ from arm
to arm, so that their sum tells which good arms were played.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab.engine.environment import truth
from rmab.engine.program import simulator
from rmab.engine.setting import Outcome, Setting
from rmab.learning.evidence import Evidence
from rmab.learning.thompson import thompson
from rmab.model.arms import ArmKind, Arms, channels
from rmab.planning.tables import whittle_at
from rmab.policies.aggregation import AGGREGATIONS
from rmab.policies.policy import Policy
from rmab.policies.registry import named
from rmab.rng.variates import DRAWS, Draws, seed_words, stream
from tests.oracles import algorithm_1 as plain
from tests.oracles.algorithm_1 import Case, Record, algorithm_1, followed, random_words

SEED = seed_words(0x0123_4567_89AB_CDEF)
TRIALS = range(1000, 1064)

FEWEST_GAPS = 8  # that fedtswi-gap may have

Theta = tuple[float, float]  # (p01, p11)


def _channels(*each: tuple[float, float, float]) -> Arms:
    """From (p01, p11, reward) of each."""
    return channels(*zip(*each, strict=True))


FOUR = ((0.2, 0.8, 0.4137), (0.89, 0.17, 0.9021), (0.1, 0.9, 0.7333), (0.9, 0.16, 0.6179))
PAPER, THREE = _channels(*FOUR), _channels(*FOUR[:3])
FIVE = _channels(*FOUR, (0.5, 0.5, 0.5417))
NINE = _channels(
    *FOUR,
    (0.5, 0.5, 0.5417),
    (0.05, 0.93, 0.8111),
    (0.7, 0.3, 0.4829),
    (0.3, 0.6, 0.9713),
    (0.02, 0.4, 1.3107),
)
CASES = {
    "two agents": Case(PAPER, agents=2, plays=2, horizon=150),
    "one agent, visits end episodes": Case(THREE, agents=1, plays=1, horizon=200),
    "many arms, one realisation, weights": Case(
        NINE, agents=3, plays=4, horizon=80, schedule="linear", shared=True, weights=(1, 0, 2.25)
    ),
    "doubling, light weights": Case(
        PAPER, agents=2, plays=3, horizon=120, schedule="doubling", weights=(0.25, 0.125)
    ),
    "phases, light weights": Case(FIVE, agents=2, plays=2, horizon=600, weights=(0.25, 0.125)),
    "phases, heavy weights": Case(FIVE, agents=2, plays=2, horizon=600, weights=(300.0, 200.0)),
}


# ------------------------------------------------------------------- learners


@partial(jax.jit, static_argnums=(0, 1))
def posterior_draw(
    kinds: tuple[ArmKind, ...],
    gaps: int,
    trial: jax.Array,
    agent: jax.Array,
    episode: jax.Array,
    counts: jax.Array,
    visits: jax.Array,
) -> jax.Array:
    """(p01, p11) of each arm, (2, N), from the counts (C, 2, 2, N) and visits (2, N) of one trial.

    agent: whose stream is drawn from; 0 where one draw serves all.
    """
    unread = jnp.zeros(0)
    pairs, visited = counts[..., None], visits[..., None]
    evidence = Evidence(pairs, visited, episode[None], unread, unread, unread, 1, kinds)
    draws = Draws(stream(SEED, trial[None], agent, DRAWS), episode[None])
    return jnp.asarray(thompson(evidence, draws, gaps=gaps).passive[:, 1, :, 0])


def draw(evidence: plain.Evidence, gaps: int = 0) -> list[Theta]:
    names = np.uint32(evidence.trial), np.uint32(evidence.agent), np.int32(evidence.episode)
    counts = evidence.arrays(gaps + 1, gaps)
    drawn = np.asarray(posterior_draw(evidence.case.arms.kinds, gaps, *names, *counts))
    return [(p01, p11) for p01, p11 in drawn.T.tolist()]


def upper_bound(evidence: plain.Evidence, clip: bool) -> list[Theta]:
    pairs, visits = evidence.pairs, evidence.visits
    thetas = []
    for n in range(len(evidence.case.arms)):
        plays = visits.get((n, 0), 0) + visits.get((n, 1), 0)
        width = math.sqrt(math.log(4 * evidence.episode) / max(1, plays))
        both = []
        for was in (0, 1):
            bad, good = (1 + pairs.get((0, n, was, now), 0) for now in (0, 1))  # prior Beta(1, 1)
            upper = good / (good + bad) + width
            both.append(min(1.0, upper) if clip else upper)
        thetas.append((both[0], both[1]))
    return thetas


def by_gaps(evidence: plain.Evidence) -> list[Theta]:
    """Means of what was seen next, in which every gap weighs otherwise."""
    pairs = dict.fromkeys(np.ndindex(len(evidence.case.arms), 2, 2), 1.0)
    for (kind, *which), count in evidence.pairs.items():
        pairs[tuple(which)] += WEIGHTS[min(kind, GAPS)] * count
    thetas = []
    for n in range(len(evidence.case.arms)):
        p01, p11 = (pairs[n, was, 1] / (pairs[n, was, 0] + pairs[n, was, 1]) for was in (0, 1))
        thetas.append((p01, p11))
    return thetas


def mean_by_gaps(evidence: Evidence, draws: Draws) -> tuple[jax.Array, jax.Array]:
    """The same for the engine."""
    assert evidence.counts.shape[0] == GAPS + 1
    pairs = 1 + jnp.tensordot(jnp.asarray(WEIGHTS), evidence.counts, 1)  # (2, 2, N, trials)
    p01, p11 = pairs[:, 1] / pairs.sum(1)
    return p01, p11


def eliminate(evidence: plain.Evidence) -> set[int]:
    """Fed1-UCB: the arms in play."""
    case, visits = evidence.case, evidence.visits
    alive: set[int] = evidence.before if evidence.episode > 1 else set(range(len(case.arms)))
    if evidence.episode == 1 or len(alive) <= case.plays:
        return alive
    pulled = {n: visits.get((n, 0), 0) + visits.get((n, 1), 0) for n in alive}
    reward = case.arms.reward.tolist()
    mean = {n: reward[n] * visits.get((n, 1), 0) / max(1, pulled[n]) for n in alive}
    width = {n: math.sqrt(4 * SIGMA**2 * math.log(case.horizon) / max(1, pulled[n])) for n in alive}
    kth = sorted(mean.values(), reverse=True)[case.plays - 1]
    return {n for n in alive if mean[n] + width[n] >= kth - width[n]}


# ------------------------------------------------------------------- indices


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


INDICES: dict[str, Callable[[Theta, float, int | None, int], float]] = {
    "whittle": lambda theta, reward, seen, age: reward * whittle(theta, seen, age),
    "myopic": lambda theta, reward, seen, age: reward * belief(theta, seen, age),
    "fixed": lambda theta, reward, seen, age: belief(theta, None, 0),
    "fixed-best": lambda theta, reward, seen, age: reward * belief(theta, None, 0),
}
# name -> how dynamics are learnt (None: they are known), which index (None: agents take turns)
PLAIN: dict[str, tuple[Callable[[plain.Evidence], object] | None, str | None]] = {
    "fedtswi": (draw, "whittle"),
    "fedts-myopic": (draw, "myopic"),
    "feducb-wi": (partial(upper_bound, clip=True), "whittle"),
    "feducb-wi unclipped": (partial(upper_bound, clip=False), "whittle"),
    "feducb-myopic unclipped": (partial(upper_bound, clip=False), "myopic"),
    "means by gaps": (by_gaps, "whittle"),
    "fed1-ucb": (eliminate, None),
    "whittle": (None, "whittle"),
    "myopic": (None, "myopic"),
    "fixed": (None, "fixed"),
    "fixed-best": (None, "fixed-best"),
}
# The same for what test_two_agents leaves out: drawing from all gaps is a large program.
LARGE = {"fedtswi-gap": (partial(draw, gaps=FEWEST_GAPS), "whittle")}
GAPS = 5  # told apart by the learner below; all further ones count together
WEIGHTS = (1.0, 0.5, 0.25, 2.0, 0.125, 4.0)
LEARNT_BY_GAPS = Policy("means by gaps", whittle_at, mean_by_gaps, statewise=True, gaps=GAPS)
SIGMA = 0.12  # of Fed1-UCB: narrow enough for arms to be dropped within these horizons


# ------------------------------------------------------------------- the comparison


def run_engine(case: Case, policy: str) -> Outcome:
    options: dict[str, object] = {}
    name = policy.removesuffix(" unclipped")
    if name != policy:
        options["clip"] = False
    if name == "fed1-ucb":
        options["sigma"] = SIGMA
    if name == "fedtswi-gap":
        options["gaps"] = FEWEST_GAPS
    setting = Setting.of(
        case.arms,
        case.agents,
        case.horizon,
        shared=case.shared,
        schedule=case.schedule,
        weights=case.weights,
        draws=case.draws,
        aggregation=AGGREGATIONS[case.aggregation],
    )
    own = policy == LEARNT_BY_GAPS.name
    made = LEARNT_BY_GAPS if own else named(name, case.horizon, options)
    program = simulator(setting, made, len(TRIALS))
    trials = jnp.asarray(TRIALS, jnp.uint32)
    return program(SEED, trials, truth(case.arms), jnp.int32(case.plays), None)


def plain_policy(case: Case, policy: str) -> plain.Policy:
    estimate, name = (PLAIN | LARGE)[policy]
    rewards = case.arms.reward.tolist()
    true_ones = list(zip(case.arms.p01.tolist(), case.arms.p11.tolist(), strict=True))

    def index(thetas: list[Theta], n: int, seen: int | None, age: int) -> float:
        assert name is not None
        return INDICES[name](thetas[n], rewards[n], seen, age)

    return plain.Policy(estimate, None if name is None else index, true_ones)


def compare(case: Case, policy: str) -> list[Record]:
    """Both ways of running every trial of a case; the plain ones' records."""
    out = run_engine(case, policy)
    made = plain_policy(case, policy)
    words = zip(*random_words(case, SEED, TRIALS), strict=True)
    records = [
        algorithm_1(case, made, trial, *own) for trial, own in zip(TRIALS, words, strict=True)
    ]
    same = followed(records, out.rewards, out.episodes, out.lengths, 1e-5)
    assert len(same) >= 0.98 * len(TRIALS)
    for r in same if out.error.size else ():
        found = records[r].found  # (episodes, learners, arms, 2)
        errors = ((np.array(found) - np.array(made.known)) ** 2).mean((1, 3))
        np.testing.assert_allclose(out.error[: len(found), :, r], errors, rtol=1e-3, atol=1e-6)
    return records


# Others have the same learner, or the same index.
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(
            name, marks=[pytest.mark.slow] if name in ("fedts-myopic", "feducb-wi") else []
        )
        for name in PLAIN
    ],
)
def test_two_agents(policy):
    case = CASES["two agents"]
    records = compare(case, policy)
    assert np.mean([np.mean(r.rewards) for r in records]) > 0.8
    if policy == "fed1-ucb":
        in_play = {len(r.found[-1][0]) for r in records}
        assert in_play >= {2, 3}, "the horizon should see arms dropped"


# What ends an episode does not depend on the learner.
@pytest.mark.parametrize(
    "policy", ["fedtswi", pytest.param("feducb-wi unclipped", marks=pytest.mark.slow)]
)
def test_visits_end_the_episodes_of_one_agent(policy):
    records = compare(CASES["one agent, visits end episodes"], policy)
    assert np.mean([r.early for r in records]) > 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", ["fedtswi", "whittle", pytest.param("means by gaps", marks=pytest.mark.slow)]
)
def test_many_arms_in_one_realisation_with_weights(policy):
    compare(CASES["many arms, one realisation, weights"], policy)


@pytest.mark.slow  # a program of its own to compile
def test_doubling_episodes_with_light_weights():
    records = compare(CASES["doubling, light weights"], "fedts-myopic")
    assert all(r.lengths == [2, 4, 8, 16, 32, 58] for r in records)


@pytest.mark.parametrize("weights", [pytest.param("light", marks=pytest.mark.slow), "heavy"])
def test_dropped_arms_stay_dropped_whatever_agents_weigh(weights):
    records = compare(CASES[f"phases, {weights} weights"], "fed1-ucb")
    assert sum(len(r.lengths) > 2 for r in records) > 5, "some trials should see a second phase"


@pytest.mark.parametrize("plays", [1, 3, 4])
@pytest.mark.parametrize("policy", ["fedtswi", "whittle"])
def test_any_number_of_plays(policy, plays):
    compare(replace(CASES["two agents"], plays=plays), policy)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fedtswi", "feducb-wi"])
def test_draws_of_each_agent(policy):
    """Every agent by a stream of its own, the first by the one that all share otherwise."""
    compare(replace(CASES["two agents"], agents=3, horizon=100, draws="per-agent"), policy)


@pytest.mark.parametrize(
    "policy",
    [
        "means by gaps",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("fedtswi", "fed1-ucb", "feducb-wi")),
    ],
)
def test_agents_that_learn_alone(policy):
    """Each from its own counts and by a stream of its own; weights have no meaning."""
    case = replace(CASES["two agents"], aggregation="none", weights=(0.5, 3.0))
    records = compare(case, policy)
    apart = [r for r in records if any(one != other for one, other in r.found)]
    assert len(apart) > 5, "agents should find different dynamics"


# Counts by gap and draws of each agent have cases of their own above; this is both at once, and two
# large programs to compile.
@pytest.mark.slow
def test_agents_that_draw_from_all_gaps_alone():
    records = compare(replace(CASES["two agents"], horizon=40, aggregation="none"), "fedtswi-gap")
    assert all(one != other for r in records for one, other in r.found)
