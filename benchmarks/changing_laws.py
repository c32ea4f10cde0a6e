"""Learners where laws change and where agents differ: what FedTSWI-robust gains on FedTSWI-gap.

    make docs-numbers ARGS="changing-laws agents-differ"

Channels with reward 1, one play in a slot, schedule `linear`. Every run has states of its own,
drawn beforehand and played on as recordings: all learners of a run meet the same channels. Gains
are in percent, with one standard error over runs.

M = 4 agents, N = 6 arms, p01 in U(.02, .4) and p11 in U(.6, .98), the same for all agents:

    exchange    all arms exchange laws every 1,000 slots; T = 8,000
    renewal     each arm draws a new law at rate 1/1,000
    drift       log odds drift around -1.8 and 1.8 with sd 1 (Ornstein and Uhlenbeck, 1,000 slots)
    stationary  these arms, the paper's, and arms with p01, p11 in U(0, 1); T = 2,000

M = 16, T = 1,000, the paper's arms: some agents have arms 1, 2 and 3, 4 exchanged, or the log odds
of all differ. There `pairs` is compared with the better of `none` and `sum`, and each agent with
what it earns alone, averaged over runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rmab.engine.setting import Setting
from rmab.model.arms import channels
from rmab.policies.registry import named
from rmab.traces.replay import Replay, ReplayedStates

__all__ = ["AGREEING", "CHANGING", "Agreeing", "Changing", "earned", "gain"]

Floats = npt.NDArray[np.float64]
Laws = tuple[Floats, Floats]  # p01 and p11 of each slot, agent and arm: (T or 1, M or 1, N)

_PAPER = (np.array([0.2, 0.89, 0.1, 0.9]), np.array([0.8, 0.17, 0.9, 0.16]))
_LOW, _HIGH = (0.02, 0.4), (0.6, 0.98)  # of p01 and of p11
_PERIOD = 1000  # slots between changes
_CENTRE = 1.8  # log odds that drift, around it and its negative


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))


def _odds(p: Floats) -> Floats:
    return np.asarray(np.log(p / (1 - p)))


# ------------------------------------------------------------------------------------------ laws


def _drawn(rng: np.random.Generator, n_arms: int) -> Laws:
    return rng.uniform(*_LOW, n_arms), rng.uniform(*_HIGH, n_arms)


def exchange(rng: np.random.Generator, horizon: int, n_arms: int) -> Laws:
    """All arms exchange laws, every so often."""
    p01, p11 = _drawn(rng, n_arms)
    orders = [rng.permutation(n_arms) for _ in range(-(-horizon // _PERIOD))]
    places = np.repeat(np.stack(orders), _PERIOD, 0)[:horizon]
    return p01[places][:, None], p11[places][:, None]


def renewal(rng: np.random.Generator, horizon: int, n_arms: int) -> Laws:
    """Each arm draws a new law now and then."""
    changes = rng.random((horizon, n_arms)) < 1 / _PERIOD
    number = np.cumsum(changes, 0)
    arm = np.arange(n_arms)
    p01, p11 = (
        rng.uniform(low, high, (number.max() + 1, n_arms))[number, arm]
        for low, high in (_LOW, _HIGH)
    )
    return p01[:, None], p11[:, None]


def drift(rng: np.random.Generator, horizon: int, n_arms: int) -> Laws:
    """Log odds drift."""
    keep = np.exp(-1 / _PERIOD)
    now = rng.standard_normal((2, n_arms))
    steps = np.sqrt(1 - keep**2) * rng.standard_normal((horizon, 2, n_arms))
    path = np.empty((horizon, 2, n_arms))
    for slot in range(horizon):
        now = path[slot] = keep * now + steps[slot]
    return _sigmoid(path[:, None, 0] - _CENTRE), _sigmoid(path[:, None, 1] + _CENTRE)


def _fixed(p01: Floats, p11: Floats) -> Laws:
    return p01[None, None], p11[None, None]


def these_arms(rng: np.random.Generator, _: int, n_arms: int) -> Laws:
    """Laws that do not change."""
    return _fixed(*_drawn(rng, n_arms))


def paper_arms(*_: Any) -> Laws:
    """Those of the paper."""
    return _fixed(*_PAPER)


def uniform_arms(rng: np.random.Generator, _: int, n_arms: int) -> Laws:
    """Any laws."""
    return _fixed(*rng.random((2, n_arms)))


def some_differ(number: int) -> Callable[..., Laws]:
    """So many of 16 agents have arms 1, 2 and 3, 4 exchanged."""

    def laws(*_: Any) -> Laws:
        order = np.tile(np.arange(4), (16, 1))
        order[:number] = [1, 0, 3, 2]
        return _PAPER[0][order][None], _PAPER[1][order][None]

    return laws


def all_differ(spread: float) -> Callable[..., Laws]:
    """The log odds of 16 agents differ."""

    def laws(rng: np.random.Generator, *_: Any) -> Laws:
        shift = spread * rng.standard_normal((2, 16, 4))
        p01, p11 = (_sigmoid(_odds(p) + by) for p, by in zip(_PAPER, shift, strict=True))
        return p01[None], p11[None]

    return laws


@dataclass(frozen=True)
class Changing:
    """A row of the first table."""

    name: str
    laws: Callable[..., Laws]
    horizon: int = 8000
    n_arms: int = 6
    n_agents: int = 4


@dataclass(frozen=True)
class Agreeing:
    """A row of the second table."""

    name: str
    laws: Callable[..., Laws]
    horizon: int = 1000
    n_arms: int = 4
    n_agents: int = 16


CHANGING = (
    Changing("exchange", exchange),
    Changing("renewal", renewal),
    Changing("drift", drift),
    Changing("stationary, these arms", these_arms, 2000),
    Changing("stationary, the paper's", paper_arms, 2000, 4),
    Changing("stationary, uniform", uniform_arms, 2000),
)
AGREEING = (
    Agreeing("none of 16 differ", some_differ(0)),
    Agreeing("4 of 16 differ", some_differ(4)),
    Agreeing("log odds differ, sd .3", all_differ(0.3)),
    Agreeing("log odds differ, sd 1", all_differ(1.0)),
)


# ---------------------------------------------------------------------------------------- playing


def states_of(case: Changing | Agreeing, seed: int) -> npt.NDArray[np.bool_]:
    """(T, N, M): states of one run, which begin as the first laws settle."""
    rng = np.random.default_rng([seed, sum(map(ord, case.name))])
    horizon, n_arms, n_agents = case.horizon, case.n_arms, case.n_agents
    p01, p11 = (
        np.broadcast_to(p, (horizon, n_agents, n_arms)) for p in case.laws(rng, horizon, n_arms)
    )
    states = np.empty((horizon, n_agents, n_arms), bool)
    words = rng.random(states.shape)
    now = words[0] < p01[0] / (p01[0] + 1 - p11[0])
    states[0] = now
    for slot in range(1, horizon):
        now = words[slot] < np.where(now, p11[slot - 1], p01[slot - 1])
        states[slot] = now
    return np.moveaxis(states, 1, 2)


def earned(
    case: Changing | Agreeing, policies: Mapping[str, tuple[str, Mapping[str, Any]]], runs: int
) -> dict[str, Floats]:
    """The average reward of each policy, by agent and run, (M, runs); policies: a policy's name and
    its options, by a name in the table."""
    states = np.stack([states_of(case, seed) for seed in range(runs)], -1)
    arms = channels([0.5] * case.n_arms, [0.5] * case.n_arms, [1.0] * case.n_arms)
    setting = Setting.of(arms, case.n_agents, case.horizon, schedule="linear")
    recording = ReplayedStates(
        state=jnp.asarray(states),
        measured=jnp.ones((*states.shape[:3], 1), bool),
        starts=jnp.arange(case.horizon) == 0,
        window=jnp.zeros(case.horizon, jnp.int32),
    )
    replay = Replay(arms, 1, setting, recording, 1)
    return {
        label: replay.rewards(named(name, case.horizon, options), None, 0, runs)[0] / case.horizon
        for label, (name, options) in policies.items()
    }


def gain(one: Floats, other: Floats) -> tuple[float, float]:
    """By how much one earns more than the other, in percent, and its standard error over runs."""
    apart = 100 * (one.mean(0) - other.mean(0)) / other.mean()
    return float(apart.mean()), float(apart.std(ddof=1) / np.sqrt(apart.size))
