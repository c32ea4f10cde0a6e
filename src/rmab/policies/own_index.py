"""Learners that keep their own state, per arm and agent, and give an index from it.

`OwnLearner` is their interface. Those here are written for NumPy and JAX arrays alike and
import only NumPy: the engine runs them for many trials, a served agent for itself, by the name
that `OWN_INDICES` has.

    MeanRewards         UCB1 on the arms' mean rewards
    RegenerativeCycles  RCA, the same on whole cycles between visits of a state
    ActionValues        WIQL, Q-learning: arms are ranked by the value that a play adds
    IndexLearning       Q-learning of the Whittle index of every state
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from rmab.linalg import Array, array_namespace, repeat

__all__ = [
    "OWN_INDICES",
    "ActionValues",
    "IndexLearning",
    "MeanRewards",
    "Now",
    "Observations",
    "OwnLearner",
    "RegenerativeCycles",
    "index_now",
    "looked",
]

_STEPS_OF_A_RATE = 500  # after which the rates of Q-learning of indices begin to fall


class Now(NamedTuple):
    """Inputs of a learner with its own state to a choice; arrays (N, ...), arms first.

    state: the state last observed, of an arm that is always observed the one that it is in now;
    age: the slots since, 0 if there was no observation; stepped: where the state is that of this
    slot, and that of the slot before was observed too; slot: how many slots came before; uniforms:
    (2, N, ...), random numbers on (0, 1).
    """

    state: Array
    age: Array
    stepped: Array
    slot: Array
    uniforms: Array


class Observations(NamedTuple):
    """A slot as a learner with its own state is given it; arrays (N, ...), arms first.

    played: which arms were played; state: the state of each arm, to be read where it was observed;
    observed: where it was; reward: of the arm; slot: how many slots came before.
    """

    played: Array
    observed: Array
    state: Array
    reward: Array
    slot: Array


class OwnLearner(Protocol):
    """A learner that carries its own state, per arm and agent.

    A state is a tuple of arrays that end in the shape it was made for: (N, M agents, R trials) in
    the engine, (N,) in a served agent, where it is kept in the agent's file. All methods work on
    NumPy and JAX arrays alike, element by element along agents and trials, and change nothing in
    place. Besides `init` and `update` it has one of

        index(state, slot) -> (N, ...)     the index of the arms in this slot
        index_at(state, now) -> (N, ...)   the same from all that is known before the choice, `Now`
        dynamics(state, draws) -> Moves    the dynamics at the start of an episode, from the
                                           state as the aggregation combines it over agents

    One that gives an index may also have look(state, now), its state once the arms that are always
    observed show themselves, before the choice; one with `dynamics` end_episode(state), its state
    after an episode.
    """

    def init(self, n_states: int, shape: tuple[int, ...]) -> tuple[Array, ...]:
        """The state before the first slot; n_states: of the largest arm."""

    def update(self, state: Any, seen: Observations) -> tuple[Array, ...]:
        """The state after a slot."""


def looked(own: Any, state: Any, now: Callable[[], Now]) -> Any:
    """The state of a learner once a slot's first states are shown, before the choice.

    now: gives the inputs, for learners that read them.
    """
    return own.look(state, now()) if hasattr(own, "look") else state


def index_now(own: Any, state: Any, slot: Array, now: Callable[[], Now]) -> Array:
    """Return the index of a learner's arms in a slot, (N, ...)."""
    return own.index_at(state, now()) if hasattr(own, "index_at") else own.index(state, slot)


class _Sums(NamedTuple):
    plays: Array  # (N, ...) of each arm
    total: Array  # (N, ...) what they paid


@dataclass(frozen=True)
class MeanRewards:
    """UCB1: the mean reward of an arm's n plays, plus sqrt(c ln t / n) in slot t = 1, 2, ...

    An arm that was never played comes before all others. c = 2 is UCB1, c = K + 1 that of client
    selection with K plays. Rewards are taken as independent: nothing is learnt of the transitions.

    References: P. Auer, N. Cesa-Bianchi, P. Fischer, "Finite-time analysis of the multiarmed bandit
    problem", Machine Learning 47, 2002; W. Xia et al., "Multi-armed bandit based client scheduling
    for federated learning", IEEE Trans. Wireless Comm. 19(11), 2020.
    """

    c: float = 2.0

    def init(self, n_states: int, shape: tuple[int, ...]) -> _Sums:  # noqa: ARG002 - every learner's
        """Return the state before any play."""
        return _Sums(np.zeros(shape, np.float32), np.zeros(shape, np.float32))

    def update(self, state: _Sums, seen: Observations) -> _Sums:
        """Add the plays of a slot and their rewards."""
        xp = array_namespace(state.plays, seen.played)
        paid = xp.where(seen.played, seen.reward, 0)
        return _Sums(state.plays + seen.played, state.total + paid.astype(np.float32))

    def index(self, state: _Sums, slot: Array) -> Array:
        """The upper confidence bound of every arm, (N, ...)."""
        xp = array_namespace(state.plays)
        plays = xp.maximum(state.plays, 1)
        width = xp.sqrt(self.c * xp.log(xp.asarray(slot + 1, np.float32)) / plays)
        return xp.where(state.plays > 0, state.total / plays + width, np.float32(np.inf))


