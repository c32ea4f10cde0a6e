"""Whittle indices of many arms seen only when played: the whole walk of
`rmab.planning.index.parametric`.

Arms differ in how many steps they take, most of them a dozen, some a hundred or more. So a batch
walks in *lanes*: as soon as a share of the arms under way are done, others take their places. On
NumPy the lanes are driven from here, and a long walk may be cut into pieces, between fixed t, that
are under way side by side; under JAX they are one compiled loop.

    information_table  indices alone, on NumPy and JAX: what the engine needs
    follow             on NumPy, with what a verdict needs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError
from rmab.model.arms import Array, array_namespace
from rmab.planning.index.crossings import Interval
from rmab.planning.index.parametric import Batch, Course, Models, prepare, step

__all__ = ["follow", "information_table", "taken"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.intp]

STATES = 40_000  # information states under way at once on NumPy
LANES = 128  # arms under way at once in a compiled loop on a CPU
FREED, FREED_COMPILED = 0.25, 0.5  # the share of arms done at which others take their places
NEAR = 1e-10  # how near to t = 0 the last piece of a walk begins


class Lanes(NamedTuple):
    """Walks under way, in lanes on the last axis: which walks, what they need, where they are and
    how many steps they have taken."""

    walks: Array
    batch: Batch
    course: Course
    steps: Array


def information_table(
    passive: Array, active: Array, reward_passive: Array, reward_active: Array, max_age: int
) -> Array:
    """Whittle indices of information states up to an age, past which arms are never seen again.

    passive, active: (S, S, *B); rewards: (S, *B), all broadcast in B; gives (1 + S max_age, *B) in
    the order of `rmab.model.arms.information_states`. Average reward. A state of an arm that is not
    indexable has the lowest subsidy from which on it is passive. Runs on NumPy in float64 and, also
    under `jax.jit`, on JAX; always finite.

    >>> matrix = np.array([[0.8, 0.2], [0.2, 0.8]])
    >>> index = information_table(matrix, matrix, np.zeros(2), np.array([0.0, 1.0]), 60)
    >>> index[[0, 1, 2, 61, 62]].round(6).tolist()
    [0.714286, 0.2, 0.392857, 0.8, 0.772727]
    """
    if max_age < 1:
        raise ModelError(f"max_age must be at least 1, got {max_age}")
    given: list[Array] = [passive, active, reward_passive, reward_active]
    xp = array_namespace(*given)
    if xp is np:
        given = [np.asarray(array, np.float64) for array in given]
    S = len(passive)
    shapes = [array.shape[axes:] for array, axes in zip(given, (2, 2, 1, 1), strict=True)]
    width = np.broadcast_shapes(*shapes)
    models = Models(
        *(xp.broadcast_to(m, (S, S, *width)).reshape(S, S, -1) for m in given[:2]),
        *(xp.broadcast_to(r, (S, *width)).reshape(S, -1) for r in given[2:]),
    )
    never, index, *_ = (follow if xp is np else _follow_compiled)(models, max_age)
    seen = xp.swapaxes(index, 0, 1).reshape(S * max_age, -1)
    table = xp.concatenate([never[None], seen]).reshape(-1, *width)
    return xp.where(xp.isfinite(table), table, 0)  # single precision may overflow


def follow(
    models: Models,
    max_age: int,
    beta: float = 1.0,
    remark: Callable[[IntArray, Batch, Interval], None] | None = None,
    pieces: int = 1,
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Never seen (B,), the index (J, S, B), and whether the walk came to its end (B,), on NumPy.

    remark(arms, batch, interval) is told what each step sees of the arms under way, in the order of
    the walk unless it is cut into pieces.
    """
    S, B = models.reward_active.shape
    lanes, most = max(16, STATES // (S * max_age)), _most_steps(S, max_age)
    bounds = np.array([-np.inf, *(-(NEAR ** (i / pieces)) for i in range(1, pieces)), np.inf])
    arms, piece = np.repeat(np.arange(B), pieces), np.tile(np.arange(pieces), B)
    never, index = np.zeros(B), np.full((max_age, S, B), -np.inf)
    finished = np.ones(B, bool)

    def start(walks: IntArray) -> Lanes:
        begins = bounds[piece[walks]] if pieces > 1 else None
        batch, course = prepare(taken(models, arms[walks]), max_age, beta, begins)
        return Lanes(walks, batch, course, np.zeros(walks.size, int))

    def walk(under: Lanes) -> tuple[Lanes, BoolArray]:
        """One step, and which walks have come to their end."""
        course, stops = under.course, bounds[piece[under.walks] + 1]
        limit = np.minimum(course.limit, np.maximum(stops - course.spot, 0))
        course, seen = step(under.batch, course._replace(limit=limit), beta)
        if remark is not None and seen is not None:
            remark(arms[under.walks], under.batch, seen)
        arrived = course.done | (course.spot >= stops - 1e-15)
        return under._replace(course=course, steps=under.steps + 1), arrived

    waiting = min(lanes, arms.size)
    under = start(np.arange(waiting))
    while under.walks.size:
        done = np.zeros(under.walks.size, bool)
        while done.sum() < FREED * done.size:
            under, arrived = walk(under)
            done = arrived | (under.steps >= most)
        ended = taken(under, np.flatnonzero(done))
        ends, found = _outcome(ended.batch, ended.course)
        finished[arms[under.walks[done & ~arrived]]] = False
        for number in np.unique(piece[ended.walks]):  # so that no arm is here more than once
            which = np.flatnonzero(piece[ended.walks] == number)
            arm = arms[ended.walks[which]]
            index[..., arm] = np.maximum(index[..., arm], found[..., which])
            never[arm] = ends[which] if number == pieces - 1 else never[arm]
        under = taken(under, np.flatnonzero(~done))
        if waiting < arms.size:
            new = np.arange(waiting, min(waiting + lanes - under.walks.size, arms.size))
            under, waiting = _joined(under, start(new)), waiting + new.size
    return never, index, finished


def _most_steps(S: int, J: int) -> int:
    """More than any walk takes that rounding does not lead in circles."""
    return 2 * S * J + 20


def _outcome(batch: Batch, course: Course) -> tuple[Array, Array]:
    """Never seen (B,) and the index (J, S, B) where walks end, in subsidies."""
    index = course.index
    if course.later is not None:  # compiled, the index of active states goes along
        index = np.where(course.later.plays, course.subsidy, index)
    return course.never * batch.scale + batch.shift, index * batch.scale + batch.shift


def taken(arrays: Any, which: Any) -> Any:
    """Some of the arms of a named tuple of arrays, all of which have the arms last."""
    return type(arrays)(
        *(taken(a, which) if isinstance(a, tuple) else a.take(which, -1) for a in arrays)
    )


def _joined(some: Any, others: Any) -> Any:
    """The arms of one named tuple of NumPy arrays and then those of another."""
    return type(some)(
        *(
            _joined(one, other) if isinstance(one, tuple) else np.concatenate([one, other], -1)
            for one, other in zip(some, others, strict=True)
        )
    )


def _follow_compiled(models: Models, max_age: int) -> tuple[Array, Array]:
    """`follow` under JAX, without verdicts.

    Each time walks take the places of others all lanes are written down on a page; in the end every
    arm is looked up where it was done.
    """
    import jax
    import jax.numpy as jnp
    from jax import lax

    S, B = models.reward_active.shape
    # As many for few arms as for many: what an arm gets is the same to the last bit.
    lanes = LANES if jax.default_backend() == "cpu" else B
    freed, most = max(1, int(FREED_COMPILED * lanes)), _most_steps(S, max_age)
    pages = 2 if lanes >= B else B // freed + 3

    def start(walks: Array) -> Lanes:
        batch, course = prepare(taken(models, jnp.minimum(walks, B - 1)), max_age)
        return Lanes(walks, batch, course._replace(done=walks == B), jnp.zeros_like(walks))

    def walk(under: Lanes) -> Lanes:
        course, _ = step(under.batch, under.course)
        steps = under.steps + 1
        course = course._replace(done=course.done | (steps >= most))
        return under._replace(course=course, steps=steps)

    def turn_over(state: tuple[Any, ...]) -> tuple[Any, ...]:
        under, waiting, page, written, place = state
        idle = jnp.where(waiting < B, freed, lanes)
        under = lax.while_loop(lambda now: now.course.done.sum() < idle, walk, under)
        done = under.course.done
        never, index = _outcome(under.batch, under.course)
        rows = jnp.concatenate([never[None], index.reshape(-1, lanes)])
        written = lax.dynamic_update_index_in_dim(written, rows, page, 0)
        here = page * lanes + jnp.arange(lanes, dtype=jnp.int32)
        place = place.at[jnp.where(done, under.walks, B)].set(here, mode="drop")
        walks = jnp.minimum(waiting + jnp.cumsum(done, dtype=jnp.int32) - 1, B)
        fresh = start(jnp.where(done, walks, under.walks))
        under = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, under)
        taken_up = jnp.minimum(waiting + done.sum(dtype=jnp.int32), B)
        return under, taken_up, page + 1, written, place

    nobody = jnp.full(lanes, B, jnp.int32)
    under = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(start, nobody))
    under = under._replace(walks=nobody, course=under.course._replace(done=nobody == B))
    count = jnp.zeros((), jnp.int32)
    written = jnp.zeros((pages, 1 + max_age * S, lanes), models.passive.dtype)
    state = (under, count, count, written, jnp.zeros(B, jnp.int32))
    state = lax.while_loop(lambda s: (s[2] == 0) | (s[0].walks < B).any(), turn_over, state)
    table = jnp.swapaxes(state[3], 0, 1).reshape(1 + max_age * S, -1)[:, state[4]]
    return table[0], table[1:].reshape(max_age, S, B)
