"""The engine on arms of any kind against a slow, plain Algorithm 1, decision by decision.

The plain one (tests/oracles/algorithm_1.py) shares only the random numbers with the engine, and the
functions that turn its own counts into tables: those have tests of their own. What is compared is
everything in between: how arms of several kinds and sizes move, pay, are seen and counted, which
row of a table is looked up.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab.engine.environment import truth
from rmab.engine.montecarlo import Trials, _known
from rmab.engine.program import simulator
from rmab.engine.setting import Setting
from rmab.learning.evidence import Evidence, count_kinds
from rmab.model.arms import Arm, Arms, Moves
from rmab.planning.tables import Model
from rmab.policies.aggregation import AGGREGATIONS
from rmab.policies.policy import IndexRule
from rmab.policies.registry import named
from rmab.policies.rules.dynamics import KnownTables, table_ages
from rmab.rng.variates import DRAWS, Draws, seed_words, stream
from tests.oracles import algorithm_1 as plain
from tests.oracles.algorithm_1 import Case, algorithm_1, followed, random_words

SEED = seed_words(77)
TRIALS = range(40, 56)

LEVELS = Arm([[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]], reward=[0.0, 0.41, 1.03])
MACHINE = Arm(
    [[0.8, 0.2, 0.0, 0.0], [0.0, 0.7, 0.3, 0.0], [0.0, 0.0, 0.9, 0.1], [0.0, 0.0, 0.0, 1.0]],
    [[1.0, 0.0, 0.0, 0.0]] * 4,
    reward_passive=[0.9, 0.62, 0.33, 0.02],
    reward_active=[-0.37, -0.36, -0.35, -0.34],
    observed="always",
)
PERSON = Arm(
    [[0.95, 0.05], [0.3, 0.7]],
    [[0.4, 0.6], [0.1, 0.9]],
    reward_active=[0, 0.52],
    reward_passive=[0, 0.47],
)
CHANNEL = Arm([[0.8, 0.2], [0.25, 0.75]], reward=[0, 0.57])
WATCHED = Arm([[0.6, 0.4], [0.7, 0.3]], reward=[0.11, 0.83], observed="always")
TENDED = Arm(
    [[0.9, 0.1], [0.4, 0.6]], [[0.3, 0.7], [0.1, 0.9]], reward=[0.05, 0.61], observed="always"
)
RUNNER = Arm([[0.0, 1.0], [1.0, 0.0]], reward=[0.07, 0.49])  # it never forgets
LONG = Arm(
    np.roll(np.eye(6), 1, 1) * 0.8 + np.full((6, 6), 0.2 / 6), reward=[0.0, 0.1, 0.3, 0.6, 0.9, 0.2]
)


def _case(*arms: Arm, plays: int) -> Case:
    return Case(Arms(arms), agents=2, plays=plays, horizon=90)


CASES = {
    "mixed": _case(LEVELS, MACHINE, PERSON, CHANNEL, WATCHED, plays=2),
    "always": _case(MACHINE, WATCHED, WATCHED, plays=1),
    "two states": _case(CHANNEL, PERSON, WATCHED, TENDED, plays=2),
    "when played": _case(LEVELS, CHANNEL, LONG, LEVELS, plays=2),
    "never forgets": _case(RUNNER, LEVELS, CHANNEL, plays=1),
}


@partial(jax.jit, static_argnums=(0, 1))
def plan(case: Case, policy: str, trial, agent, episode, agents, counts, visits):
    """The table (N, I) of one trial from what was counted, drawn from an agent's stream."""
    made, arms = named(policy, case.horizon), case.arms
    assert made.learner is not None
    assert isinstance(made.rule, IndexRule)
    assert made.rule.table is not None
    idle, pays = (
        jnp.asarray(r.T, jnp.float32)[..., None] for r in (arms.reward_passive, arms.reward_active)
    )
    evidence = Evidence(
        counts=counts[..., None],
        visits=visits[..., None],
        episode=episode[None],
        rewards=pays,
        idle_rewards=idle,
        plays=jnp.int32(case.plays),
        agents=agents,
        kinds=arms.kinds,
    )
    draws = Draws(stream(SEED, trial[None], agent, DRAWS), episode[None])
    assert made.learner.function is not None
    moves = made.learner.function(evidence, draws)
    assert isinstance(moves, Moves)
    assert isinstance(made.rule, IndexRule)
    assert made.rule.table is not None
    return made.rule.table(Model(moves, idle, pays, arms.kinds), table_ages(arms))[:, :, 0]


