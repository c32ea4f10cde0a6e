"""Learners with a state of their own: in the engine, as an agent runs them, and by known values."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import rmab
from rmab.linalg import Array
from rmab.policies.own_index import Observations
from rmab.policies.plans import OwnPlan
from rmab.policies.published.ucb import MeanRewards
from rmab.protocol.config import Federation, KnownArm
from rmab.protocol.planner import Planner
from tests.protocol.lockstep import engine_decisions, served_decisions, true_states

PAPER = rmab.channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])


def plain_ucb(rewards: np.ndarray, plays: int, c: float) -> np.ndarray:
    """Arms played in each slot, (slots, K), of arms that would pay rewards (slots, N)."""
    horizon, n_arms = rewards.shape
    number, total = [0] * n_arms, [0.0] * n_arms
    played = []
    for t in range(1, horizon + 1):
        bounds = [
            total[n] / number[n] + math.sqrt(c * math.log(t) / number[n]) if number[n] else math.inf
            for n in range(n_arms)
        ]
        ranked = sorted((-bound, n) for n, bound in enumerate(bounds))
        chosen = sorted(n for _, n in ranked[:plays])
        for n in chosen:
            number[n] += 1
            total[n] += rewards[t - 1, n]
        played.append(chosen)
    return np.array(played)


@pytest.mark.parametrize(("plays", "c"), [(1, 2.0), (2, 0.5)])
def test_an_agent_plays_as_plain_ucb_does(plays, c):
    rng = np.random.default_rng(plays)
    rewards = rng.random((200, 5))
    own = MeanRewards(c)
    state = own.init(2, (5,))
    for t, wanted in enumerate(plain_ucb(rewards, plays, c)):
        index = own.index(state, np.int64(t))
        found = np.sort(np.argsort(-index, kind="stable")[:plays])
        np.testing.assert_array_equal(found, wanted)
        played = np.isin(np.arange(5), found)
        state = own.update(state, Observations(played, played, played, rewards[t], np.int64(t)))


@pytest.mark.slow
@pytest.mark.parametrize(("plays", "value"), [(1, 0.4059), (2, 0.8112)])
def test_the_value_of_ucb_in_the_papers_scenario(plays, value):
    """One agent, T = 1000, against an independent implementation's value, given to four digits."""
    study = rmab.Study(PAPER, plays=plays, horizon=1000, trials=2048, policies=["ucb"])
    found = rmab.run(study)
    assert abs(found.mean["ucb"] - value) < 4 * found.se["ucb"] * math.sqrt(2) + 0.0005


@pytest.mark.slow
def test_agents_with_a_state_of_their_own_learn_alone():
    """What is shared by others makes no difference to them."""
    study = rmab.Study(PAPER, agents=3, plays=2, horizon=60, trials=32, policies=["ucb", "fedtswi"])
    one, other = (rmab.run(replace(study, aggregation=name)) for name in ("sum", "none"))
    assert one.mean["ucb"] == other.mean["ucb"]
    assert one.mean["fedtswi"] != other.mean["fedtswi"]


@pytest.mark.parametrize(("name", "options"), [("ucb", {"c": 1.5}), ("rca", {"L": 0.5})])
def test_a_served_agent_with_a_state_of_its_own_plays_as_a_simulated_one(
    monkeypatch, name, options
):
    arms = tuple(KnownArm(2, (0.0, float(r))) for r in PAPER.reward)
    federation = Federation("f", 2, arms, policy=name, options=options, seed=11)
    plan = Planner(federation).plan(None, 1).plan  # type: ignore[arg-type]  # needs no counts
    assert plan == OwnPlan(name, options)
    states = true_states(PAPER, federation.seed, n_agents=2, horizon=80)
    served = served_decisions(Planner(federation), states)
    engine = engine_decisions(monkeypatch, PAPER, federation, 2, 80)
    np.testing.assert_array_equal(served, engine)


# ---------------------------------------------------------------- a learner that gives dynamics


class _Recent(NamedTuple):
    last: Array  # (N, ...) the state last observed, -1 if none
    pairs: Array  # (2, 2, N, ...) discounted


@dataclass(frozen=True)
class Forgetful:
    """Transitions between consecutive observations, each slot worth less than the one after it."""

    keep: float

    def init(self, n_states: int, shape: tuple[int, ...]) -> _Recent:
        pairs = np.zeros((n_states, n_states, *shape), np.float32)
        return _Recent(np.full(shape, -1, np.int32), pairs)

    def update(self, state: _Recent, seen: Observations) -> _Recent:
        now = jnp.asarray(seen.state, jnp.int32)
        each = jnp.arange(2).reshape(2, *[1] * now.ndim)
        new = (each[:, None] == state.last) & (each[None] == now) & seen.observed
        last = jnp.where(seen.observed, now, -1)
        return _Recent(last, self.keep * state.pairs + new)

    def dynamics(self, state: _Recent, draws: Any) -> rmab.Moves:
        weights = 1 + state.pairs
        rows = draws.dirichlet(weights, 1.0, axis=1)
        return rmab.Moves(rows, rows)


def test_a_learner_may_give_dynamics_from_a_state_of_its_own():
    """With nothing forgotten it is FedTSWI: the counts are the first such state."""
    from rmab.planning.channel.whittle import whittle_at

    def policy(keep: float) -> rmab.Policy:
        return rmab.Policy(f"keep {keep}", whittle_at, own=Forgetful(keep), statewise=True)

    study = rmab.Study(
        PAPER,
        agents=2,
        plays=2,
        horizon=100,
        trials=32,
        policies=[policy(1.0), "fedtswi"],
    )
    found = rmab.run(replace(study, draws="per-agent"))
    np.testing.assert_array_equal(found["keep 1.0"].slots.mean, found["fedtswi"].slots.mean)


class _Waiting(NamedTuple):
    last: Array
    pairs: Array  # of this episode
    learnt: Array  # of earlier ones


class OnceAnEpisode(Forgetful):
    """Learns from an episode when it is over."""

    def init(self, n_states: int, shape: tuple[int, ...]) -> Any:
        last, pairs = super().init(n_states, shape)
        return _Waiting(last, pairs, pairs)

    def update(self, state: Any, seen: Observations) -> Any:
        recent = super().update(_Recent(state.last, state.pairs), seen)
        return _Waiting(*recent, state.learnt)

    def end_episode(self, state: _Waiting) -> _Waiting:
        return _Waiting(state.last, 0 * state.pairs, state.learnt + state.pairs)

    def dynamics(self, state: Any, draws: Any) -> rmab.Moves:
        return super().dynamics(_Recent(state.last, state.learnt), draws)


@pytest.mark.slow
def test_a_learner_may_change_its_state_after_each_episode():
    """Dynamics are asked for between episodes, so what is known then is all that there is."""
    from rmab.planning.channel.whittle import whittle_at

    mine = rmab.Policy("episodes", whittle_at, own=OnceAnEpisode(1.0), statewise=True)
    study = rmab.Study(PAPER, agents=2, plays=1, horizon=80, trials=32, policies=[mine, "fedtswi"])
    found = rmab.run(study)
    np.testing.assert_array_equal(found["episodes"].slots.mean, found["fedtswi"].slots.mean)
