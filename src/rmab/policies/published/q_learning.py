"""Q-learning of arms that are always observed: WIQL, and QWI, which learns Whittle indices.

A step from x by u to y that paid r is known a slot later, when y is shown: `look` learns from it.

WIQL: every arm has a table Q(s, u), and arms are ranked by Q(s, 1) - Q(s, 0). After t slots K arms
are chosen at random with probability N / (N + t). After a step Q(x, u) becomes
(1 - a) Q(x, u) + a (r + max over v of Q(y, v)), a = 1 / (1 + visits of (x, u), this one included).
There is no discount, so that Q grows, and the differences are no Whittle indices.

QWI: for every state k a table Q(., .; k) and an index l(k). After a step, for every k,

    Q(x, u; k) += a (r + (1 - u) l(k) + max over v of Q(y, v; k) - f(k) - Q(x, u; k)),

f(k) the mean of Q(., .; k), and in every N-th slot l(k) += b (Q(k, 1; k) - Q(k, 0; k)). The rates
fall: a = rate / ceil(visits of (x, u) / 500), b = index_rate / (1 + ceil(n ln n / 500)) in slot n.
The K arms of the largest l(state) are played, or with probability `explore` K at random.

References: A. Biswas, G. Aggarwal, P. Varakantham, M. Tambe, "Learn to intervene: an adaptive
learning policy for restless bandits in application to preventive healthcare", IJCAI 2021;
K. E. Avrachenkov, V. S. Borkar, "Whittle index based Q-learning for restless bandits with average
reward", Automatica 139, 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rmab.linalg import Array, array_namespace, repeat
from rmab.policies.capabilities import Capabilities, Case, always_observed, first_other
from rmab.policies.entry import BROKEN, Entry
from rmab.policies.options import number, switch
from rmab.policies.own_index import Now, Observations
from rmab.policies.policy import OwnIndexRule, Policy

__all__ = ["ENTRIES", "ActionValues", "IndexLearning"]

_STEPS_OF_A_RATE = 500  # after which the rates of QWI begin to fall


class _Step(NamedTuple):
    """Last slot of each arm, whose next state is not known yet; (N, ...) each."""

    state: Array
    played: Array
    reward: Array

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> _Step:
        return cls(np.zeros(shape, np.int16), np.zeros(shape, bool), np.zeros(shape, np.float32))

    @classmethod
    def of(cls, seen: Observations) -> _Step:
        xp = array_namespace(seen.played, seen.state)
        state = xp.broadcast_to(seen.state.astype(np.int16), seen.played.shape)
        return cls(state, seen.played, seen.reward.astype(np.float32))

    def pairs(self, n_states: int, stepped: Array) -> Array:
        """Return masks of state and action, (S, 2, N, ...), all False without a whole step."""
        xp = array_namespace(self.state, stepped)
        here = _masks(n_states, self.state) & stepped
        return xp.stack([here & ~self.played, here & self.played], 1)


def _masks(n_states: int, state: Array) -> Array:
    """Return masks (S, N, ...) of the states (N, ...)."""
    return np.arange(n_states, dtype=state.dtype).reshape(-1, *[1] * state.ndim) == state


def _of_state(values: Array, state: Array) -> Array:
    """Return values (S, ..., N, ...) at the states (N, ...)."""
    xp = array_namespace(values, state)
    here = _masks(len(values), state)
    between = [1] * (values.ndim - here.ndim)
    return xp.where(here.reshape(len(here), *between, *state.shape), values, 0).sum(0)


def _explored(explores: Array, now: Now, index: Array) -> Array:
    """Return an index (N, ...), or random numbers where the agent explores (...)."""
    return array_namespace(index, now.uniforms).where(explores, now.uniforms[0], index)


class _Values(NamedTuple):
    q: Array  # (S, 2, N, ...) of a state and action
    visits: Array  # (S, 2, N, ...)
    state: Array  # of the last slot: see _Step
    played: Array
    reward: Array

    @property
    def step(self) -> _Step:
        return _Step(self.state, self.played, self.reward)


@dataclass(frozen=True)
class ActionValues:
    """Index of WIQL: the difference that a play makes to the value."""

    def init(self, n_states: int, shape: tuple[int, ...]) -> _Values:
        """Return tables of zeros."""
        nothing = np.zeros((n_states, 2, *shape), np.float32)
        return _Values(nothing, nothing, *_Step.none(shape))

    def look(self, state: _Values, now: Now) -> _Values:
        """Learn from the last slot's steps, which led to the states shown now."""
        xp = array_namespace(state.q, now.state)
        here = state.step.pairs(len(state.q), now.stepped)
        visits = state.visits + here
        rate = 1 / (1 + visits)
        aim = state.step.reward + _of_state(state.q.max(1), now.state)
        q = xp.where(here, state.q + rate * (aim - state.q), state.q)
        return state._replace(q=q, visits=visits)

    def update(self, state: _Values, seen: Observations) -> _Values:
        """Keep states and actions until the next states are shown."""
        return state._replace(**_Step.of(seen)._asdict())

    def index_at(self, state: _Values, now: Now) -> Array:
        """Return the difference that a play makes to the value of the state, (N, ...)."""
        n_arms = now.state.shape[0]
        gain = _of_state(state.q[:, 1] - state.q[:, 0], now.state)
        return _explored(now.uniforms[1, 0] < n_arms / (n_arms + now.slot), now, gain)


