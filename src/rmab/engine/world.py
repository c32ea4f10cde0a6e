"""The arms themselves: true states that move and pay, for all arms, agents and trials at once.

A state moves by comparing one 24-bit number w with the chances of reaching at least each state,

    next state = how many j >= 1 have  w < 2^24 Pr(next >= j | state, action),

whole numbers that are computed beforehand in double precision (`rmab.model.realisation`, which has
the
same for a few trials on NumPy). For few states they are selected and compared one by one; for many
the next state is found by bisection, since they fall with j.

A recorded world reads the states from a recording. What was not measured in a slot cannot be played
in it, and where a new segment of the recording begins every arm was never observed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rmab.model.arms import ArmKind, Arms, Moves
from rmab.model.information import NEVER, InformationStates
from rmab.model.realisation import BEFORE, BITS, chance_levels, starting_chances
from rmab.rng.variates import Key, threefry

__all__ = ["RecordedWorld", "Recording", "Truth", "World", "differing", "truth", "wide"]

_MAX_SELECTED_STATES = 4  # up to which selecting beats looking up


class Truth(NamedTuple):
    """The true arms as arrays; chances of at least each state in units of 2^-24.

    Where agents' laws differ, or their rewards, those arrays have one more axis, of M agents.
    """

    moves: Moves  # (S, S, N) each
    reward_passive: Array  # (S, N)
    reward_active: Array  # (S, N)
    passive: Array  # (S, S - 1, N) uint32: of next state >= 1, 2, ...
    active: Array  # (S, S - 1, N) uint32
    rest: Array  # (S - 1, N) uint32: of the state before the first slot
    recorded: Recording | None = None  # in place of how arms move


class Recording(NamedTuple):
    """True states that were recorded, in T slots; trials share them unless they end in R."""

    state: Array  # (T, N, M, 1 or R)
    measured: Array  # (T, N, M, 1) whether an arm's state is known, so that it can be played
    starts: Array  # (T,) whether a segment begins: nothing that was observed before counts
    window: Array  # (T,) 0..W-1, never falling: where rewards are added up


def truth(arms: Arms, each: Sequence[Arms] = ()) -> Truth:
    """Arms as the engine takes them; they start in their limiting distribution under passivity.

    each: those of each of M agents, where they differ.
    """
    if not each:
        return _truth_of(arms)
    found = {id(own): _truth_of(own) for own in each}
    laws, pays = differing(each)

    def stacked(apart: bool, *values: Array) -> Array:
        return jnp.stack(values, -1) if apart else values[0]

    by_agent = [found[id(own)] for own in each]

    def of(name: str, apart: bool) -> Array:
        return stacked(apart, *(getattr(own, name) for own in by_agent))

    moves = zip(*(own.moves for own in by_agent), strict=True)
    return Truth(
        moves=Moves(*(stacked(laws, *values) for values in moves)),
        reward_passive=of("reward_passive", pays),
        reward_active=of("reward_active", pays),
        passive=of("passive", laws),
        active=of("active", laws),
        rest=of("rest", laws),
    )


def differing(each: Sequence[Arms]) -> tuple[bool, bool]:
    """Whether agents' laws differ, and whether their rewards do; each: the arms of each agent."""

    def differ(*names: str) -> bool:
        first, *others = {id(own): own for own in each}.values()
        return any(
            not np.array_equal(getattr(own, name), getattr(first, name))
            for own in others
            for name in names
        )

    if not each:
        return False, False
    return differ("passive", "active"), differ("reward_passive", "reward_active")


def _truth_of(arms: Arms) -> Truth:

    def levels(chances: Any) -> Array:
        """(N, ..., S) chances of each next state to (..., S - 1, N)."""
        return jnp.asarray(np.moveaxis(chance_levels(chances), 0, -1))

    def last(x: Any) -> Array:
        return jnp.asarray(np.moveaxis(x, 0, -1), jnp.float32)

    return Truth(
        moves=Moves(last(arms.passive), last(arms.active)),
        reward_passive=last(arms.reward_passive),
        reward_active=last(arms.reward_active),
        passive=levels(arms.passive),
        active=levels(arms.active),
        rest=levels(starting_chances(arms)),
    )