def plain_policy(case: Case, policy: str, known: KnownTables | None) -> plain.Policy:
    """One that looks indices up: in the table it is given, or in those that it fills."""
    S = case.arms.passive.shape[1]
    wraps = [0] * len(case.arms) if known is None else known.wraps.tolist()

    def learnt(evidence: plain.Evidence) -> np.ndarray:
        names = np.uint32(evidence.trial), np.uint32(evidence.agent), np.int32(evidence.episode)
        counts = evidence.arrays(count_kinds(case.arms.kinds))
        return np.asarray(plan(case, policy, *names, np.float32(evidence.agents), *counts))

    def index(table: np.ndarray, n: int, seen: int | None, age: int) -> float:
        max_age = (table.shape[1] - 1) // S
        while age > max_age and wraps[n]:
            age -= wraps[n]
        row = 0 if seen is None or age > max_age else age + seen * max_age
        return float(table[n, row])

    table = None if known is None else np.asarray(known.tables)
    return plain.Policy(learnt if known is None else None, index, table, slack=1e-7)


def compare(case: Case, policy: str) -> list[plain.Record]:
    """Both ways of running every trial of a case; the plain ones' records."""
    arms = case.arms
    setting = Setting.of(
        arms,
        case.agents,
        case.horizon,
        max_age=table_ages(arms),
        draws=case.draws,
        aggregation=AGGREGATIONS[case.aggregation],
    )
    made = named(policy, case.horizon)
    known = _known(Trials(arms, case.plays, setting, 1, 0), made)
    program = simulator(setting, made, len(TRIALS), known)
    out = program(SEED, jnp.asarray(TRIALS, jnp.uint32), truth(arms), jnp.int32(case.plays), known)
    slow = plain_policy(case, policy, known)
    words = zip(*random_words(case, SEED, TRIALS), strict=True)
    records = [
        algorithm_1(case, slow, trial, *own) for trial, own in zip(TRIALS, words, strict=True)
    ]
    same = followed(records, out.rewards, out.episodes, out.lengths, 1e-4)
    assert len(same) >= len(TRIALS) - 2
    return records


@pytest.mark.parametrize("policy", ["whittle", "myopic"])
@pytest.mark.parametrize("case", CASES)
def test_known_dynamics(case, policy):
    compare(CASES[case], policy)


# Their tables do not read what was seen, so one case with arms of every kind stands for the others.
@pytest.mark.parametrize("policy", ["fixed", "fixed-best"])
@pytest.mark.parametrize(
    "case",
    ["mixed", *(pytest.param(case, marks=pytest.mark.slow) for case in CASES if case != "mixed")],
)
def test_fixed_plays(case, policy):
    compare(CASES[case], policy)


@pytest.mark.slow  # a program of its own to compile
def test_learning_on_arms_of_all_kinds():
    """Pairs after waits, both actions, observed always or when played; sizes do not differ, since
    every size of arms is a program of its own to compile."""
    compare(CASES["two states"], "fedtswi")


@pytest.mark.parametrize(
    ("case", "policy"),
    [
        pytest.param("always", "feducb-wi", marks=pytest.mark.slow),
        ("when played", "fedts-myopic"),
    ],
)
def test_learning_on_arms_of_one_kind(case, policy):
    compare(CASES[case], policy)


@pytest.mark.slow
def test_draws_of_each_agent():
    compare(replace(CASES["never forgets"], draws="per-agent"), "fedts-myopic")


@pytest.mark.slow
def test_agents_that_learn_alone():
    records = compare(replace(CASES["never forgets"], aggregation="none"), "fedts-myopic")
    assert not any(np.array_equal(one, other) for r in records for one, other in r.found)
