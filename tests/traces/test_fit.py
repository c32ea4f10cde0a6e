"""Whether a chain fits: traces with known answers, of one shape for which programs are compiled."""

from dataclasses import replace

import numpy as np
import pytest

import rmab
from rmab.studies.sweep import load_sweep
from rmab.traces.code_length import MODELS
from rmab.traces.fit import POLICIES, ReplicatedReward, fit_trace, steps_of, study_text
from rmab.traces.replicates import N_REPLICATES
from rmab.traces.verdicts import FITS, UNKNOWN, Verdict
from tests.traces.made import SLOTS, chain, misclassified, second_order, trace_of, two_regimes

QUESTIONS = ["memory", "order", "regimes", "flicker", "agents alike", "agents correlated"]


def answers(found):
    return {v.question: v.answer for v in found.verdicts}


@pytest.fixture(scope="module")
def true_chain():
    return fit_trace(trace_of(chain()))


def test_a_true_chain_fits(true_chain):
    assert true_chain.share["order1"] > 0.99
    assert answers(true_chain) == dict.fromkeys(QUESTIONS, FITS)
    assert true_chain.reversals == []
    assert true_chain.order_in_words.startswith("The order ")
    assert (len(true_chain.tested), len(true_chain.series)) == (4, 4)
    assert true_chain.regimes == (1.0, 0.0)
    assert true_chain.effective == pytest.approx(2, abs=0.1)
    for each in true_chain.series:
        assert each.pairs == SLOTS - 16
        assert (each.p01, each.p11) == pytest.approx((0.1, 0.9), abs=0.03)
    for name, earned in true_chain.earned.items():
        assert earned.replicates.min() - 0.01 < earned.trace < earned.replicates.max() + 0.01, name


def test_one_agent_has_nobody_to_be_like():
    found = fit_trace(trace_of(chain(agents=1)))
    assert set(answers(found).values()) == {FITS}
    agents = found.to_json()["agents"]
    assert agents == {"correlation": None, "effective": 1.0, "pooling_bits_lost": 0.0}


def test_a_second_order_chain_is_missed():
    found = fit_trace(trace_of(second_order()))
    assert found.to_json()["share"]["order1"] < 0.1
    assert found.share["order2"] == pytest.approx(1, abs=0.01)
    assert answers(found)["memory"] == "no memory"
    assert answers(found)["order"] == "misses something"


def test_two_regimes_are_found():
    found = fit_trace(trace_of(two_regimes()))
    assert found.best == "regimes"
    assert found.to_json()["share"]["order1"] < 0.1
    assert answers(found)["regimes"] == "laws change"
    assert found.regimes == (2.0, 1.0)
    assert answers(found)["flicker"] == FITS
    for each in found.tested:
        assert each.pieces[1].start == pytest.approx(SLOTS / 2, abs=100)


def test_a_misclassified_trace_has_a_poor_sensor():
    found = fit_trace(trace_of(misclassified(0.15, 0.1)))
    assert found.best == "flicker"
    assert answers(found)["flicker"] == "sensing errors"
    assert found.errors == pytest.approx((0.15, 0.1), abs=0.04)
    assert answers(found)["regimes"] == FITS


def test_a_flaky_state_is_no_error_of_a_sensor():
    found = fit_trace(trace_of(misclassified(0.5, 0.02)))
    assert answers(found)["flicker"] == "flaky bad state"
    found = fit_trace(trace_of(1 - misclassified(0.5, 0.02)))
    assert answers(found)["flicker"] == "flaky good state"


def test_copies_of_one_recording_are_worth_one_agent():
    one = chain(agents=1)
    found = fit_trace(trace_of(np.repeat(one, 2, axis=0)))
    assert found.correlation == pytest.approx(1)
    assert found.effective == pytest.approx(1)
    assert found.pooling_bits_lost == 0
    assert answers(found)["agents correlated"] == "correlated"
    assert answers(found)["agents alike"] == FITS
    assert "per-agent" in found.verdicts[-1].so


