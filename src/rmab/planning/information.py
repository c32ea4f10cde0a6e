"""Whittle indices of arms that are seen only when played, by the structure of information states.

To its player such an arm is the chain of information states (s, k): state s was seen k >= 1 slots
ago, and the belief over the state now is the row

    b(s, k) = P_1[s] P_0^(k-1).

Playing pays b . r_1, shows s' with probability b[s'] and leads to (s', 1); leaving it alone pays
b . r_0 and leads to (s, k + 1). Before the first look the arm is *never seen*: its belief is the
stationary law of P_0, and leaving it alone keeps it there. Ages end at a cap J:

- P_0 with one recurrent class forgets what was seen, so past J the arm counts as never seen
  again. This is exact in the limit, and `settled_age` says where the limit is reached;
- P_0 with several recurrent classes has no single stationary law. The belief of never seen is then
  uniform, and ages past J stay at J.

`expand` writes this down as a `FiniteArm`. `information_indices` gives the indices of that arm, as
`rmab.planning.indices` defines them, without its dense matrices:

Let every passive slot pay the subsidy lambda. A policy waits in each s until the first active age
k_s, so S values H_s = h(s, 1) and one number x (the gain g where h(never seen) = 0; with a discount
the value of never seen) describe it. All are affine in lambda and solve S + 1 equations. With

    U(s, k) = b . r_1 + beta b . H           [- g]      play now
    T(s, k) = sum_{i=k..J} beta^(i-k) (b(s, i) . r_0 + lambda [- g])      wait to the end
    Q = U - T,                                Q(never seen) = its value,

the advantage of playing over leaving alone in (s, k), whose next active age is n, is

    A(s, k) = Q(s, k) - beta^(n-k) Q(s, n).

From lambda = -inf, where every state is active, states leave where their A falls to 0: that is the
index. H changes only when a k_s or never seen leaves; others leave in between, several at a time.
Under average reward never seen leaves when idling for ever is as good as the best play, g = lambda
+ r_0. If the policy then does not lead to never seen, lambda stands still while the value delta of
idling rises, until it does: every state that leaves meanwhile has the same index. Those are the
plateaus of the closed form (`rmab.planning.whittle`).

On each interval the advantage of every active state must stay >= 0 and of every passive one <= 0:
then the arm is indexable. Where that fails, or cannot be decided, or P_0 has several recurrent
classes, the dense solver decides on `expand(arm)`, so verdicts and witnesses other than True are
its own.

Reference: P. Whittle, "Restless bandits: activity allocation in a changing world", J. Appl. Prob.
25A, 1988.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError
from rmab.planning.indices import FiniteArm, whittle_indices

__all__ = ["InformationIndices", "expand", "information_indices", "settled_age"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.intp]

DOUBT = (
    1e-10  # an advantage of the wrong sign beyond this, rewards of size 1, is left to the oracle
)
FLAT = 1e-14  # slopes smaller than this are none
TIED = 1e-12  # subsidies this close are one
SETTLED = 1e-13  # beliefs this close to the stationary law are never seen
LARGE = 1e7  # values beyond this, rewards of size 1, belong to classes that are hardly connected
CHUNK = 512  # arms at once: their arrays stay in a core's cache

PLAYED, STANDING, IDLE = 0, 1, 2  # never seen is active; lambda stands; never seen is passive


@dataclass(frozen=True, eq=False)
class InformationIndices:
    """Index of every information state of one arm, and the verdict as in `Indices`.

    never_seen: the index before the first look; index: (S, max_age), the index in (s, k) at
    [s, k - 1]; witness: (row, low, high), the row as in `expand`.
    """

    never_seen: float
    index: FloatArray
    indexable: bool | None
    reason: str
    witness: tuple[int, float, float] | None


def settled_age(arm: FiniteArm, tolerance: float = 1e-12, most: int = 10_000) -> int:
    """The first age at which no belief differs by more than tolerance from its limit.

    It is `most` where that takes longer or, as P_0 is periodic, never happens.
    """
    if not tolerance > 0:
        raise ModelError(f"tolerance must be positive, got {tolerance}")
    if most < 1:
        raise ModelError(f"most must be at least 1, got {most}")
    passive, belief = _rows(arm.passive), _rows(arm.active)
    limit = belief @ _limit(passive)
    # The distance never grows with age: double until it is small, then halve the step.
    powers = [passive]
    while 2 ** len(powers) <= most:
        powers.append(powers[-1] @ powers[-1])
    if _apart(belief, limit) <= tolerance:
        return 1
    age = 1  # the last age known not to have settled
    for step in reversed(range(len(powers))):
        later = belief @ powers[step]
        if age + 2**step < most and _apart(later, limit) > tolerance:
            belief, age = later, age + 2**step
    return min(age + 1, most)


def expand(arm: FiniteArm, max_age: int) -> FiniteArm:
    """The finite arm of 1 + S * max_age information states.

    Row 0 is never seen, then (0, 1), (0, 2), ..., (0, max_age), (1, 1), ... as in
    `rmab.arms.information_states`.

    >>> arm = FiniteArm([[0.5, 0.5], [0.5, 0.5]], [[0.9, 0.1], [0.1, 0.9]], [0, 0], [0, 1])
    >>> expand(arm, 2).reward_active.round(6).tolist()
    [0.5, 0.1, 0.5, 0.9, 0.5]
    """
    _check_age(max_age)
    S, states = len(arm), 1 + len(arm) * max_age
    passive = _rows(arm.passive)
    forgets = bool(_forgets(passive[None])[0])
    seen = _beliefs(passive[None], _rows(arm.active)[None], max_age)[0].reshape(-1, S)
    beliefs = np.vstack([_resting(passive[None])[0] if forgets else np.full(S, 1 / S), seen])
    active = np.zeros((states, states))
    active[:, 1::max_age] = beliefs
    after = np.arange(states) + 1
    ends = np.arange(max_age, states, max_age)
    after[0], after[ends] = 0, 0 if forgets else ends
    waiting = np.zeros((states, states))
    waiting[np.arange(states), after] = 1
    return FiniteArm(waiting, active, beliefs @ arm.reward_passive, beliefs @ arm.reward_active)


def information_indices(
    arms: FiniteArm | Sequence[FiniteArm], max_age: int, discount: float | None = None
) -> list[InformationIndices]:
    """Indices of the information states of each arm; one arm is a list of one.

    Arms of one size are solved together. discount None: average reward.

    >>> channel = FiniteArm([[0.8, 0.2], [0.2, 0.8]], [[0.8, 0.2], [0.2, 0.8]], [0, 0], [0, 1])
    >>> [solved] = information_indices(channel, 60)
    >>> round(solved.never_seen, 6), solved.index[:, :2].round(6).tolist()
    (0.714286, [[0.2, 0.392857], [0.8, 0.772727]])
    """
    _check_age(max_age)
    if discount is not None and not 0 < discount < 1:
        raise ModelError(f"discount must lie in (0, 1), or be None for average reward: {discount}")
    given = [arms] if isinstance(arms, FiniteArm) else list(arms)
    solved: dict[int, InformationIndices] = {}
    for size in sorted({len(arm) for arm in given}):
        places = np.array([place for place, arm in enumerate(given) if len(arm) == size])
        group = _group([given[place] for place in places], max_age)
        order = np.argsort(group.cap, kind="stable")  # arms that settle alike go together
        for start in range(0, len(order), CHUNK):
            part = order[start : start + CHUNK]
            found = _solve(group.take(part), [given[place] for place in places[part]], discount)
            solved.update(zip(places[part].tolist(), (f.to(max_age) for f in found), strict=True))
    return [solved[place] for place in range(len(given))]


class _Group(NamedTuple):
    """B arms of one size. passive, active: (B, S, S); rewards: (B, 2, S) passive and active;
    forgets: (B,), one recurrent class when passive; cap: (B,), ages beyond are never seen."""

    passive: FloatArray
    active: FloatArray
    rewards: FloatArray
    forgets: BoolArray
    cap: IntArray

    def take(self, part: IntArray) -> _Group:
        return _Group(
            self.passive[part],
            self.active[part],
            self.rewards[part],
            self.forgets[part],
            self.cap[part],
        )


def _group(arms: list[FiniteArm], max_age: int) -> _Group:
    passive = _rows(np.stack([arm.passive for arm in arms]))
    active = _rows(np.stack([arm.active for arm in arms]))
    rewards = np.stack([[arm.reward_passive, arm.reward_active] for arm in arms])
    forgets = _forgets(passive)
    cap = np.full(len(arms), max_age)
    going, belief, rest = forgets.copy(), active, np.full(passive.shape[:2], 0.0)
    rest[forgets] = _resting(passive[forgets])
    for age in range(1, max_age):
        settled = going & (np.abs(belief - rest[:, None]).sum(2).max(1) <= SETTLED)
        cap[settled] = age
        going &= ~settled
        if not going.any():
            break
        belief = belief @ passive
    return _Group(passive, active, rewards, forgets, cap)


@dataclass(frozen=True, eq=False)
class _Found:
    """Indices of one arm up to the age at which it counts as never seen again."""

    never_seen: float
    index: FloatArray  # (S, cap)
    indexable: bool | None = True
    reason: str = ""
    witness: tuple[int, float, float] | None = None

    def to(self, max_age: int) -> InformationIndices:
        """The same with every age to max_age: those past the cap are never seen."""
        S, cap = self.index.shape
        index = np.full((S, max_age), self.never_seen)
        index[:, :cap] = self.index[:, :max_age]
        witness, reason = self.witness, self.reason
        if witness is not None and witness[0] > 0:
            row, low, high = witness
            s, age = divmod(row - 1, cap)
            witness = (1 + s * max_age + age, low, high)
            reason = reason.replace(f"state {row} ", f"state {witness[0]} ")
        return InformationIndices(self.never_seen, index, self.indexable, reason, witness)


def _solve(group: _Group, arms: list[FiniteArm], discount: float | None) -> list[_Found]:
    """Together where P_0 forgets and nothing is in doubt, else one by one."""
    centre = group.rewards.mean(2)
    away = group.rewards - centre[:, :, None]
    largest, scale = np.abs(group.rewards).max((1, 2)), np.abs(away).max((1, 2))
    scale = np.where(scale <= 1e-12 * largest, largest, scale)  # equal rewards, but for rounding
    scale = np.where(scale > 0, scale, 1.0)
    away /= scale[:, None, None]
    quick = np.flatnonzero(group.forgets)
    J = int(group.cap[quick].max()) if quick.size else 1
    never, sure = np.zeros(len(arms)), np.zeros(len(arms), bool)
    index = np.zeros((len(arms), group.passive.shape[1], J))
    if quick.size:
        batch = _batch(group.passive[quick], group.active[quick], away[quick], J, discount)
        never[quick], index[quick], sure[quick] = _follow(batch)
    shift = centre[:, 1] - centre[:, 0]
    never = never * scale + shift
    index = index * scale[:, None, None] + shift[:, None, None]
    return [
        _Found(float(never[place]), index[place])
        if sure[place]
        else _by_oracle(arm, int(group.cap[place]), discount)
        for place, arm in enumerate(arms)
    ]


def _by_oracle(arm: FiniteArm, max_age: int, discount: float | None) -> _Found:
    """The indices of `expand(arm)` by the dense solver."""
    found = whittle_indices(expand(arm, max_age), discount)
    index = found.index[1:].reshape(len(arm), max_age)
    return _Found(float(found.index[0]), index, found.indexable, found.reason, found.witness)


class _Batch(NamedTuple):
    """B arms whose Q and whose equations are affine in y = (H, x) and lambda.

    Columns 0..J-1 are the ages 1..J, column J is never seen.
    weight: (B, S, J + 1, S + 1), constant, slope: (B, S, J + 1): Q = weight y + constant + slope
    lambda; start_weight: (S + 1,), start_constant: (B, S), start_slope: T(s, 1) likewise;
    rest: (B, S) belief of never seen; rest_reward: (B, 2) what it pays when passive and active.
    """

    weight: FloatArray
    constant: FloatArray
    slope: FloatArray
    start_weight: float
    start_constant: FloatArray
    start_slope: float
    rest: FloatArray
    rest_reward: FloatArray
    beta: float
    average: bool


def _batch(
    passive: FloatArray, active: FloatArray, rewards: FloatArray, J: int, discount: float | None
) -> _Batch:
    B, S, _ = passive.shape
    average, beta = discount is None, 1.0 if discount is None else discount
    beliefs = _beliefs(passive, active, J)  # (B, S, J, S)
    paid = np.einsum("bsjt,bat->bsja", beliefs, rewards)  # (B, S, J, 2)
    to_end = np.zeros((B, S, J))  # sum of beta^(i-k) b . r_0 from each age to J
    slots = np.zeros(J)  # sum of beta^(i-k) from each age to J
    total, count = np.zeros((B, S)), 0.0
    for age in reversed(range(J)):
        total, count = paid[:, :, age, 0] + beta * total, 1 + beta * count
        to_end[:, :, age], slots[age] = total, count
    weight = np.zeros((B, S, J + 1, S + 1))
    weight[:, :, :J, :S] = beta * beliefs
    weight[:, :, :J, S] = slots - 1 if average else 0
    weight[:, :, J, S] = 0 if average else 1
    constant = np.zeros((B, S, J + 1))
    constant[:, :, :J] = paid[:, :, :, 1] - to_end
    slope = np.zeros((B, S, J + 1))
    slope[:, :, :J] = -slots
    rest = _resting(passive)
    return _Batch(
        weight,
        constant,
        slope,
        -slots[0] if average else 0.0,
        to_end[:, :, 0].copy(),
        float(slots[0]),
        rest,
        np.einsum("bt,bat->ba", rest, rewards),
        beta,
        average,
    )


@dataclass
class _Course:
    """Where each arm of a batch stands on its way up the subsidy line."""

    active: BoolArray  # (B, S, J + 1), column J always True: waiting ends there
    phase: npt.NDArray[np.int8]  # (B,)
    now: FloatArray  # (B,) lambda, or delta while lambda stands
    stood: FloatArray  # (B,) the lambda at which it stands
    pinned: FloatArray  # (B, S + 1) y where the last interval ended
    fresh: BoolArray  # (B,) no state has left since y last changed


def _follow(batch: _Batch) -> tuple[FloatArray, FloatArray, BoolArray]:
    """never seen (B,), index (B, S, J) and whether the arm is surely indexable (B,)."""
    B, S, columns = batch.constant.shape
    J = columns - 1
    never, index, sure = np.zeros(B), np.zeros((B, S, J)), np.zeros(B, bool)
    places = np.arange(B)  # arms still on their way
    course = _Course(
        np.ones((B, S, columns), bool),
        np.zeros(B, np.int8),
        np.full(B, -np.inf),
        np.zeros(B),
        np.zeros((B, S + 1)),
        np.ones(B, bool),
    )
    going = np.ones(B, bool)
    for _ in range(4 * (S * J + 2)):
        doubtful, done, leaving, at, leaves_never = _step(batch, course, going)
        rows = np.nonzero(leaving)
        index[places[rows[0]], rows[1], rows[2]] = at[rows]
        never[places[leaves_never]] = course.stood[leaves_never]
        sure[places[going & done & ~doubtful]] = True
        going &= ~(doubtful | done)
        alive = int(going.sum())
        if not alive:
            break
        if alive < 0.9 * going.size:
            batch, course = _keep(batch, course, going)
            places, going = places[going], np.ones(alive, bool)
    return never, index, sure


def _keep(batch: _Batch, course: _Course, kept: BoolArray) -> tuple[_Batch, _Course]:
    batch = batch._replace(
        weight=batch.weight[kept],
        constant=batch.constant[kept],
        slope=batch.slope[kept],
        start_constant=batch.start_constant[kept],
        rest=batch.rest[kept],
        rest_reward=batch.rest_reward[kept],
    )
    return batch, _Course(
        course.active[kept],
        course.phase[kept],
        course.now[kept],
        course.stood[kept],
        course.pinned[kept],
        course.fresh[kept],
    )


def _step(
    batch: _Batch, course: _Course, going: BoolArray
) -> tuple[BoolArray, BoolArray, BoolArray, FloatArray, BoolArray]:
    """One interval of each arm: doubtful (B,), done (B,), states that leave (B, S, J), where, and
    whether never seen leaves (B,), at `course.stood`. The course moves on."""
    B, S, columns = batch.constant.shape
    J = columns - 1
    active, beta = course.active, batch.beta
    first = active.argmax(2)  # (B, S)
    standing = course.phase == STANDING
    y, doubtful = _values(batch, course, first)  # (B, S + 1, 2)
    Q = np.matmul(batch.weight.reshape(B, S * columns, S + 1), y).reshape(B, S, columns, 2)
    fixed = np.where(standing, course.stood, 0.0)[:, None, None]
    Q0 = Q[..., 0] + batch.constant + batch.slope * fixed
    Q1 = Q[..., 1] + batch.slope * ~standing[:, None, None]
    Q1[:, :, J] += standing[:, None]  # never seen is worth delta

    ages = np.arange(columns)
    after = np.where(active, ages, J)[:, :, ::-1]
    after = np.minimum.accumulate(after, 2)[:, :, ::-1][:, :, 1:]  # next active column, (B, S, J)
    flat = after + (np.arange(B * S) * columns).reshape(B, S, 1)
    if beta == 1.0:
        A0 = Q0[:, :, :J] - Q0.ravel()[flat]
        A1 = Q1[:, :, :J] - Q1.ravel()[flat]
    else:
        fade = (beta ** np.arange(columns))[after - ages[:J]]
        A0 = Q0[:, :, :J] - fade * Q0.ravel()[flat]
        A1 = Q1[:, :, :J] - fade * Q1.ravel()[flat]

    plays = active[:, :, :J]
    falls = plays & (A1 < -FLAT)
    root = np.where(falls, -A0 / np.where(falls, A1, 1.0), np.inf)
    root = np.maximum(root, course.now[:, None, None])
    # Never seen: A = U - r_0 - lambda [average], in units of one slot [discounted].
    unit = 1.0 if batch.average else 1 - beta
    N0, N1 = unit * y[:, S, 0] - batch.rest_reward[:, 0], unit * y[:, S, 1] - 1
    played = course.phase == PLAYED
    falls_never = played & (N1 < -FLAT)
    root_never = np.where(falls_never, -N0 / np.where(falls_never, N1, 1.0), np.inf)
    root_never = np.maximum(root_never, course.now)

    # The first active age leaves where the best of the later ones overtakes it, whichever that is.
    is_first = ages[:J] == first[:, :, None]
    ahead = ages - first[:, :, None]
    later = active & (ahead > 0)
    gone = 1.0 if batch.average else (beta ** np.arange(columns))[np.maximum(ahead, 0)]
    mine = first + (np.arange(B * S) * columns).reshape(B, S)
    F0 = Q0.ravel()[mine][:, :, None] - gone * Q0
    F1 = Q1.ravel()[mine][:, :, None] - gone * Q1
    overtaken = later & (F1 < -FLAT)
    firsts = np.where(overtaken, -F0 / np.where(overtaken, F1, 1.0), np.inf).min(2)  # (B, S)
    firsts = np.maximum(firsts, course.now[:, None])
    root = np.where(is_first, firsts[:, :, None], root)
    firsts = firsts.min(1)
    turn = np.minimum(firsts, root_never)  # (B,) where H changes next
    early = ~is_first & (root < turn[:, None, None] - TIED)
    pending = early.any((1, 2))
    # Next active ages, and with them roots, change as states leave: one subsidy at a time per s.
    soonest = np.where(early, root, np.inf).min(2, keepdims=True)
    in_order = early & (root <= soonest + TIED)
    turning = ~pending & np.isfinite(turn) & going
    together = plays & (root <= turn[:, None, None] + TIED)
    leaving = np.where(pending[:, None, None], in_order, together & turning[:, None, None])
    leaving &= going[:, None, None]
    leaves_never = turning & (root_never <= turn + TIED)

    # Signs on the interval: passive states at its end, active ones at its start.
    end = np.minimum(turn[:, None, None], soonest)
    finite = np.isfinite(end)
    high = np.where(finite, A0 + A1 * np.where(finite, end, 0.0), np.where(A1 > DOUBT, np.inf, 0))
    doubtful |= (~plays & (high > DOUBT)).any((1, 2))
    began = np.isfinite(course.now)
    low = A0 + A1 * np.where(began, course.now, 0.0)[:, None, None]
    wrong = np.where(plays, low < -DOUBT, low > DOUBT).any((1, 2))
    doubtful |= began & course.fresh & wrong
    # Both actions equally good all along: which subsidy is the index is then for the oracle to say.
    lasts = began & course.fresh & ~standing & (turn - np.where(began, course.now, 0.0) > 1e-6)
    even = ~plays & (np.abs(low) <= TIED) & (np.abs(A1) <= TIED)
    doubtful |= lasts & even.any((1, 2))
    idle = course.phase != PLAYED
    worth = np.einsum("bs,bsp->bp", batch.rest, y[:, :S]) * beta
    worth -= y[:, S]
    worth[:, 0] += batch.rest_reward[:, 1]
    worth[:, 1] -= standing
    now = np.where(began, course.now, 0.0)
    stop = np.where(np.isfinite(turn), turn, 0.0)
    rises = np.where(
        np.isfinite(turn), worth[:, 0] + worth[:, 1] * stop > DOUBT, worth[:, 1] > DOUBT
    )
    doubtful |= idle & (rises | (worth[:, 0] + worth[:, 1] * now > DOUBT))

    at = np.where(pending[:, None, None], root, turn[:, None, None])
    at = np.where(standing[:, None, None], course.stood[:, None, None], at)
    plays &= ~leaving
    stuck = ~pending & ~np.isfinite(turn)
    done = stuck & idle & ~plays.any((1, 2))
    doubtful |= stuck & ~done
    doubtful &= going

    course.pinned = np.where(
        turning[:, None], y[:, :, 0] + y[:, :, 1] * stop[:, None], course.pinned
    )
    course.fresh = turning
    course.now = np.where(turning, turn, course.now)
    course.stood = np.where(leaves_never, turn, course.stood)
    course.phase[leaves_never] = IDLE
    if batch.average:
        _stand_or_go(batch, course, turning & (leaves_never | standing))
    return doubtful, done, leaving, at, leaves_never


def _values(batch: _Batch, course: _Course, first: IntArray) -> tuple[FloatArray, BoolArray]:
    """y = (H, x) of each arm's policy, constant and slope, (B, S + 1, 2), and which to doubt."""
    B, S, columns = batch.constant.shape
    J = columns - 1
    beta, phase = batch.beta, course.phase
    standing = phase == STANDING
    one, two = np.arange(B)[:, None], np.arange(S)
    fade = (beta ** np.arange(columns))[first]  # (B, S)
    matrix = np.zeros((B, S + 1, S + 1))
    right = np.zeros((B, S + 1, 2))
    matrix[:, :S] = -fade[:, :, None] * batch.weight[one, two, first]
    matrix[:, :S, S] -= batch.start_weight
    matrix[:, np.arange(S), np.arange(S)] += 1
    slope = fade * batch.slope[one, two, first] + batch.start_slope
    right[:, :S, 0] = fade * batch.constant[one, two, first] + batch.start_constant
    right[:, :S, 0] += slope * np.where(standing, course.stood, 0.0)[:, None]
    right[:, :S, 1] = np.where(standing[:, None], first == J, slope)
    matrix[:, S, S] = 1
    played = phase == PLAYED
    matrix[:, S, :S] = -beta * np.where(played[:, None], batch.rest, 0.0)
    unit = 1.0 if batch.average else 1 - beta
    idle_reward = batch.rest_reward[:, 0] + np.where(standing, course.stood, 0.0)
    right[:, S, 0] = np.where(played, batch.rest_reward[:, 1], idle_reward / unit)
    right[:, S, 1] = np.where(phase == IDLE, 1 / unit, 0.0)
    where = np.flatnonzero(standing)
    if where.size:
        shown = batch.weight[where[:, None], two, first[where]][:, :, :S]
        held = _closed(shown, first[where], J).argmax(1)  # values there are known but for this one
        matrix[where, held] = 0
        matrix[where, held, held] = 1
        right[where, held, 0] = course.pinned[where, held]
        right[where, held, 1] = 0
    singular = ~(np.abs(np.linalg.det(matrix)) > 1e-13)
    matrix[singular] = np.eye(S + 1)
    y = np.linalg.solve(matrix, right)
    return y, singular | (np.abs(y) > LARGE * columns).any((1, 2))


