"""Random variates that are functions of their key and counter, not of the order of calls.

Every number is Threefry of (key, counter), see `rmab.rng.threefry`: the key names the seed, the
trial and the purpose, the counter the slot and arm or the episode and parameter. So results do not
depend on the batching of trials, on threads, or on the other policies of a run.

Gammas come by Marsaglia and Tsang's rejection, vectorised: every attempt has its own counter,
so the accepted value does not depend on the rest of the batch.

Reference: G. Marsaglia and W. Tsang, "A simple method for generating gamma variables", ACM TOMS 26,
2000.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax
from jax.nn import softmax

from rmab.arrays import Bool, Float, Int
from rmab.rng.threefry import (
    CHANNELS,
    DRAWS,
    EXPERTS,
    PLAYS,
    Key,
    stream,
    threefry,
    unit,
    words_of,
)

Mask = Array | npt.NDArray[np.bool_]
Numbers = Array | npt.NDArray[np.int_]

__all__ = [
    "CHANNELS",
    "DRAWS",
    "EXPERTS",
    "PLAYS",
    "Draws",
    "Key",
    "Mask",
    "Numbers",
    "seed_words",
    "stream",
    "threefry",
    "unit",
]

AGAIN = 0xFFFFFFFE  # counter of the keys of `Draws.again`: no episode has this number
_GROUP = 16  # gammas of a trial that are retried one after the other
ATTEMPTS = 64  # counters reserved for one gamma's rejections; a first try fails 1 time in 20


class Draws:
    """Random variates for a batch of trials in one episode; trials on the last axis.

    Each call takes fresh numbers. `wanted` marks trials whose draws are used, so that the
    rejection loop does not wait for the others.
    """

    def __init__(
        self, key: Key, episode: Int[Array, " R"], wanted: Bool[Array, " R"] | None = None
    ) -> None:
        self._key = key
        self._episode = jnp.asarray(episode, jnp.uint32)
        self.wanted = jnp.ones(self._episode.shape, bool) if wanted is None else wanted
        self._used = 0

    def _counters(self, shape: tuple[int, ...]) -> Array:
        lead = shape[:-1]
        size = math.prod(lead)
        items = jnp.arange(self._used, self._used + size, dtype=jnp.uint32).reshape((*lead, 1))
        self._used += size
        return jnp.asarray(items * jnp.uint32(ATTEMPTS))

    def of_episode(self, number: Array) -> Draws:
        """Return draws of another episode, the same in all trials."""
        return Draws(self._key, jnp.full_like(self._episode, number), self.wanted)

    def uniform(self, *lead: int) -> Float[Array, "... R"]:
        """Draw uniforms on (0, 1) of shape (*lead, R)."""
        counters = self._counters((*lead, self._episode.shape[-1]))
        uniforms: Array = unit(threefry(self._key, self._episode, counters)[0])
        return uniforms

    def normal(self, *lead: int) -> Float[Array, "... R"]:
        """Draw standard normals of shape (*lead, R)."""
        normals: Array = jnp.float32(math.sqrt(2)) * lax.erf_inv(2 * self.uniform(*lead) - 1)
        return normals

    def gamma(self, shape: Float[Array, "*B R"], least: float = 0.0) -> Float[Array, "*B R"]:
        """Draw Gamma(shape, 1) for each entry of `shape`.

        `least` is a lower bound on the shapes that the caller knows; a bound of 1 saves work.
        """
        value, boost = self._gamma(shape, least)
        return value if boost is None else value * jnp.exp(boost)

    def _gamma(self, shape: Array, least: float) -> tuple[Array, Array | None]:
        """Draw gammas of shape 1 or more, with log factors that bring them to smaller shapes."""
        boost = None
        if least < 1:  # the method needs 1 or more: Gamma(a) = Gamma(a + 1) U^(1/a)
            boost = jnp.log(self.uniform(*shape.shape[:-1])) / shape
            shape = shape + 1
        # Groups of a few variates of a trial on the first axis, (group, J, trials).
        size, n_trials = math.prod(shape.shape[:-1]), shape.shape[-1]
        group = min(size, _GROUP)
        beyond = -size % group

        def grouped(x: Array, fill: float) -> Array:
            x = jnp.pad(x.reshape(size, -1), [(0, beyond), (0, 0)], constant_values=fill)
            return x.reshape(group, -1, x.shape[-1])

        counters = grouped(self._counters(shape.shape), 0)
        shapes = grouped(shape, 1)

        def attempt(shape: Array, counters: Array) -> tuple[Array, Array]:
            """Return a value for each shape, and whether it is accepted."""
            d = shape - jnp.float32(1 / 3)
            words = threefry(self._key, self._episode, counters)
            normal = jnp.float32(math.sqrt(2)) * lax.erf_inv(2 * unit(words[0]) - 1)
            cube = (1 + lax.rsqrt(9 * d) * normal) ** 3
            bound = 0.5 * normal * normal + d * (1 - cube + jnp.log(jnp.maximum(cube, 1e-30)))
            return d * cube, (cube > 0) & (jnp.log(unit(words[1])) < bound)

        # A first try fails seldom. Those of a group that failed are retried one after the other, so
        # that little is computed for the others.
        def retry(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            tries, value, done = state
            here = jnp.arange(group)[:, None, None] == done.argmin(0)  # the first not accepted
            this = jnp.where(here, shapes, 0).sum(0)
            again, good = attempt(this, jnp.where(here, counters, 0).sum(0) + tries)
            good = good | (tries >= ATTEMPTS)
            done, value = done | (here & good), jnp.where(here & good & ~done, again, value)
            return jnp.where(good, 1, tries + 1), value, done

        value, done = attempt(shapes, counters)
        done = done | ~self.wanted | grouped(jnp.zeros((size, 1), bool), True)
        start = jnp.ones(done.shape[1:], jnp.uint32), value, done
        _, value, _ = lax.while_loop(lambda s: (~s[2]).any(), retry, start)
        value = value.reshape(-1, n_trials)[:size].reshape(shape.shape)
        return value, boost

    def dirichlet(
        self,
        weights: Float[Array, "*B R"],
        least: float = 0.0,
        *,
        axis: int = 0,
        valid: Mask | None = None,
    ) -> Float[Array, "*B R"]:
        """Draw probabilities along `axis`, Dirichlet with these weights.

        `least` as for gamma. Entries outside the mask `valid`, which broadcasts, are 0.
        """
        value, boost = self._gamma(weights, least)
        if boost is None:
            value = value if valid is None else jnp.where(valid, value, 0)
            return value / value.sum(axis, keepdims=True)
        # Gammas of small shapes may all be too small for a float, but not their logarithms.
        size = jnp.log(value) + boost
        return softmax(size, axis, where=valid)

    def beta(self, a: Array, b: Array, least: float = 0.0) -> Array:
        """Draw Beta(a, b) for each entry of a and b, which broadcast: a Dirichlet of two states."""
        return self.dirichlet(jnp.stack(jnp.broadcast_arrays(a, b)), least)[0]

    def _words(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        return threefry(self._key, self._episode, self._counters(shape))

    def again(self, times: Array | int) -> Draws:
        """Return draws that share no numbers with these or with those of another `times`."""
        key = Key(*threefry(self._key, jnp.uint32(AGAIN), jnp.asarray(times, jnp.uint32)))
        return Draws(key, self._episode, self.wanted)


def seed_words(seed: int) -> Array:
    """Return a seed of up to 64 bits as the two words `stream` takes."""
    return jnp.asarray(words_of(seed))
