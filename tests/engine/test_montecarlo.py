"""Many trials: what may not change the results, and the values that they should have."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import rmab
from rmab.engine import montecarlo
from rmab.engine.environment import truth
from rmab.engine.montecarlo import BLOCK, REFERENCE, Trials, batch_size, even_width
from rmab.engine.program import compiled_rule, simulator
from rmab.engine.setting import Outcome, Setting
from rmab.engine.tally import final_slots
from rmab.learning.thompson import thompson
from rmab.model.arms import ArmKind
from rmab.model.information import InformationStates, stationary_belief
from rmab.planning.joint.optimum import optimal
from rmab.planning.joint.policy_value import fixed_value, policy_value, random_value
from rmab.planning.tables import index_table, myopic, whittle_at
from rmab.policies.constraint import Constraint
from rmab.policies.policy import Policy
from rmab.policies.registry import named
from rmab.policies.rules.compiled import SlotInputs
from rmab.policies.rules.optimum import JointLookup
from rmab.rng.variates import Key, seed_words
from rmab.studies.results import Curve

PAPER = rmab.channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
# One agent: visits end episodes, so that trials differ in how many they have.
SMALL = rmab.Study(PAPER, plays=2, horizon=100, trials=100, policies=["fedtswi", "random"])
WHITTLE, MYOPIC = (partial(index_table, planner, PAPER) for planner in (whittle_at, myopic))
LEARNT_TABLE = Policy("mine", whittle_at, thompson, max_age=SMALL.horizon)
KNOWN_TABLE = Policy("known", whittle_at, max_age=SMALL.horizon)


def numbers(result: rmab.Results, policy: str) -> dict[str, Any]:
    """All that a policy's result has, as arrays."""
    flat: dict[str, Any] = {}
    for key, value in vars(result[policy]).items():
        if isinstance(value, Curve):
            flat |= {f"{key}.mean": value.mean, f"{key}.se": value.se}
        else:
            flat[key] = value
    return flat


def assert_same(first: rmab.Results, second: rmab.Results, *policies: str) -> None:
    """Equal to the last bit."""
    assert first.trials == second.trials
    for policy in policies:
        others = numbers(second, policy)
        for key, array in numbers(first, policy).items():
            np.testing.assert_array_equal(array, others[key], err_msg=f"{policy}: {key}")


@pytest.fixture(scope="module")
def small() -> rmab.Results:
    return rmab.run(SMALL, batch=32, threads=1)


# ------------------------------------------------------------------- what changes nothing


def test_threads_batches_and_company_change_nothing(small):
    assert_same(small, rmab.run(SMALL, batch=32, threads=2), "fedtswi", "random")
    assert_same(small, rmab.run(SMALL), "fedtswi", "random")  # one batch of 128
    others: list[str | Policy] = ["whittle", "random", LEARNT_TABLE, "fedtswi"]
    in_company = rmab.run(replace(SMALL, policies=others), batch=32)
    assert_same(small, in_company, "fedtswi", "random")
    assert small.difference("random", "fedtswi") == in_company.difference("random", "fedtswi")


@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupted_run_is_a_shorter_run(threads):
    done = []

    def progress(trials: int) -> None:
        done.append(trials)
        if len(done) == 2:
            raise KeyboardInterrupt

    cut = rmab.run(SMALL, progress, batch=32, threads=threads)
    assert done == [32, 32]
    assert cut.interrupted
    assert cut.trials == 64
    whole = rmab.run(replace(SMALL, trials=64), batch=32)
    assert not whole.interrupted
    assert_same(cut, whole, "fedtswi", "random")
    np.testing.assert_array_equal(cut.covariance, whole.covariance)


def test_both_words_of_the_seed_change_the_results(small):
    seeds = [0, 1, 1 << 32]
    results = [small, *(rmab.run(replace(SMALL, seed=s), batch=32) for s in seeds[1:])]
    for policy in ("fedtswi", "random"):
        assert len({result.mean[policy] for result in results}) == len(seeds)


def test_progress_counts_every_trial():
    done: list[int] = []
    rmab.run(SMALL, done.append, batch=32)
    assert done == [32, 32, 32, 4]


def test_batches_of_odd_size_are_refused():
    with pytest.raises(ValueError, match="batch must be a multiple of 32, got 48"):
        rmab.run(SMALL, batch=48)


# ------------------------------------------------------------------- results from raw trials