def wide(values: Array) -> Array:
    """Values (N,), or (N, M) by agent, for arrays (N, M, R)."""
    return values[:, None, None] if values.ndim == 1 else values[..., None]


class World:
    """How arms of these kinds move, show themselves and pay."""

    def __init__(self, kinds: tuple[ArmKind, ...], *, idle_pay: bool) -> None:
        self.n_arms = len(kinds)
        self.n_states = max(kind.states for kind in kinds)
        self.idle_pay = idle_pay
        self.any_always = any(kind.fully_observed for kind in kinds)
        self.all_alike = not any(kind.action_dependent for kind in kinds)
        self._always = [kind.fully_observed for kind in kinds]
        self._alike = [not kind.action_dependent for kind in kinds]
        self.state_type = jnp.bool_ if self.n_states == 2 else jnp.int8

    @cached_property
    def always(self) -> Array:
        """Which arms are fully observed, (N, 1, 1)."""
        return jnp.array(self._always)[:, None, None]

    @cached_property
    def alike(self) -> Array:
        """Which arms have uncontrolled transitions, (N, 1, 1)."""
        return jnp.array(self._alike)[:, None, None]

    @cached_property
    def each_state(self) -> Array:
        """The states along a first axis, to compare states (N, M, R) with."""
        return jnp.arange(self.n_states).astype(self.state_type)[:, None, None, None]

    def shown(self, state: Array, last_seen: Array) -> Array:
        """What is known before a choice: the state now of fully observed arms, else the last
        one."""
        return jnp.where(self.always, state, last_seen) if self.any_always else last_seen

    def start(self, key: Key, truth: Truth, n_trials: int) -> Array:
        """The states in the first slot, (N, lanes, R)."""
        arm = jnp.arange(self.n_arms, dtype=jnp.uint32)[:, None, None]
        words = threefry(key, jnp.uint32(BEFORE), arm)[0] >> (32 - BITS)
        rest = truth.rest[..., None] if truth.rest.ndim == 3 else truth.rest[:, :, None, None]
        before = (words < rest).sum(0).astype(self.state_type)
        before = jnp.broadcast_to(before, (*before.shape[:2], n_trials))
        return self.move(key, truth, before, jnp.zeros(before.shape, bool), jnp.uint32(0))

    def move(self, key: Key, truth: Truth, state: Array, played: Array, slot: Array) -> Array:
        """The true states in slot `slot`, from those before; one Threefry call serves two arms."""
        half = (self.n_arms + 1) // 2
        arm = jnp.arange(half, dtype=jnp.uint32)[:, None, None]
        words = jnp.concatenate(threefry(key, slot, arm))[: self.n_arms] >> (32 - BITS)
        if self.n_states > _MAX_SELECTED_STATES:
            return self._bisect(truth, words, state, played)
        ahead: Array = jnp.zeros((), self.state_type)
        for j in range(self.n_states - 1):
            level = self.select(truth.passive[:, j], state)
            if not self.all_alike:
                level = jnp.where(played, self.select(truth.active[:, j], state), level)
            reached = words < level
            ahead = reached if self.n_states == 2 else ahead + reached.astype(jnp.int8)
        return ahead

    def _bisect(self, truth: Truth, words: Array, state: Array, played: Array) -> Array:
        S = self.n_states
        levels = truth.passive[None] if self.all_alike else jnp.stack([truth.passive, truth.active])
        arm = jnp.arange(self.n_arms)[:, None, None]
        if levels.ndim == 5:  # by arm and agent, action, state, j
            flat = jnp.moveaxis(levels, (-2, -1), (0, 1)).reshape(-1)
            arm = arm * levels.shape[-1] + jnp.arange(levels.shape[-1])[:, None]
        else:  # by arm, action, state, j
            flat = jnp.moveaxis(levels, -1, 0).reshape(-1)
        row = (arm * levels.shape[0] + (0 if self.all_alike else played)) * S + state.astype(
            jnp.int32
        )
        ahead = jnp.zeros(words.shape, jnp.int32)
        for bit in reversed(range((S - 1).bit_length())):
            further = ahead + (1 << bit)
            level = flat[row * (S - 1) + jnp.minimum(further, S - 1) - 1]
            ahead = jnp.where((further < S) & (words < level), further, ahead)
        return ahead.astype(self.state_type)

    def paid(self, truth: Truth, state: Array, played: Array) -> Array:
        """What each arm pays, (N, M, R)."""
        idle = self.select(truth.reward_passive, state) if self.idle_pay else 0
        return jnp.where(played, self.select(truth.reward_active, state), idle)

    # What follows is different for a recording.

    def playable(self, truth: Truth, slot: Array) -> Array | None:  # noqa: ARG002 - as a recording's
        """Which arms can be played in a slot, (N, M, 1); None: all."""
        return None

    def known(
        self,
        truth: Truth,  # noqa: ARG002 - as above
        observed: InformationStates,
        slot: Array,  # noqa: ARG002 - as above
    ) -> InformationStates:
        """What is known after a slot, of what was observed up to it."""
        return observed

    def no_rewards(self, truth: Truth, horizon: int, shape: tuple[int, int]) -> Array:  # noqa: ARG002 - as above
        """Rewards before the first slot; shape: M and R."""
        return jnp.zeros((horizon, shape[1]), jnp.float32)

    def add_rewards(self, truth: Truth, rewards: Array, paid: Array, slot: Array) -> Array:  # noqa: ARG002 - as above
        """With what a slot paid, (N, M, R)."""
        added: Array = lax.dynamic_update_index_in_dim(rewards, paid.sum((0, 1)), slot, 0)
        return added

    def select(self, values: Array, state: Array) -> Array:
        """Values (S, N), or (S, N, M) by agent, of the states (N, M, R)."""
        if self.n_states > _MAX_SELECTED_STATES:
            arm = jnp.arange(self.n_arms)[:, None, None]
            if values.ndim == 3:
                arm = arm * values.shape[-1] + jnp.arange(values.shape[-1])[:, None]
                values = values.reshape(self.n_states, -1)
            return values.T.reshape(-1)[arm * self.n_states + state.astype(jnp.int32)]
        chosen = wide(values[0])
        for s in range(1, self.n_states):
            is_s = state if self.n_states == 2 else state == s
            chosen = jnp.where(is_s, wide(values[s]), chosen)
        return chosen