def test_agents_that_differ_are_not_pooled(tmp_path):
    law = np.array([[0.1, 0.1], [0.6, 0.6]]), np.array([[0.9, 0.9], [0.4, 0.4]])
    found = fit_trace(trace_of(chain(*law)))
    assert found.to_json()["agents"]["pooling_bits_lost"] > 0.3
    assert answers(found)["agents alike"] == "agents differ"
    assert answers(found)["agents correlated"] == FITS

    path = tmp_path / "study.toml"
    path.write_text(study_text(found), encoding="utf-8")
    study = rmab.load(path)
    for agent in range(2):
        arms = study.agent_arms[agent]
        np.testing.assert_allclose(arms.p01, law[0][agent], atol=0.06)
        np.testing.assert_allclose(arms.p11, law[1][agent], atol=0.06)


def test_an_agent_that_measured_nothing_is_none():
    state = np.concatenate([chain(agents=1), np.full((1, SLOTS, 2), -1)])
    found = fit_trace(trace_of(state))
    assert (found.n_agents, found.effective) == (1, 1)
    assert found.verdicts[-1].sentence == "There is one agent."


def test_a_trace_of_one_state_is_refused():
    with pytest.raises(rmab.TraceError, match="the trace: there is no bad anywhere"):
        fit_trace(trace_of(np.ones((2, SLOTS, 2))))


def test_noise_has_no_memory():
    found = fit_trace(trace_of(chain(0.7, 0.7)))
    assert found.best == "iid"
    assert set(found.share.values()) == {None}
    expected = dict.fromkeys(QUESTIONS, FITS) | {"memory": "no memory"}
    assert answers(found) == expected


def test_what_is_too_short_is_not_judged():
    state = chain()
    state[:, 100:] = -1  # 99 pairs are left
    found = fit_trace(trace_of(state))
    assert found.tested == []
    assert set(found.bits.values()) == {None}
    assert [answers(found)[q] for q in QUESTIONS[:5]] == [UNKNOWN] * 5
    assert found.to_json()["flicker"] == {"good_when_bad": None, "bad_when_good": None}
    state[:, 100] = 1
    assert len(fit_trace(trace_of(state)).tested) == 4


def test_few_changes_are_not_judged():
    state = np.zeros((2, SLOTS, 2), np.int8)
    state[0, 20:160:20, 0] = 1  # 7 times up and down
    state[0, 20:80:20, 1] = 1  # 3 times
    state[0, -1, 1] = 1  # and up
    assert [(each.agent, each.arm) for each in fit_trace(trace_of(state)).tested] == [(0, 0)]


def test_what_was_never_measured_is_left_out():
    state = chain()
    state[1, :, 0] = -1
    trace = trace_of(state, agents=("a", "b"), arms=("x", "y"))
    told: list[int] = []
    found = fit_trace(trace, told.append)
    named = [(each["agent"], each["arm"]) for each in found.to_json()["arms"]]
    assert named == [("a", "x"), ("a", "y"), ("b", "y")]
    assert found.to_json()["series"] == 3
    assert sum(told) == steps_of(trace) == N_REPLICATES + 3  # what a bar is as long as


def test_policies_that_change_places_are_named(true_chain):
    twins = {"stay": 0.5, "myopic": 0.6, "whittle": 0.7, "genie": 0.9}
    trace = {"stay": 0.65, "myopic": 0.7, "whittle": 0.6, "genie": 0.9}
    earned = {name: ReplicatedReward(trace[name], np.full(20, twins[name])) for name in POLICIES}
    found = replace(true_chain, earned=earned)
    assert found.reversals == [("stay", "whittle"), ("myopic", "whittle")]
    assert found.reversal_matters
    assert found.order_in_words == (
        "The order reverses. On its twins whittle earns more (0.7000 against 0.5000 of stay and "
        "0.6000 of myopic), on the trace less (0.6000 against 0.6500 of stay and 0.7000 of myopic)."
    )


def test_places_that_replicates_do_not_agree_on_are_not_reversed(true_chain):
    shaky = np.where(np.arange(20) < 18, 0.8, 0.6)  # above stay on 18 of 20
    earned = {
        "stay": ReplicatedReward(0.75, np.full(20, 0.7)),
        "myopic": ReplicatedReward(0.75, np.full(20, 0.7)),
        "whittle": ReplicatedReward(0.7, shaky),
        "genie": ReplicatedReward(1.0, np.ones(20)),
    }
    found = replace(true_chain, earned=earned)
    assert found.reversals == []
    assert found.order_in_words == (
        "The order differs, but twins do not agree on theirs: whittle, stay, myopic on their mean, "
        "stay, myopic, whittle on the trace."
    )


