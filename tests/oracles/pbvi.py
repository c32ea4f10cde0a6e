"""Point-based value iteration: the paper's way to the optimum (Sections II and VI), as an oracle.

The POMDP of Section II for one agent with known dynamics, taken as it is: hidden joint states
x in {0, 1}^N, X = 2^N of them, K-subsets S of the arms as actions, the states of the played arms
as observation o, and beliefs that are vectors over joint states. In a slot the agent plays S,
is paid r_S(x) = sum over n in S of reward_n x_n, sees o = x_S, and all arms move by
P(x, x') = prod_n p_n(x_n, x'_n). With t slots to go the value is

    V_t(b) = max_S sum_x b(x) r_S(x) + sum_o V_{t-1}(b_So P) Pr(o | b, S),    V_0 = 0,

and V_t(b) = max over alpha in G_t of alpha . b. A point-based backup keeps from G_t only the
vectors that are best at some point of a belief set:

    alpha_b(x) = r_S(x) + (P alpha_o)(x)  with o = x_S,   S and alpha_o the best ones at b.

Belief points are what the agent meets on simulated runs from the start, where it plays what the
vectors so far advise, or at random every now and then; of those met, the ones farthest (in L1)
from the set join it. Growing and sweeping take turns.

Each vector is what some plan earns, so V_t(start) never exceeds the best reward of t slots, and
its growth per slot, which is returned, tends to a value not above the optimal average reward. It
is taken over the last sweeps, on the full set; what is left is the settling of the sweeps, which
may be of either sign. Nothing here knows of information states or age caps: the agreement with
`rmab.planning.joint.optimum` is a test of both.

Reference: J. Pineau, G. Gordon and S. Thrun, "Point-based value iteration: an anytime algorithm
for POMDPs", IJCAI 2003.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError, TooLargeError
from rmab.model.arms import Arms
from rmab.model.information import stationary_belief

__all__ = ["point_based_value"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

MAX_HIDDEN = 2**10  # joint states
MAX_BRANCHES = 2**13  # actions x observations
ROUNDS = 4  # of growing the belief set, then sweeping over it
RUNS, SLOTS, STRAY = 64, 60, 0.2  # simulated runs of a round, their length, the share of whims


def point_based_value(
    arms: Arms, plays: int, *, points: int = 400, sweeps: int = 200, seed: int = 0
) -> float:
    """The optimal average reward per slot, from below, by sweeps over at most `points` beliefs."""
    arms.check_plays(plays)
    if points < ROUNDS or sweeps < 2 * ROUNDS:
        raise ModelError(
            f"points must be at least {ROUNDS} and sweeps at least {2 * ROUNDS}, "
            f"got {points} and {sweeps}"
        )
    pomdp = _pomdp(arms, plays)
    rng = np.random.default_rng(seed)
    beliefs = pomdp.start[None]  # (B, X)
    vectors = np.zeros((1, pomdp.start.size))  # (G, X)
    growth: list[float] = []
    for part in range(1, ROUNDS + 1):
        met = _simulate(pomdp, vectors, rng)
        beliefs = _spread(beliefs, met, points * part // ROUNDS)
        growth = []
        for _ in range(sweeps // ROUNDS):
            vectors, value = _backup(pomdp, beliefs, vectors)
            growth.append(value)
            vectors -= value  # relative values: the start is worth nothing
    return float(np.mean(growth[len(growth) // 2 :]))


class _Pomdp(NamedTuple):
    start: FloatArray  # (X,)
    moves: FloatArray  # (X, X)
    rewards: FloatArray  # (A, X)
    seen: IntArray  # (A, X) the observation that a joint state gives
    cells: IntArray  # (A, O, X / O) the joint states that give an observation


def _pomdp(arms: Arms, plays: int) -> _Pomdp:
    n_arms, n_seen = len(arms), 2**plays
    hidden, branches = 2**n_arms, math.comb(n_arms, plays) * n_seen
    if hidden > MAX_HIDDEN or branches > MAX_BRANCHES:
        raise TooLargeError(
            f"{n_arms} arms, {plays} plays: 2^{n_arms} joint states and {branches:,} pairs of "
            f"action and observation; the limit is {MAX_HIDDEN:,} and {MAX_BRANCHES:,}",
            states=hidden,
        )
    states = np.arange(hidden)[:, None] >> np.arange(n_arms)[::-1] & 1  # (X, N)
    subsets = np.array(list(combinations(range(n_arms), plays)))  # (A, K)
    seen = (states[:, subsets] << np.arange(plays)).sum(2).T  # (A, X)
    return _Pomdp(
        start=np.where(states, stationary_belief(arms), 1 - stationary_belief(arms)).prod(1),
        moves=_product(arms.passive),
        rewards=(states[:, subsets] * arms.reward[subsets]).sum(2).T,
        seen=seen,
        cells=np.argsort(seen, axis=1, kind="stable").reshape(len(subsets), n_seen, -1),
    )


def _product(matrices: FloatArray) -> FloatArray:
    """P (X, X) of the arms' matrices (N, 2, 2), arm 1 the most significant bit of the state."""
    joint = np.ones((1, 1))
    for matrix in matrices:
        joint = np.kron(joint, matrix).astype(np.float64, copy=False)
    return joint


