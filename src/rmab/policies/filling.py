"""From dynamics to what is played by: the tables of a rule, for engine and server alike.

`fill` makes the tables of an `IndexRule` or a `LookaheadRule` from dynamics that a learner gave, in
single precision, trials last. `known_tables` makes those of arms whose dynamics are known, once, in
double precision.

Where all arms are channels the tables are formulas of the information state, which the engine
evaluates where its agents are instead of filling tables (`rmab.engine.agents`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError
from rmab.linalg import Array
from rmab.markov import period
from rmab.model.arms import ArmKind, Arms, Dynamics, Intervals, Moves, Uncertain
from rmab.model.expansion import settled_age
from rmab.model.information import InformationStates, information_states
from rmab.planning.lookahead.channel import channel_tables, channel_values
from rmab.planning.lookahead.tables import fill_lookahead, known_wraps
from rmab.planning.tables import Model
from rmab.policies.lookahead import LookaheadTables
from rmab.policies.policy import IndexRule, LookaheadRule, Policy

__all__ = [
    "MAX_KNOWN_AGES",
    "Found",
    "KnownTables",
    "Learnt",
    "channel_pair",
    "check_planner",
    "fill",
    "known_ages",
    "known_tables",
    "table_ages",
]

KNOWN_TOLERANCE, MAX_KNOWN_AGES = 1e-6, 512
_TRIED_AGE, _TRIED_LAWS = 8, 16  # with which a planner is tried before it plays
LEARNT_TOLERANCE, MAX_LEARNT_AGES = 0.08, 64  # tables filled anew in every episode

# What a learner gives: (S, S, N, R) each, or (N, R) each; or what chances lie between.
Found = Moves | Uncertain | Intervals | tuple[Array, Array]


class Learnt(NamedTuple):
    """Arms as a server has learnt them.

    found: of A R trials; reward_passive, reward_active: (S, N), or (S, N, A R) where agents'
    differ; kinds: (N,); channels: whether p01, p11 and a reward describe all arms; first: (N, A R),
    the arms that an index rule plays before all others, None: none.
    """

    found: Found
    reward_passive: Array
    reward_active: Array
    kinds: tuple[ArmKind, ...]
    channels: bool
    first: Array | None = None

    def model(self, name: str) -> Model:
        """Whole matrices, for arms that are not channels; name: of the policy."""
        moves, width = self.found, None
        if isinstance(moves, Uncertain):
            moves, width = moves
        if not isinstance(moves, Moves):
            raise ModelError(
                f"policy {name}: its learner must return rmab.Moves for arms that are not channels"
            )
        return Model(moves, self.idle_pays, self.pays, self.kinds, width)

    @property
    def idle_pays(self) -> Array:
        """What no play pays, (S, N, 1 or A R)."""
        rewards = self.reward_passive
        return rewards if rewards.ndim == 3 else rewards[:, :, None]

    @property
    def pays(self) -> Array:
        """What a play pays, (S, N, 1 or A R)."""
        rewards = self.reward_active
        return rewards if rewards.ndim == 3 else rewards[:, :, None]


def channel_pair(found: Found) -> tuple[Array, Array]:
    """p01 and p11, each (N, ...)."""
    if isinstance(found, Uncertain):
        found = found.moves
    if isinstance(found, Moves):
        return found.passive[0, 1], found.passive[1, 1]
    return found[0], found[1]


def fill(
    policy: Policy, learnt: Learnt, plays: int | None, max_age: int
) -> Array | LookaheadTables:
    """Tables (N, I, trials) over the information states up to max_age, or several of a lookahead.

    plays: K, which a lookahead needs.
    """
    rule = policy.rule
    if isinstance(rule, LookaheadRule):
        assert plays is not None
        if learnt.channels:
            return _channel_lookahead(rule.depth, learnt, plays, max_age)
        return fill_lookahead(learnt.model(policy.name), max_age, plays, rule.depth)
    assert isinstance(rule, IndexRule)
    if learnt.channels and rule.planner is not None:
        p01, p11 = channel_pair(learnt.found)
        states = _grid(max_age)
        rewards = learnt.pays[1][:, None]
        table = rule.planner(Dynamics(p01[:, None], p11[:, None], rewards), states)
        rows, width = states.age.shape[1], p01.shape[-1]
    else:
        if rule.table is None:
            raise no_table(policy)
        model = learnt.model(policy.name)
        table = rule.table(model, max_age)
        rows, width = 1 + len(learnt.reward_active) * max_age, model.moves.passive.shape[-1]
    shape = (len(learnt.kinds), rows, width)
    try:
        index = jnp.broadcast_to(jnp.asarray(table, jnp.float32), shape)
        return index if learnt.first is None else jnp.where(learnt.first[:, None], jnp.inf, index)
    except ValueError:
        raise ModelError(
            f"policy {policy.name}: its planner must give an index for (arms, information "
            f"states, trials) = {shape}, got shape {jnp.shape(table)}"
        ) from None


def check_planner(policy: Policy, arms: Arms) -> None:
    """Refuse a planner whose index is not a number.

    It is tried on these arms and, as a learner finds others, on dynamics from all over, in every
    information state that its table has.
    """
    rule = policy.rule
    if not isinstance(rule, IndexRule):
        return
    if not arms.are_channels:
        if rule.table is not None:
            _refuse_nan(policy, rule.table(Model.of(arms), _TRIED_AGE), "these arms")
        return
    if rule.planner is None:
        return
    states = _grid(rule.max_age)
    reward = jnp.asarray(arms.reward, jnp.float32)[:, None, None]
    some = np.random.default_rng(0).uniform(0.01, 0.99, (2, len(arms), 1, _TRIED_LAWS))
    known = np.stack([arms.p01, arms.p11])[:, :, None, None]
    for laws, which in ((known, "these arms"), (some, "dynamics that may be learnt")):
        p01, p11 = (jnp.asarray(x, jnp.float32) for x in laws)
        _refuse_nan(policy, rule.planner(Dynamics(p01, p11, reward), states), which)


def _refuse_nan(policy: Policy, index: Any, which: str) -> None:
    wrong = np.argwhere(np.isnan(np.asarray(index, np.float64)))
    if len(wrong):
        row = int(wrong[0][1]) if wrong.shape[1] > 1 else 0
        place = f" in row {row} of its table" if row else " for an arm that was never observed"
        raise ModelError(
            f"policy {policy.name}: its planner must give numbers, and with {which} gave NaN{place}"
        )


def _grid(max_age: int) -> InformationStates:
    """All information states of a channel, (1, I, 1) each."""
    grid = information_states(max_age)
    return InformationStates(*(jnp.asarray(x, jnp.int32)[None, :, None] for x in grid))


def _channel_lookahead(depth: int, learnt: Learnt, plays: int, max_age: int) -> LookaheadTables:
    p01, p11 = channel_pair(learnt.found)
    rewards = learnt.pays[1][:, None]
    values = channel_values(Dynamics(p01[:, None], p11[:, None], rewards), plays)
    return channel_tables(values, _grid(max_age), depth)


def no_table(policy: Policy) -> ModelError:
    """A policy for channels that meets other arms."""
    return ModelError(
        f"policy {policy.name} is for channels alone; for these arms it needs a table, see "
        "docs/own-policy.md"
    )


class KnownTables(NamedTuple):
    """Tables of known arms: (N, I), or several of a lookahead; wraps: (N,) how far ages past the
    highest fall back, 0: they become never observed."""

    tables: Any
    wraps: npt.NDArray[np.int64]


def known_tables(
    policy: Policy, arms: Arms, plays: int, most: int = MAX_KNOWN_AGES, least: int = 1
) -> KnownTables:
    """The tables of a policy that knows these arms; most, least: ages that they distinguish."""
    rule = policy.rule
    max_age = max(least, known_ages(arms, most))
    wraps = known_wraps(arms, max_age)
    tables: Any
    if isinstance(rule, LookaheadRule):
        filled = fill_lookahead(Model.of(arms), max_age, plays, rule.depth, wraps)
        tables = jax.tree.map(lambda x: x[..., 0], filled)
    else:
        assert isinstance(rule, IndexRule)
        if rule.known is not None:
            tables = rule.known(arms, max_age)
        elif rule.table is not None:
            tables = np.asarray(rule.table(Model.of(arms), max_age))[:, :, 0]
        else:
            raise no_table(policy)
    return KnownTables(tables, wraps)


def table_ages(arms: Arms, tolerance: float = LEARNT_TOLERANCE, most: int = MAX_LEARNT_AGES) -> int:
    """Ages that tables of these arms distinguish: until beliefs are within the tolerance, and one
    period more where they go on swinging."""
    ages = (
        settled_age(arm, tolerance, most) + period(arm.passive) - 1
        for arm in arms
        if arm.observed == "when_played"
    )
    return max(ages, default=1)


def known_ages(arms: Arms, most: int = MAX_KNOWN_AGES) -> int:
    """Ages for tables that are filled once."""
    return table_ages(arms, KNOWN_TOLERANCE, most)
