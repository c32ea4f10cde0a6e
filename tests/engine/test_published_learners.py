"""Published learners in the engine against slow plain versions, decision by decision.

The plain ones are dictionaries and loops in the frame of tests/oracles/algorithm_1.py. Of the
engine they share the random numbers; RB-TSDE also its draws of rows.
"""

import itertools
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
from rmab.engine.setting import Setting
from rmab.learning.evidence import Evidence
from rmab.learning.thompson import thompson
from rmab.model.arms import Arm, Arms, Moves
from rmab.planning.index.api import whittle_indices
from rmab.policies.aggregation import AGGREGATIONS
from rmab.policies.policy import IndexRule, Policy
from rmab.policies.registry import named
from rmab.policies.rules.random_ties import RandomTiesRule
from rmab.rng.variates import DRAWS, Draws, seed_words, stream
from tests.engine.test_algorithm import INDICES, PAPER, THREE, Theta
from tests.oracles import algorithm_1 as plain
from tests.oracles.algorithm_1 import Case, Record, algorithm_1, followed, random_words
from tests.oracles.dsee import dsee_block

SEED = seed_words(2024)
TRIALS = range(500, 516)
BEFORE_ALL = 1e9  # an index above all others


def compare(case: Case, policy: Policy, slow: plain.Policy) -> list[Record]:
    """Both ways of running every trial of a case; the plain ones' records."""
    setting = Setting.of(
        case.arms,
        case.agents,
        case.horizon,
        schedule=case.schedule,
        max_age=1,
        aggregation=AGGREGATIONS[case.aggregation],
    )
    program = simulator(setting, policy, len(TRIALS))
    trials = jnp.asarray(TRIALS, jnp.uint32)
    out = program(SEED, trials, truth(case.arms), jnp.int32(case.plays), None)
    words = zip(*random_words(case, SEED, TRIALS), strict=True)
    records = [
        algorithm_1(case, slow, trial, *own) for trial, own in zip(TRIALS, words, strict=True)
    ]
    same = followed(records, out.rewards, out.episodes, out.lengths, 1e-4)
    assert len(same) >= len(TRIALS) - 2
    return records


def of_channels(case: Case, name: str) -> Callable[[list[Theta], int, int | None, int], float]:
    rewards = case.arms.reward.tolist()

    def index(thetas: list[Theta], n: int, seen: int | None, age: int) -> float:
        return INDICES[name](thetas[n], rewards[n], seen, age)

    return index


# ------------------------------------------------------------------------------ on a grid


def draw_on_grid(evidence: plain.Evidence, support: int, gaps: int) -> list[Theta]:
    """Weights point by point, each by products of matrices; then the point at a uniform number."""
    key = stream(SEED, jnp.uint32([evidence.trial]), jnp.uint32(evidence.agent), DRAWS)
    n_arms = len(evidence.case.arms)
    chances = np.asarray(Draws(key, jnp.uint32([evidence.episode])).uniform(n_arms))[:, 0]
    thetas = []
    for n in range(n_arms):
        points, weights = [], []
        for i, j in itertools.product(range(1, support + 1), repeat=2):
            p01, p11 = i / (support + 1), j / (support + 1)
            step = np.array([[1 - p01, p01], [1 - p11, p11]])
            weight = 0.0
            for (kind, arm, was, now), count in evidence.pairs.items():
                far = kind >= gaps  # these show the stationary law
                law = np.linalg.matrix_power(step, 10_000 if far else kind + 1)
                weight += count * math.log(law[was, now]) if arm == n else 0.0
            points.append((p01, p11))
            weights.append(weight)
        mass = np.exp(np.array(weights) - max(weights))
        place = np.searchsorted(np.cumsum(mass) / mass.sum(), chances[n])
        thetas.append(points[place])
    return thetas


@pytest.mark.parametrize("planner", ["whittle", pytest.param("myopic", marks=pytest.mark.slow)])
def test_thompson_sampling_on_a_grid(planner):
    case = Case(THREE, agents=2, plays=1, horizon=60, schedule="linear")
    policy = named("ts-grid", 60, {"support": 3, "gaps": 8, "planner": planner})
    learnt = partial(draw_on_grid, support=3, gaps=8)
    records = compare(case, policy, plain.Policy(learnt, of_channels(case, planner)))
    points = set(itertools.product((0.25, 0.5, 0.75), repeat=2))
    assert {theta for r in records for found in r.found for theta in found[0]} <= points


