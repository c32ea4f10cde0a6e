"""Looking ahead in the engine: the decisions of the exact functions, the exact average reward."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from rmab.engine.environment import truth
from rmab.engine.montecarlo import Trials, _known
from rmab.engine.program import compiled_rule
from rmab.engine.setting import Setting
from rmab.errors import ModelError, StudyError
from rmab.learning.thompson import thompson
from rmab.model.arms import Arm, Arms, channels
from rmab.model.information import InformationStates
from rmab.planning.joint.policy_value import lookahead_value
from rmab.planning.lookahead.tables import known_lookahead
from rmab.policies.constraint import Constraint
from rmab.policies.lookahead import choose
from rmab.policies.policy import Policy
from rmab.policies.registry import named
from rmab.policies.rules.compiled import SlotInputs
from rmab.rng.variates import Key
from rmab.studies.run import run
from rmab.studies.study import Study

PAPER = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
LEVELS = Arm([[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]], reward=[0.0, 0.41, 1.03])
PERSON = Arm(
    [[0.9, 0.1], [0.3, 0.7]],
    [[0.4, 0.6], [0.1, 0.9]],
    reward_active=[0, 0.52],
    reward_passive=[0, 0.47],
)
WATCHED = Arm([[0.6, 0.4], [0.7, 0.3]], reward=[0.11, 0.83], observed="always")
RUNNER = Arm([[0.0, 1.0], [1.0, 0.0]], reward=[0.07, 0.49])  # it never forgets
MIXED = Arms([LEVELS, PERSON, WATCHED, RUNNER])
ALIKE = Arms([LEVELS, WATCHED, RUNNER])  # these move alike, played or not
HIDDEN = Arms([LEVELS, PERSON, LEVELS])


def decisions(arms: Arms, plays: int, depth: int, states: InformationStates) -> np.ndarray:
    """What the engine plays in states (N, X) of one agent, a mask (N, X)."""
    cases = states.age.shape[1]
    setting = Setting.of(arms, 1, horizon=10)
    policy = named("lookahead", 10, {"depth": depth})
    agents = compiled_rule(setting, policy, plays)
    trials = Trials(arms, plays, setting, cases, seed=0)
    known = _known(trials, policy)
    plan = agents.first(truth(arms), cases, known, 1)
    seen = jnp.asarray(states.last_seen[:, None]).astype(agents.environment.state_type)
    observed = InformationStates(seen, jnp.asarray(states.age[:, None], jnp.int32))
    key, slot, constraint = Key(jnp.uint32(0), jnp.uint32(0)), jnp.int32(0), Constraint(plays)
    there, wraps = truth(arms), agents.wraps(known)
    inputs = SlotInputs(plan, observed, seen, None, slot, key, there, wraps, constraint)
    played = agents.choose(inputs)
    return np.asarray(played)[:, 0]


def some_states(arms: Arms, cases: int, seed: int) -> InformationStates:
    rng = np.random.default_rng(seed)
    return InformationStates(
        rng.integers(0, arms.sizes[:, None], (len(arms), cases)),
        rng.integers(0, 12, (len(arms), cases)),
    )


@pytest.mark.parametrize(
    ("arms", "plays", "depth"),
    [
        (PAPER, 1, 1),
        (PAPER, 2, 2),
        (PAPER, 2, 3),
        (HIDDEN, 1, 3),
        (MIXED, 2, 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (PAPER, 1, 2),
                (PAPER, 3, 2),
                (HIDDEN, 2, 2),
                (MIXED, 1, 1),
                (MIXED[1:3], 1, 3),
            )
        ),
    ],
)
def test_decisions_are_those_of_the_exact_functions(arms, plays, depth):
    states = some_states(arms, 400, seed=plays)
    exact = choose(known_lookahead(arms, plays, depth, max_age=200)(states), plays)
    found = decisions(arms, plays, depth, states)
    assert (found.sum(0) == plays).all()
    # Values closer than single precision tells apart may be ranked either way.
    assert (found == exact).all(0).mean() > 0.98


@pytest.mark.slow
def test_many_arms_decide_alike():
    """64 arms, 16 plays: sets near the best, and a law of counts instead of outcomes."""
    rng = np.random.default_rng(3)
    arms = channels(*rng.uniform(0.05, 0.95, (3, 64)))
    states = some_states(arms, 40, seed=1)
    exact = choose(known_lookahead(arms, 16, 2, max_age=50)(states), 16)
    found = decisions(arms, 16, 2, states)
    assert (found.sum(0) == 16).all()
    assert (found == exact).all(0).mean() > 0.9


@pytest.mark.parametrize(
    ("arms", "plays", "depth"),
    [(PAPER, 1, 1), (MIXED, 2, 2), pytest.param(PAPER, 2, 2, marks=pytest.mark.slow)],
)
def test_simulated_reward_is_the_exact_one(arms, plays, depth):
    options = {"lookahead": {"depth": depth}}
    study = Study(
        arms, 2, plays, horizon=400, trials=512, policies=["lookahead"], options=options, seed=5
    )
    found = run(study)["lookahead"]
    exact = lookahead_value(arms, plays, depth, max_states=40_000)
    assert abs(found.final - exact) < 4 * found.final_se + 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arms", "plays", "draws"),
    [(PAPER, 2, "per-agent"), pytest.param(ALIKE, 1, "shared", marks=pytest.mark.slow)],
)
def test_learning_from_looks_in_consecutive_slots(arms, plays, draws):
    """With a learner that compiles fast; it ends nearer to the known lookahead than it began."""
    ahead = Policy(
        "ahead",
        None,
        partial(thompson, prior=1.0),
        statewise=True,
        depth=2,
        reads_visits=False,
    )
    horizon = 300 if arms is PAPER else 60
    policies: list[str | Policy] = [ahead, "lookahead", "random"]
    study = Study(arms, 2, plays, horizon, trials=96, policies=policies, draws=draws, seed=2)
    found = run(study)
    learnt, known, random = (found[name] for name in ("ahead", "lookahead", "random"))
    assert np.isfinite(learnt.slots.mean).all()
    assert random.mean < learnt.mean < known.mean + 4 * known.se
    assert learnt.final > random.final + 4 * learnt.final_se


def test_a_depth_that_does_not_fit_is_refused():
    wide = channels([0.3] * 20, [0.6] * 20, 1.0)
    options = {"lookahead": {"depth": 3}}
    with pytest.raises(StudyError, match=r"options.lookahead.depth must be at most 2 .* got 3"):
        Study(wide, plays=10, policies=["lookahead"], options=options)
    with pytest.raises(StudyError, match=r"options.lookahead.depth must be one of 1, 2, 3, got 4"):
        Study(PAPER, plays=1, policies=["lookahead"], options={"lookahead": {"depth": 4}})
    with pytest.raises(ModelError, match="depth must be at most 2"):
        run(Study(wide, plays=10, policies=[Policy("mine", None, statewise=True, depth=3)]))