def raw(study: rmab.Study, policy: str, width: int) -> Outcome:
    """The engine's own outcome for the study's trials and some more."""
    setting = Setting.of(study.arms, study.agents, study.horizon)
    program = simulator(setting, named(policy, study.horizon), width, None)
    trials, world = jnp.arange(width, dtype=jnp.uint32), truth(study.arms)
    return program(seed_words(study.seed), trials, world, jnp.int32(study.plays), None)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(values.size))


def test_results_are_those_of_the_raw_trials(small):
    """Every number of a result, recomputed with NumPy from rewards by slot and trial."""
    count, width = SMALL.trials, 128
    out = raw(SMALL, "fedtswi", width)
    rewards = np.asarray(out.rewards, np.float64)[:, :count]
    behind = np.asarray(raw(SMALL, REFERENCE, width).rewards, np.float64)[:, :count] - rewards
    got = small["fedtswi"]

    def check(wanted: np.ndarray, mean: float, se: float) -> None:
        assert (mean, se) == pytest.approx(mean_and_error(wanted), rel=1e-6, abs=1e-7)

    check(rewards.mean(0), got.mean, got.se)
    check(rewards[-10:].mean(0), got.final, got.final_se)
    check(behind.mean(0), got.behind, got.behind_se)
    for slot in range(SMALL.horizon):
        check(rewards[slot], got.slots.mean[slot], got.slots.se[slot])
        check(behind[: slot + 1].sum(0), got.regret.mean[slot], got.regret.se[slot])

    episodes, lengths = np.asarray(out.episodes)[:count], np.asarray(out.lengths)[:, :count]
    assert len(set(episodes.tolist())) > 2, "trials should differ in their episodes"
    assert got.episodes == pytest.approx(episodes.mean())
    assert len(got.episode_trials) == episodes.max()
    assert (lengths.sum(0) == SMALL.horizon).all()
    starts = np.cumsum(lengths, 0) - lengths
    assert got.episode_error is not None
    for place in range(episodes.max()):
        who = np.flatnonzero(episodes > place)
        assert got.episode_trials[place] == who.size
        if who.size < 2:
            continue
        start, end = starts[place], starts[place] + lengths[place]
        for curve, wanted in (
            (got.episode_length, lengths[place, who].astype(float)),
            (got.episode_reward, np.array([rewards[start[r] : end[r], r].mean() for r in who])),
            (got.episode_regret, np.array([behind[start[r] : end[r], r].mean() for r in who])),
        ):
            check(wanted, curve.mean[place], curve.se[place])
        for arm in range(4):
            wanted = np.asarray(out.error, np.float64)[place, arm, who]
            check(wanted, got.episode_error.mean[place, arm], got.episode_error.se[place, arm])


# ------------------------------------------------------------------- the same channels for all


def test_policies_meet_the_same_channels():
    """Where all arms are played there is nothing to choose: no two policies differ in any trial."""
    study = replace(SMALL, plays=4, policies=["fedtswi", "random", "whittle", KNOWN_TABLE])
    result = rmab.run(study, batch=32)
    for policy in ("random", "whittle", "known"):
        assert result.difference("fedtswi", policy) == (0.0, 0.0)
        assert result[policy].behind_se == 0
        np.testing.assert_array_equal(result[policy].regret.se, 0)
    assert result.se["random"] > 0


def test_agents_share_a_realisation_or_do_not():
    study = replace(SMALL, agents=3, plays=4, trials=320, policies=["whittle"])
    alone = rmab.run(replace(study, agents=1), batch=32)
    shared = rmab.run(replace(study, realisations="shared"), batch=32)
    apart = rmab.run(study, batch=32)
    # Three agents on one realisation see, trial by trial, what one agent sees there.
    np.testing.assert_allclose(shared["whittle"].slots.mean, alone["whittle"].slots.mean, rtol=1e-6)
    assert shared.se["whittle"] == pytest.approx(alone.se["whittle"], rel=1e-6)
    ratio = (shared.se["whittle"] / apart.se["whittle"]) ** 2
    # An estimated variance of n trials has a relative standard error of sqrt(2 / n).
    assert ratio == pytest.approx(3, rel=4 * math.sqrt(2 * 2 / 320))


# ------------------------------------------------------------------- a policy of one's own


def test_own_policies_equal_the_built_in_ones_that_compute_the_same(small):
    """A table of all information states, filled each episode or once, and looked up."""
    study = replace(SMALL, policies=["whittle", "fedtswi", LEARNT_TABLE, KNOWN_TABLE])
    result = rmab.run(study, batch=32)
    assert_same(small, result, "fedtswi")
    for own, built_in in (("known", "whittle"), ("mine", "fedtswi")):
        first, second = numbers(result, own), numbers(result, built_in)
        for key in ("mean", "slots.mean", "regret.mean", "episode_length.mean", "episodes"):
            np.testing.assert_array_equal(first[key], second[key], err_msg=f"{own}: {key}")
    np.testing.assert_allclose(
        numbers(result, "mine")["episode_error.mean"],
        numbers(result, "fedtswi")["episode_error.mean"],
        rtol=1e-5,
    )