def _advise(
    pomdp: _Pomdp, beliefs: FloatArray, ahead: FloatArray
) -> tuple[FloatArray, IntArray, IntArray]:
    """At each belief (B, X): value (B,), action (B,) and, by observation, vector (B, O) to take.

    ahead: (G, X) the vectors P alpha, a slot before they hold.
    """
    rows = np.arange(len(beliefs))
    value = np.full(len(beliefs), -np.inf)
    action = np.zeros(len(beliefs), np.int64)
    vector = np.zeros((len(beliefs), pomdp.cells.shape[1]), np.int64)
    for a, cells in enumerate(pomdp.cells):
        total = beliefs @ pomdp.rewards[a]
        choice = np.empty_like(vector)
        for o, cell in enumerate(cells):
            scores = beliefs[:, cell] @ ahead[:, cell].T  # (B, G)
            choice[:, o] = scores.argmax(1)
            total += scores[rows, choice[:, o]]
        better = total > value + 1e-12  # equally good actions: the first, whatever the rounding
        value = np.where(better, total, value)
        action[better], vector[better] = a, choice[better]
    return value, action, vector


def _backup(pomdp: _Pomdp, beliefs: FloatArray, vectors: FloatArray) -> tuple[FloatArray, float]:
    """The vectors best at some point, one slot longer (G', X), and the value of the first point."""
    ahead = vectors @ pomdp.moves.T  # (G, X)
    value, action, vector = _advise(pomdp, beliefs, ahead)
    plans = np.unique(np.column_stack([action, vector]), axis=0)  # (G', 1 + O)
    seen = pomdp.seen[plans[:, 0]]  # (G', X)
    then = ahead[np.take_along_axis(plans[:, 1:], seen, axis=1), np.arange(seen.shape[1])]
    return pomdp.rewards[plans[:, 0]] + then, float(value[0])


def _simulate(pomdp: _Pomdp, vectors: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Beliefs (RUNS x SLOTS, X) met on runs that play what the vectors advise, with whims."""
    belief = np.repeat(pomdp.start[None], RUNS, axis=0)  # (RUNS, X)
    ahead = vectors @ pomdp.moves.T
    met = []
    for _ in range(SLOTS):
        _, action, _ = _advise(pomdp, belief, ahead)
        whim = rng.integers(len(pomdp.seen), size=RUNS)
        action = np.where(rng.random(RUNS) < STRAY, whim, action)
        seen = pomdp.seen[action]  # (RUNS, X)
        # The joint state is drawn from the belief, which is what the agent cannot tell from it.
        below = belief.cumsum(1)
        state = (rng.random((RUNS, 1)) * below[:, -1:] >= below).sum(1)
        agrees = seen == seen[np.arange(RUNS), state][:, None]
        belief = np.where(agrees, belief, 0)
        belief = belief / belief.sum(1, keepdims=True) @ pomdp.moves
        met.append(belief)
    return np.concatenate(met)


def _spread(beliefs: FloatArray, met: FloatArray, size: int) -> FloatArray:
    """The set with the farthest of the beliefs met, one after another, up to the size."""
    kept = list(beliefs)
    distance = np.full(len(met), np.inf)
    for belief in kept:
        distance = np.minimum(distance, np.abs(met - belief).sum(1))
    while len(kept) < size and distance.max() > 1e-9:
        kept.append(met[distance.argmax()])
        distance = np.minimum(distance, np.abs(met - kept[-1]).sum(1))
    return np.stack(kept)