def _closed(beliefs: FloatArray, first: IntArray, never: int) -> BoolArray:
    """States s of a class that the policy never leaves and that avoids never seen, (B, S).

    beliefs: (B, S, S), what a play shows after the wait in each s; never: the column of never seen.
    """
    reach = _reach(beliefs)
    # b is 0 in the rows of waits that end in never seen, which therefore reach themselves alone.
    idles = (reach & (first == never)[:, None, :]).any(2)
    returns = (~reach | reach.transpose(0, 2, 1)).all(2)
    return np.asarray(returns & ~idles)


def _stand_or_go(batch: _Batch, course: _Course, which: BoolArray) -> None:
    """Where never seen is passive: lambda stands as long as some class avoids it."""
    where = np.flatnonzero(which)
    if not where.size:
        return
    S, J = batch.constant.shape[1], batch.constant.shape[2] - 1
    first = course.active[where].argmax(2)
    beliefs = batch.weight[where[:, None], np.arange(S), first][:, :, :S]
    stands = _closed(beliefs, first, J).any(1)
    enters, goes = where[stands & (course.phase[where] == IDLE)], where[~stands]
    course.phase[enters], course.now[enters] = STANDING, 0.0
    course.phase[goes], course.now[goes] = IDLE, course.stood[goes]


