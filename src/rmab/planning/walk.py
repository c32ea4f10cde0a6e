"""Whittle indices of many arms seen only when played: the walk of `rmab.planning.course`, whole.

Arms differ in how many steps they take: most of them a dozen, some a hundred. So a batch walks in
*lanes*: as soon as a share of the arms under way are done, others take their places. On NumPy the
lanes are driven from Python, under JAX they are one compiled loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.arms import Array, array_namespace
from rmab.errors import ModelError
from rmab.planning.course import Batch, Course, prepare, step
from rmab.planning.crossings import Interval, Later
from rmab.planning.elimination import resting
from rmab.planning.greedy import state_table

__all__ = ["Moves", "follow", "information_table", "resting", "state_table"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.intp]

STATES = 40_000  # information states under way at once on NumPy: they stay in a core's cache
LANES = 128  # arms under way at once in a compiled loop on a CPU
NEAR = 1e-10  # where the last piece of a walk begins, before never seen leaves
FREED = 0.25  # the share of arms that are done when others take their places
FREED_COMPILED = 0.5


class Moves(NamedTuple):
    """B arms: passive, active: (S, S, B); reward_passive, reward_active: (S, B)."""

    passive: Array
    active: Array
    reward_passive: Array
    reward_active: Array

    def take(self, which: Any) -> Moves:
        return Moves(*(array.take(which, -1) for array in self))


class Under(NamedTuple):
    """Lanes under way in a compiled loop: arms, steps: (lanes,), which arm and how far."""

    arms: Array
    batch: Batch
    course: Course
    steps: Array


def information_table(
    passive: Array, active: Array, reward_passive: Array, reward_active: Array, max_age: int
) -> Array:
    """Whittle indices of information states up to an age, past which arms are never seen again.

    passive, active: (S, S, *B); rewards: (S, *B), all broadcast in B; gives (1 + S max_age, *B) in
    the order of `rmab.arms.information_states`. Average reward. Runs on NumPy and, also under
    `jax.jit`, on JAX; always finite.

    >>> matrix = np.array([[0.8, 0.2], [0.2, 0.8]])
    >>> index = information_table(matrix, matrix, np.zeros(2), np.array([0.0, 1.0]), 60)
    >>> index[[0, 1, 2, 61, 62]].round(6).tolist()
    [0.714286, 0.2, 0.392857, 0.8, 0.772727]
    """
    if max_age < 1:
        raise ModelError(f"max_age must be at least 1, got {max_age}")
    xp = array_namespace(passive, active, reward_passive, reward_active)
    S = passive.shape[0]
    matrices, rewards = (passive, active), (reward_passive, reward_active)
    width = np.broadcast_shapes(*(m.shape[2:] for m in matrices), *(r.shape[1:] for r in rewards))
    moves = Moves(
        *(xp.broadcast_to(m, (S, S, *width)).reshape(S, S, -1) for m in matrices),
        *(xp.broadcast_to(r, (S, *width)).reshape(S, -1) for r in rewards),
    )
    never, index, *_ = (follow if xp is np else _follow_compiled)(moves, max_age)
    seen = xp.swapaxes(index, 0, 1).reshape(S * max_age, -1)
    return xp.concatenate([never[None], seen]).reshape(-1, *width)


def _most_steps(S: int, J: int) -> int:
    """More than any walk takes that rounding does not lead in circles."""
    return 4 * (S * J + 10)


def follow(
    moves: Moves,
    max_age: int,
    beta: float = 1.0,
    remark: Callable[[IntArray, Batch, Interval], None] | None = None,
    pieces: int = 1,
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Never seen (B,), the index (J, S, B), and whether the walk came to its end (B,), on NumPy.

    remark(arms, batch, interval) is told what each step saw of the arms under way. Long walks are
    best cut into pieces, between fixed t < 0, which are then under way side by side.
    """
    S, B = moves.reward_active.shape
    lanes, most = max(16, STATES // (S * max_age)), _most_steps(S, max_age)
    bounds = np.array([-np.inf, *(-(NEAR ** (i / pieces)) for i in range(1, pieces)), np.inf])
    arms, piece = np.repeat(np.arange(B), pieces), np.tile(np.arange(pieces), B)
    never, index = np.zeros(B), np.full((max_age, S, B), -np.inf)
    finished = np.ones(B, bool)
    here, waiting = np.arange(0), 0  # which pieces of which arms are under way
    steps, batch, course = np.zeros(0, int), None, None
    while True:
        new = np.arange(waiting, min(waiting + lanes - here.size, arms.size))
        if new.size:
            begins = None if pieces == 1 else bounds[piece[new]]
            fresh = prepare(*moves.take(arms[new]), max_age, beta, begins)
            batch, course = _joined(batch, fresh[0]), _joined(course, fresh[1])
            here, steps = np.append(here, new), np.append(steps, np.zeros(new.size, int))
            waiting += new.size
        if not here.size:
            return never, index, finished
        stops = bounds[piece[here] + 1]
        done = np.zeros(here.size, bool)
        while done.sum() < FREED * here.size:
            rest = np.maximum(stops - course.spot, 0)
            course = course._replace(limit=np.minimum(course.limit, rest))
            course, seen = step(batch, course, beta)
            if remark is not None and seen is not None:
                remark(arms[here], batch, seen)
            steps += 1
            arrived = course.spot >= stops - 1e-15
            done = course.done | arrived | (steps >= most)
        gone, kept = np.flatnonzero(done), np.flatnonzero(~done)
        last = _taken(course, gone)
        ends, found = _outcome(_taken(batch, gone), last)
        arrived = arrived[gone] | last.done
        finished[arms[here[gone[~arrived]]]] = False
        for number in np.unique(piece[here[gone]]):  # an arm is here once for each of its pieces
            which = np.flatnonzero(piece[here[gone]] == number)
            arm = arms[here[gone[which]]]
            index[..., arm] = np.maximum(index[..., arm], found[..., which])
            if number == pieces - 1:
                never[arm] = ends[which]
        batch, course, here, steps = (
            _taken(batch, kept),
            _taken(course, kept),
            here[kept],
            steps[kept],
        )


def _outcome(batch: Batch, course: Course) -> tuple[FloatArray, FloatArray]:
    """Never seen (B,) and the index (J, S, B) of arms that are done, in subsidies."""
    index = course.index
    if course.later is not None:
        # States are active to the last only where rounding has ended the walk.
        index = np.where(course.later.plays, course.subsidy, index)
    return course.never * batch.scale + batch.shift, index * batch.scale + batch.shift


def _taken(arrays: Any, which: Any) -> Any:
    """Some of the arms of a Batch, Course or Later."""
    return type(arrays)(
        *(_taken(a, which) if isinstance(a, Later) else a.take(which, -1) for a in arrays)
    )


def _joined(some: Any, others: Any) -> Any:
    """The arms of one Batch, Course or Later, if any, and then those of another."""
    if some is None:
        return others
    return type(some)(
        *(
            _joined(one, other) if isinstance(one, Later) else np.concatenate([one, other], -1)
            for one, other in zip(some, others, strict=True)
        )
    )


def _follow_compiled(moves: Moves, max_age: int) -> tuple[Array, Array]:
    """`follow` under JAX.

    Each time arms take the places of others all lanes are written down on a page; in the end every
    arm is looked up where it was done.
    """
    import jax
    import jax.numpy as jnp
    from jax import lax

    S, B = moves.reward_active.shape
    lanes = min(B, LANES) if jax.default_backend() == "cpu" else B
    freed = max(1, int(FREED_COMPILED * lanes))
    pages = 2 if lanes == B else B // freed + 3
    most = _most_steps(S, max_age)

    def start(arms: Array) -> Under:
        batch, course = prepare(*moves.take(jnp.minimum(arms, B - 1)), max_age)
        course = course._replace(done=arms == B)
        return Under(arms, batch, course, jnp.zeros_like(arms))

    def walk(under: Under) -> Under:
        course, _ = step(under.batch, under.course)
        steps = under.steps + 1
        course = course._replace(done=course.done | (steps >= most))
        return under._replace(course=course, steps=steps)

    def refill(state: tuple[Under, Array, Array, Array, Array]) -> tuple[Any, ...]:
        under, waiting, page, written, place = state
        idle = jnp.where(waiting < B, freed, lanes)
        under = lax.while_loop(lambda now: now.course.done.sum() < idle, walk, under)
        done = under.course.done
        never, index = _outcome(under.batch, under.course)
        rows = jnp.concatenate([never[None], index.reshape(-1, lanes)])
        written = lax.dynamic_update_index_in_dim(written, rows, page, 0)
        here = page * lanes + jnp.arange(lanes)
        place = place.at[jnp.where(done, under.arms, B)].set(here, mode="drop")
        arms = jnp.minimum(waiting + jnp.cumsum(done) - 1, B)
        fresh = start(jnp.where(done, arms, under.arms))
        under = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, under)
        return under, jnp.minimum(waiting + done.sum(), B), page + 1, written, place

    nobody = jnp.full(lanes, B, jnp.int32)
    under = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(start, nobody))
    under = under._replace(arms=nobody, course=under.course._replace(done=nobody == B))
    count = jnp.zeros((), jnp.int32)
    number = moves.passive.dtype
    written = jnp.zeros((pages, 1 + max_age * S, lanes), number)
    state = (under, count, count, written, jnp.zeros(B, jnp.int32))
    state = lax.while_loop(lambda now: (now[2] == 0) | (now[0].arms < B).any(), refill, state)
    table = jnp.swapaxes(state[3], 0, 1).reshape(1 + max_age * S, -1)[:, state[4]]
    return table[0], table[1:].reshape(max_age, S, B)