def test_the_same_order_is_said_to_be_so(true_chain):
    rewards = {"stay": 0.7, "myopic": 0.8, "whittle": 0.8, "genie": 1.0}
    earned = {name: ReplicatedReward(x, np.full(20, x - 0.1)) for name, x in rewards.items()}
    found = replace(true_chain, earned=earned)
    assert (
        found.order_in_words == "The order is the same on trace and twins: myopic, whittle, stay."
    )


def test_a_small_reversal_is_said_to_be_small(true_chain):
    rewards = {"stay": 0.7, "myopic": 0.8, "whittle": 0.7999, "genie": 1.0}
    promised = {"stay": 0.7, "myopic": 0.8, "whittle": 0.9, "genie": 1.0}
    earned = {
        name: ReplicatedReward(rewards[name], np.full(20, promised[name])) for name in POLICIES
    }
    found = replace(true_chain, earned=earned)
    assert found.reversals == [("myopic", "whittle")]
    assert not found.reversal_matters
    assert "less than a five-hundredth" in found.order_in_words


def test_the_json_object(true_chain):
    found = true_chain.to_json()
    assert list(found) == [
        "series", "tested", "bits", "share", "regimes", "flicker", "agents", "twin", "verdicts",
        "arms",
    ]  # fmt: skip
    assert list(found["bits"]) == list(found["share"]) == list(MODELS)
    assert list(found["regimes"]) == ["median", "changed"]
    assert list(found["flicker"]) == ["good_when_bad", "bad_when_good"]
    assert list(found["agents"]) == ["correlation", "effective", "pooling_bits_lost"]
    assert list(found["twin"]) == ["stay", "myopic", "whittle", "genie"]
    for each in found["twin"].values():
        assert list(each) == ["trace", "twin", "low", "high"]
        assert each["low"] <= each["twin"] <= each["high"]
    assert [v["question"] for v in found["verdicts"]] == QUESTIONS
    assert all(list(v) == ["question", "size", "answer", "so"] for v in found["verdicts"])
    assert list(found["arms"][0]) == ["agent", "arm", "p01", "p11", "good", "pairs"]


def test_the_study_has_the_arms_of_all_agents(true_chain, tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(study_text(true_chain), encoding="utf-8")
    study = rmab.load(path)
    assert (study.agents, study.plays, len(study.arms)) == (2, 1, 2)
    assert study.realisations == "independent"
    np.testing.assert_allclose(study.arms.p01, 0.1, atol=0.02)
    np.testing.assert_allclose(study.arms.p11, 0.9, atol=0.02)
    assert len(load_sweep(path).points) == 1


def test_the_study_of_correlated_agents_shares_realisations(tmp_path):
    found = fit_trace(trace_of(np.repeat(chain(agents=1), 2, axis=0), source='a "b"\nc'))
    path = tmp_path / "study.toml"
    path.write_text(study_text(found), encoding="utf-8")
    study = rmab.load(path)
    assert (study.realisations, study.draws) == ("shared", "per-agent")
    differ = Verdict("agents alike", 1.0, "agents differ", "", "")
    object.__setattr__(found, "verdicts", [differ, found.verdicts[-1]])
    path.write_text(study_text(found), encoding="utf-8")
    assert rmab.load(path).realisations == "shared"  # which only agents of the same laws can do


def test_levels_are_judged_except_by_the_hmm(tmp_path):
    lower, upper = chain(seed=1), chain(0.2, 0.7, seed=2)
    found = fit_trace(trace_of(np.where(lower == 0, 0, 1 + upper), states=3))
    said = found.to_json()
    assert said["bits"]["flicker"] is None
    assert said["flicker"] == {"good_when_bad": None, "bad_when_good": None}
    assert answers(found)["flicker"] == UNKNOWN
    assert answers(found)["memory"] == FITS
    assert found.series[0].good == pytest.approx(np.mean((lower * upper)[0, :, 0]))
    path = tmp_path / "study.toml"
    path.write_text(study_text(found), encoding="utf-8")
    study = rmab.load(path)
    assert [arm.states for arm in study.arms] == [3, 3]
    assert study.arms[0].reward_active.tolist() == [0, 0, 1]