class RecordedWorld(World):
    """Arms whose states were recorded: they move as they did, whoever plays them.

    windows: W, into which the slots are divided.
    """

    def __init__(self, kinds: tuple[ArmKind, ...], *, idle_pay: bool, windows: int) -> None:
        super().__init__(kinds, idle_pay=idle_pay)
        self.windows = windows

    def start(self, key: Key, truth: Truth, n_trials: int) -> Array:  # noqa: ARG002 - nothing is drawn
        """The states in the first slot, (N, M, 1 or R)."""
        return _recorded(truth).state[0].astype(self.state_type)

    def move(self, key: Key, truth: Truth, state: Array, played: Array, slot: Array) -> Array:  # noqa: ARG002 - as above
        """The states in slot `slot`; past the end, where nobody reads them, the last."""
        return _at(_recorded(truth).state, slot).astype(self.state_type)

    def playable(self, truth: Truth, slot: Array) -> Array | None:
        """Those that were measured."""
        return _at(_recorded(truth).measured, slot)

    def known(self, truth: Truth, observed: InformationStates, slot: Array) -> InformationStates:
        """Nothing where the next slot begins a segment."""
        begins = _at(_recorded(truth).starts, slot + 1)
        return observed._replace(age=jnp.where(begins, NEVER, observed.age))

    def no_rewards(self, truth: Truth, horizon: int, shape: tuple[int, int]) -> Array:  # noqa: ARG002 - by window
        """(W, M, R)"""
        return jnp.zeros((self.windows, *shape), jnp.float32)

    def add_rewards(self, truth: Truth, rewards: Array, paid: Array, slot: Array) -> Array:
        """Added to those of the slot's window."""
        added: Array = rewards.at[_at(_recorded(truth).window, slot)].add(paid.sum(0))
        return added


def _recorded(truth: Truth) -> Recording:
    assert truth.recorded is not None
    return truth.recorded


def _at(series: Array, slot: Array) -> Array:
    found: Array = lax.dynamic_index_in_dim(series, slot, keepdims=False)
    return found