# ------------------------------------------------------------------------------ RB-TSDE

TENDED = Arms(
    [
        Arm(
            [[1 - a, a], [1 - b, b]],
            [[1 - c, c], [1 - d, d]],
            reward_active=[0.0, pays],
            reward_passive=[0.0, idle],
            observed="always",
        )
        for a, b, c, d, pays, idle in (
            (0.1, 0.7, 0.5, 0.9, 1.0, 0.62),
            (0.2, 0.6, 0.3, 0.95, 0.9, 0.31),
            (0.05, 0.5, 0.6, 0.7, 0.8, 0.17),
        )
    ]
)


@jax.jit
def rows(trial, agent, episode, counts):
    """A draw of all rows, (2, S, S, N)."""
    unread, pairs = jnp.zeros(0), counts[..., None]
    visits = jnp.zeros((2, *pairs.shape[3:]))
    evidence = Evidence(pairs, visits, episode, unread, unread, unread, 1, TENDED.kinds)
    draws = Draws(stream(SEED, trial, agent, DRAWS), episode)
    return jnp.stack(thompson(evidence, draws))[..., 0]


def draw_indices(evidence: plain.Evidence) -> list[np.ndarray]:
    """Of each arm by state."""
    trial = np.array([evidence.trial], np.uint32)
    names = trial, np.uint32(evidence.agent), np.array([evidence.episode], np.int32)
    drawn = np.asarray(rows(*names, evidence.arrays(2)[0]), np.float64)
    drawn /= drawn.sum(2, keepdims=True)
    return [indices_of(n, *drawn[..., n]) for n in range(len(TENDED))]


