"""Policies played on simulated arms, many runs side by side."""

from typing import Any

import numpy as np

from rmab.markov import limiting_distribution
from rmab.model.arms import Arms, channels
from rmab.model.information import stationary_belief, update_belief


def played(arms: Arms, decide: Any, *, runs: int, slots: int, skip: int) -> tuple[float, float]:
    """Mean reward per slot and its standard error; decide: from states last seen and ages, (N,
    runs) each, to what is played, (N, runs)."""
    rng = np.random.default_rng(12)
    n_arms = len(arms)
    seen = np.array([arm.observed == "always" for arm in arms])[:, None]
    state = np.stack(
        [rng.choice(arm.states, runs, p=limiting_distribution(arm.passive)) for arm in arms]
    )
    last_seen, age, total = np.zeros_like(state), np.zeros_like(state), np.zeros(runs)
    for slot in range(skip + slots):
        last_seen = np.where(seen, state, last_seen)
        played = decide(last_seen, age)
        for n, arm in enumerate(arms):
            pays = np.where(played[n], arm.reward_active[state[n]], arm.reward_passive[state[n]])
            total += pays * (slot >= skip)
        last_seen = np.where(played, state, last_seen)
        age = np.where(played, 1, np.where(age > 0, age + 1, 0))
        for n, arm in enumerate(arms):
            rows = np.where(played[n][:, None], arm.active[state[n]], arm.passive[state[n]])
            drawn = (rng.random((runs, 1)) > rows.cumsum(1)).sum(1)
            state[n] = np.minimum(drawn, arm.states - 1)
    mean = total / slots
    assert played.shape == (n_arms, runs)
    return float(mean.mean()), float(mean.std(ddof=1) / np.sqrt(runs))


def played_channels(arms: Arms, decide, *, runs: int, slots: int, skip: int) -> tuple[float, float]:
    """Mean reward per slot and its standard error; decide: from beliefs, last seen and ages
    (all (N, runs)) to what is played, (N, runs) bool."""
    rng = np.random.default_rng(11)
    column = channels(arms.p01, arms.p11, arms.reward).dynamics
    p01, p11, reward = (x[:, None] for x in column)
    rest = np.broadcast_to(stationary_belief(arms)[:, None], (len(arms), runs))
    state, belief = rng.random(rest.shape) < rest, rest.copy()
    last_seen, age = np.zeros(rest.shape, int), np.zeros(rest.shape, int)
    total = np.zeros(runs)
    for slot in range(slots + skip):
        played = decide(belief, last_seen, age)
        if slot >= skip:
            total += (reward * state * played).sum(0)
        belief = update_belief(type(column)(p01, p11, reward), belief, played, state)
        last_seen = np.where(played, state, last_seen)
        age = np.where(played, 1, np.where(age > 0, age + 1, 0))
        state = rng.random(rest.shape) < np.where(state, p11, p01)
    mean = total / slots
    return float(mean.mean()), float(mean.std(ddof=1) / np.sqrt(runs))
