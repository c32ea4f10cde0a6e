"""Index tables: indices of all information states of all arms.

The K arms of largest index are played, ties to the lower arm. A table has a row for every
information state up to an age, in the order of `information_states` with S the largest number of
states: never observed, (0, 1), ..., (0, max_age), (1, 1), ... A fully observed arm has the index of
state s in the row of (s, 1). Rows that an arm does not have are 0 and never read.

*Channels* have a formula of the information state, a planner: a function

    planner(dynamics, states) -> index

whose arguments broadcast: arms on the first axis, then information states or agents, then trials.
`index_table` evaluates one on all information states; the engine may also evaluate it just where
the agents are.

    whittle_at   closed-form Whittle index, eqs. (34) and (35)
    myopic       expected reward now, reward x belief, eq. (13)
    fixed        b0: the paper's fixed policy
    fixed_best   reward x b0: the best fixed policy

*Known arms* of any kind have tables in double precision, arm by arm.

    whittle_table      the closed form for channels, else `rmab.planning.index.api`
    myopic_table       expected reward now of a play over no play: b . (r_1 - r_0)
    fixed_scores       share of slots that an arm, always played, spends in its best state
    fixed_best_scores  long-run reward of always playing an arm over never playing it

*Drawn dynamics* of many trials have tables on NumPy or JAX arrays, trials last, filled for all arms
of one kind at once, in the precision of the arrays and without a verdict on indexability.

    fill_whittle     the Whittle index
    fill_myopic      as myopic_table
    fill_fixed_best  as fixed_best_scores, in all rows

Arms start in mu, the limiting distribution under P_0. In the long run always playing an arm pays
mu P_1* . r_1, never playing it mu . r_0, where P* is the Cesaro limit of P.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rmab.arrays import Array, Float, FloatArray
from rmab.errors import ModelError
from rmab.linalg import array_namespace
from rmab.markov import limit, limiting_distribution, limiting_distributions
from rmab.model.arms import CHANNEL, Arm, ArmKind, Arms, Dynamics, Moves
from rmab.model.expansion import expansion
from rmab.model.information import InformationStates, information_states, stationary_belief
from rmab.planning.channel.whittle import myopic, whittle_at
from rmab.planning.index.adaptive_greedy import state_table
from rmab.planning.index.api import whittle_indices
from rmab.planning.index.hidden import information_table

__all__ = [
    "Model",
    "Planner",
    "Table",
    "fill_fixed_best",
    "fill_myopic",
    "fill_whittle",
    "fixed",
    "fixed_best",
    "fixed_best_scores",
    "fixed_scores",
    "index_table",
    "myopic",
    "myopic_table",
    "played_distribution",
    "whittle_at",
    "whittle_table",
]

# ------------------------------------------------------------------------------------- channels

Planner = Callable[[Dynamics, InformationStates], Any]


def fixed(dynamics: Dynamics, states: InformationStates) -> Array:
    """Return the stationary belief: the same arms are always played."""
    return stationary_belief(dynamics) + 0 * states.age


def fixed_best(dynamics: Dynamics, states: InformationStates) -> Array:
    """Return reward x stationary belief: the best arms are always played."""
    return dynamics.reward * stationary_belief(dynamics) + 0 * states.age


def index_table(planner: Planner, arms: Arms, max_age: int) -> Float[FloatArray, "N 1+2*{max_age}"]:
    """Evaluate a planner in every information state of channels."""
    dynamics = Dynamics(*(x[:, None] for x in arms.dynamics))
    table = planner(dynamics, information_states(max_age))
    shape = (len(arms), 1 + 2 * max_age)
    return np.broadcast_to(np.asarray(table, dtype=np.float64), shape).copy()


# ----------------------------------------------------------------------------------- known arms


def whittle_table(arms: Arms, max_age: int) -> Float[FloatArray, "N I"]:
    """Return the Whittle index under average reward in every row.

    The index of an arm that is not indexable is the lowest subsidy above which it is passive.
    """
    if arms.are_channels:  # all at once
        return np.asarray(index_table(whittle_at, arms, max_age))
    return _stacked(arms, max_age, _whittle_rows)


def myopic_table(arms: Arms, max_age: int) -> Float[FloatArray, "N I"]:
    """Return the expected reward of a play now, less that of no play, in every row: eq. (13).

    >>> arm = Arm([[0.9, 0.1], [0.3, 0.7]], reward_active=[0, 1], reward_passive=[0.5, 0])
    >>> myopic_table(Arms([arm]), max_age=2).round(3).tolist()
    [[-0.125, -0.35, -0.26, 0.55, 0.28]]
    """
    return _stacked(arms, max_age, _myopic_rows)


def played_distribution(arm: Arm) -> Float[FloatArray, " S"]:
    """Return the share of slots in each state if the arm is always played."""
    return np.asarray(limiting_distribution(arm.passive) @ limit(arm.active))


def fixed_scores(arms: Arms) -> Float[FloatArray, " N"]:
    """Return the long-run chance of the best state, the last of equals, under constant play.

    It is b0 for channels.
    """
    return np.array([played_distribution(arm)[_best_state(arm)] for arm in arms])


def fixed_best_scores(arms: Arms) -> Float[FloatArray, " N"]:
    """Return the long-run reward of always playing, less that of never playing."""
    return np.array(
        [
            played_distribution(arm) @ arm.reward_active
            - limiting_distribution(arm.passive) @ arm.reward_passive
            for arm in arms
        ]
    )


def _best_state(arm: Arm) -> int:
    return arm.states - 1 - int(np.argmax(arm.reward_active[::-1]))


def _stacked(arms: Arms, max_age: int, rows_of: Callable[[Arm, int], FloatArray]) -> FloatArray:
    """Join the rows of each arm in one table."""
    if max_age < 1:
        raise ModelError(f"max_age must be at least 1, got {max_age}")
    table = np.zeros((len(arms), 1 + int(arms.sizes.max()) * max_age))
    for arm, line in zip(arms, table, strict=True):
        rows = rows_of(arm, max_age)
        line[: rows.size] = rows
    return table


def _whittle_rows(arm: Arm, max_age: int) -> FloatArray:
    """Return the Whittle indices of one arm, (1 + S_n max_age,)."""
    if arm.observed == "always":
        return _by_state(whittle_indices(arm).index, max_age)
    indices = whittle_indices(arm, max_age=max_age)
    assert indices.never_seen is not None  # as the arm is observed when played
    rows = np.append(indices.never_seen, indices.index)
    unknown = np.isnan(rows)
    if unknown.any():  # the arm forgets so slowly that its ages are cut; the play needs numbers
        cut = information_table(
            arm.passive, arm.active, arm.reward_passive, arm.reward_active, max_age
        )
        rows[unknown] = cut[unknown]
    return rows


def _myopic_rows(arm: Arm, max_age: int) -> FloatArray:
    """Return the myopic indices of one arm, (1 + S_n max_age,)."""
    if arm.observed == "always":
        return _by_state(arm.reward_active - arm.reward_passive, max_age)
    chain = expansion(arm, max_age)
    return np.asarray(chain.reward_active - chain.reward_passive)


def _by_state(index: FloatArray, max_age: int) -> FloatArray:
    """Put an index for each state (S_n,) in the rows of age 1, (1 + S_n max_age,)."""
    rows = np.zeros(1 + index.size * max_age)
    rows[1::max_age] = index
    return rows


# ------------------------------------------------------------------------------- drawn dynamics


class Model(NamedTuple):
    """Arms as a table planner sees them, true, estimated or drawn.

    moves: (S, S, N, R) each; kinds: (N,); width: confidence widths of rows, (S, N, R) each, if the
    learner has them.
    """

    moves: Moves
    reward_passive: Float[Array, "S N #R"]
    reward_active: Float[Array, "S N #R"]
    kinds: tuple[ArmKind, ...]
    width: Moves | None = None

    @classmethod
    def of(cls, arms: Arms) -> Model:
        """Return known arms as one trial."""
        passive, active = (np.moveaxis(x, 0, -1)[..., None] for x in (arms.passive, arms.active))
        idle, pays = (x.T[..., None] for x in (arms.reward_passive, arms.reward_active))
        return cls(Moves(passive, active), idle, pays, arms.kinds)


Table = Callable[[Model, int], Array]
# passive, active, reward_passive, reward_active of n arms of one kind -> (rows, n, R)
_Rows = Callable[[Array, Array, Array, Array], Array]


def fill_whittle(model: Model, max_age: int) -> Array:
    """Return the Whittle index in every row, (N, 1 + S max_age, R)."""

    def when_played(passive: Array, active: Array, idle: Array, pays: Array) -> Array:
        return information_table(passive, active, idle, pays, max_age)

    def channel(passive: Array, active: Array, idle: Array, pays: Array) -> Array:  # noqa: ARG001 - as when_played
        return _channel_rows(passive, pays - idle, max_age)

    return _fill(model, max_age, when_played, state_table, channel)


def _channel_rows(passive: Array, worth: Array, max_age: int) -> Array:
    """Return the closed form for uncontrolled arms of two states, (rows, n, R).

    The passive reward is paid in any case, so a play is worth r_1 - r_0, (2, n, 1). The better
    state is the good one; the worth of the other is added to every index.
    """
    xp = array_namespace(passive)
    worth = xp.broadcast_to(worth, passive.shape[1:])
    swapped = worth[1] < worth[0]
    p01 = xp.where(swapped, passive[1, 0], passive[0, 1])
    p11 = xp.where(swapped, passive[0, 0], passive[1, 1])
    gain = Dynamics(*(x[None] for x in (p01, p11, abs(worth[1] - worth[0]))))
    state, age = (xp.asarray(x)[:, None, None] for x in information_states(max_age))
    states = InformationStates(xp.where(swapped, 1 - state, state), age)
    return xp.minimum(*worth) + whittle_at(gain, states)


def fill_myopic(model: Model, max_age: int) -> Array:
    """Return the expected reward of a play now, less that of no play, (N, 1 + S max_age, R)."""

    def when_played(passive: Array, active: Array, idle: Array, pays: Array) -> Array:
        xp = array_namespace(passive)
        # P_0^(k-1) (r_1 - r_0) for every age; an observation of s then weighs it by row s of P_1.
        worth = xp.broadcast_to(pays - idle, passive.shape[1:])
        rest = (limiting_distributions(passive) * worth).sum(0)
        by_age = []
        for _ in range(max_age):
            by_age.append((active * worth[None]).sum(1))
            worth = (passive * worth[None]).sum(1)
        observed = xp.stack(by_age, 1)  # (S, max_age, n, R)
        return xp.concatenate([rest[None], observed.reshape(-1, *rest.shape)])

    def always(passive: Array, active: Array, idle: Array, pays: Array) -> Array:  # noqa: ARG001 - as state_table
        return array_namespace(passive).broadcast_to(pays - idle, passive.shape[1:])

    return _fill(model, max_age, when_played, always)


def fill_fixed_best(model: Model, max_age: int) -> Array:
    """Return the long-run reward of always playing, less that of never playing, in every row."""

    def scores(passive: Array, active: Array, idle: Array, pays: Array) -> Array:
        at_rest, played = limiting_distributions(passive), limiting_distributions(active)
        return ((played * pays).sum(0) - (at_rest * idle).sum(0))[None]

    def when_played(passive: Array, active: Array, idle: Array, pays: Array) -> Array:
        score = scores(passive, active, idle, pays)
        return array_namespace(score).repeat(score, 1 + len(passive) * max_age, 0)

    def always(passive: Array, active: Array, idle: Array, pays: Array) -> Array:
        score = scores(passive, active, idle, pays)
        return array_namespace(score).repeat(score, len(passive), 0)

    return _fill(model, max_age, when_played, always)


def _fill(
    model: Model, max_age: int, when_played: _Rows, always: _Rows, channel: _Rows | None = None
) -> Array:
    """Fill the rows of arms of one kind together, with `channel` for channels."""
    passive, active = model.moves
    xp: Any = array_namespace(passive, active)
    S, _, _, width = passive.shape
    rows = 1 + S * max_age
    groups: dict[tuple[int, bool, bool], list[int]] = {}
    for arm, kind in enumerate(model.kinds):
        formula = channel is not None and kind._replace(tie=None) == CHANNEL
        groups.setdefault((kind.states, kind.fully_observed, formula), []).append(arm)
    parts = []
    for (states, fully_observed, formula), members in groups.items():
        arms = np.array(members)
        matrices = (m[:states, :states][:, :, arms] for m in (passive, active))
        rewards = (r[:states, arms] for r in (model.reward_passive, model.reward_active))
        rows_of = channel if formula and channel else always if fully_observed else when_played
        index = rows_of(*matrices, *rewards)
        if fully_observed:  # (s, 1) stands max_age rows after (s - 1, 1)
            gap = xp.zeros((states, max_age - 1, len(members), width), index.dtype)
            index = xp.concatenate([index[:, None], gap], 1).reshape(-1, len(members), width)
            index = xp.concatenate([xp.zeros((1, len(members), width), index.dtype), index])
        missing = xp.zeros((rows - index.shape[0], len(members), width), index.dtype)
        parts.append(xp.concatenate([index, missing]))
    order = np.argsort(np.concatenate([np.array(members) for members in groups.values()]))
    return xp.moveaxis(xp.concatenate(parts, 1)[:, order], 0, 1)
