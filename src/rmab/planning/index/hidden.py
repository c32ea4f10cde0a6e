"""Whittle indices of arms that are seen only when played, with a verdict, many arms at once.

The information states of such an arm, (s, k) and never seen, are those of
`rmab.model.information`; `rmab.planning.index.parametric` walks up the subsidy line by their
structure.

- Ages end where the belief has settled, whatever ages are asked for: past that age an arm is never
  seen again. The index therefore does not depend on `max_age`. The verdict on an arm that takes
  more than MOST_STATES information states to settle is undecided, and its indices are those of the
  arm cut at CUT_STATES.
- An arm that does not forget when left alone (several recurrent classes, or a period) goes to the
  dense solver, `rmab.planning.index.finite`, with its ages wrapped.
- True: the walk saw no passive state come near to being active again.
- False: a second look at the walk finds a state that is clearly passive inside one interval of
  subsidies and clearly active at a higher one inside the same or a later interval, the witness.
- What remains is doubtful: hardly connected classes, states that come near and no more. There the
  dense solver decides, or nobody, where the arm is too large for it.

Reference: P. Whittle, "Restless bandits: activity allocation in a changing world", J. Appl. Prob.
25A, 1988.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError
from rmab.linalg import resting
from rmab.markov import period
from rmab.model.arms import NEVER, Arm
from rmab.model.information import expand, expansion, settled_age
from rmab.planning.index.crossings import Interval, later
from rmab.planning.index.finite import Indices, changes_back, finite_indices
from rmab.planning.index.parametric import Batch, Models
from rmab.planning.index.walk import follow, taken

__all__ = ["information_indices"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.intp]

SETTLED = 1e-13  # beliefs this close to their limit, in total variation, have settled
MOST_STATES = 20_000
CUT_STATES = 6_000
DENSE_STATES = 2_000  # the dense solver is not asked about more
ALIKE = 1.5  # arms whose ages end within this factor walk together,
SIMILAR, FEW = 2.5, 100  # or within this one if they are few
PIECE = 50  # ages for which a walk gets another piece
CLOSE = 1e-9  # a passive state this near to active may come back
RISES = 1e-12  # an advantage that rises by less stands
CLEAR = 1e-9  # an advantage beyond this is no rounding
INSIDE = (1 / 16, 1 / 2, 15 / 16)  # places in an interval
LARGE = 3e3  # values beyond this, per age, belong to hardly connected classes


def information_indices(
    arms: Arm | Sequence[Arm], max_age: int, discount: float | None = None
) -> list[Indices]:
    """Indices of the information states of each arm, index (S, max_age) and never_seen.

    One arm is a list of one; what `observed` says plays no part. discount None: average reward.

    >>> channel = Arm([[0.8, 0.2], [0.2, 0.8]], reward=[0, 1])
    >>> [solved] = information_indices(channel, 2)
    >>> round(solved.never_seen, 6), solved.index.round(6).tolist()
    (0.714286, [[0.2, 0.392857], [0.8, 0.772727]])
    """
    if max_age < 1:
        raise ModelError(f"max_age must be at least 1, got {max_age}")
    if discount is not None and not 0 < discount < 1:
        raise ModelError(f"discount must lie in (0, 1), or be None for average reward: {discount}")
    given = [arms] if isinstance(arms, Arm) else list(arms)
    solved: dict[int, Indices] = {}
    for size in sorted({arm.states for arm in given}):
        places = [place for place, arm in enumerate(given) if arm.states == size]
        group = [given[place] for place in places]
        solved.update(zip(places, _of_one_size(group, max_age, discount), strict=True))
    return [solved[place] for place in range(len(given))]


def _of_one_size(arms: list[Arm], max_age: int, discount: float | None) -> list[Indices]:
    """The indices of arms that have one number of states."""
    models = Models(
        _arms_last([arm.passive / arm.passive.sum(1, keepdims=True) for arm in arms]),
        _arms_last([arm.active / arm.active.sum(1, keepdims=True) for arm in arms]),
        _arms_last([arm.reward_passive for arm in arms]),
        _arms_last([arm.reward_active for arm in arms]),
    )
    beta, ages = 1.0 if discount is None else discount, _ages(models)
    found: dict[int, _Found] = {}
    suspects: list[int] = []
    for group in _alike(ages):
        walked, returns = _walked(taken(models, group), int(ages.cap[group].max()), beta)
        found.update(zip(group.tolist(), walked, strict=True))
        suspects += group[returns].tolist()
    if suspects:
        witnesses = _looked_at_again(
            taken(models, np.array(suspects)), int(ages.cap[suspects].max()), beta
        )
        for place, witness in zip(suspects, witnesses, strict=True):
            found[place] = found[place].refuted(witness)
    solved = []
    for place, arm in enumerate(arms):
        cap = int(ages.cap[place])
        if place not in found:
            answer = _dense(arm, max_age, cap, discount)
        elif not ages.settled[place]:
            answer = replace(found[place].to(max_age), **_slow(MOST_STATES // arm.states, cap))
        elif found[place].indexable is None and 1 + arm.states * cap <= DENSE_STATES:
            answer = _dense(arm, max_age, cap, discount)
        else:
            answer = found[place].to(max_age)
        solved.append(answer)
    return solved


def _arms_last(arrays: list[FloatArray]) -> FloatArray:
    return np.stack(arrays, -1)


class _Ages(NamedTuple):
    """forgets: (B,), whether the belief has one limit; cap: (B,), the age past which an arm counts
    as never seen; settled: (B,), whether that is right."""

    forgets: BoolArray
    cap: IntArray
    settled: BoolArray


def _ages(models: Models) -> _Ages:
    S = len(models.reward_active)
    passive = np.moveaxis(models.passive, -1, 0)
    steps = passive > 0  # a chain forgets if after enough slots some state is reached from all
    for _ in range(2 * S.bit_length()):
        steps = np.matmul(steps, steps)
    forgets = steps.all(1).any(1)

    most = MOST_STATES // S
    news = np.moveaxis(models.active - resting(models.passive), -1, 0)
    powers = [passive]
    while 2 ** len(powers) <= most:
        powers.append(powers[-1] @ powers[-1])

    def unsettled(at: FloatArray) -> BoolArray:
        return np.asarray(np.abs(at).sum(2).max(1) / 2 > SETTLED)

    # The distance never grows with age: double until it is small, then halve the step.
    age = unsettled(news).astype(np.intp)  # the last age known not to have settled
    for step in reversed(range(len(powers))):
        further = news @ powers[step]
        goes = (age > 0) & (age + 2**step < most) & unsettled(further)
        news, age = np.where(goes[:, None, None], further, news), age + goes * 2**step
    settled = (age + 1 < most) | ~unsettled(news @ passive)
    return _Ages(forgets, np.where(settled, age + 1, CUT_STATES // S), settled)


def _alike(ages: _Ages) -> Iterator[IntArray]:
    """Arms that forget, in groups of like ages, those that take longest first."""
    order = np.argsort(-ages.cap, kind="stable")
    order = order[ages.forgets[order]]
    while order.size:
        caps = ages.cap[order]
        alike, similar = ((caps * factor >= caps[0]).sum() for factor in (ALIKE, SIMILAR))
        size = max(alike, min(similar, FEW))
        yield order[:size]
        order = order[size:]


@dataclass(frozen=True, eq=False)
class _Found:
    """Indices of one arm up to its cap, index (S, cap); witness: (s, k - 1, low, high)."""

    never_seen: float
    index: FloatArray
    indexable: bool | None
    witness: tuple[int, int, float, float] | None = None

    def refuted(self, witness: tuple[int, int, float, float] | None) -> _Found:
        """With a witness, or in doubt without one."""
        return replace(self, indexable=None if witness is None else False, witness=witness)

    def to(self, max_age: int) -> Indices:
        """Every age to max_age: those past the cap are never seen."""
        S, cap = self.index.shape
        index = np.full((S, max_age), self.never_seen)
        index[:, :cap] = self.index[:, :max_age]
        reason, witness = "", None
        if self.indexable is None:
            reason = "rounding may hide that a state changes back"
        if self.witness is not None:
            s, age, low, high = self.witness
            witness = ((s, age + 1), low, high)
            reason = changes_back(_name(s, age + 1), low, high)
        return Indices(index, self.indexable, reason, witness, self.never_seen)


def _slow(most: int, cap: int) -> dict[str, Any]:
    """The verdict on an arm that was cut too early."""
    reason = (
        f"takes more than {most:,} slots to forget what was seen: "
        f"these are the indices of the arm cut at an age of {cap:,}"
    )
    return {"indexable": None, "reason": reason, "witness": None}


def _walked(models: Models, cap: int, beta: float) -> tuple[list[_Found], BoolArray]:
    """Each arm by the walk, and whether a state may have come back, (B,)."""
    B = models.reward_active.shape[1]
    watch = _Watch(B)
    never, index, finished = follow(models, cap, beta, watch, 1 + cap // PIECE)
    doubtful = watch.ill | ~finished
    found = [
        _Found(float(never[b]), index[..., b].T, None if doubtful[b] else True) for b in range(B)
    ]
    return found, watch.returns & ~doubtful


def _looked_at_again(
    models: Models, cap: int, beta: float
) -> list[tuple[int, int, float, float] | None]:
    """A witness for each arm, if there is one."""
    S, B = models.reward_active.shape
    second = _SecondLook(cap, S, B)
    follow(models, cap, beta, second)
    return [second.witness(b) for b in range(B)]


def _name(s: int, age: int) -> str:
    return f"state {s} seen {age} slot{'s' * (age != 1)} ago"


class _Watch:
    """What makes an arm doubtful at first sight: a passive state comes near to active, or values
    are so large that rounding counts; returns, ill: (B,)."""

    def __init__(self, B: int) -> None:
        self.returns, self.ill = np.zeros(B, bool), np.zeros(B, bool)

    def __call__(self, places: IntArray, batch: Batch, seen: Interval) -> None:  # noqa: ARG002 - as _SecondLook
        near = np.flatnonzero((seen.after.advantage > -CLOSE) & ~seen.before.plays)
        rises = seen.after.advantage.ravel()[near] - seen.before.advantage.ravel()[near] > RISES
        self.returns[places[near[rises] % places.size]] = True
        self.ill[places[seen.span.size > LARGE]] = True


class _SecondLook:
    """The clearest change back of each state of each arm, from places inside intervals."""

    def __init__(self, J: int, S: int, B: int) -> None:
        self._deepest = np.zeros((J, S, B))  # how clearly passive it ever was, and where
        self._low = np.zeros((J, S, B))
        self._margin = np.zeros((J, S, B))  # of the clearest witness
        self._ends = np.zeros((2, J, S, B))

    def __call__(self, places: IntArray, batch: Batch, seen: Interval) -> None:
        for share in INSIDE:
            self._look(places, batch, seen, share)

    def _look(self, places: IntArray, batch: Batch, seen: Interval, share: float) -> None:
        span = seen.span
        wide = span.rising * span.end > CLEAR  # elsewhere lambda stands
        advantage = later(span.value + span.slope * (span.end * share), seen.beta, 0.0).advantage
        subsidy = span.subsidy + span.rising * (span.end * share)
        subsidy = np.broadcast_to(subsidy * batch.scale + batch.shift, advantage.shape)
        deepest, low = self._deepest[..., places], self._low[..., places]
        margin, ends = self._margin[..., places], self._ends[..., places]

        clear = np.minimum(advantage, deepest)
        back = wide & (clear > np.maximum(margin, CLEAR))
        self._margin[..., places] = np.where(back, clear, margin)
        self._ends[..., places] = np.where(back, np.stack([low, subsidy]), ends)
        passive = wide & (-advantage > np.maximum(deepest, CLEAR))
        self._deepest[..., places] = np.where(passive, -advantage, deepest)
        self._low[..., places] = np.where(passive, subsidy, low)

    def witness(self, b: int) -> tuple[int, int, float, float] | None:
        """(s, k - 1, low, high) with the widest margin, or None."""
        margin = self._margin[..., b]
        age, s = np.unravel_index(int(margin.argmax()), margin.shape)
        if not margin[age, s] > 0:
            return None
        low, high = self._ends[:, age, s, b].tolist()
        return int(s), int(age), low, high


def _dense(arm: Arm, max_age: int, cap: int, discount: float | None) -> Indices:
    """By the dense solver; cap: where the ages end if the arm forgets."""
    S, most = arm.states, (DENSE_STATES - 1) // arm.states
    if expansion(arm, 1).wrap:  # all ages of the last period have settled
        cap = min(settled_age(arm, SETTLED, most) + period(arm.passive) - 1, most)
    wrap = expansion(arm, cap).wrap

    def name(row: int) -> str:
        return "never seen" if row == 0 else _name((row - 1) // cap, (row - 1) % cap + 1)

    found = finite_indices(expand(arm, cap), discount, name)
    never, by_age = float(found.index[0]), found.index[1:].reshape(S, cap)
    index = np.full((S, max_age), never)
    index[:, :cap] = by_age[:, :max_age]
    if wrap and max_age > cap:
        index[:, cap:] = by_age[:, cap - wrap + np.arange(max_age - cap) % wrap]
    witness = None
    if found.witness is not None:
        row, low, high = found.witness
        assert isinstance(row, int)
        state = ((row - 1) // cap, (row - 1) % cap + 1) if row else (None, NEVER)
        witness = (state, low, high)
    answer = Indices(index, found.indexable, found.reason, witness, never)
    return replace(answer, **_slow(most, cap)) if wrap and cap == most else answer
