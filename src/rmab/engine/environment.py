"""Environments: true states that move and pay, for all arms, agents and trials at once.

A state moves by comparing one 24-bit number w with the chances of reaching at least each state,

    next state = how many j >= 1 have  w < 2^24 Pr(next >= j | state, action),

whole numbers that are computed beforehand in double precision (`rmab.model.realisation`, which has
the same for a few trials on NumPy). For few states they are selected and compared one by one; for
many the next state is found by bisection, since they fall with j.

`SimulatedEnvironment` is that of a study. Another one is a subclass, such as a recording that is
replayed (`rmab.traces.replay`); all arrays that it reads come as `truth`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rmab.model.arms import ArmKind, Arms, Moves
from rmab.model.information import NEVER, InformationStates
from rmab.model.realisation import BEFORE, BITS, chance_levels, starting_chances
from rmab.policies.rules.dynamics import wide
from rmab.rng.variates import Key, threefry

if TYPE_CHECKING:
    from rmab.engine.setting import Setting

__all__ = ["SimulatedEnvironment", "Truth", "differing", "truth"]

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


class SimulatedEnvironment:
    """Arms of these kinds that move by chance, show themselves and pay.

    idle_pay: an arm left alone may pay. Environments of equal parts are equal: compiled programs
    are found by them.
    """

    at_once = False  # there are few trials, whose episodes are served together

    def __init__(self, kinds: tuple[ArmKind, ...], idle_pay: bool, *more: Any) -> None:
        self.parts = (type(self), kinds, idle_pay, *more)
        self.idle_pay = idle_pay
        states, always, controlled = zip(*(kind[:3] for kind in kinds), strict=True)
        self.n_arms = len(kinds)
        self.n_states = max(states)
        self.state_type: Any = np.bool_ if self.n_states == 2 else np.int8
        self.any_always = any(always)
        self.all_alike = not any(controlled)
        # Masks (N, 1, 1) of arms that are fully observed, and that have uncontrolled transitions.
        self.always = np.array(always)[:, None, None]
        self.alike = ~np.array(controlled)[:, None, None]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SimulatedEnvironment) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    @property
    def each_state(self) -> Array:
        """The states along a first axis, (S, 1, 1, 1), to compare states (N, M, R) with.

        Made where it is used: XLA compares with a counter faster than with a constant.
        """
        return jnp.arange(self.n_states).astype(self.state_type)[:, None, None, None]

    def like(self, setting: Setting) -> Any:
        """Return the shapes of `truth`."""

        def kind(*shape: int, dtype: Any = jnp.float32) -> Any:
            return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]  # no types

        S, agents = self.n_states, (setting.n_agents,)
        moves = (self.n_arms, *(agents if setting.laws_differ else ()))
        pays = (self.n_arms, *(agents if setting.rewards_differ else ()))
        square, row = kind(S, S, *moves), kind(S, *pays)
        levels = kind(S, S - 1, *moves, dtype=jnp.uint32)
        rest = kind(S - 1, *moves, dtype=jnp.uint32)
        return Truth(Moves(square, square), row, row, levels, levels, rest)

    # ----------------------------------------------------------------- what agents know

    def unobserved(self, n_agents: int, n_trials: int) -> InformationStates:
        """Return the information states before the first slot: (N, M, R) each, nothing observed."""
        shape = (self.n_arms, n_agents, n_trials)
        return InformationStates(
            jnp.zeros(shape, self.state_type), jnp.full(shape, NEVER, jnp.int32)
        )

    def observe(
        self,
        truth: Any,  # noqa: ARG002 - a recording has segments
        observed: InformationStates,
        played: Array,
        state: Array,
        slot: Array,  # noqa: ARG002 - as above
    ) -> InformationStates:
        """Return the information states after a slot: played arms are observed, others age."""
        age = jnp.where(played, 1, observed.age + (observed.age != NEVER))
        shows = played | self.always if self.any_always else played
        return InformationStates(jnp.where(shows, state, observed.last_seen), age)

    def shown(self, state: Array, last_seen: Array) -> Array:
        """Return the states known before a choice: now of fully observed arms, else the last."""
        return jnp.where(self.always, state, last_seen) if self.any_always else last_seen

    def start(self, key: Key, truth: Truth, n_trials: int) -> Array:
        """Return the states in the first slot, (N, M or 1, R)."""
        arm = jnp.arange(self.n_arms, dtype=jnp.uint32)[:, None, None]
        words = threefry(key, jnp.uint32(BEFORE), arm)[0] >> (32 - BITS)
        rest = truth.rest[..., None] if truth.rest.ndim == 3 else truth.rest[:, :, None, None]
        before = (words < rest).sum(0).astype(self.state_type)
        before = jnp.broadcast_to(before, (*before.shape[:2], n_trials))
        return self.advance(key, truth, before, jnp.zeros(before.shape, bool), jnp.uint32(0))

    def advance(self, key: Key, truth: Truth, state: Array, played: Array, slot: Array) -> Array:
        """Return the states in slot `slot`, from those before; a Threefry call serves two arms."""
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

    def pay(self, truth: Truth, state: Array, played: Array) -> Array:
        """Return the reward of each arm, (N, M, R)."""
        idle = self.select(truth.reward_passive, state) if self.idle_pay else 0
        return jnp.where(played, self.select(truth.reward_active, state), idle)

    def playable(self, truth: Truth, slot: Array) -> Array | None:  # noqa: ARG002
        """Return the mask of arms that can be played in a slot, (N, M, 1); None: all."""
        return None

    def no_rewards(self, truth: Truth, horizon: int, shape: tuple[int, int]) -> Array:  # noqa: ARG002 - as above
        """Return the rewards before the first slot; shape: M and R."""
        return jnp.zeros((horizon, shape[1]), jnp.float32)

    def add_rewards(self, truth: Truth, rewards: Array, paid: Array, slot: Array) -> Array:  # noqa: ARG002 - as above
        """Return the rewards with those of a slot, (N, M, R)."""
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
        return jnp.asarray(chosen)
