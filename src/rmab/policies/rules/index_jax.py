"""Index rules in JAX programs: the index is a formula where agents are, or a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rmab.errors import ModelError
from rmab.model.arms import Arms, Dynamics
from rmab.model.information import InformationStates, information_states, row_of
from rmab.planning.tables import Model
from rmab.policies.constraint import Constraint
from rmab.policies.lookahead import table_entries
from rmab.policies.rules.compiled import (
    CompiledRule,
    Scene,
    SlotInputs,
    TabledRule,
    computed_once,
)
from rmab.policies.rules.dynamics import (
    KnownTables,
    LearnedArms,
    channel_pair,
    no_table,
    wide,
)
from rmab.policies.rules.index import IndexRule

__all__ = ["CompiledIndex", "IndexFormula", "WrappedIndex", "check", "compiled", "fill", "grid"]

_TRIED_AGE, _TRIED_DYNAMICS = 8, 16  # with which a planner is tried before it plays
_KEPT_BITS = 16  # bits after the first of an index that is rounded


def compiled(rule: IndexRule, scene: Scene) -> CompiledRule:
    """Return the rule as part of a program."""
    formula = rule.statewise and scene.setting.channels and rule.planner is not None
    return (IndexFormula if formula else _IndexTable)(rule, scene)


class CompiledIndex(CompiledRule):
    """Play the K arms of the largest index."""

    def index(self, inputs: SlotInputs) -> Array:
        """Return the index of each arm, (N, M, R)."""
        raise NotImplementedError

    def choose(self, inputs: SlotInputs) -> Array:
        """Return the mask of the K arms of largest index, (N, M, R).

        Where dynamics are fitted to a recording the index has five digits: arms of other dynamics
        are often worth the same except for rounding, and ties go to the lower one.
        """
        index = self.index(inputs)
        if inputs.playable is not None and not self.scene.learns:
            index = lax.reduce_precision(index.astype(jnp.float32), 8, _KEPT_BITS)
        return inputs.largest(index)


class IndexFormula(CompiledIndex):
    """An index that is a formula of the information state, evaluated where the agents are."""

    def filled(self, learnt: LearnedArms) -> Any:
        return channel_pair(learnt.output)

    def index(self, inputs: SlotInputs) -> Array:
        shape = inputs.observed.age.shape
        rewards = wide(inputs.truth.reward_active[1])  # taken once, outside the branch

        def index() -> Array:
            return jnp.broadcast_to(self.formula(inputs, rewards), shape).astype(jnp.float32)

        computed: Array = computed_once(inputs, index)
        return computed

    def formula(self, inputs: SlotInputs, rewards: Array) -> Array:
        """Return the index, an array that broadcasts to (N, M, R)."""
        p01, p11 = inputs.plan
        index: Array = self.rule.planner(Dynamics(p01, p11, rewards), inputs.observed)
        return index


class _IndexTable(CompiledIndex, TabledRule):
    """An index from a table, filled anew in every episode or known."""

    light = False

    def __init__(self, rule: Any, scene: Scene) -> None:
        super().__init__(rule, scene)
        self.planned = scene.setting.channels and rule.planner is not None

    def known(self, arms: Sequence[Arms], constraint: Constraint) -> KnownTables | None:
        if self.planned:
            return None
        if self.scene.learns and self.rule.table is None:
            raise no_table(self.scene.name)
        return None if self.scene.learns else self.all_known(arms, constraint.plays)

    def tables(self, arms: Arms, plays: int, max_age: int, wraps: Any) -> Any:  # noqa: ARG002
        if self.rule.known is not None:
            return self.rule.known(arms, max_age)
        if self.rule.table is None:
            raise no_table(self.scene.name)
        return np.asarray(self.rule.table(Model.of(arms), max_age))[:, :, 0]

    def filled(self, learnt: LearnedArms) -> Any:
        max_age = self.rule.max_age if self.planned else self.setting.max_age
        return fill(self.rule, self.scene.name, learnt, 0, max_age)

    def wraps(self, known: Any) -> Array:
        # A planner's own table stays at its highest age.
        if self.planned and not isinstance(known, KnownTables):
            return jnp.ones(self.setting.n_arms, jnp.int32)
        return super().wraps(known)

    def index(self, inputs: SlotInputs) -> Array:
        max_age = (inputs.plan.shape[1] - 1) // self.setting.n_states
        rows = row_of(self.states(inputs), max_age, wide(inputs.wraps))
        entries: Array = table_entries(inputs.plan, rows)
        return entries


class WrappedIndex(CompiledIndex):
    """An index made of the index of `rule.inner`."""

    def __init__(self, rule: Any, scene: Scene) -> None:
        super().__init__(rule, scene)
        self.inner: CompiledIndex = rule.inner.compiled(scene)
        self.light = self.inner.light

    def known(self, arms: Sequence[Arms], constraint: Constraint) -> Any:
        return self.inner.known(arms, constraint)

    def wraps(self, known: Any) -> Array:
        return self.inner.wraps(known)

    def filled(self, learnt: LearnedArms) -> Any:
        return self.inner.filled(learnt)


def fill(rule: IndexRule, name: str, learnt: LearnedArms, plays: int, max_age: int) -> Array:  # noqa: ARG001
    """Return the table (N, I, trials) over the information states up to max_age."""
    if learnt.channels and rule.planner is not None:
        p01, p11 = channel_pair(learnt.output)
        states = grid(max_age)
        rewards = learnt.pays[1][:, None]
        table = rule.planner(Dynamics(p01[:, None], p11[:, None], rewards), states)
        rows, width = states.age.shape[1], p01.shape[-1]
    else:
        if rule.table is None:
            raise no_table(name)
        model = learnt.model(name)
        table = rule.table(model, max_age)
        rows, width = 1 + len(learnt.reward_active) * max_age, model.moves.passive.shape[-1]
    shape = (len(learnt.kinds), rows, width)
    try:
        return jnp.broadcast_to(jnp.asarray(table, jnp.float32), shape)
    except ValueError:
        raise ModelError(
            f"policy {name}: its planner must give an index for (arms, information "
            f"states, trials) = {shape}, got shape {jnp.shape(table)}"
        ) from None


def grid(max_age: int) -> InformationStates:
    """Return all information states of a channel, (1, I, 1) each."""
    states = information_states(max_age)
    return InformationStates(*(jnp.asarray(x, jnp.int32)[None, :, None] for x in states))


def check(rule: IndexRule, name: str, arms: Arms) -> None:
    """Refuse a planner whose index is not a number.

    It is tried on these arms and, as a learner finds others, on dynamics from all over, in every
    information state that its table has.
    """
    if not arms.are_channels:
        if rule.table is not None:
            _refuse_nan(name, rule.table(Model.of(arms), _TRIED_AGE), "these arms")
        return
    if rule.planner is None:
        return
    states = grid(rule.max_age)
    reward = jnp.asarray(arms.reward, jnp.float32)[:, None, None]
    some = np.random.default_rng(0).uniform(0.01, 0.99, (2, len(arms), 1, _TRIED_DYNAMICS))
    known = np.stack([arms.p01, arms.p11])[:, :, None, None]
    for pair, which in ((known, "these arms"), (some, "dynamics that may be learnt")):
        p01, p11 = (jnp.asarray(x, jnp.float32) for x in pair)
        _refuse_nan(name, rule.planner(Dynamics(p01, p11, reward), states), which)


def _refuse_nan(name: str, index: Any, which: str) -> None:
    wrong = np.argwhere(np.isnan(np.asarray(index, np.float64)))
    if len(wrong):
        row = int(wrong[0][1]) if wrong.shape[1] > 1 else 0
        place = f" in row {row} of its table" if row else " for an arm that was never observed"
        raise ModelError(
            f"policy {name}: its planner must give numbers, and with {which} gave NaN{place}"
        )
