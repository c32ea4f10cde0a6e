"""Counts of looks against a plain replay of the same plays, look by look."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from rmab.engine.counting import Counting, Counts
from rmab.engine.environment import SimulatedEnvironment, truth
from rmab.engine.setting import Setting
from rmab.engine.sharing import EvidenceSharing
from rmab.errors import ModelError
from rmab.learning.evidence import count_kinds
from rmab.learning.thompson import thompson
from rmab.model.arms import Arm, ArmKind, Arms
from rmab.planning.tables import myopic
from rmab.policies.own_index import Observations
from rmab.policies.policy import Policy
from rmab.rng.variates import Draws, Key

CHANNEL = ArmKind(2, fully_observed=False, action_dependent=False)
PERSON = ArmKind(2, fully_observed=False, action_dependent=True)
WATCHED = ArmKind(2, fully_observed=True, action_dependent=False)
TENDED = ArmKind(2, fully_observed=True, action_dependent=True)
LEVELS = ArmKind(3, fully_observed=False, action_dependent=False)


@dataclass(frozen=True)
class Scene:
    """Random plays of arms in random states; chances: of a play of each arm in a slot."""

    kinds: tuple[ArmKind, ...]
    chances: tuple[float, ...]
    agents: int
    slots: int
    gaps: int
    weights: tuple[float, ...] | None = None
    shared: bool = False
    trials: int = 5
    seed: int = 1

    def play(self) -> tuple[np.ndarray, np.ndarray]:
        """Plays and states, each (slots, N, M, R), states of one agent where they are shared."""
        rng = np.random.default_rng(self.seed)
        shape = (self.slots, len(self.kinds), self.agents, self.trials)
        played = rng.random(shape) < np.array(self.chances)[:, None, None]
        sizes = np.array([kind.states for kind in self.kinds])[:, None, None]
        lanes = (*shape[:2], 1 if self.shared else self.agents, self.trials)
        return played, np.floor(rng.random(lanes) * sizes).astype(int)


def counting_of(setting: Setting, policy: Policy) -> Counting:
    arms = SimulatedEnvironment(setting.kinds, idle_pay=False)
    return Counting(setting, policy, arms, EvidenceSharing(setting, policy))


@lru_cache
def counter(setting: Setting, gaps: int, trials: int) -> Callable[..., Any]:
    """Plays and states -> merged counts and visits, of all trials and of some; compiled once."""
    arms = SimulatedEnvironment(setting.kinds, idle_pay=False)
    policy = Policy("mine", myopic, thompson, gaps=gaps)
    counting = counting_of(setting, policy)
    still = [Arm(np.eye(kind.states), reward=[0.0] * kind.states) for kind in setting.kinds]
    there = truth(Arms(still))

    @jax.jit
    def run(played: jax.Array, states: jax.Array, which: jax.Array) -> Any:
        def slot(run: Any, now: tuple[jax.Array, ...]) -> tuple[Any, None]:
            observed, counts = run
            played, state, number = now
            seen = Observations(played, played, state, jnp.zeros(()), number)
            counts = counting.update(counts, observed, seen)
            return (arms.observe(there, observed, played, state, number), counts), None

        def merged(counts: Counts) -> tuple[jax.Array, jax.Array]:
            assert counts.visits is not None
            trials = counts.visits.shape[-1]
            none = jnp.zeros(trials)
            key = Key(jnp.uint32(0), jnp.uint32(0))
            drawn = Draws(key, jnp.zeros(trials, jnp.int32))  # nobody draws
            pairs, sharing = counting.pairs(counts.pairs), counting.sharing
            shared, _ = sharing.after_episode(pairs, counts.visits, None, none, lambda _: drawn)
            found = sharing.evidence(shared, there, jnp.int32(1), none)
            return found.counts[..., 0, :], found.visits[..., 0, :]

        start = arms.unobserved(setting.n_agents, trials), counting.start(trials)
        now = played, states.astype(arms.state_type), jnp.arange(setting.horizon)
        (_, counts), _ = lax.scan(slot, start, now)
        return merged(counts), merged(counting.of_trials(counts, which))

    return run


def engine(scene: Scene, gaps: int | None = None) -> np.ndarray:
    """Merged counts, (C, S, S, N, R), as the engine counts them."""
    setting = Setting(
        scene.agents, scene.kinds, scene.slots, weights=scene.weights, shared=scene.shared
    )
    run = counter(setting, scene.gaps if gaps is None else gaps, scene.trials)
    which = np.array([scene.trials - 1, 0, scene.trials])  # the last stands for all past it
    every, some = run(*scene.play(), which)
    for part, whole in zip(some, every, strict=True):
        np.testing.assert_array_equal(part, whole[..., np.array([-1, 0, -1])])
    assert every[0].dtype == jnp.float32
    return np.asarray(every[0])


def replay(scene: Scene) -> np.ndarray:
    """The same counts, one look after the other."""
    played, states = scene.play()
    S = max(kind.states for kind in scene.kinds)
    shape = (count_kinds(scene.kinds, scene.gaps), S, S, len(scene.kinds), scene.trials)
    total = np.zeros(shape)
    for trial in range(scene.trials):
        for agent in range(scene.agents):
            mine: Counter[tuple[int, int, int, int]] = Counter()
            for n, kind in enumerate(scene.kinds):
                seen = states[:, n, 0 if scene.shared else agent, trial]
                plays = np.flatnonzero(played[:, n, agent, trial]).tolist()
                if kind.fully_observed:
                    for slot in range(1, scene.slots):
                        left = kind.action_dependent and not played[slot - 1, n, agent, trial]
                        mine[int(left), seen[slot - 1], seen[slot], n] += 1
                else:
                    for one, other in pairwise(plays):
                        wait = other - one - 1
                        if not kind.action_dependent:
                            wait = min(wait, scene.gaps)
                        if wait < len(total):
                            mine[wait, seen[one], seen[other], n] += 1
            for place, count in mine.items():
                total[*place, trial] += count * (scene.weights or (1,) * scene.agents)[agent]
    return total


SCENES = {
    "channels": Scene((CHANNEL,) * 4, (0.7, 0.5, 0.2, 0.05), agents=3, slots=150, gaps=8),
    "one agent": Scene((CHANNEL,) * 2, (0.4, 0.02), agents=1, slots=200, gaps=32),
    "one gap": Scene((CHANNEL,) * 3, (0.6, 0.3, 0.1), agents=2, slots=60, gaps=1),
    "weights": Scene((CHANNEL,) * 3, (0.6, 0.3, 0.1), 3, 120, 8, weights=(1.0, 0.0, 2.25)),
    "one realisation": Scene((CHANNEL,) * 3, (0.6, 0.3, 0.1), 2, 90, 12, shared=True),
    "all kinds": Scene((PERSON, CHANNEL, WATCHED, TENDED), (0.5, 0.2, 0.3, 0.3), 2, 90, 10),
    "three states": Scene((LEVELS, CHANNEL, TENDED), (0.5, 0.1, 0.4), 2, 120, 9),
    "always seen": Scene((WATCHED, TENDED), (0.5, 0.1), 2, 50, 4),
    "more waits than gaps": Scene((PERSON, CHANNEL), (0.2, 0.1), 2, 90, 3),
    "as many waits as gaps": Scene((PERSON, CHANNEL), (0.1, 0.1), 2, 90, 7),
}


@pytest.mark.parametrize("name", SCENES)
def test_every_pair_of_looks_is_counted_by_its_gap(name):
    scene = SCENES[name]
    np.testing.assert_array_equal(engine(scene), replay(scene))


def test_a_long_wait_is_not_taken_for_a_shorter_one():
    """Of an action-dependent arm a wait shows so many steps by P_0, and no others."""
    counts = engine(SCENES["as many waits as gaps"])
    played, _ = SCENES["as many waits as gaps"].play()
    waits = [
        other - one - 1
        for agent in range(2)
        for one, other in pairwise(np.flatnonzero(played[:, 0, agent, 0]).tolist())
    ]
    assert max(waits) > 7
    found = counts[:, :, :, 0, 0].sum((1, 2))
    np.testing.assert_array_equal(found, [waits.count(wait) for wait in range(8)])


@pytest.mark.parametrize("name", ["channels", "weights", "three states"])
def test_the_first_slice_holds_looks_in_consecutive_slots(name):
    """What is counted without gaps, for arms that move alike; and that holds nothing of waits."""
    scene = SCENES[name]
    np.testing.assert_array_equal(engine(scene)[0], engine(scene, gaps=0)[0])


def test_all_pairs_are_counted_once():
    """A sequence of n looks has n - 1 pairs, whatever the gaps; longer ones are in the last."""
    scene = SCENES["one agent"]
    played, _ = scene.play()
    counts = engine(scene)
    looks = played[:, :, 0].sum(0)
    np.testing.assert_array_equal(counts.sum((0, 1, 2)), np.maximum(looks - 1, 0))
    assert counts[-1, :, :, 1].sum() > 0
    assert counts[-1, :, :, 0].sum() == 0, "an arm played often leaves no long gap"


@given(chance=st.floats(0.02, 0.9), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_an_arm_comes_back_as_often_as_it_leaves(chance, seed):
    """Successive looks cross from 0 to 1 and back by turns, so the two differ by at most one."""
    scene = Scene((CHANNEL,), (chance,), agents=1, slots=64, gaps=5, seed=seed, trials=8)
    crossings = engine(scene).sum(0)
    assert np.abs(crossings[0, 1] - crossings[1, 0]).max() <= 1


def test_counts_are_whole_numbers_of_32_bits_while_they_can_be():
    policy = Policy("mine", myopic, thompson, gaps=4)
    plain = Setting(n_agents=100, kinds=(CHANNEL,), horizon=10**6)

    def kind(setting: Setting) -> jnp.dtype:
        pairs = counting_of(setting, policy).start(1).pairs
        assert pairs is not None
        return pairs.dtype

    assert kind(plain) == jnp.int32
    assert kind(replace(plain, n_agents=10**4)) == jnp.float32
    assert kind(replace(plain, weights=(0.5,) * 100)) == jnp.float32


def test_more_counts_than_an_index_can_name_are_refused():
    kinds = (ArmKind(64, fully_observed=False, action_dependent=False),) * 1000
    setting = Setting(n_agents=1, kinds=kinds, horizon=10)
    policy = Policy("mine", myopic, thompson, gaps=32)
    counting = counting_of(setting, policy)
    with pytest.raises(ModelError, match=r"^policy mine: counts by gap .* 34 x 1000 x 32 x 4096"):
        counting.start(32)
