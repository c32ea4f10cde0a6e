"""Posteriors of channels by numeric integration in double precision, over the memory m and b0.

Given m every factor of the likelihood is linear in b0, so its logarithm is concave: the inside of
the integral has one top, which a search finds however narrow it is. Outside, every top of the
integral over b0 is found by refinement, and gets points of its own.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

DROP = 45.0  # of the log of a density below its top, where integration ends
NODES, WEIGHTS = np.polynomial.legendre.leggauss(48)
POINTS = 300  # of m, around each top and over all


def chances(p01, p11, kinds):
    """Probabilities (kinds, 2, 2, ...) of pairs 1, 2, ... slots apart, the last settled."""
    m = np.asarray(p11 - p01)
    b0 = p01 / (1 - m)
    left = [m**gap for gap in range(1, kinds)] + [0 * m]
    up = np.array([[b0 * (1 - x), b0 + (1 - b0) * x] for x in left])
    return np.stack([1 - up, up], 2)


def log_density(counts, b0, m, prior):
    """The log of the posterior's density with respect to (p01, p11)."""
    p01, p11 = b0 * (1 - m), b0 + (1 - b0) * m
    q01, q11 = 1 - p01, (1 - b0) * (1 - m)
    total = (prior[0] - 1) * (_log(p01) + _log(p11)) + (prior[1] - 1) * (_log(q01) + _log(q11))
    for gap, pairs in enumerate(counts, 1):
        left = m**gap if gap < len(counts) else 0 * m
        if pairs.any():
            stay0, stay1 = 1 - b0 + b0 * left, b0 + (1 - b0) * left
            total = total + pairs[0, 0] * _log(stay0) + pairs[1, 1] * _log(stay1)
            total = total + pairs[0, 1] * _log(b0 * (1 - left))
            total = total + pairs[1, 0] * _log((1 - b0) * (1 - left))
    return total


def _log(x):
    return np.log(np.maximum(x, 1e-300))


@dataclass
class Integrated:
    """Points (96, M) with their weights, which sum up to 1, and densities of log odds."""

    counts: np.ndarray
    prior: tuple[float, float]
    p01: np.ndarray
    p11: np.ndarray
    weights: np.ndarray
    levels: np.ndarray  # logs of densities, sorted
    below: np.ndarray  # the weight of all places that are no higher

    def share(self, inside):
        """The probability that inside(p01, p11) holds."""
        return float(self.weights[inside(self.p01, self.p11)].sum())

    def depth(self, p01, p11):
        """The probability of all places where the log odds are less likely than here.

        Of exact draws it is uniform; a draw that should not be there has one near 0.
        """
        p01, p11 = (np.clip(np.asarray(p, float), 1e-12, 1 - 1e-12) for p in (p01, p11))
        m = p11 - p01
        here = log_density(self.counts, p01 / (1 - m), m, self.prior) + _bend(p01, p11)
        return np.interp(here, self.levels, self.below, left=0, right=1)


def _bend(p01, p11):
    return _log(p01) + _log(1 - p01) + _log(p11) + _log(1 - p11)


def integrate(counts, prior=(1.0, 1.0)):
    """The posterior of counts (G + 1, 2, 2); prior: Beta(a, b) of both, no number below 1."""
    level = 1 / (1 + np.exp(-np.linspace(-16, 16, POINTS)))
    common = np.unique(np.concatenate([2 * level - 1, level, -level]))
    memory = np.unique(np.concatenate([common, np.linspace(-0.995, 0.995, POINTS)]))
    height = _profile(counts, memory, prior)[-1]
    for _ in range(4):
        near = [_beside(memory, top, 1) for top in _tops(height)]
        new: Any = [np.linspace(low, high, 23) for low, high in near]
        new = np.setdiff1d(np.concatenate(new), memory)
        height = np.concatenate([height, _profile(counts, new, prior)[-1]])
        memory = np.concatenate([memory, new])
        order = memory.argsort()
        memory, height = memory[order], height[order]
    spans = [_span(memory, height, top, far) for top in _tops(height) for far in (DROP, 8)]
    memory = np.unique(
        np.concatenate([common, *(np.linspace(low, high, POINTS) for low, high in spans)])
    )
    b0, weight, density, _ = _profile(counts, memory, prior)
    edges = np.concatenate([[-1], (memory[1:] + memory[:-1]) / 2, [1]])
    weight = weight + np.log(np.diff(edges))
    weight = np.exp(weight - weight.max())
    weight = weight / weight.sum()
    p01 = b0 * (1 - memory)
    p11 = p01 + memory
    levels = (density + _bend(p01, p11)).ravel()
    order = levels.argsort()
    return Integrated(
        counts, prior, p01, p11, weight, levels[order], weight.ravel()[order].cumsum()
    )


def _tops(height):
    """Where the height is more than beside, and not negligible."""
    wide = np.concatenate([[-np.inf], height, [-np.inf]])
    high = (height >= wide[:-2]) & (height > wide[2:]) & (height > height.max() - 60)
    return np.flatnonzero(high)


def _beside(memory, place, steps):
    return memory[max(place - steps, 0)], memory[min(place + steps, len(memory) - 1)]


def _span(memory, height, top, far):
    """From where to where the height is less than so far below a top."""
    low = np.flatnonzero(height[:top] < height[top] - far)
    high = np.flatnonzero(height[top:] < height[top] - far)
    first = low[-1] if low.size else 0
    return memory[first], memory[top + high[0] if high.size else -1]


def _profile(counts, m, prior):
    """For memories (M,): b0, the logs of weights and of densities, (96, M) each, and the logs of
    integrals over b0, (M,)."""

    def height(b0):
        return log_density(counts, b0, m, prior)

    down = np.maximum(-m, 0)
    low, high = down / (1 + down), 1 / (1 + down)
    ends = low, high
    for _ in range(110):  # ternary search
        one, two = low + (high - low) / 3, high - (high - low) / 3
        left = height(one) > height(two)
        low, high = np.where(left, low, one), np.where(left, two, high)
    top = (low + high) / 2
    best = height(top)
    nodes, sizes = [], []
    for end in ends:
        near, far = top, end
        for _ in range(60):
            middle = (near + far) / 2
            inside = height(middle) > best - DROP
            near, far = np.where(inside, middle, near), np.where(inside, far, middle)
        half = (near - top) / 2
        nodes.append((near + top) / 2 + half * NODES[:, None])
        sizes.append(abs(half) * WEIGHTS[:, None])
    b0 = np.concatenate(nodes)
    density = log_density(counts, b0, m, prior)
    weight = density + _log(np.concatenate(sizes)) + np.log1p(-m)
    most = weight.max(0)
    return b0, weight, density, most + np.log(np.exp(weight - most).sum(0))
