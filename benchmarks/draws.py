"""What a draw from the posterior costs, given observations any number of slots apart.

Ours are the draws of the `-gap` learners: `draw_channels` for two states, `one_matrix` for more,
compiled, in a batch, on one core. Two things stand beside them, in NumPy on the same core:

    conjugate   Beta or Dirichlet draws from as many counts. It is what a draw costs where all
                observations are consecutive, and so a floor
    Metropolis  a random walk on the log odds with the same likelihood, all arms of the batch at
                once. Its steps have the shape of the posterior, taken from our draws, and it starts
                from one of them: neither is counted. Steps depend on one another, so the price of a
                draw is that of as many steps as one independent draw is worth (the integrated
                autocorrelation time)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from benchmarks.apart import Apart, timed
from benchmarks.records import Part, Row, ratios

__all__ = ["PACKAGES", "autocorrelation_time", "measure"]

PACKAGES = ("numpy", "jax", "jaxlib")
GAPS = 32
PAIRS = 100  # of observations, of each arm
WALKERS = 256  # arms of the batch that the Metropolis chains have, all or some of them
FADES = 0.05  # autocorrelation below which the rest is left out

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scene:
    """Arms of S states, each with so many pairs of observations."""

    states: int
    pairs: int
    arms: int
    counts: Floats = field(init=False, repr=False)  # (GAPS + 1, S, S, 1, arms)

    def __post_init__(self) -> None:
        """Half of the pairs are consecutive, a quarter two slots apart, and so on."""
        rng = np.random.default_rng(self.states)
        matrices = rng.dirichlet(np.ones(self.states), (self.arms, self.states))
        gap = np.minimum(rng.geometric(0.5, (self.arms, self.pairs)), GAPS)
        first = rng.integers(self.states, size=gap.shape)
        laws = powers(matrices)  # (GAPS, arms, S, S)
        which = np.arange(self.arms)[:, None]
        chance = laws[gap - 1, which, first].cumsum(-1)
        then = (rng.random((*gap.shape, 1)) > chance[..., :-1]).sum(-1)
        counts = np.zeros((GAPS + 1, self.states, self.states, 1, self.arms))
        place: Any = gap - 1, first, then, 0, which
        np.add.at(counts, place, 1)
        object.__setattr__(self, "counts", counts)


def powers(matrices: Floats) -> Floats:
    """P, P^2, ..., (GAPS, arms, S, S)."""
    laws = [matrices]
    for _ in range(GAPS - 1):
        laws.append(laws[-1] @ matrices)
    return np.stack(laws)


# -------------------------------------------------------------------------- what runs on one core


class Ours:
    """Draws of all arms of a scene, compiled."""

    def __init__(self, scene: Scene) -> None:
        import jax
        import jax.numpy as jnp

        from rmab.learning.channel.posterior import draw_channels
        from rmab.learning.hidden_steps import one_matrix
        from rmab.rng.variates import DRAWS, Draws, seed_words, stream

        who = jnp.arange(scene.arms, dtype=jnp.uint32)
        key = stream(seed_words(0), who, jnp.uint32(0), DRAWS)
        before = np.ones((1, scene.states, 1, 1), np.float32)

        @jax.jit
        def draw(counts: Any, episode: Any) -> Any:
            draws = Draws(key, jnp.full(scene.arms, episode))
            if scene.states > 2:
                return one_matrix(counts, before, draws)
            p01, p11 = draw_channels(counts, (1.0, 1.0), draws)
            return jnp.stack([jnp.stack([1 - p01, p01]), jnp.stack([1 - p11, p11])])

        self._counts, self._draw = jnp.asarray(scene.counts, jnp.float32), draw

    def __call__(self, episode: int) -> Floats:
        """(arms, S, S)."""
        found = np.asarray(self._draw(self._counts, np.uint32(episode)), np.float64)
        return np.moveaxis(found[:, :, 0], -1, 0)


def conjugate(scene: Scene, rng: np.random.Generator) -> Floats:
    """Rows drawn as if all pairs were consecutive: two Betas, or Dirichlets by Gammas."""
    weights = 1 + scene.counts.sum(0)[:, :, 0]  # (S, S, arms)
    if scene.states == 2:
        return np.asarray(rng.beta(weights[:, 1], weights[:, 0]))
    gammas = rng.standard_gamma(weights)
    return np.asarray(gammas / gammas.sum(1, keepdims=True))


class Metropolis:
    """A random walk for each of the first WALKERS arms of a scene, from our draws."""

    def __init__(self, scene: Scene, drawn: Floats) -> None:
        """drawn: (draws, walkers, S, S)."""
        self._counts = np.moveaxis(scene.counts[:GAPS, :, :, 0, :WALKERS], -1, 1)
        self._rng = np.random.Generator(np.random.SFC64(1))
        odds = np.log(drawn[..., :-1]) - np.log(drawn[..., -1:])
        odds = odds.reshape(*drawn.shape[:2], -1)  # (draws, walkers, S (S - 1))
        size = odds.shape[-1]
        off = odds - odds.mean(0)
        spread = np.einsum("dwi,dwj->wij", off, off) / len(off) + 1e-6 * np.eye(size)
        self._shape = 2.38 / np.sqrt(size) * np.linalg.cholesky(spread)
        self._now = odds[0]
        self.matrices, self._height = self._at(self._now)

    def _at(self, odds: Floats) -> tuple[Floats, Floats]:
        """The matrices, and the log of the density of their log odds."""
        S = self._counts.shape[-1]
        whole = np.zeros((len(odds), S, S))
        whole[..., :-1] = odds.reshape(len(odds), S, S - 1)
        whole = np.exp(whole - whole.max(-1, keepdims=True))
        whole /= whole.sum(-1, keepdims=True)
        if S == 2:
            rises, memory = whole[:, 0, 1], whole[:, 1, 1] - whole[:, 0, 1]
            top = rises / (1 - memory)
            fades = memory ** np.arange(1, GAPS + 1)[:, None]
            up, down = top * (1 - fades), (1 - top) * (1 - fades)
            laws = np.stack([np.stack([1 - up, up], -1), np.stack([down, 1 - down], -1)], -2)
        else:
            laws = powers(whole)
        height = (self._counts * np.log(np.maximum(laws, 1e-300))).sum((0, 2, 3))
        return whole, height + np.log(whole).sum((1, 2))

    def step(self) -> None:
        """Of every walker."""
        jump = np.einsum("wij,wj->wi", self._shape, self._rng.standard_normal(self._now.shape))
        matrices, height = self._at(self._now + jump)
        takes = np.log(self._rng.random(len(height))) < height - self._height
        self._now = np.where(takes[:, None], self._now + jump, self._now)
        self.matrices = np.where(takes[:, None, None], matrices, self.matrices)
        self._height = np.where(takes, height, self._height)


def autocorrelation_time(series: Floats) -> float:
    """Steps that one independent draw is worth, from series (steps, walkers).

    Every walker is measured about its own mean, and autocorrelations are averaged over walkers
    before they are summed: 1 + 2 (rho_1 + rho_2 + ...), until they have faded.
    """
    steps = len(series)
    off = series - series.mean(0)
    spectrum = np.abs(np.fft.rfft(off, 2 * steps, axis=0)) ** 2
    by_lag = np.fft.irfft(spectrum, axis=0)[:steps].mean(1) / np.arange(steps, 0, -1)
    rho = by_lag / by_lag[0]
    end = int(np.argmax(rho < FADES)) or steps
    return float(1 + 2 * rho[1:end].sum())


def scene_rows(states: int, arms: int, rounds: int, steps: int) -> tuple[Row, Row]:
    """Our time over that of conjugate draws, and over that of Metropolis, in turn."""
    scene, rng = Scene(states, PAIRS, arms), np.random.Generator(np.random.SFC64(0))
    ours = Ours(scene)
    drawn = np.stack([ours(episode)[:WALKERS] for episode in range(1, 41)])
    walk = Metropolis(scene, drawn.clip(1e-9, 1))
    seen = []
    for _ in range(steps):
        walk.step()
        seen.append(walk.matrices[:, 0, 0])
    worth = autocorrelation_time(np.array(seen))
    repeats, shares = 8, drawn.shape[1]

    def several(work: Callable[[], object]) -> float:
        """Processor seconds of one, of a few."""

        def all_of_them() -> None:
            for _ in range(repeats):
                work()

        return timed(all_of_them).processor / repeats

    mine, plain, walked = [], [], []
    for n in range(rounds):
        mine.append(several(partial(ours, 100 + n)) / arms)
        plain.append(several(lambda: conjugate(scene, rng)) / arms)
        walked.append(several(walk.step) * worth / shares)
    name = "a channel" if states == 2 else f"{states} states"
    price = {"ours_us": 1e6 * min(mine), "arms": arms}
    limit = ratios(name, mine, plain, more={**price, "conjugate_us": 1e6 * min(plain)})
    peer = {**price, "metropolis_us": 1e6 * min(walked), "worth": worth}
    return limit, ratios(name, mine, walked, more=peer)


def measure(quick: bool, say: Callable[[str], None]) -> Part:
    """Channels, and arms of three and four states."""
    load = os.getloadavg()[0]
    rounds, steps = (2, 300) if quick else (5, 2000)
    tables: dict[str, list[Row]] = {"conjugate": [], "metropolis": []}
    with Apart(1) as process:
        for states, arms in ((2, 1024), (3, 256), (4, 256)):
            rows = process(scene_rows, states, arms, rounds, steps)
            for name, row in zip(tables, rows, strict=True):
                tables[name].append(row)
                say(f"{row.case} over {name}: {row.value:.2f} ({row.low:.2f} to {row.high:.2f})")
    return Part.now(tables, PACKAGES, load, pairs=PAIRS)
