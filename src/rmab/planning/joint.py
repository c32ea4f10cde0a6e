"""Exact values with known dynamics: the joint chain of information states (Section II).

With known dynamics agents do not need each other, so one agent is looked at: it plays K of N
channels in each slot and sees an arm only when it plays it. The belief MDP of the paper's
Section II is then a countable chain. Arm n is in one information state x_n: never seen, with
belief b0, or (last seen s, age k), with belief

    b(s, k) = b0 + memory^k (s - b0).

A play pays reward x state, shows s' and leads to (s', 1); an arm left alone ages by one slot.
With r(x, S) = sum over n in S of reward_n b_n(x_n), the optimal average reward g solves

    g + h(x) = max over K-subsets S of  r(x, S) + E[h(x') | x, S].

Age caps make the chain finite. Past its cap J_n the age of arm n falls back by `wraps[n]` slots:
by 1, it stays at J_n, where memory >= 0; by 2, it swings between J_n - 1 and J_n, where memory < 0,
because the belief swings around b0 with the parity of the age. J_n is the least cap that keeps
every belief within `tolerance` of the true one, so

    |g - true g| <= tolerance x K x (largest reward + span of h),

which `Optimum.error` reports. The tolerance is the finest of TOLERANCES that fits. On the paper's
arms the change of g is far below the bound:

    tolerance   1e-1     3e-2     1e-2     1e-3     1e-4
    K = 1       5e-4     6e-5     8e-6     7e-9     3e-9
    K = 2       4e-4     9e-5     9e-6     5e-7     2e-8

and 1e-2 is the coarsest that is tried. Arms that never forget (memory 1 or -1) need no tolerance:
caps 1 and 2 are exact.

Counting comes before building: in every slot after the first exactly K arms have age 1, so the
states number at most the coefficient of z^K in prod_n (2 z + u_n), where u_n counts the
information states of an arm that was not just played; plus the start.

A joint code is a mixed-radix number, arm 1 the most significant: code = sum_n digit_n stride_n,
stride_n = prod over m > n of (1 + 2 J_m), and the digit of an arm is 0 if never seen, k for
(0, k) and J_n + k for (1, k).

The equation is solved by `rmab.planning.gains`. Arms that never forget split the chain into
classes, one for each fact about them that holds for ever once seen. Seeing it takes finitely many
slots, which the average does not notice, so the optimum is the mean over the classes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.arms import NEVER, Arms, Array, array_namespace, stationary_belief
from rmab.errors import ConvergenceError, TooLargeError
from rmab.planning.gains import PRECISION, chain_gain, optimal_gain
from rmab.planning.planners import Planner, index_table, myopic
from rmab.planning.whittle import whittle_at

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = [
    "KNOWN",
    "KnownValues",
    "Optimum",
    "fixed_value",
    "joint_code",
    "known_values",
    "optimal",
    "policy_value",
    "random_value",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

KNOWN = ("optimum", "whittle", "myopic", "random", "fixed", "fixed-best")
# 1e-9, 3e-9, ... 1e-2
TOLERANCES: tuple[float, ...] = tuple(10.0 ** -(half / 2) for half in range(18, 3, -1))
MAX_STATES = 1_000_000  # of the optimum: some ten seconds
MAX_POLICY_STATES = 300_000  # of one policy's chain: a few seconds
MAX_CODES = 2**25  # entries of a dense action table
MAX_KEYS = 2**62  # joint codes that fit an integer
MAX_CAP = 5_000  # an arm that takes longer to forget makes a chain that takes too long to settle
TABLE_TOLERANCE = 1e-4
MAX_TRANSITIONS = 50_000_000  # 12 bytes each
TIE_DIGITS = 12  # indices and scores that agree to so many digits tie, as equal arms must


@dataclass(frozen=True, eq=False)
class Optimum:
    """The optimal average reward per slot, and what to play for it.

    value: g from the all-never-seen start; error: how far the age caps can have moved it;
    span: of h over the reachable states (within classes, if arms never forget); states: their
    number R; tolerance, caps (N,), wraps (N,), strides (N,): see the module; subsets: (A, N), the
    K-subsets in lexicographic order of their arms; codes: (R,) the reachable joint codes, sorted;
    choices: (R,) the row of `subsets` to play there, the lowest among equally good ones.
    """

    value: float
    error: float
    span: float
    states: int
    tolerance: float
    caps: IntArray
    wraps: IntArray
    strides: IntArray
    subsets: npt.NDArray[np.bool_]
    codes: IntArray
    choices: IntArray

    @cached_property
    def actions(self) -> npt.NDArray[np.signedinteger[Any]]:
        """(prod_n (1 + 2 J_n),) the row of `subsets` to play by joint code, -1 if unreachable."""
        size = _table_size(self.caps)
        if size > MAX_CODES:
            raise TooLargeError(
                f"an action table of {_readable(size)} joint codes; the limit is {MAX_CODES:,}",
                states=size,
            )
        table = np.full(size, -1, np.min_scalar_type(-len(self.subsets)))
        table[self.codes] = self.choices
        return table

    def code(self, last_seen: Array, age: Array) -> Array:
        """Joint codes (...) of information states (N, ...), NumPy or JAX; any age is folded."""
        return joint_code(last_seen, age, self.caps, self.wraps, self.strides)


def joint_code(last_seen: Array, age: Array, caps: Array, wraps: Array, strides: Array) -> Array:
    """Joint codes (...) of information states (N, ...); caps, wraps and strides are (N,)."""
    xp = array_namespace(last_seen, age)
    column = (-1,) + (1,) * (age.ndim - 1)
    caps, wraps = caps.reshape(column), wraps.reshape(column)
    folded = xp.where(age > caps, caps - (age - caps) % wraps, age)
    digit = xp.where(folded == NEVER, 0, folded + caps * last_seen)
    return (digit * strides.reshape(column)).sum(0)


@dataclass(frozen=True)
class KnownValues:
    """Average reward per slot with known dynamics, by policy, in the order of KNOWN.

    Where a value is None, `reasons` tells why under the same key.
    """

    values: dict[str, float | None]
    reasons: dict[str, str]


def fixed_value(arms: Arms, plays: int, scores: npt.ArrayLike) -> float:
    """Average reward of playing the K arms of largest score for ever; ties to the lower arm."""
    arms.check_plays(plays)
    chosen = np.argsort(-_rounded(np.asarray(scores, np.float64)), kind="stable")[:plays]
    return float((arms.reward * stationary_belief(arms))[chosen].sum())


def random_value(arms: Arms, plays: int) -> float:
    """Average reward of playing K arms drawn at random in each slot."""
    arms.check_plays(plays)
    return float(plays * (arms.reward * stationary_belief(arms)).mean())


def optimal(arms: Arms, plays: int, *, max_states: int = MAX_STATES) -> Optimum:
    """The optimum over all policies that know the dynamics."""
    arms.check_plays(plays)
    n_arms = len(arms)
    tolerance = _finest_tolerance(arms, plays, max_states)
    chain = _chain(arms, _caps(arms, tolerance))
    subsets = np.array(list(combinations(range(n_arms), plays)))  # (A, K)
    codes = _explore(chain, lambda _: subsets, max_states)
    moves, rewards = zip(*(_transitions(chain, codes, subset) for subset in subsets), strict=True)
    classes = _lasting_classes(arms, chain, codes)
    # Each class is equally likely: a lasting arm is as often in the one state as in the other.
    weights = np.full(classes.max() + 1, 1 / (classes.max() + 1))
    value, relative = optimal_gain(moves, rewards, classes, weights)

    payoff = np.stack([r + move @ relative for move, r in zip(moves, rewards, strict=True)])
    near = PRECISION * arms.reward.max()
    span = max(float(np.ptp(relative[classes == label])) for label in range(len(weights)))
    return Optimum(
        value=value,
        error=tolerance * plays * (float(arms.reward.max()) + span),
        span=span,
        states=codes.size,
        tolerance=tolerance,
        caps=chain.caps,
        wraps=chain.wraps,
        strides=chain.strides,
        subsets=np.any(subsets[:, :, None] == np.arange(n_arms), axis=1),
        codes=codes,
        choices=np.argmax(payoff >= payoff.max(0) - near, axis=0),
    )


def policy_value(
    arms: Arms, plays: int, planner: Planner, *, max_states: int = MAX_POLICY_STATES
) -> float:
    """Average reward from the never-seen start of playing the K arms of largest index.

    Ties go to the lower arm. The chain holds only what the policy can reach, so it is exact for
    many arms whenever the policy keeps few of them in play.
    """
    arms.check_plays(plays)
    limit = min(max_states, MAX_TRANSITIONS >> plays)
    # A planner may count slots (round robin): no cap below the longest turn.
    turn = -(-len(arms) // plays) + 2
    found: dict[int, tuple[_Chain, IntArray, IntArray]] = {}

    def fits(level: int) -> bool:
        caps = np.maximum(_caps(arms, TOLERANCES[level]), turn)
        if _table_size(caps) >= MAX_KEYS or caps.max() > MAX_CAP or 2**plays > limit:
            return False
        chain = _chain(arms, caps)
        index = _index_rows(planner, arms, caps)  # (rows,)

        def best(rows: IntArray) -> list[IntArray]:
            return [np.argsort(-index[rows], axis=1, kind="stable")[:, :plays]]

        try:
            codes = _explore(chain, best, limit)
        except TooLargeError:
            return False
        found[level] = chain, codes, best(_rows(chain, codes))[0]
        return True

    # How many states a policy reaches shows on the way only; finer tolerances reach more.
    finest = bisect_left(range(len(TOLERANCES)), True, key=fits)
    if finest in found:
        return chain_gain(*_transitions(*found[finest]))
    _refuse_slow(arms)
    size = _table_size(np.maximum(_caps(arms, TOLERANCES[-1]), turn))
    if size >= MAX_KEYS:
        count, what = size, f"{_readable(size)} joint codes"
    else:
        count = max(limit + 1, 2**plays)
        what = f"the policy reaches at least {_readable(count)} joint information states"
    raise TooLargeError(
        f"{len(arms)} arms, {plays} plays: {what}, with {_readable(2**plays)} transitions each and "
        f"beliefs rounded at {TOLERANCES[-1]:g}; the limit is {MAX_KEYS:.0e} codes, "
        f"{max_states:,} states and {MAX_TRANSITIONS:,} transitions",
        states=count,
    )


def known_values(arms: Arms, plays: int) -> KnownValues:
    """What each policy of KNOWN earns with known dynamics, exactly, where it can be computed."""
    arms.check_plays(plays)
    if plays == len(arms):  # there is nothing to choose, whatever the number of arms
        return KnownValues(dict.fromkeys(KNOWN, random_value(arms, plays)), {})
    rest = stationary_belief(arms)  # (N,)
    compute: dict[str, Callable[[], float]] = {
        "optimum": lambda: optimal(arms, plays).value,
        "whittle": lambda: policy_value(arms, plays, whittle_at),
        "myopic": lambda: policy_value(arms, plays, myopic),
        "random": lambda: random_value(arms, plays),
        "fixed": lambda: fixed_value(arms, plays, rest),
        "fixed-best": lambda: fixed_value(arms, plays, arms.reward * rest),
    }
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for name in KNOWN:
        try:
            values[name] = compute[name]()
        except (TooLargeError, ConvergenceError) as error:
            values[name] = None
            reasons[name] = str(error)
    return KnownValues(values, reasons)


# --- caps and counts, before anything is built ---


def _wraps(arms: Arms) -> IntArray:
    return np.where(arms.p11 < arms.p01, 2, 1)


def _caps(arms: Arms, tolerance: float) -> IntArray:
    """J_n (N,): the least caps that keep |memory|^age < tolerance at every folded age."""
    size = np.abs(arms.p11 - arms.p01)
    forgets = (size > 0) & (size < 1)
    slots = np.log(tolerance) / np.log(np.where(forgets, size, 0.5))
    settled = np.where(forgets, np.floor(slots) + 1, 1)
    return settled.astype(np.int64) + _wraps(arms) - 1


def _table_size(caps: IntArray) -> int:
    """The number of joint codes, prod_n (1 + 2 J_n)."""
    return math.prod((1 + 2 * caps).tolist())


def _count(arms: Arms, caps: IntArray, plays: int) -> int:
    """At most so many joint states are reachable; the coefficient of z^K, see the module."""
    ways = [1] + [0] * plays
    for cap, wrap in zip(caps.tolist(), _wraps(arms).tolist(), strict=True):
        aged = 1 + 2 * (cap - 1 + (cap == wrap))  # never seen, or of age 2..J; 1 if J falls to it
        shifted = [0, *ways[:-1]]
        ways = [aged * stay + 2 * play for stay, play in zip(ways, shifted, strict=True)]
    return ways[plays] + 1


def _finest_tolerance(arms: Arms, plays: int, max_states: int) -> float:
    """The finest tolerance that fits; an action table may coarsen it to TABLE_TOLERANCE."""
    branches = math.comb(len(arms), plays) * 2**plays
    counts = {t: _count(arms, _caps(arms, t), plays) for t in TOLERANCES}
    sizes = {t: _table_size(_caps(arms, t)) for t in TOLERANCES}
    most = min(max_states, MAX_TRANSITIONS // branches)
    fitting = [
        t
        for t in TOLERANCES
        if counts[t] <= most and sizes[t] < MAX_KEYS and _caps(arms, t).max() <= MAX_CAP
    ]
    tabled = [t for t in fitting if sizes[t] <= MAX_CODES]
    if tabled and tabled[0] <= max(fitting[0], TABLE_TOLERANCE):
        return tabled[0]
    if fitting:
        return fitting[0]
    coarsest = TOLERANCES[-1]
    _refuse_slow(arms)
    raise TooLargeError(
        f"{len(arms)} arms, {plays} plays: {_readable(counts[coarsest])} joint information states "
        f"of {_readable(branches)} transitions each, with beliefs rounded at {coarsest:g}; the "
        f"limit is {max_states:,} states and {MAX_TRANSITIONS:,} transitions",
        states=counts[coarsest],
    )


def _refuse_slow(arms: Arms) -> None:
    """Say so if an arm forgets too slowly, however coarse the tolerance."""
    caps = _caps(arms, TOLERANCES[-1])
    slow = int(caps.argmax())
    if caps[slow] > MAX_CAP:
        raise TooLargeError(
            f"arm {slow + 1} takes {caps[slow]:,} slots to forget what was seen, with beliefs "
            f"rounded at {TOLERANCES[-1]:g}; the limit is {MAX_CAP:,} slots",
            states=int(caps[slow]),
        )


def _readable(count: int) -> str:
    return f"{count:,}" if count < 10**12 else f"about 10^{math.log10(count):.0f}"


# --- the joint chain ---


class _Chain(NamedTuple):
    """The arms' chains side by side; arm n owns rows offset_n .. offset_n + 2 J_n of the tables."""

    caps: IntArray  # (N,)
    wraps: IntArray  # (N,)
    radices: IntArray  # (N,) 1 + 2 J_n
    strides: IntArray  # (N,)
    offsets: IntArray  # (N,)
    reward: FloatArray  # (N,)
    belief: FloatArray  # (rows,)
    aged: IntArray  # (rows,) digit x stride after a slot unplayed


