"""What rules earn on a trace: against a plain loop over agents and slots, and by hand."""

import numpy as np
import pytest

from rmab.model.arms import channels
from rmab.planning.channel.whittle import whittle_index
from rmab.traces import backtest
from tests.oracles.trace_rules import (
    RULES,
    fitted_dynamics,
    rewards_of_rules,
    rewards_of_states,
)
from tests.traces.made import chain, trace_of


def holey(seed, agents=2, slots=60, arms=3):
    """A trace with holes, a slot without any arm, and segments of several lengths."""
    rng = np.random.default_rng(seed)
    state = chain(rng.uniform(0.05, 0.6, (agents, arms)), rng.uniform(0.3, 0.95, (agents, arms)),
                  agents, arms, slots, seed)  # fmt: skip
    state = np.where(rng.random(state.shape) < 0.3, -1, state)
    state[0, 7] = -1
    return trace_of(state, np.sort(rng.integers(0, 6, slots)))


def by_loops(trace, plays, policy):
    """The rules of a back-test, word by word."""
    agents, slots, arms = trace.state.shape
    reward, n_slots = 0, 0
    for m in range(agents):
        n = np.zeros((arms, 2, 2))
        for t in range(1, slots):
            if trace.segment[t] == trace.segment[t - 1]:
                for a in range(arms):
                    before, now = trace.state[m, t - 1, a], trace.state[m, t, a]
                    if before >= 0 and now >= 0:
                        n[a, before, now] += 1
        p01, p11 = ((n[:, s, 1] + 0.5) / (n[:, s].sum(1) + 1) for s in (0, 1))
        rest = p01 / (p01 + 1 - p11)
        good = [np.mean(x[x >= 0]) for x in trace.state[m].T]
        for t in range(slots):
            if t == 0 or trace.segment[t] != trace.segment[t - 1]:
                last, age = [-1] * arms, [0] * arms
            index = []
            for a in range(arms):
                b = rest[a]
                for k in range(age[a]):
                    b = (
                        (p11[a] if last[a] == 1 else p01[a])
                        if k == 0
                        else p01[a] + (p11 - p01)[a] * b
                    )
                turn = age[a] or 1e6
                if policy == "whittle":
                    index.append(whittle_index(channels(p01[a], p11[a], 1.0), b)[0])
                else:
                    stays = last[a] == 1 and age[a] == 1
                    indices = {"stay": 1e9 if stays else turn, "round-robin": turn, "myopic": b}
                    indices |= {"fixed-best": good[a], "genie": trace.state[m, t, a]}
                    index.append(indices[policy])
            there = [a for a in range(arms) if trace.state[m, t, a] >= 0]
            n_slots += bool(there)
            played = sorted(there, key=lambda a: (-round(float(index[a]), 12), a))[:plays]
            age = [x + 1 if x else 0 for x in age]
            for a in played:
                reward += int(trace.state[m, t, a])
                last[a], age[a] = trace.state[m, t, a], 1
    return reward / n_slots


@pytest.mark.parametrize("policy", RULES)
@pytest.mark.parametrize("plays", [1, 2])
def test_rewards_are_those_of_a_plain_loop(policy, plays):
    for seed in range(2):
        trace = holey(seed)
        expected = by_loops(trace, plays, policy)
        assert rewards_of_rules(trace, plays, [policy]) == {policy: pytest.approx(expected)}


def test_stay_by_hand():
    """Slot by slot: never observed 0, stays, fails; never observed 1, fails; 0 is older, stays."""
    state = np.array([[[1, 0], [1, 0], [0, 1], [0, 0], [1, 1], [1, 0], [-1, 1], [-1, -1]]])
    trace = trace_of(state)
    assert rewards_of_rules(trace, 1, ["stay", "genie"]) == {"stay": 5 / 7, "genie": 6 / 7}


def test_fewer_arms_than_plays_are_all_played():
    trace = trace_of(np.array([[[1, -1, -1], [1, 1, -1], [1, 1, 1], [-1, -1, -1]]]))
    assert rewards_of_rules(trace, 2, ["stay"]) == {"stay": 5 / 3}


def test_dynamics_are_counted_in_neighbouring_slots_of_a_segment():
    state = np.array([[[1, 1], [1, -1], [0, 0], [1, 1]]])
    found = fitted_dynamics(state.astype(np.int8), np.array([0, 0, 0, 1]))
    np.testing.assert_allclose(found.p11, [[(1 + 0.5) / (2 + 1), 0.5]])
    np.testing.assert_allclose(found.p01, [[0.5, 0.5]])
    np.testing.assert_allclose(found.good, [[3 / 4, 2 / 3]])
    np.testing.assert_allclose(found.pairs, [[2, 0]])


def test_several_traces_at_once_are_each_alone():
    traces = [holey(seed) for seed in range(3)]
    segment = traces[0].segment
    together = rewards_of_states(np.stack([t.state for t in traces]), segment, 1, list(RULES))
    for n, trace in enumerate(traces):
        alone = rewards_of_rules(trace_of(trace.state, segment), 1, list(RULES))
        assert {name: rewards[n] for name, rewards in together.items()} == alone


@pytest.mark.parametrize("plays", [1, 2])
def test_the_back_test_pays_the_same(plays):
    trace = holey(5, slots=400)
    expected = rewards_of_rules(trace, plays, list(RULES))
    assert backtest.rewards_of_rules(trace, plays, list(RULES)) == pytest.approx(expected)
