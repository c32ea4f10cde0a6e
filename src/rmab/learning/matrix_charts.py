"""Coordinates of transition matrices in which posteriors are nearly normal.

Arrays end in an axis of items. P is a matrix of S states, pi its stationary law. From a given P a
matrix is reached by S^2 numbers z(s, s'), in either of two ways:

    rows   P'(s, .) ~ P(s, .) e^z(s, .)
    law    P' has the odds ratios of P e^z and the stationary law pi'(s') ~ pi(s') e^b(s'), where
           b = sum_s pi(s) z(s, .). It is P e^z with columns scaled by e^beta; beta solves
           pi' P' = pi', by Newton steps on a concave function (scaling of rows and columns).

Looks at long gaps fix pi and leave the odds ratios open: a thin curved sheet in `rows`, a flat one
in `law`. A number for each row is one too many in both: it moves nothing.

To first order beta is linear in z. Its derivatives, the tilts, take a slope or an information on
log weights (`rows`) to `law` coordinates. With d pi the change of pi that z asks for and d_z P the
change of P that it makes in `rows`, the tilts solve

    (diag(pi) - P^T diag(pi) P) d beta = d pi (I - P) - pi d_z P.

The same Laplacian gives the determinant between the two systems.

Reference: W. Grassmann, M. Taksar and D. Heyman, "Regenerative analysis and steady state
distributions for Markov chains", Operations Research 33, 1985, for the stationary law without a
subtraction.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

__all__ = [
    "FLAT",
    "LEAST",
    "deviation_matrix",
    "in_law",
    "law_and_trees",
    "log_bend",
    "product",
    "scaled_to",
    "tilt_slopes",
    "turned",
    "with_law",
]

LEAST = 1e-30  # keeps shares of impossible paths away from 0 / 0
FLAT = 1e-6  # least pivot, as a share of the diagonal
SCALINGS = 5  # rounds to a stationary law
DOUBLINGS = 14  # of the time over which deviations from pi are added up


def product(one: Array, other: Array) -> Array:
    """Products of matrices (..., S, S, items), fused over the last axis."""
    whole = one[..., :, 0, None, :] * other[..., None, 0, :, :]
    for k in range(1, other.shape[-3]):
        whole = whole + one[..., :, k, None, :] * other[..., None, k, :, :]
    return whole


def turned(matrix: Array) -> Array:
    """Transposes of matrices (..., S, S, items)."""
    return jnp.swapaxes(matrix, -3, -2)


def law_and_trees(flows: Array) -> tuple[Array, Array]:
    """The stationary law (S, items) of flows (S, S, items), and the log of state 0's trees.

    States are taken out one by one, without a subtraction (Grassmann, Taksar and Heyman). The
    trees are spanning trees towards state 0: the minor of the Laplacian without it.
    """
    shares, log_trees = [], jnp.zeros(flows.shape[2:])
    for last in range(flows.shape[0] - 1, 0, -1):
        out = jnp.maximum(flows[last, :last].sum(0), LEAST)
        share = flows[:last, last] / out
        shares.append(share)
        log_trees = log_trees + jnp.log(out)
        flows = flows[:last, :last] + share[:, None] * flows[last, None, :last]
    law = jnp.ones_like(flows[0])
    for share in reversed(shares):
        law = jnp.concatenate([law, (law * share).sum(0, keepdims=True)])
    return jnp.maximum(law / law.sum(0), LEAST), log_trees


def deviation_matrix(moves: Array, stationary: Array) -> Array:
    """(I - P)^#, (S, S, items): powers of the lazy chain less pi, added up by doubling."""
    eye = np.eye(moves.shape[0], dtype=np.float32)[:, :, None]

    def double(_: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        whole, power = state
        return whole + product(whole, power), product(power, power)

    start = (eye - stationary[None], (eye + moves) / 2 - stationary[None])
    sums: Array = lax.fori_loop(0, DOUBLINGS, double, start)[0]
    return sums / 2


# ----------------------------------------------------------------------------- the law coordinates


def with_law(moves: Array, stationary: Array, z: Array) -> Array:
    """The matrix at z in `law` coordinates from `moves`, whose law is `stationary`."""
    tilt = (stationary[:, None] * z).sum(0)
    law = stationary * jnp.exp(tilt - tilt.max(0))
    return scaled_to(moves, z, law / law.sum(0), SCALINGS)


def scaled_to(moves: Array, z: Array, law: Array, rounds: int) -> Array:
    """The odds ratios of P e^z and the stationary law (S, items), after so many rounds.

    Two rounds of plain scaling, which always lead uphill, and Newton steps.
    """

    def scaled(moves: Array, log_scale: Array) -> Array:
        moves = moves * jnp.exp(log_scale - log_scale.max(-2, keepdims=True))
        return moves / jnp.maximum(moves.sum(1, keepdims=True), LEAST)

    def settle(step: Array, moves: Array) -> Array:
        flow = law[:, None] * moves
        arriving = flow.sum(0)
        newton = _solve(arriving, product(turned(flow), moves), (law - arriving)[:, None])[:, 0]
        newton = newton * jnp.minimum(1, 2 / jnp.maximum(abs(newton).max(0), LEAST))
        ratio = jnp.log(law / jnp.maximum(arriving, LEAST))
        return scaled(moves, jnp.where(step < 2, ratio, newton))

    found: Array = lax.fori_loop(0, rounds, settle, scaled(moves, z))
    return found


def _solve(mass: Array, flow: Array, right: Array) -> Array:
    """x (S, k, items) with (diag(mass) - flow) x = right, sums of right 0, and mass x = 0.

    flow: (S, S, items), symmetric with row sums `mass` (S, items), so that constants are lost.
    """
    n_states = mass.shape[0]
    eye = np.eye(n_states, dtype=np.float32)
    matrix = eye[:, :, None] * mass[:, None] - flow + mass[:, None] * mass / mass.sum(0)
    whole = jnp.concatenate([matrix, right], 1)
    for k in range(n_states):
        row = whole[k] / jnp.maximum(whole[k, k], FLAT * mass[k])
        rest = whole - whole[:, k, None] * row
        whole = jnp.where(eye[k, :, None, None] > 0, row, rest)
    return whole[:, n_states:]


def tilt_slopes(moves: Array, stationary: Array) -> Array:
    """Derivatives of beta(k) by z(s, s') at z = 0, (S, S, S, items)."""
    n_states, _, items = moves.shape
    eye = np.eye(n_states, dtype=np.float32)
    arriving = turned(moves)
    wanted = stationary * (eye[:, None, :, None] - arriving[:, None])
    brought = moves * (eye[:, None, :, None] - arriving[:, :, None])
    right = stationary[:, None] * (wanted - brought)
    flow = product(turned(stationary[:, None] * moves), moves)
    tilts = _solve(stationary, flow, right.reshape(n_states, -1, items))
    return tilts.reshape(n_states, n_states, n_states, items)


def in_law(information: Array, tilts: Array) -> Array:
    """The information on z in `law` coordinates, from that on log weights."""
    n_states, items = tilts.shape[0], tilts.shape[-1]
    tilts = tilts.reshape(n_states, -1, items)
    for _ in range(2):
        columns = information.reshape(n_states, n_states, -1, items).sum(0)
        for k in range(n_states):
            information = information + tilts[k, :, None] * columns[k]
        information = jnp.swapaxes(information, 0, 1)
    return information


def log_bend(moves: Array, stationary: Array) -> Array:
    """log |d log pi / d beta|, (items,): `rows` coordinates against `law` ones.

    d pi (I - P) = d beta (diag(pi) - P^T diag(pi) P): minors of two Laplacians.
    """
    flow = product(turned(stationary[:, None] * moves), moves)
    trees, back_and_forth = law_and_trees(moves)[1], law_and_trees(flow)[1]
    return back_and_forth - trees + jnp.log(stationary[0]) - jnp.log(stationary).sum(0)