def _chain(arms: Arms, caps: IntArray) -> _Chain:
    wraps, radices = _wraps(arms), 1 + 2 * caps
    strides = np.append(np.cumprod(radices[:0:-1])[::-1], 1)
    belief, aged = [], []
    for cap, wrap, stride, memory, rest in zip(
        caps, wraps, strides, arms.p11 - arms.p01, stationary_belief(arms), strict=True
    ):
        age = np.arange(1, cap + 1)
        later = np.where(age < cap, age + 1, cap + 1 - wrap)
        fade = memory**age
        belief.append(np.concatenate([[rest], rest - fade * rest, rest + fade * (1 - rest)]))
        aged.append(stride * np.concatenate([[0], later, cap + later]))
    return _Chain(
        caps=caps,
        wraps=wraps,
        radices=radices,
        strides=strides,
        offsets=np.append(0, np.cumsum(radices)[:-1]),
        reward=arms.reward,
        # What is certain must be so to the last digit, or states open that are never reached.
        belief=np.round(np.concatenate(belief), 15),
        aged=np.concatenate(aged),
    )


def _rows(chain: _Chain, codes: IntArray) -> IntArray:
    """The table rows (X, N) of joint codes (X,)."""
    return codes[:, None] // chain.strides % chain.radices + chain.offsets