def _reach(matrix: FloatArray) -> BoolArray:
    """[s, s']: whether s' can be reached from s, itself included; (..., S, S)."""
    reach = (matrix > 0) | np.eye(matrix.shape[-1], dtype=bool)
    for _ in range(matrix.shape[-1].bit_length()):
        reach = np.matmul(reach, reach)
    return np.asarray(reach)


def _forgets(passive: FloatArray) -> BoolArray:
    """Whether the chain has one recurrent class, that is a state that all reach; (B,)."""
    return np.asarray(np.any(_reach(passive).all(1), axis=1))


def _resting(passive: FloatArray) -> FloatArray:
    """The stationary laws of chains with one recurrent class: pi (I - P + 1) = 1; (B, S)."""
    B, S, _ = passive.shape
    law = np.linalg.solve(np.eye(S) - passive.transpose(0, 2, 1) + 1, np.ones((B, S, 1)))[:, :, 0]
    law = np.maximum(law, 0)
    return np.asarray(law / law.sum(1, keepdims=True))


def _limit(passive: FloatArray) -> FloatArray:
    """The averages of P^0, P^1, ... in the limit, (S, S)."""
    if _forgets(passive[None])[0]:
        return np.broadcast_to(_resting(passive[None])[0], passive.shape)
    power = (passive + np.eye(len(passive))) / 2  # the same limit, and no period
    for _ in range(50):
        power = _rows(power @ power)
    return power


def _beliefs(passive: FloatArray, active: FloatArray, max_age: int) -> FloatArray:
    """b(s, k) = P_1[s] P_0^(k-1), (B, S, max_age, S)."""
    belief = active
    beliefs = np.empty((*active.shape[:2], max_age, active.shape[2]))
    for age in range(max_age):
        beliefs[:, :, age] = belief
        belief = belief @ passive
    return beliefs


def _apart(one: FloatArray, other: FloatArray) -> float:
    """The largest distance in total variation between rows, which no further slot increases."""
    return float(np.abs(one - other).sum(-1).max()) / 2


def _rows(matrix: FloatArray) -> FloatArray:
    return np.asarray(matrix / matrix.sum(-1, keepdims=True))


def _check_age(max_age: int) -> None:
    if max_age < 1:
        raise ModelError(f"max_age must be at least 1, got {max_age}")