# ---------------------------------------------------------------------------- regenerative cycles

_OUTSIDE, _WAITING, _COUNTING = 0, 1, 2  # where an arm is in its block


class _Cycles(NamedTuple):
    mark: Array  # (N, ...) the state at which cycles begin and end, -1 before the first play
    phase: Array  # (N, ...) outside a block, waiting for the mark (SB1), or counting (SB2)
    plays: Array  # (N, ...) slots that count
    total: Array  # (N, ...) what they paid


@dataclass(frozen=True)
class RegenerativeCycles:
    """RCA, of K arms RCA-M: upper bounds on mean rewards from whole cycles of a Markov chain.

    An arm is played in blocks. The first state that it ever shows is its mark. A block waits until
    the arm shows its mark (SB1), counts from that slot on (SB2), and ends with the slot in which
    the mark is shown again, which does not count (SB3). So only whole cycles count, whose mean
    is that of the chain played for ever, whatever happened while the arm was left alone. When a
    block ends, the arm of the largest mean + sqrt(L ln t / n) outside a block begins one: n are its
    slots that counted, t those of all arms. First every arm has a block.

    Reference: C. Tekin, M. Liu, "Online learning of rested and restless bandits", IEEE Trans. Inf.
    Theory 58(8), 2012.
    """

    L: float = 1.0

    def init(self, n_states: int, shape: tuple[int, ...]) -> _Cycles:  # noqa: ARG002 - every learner's
        """Return the state before any play."""
        return _Cycles(
            np.full(shape, -1, np.int16),
            np.zeros(shape, np.int8),
            np.zeros(shape, np.float32),
            np.zeros(shape, np.float32),
        )

    def update(self, state: _Cycles, seen: Observations) -> _Cycles:
        """Played arms go on in their blocks, or begin one."""
        xp = array_namespace(state.plays, seen.played)
        shown = seen.state.astype(np.int16)
        mark = xp.where(seen.played & (state.mark < 0), shown, state.mark)
        at_mark = shown == mark
        within = state.phase == _COUNTING
        counts = seen.played & (within ^ at_mark)
        phase = xp.where(at_mark, xp.where(within, _OUTSIDE, _COUNTING), state.phase)
        phase = xp.where(at_mark | within, phase, _WAITING).astype(np.int8)
        paid = xp.where(counts, seen.reward, 0).astype(np.float32)
        return _Cycles(
            mark,
            xp.where(seen.played, phase, state.phase),
            state.plays + counts,
            state.total + paid,
        )

    def index(self, state: _Cycles, slot: Array) -> Array:  # noqa: ARG002 - cycles have their clock
        """Arms in a block come first, then those that had none, then by upper bounds; (N, ...)."""
        xp = array_namespace(state.plays)
        plays = xp.maximum(state.plays, 1)
        counted = xp.maximum(state.plays.sum(0), 1)
        bound = state.total / plays + xp.sqrt(np.float32(self.L) * xp.log(counted) / plays)
        new = np.finfo(np.float32).max
        bound = xp.where(state.plays > 0, bound, new)
        return xp.where(state.phase == _OUTSIDE, bound, np.float32(np.inf))


# -------------------------------------------------------------------------------------- Q-learning
# A step from x by an action to y is known a slot later, when y is shown: `look` learns from it.


class _Step(NamedTuple):
    """The last slot of each arm, of which the next state is not known yet; (N, ...) each."""

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
        """Return the mask of state and action, (S, 2, N, ...); none without a whole step."""
        xp = array_namespace(self.state, stepped)
        here = _each(n_states, self.state) & stepped
        return xp.stack([here & ~self.played, here & self.played], 1)


def _each(n_states: int, state: Array) -> Array:
    """Whether a state (N, ...) is each one, (S, N, ...)."""
    return np.arange(n_states, dtype=state.dtype).reshape(-1, *[1] * state.ndim) == state


def _of_state(values: Array, state: Array) -> Array:
    """Values (S, ..., N, ...) of the states (N, ...)."""
    xp = array_namespace(values, state)
    here = _each(len(values), state)
    between = [1] * (values.ndim - here.ndim)
    return xp.where(here.reshape(len(here), *between, *state.shape), values, 0).sum(0)


