"""Parametric policy iteration for arms observed when played, on JAX, for indices only.

The equations and the step are those of `rmab.planning.index.parametric`, under average reward and
without verdicts. Two things differ, as no shape may depend on the number of states that leave:

- a step passes once over the ages, from the last, and keeps two of the later lines, the best at
  either end. If a third lies above both in between, a state that leaves asks for a cut, too;
- lanes are one compiled loop. Each time other arms take lanes, the results of all lanes are stored
  together; in the end the results of an arm are read where it was done.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rmab.arrays import Array
from rmab.linalg import compute_once, propagate
from rmab.planning.index.parametric import (
    ArmBatch,
    Models,
    Tolerances,
    age_weights,
    chance_kept,
    in_units,
    most_steps,
    taken,
    tolerances,
    values_observed,
)

__all__ = ["follow"]

_CPU_LANES = 128  # lanes on a CPU
_FREED_SHARE = 0.5  # share of lanes done at which other arms take them


class LaggedIterate(NamedTuple):
    """The `Iterate` of `rmab.planning.index.parametric`, with Q updated one step later.

    value, slope: (J, S, B), Q where the last step began and its slope; moved: (B,), length of that
    step. The index of active states is the lambda reached.
    """

    value: Array
    slope: Array
    moved: Array
    index: Array
    waits: Array
    held: Array
    t: Array
    subsidy: Array
    never: Array
    idle: Array
    limit: Array
    done: Array


class _ArmLanes(NamedTuple):
    """Arms in progress, in lanes on the last axis, and the number of steps they have taken."""

    arms: Array
    batch: ArmBatch
    at: LaggedIterate
    steps: Array


def follow(models: Models, max_age: int) -> tuple[Array, Array]:
    """Return the indices of never observed (B,) and of all states (J, S, B)."""
    S, B = models.reward_active.shape
    # One number of lanes for few and many arms, so that results are the same to the last bit.
    lanes = _CPU_LANES if jax.default_backend() == "cpu" else B
    freed, most = max(1, int(_FREED_SHARE * lanes)), most_steps(S, max_age)
    pages = 2 if lanes >= B else B // freed + 3

    def start(arms: Array) -> _ArmLanes:
        batch, at = _begin(taken(models, jnp.minimum(arms, B - 1)), max_age)
        return _ArmLanes(arms, batch, at._replace(done=arms == B), jnp.zeros_like(arms))

    def go_on(under: _ArmLanes) -> _ArmLanes:
        at, steps = _step(under.batch, under.at), under.steps + 1
        return under._replace(at=at._replace(done=at.done | (steps >= most)), steps=steps)

    def turn_over(state: tuple[Any, ...]) -> tuple[Any, ...]:
        under, waiting, page, written, place = state
        idle = jnp.where(waiting < B, freed, lanes)
        under = lax.while_loop(lambda now: now.at.done.sum() < idle, go_on, under)
        done = under.at.done
        never, index = (
            x * under.batch.scale + under.batch.shift for x in (under.at.never, under.at.index)
        )
        rows = jnp.concatenate([never[None], index.reshape(-1, lanes)])
        written = lax.dynamic_update_index_in_dim(written, rows, page, 0)
        here = page * lanes + jnp.arange(lanes, dtype=jnp.int32)
        place = place.at[jnp.where(done, under.arms, B)].set(here, mode="drop")
        arms = jnp.minimum(waiting + jnp.cumsum(done, dtype=jnp.int32) - 1, B)
        fresh = start(jnp.where(done, arms, under.arms))
        under = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, under)
        taken_up = jnp.minimum(waiting + done.sum(dtype=jnp.int32), B)
        return under, taken_up, page + 1, written, place

    empty = jnp.full(lanes, B, jnp.int32)
    under = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(start, empty))
    under = under._replace(arms=empty, at=under.at._replace(done=empty == B))
    count = jnp.zeros((), jnp.int32)
    written = jnp.zeros((pages, 1 + max_age * S, lanes), models.passive.dtype)
    state = (under, count, count, written, jnp.zeros(B, jnp.int32))
    state = lax.while_loop(lambda s: (s[2] == 0) | (s[0].arms < B).any(), turn_over, state)
    table = jnp.swapaxes(state[3], 0, 1).reshape(1 + max_age * S, -1)[:, state[4]]
    return table[0], table[1:].reshape(max_age, S, B)


def _begin(models: Models, max_age: int) -> tuple[ArmBatch, LaggedIterate]:
    """Return the arms and the starts of their lines, where every state is active."""
    units = in_units(models)
    deviations = propagate(models.active - units.limiting, models.passive, max_age)
    alone = _to_end(_along(deviations, units.passive))  # R, (J, S, B)
    own = _along(deviations, units.active) - alone  # Q without H and t
    waits, keep = jnp.zeros_like(units.limiting, np.int32), chance_kept(own, 1.0)
    H = values_observed(deviations, waits, (alone[0] + own[0])[:, None], 1.0)[:, 0]
    value = own + _along(deviations, keep * H)
    after = jnp.concatenate([value[1:], jnp.zeros_like(value[:1])])
    t = jnp.minimum((value - after).min((0, 1)), 0)
    value = value - age_weights(max_age, 1.0, value.dtype).to_end * t
    subsidy = keep * (units.limiting * H).sum(0) + t
    return ArmBatch(deviations, units.limiting, units.scale, units.shift), LaggedIterate(
        value=value,
        slope=jnp.zeros_like(value),
        moved=jnp.zeros_like(t),
        index=jnp.zeros_like(value) + (subsidy - t + t),  # rounded as on NumPy
        waits=waits,
        held=value[0],
        t=t,
        subsidy=subsidy,
        never=subsidy,
        idle=t >= 0,
        limit=jnp.full_like(t, np.inf),
        done=jnp.zeros_like(t, bool),
    )


def _step(batch: ArmBatch, at: LaggedIterate) -> LaggedIterate:
    """Take each arm from one change of its best waits to the next."""
    near, J = tolerances(at.value), batch.deviations.shape[0]
    to_end, keep = age_weights(J, 1.0, at.value.dtype).to_end, chance_kept(at.value, 1.0)
    waits, idle = at.waits, at.idle
    right = jnp.where(idle, jnp.where(waits == J, 0, -jnp.ones_like(at.held)), waits)
    right = right.astype(at.held.dtype)[:, None]
    H = compute_once(values_observed(batch.deviations, waits, right, 1.0))[:, 0]
    held = jnp.where(idle, H, H - to_end[0])
    subsidy_slope = 1 + keep * (batch.limiting * H).sum(0)
    value = at.value + at.slope * at.moved
    slope = compute_once(_along(batch.deviations, keep * H) - jnp.where(idle, 1, to_end))

    soonest, place = _overtaking(at, held, value, slope)
    event = soonest.min(0)
    at_rest = ~idle & (event >= -at.t - near.tied)  # t reaches 0
    end = jnp.where(at_rest, -at.t, event)
    # The waits are the last ones: all lines fall like -t, and the highest is the last to leave.
    over = ~jnp.isfinite(end)
    end = jnp.where(over, jnp.maximum(value.max((0, 1)), 0), end)
    end = jnp.where(at.done, 0, end)
    halfway = at.limit < end
    end = compute_once(jnp.minimum(end, at.limit))

    index, cut = _leave(value, slope, end, at.subsidy, subsidy_slope, at.index, near)
    void = cut < end
    moved = jnp.where(void, 0, end)
    turns = ~(void | halfway | at.done)
    leaves = turns & at_rest
    waits = jnp.where(turns & ~at_rest & ~over & (soonest <= event), place, waits)
    return LaggedIterate(
        value=value,
        slope=slope,
        moved=moved,
        index=index,
        waits=waits,
        held=at.held + held * moved,
        t=jnp.where(leaves, 0, at.t + moved),
        subsidy=at.subsidy + subsidy_slope * moved,
        never=jnp.where(leaves, at.subsidy + subsidy_slope * moved, at.never),
        idle=idle | leaves,
        limit=jnp.where(void, cut, np.inf),
        done=at.done | (turns & over) | (turns & idle & (waits == J).all(0)),
    )


def _overtaking(at: LaggedIterate, held: Array, value: Array, slope: Array) -> tuple[Array, Array]:
    """Return the distance in t to the next better wait after each observation, and its age less 1.

    held: slope of the current wait's value; results are (S, B).
    """
    flat, J, waits = tolerances(value).flat, len(value), at.waits

    def inverse_time(value: Array, slope: Array) -> Array:
        """Return the inverse of the distance to the crossing, not positive without one."""
        gap = jnp.maximum(at.held - value, 1e-30)
        return jnp.where(slope - held > flat, slope - held, -1) / gap

    never, others = jnp.where(waits == J, -1, inverse_time(0, 0)), inverse_time(value, slope)
    ages = np.arange(J, dtype=np.int32)[:, None, None]
    others = compute_once(jnp.where(ages == waits, -1, others))
    best = others.max(0)
    place = jnp.where(others == best, ages, J).min(0)
    first_to = jnp.maximum(best, never)
    soonest = jnp.where(first_to > 0, 1 / jnp.where(first_to > 0, first_to, 1), np.inf)
    return soonest, jnp.where(best > never, place, J).astype(np.int32)


class _Above(NamedTuple):
    """Lines of the later ages that matter to an earlier one, (S, B) each.

    first, last: the best at the start and at the end of the step, each with its value there and its
    slope; cross: t at which they cross; third: whether another line lies above both in between;
    cut: t at which the step must be cut.
    """

    first: Array
    first_slope: Array
    last: Array
    last_slope: Array
    cross: Array
    third: Array
    cut: Array


def _leave(
    value: Array,
    slope: Array,
    end: Array,
    subsidy: Array,
    subsidy_slope: Array,
    index: Array,
    near: Tolerances,
) -> tuple[Array, Array]:
    """Return the index (J, S, B) after a step and where it must be cut first, (B,)."""
    reached = subsidy + subsidy_slope * end

    def over(top: Array, bottom: Array, otherwise: float) -> Array:
        return jnp.where(
            bottom > near.flat, top / jnp.where(bottom > near.flat, bottom, 1), otherwise
        )

    def inside(cross: Array) -> Array:
        return (cross > near.tied) & (cross < end - near.tied)

    def age(later: _Above, at: tuple[Array, Array, Array]) -> tuple[_Above, Array]:
        """Compare the line of an age with the later ones, and add it to them."""
        line, slope, index = at
        line_last = line + slope * end
        before, after = line - later.first, line_last - later.last
        plays, stays = before > near.even, after > near.even
        leaves = plays & ~stays
        root = jnp.minimum(
            over(before, later.first_slope - slope, np.inf),
            end + over(after, later.last_slope - slope, 0),
        )
        at_root = subsidy + subsidy_slope * jnp.clip(root, 0, end)
        index = jnp.where(leaves, at_root, index)
        index = jnp.where(stays, reached, index)
        at_cross = later.first + later.first_slope * later.cross + near.even
        above = line + slope * later.cross > at_cross
        comes = ~plays & ~stays & inside(later.cross) & above
        cut = jnp.where(
            comes | (leaves & later.third), jnp.minimum(later.cut, later.cross), later.cut
        )
        return joined(later._replace(cut=cut), line, slope, line_last), index

    def joined(later: _Above, line: Array, slope: Array, line_last: Array) -> _Above:
        """Add a line to the later ones."""
        ahead, ahead_last = line - later.first > 0, line_last - later.last > 0
        # Now the best at neither end: this line, or one that it replaces.
        replaced = jnp.where(ahead_last, later.last - later.last_slope * end, line)
        rest = jnp.where(ahead, later.first, replaced)
        replaced = jnp.where(ahead_last, later.last_slope, slope)
        rest_slope = jnp.where(ahead, later.first_slope, replaced)
        first = jnp.where(ahead, line, later.first)
        first_slope = jnp.where(ahead, slope, later.first_slope)
        last = jnp.where(ahead_last, line_last, later.last)
        last_slope = jnp.where(ahead_last, slope, later.last_slope)
        cross = over(first - last + last_slope * end, last_slope - first_slope, 0)
        above = rest + rest_slope * cross > first + first_slope * cross + near.even
        third = ((later.third & inside(cross)) | (inside(cross) & above)) & ~(ahead & ahead_last)
        return _Above(first, first_slope, last, last_slope, cross, third, later.cut)

    zero = jnp.zeros_like(value[0])
    start = _Above(zero, zero, zero, zero, zero, zero > 0, zero + np.inf)
    lines, index = lax.scan(age, start, (value, slope, index), reverse=True)
    return index, lines.cut.min(0)


def _to_end(paid: Array) -> Array:
    """Return sum_{i=k..J} paid(i) for every age k; (J, S, B)."""

    def age_before(total: Array, now: Array) -> tuple[Array, Array]:
        total = now + total
        return total, total

    return lax.scan(age_before, 0 * paid[0], paid, reverse=True)[1]


def _along(deviations: Array, vector: Array) -> Array:
    """Return d(s, k) . vector: (J, S, S, B) and (S, B) give (J, S, B)."""
    return sum(deviations[:, r] * vector[r] for r in range(len(vector)))
