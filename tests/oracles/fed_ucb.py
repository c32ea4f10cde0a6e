"""Fed1-UCB and Fed2-UCB from arrays: phases of pulls whose sums are drawn at once.

Written from the algorithm with NumPy alone, one run at a time; it shares nothing with the engine.
Clients' pulls of an arm in a phase are independent, so their sum is all that matters of them.

    Fed1   all M clients from the start; f = int(10 ln T) pulls of each arm in play in a phase;
           B = sqrt(4 sigma^2 ln T / (M n)), n pulls of an arm by a client
    Fed2   2^p more clients join in phase p = 1, 2, ...; f pulls of each arm in play by every client
           so far; B = sqrt(sigma^2 eta ln T) + sqrt(sigma_c^2 ln T / M), with eta the sum over
           clients of 1 / pulls, over M^2

The server's mean of an arm is the mean of the clients' means. An arm is dropped whose mean + B lies
under the best one's mean - B. Regret is the clients' pulls times the gaps of the global means.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# (client, pulls) -> the sum of so many rewards of each arm, (N,)
Pull = Callable[[int, int], Floats]


@dataclass(frozen=True)
class Run:
    """What one run came to.

    regret: over clients in play, of exploration alone unless a wrong arm was kept; messages: one of
    each client in play in each phase; clients: who ever played; ended: the slot in which one arm
    was left; best: whether it was the best; earned: what clients were paid while they explored;
    left: the arms in play at the end.
    """

    regret: float
    messages: int
    clients: int
    ended: int
    earned: float
    left: list[int]


def gaussian(means: Floats, sigma: float, sigma_c: float, rng: np.random.Generator) -> Pull:
    """Rewards N(mu_k of the client, sigma^2), the client's means N(mu_k, sigma_c^2)."""
    local: dict[int, Floats] = {}

    def pull(client: int, pulls: int) -> Floats:
        if client not in local:
            local[client] = means + sigma_c * rng.standard_normal(len(means))
        noise = rng.standard_normal(len(means)) * math.sqrt(pulls) * sigma
        return np.asarray(pulls * local[client] + noise)

    return pull


def bernoulli(local: Floats, rng: np.random.Generator) -> Pull:
    """Rewards 0 or 1; local: (M, N)."""

    def pull(client: int, pulls: int) -> Floats:
        return np.asarray(rng.binomial(pulls, local[client]), np.float64)

    return pull


def fed_ucb(
    means: Floats,
    pull: Pull,
    horizon: int,
    pulls: int,
    joining: Callable[[int], int],
    width: Callable[[Floats], float],
    most: int | None = None,
) -> Run:
    """joining: how many clients join in a phase; width: B from the clients' pulls of an arm; most:
    how many clients there are."""
    gaps = means.max() - means
    totals: list[Floats] = []
    played: list[int] = []  # pulls of each arm in play, by client
    alive = list(range(len(means)))
    slot, phase, messages = 0, 0, 0
    regret = earned = 0.0
    while len(alive) > 1 and slot < horizon:
        phase += 1
        more = joining(phase)
        more = more if most is None else min(more, most - len(totals))
        totals += [np.zeros(len(means)) for _ in range(more)]
        played += [0] * more
        left = min(pulls, (horizon - slot) // len(alive))
        for client in range(len(totals)):
            got = pull(client, left)
            totals[client][alive] += got[alive]
            earned += float(got[alive].sum())
            played[client] += left
        slot += pulls * len(alive)
        regret += len(totals) * left * float(gaps[alive].sum())
        messages += len(totals)
        if left < pulls:
            break
        counts = np.array(played, np.float64)
        mean = np.mean([total / n for total, n in zip(totals, counts, strict=True)], 0)
        bound = width(counts)
        best = max(mean[arm] for arm in alive)
        alive = [arm for arm in alive if mean[arm] + bound >= best - bound]
    ended = min(slot, horizon)
    if len(alive) == 1:
        regret += len(totals) * (horizon - ended) * float(gaps[alive[0]])
    return Run(regret, messages, len(totals), ended, earned, alive)


def fed1(means: Floats, pull: Pull, horizon: int, n_clients: int, sigma: float = 0.5) -> Run:
    """Fed1-UCB."""

    def width(counts: Floats) -> float:
        return math.sqrt(4 * sigma**2 * math.log(horizon) / float(counts.sum()))

    def joining(phase: int) -> int:
        return n_clients if phase == 1 else 0

    return fed_ucb(means, pull, horizon, int(10 * math.log(horizon)), joining, width)


def fed2(
    means: Floats,
    pull: Pull,
    horizon: int,
    pulls: int = 100,
    sigma: float = 0.5,
    sigma_c: float = 0.02,
    **others: Any,
) -> Run:
    """Fed2-UCB."""

    def width(counts: Floats) -> float:
        M, level = len(counts), math.log(horizon)
        eta = float((1 / counts).sum()) / M**2
        return math.sqrt(sigma**2 * eta * level) + math.sqrt(sigma_c**2 * level / M)

    return fed_ucb(means, pull, horizon, pulls, lambda phase: 2**phase, width, **others)