# ------------------------------------------------------------------- draws of each agent


def test_an_agent_alone_draws_what_all_would_share(small):
    assert_same(small, rmab.run(replace(SMALL, draws="per-agent"), batch=32), "fedtswi", "random")


def test_what_is_not_drawn_is_one_program():
    one, apart = (Setting.of(PAPER, 2, 10, draws=draws) for draws in ("shared", "per-agent"))
    for policy in (named("feducb-myopic", 10), named("myopic", 10)):
        assert simulator(apart, policy, 32) is simulator(one, policy, 32)


@pytest.mark.slow
def test_every_agent_has_a_table_of_its_own():
    """The same decisions as those of the formula, evaluated where each agent is."""
    known = jnp.asarray(PAPER.p01)[:, None], jnp.asarray(PAPER.p11)[:, None]
    sure = Policy("sure", whittle_at, lambda *_: known, statewise=True)  # the same in all trials
    study = replace(SMALL, agents=2, trials=32, policies=["fedtswi", LEARNT_TABLE, sure, "whittle"])
    result = rmab.run(replace(study, draws="per-agent"))
    for one, other in (("mine", "fedtswi"), ("sure", "whittle")):
        for key in ("mean", "slots.mean"):
            np.testing.assert_array_equal(numbers(result, one)[key], numbers(result, other)[key])


@pytest.mark.slow  # a program of its own to compile
@pytest.mark.parametrize(("plays", "value"), [(1, 0.5546), (2, 0.9745)])
def test_draws_of_each_agent_in_the_papers_scenario(plays, value):
    """M = 4, T = 1000, against values of an independent implementation (error .0005)."""
    study = rmab.Study(PAPER, agents=4, plays=plays, trials=1024, policies=["fedtswi"])
    apart = rmab.run(replace(study, draws="per-agent"))
    assert abs(apart.mean["fedtswi"] - value) < 4 * math.hypot(0.0005, apart.se["fedtswi"])
    if plays == 1:  # where agents that differ gain most: .5524 with one draw for all
        shared = rmab.run(study)
        error = math.hypot(shared.se["fedtswi"], apart.se["fedtswi"])
        gain = apart.mean["fedtswi"] - shared.mean["fedtswi"]
        assert abs(gain - 0.0022) < 4 * math.hypot(0.0007, error)
        assert gain > 2 * error


# ------------------------------------------------------------------- memory


def test_batches_fit_the_cache_and_long_horizons_are_not_kept_in_bulk():
    def setting(n_agents: int, n_arms: int, horizon: int) -> Setting:
        return Setting(
            n_agents, (ArmKind(2, fully_observed=False, action_dependent=False),) * n_arms, horizon
        )

    paper = batch_size(setting(4, 4, 1000))
    assert paper % BLOCK == 0
    assert paper * 16 <= montecarlo._CACHED_ELEMENTS
    assert batch_size(setting(16, 100, 1000)) == 2 * BLOCK
    for horizon in (10**4, 10**5, 10**6):
        size = batch_size(setting(1, 2, horizon))
        assert size % BLOCK == 0
        assert size == BLOCK or 4 * horizon * size <= montecarlo._SERIES_BYTES
    assert batch_size(setting(1, 2, 10**6)) == BLOCK