def indices_of(n: int, passive: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Whittle indices of an arm that pays as the n-th does, by the exact solver."""
    arm = TENDED[n]
    pays, idle = arm.reward_active, arm.reward_passive
    like = Arm(passive, active, reward_active=pays, reward_passive=idle, observed="always")
    return whittle_indices(like).index


def by_state(found: list[np.ndarray], n: int, seen: int | None, age: int) -> float:
    assert seen is not None
    assert age == 1
    return float(found[n][seen])


@pytest.mark.slow
def test_rb_tsde_ends_episodes_by_an_agents_own_visits_of_both_actions():
    case = Case(TENDED, agents=2, plays=1, horizon=80, aggregation="none")
    slow = plain.Policy(draw_indices, by_state, slack=1e-4, own_visits=True)
    records = compare(case, named("rb-tsde", 80, {"aggregation": "none"}), slow)
    assert np.mean([r.early for r in records]) > 5


@pytest.mark.slow  # two programs to compile
def test_rb_tsde_of_one_agent_is_fedtswi_where_arms_are_observed_when_played():
    """Its settings are the same but for the name; so is the program."""
    case = Case(THREE, agents=1, plays=1, horizon=60)
    setting = Setting.of(case.arms, 1, 60, aggregation=AGGREGATIONS["none"])
    trials, plays = jnp.arange(8, dtype=jnp.uint32), jnp.int32(1)
    one, other = (
        simulator(setting, named(name, 60), 8)(SEED, trials, truth(THREE), plays, None)
        for name in ("rb-tsde", "fedtswi")
    )
    np.testing.assert_array_equal(one.rewards, other.rewards)
    np.testing.assert_array_equal(one.episodes, other.episodes)


# ------------------------------------------------------------------------------ Restless-UCB


def steps_from(evidence: plain.Evidence, n: int) -> list[tuple[float, float]]:
    """Of each state: steps seen to bad and to good."""
    return [
        (evidence.pairs.get((0, n, was, 0), 0.0), evidence.pairs.get((0, n, was, 1), 0.0))
        for was in (0, 1)
    ]


def still_missing(evidence: plain.Evidence, wanted: int) -> list[float]:
    return [
        sum(max(0.0, wanted - sum(steps)) for steps in steps_from(evidence, n))
        for n in range(len(evidence.case.arms))
    ]


def restless_ucb(case: Case, wanted: int, radius: float) -> plain.Policy:
    plays, n_arms = case.plays, len(case.arms)

    def learnt(evidence: plain.Evidence) -> tuple[list[int], list[Theta]]:
        """The arms to explore, and the chances of good with the radius."""
        missing = still_missing(evidence, wanted)
        waits = [n for n in range(n_arms) if missing[n] > 0]
        explored = (waits + [n for n in range(n_arms) if n not in waits])[:plays] if waits else []
        thetas = []
        for n in range(n_arms):
            p01, p11 = (
                min(1.0, (good / (bad + good) if bad + good else 0.5) + radius)
                for bad, good in steps_from(evidence, n)
            )
            thetas.append((p01, p11))
        return explored, thetas

    def index(found: tuple[list[int], list[Theta]], n: int, seen: int | None, age: int) -> float:
        if n in found[0]:
            return BEFORE_ALL * (1 - 1e-3 * n)
        return of_channels(case, "whittle")(found[1], n, seen, age)

    def slots(evidence: list[plain.Evidence]) -> int:
        """Until the first agent that explores might have seen enough of an arm."""
        wants = []
        for each in evidence:
            missing = [x for x in still_missing(each, wanted) if x > 0][:plays]
            wants.append(math.ceil(min(missing) / each.agents) if missing else case.horizon)
        return min(wants)

    return plain.Policy(learnt, index, slots=slots)


@pytest.mark.parametrize(
    ("agents", "plays", "aggregation"),
    [(2, 2, "sum"), pytest.param(2, 1, "none", marks=pytest.mark.slow)],
)
def test_restless_ucb_explores_until_it_has_seen_enough(agents, plays, aggregation):
    horizon = 150
    case = Case(PAPER, agents=agents, plays=plays, horizon=horizon, aggregation=aggregation)
    options = {"scale": 0.2, "radius": 0.5, "aggregation": aggregation}
    wanted = math.floor(0.2 * horizon ** (2 / 3)) + 1
    radius = 0.5 * math.sqrt(math.log(horizon) / (2 * wanted))
    slow = restless_ucb(case, wanted, radius)
    records = compare(case, named("restless-ucb", horizon, options), slow)
    for record in records:  # every arm has been explored, and the last episode is by indices
        explored = [set(found[0][0]) for found in record.found]
        assert explored[0] == set(range(plays))
        assert not explored[-1]
        assert sum(record.lengths[:-1]) < horizon - 20


# ------------------------------------------------------------------------------ UCWhittle


def boxes(evidence: plain.Evidence, scale: float) -> list[list[list[tuple[float, float, float]]]]:
    """[arm][action][state]: the least, the likely and the largest chance of good."""
    n_arms, found = len(TENDED), []
    for n in range(n_arms):
        arm = []
        for kind in (1, 0):  # pairs after a slot without a play, and after one with it
            line = []
            for was in (0, 1):
                bad, good = (evidence.pairs.get((kind, n, was, now), 0.0) for now in (0, 1))
                seen = bad + good
                width = 1.0
                if seen:
                    level = math.log(2 * 2 * 2 * n_arms * evidence.episode**4 / 1e-3)
                    width = min(1.0, scale * math.sqrt(2 * 2 * level / seen))
                chance = good / seen if seen else 0.5
                line.append((max(0.0, chance - width), chance, min(1.0, chance + width)))
            arm.append(line)
        found.append(arm)
    return found


def matrix(bad: float, good: float) -> np.ndarray:
    """From the chance of good after bad and after good."""
    return np.array([[1 - bad, bad], [1 - good, good]])


def optimistic(form: str, scale: float, evidence: plain.Evidence) -> list[np.ndarray]:
    found = []
    for n, (idle, plays) in enumerate(boxes(evidence, scale)):
        played = (min(plays[0][2], plays[1][2]), plays[1][2])
        if form == "extreme":
            alone = (idle[0][0], max(idle[0][0], idle[1][0]))
            alone = (min(alone[0], played[0]), min(alone[1], played[1]))
        else:
            after_good = min(idle[1][2], played[1])
            alone = (min(idle[0][2], played[0], after_good), after_good)
        best = indices_of(n, matrix(*alone), matrix(*played))
        if form == "penalty":
            corners = itertools.product(*((x[0], x[2]) for x in (*idle, *plays)))
            values = [
                indices_of(n, matrix(a, b), matrix(c, d))
                for a, b, c, d in corners
                if c >= a and d >= b and b >= a and d >= c
            ]
            best = np.max(values, axis=0) if values else best
        found.append(best)
    return found


@pytest.mark.parametrize(
    "form", ["value", *(pytest.param(x, marks=pytest.mark.slow) for x in ("extreme", "penalty"))]
)
def test_ucwhittle_plays_by_the_best_dynamics_in_the_box(form):
    """Ties to the lower arm here, as the plain one has them."""
    case = Case(TENDED, agents=2, plays=1, horizon=70)
    made = named(f"ucw-{form}", 70, {"scale": 0.1})
    assert isinstance(made.rule, RandomTiesRule)
    policy = replace(made, rule=made.rule.inner)
    learnt = partial(optimistic, form, 0.1)
    slow = plain.Policy(learnt, by_state, slack=1e-4, slots=lambda evidence: 20)
    records = compare(case, policy, slow)
    assert all(r.lengths == [20, 20, 20, 10] for r in records)


# ------------------------------------------------------------------------------ DSEE


def dsee(case: Case, exploration: float) -> plain.Policy:
    n_arms, rewards = len(case.arms), case.arms.reward.tolist()

    def block(evidence: plain.Evidence) -> tuple[set[int] | None, int]:
        return dsee_block(evidence.slot, n_arms, case.plays, evidence.agents, exploration)

    def arms(evidence: plain.Evidence) -> set[int]:
        group = block(evidence)[0]
        if group is not None:
            return group
        visits = evidence.visits
        mean = {
            n: rewards[n] * visits.get((n, 1), 0) / (visits.get((n, 0), 0) + visits.get((n, 1), 0))
            for n in range(n_arms)
        }
        return set(sorted(mean, key=lambda n: (-mean[n], n))[: case.plays])

    return plain.Policy(
        arms,
        None,
        slots=lambda evidence: block(evidence[0])[1],
        explores=lambda evidence: block(evidence)[0] is not None,
    )


@pytest.mark.parametrize(
    ("plays", "aggregation"), [(2, "sum"), pytest.param(3, "none", marks=pytest.mark.slow)]
)
def test_dsee_explores_in_blocks_and_plays_the_best_means_of_exploration(plays, aggregation):
    case = Case(PAPER, agents=2, plays=plays, horizon=150, aggregation=aggregation)
    policy = named("dsee", 150, {"exploration": 1.0, "aggregation": aggregation})
    records = compare(case, policy, dsee(case, 1.0))
    assert {tuple(r.lengths[:3]) for r in records} == {(1, 1, 2)}


# ------------------------------------------------------------------------------ ties


def test_ties_are_broken_by_chance_where_the_rule_says_so():
    """Three arms that pay 1, 2 and 3 for a play, with one index."""
    arms = Arms(
        [
            Arm(np.eye(2), reward_active=[pays, pays], reward_passive=[0, 0], observed="always")
            for pays in (1.0, 2.0, 3.0)
        ]
    )

    def nothing(evidence, draws):
        half = jnp.full((2, 2, 3, evidence.episode.size), 0.5)
        return Moves(half, half)

    def equal(model, max_age):
        return jnp.zeros((3, 1 + 2 * max_age, 1))

    policy = Policy(
        "mine", rule=RandomTiesRule(IndexRule(table=equal)), learner=nothing, randomised=False
    )
    setting = Setting.of(arms, 1, 60, schedule="doubling", max_age=1)
    trials = jnp.arange(32, dtype=jnp.uint32)
    out = simulator(setting, policy, 32)(SEED, trials, truth(arms), jnp.int32(1), None)
    counts = np.bincount(np.asarray(out.rewards).astype(int).ravel(), minlength=4)
    assert counts[0] == 0
    expected = 60 * 32 / 3
    assert np.abs(counts[1:] - expected).max() < 4 * math.sqrt(expected * 2 / 3)