def _step(
    chain: _Chain, rows: IntArray, played: IntArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Next codes (X, 2^K), their probabilities (X, 2^K) and the expected reward (X,).

    played: the arms played, (X, K), or (K,) for all states alike.
    """
    played = np.broadcast_to(played, (len(rows), played.shape[-1]))
    looked = np.take_along_axis(rows, played, axis=1)  # (X, K)
    belief = chain.belief[looked]
    seen_bad = chain.aged[rows].sum(1) + (chain.strides[played] - chain.aged[looked]).sum(1)
    codes, chances = seen_bad[:, None], np.ones((len(rows), 1))
    for k in range(played.shape[1]):
        good = belief[:, k, None]
        to_good = (chain.caps * chain.strides)[played[:, k], None]
        codes = np.concatenate([codes, codes + to_good], axis=1)
        chances = np.concatenate([chances * (1 - good), chances * good], axis=1)
    return codes, chances, (chain.reward[played] * belief).sum(1)


def _explore(
    chain: _Chain, choices: Callable[[IntArray], Sequence[IntArray] | IntArray], limit: int
) -> IntArray:
    """All codes (R,) reachable from never seen, sorted; TooLargeError beyond the limit.

    choices: from rows (X, N) to the sets of arms that may be played there, each (X, K) or (K,).
    """
    known = frontier = np.zeros(1, np.int64)
    while frontier.size:
        rows = _rows(chain, frontier)
        fresh = []
        for played in choices(rows):
            codes, chances, _ = _step(chain, rows, played)
            fresh.append(np.unique(codes[chances > 0]))
        found = np.unique(np.concatenate(fresh))
        place = np.searchsorted(known, found)
        new = known[np.minimum(place, known.size - 1)] != found
        frontier = found[new]
        known = np.insert(known, place[new], frontier)
        if known.size > limit:
            raise TooLargeError(f"more than {limit:,} joint information states", known.size)
    return known


def _transitions(
    chain: _Chain, codes: IntArray, played: IntArray
) -> tuple[csr_array[Any, Any], FloatArray]:
    """The transition matrix (R, R) and expected rewards (R,) of one choice in each state."""
    from scipy.sparse import csr_array

    ahead, chances, reward = _step(chain, _rows(chain, codes), played)
    columns = np.searchsorted(codes, ahead).astype(np.int32)
    columns[chances == 0] = 0  # such a code may be unknown; the weight keeps it out
    starts = np.arange(len(codes) + 1, dtype=np.int32) * ahead.shape[1]
    size = (len(codes), len(codes))
    return csr_array((chances.ravel(), columns.ravel(), starts), shape=size), reward


def _lasting_classes(arms: Arms, chain: _Chain, codes: IntArray) -> IntArray:
    """What is known for ever about the arms that never forget: a label 0.. (R,), -1 if not yet.

    The state of an arm with memory 1 is known once seen; of arms with memory -1 the states
    relative to the first of them are, since their common clock runs through both phases.
    """
    memory = arms.p11 - arms.p01
    frozen, swinging = np.flatnonzero(memory == 1), np.flatnonzero(memory == -1)
    lasting = np.concatenate([frozen, swinging])
    if not lasting.size:
        return np.zeros(codes.size, np.int64)
    rows = _rows(chain, codes)
    seen = np.all(rows[:, lasting] > chain.offsets[lasting], axis=1)
    state = chain.belief[rows].astype(bool)  # of lasting arms: the belief is 0 or 1 once seen
    facts = np.concatenate(
        [state[:, frozen], state[:, swinging[1:]] ^ state[:, swinging[:1]]], axis=1
    )
    labels = facts @ (1 << np.arange(facts.shape[1]))
    return np.where(seen, labels, -1)


def _index_rows(planner: Planner, arms: Arms, caps: IntArray) -> FloatArray:
    """The index in each row of the chain's tables (rows,), rounded so that equal arms tie."""
    oldest = int(caps.max())
    table = index_table(planner, arms, oldest)  # (N, 1 + 2 oldest)
    index = np.concatenate(
        [
            np.concatenate([row[:1], row[1 : 1 + cap], row[1 + oldest : 1 + oldest + cap]])
            for row, cap in zip(table, caps, strict=True)
        ]
    )
    return _rounded(index)


def _rounded(index: FloatArray) -> FloatArray:
    scale = float(np.max(np.abs(index), where=np.isfinite(index), initial=0))
    return np.round(index / (scale or 1.0), TIE_DIGITS)