@pytest.mark.parametrize("n_trials", [1, 33, 1000, 1024, 2048, 10_000])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_have_as_much_to_do(n_trials, threads):
    paper = Setting(4, (ArmKind(2, fully_observed=False, action_dependent=False),) * 4, 1000)
    width = even_width(paper, n_trials, threads)
    assert width % BLOCK == 0
    assert width <= 1.5 * batch_size(paper) + BLOCK
    batches = -(-n_trials // width)
    busiest = -(-batches // threads) * width
    assert busiest - n_trials / threads < batches * BLOCK


def test_the_last_tenth_has_at_least_a_slot():
    assert [final_slots(n) for n in (1, 5, 14, 100, 1000)] == [1, 1, 1, 10, 100]


# ------------------------------------------------------------------- values


@pytest.mark.parametrize("plays", [2, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 3))])
def test_known_dynamics_agree_with_the_exact_values(plays):
    """Within 4 standard errors of the chains' exact gains, after the start has worn off."""
    optimum = optimal(PAPER, plays, max_states=250_000)
    rest = stationary_belief(PAPER)
    exact = {
        "optimal": optimum.value,
        "whittle": policy_value(PAPER, plays, WHITTLE),
        "myopic": policy_value(PAPER, plays, MYOPIC),
        "random": random_value(PAPER, plays),
        "fixed": fixed_value(PAPER, plays, rest),
        "fixed-best": fixed_value(PAPER, plays, PAPER.reward * rest),
    }
    horizon = 600
    trials = Trials(PAPER, plays, Setting.of(PAPER, 2, horizon), n_trials=3072, seed=plays)
    policies = {name: named(name, horizon) for name in exact}
    done = montecarlo.simulate(trials, policies)
    half = horizon // 2
    for name, value in exact.items():
        tally = done.tallies[name]
        assert abs(tally.final.mean - value) < 4 * tally.final.se, name
        assert tally.final.se < 0.004
        # Regret over the second half is the difference of gains; paired, it is far sharper.
        slope = (tally.regret.mean[-1] - tally.regret.mean[half - 1]) / half
        error = (tally.regret.se[-1] + tally.regret.se[half - 1]) / half
        assert abs(slope - (exact["whittle"] - value)) < 4 * error + 1e-5, name


def test_the_optimum_is_looked_up_where_its_planner_put_it():
    """In any information state, also past the ages that the table tells apart."""
    arms = rmab.channels([0.3, 0.9, 0.6], [0.8, 0.3, 0.4], [0.5, 0.9, 0.7])  # both signs of memory
    optimum = optimal(arms, 1, max_states=20_000)
    # Decisions at random tell the codes apart that the optimum would treat alike.
    rng = np.random.default_rng(9)
    codes = np.arange(optimum.actions.size)
    optimum = replace(optimum, codes=codes, choices=rng.integers(0, 3, codes.size))
    last_seen = rng.integers(0, 2, (3, 1, 500))
    age = rng.integers(0, 3 * optimum.layout.caps.max(), (3, 1, 500))
    played = optimum.subsets[optimum.actions[optimum.code(last_seen, age)]]  # (1, 500, 3)
    trials = Trials(arms, 1, Setting.of(arms, 1, 10), 1, 0)
    joint = JointLookup.of(optimum)
    agents = compiled_rule(trials.setting, named("optimal", 10), None)
    observed = InformationStates(jnp.asarray(last_seen, bool), jnp.asarray(age, jnp.int32))
    there, wraps, one = truth(arms), agents.wraps(joint), jnp.int32(1)
    seen, key = observed.last_seen, Key(jnp.uint32(0), jnp.uint32(0))
    constraint = Constraint(one)
    inputs = SlotInputs(joint, observed, seen, None, one, key, there, wraps, constraint)
    got = agents.choose(inputs)
    np.testing.assert_array_equal(got, np.moveaxis(played, -1, 0))


def test_the_front_door_gives_the_same_exact_values():
    values = rmab.value(rmab.Study(PAPER, plays=3))
    assert values["optimum"] == pytest.approx(optimal(PAPER, 3).value)
    assert values["whittle"] == pytest.approx(policy_value(PAPER, 3, WHITTLE))
    assert values["myopic"] == pytest.approx(policy_value(PAPER, 3, MYOPIC))


@pytest.mark.slow  # tests/golden/test_paper_study.py has its numbers
def test_learning_in_the_papers_scenario():
    """M = 4, K = 2, T = 1000, against values of an independent implementation (error .0005)."""
    wanted = {"fedtswi": 0.974, "fedts-myopic": 0.962, "feducb-wi": 0.976, "feducb-myopic": 0.976}
    study = rmab.Study(PAPER, agents=4, plays=2, trials=2048, policies=[*wanted, "whittle"])
    result = rmab.run(study)
    for policy, value in wanted.items():
        error = math.hypot(0.0005, result.se[policy]) + 0.0005  # the last: three digits
        assert abs(result.mean[policy] - value) < 4 * error, policy
    assert result.mean["whittle"] == pytest.approx(0.985, abs=0.0005 + 4 * result.se["whittle"])
    # Trials are paired: differences are known far better than the means themselves.
    _, paired = result.difference("whittle", "fedtswi")
    assert math.hypot(result.se["whittle"], result.se["fedtswi"]) > 2 * paired
    assert result["fedtswi"].behind_se == pytest.approx(paired, rel=1e-6)
    assert result["whittle"].behind == 0