class _Indices(NamedTuple):
    q: Array  # (S, 2, S, N, ...) by state, action, and the state of the index
    index: Array  # (S, N, ...) of each state
    visits: Array  # (S, 2, N, ...) of a state and action
    state: Array  # of the last slot: see _Step
    played: Array
    reward: Array

    @property
    def step(self) -> _Step:
        return _Step(self.state, self.played, self.reward)


@dataclass(frozen=True)
class IndexLearning:
    """Index of QWI; equal: all arms have one table, in which their steps are entered in order."""

    explore: float = 0.1
    rate: float = 0.1
    index_rate: float = 0.2
    equal: bool = False

    def init(self, n_states: int, shape: tuple[int, ...]) -> _Indices:
        """Return tables of zeros."""
        tables = (1, *shape[1:]) if self.equal else shape
        return _Indices(
            np.zeros((n_states, 2, n_states, *tables), np.float32),
            np.zeros((n_states, *tables), np.float32),
            np.zeros((n_states, 2, *tables), np.float32),
            *_Step.none(shape),
        )

    def look(self, state: _Indices, now: Now) -> _Indices:
        """Learn from the last slot's steps, which led to the states shown now."""
        xp = array_namespace(state.q, now.state)
        n_arms = now.state.shape[0]
        q, index, visits, step = state.q, state.index, state.visits, state.step
        if self.equal:

            def enter(arm: Any, tables: tuple[Array, Array]) -> tuple[Array, Array]:
                one = _Step(*(xp.take(x, arm, 0)[None] for x in step))
                ahead, stepped = (xp.take(x, arm, 0)[None] for x in (now.state, now.stepped))
                return self._learnt(*tables, index, one, ahead, stepped)

            q, visits = repeat(n_arms, enter, (q, visits))
        else:
            q, visits = self._learnt(q, visits, index, step, now.state, now.stepped)
        # n ln n is 0 in slot 0, before which there was no step.
        n = xp.asarray(now.slot, np.float32)
        rate = self.index_rate / (1 + xp.ceil(n * xp.log(xp.maximum(n, 1)) / _STEPS_OF_A_RATE))
        due = (now.slot > 0) & (now.slot % n_arms == 0)
        kept = np.eye(len(q), dtype=bool).reshape(len(q), len(q), *[1] * (q.ndim - 3))
        gain = xp.where(kept, q[:, 1] - q[:, 0], 0).sum(0)  # (S, N, ...)
        index = index + xp.where(due, rate, 0).astype(np.float32) * gain
        return state._replace(q=q, index=index, visits=visits)

    def _learnt(
        self, q: Array, visits: Array, index: Array, step: _Step, ahead: Array, stepped: Array
    ) -> tuple[Array, Array]:
        """Return tables and visits after steps to the states ahead."""
        xp = array_namespace(q, ahead)
        here = step.pairs(len(q), stepped)  # (S, 2, N, ...)
        visits = visits + here
        rate = np.float32(self.rate) / xp.ceil(xp.maximum(visits, 1) / _STEPS_OF_A_RATE)
        subsidy = xp.where(step.played, 0, index)  # (S, N, ...)
        aim = step.reward + subsidy + _of_state(q.max(1), ahead) - q.mean((0, 1))
        return q + xp.where(here, rate, 0)[:, :, None] * (aim - q), visits

    def update(self, state: _Indices, seen: Observations) -> _Indices:
        """Keep states and actions until the next states are shown."""
        return state._replace(**_Step.of(seen)._asdict())

    def index_at(self, state: _Indices, now: Now) -> Array:
        """Return the index of the state, (N, ...)."""
        shape = (len(state.index), *now.state.shape)
        index = array_namespace(state.index).broadcast_to(state.index, shape)
        return _explored(now.uniforms[1, 0] < self.explore, now, _of_state(index, now.state))


# ---------------------------------------------------------------------------------------- policies


def _one_table(case: Case) -> str | None:
    """Refuse one table for arms of different sizes."""
    sizes = [kind.states for kind in case.at.kinds]
    other = first_other([size == sizes[0] for size in sizes])
    if not other or not case.settings.get("equal"):
        return None
    return (
        f"has one table for all arms, with equal = true, and arm {other} has {sizes[other - 1]} "
        f"states, arm 1 {sizes[0]}"
    )


def wiql(name: str, _horizon: int) -> Policy:
    """Return WIQL."""
    return Policy(name, rule=OwnIndexRule(ActionValues()))


def qwi(name: str, _horizon: int, **settings: Any) -> Policy:
    """Return QWI; settings: fields of `IndexLearning`."""
    return Policy(name, rule=OwnIndexRule(IndexLearning(**settings)))


_QWI_OPTIONS = {
    "equal": switch("false", "whether all arms are known to be equal, and learnt as one"),
    "explore": number("0.1", 1, "the chance that a slot's arms are chosen at random"),
    "index_rate": number("0.2", 1, "by how much of an advantage indices move at first"),
    "rate": number("0.1", 1, "by how much of an error values move at first"),
}
ENTRIES = {
    "qwi": Entry(
        "published", f"{__name__}:qwi", _QWI_OPTIONS,
        "Q-learning of the Whittle index of every state, each agent alone",
        "QWI", "#6633aa", BROKEN, "1",
        capabilities=Capabilities("own", arms=(always_observed, _one_table), served=False),
    ),
    "wiql": Entry(
        "published", f"{__name__}:wiql", {},
        "Q-learning; arms by what a play adds to the value, each agent alone",
        "WIQL", "#dd9977", BROKEN, "2",
        capabilities=Capabilities("own", arms=(always_observed,)),
    ),
}  # fmt: skip
