"""Transition matrices from the prior, and counts of observations by them."""

import numpy as np


def stationary(matrices: np.ndarray) -> np.ndarray:
    """The stationary distributions (..., S) of matrices (..., S, S), by squaring."""
    for _ in range(24):
        matrices = matrices @ matrices
        matrices = matrices / matrices.sum(-1, keepdims=True)
    return np.asarray(matrices[..., 0, :])


def powers(matrices: np.ndarray, gaps: int) -> np.ndarray:
    """P, P^2, ..., P^gaps and the stationary distribution in every row: (..., gaps + 1, S, S)."""
    found = [matrices]
    for _ in range(gaps - 1):
        found.append(found[-1] @ matrices)
    found.append(np.broadcast_to(stationary(matrices)[..., None, :], matrices.shape))
    whole = np.stack(found, -3)
    return np.asarray(whole / whole.sum(-1, keepdims=True))


def after_waits(passive: np.ndarray, active: np.ndarray, waits: int) -> np.ndarray:
    """P_1, P_1 P_0, P_1 P_0^2, ...: (..., waits, S, S)."""
    found = [active]
    for _ in range(waits - 1):
        found.append(found[-1] @ passive)
    whole = np.stack(found, -3)
    return np.asarray(whole / whole.sum(-1, keepdims=True))


def counted(
    rng: np.random.Generator, laws: np.ndarray, pairs: int, shares: np.ndarray
) -> np.ndarray:
    """Counts (C, S, S, 1, trials) of pairs by laws (trials, C, S, S); shares: (C,), of each class.

    Pairs begin in every state, by shares that do not depend on the laws.
    """
    n_trials, n_states = laws.shape[0], laws.shape[-1]
    by_class = rng.multinomial(pairs, shares / shares.sum(), n_trials)
    first = rng.multinomial(by_class, rng.dirichlet(np.full(n_states, 5.0), n_trials)[:, None])
    return np.asarray(np.moveaxis(rng.multinomial(first, laws), 0, -1), np.float32)[:, :, :, None]
