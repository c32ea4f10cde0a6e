"""Parametric policy iteration for arms observed when played, on JAX: indices alone.

The equations and the step are those of `rmab.planning.index.parametric`, under average reward and
without what a verdict needs. Two things differ, as nothing here may depend on how many states
leave:

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
    Batch,
    Models,
    Tolerances,
    ages_of,
    chance_kept,
    in_units,
    most_steps,
    taken,
    tolerances,
    values_observed,
)

__all__ = ["follow"]

_CPU_LANES = 128  # arms under way at once on a CPU
_FREED_SHARE = 0.5  # the share of arms done at which others take their places


class Iterate(NamedTuple):
    """As in `rmab.planning.index.parametric`, but for what is brought up to date one step later:
    value: (J, S, B), Q where the last step began; slope: (J, S, B), its slope in it; moved: (B,),
    how far t has gone since. The index of states that are active goes along."""

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


class _Lanes(NamedTuple):
    """Arms under way, in lanes on the last axis: which arms, what they need, where they are and how
    many steps they have taken."""

    arms: Array
    batch: Batch
    at: Iterate
    steps: Array


def follow(models: Models, max_age: int) -> tuple[Array, Array]:
    """Never observed (B,) and the index (J, S, B)."""
    S, B = models.reward_active.shape
    # As many for few arms as for many: what an arm gets is the same to the last bit.
    lanes = _CPU_LANES if jax.default_backend() == "cpu" else B
    freed, most = max(1, int(_FREED_SHARE * lanes)), most_steps(S, max_age)
    pages = 2 if lanes >= B else B // freed + 3

    def start(arms: Array) -> _Lanes:
        batch, at = _begin(taken(models, jnp.minimum(arms, B - 1)), max_age)
        return _Lanes(arms, batch, at._replace(done=arms == B), jnp.zeros_like(arms))

    def go_on(under: _Lanes) -> _Lanes:
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

    nobody = jnp.full(lanes, B, jnp.int32)
    under = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(start, nobody))
    under = under._replace(arms=nobody, at=under.at._replace(done=nobody == B))
    count = jnp.zeros((), jnp.int32)
    written = jnp.zeros((pages, 1 + max_age * S, lanes), models.passive.dtype)
    state = (under, count, count, written, jnp.zeros(B, jnp.int32))
    state = lax.while_loop(lambda s: (s[2] == 0) | (s[0].arms < B).any(), turn_over, state)
    table = jnp.swapaxes(state[3], 0, 1).reshape(1 + max_age * S, -1)[:, state[4]]
    return table[0], table[1:].reshape(max_age, S, B)


def _begin(models: Models, max_age: int) -> tuple[Batch, Iterate]:
    """The arms, and where their lines begin: every state is active there."""
    units = in_units(models)
    deviations = propagate(models.active - units.limiting, models.passive, max_age)
    alone = _to_end(_along(deviations, units.passive))  # R, (J, S, B)
    own = _along(deviations, units.active) - alone  # Q without H and t
    waits, keep = jnp.zeros_like(units.limiting, np.int32), chance_kept(own, 1.0)
    H = values_observed(deviations, waits, (alone[0] + own[0])[:, None], 1.0)[:, 0]
    value = own + _along(deviations, keep * H)
    after = jnp.concatenate([value[1:], jnp.zeros_like(value[:1])])
    t = jnp.minimum((value - after).min((0, 1)), 0)
    value = value - ages_of(max_age, 1.0, value.dtype).to_end * t
    subsidy = keep * (units.limiting * H).sum(0) + t
    return Batch(deviations, units.limiting, units.scale, units.shift), Iterate(
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


def _step(batch: Batch, at: Iterate) -> Iterate:
    """Each arm from one change of its best waits to the next."""
    near, J = tolerances(at.value), batch.deviations.shape[0]
    to_end, keep = ages_of(J, 1.0, at.value.dtype).to_end, chance_kept(at.value, 1.0)
    waits, idle = at.waits, at.idle
    right = jnp.where(idle, jnp.where(waits == J, 0, -jnp.ones_like(at.held)), waits)
    right = right.astype(at.held.dtype)[:, None]
    H = compute_once(values_observed(batch.deviations, waits, right, 1.0))[:, 0]
    held = jnp.where(idle, H, H - to_end[0])
    rising = 1 + keep * (batch.limiting * H).sum(0)  # of lambda
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

    index, cut = _leave(value, slope, end, at.subsidy, rising, at.index, near)
    void = cut < end
    moved = jnp.where(void, 0, end)
    turns = ~(void | halfway | at.done)
    leaves = turns & at_rest
    waits = jnp.where(turns & ~at_rest & ~over & (soonest <= event), place, waits)
    return Iterate(
        value=value,
        slope=slope,
        moved=moved,
        index=index,
        waits=waits,
        held=at.held + held * moved,
        t=jnp.where(leaves, 0, at.t + moved),
        subsidy=at.subsidy + rising * moved,
        never=jnp.where(leaves, at.subsidy + rising * moved, at.never),
        idle=idle | leaves,
        limit=jnp.where(void, cut, np.inf),
        done=at.done | (turns & over) | (turns & idle & (waits == J).all(0)),
    )


def _overtaking(at: Iterate, held: Array, value: Array, slope: Array) -> tuple[Array, Array]:
    """After each observation, how far t goes until another wait is better than the one held, and
    the age less 1 at which that one ends, (S, B); held: the slope of the one held."""
    flat, J, waits = tolerances(value).flat, len(value), at.waits

    def haste(value: Array, slope: Array) -> Array:
        """One over how far t goes until it overtakes; not positive if it does not."""
        gap = jnp.maximum(at.held - value, 1e-30)
        return jnp.where(slope - held > flat, slope - held, -1) / gap

    never, others = jnp.where(waits == J, -1, haste(0, 0)), haste(value, slope)
    ages = np.arange(J, dtype=np.int32)[:, None, None]
    others = compute_once(jnp.where(ages == waits, -1, others))
    best = others.max(0)
    place = jnp.where(others == best, ages, J).min(0)
    first_to = jnp.maximum(best, never)
    soonest = jnp.where(first_to > 0, 1 / jnp.where(first_to > 0, first_to, 1), np.inf)
    return soonest, jnp.where(best > never, place, J).astype(np.int32)


def _leave(
    value: Array,
    slope: Array,
    end: Array,
    subsidy: Array,
    rising: Array,
    index: Array,
    near: Tolerances,
) -> tuple[Array, Array]:
    """The index, (J, S, B), after a step and where it must be cut first, (B,)."""
    reached = subsidy + rising * end

    def over(top: Array, bottom: Array, otherwise: float) -> Array:
        return jnp.where(
            bottom > near.flat, top / jnp.where(bottom > near.flat, bottom, 1), otherwise
        )

    def age(carry: tuple[Array, ...], at: tuple[Array, Array, Array]) -> tuple[Any, Any]:
        best, best_slope, last, last_slope, cross, third, cut = carry
        line, slope, index = at
        line_last = line + slope * end
        before, after = line - best, line_last - last
        plays, stays = before > near.even, after > near.even
        leaves = plays & ~stays
        root = jnp.minimum(
            over(before, best_slope - slope, np.inf), end + over(after, last_slope - slope, 0)
        )
        index = jnp.where(leaves, subsidy + rising * jnp.clip(root, 0, end), index)
        index = jnp.where(stays, reached, index)
        bent = (cross > near.tied) & (cross < end - near.tied)
        above = line + slope * cross > best + best_slope * cross + near.even
        comes = ~plays & ~stays & bent & above
        cut = jnp.where(comes | (leaves & third), jnp.minimum(cut, cross), cut)

        ahead, ahead_last = before > 0, after > 0
        # Now the best at neither end: this line, or one that it replaces.
        rest = jnp.where(ahead, best, jnp.where(ahead_last, last - last_slope * end, line))
        rest_slope = jnp.where(ahead, best_slope, jnp.where(ahead_last, last_slope, slope))
        best, best_slope = jnp.where(ahead, line, best), jnp.where(ahead, slope, best_slope)
        last = jnp.where(ahead_last, line_last, last)
        last_slope = jnp.where(ahead_last, slope, last_slope)
        cross = over(best - last + last_slope * end, last_slope - best_slope, 0)
        inside = (cross > near.tied) & (cross < end - near.tied)
        above = inside & (rest + rest_slope * cross > best + best_slope * cross + near.even)
        third = ((third & inside) | above) & ~(ahead & ahead_last)
        return (best, best_slope, last, last_slope, cross, third, cut), index

    zero = jnp.zeros_like(value[0])
    start = (zero, zero, zero, zero, zero, zero > 0, zero + np.inf)
    carry, index = lax.scan(age, start, (value, slope, index), reverse=True)
    return index, carry[-1].min(0)


def _to_end(paid: Array) -> Array:
    """sum_{i=k..J} paid(i) for every age k; (J, S, B)."""

    def age_before(total: Array, now: Array) -> tuple[Array, Array]:
        total = now + total
        return total, total

    return lax.scan(age_before, 0 * paid[0], paid, reverse=True)[1]


def _along(deviations: Array, vector: Array) -> Array:
    """d(s, k) . vector: (J, S, S, B) and (S, B) give (J, S, B)."""
    return sum(deviations[:, r] * vector[r] for r in range(len(vector)))
