"""Learners with a state of their own: in the engine, as an agent runs them, and by known values."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import rmab
from rmab.linalg import Array
from rmab.policies.own_index import Now, Observations, index_now, looked
from rmab.policies.plans import OwnPlan
from rmab.policies.published.q_learning import ActionValues, IndexLearning
from rmab.policies.published.rca import RegenerativeCycles
from rmab.policies.published.ucb import MeanRewards
from rmab.protocol.config import Federation, KnownArm
from rmab.protocol.planner import Planner
from tests.oracles.model_free import PlainIndexLearning, PlainWiql, plain_rca
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


# ------------------------------------------------------------------- in plain loops, without JAX


def known(now: Now) -> Now:
    return now


def nothing() -> Now:
    raise AssertionError("it was asked for what it does not need")


def seen_of(played, states, rewards, slot):
    return Observations(played, played, states, rewards, np.int64(slot))


@pytest.mark.parametrize(("plays", "level", "n_states"), [(1, 1.0, 2), (2, 0.3, 3), (1, 4.0, 3)])
def test_cycles_are_played_as_blocks_written_out(plays, level, n_states):
    rng = np.random.default_rng(plays + n_states)
    states = rng.integers(n_states, size=(250, 4))
    rewards = (states + rng.random((250, 4))).astype(np.float32)
    own = RegenerativeCycles(level)
    memory = own.init(n_states, (4,))
    wanted = plain_rca(states, rewards.astype(float), plays, level)
    for slot, (now, pays, due) in enumerate(zip(states, rewards, wanted, strict=True)):
        index = own.index(memory, np.int64(slot))
        chosen = np.sort(np.argsort(-index, kind="stable")[:plays])
        np.testing.assert_array_equal(chosen, due)
        memory = own.update(memory, seen_of(np.isin(np.arange(4), chosen), now, pays, slot))


def test_a_cycle_counts_from_its_mark_to_the_slot_before_the_next():
    """One arm shows 1, 0, 0, 1 and pays 1, 2, 3, 4: what counts is 1, 2 and 3."""
    own, one = RegenerativeCycles(0.0), np.ones(1, bool)
    memory = own.init(2, (1,))
    assert own.index(memory, np.int64(0)) == np.finfo(np.float32).max
    for slot, (state, pays) in enumerate(((1, 1.0), (0, 2.0), (0, 3.0), (1, 4.0))):
        memory = own.update(memory, seen_of(one, np.array([state]), np.array([pays]), slot))
        assert np.isinf(own.index(memory, np.int64(slot))) == (slot < 3)
    assert (memory.mark, memory.plays, memory.total) == (1, 3, 6)
    assert own.index(memory, np.int64(4)) == 2.0
    left = own.update(memory, seen_of(~one, np.array([0]), np.array([9.0]), 4))
    assert all(np.array_equal(a, b) for a, b in zip(left, memory, strict=True))
    # A new block waits for the mark, and counts from it on.
    memory = own.update(memory, seen_of(one, np.array([0]), np.array([9.0]), 5))
    assert (memory.plays, np.isinf(own.index(memory, np.int64(6)))) == (3, True)
    memory = own.update(memory, seen_of(one, np.array([1]), np.array([5.0]), 6))
    assert (memory.plays, memory.total) == (4, 11)


@pytest.mark.parametrize(
    ("own", "plain"),
    [
        (ActionValues(), PlainWiql(3, 3, 1)),
        (IndexLearning(), PlainIndexLearning(3, 3, 1, equal=False)),
        (IndexLearning(equal=True), PlainIndexLearning(3, 3, 1, equal=True)),
    ],
)
def test_tables_are_learnt_as_in_plain_loops(own, plain):
    rng = np.random.default_rng(3)
    states, memory = np.zeros(3, np.int64), own.init(3, (3,))
    arms = np.arange(3)
    for slot in range(60):
        uniforms = rng.random((2, 3))
        now = Now(states, arms, np.full(3, slot > 0), np.int64(slot), uniforms)
        memory = looked(own, memory, partial(known, now))
        index = index_now(own, memory, np.int64(slot), partial(known, now))
        chosen = np.sort(np.argsort(-index, kind="stable")[:1])
        np.testing.assert_array_equal(chosen, plain.choose(states, slot, uniforms))
        ahead, pays = rng.integers(3, size=3), rng.random(3)
        played = np.isin(arms, chosen)
        memory = own.update(memory, seen_of(played, states, pays, slot))
        plain.learn(slot + 1, states, chosen.tolist(), pays, ahead)
        states = ahead
    memory = own.look(memory, Now(states, None, np.ones(3, bool), np.int64(60), None))
    if isinstance(own, IndexLearning):
        np.testing.assert_allclose(memory.q, plain.q.transpose(2, 3, 1, 0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(memory.index, plain.index.T, rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_allclose(memory.q, plain.q.transpose(1, 2, 0), rtol=1e-4)
    np.testing.assert_array_equal(memory.visits, plain.visits.transpose(1, 2, 0))


@pytest.mark.parametrize("own", [ActionValues(), IndexLearning(), IndexLearning(equal=True)])
def test_nothing_is_learnt_of_steps_whose_next_state_was_not_shown(own):
    memory = own.init(2, (2,))
    played = np.array([True, False])
    memory = own.update(memory, seen_of(played, np.array([1, 1]), np.array([1.0, 1.0]), 0))
    now = Now(np.array([0, 1]), None, np.array([False, True]), np.int64(1), None)
    visits = own.look(memory, now).visits
    assert visits.sum() == 1
    assert visits[1, 0].sum() == 1  # of arm 2, which was left alone in state 1


def test_rates_of_index_learning_fall_after_five_hundred():
    own = IndexLearning(rate=0.5, index_rate=0.25)
    for visits, rate in (
        (0, 0.5),
        (498, 0.5),
        (499, 0.5),
        (500, 0.25),
        (999, 0.25),
        (1000, 0.5 / 3),
    ):
        memory = own.init(1, (1,))._replace(visits=np.full((1, 2, 1), visits, np.float32))
        memory = own.update(memory, seen_of(np.ones(1, bool), np.zeros(1), np.ones(1), 0))
        now = Now(np.zeros(1, int), None, np.ones(1, bool), np.int64(0), None)
        found = own.look(memory, now)
        assert found.q[0, 1, 0, 0] == pytest.approx(rate)
        assert found.q[0, 0, 0, 0] == 0
        assert found.index == 0  # in slot 0 there was no step
    # In slot n that is a whole number of arms the index moves by b (Q(1) - Q(0)).
    for slot, b in ((1, 0.25), (2, 0.125), (3, 0.125)):
        now = now._replace(slot=np.int64(slot), stepped=np.zeros(1, bool))
        q = np.zeros((1, 2, 1, 1), np.float32)
        q[0, 1] = 2.0
        found = own.look(memory._replace(q=q), now)
        assert found.index == pytest.approx(b * 2.0)
    two = own.init(1, (2,))
    two = two._replace(q=two.q + np.array([[0.0], [1.0]], np.float32)[None, :, None])
    for slot, moved in ((1, False), (2, True), (3, False), (4, True)):
        now = Now(np.zeros(2, int), None, np.zeros(2, bool), np.int64(slot), None)
        assert (own.look(two, now).index > 0).all() == moved
        assert (own.look(two, now).index != 0).any() == moved


@pytest.mark.parametrize(
    ("own", "slot", "explores"),
    [
        (ActionValues(), 0, 1.0),
        (ActionValues(), 6, 0.25),
        (IndexLearning(), 6, 0.1),
        (IndexLearning(explore=0.5), 0, 0.5),
    ],
)
def test_how_often_arms_are_chosen_at_random(own, slot, explores):
    """Two arms: an agent explores where its number is below the chance."""
    memory = own.init(2, (2,))
    states = np.array([0, 1])
    for number, random in ((explores - 1e-6, True), (explores, False)):
        uniforms = np.array([[0.25, 0.75], [number, 0.0]])
        index = own.index_at(memory, Now(states, None, None, np.int64(slot), uniforms))
        assert index.tolist() == ([0.25, 0.75] if random else [0.0, 0.0])


def test_an_arm_is_ranked_by_its_own_state():
    wiql, states = ActionValues(), np.array([1, 0])
    values = np.arange(8.0).reshape(2, 2, 2) ** 2  # of state, action, arm
    uniforms = np.ones((2, 2))
    now = Now(states, None, None, np.int64(99), uniforms)
    found = wiql.index_at(wiql.init(2, (2,))._replace(q=values), now)
    assert found.tolist() == [values[1, 1, 0] - values[1, 0, 0], values[0, 1, 1] - values[0, 0, 1]]
    qwi = IndexLearning()
    index = np.array([[1.0, 2.0], [3.0, 4.0]])
    found = qwi.index_at(qwi.init(2, (2,))._replace(index=index), now)
    assert found.tolist() == [3.0, 2.0]


def test_bounds_on_mean_rewards_by_hand():
    own = MeanRewards(2.0)
    memory = own.init(2, (3,))
    for slot, (played, pays) in enumerate((([1, 1, 0], 0.5), ([1, 0, 0], 1.0))):
        memory = own.update(
            memory, seen_of(np.array(played, bool), np.zeros(3), np.full(3, pays), slot)
        )
    found = own.index(memory, np.int64(2))
    width = 2 * math.log(3)
    assert found[:2] == pytest.approx([0.75 + math.sqrt(width / 2), 0.5 + math.sqrt(width)])
    assert found[2] == np.inf
    assert looked(own, memory, nothing) is memory
    np.testing.assert_array_equal(index_now(own, memory, np.int64(2), nothing), found)
