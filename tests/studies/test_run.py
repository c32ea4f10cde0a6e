"""Running a study: what the seed decides, exact values, interruptions, what learning earns."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from rmab import ModelError, Policy, Results, Study, channels, run, value
from rmab.studies.run import SIMULATED, Values, simulated_values
from tests.studies.small import KNOWN, STUDY

PAPER_ARMS = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])


def same(first: Results, second: Results) -> bool:
    """Whether the numbers are the same to the last bit."""
    return first.summary() == second.summary() and all(
        np.array_equal(first[name].slots.mean, second[name].slots.mean)
        and np.array_equal(first[name].regret.se, second[name].regret.se, equal_nan=True)
        and np.array_equal(first[name].episode_trials, second[name].episode_trials)
        for name in first
    )


def test_the_seed_decides_alone(results):
    assert same(run(STUDY, threads=1, batch=32), results)
    alone = run(replace(STUDY, policies=["fedtswi"]))
    assert alone["fedtswi"].mean == results["fedtswi"].mean
    assert alone["fedtswi"].behind == results["fedtswi"].behind
    other = run(replace(STUDY, seed=1))
    assert other.mean != results.mean


def test_progress_counts_every_trial():
    steps: list[int] = []
    run(replace(KNOWN, trials=100), steps.append, batch=32)
    assert steps == [32, 32, 32, 4]


def test_values_look_as_far_ahead_as_the_study_says():
    arms = channels([0.13, 0.26, 0.77, 0.57], [0.13, 0.44, 0.48, 0.19], [0.81, 0.38, 0.57, 0.66])
    ahead = [
        value(Study(arms=arms, options={"lookahead": {"depth": d}}))["lookahead"] for d in (1, 2)
    ]
    assert ahead == pytest.approx([0.355319, 0.355178], abs=1e-6)


def test_exact_values_come_with_reasons():
    values = value(STUDY)
    assert values.reasons == {}
    assert list(values)[:3] == ["optimum", "upper_bound", "whittle"]
    assert all(type(x) is float for x in values.values())


# -------------------------------------------------------------------------------------- interrupted


def interrupt(_: int) -> None:
    raise KeyboardInterrupt


def test_a_simulated_value_agrees_with_the_exact_one():
    """Two agents with arms of their own; the values stand for some that are out of reach."""
    study = replace(STUDY, agent=[{"agents": 2, "arm": [{"number": 1, "reward": 0.5}]}])
    exact = value(study)
    done: list[int] = []
    missing = Values({**exact, "whittle": None}, {"whittle": "too large"})
    found = simulated_values(study, missing, done.append)
    assert list(found) == ["whittle"]
    assert sum(done) == len(SIMULATED)
    assert 0 < found["whittle"].se < 0.01
    assert found["whittle"].mean == pytest.approx(exact["whittle"], abs=4 * found["whittle"].se)


def test_an_interrupted_run_keeps_the_trials_done():
    part = run(replace(KNOWN, trials=10**6), interrupt, batch=32, threads=2)
    assert part.interrupted
    assert part.trials == 32
    whole = run(replace(KNOWN, trials=32))
    assert part.summary()["policies"] == whole.summary()["policies"]
    assert same(replace(part, interrupted=False), whole)


def test_an_interruption_before_the_first_trial_is_passed_on(monkeypatch):
    def reduce(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rmab.engine.montecarlo.reduce_batch", reduce)
    with pytest.raises(KeyboardInterrupt):
        run(KNOWN)


def test_an_error_on_the_way_is_passed_on():
    def fail(_: int) -> None:
        raise RuntimeError("no more room")

    with pytest.raises(RuntimeError, match="no more room"):
        run(replace(KNOWN, trials=100), fail, batch=32)


# ---------------------------------------------------------------- what observations at any gap earn


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agents", "plays", "least"), [(4, 2, 0.9800), (4, 1, 0.5765), (1, 1, 0.5675)]
)
def test_a_third_to_a_seventh_of_the_loss_is_left(agents, plays, least):
    policies = ["fedtswi", "fedtswi-gap"]
    study = Study(arms=PAPER_ARMS, agents=agents, plays=plays, trials=10_000, policies=policies)
    results = run(study)
    assert results["fedtswi-gap"].mean > least
    assert results["fedtswi-gap"].behind < results["fedtswi"].behind / 2.5


@pytest.mark.slow
def test_looking_ahead_ends_above_the_whittle_policy_that_knows():
    policies = ["fedts-lookahead-gap", "whittle"]
    results = run(Study(arms=PAPER_ARMS, agents=4, plays=2, trials=10_000, policies=policies))
    learnt, known = (results[name] for name in policies)
    assert learnt.final > known.final + learnt.final_se


def _reward(dynamics, states):
    return dynamics.reward * jnp.where(states.last_seen == 1, dynamics.p11, dynamics.p01)


def _undefined(dynamics, states):
    return jnp.where(states.age == 3, jnp.nan, _reward(dynamics, states))


def _of_some(dynamics, states):
    return _reward(dynamics, states) + jnp.log(dynamics.p01 - 0.15)


def _share(evidence, draws):  # of nothing, before anything was observed
    bad, good = evidence.transitions[:, 0], evidence.transitions[:, 1]
    return tuple(good / (bad + good))


def _half(evidence, draws):
    return tuple(0 * evidence.transitions[:, 0] + 0.5)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy("mine", planner=_undefined), "policy mine: its planner .* these arms gave NaN"),
        (Policy("mine", planner=_undefined, statewise=True), "policy mine: its planner"),
        (Policy("mine", planner=_of_some, learner=_half), "that may be learnt gave NaN"),
        (Policy("mine", planner=_reward, learner=_share), "policy mine: its learner gave"),
    ],
)
def test_a_policy_that_gives_nan_is_refused_with_its_name(policy, words):
    study = Study(
        arms=channels([0.2, 0.9], [0.8, 0.2], 1.0), horizon=20, trials=32, policies=[policy]
    )
    with pytest.raises(ModelError, match=words):
        run(study)


def test_a_policy_that_gives_infinity_is_played():
    def first(dynamics, states):
        return jnp.where(states.age == 0, jnp.inf, _reward(dynamics, states))

    mine = Policy("mine", planner=first)
    study = Study(
        arms=channels([0.2, 0.9], [0.8, 0.2], 1.0), horizon=20, trials=32, policies=[mine]
    )
    assert run(study).mean["mine"] > 0