def _explored(explores: Array, now: Now, index: Array) -> Array:
    """An index (N, ...), or random numbers where the agent explores (...)."""
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
    """WIQL: Q-learning of each arm by itself; arms are ranked by Q(s, 1) - Q(s, 0).

    After t slots K arms are chosen at random with probability N / (N + t). After a step
    from x by u to y that paid r, Q(x, u) becomes (1 - a) Q(x, u) + a (r + max over v of Q(y, v)),
    a = 1 / (1 + visits of (x, u), this one included). There is no discount, so that Q grows, and
    the differences are no Whittle indices.

    Reference: A. Biswas, G. Aggarwal, P. Varakantham, M. Tambe, "Learn to intervene: an adaptive
    learning policy for restless bandits in application to preventive healthcare", IJCAI 2021.
    """

    def init(self, n_states: int, shape: tuple[int, ...]) -> _Values:
        """Return the state before any slot."""
        nothing = np.zeros((n_states, 2, *shape), np.float32)
        return _Values(nothing, nothing, *_Step.none(shape))

    def look(self, state: _Values, now: Now) -> _Values:
        """Learn from the last slot's steps, which led to the states that are shown."""
        xp = array_namespace(state.q, now.state)
        here = state.step.pairs(len(state.q), now.stepped)
        visits = state.visits + here
        rate = 1 / (1 + visits)
        aim = state.step.reward + _of_state(state.q.max(1), now.state)
        q = xp.where(here, state.q + rate * (aim - state.q), state.q)
        return state._replace(q=q, visits=visits)

    def update(self, state: _Values, seen: Observations) -> _Values:
        """Keep state, action and reward until the next state is shown."""
        return state._replace(**_Step.of(seen)._asdict())

    def index_at(self, state: _Values, now: Now) -> Array:
        """Return the advantage of a play in the state now, (N, ...)."""
        n_arms = now.state.shape[0]
        gain = _of_state(state.q[:, 1] - state.q[:, 0], now.state)
        return _explored(now.uniforms[1, 0] < n_arms / (n_arms + now.slot), now, gain)


class _Indices(NamedTuple):
    q: Array  # (S, 2, S, N, ...) of a state and action, by the state whose index it is for
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
    """Q-learning of Whittle indices: for every state k a table Q(., .; k) and an index l(k).

    After a step from x by u to y that paid r, for every k,

        Q(x, u; k) += a (r + (1 - u) l(k) + max over v of Q(y, v; k) - f(k) - Q(x, u; k)),

    f(k) the mean of Q(., .; k), and in every N-th slot l(k) += b (Q(k, 1; k) - Q(k, 0; k)). The
    rates fall: a = rate / ceil(visits of (x, u) / 500), b = index_rate / (1 + ceil(n ln n / 500))
    in slot n. The K arms of the largest l(state) are played, or with probability `explore` K at
    random. equal: all arms are known to be equal and have one table, in which their steps are
    entered in the order of the arms.

    Reference: K. E. Avrachenkov, V. S. Borkar, "Whittle index based Q-learning for restless bandits
    with average reward", Automatica 139, 2022.
    """

    explore: float = 0.1
    rate: float = 0.1
    index_rate: float = 0.2
    equal: bool = False

    def init(self, n_states: int, shape: tuple[int, ...]) -> _Indices:
        """Return the state before any slot."""
        tables = (1, *shape[1:]) if self.equal else shape
        return _Indices(
            np.zeros((n_states, 2, n_states, *tables), np.float32),
            np.zeros((n_states, *tables), np.float32),
            np.zeros((n_states, 2, *tables), np.float32),
            *_Step.none(shape),
        )

    def look(self, state: _Indices, now: Now) -> _Indices:
        """Learn from the last slot's steps, which led to the states that are shown."""
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
        """The tables and visits after steps to the states ahead."""
        xp = array_namespace(q, ahead)
        here = step.pairs(len(q), stepped)  # (S, 2, N, ...)
        visits = visits + here
        rate = np.float32(self.rate) / xp.ceil(xp.maximum(visits, 1) / _STEPS_OF_A_RATE)
        subsidy = xp.where(step.played, 0, index)  # (S, N, ...)
        aim = step.reward + subsidy + _of_state(q.max(1), ahead) - q.mean((0, 1))
        return q + xp.where(here, rate, 0)[:, :, None] * (aim - q), visits

    def update(self, state: _Indices, seen: Observations) -> _Indices:
        """Keep state, action and reward until the next state is shown."""
        return state._replace(**_Step.of(seen)._asdict())

    def index_at(self, state: _Indices, now: Now) -> Array:
        """The index of the state now, (N, ...)."""
        shape = (len(state.index), *now.state.shape)
        index = array_namespace(state.index).broadcast_to(state.index, shape)
        return _explored(now.uniforms[1, 0] < self.explore, now, _of_state(index, now.state))


# By the policy's name: what its options make.
OWN_INDICES: Mapping[str, type[Any]] = {
    "ucb": MeanRewards,
    "rca": RegenerativeCycles,
    "wiql": ActionValues,
    "qwi": IndexLearning,
}
