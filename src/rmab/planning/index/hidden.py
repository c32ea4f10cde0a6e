"""Whittle indices of arms observed when played, many arms at once.

The information states of such an arm, (s, k) and never observed, are those of
`rmab.model.information`; `rmab.planning.index.parametric` follows their optimal policies along the
subsidy line.

    information_indices  with a verdict, on NumPy
    information_table    indices alone, on NumPy and JAX, with ages up to a given cap

The verdict:

- Ages end where the belief has settled, whatever ages are asked for: past that age an arm counts as
  never observed. The index therefore does not depend on `max_age`. The verdict on an arm that takes
  too many information states to settle is undecided. It is cut earlier (`Limits`), and once more at
  half that age: an index that is not the same for both depends on the cut, is not known, and NaN.
- An arm that does not forget when left alone (several recurrent classes, or a period) goes to the
  dense solver, `rmab.planning.index.finite`, with its ages wrapped.
- True: no passive state came near to being active again.
- False: followed once more, a state is clearly passive inside one interval of subsidies and clearly
  active at a higher one inside the same or a later interval: the witness.
- What remains is doubtful: hardly connected classes, states that come near and no more. There the
  dense solver decides; where the arm is too large for it, the verdict is undecided.

Reference: P. Whittle, "Restless bandits: activity allocation in a changing world", J. Appl. Prob.
25A, 1988.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rmab.arrays import Array, BoolArray, FloatArray, IntArray
from rmab.errors import ModelError
from rmab.linalg import array_namespace
from rmab.markov import forgets, limiting_distributions, period
from rmab.model.arms import Arm
from rmab.model.beliefs import NEVER
from rmab.model.information import expand, expansion, last_unsettled, settled_age
from rmab.planning.index.finite import (
    Indices,
    changes_back,
    checked_discount,
    finite_indices,
)
from rmab.planning.index.parametric import Batch, Interval, Models, follow, later, taken

__all__ = ["Limits", "information_indices", "information_table"]


_SETTLED = 1e-13  # beliefs this close to their limit, in total variation, have settled
_NEAR_FACTOR = 1.5  # arms whose ages end within this factor are followed together,
_FAR_FACTOR, _SMALL_GROUP = 2.5, 100  # or within this one if they are few
_PIECE_AGES = 50  # ages for which a path gets another piece
_NEARLY_ACTIVE = 1e-9  # a passive state this near to active may come back
_MIN_RISE = 1e-12  # an advantage that rises by less stands
_CLEAR = 1e-9  # an advantage beyond this is no rounding
_CUT_TOLERANCE = 1e-9  # indices this close, relative to the largest, do not depend on the cut
_PLACES = (1 / 16, 1 / 2, 15 / 16)  # in an interval, where the second pass compares


@dataclass(frozen=True)
class Limits:
    """How far the solvers go.

    settling_states: an arm that takes more information states than this to settle is cut at
    cut_states; dense_states: the dense solver is not asked about more; value: values beyond this,
    per age, belong to hardly connected classes, and the dense solver is asked.
    """

    settling_states: int = 20_000
    cut_states: int = 6_000
    dense_states: int = 2_000
    value: float = 3e3


_DEFAULT_LIMITS = Limits()


def information_table(
    passive: Array, active: Array, reward_passive: Array, reward_active: Array, max_age: int
) -> Array:
    """Whittle indices of information states up to an age, past which arms are never observed.

    passive, active: (S, S, *B); rewards: (S, *B), all broadcast in B; gives (1 + S max_age, *B) in
    the order of `rmab.model.beliefs.information_states`. Average reward. A state of an arm that is
    not indexable has the lowest subsidy from which on it is passive. Runs on NumPy in float64 and,
    also under `jax.jit`, on JAX; always finite.

    >>> matrix = np.array([[0.8, 0.2], [0.2, 0.8]])
    >>> index = information_table(matrix, matrix, np.zeros(2), np.array([0.0, 1.0]), 60)
    >>> index[[0, 1, 2, 61, 62]].round(6).tolist()
    [0.714286, 0.2, 0.392857, 0.8, 0.772727]
    """
    if max_age < 1:
        raise ModelError(f"max_age must be at least 1, got {max_age}")
    given: list[Array] = [passive, active, reward_passive, reward_active]
    xp = array_namespace(*given)
    S = len(passive)
    shapes = [array.shape[axes:] for array, axes in zip(given, (2, 2, 1, 1), strict=True)]
    width = np.broadcast_shapes(*shapes)
    models = Models(
        *(xp.broadcast_to(m, (S, S, *width)).reshape(S, S, -1) for m in given[:2]),
        *(xp.broadcast_to(r, (S, *width)).reshape(S, -1) for r in given[2:]),
    )
    if xp is np:
        never, index, _ = follow(Models(*(np.asarray(x, np.float64) for x in models)), max_age)
    else:
        from rmab.planning.index import parametric_jax as compiled

        never, index = compiled.follow(models, max_age)
    observed = xp.swapaxes(index, 0, 1).reshape(S * max_age, -1)
    table = xp.concatenate([never[None], observed]).reshape(-1, *width)
    return xp.where(xp.isfinite(table), table, 0)  # single precision may overflow


def information_indices(
    arms: Arm | Sequence[Arm],
    max_age: int | Sequence[int],
    discount: float | None = None,
    limits: Limits = _DEFAULT_LIMITS,
) -> list[Indices]:
    """Indices of the information states of each arm, index (S, max_age) and never_seen.

    One arm is a list of one; what `observed` says plays no part. max_age: one for all or one for
    each; discount None: average reward.

    >>> channel = Arm([[0.8, 0.2], [0.2, 0.8]], reward=[0, 1])
    >>> [solved] = information_indices(channel, 2)
    >>> round(solved.never_seen, 6), solved.index.round(6).tolist()
    (0.714286, [[0.2, 0.392857], [0.8, 0.772727]])
    """
    given = [arms] if isinstance(arms, Arm) else list(arms)
    asked = [max_age] * len(given) if isinstance(max_age, int) else list(max_age)
    if min(asked, default=1) < 1:
        raise ModelError(f"max_age must be at least 1, got {min(asked)}")
    discount = checked_discount(discount)
    solved: dict[int, Indices] = {}
    for size in sorted({arm.states for arm in given}):
        places = [place for place, arm in enumerate(given) if arm.states == size]
        group = [given[place] for place in places]
        of_each = [asked[place] for place in places]
        solved.update(zip(places, _of_one_size(group, of_each, discount, limits), strict=True))
    return [solved[place] for place in range(len(given))]


def _of_one_size(
    arms: list[Arm], asked: list[int], discount: float | None, limits: Limits
) -> list[Indices]:
    """The indices of arms that have one number of states, each up to the age asked for."""
    models = Models(
        _arms_last([arm.passive / arm.passive.sum(1, keepdims=True) for arm in arms]),
        _arms_last([arm.active / arm.active.sum(1, keepdims=True) for arm in arms]),
        _arms_last([arm.reward_passive for arm in arms]),
        _arms_last([arm.reward_active for arm in arms]),
    )
    beta, ages = 1.0 if discount is None else discount, _ages(models, limits)
    found: dict[int, _Found] = {}
    suspects: list[int] = []
    for group in _alike(ages):
        followed, returns = _followed(
            taken(models, group), int(ages.cap[group].max()), beta, limits
        )
        found.update(zip(group.tolist(), followed, strict=True))
        suspects += group[returns].tolist()
    if suspects:
        witnesses = _witnesses(
            taken(models, np.array(suspects)), int(ages.cap[suspects].max()), beta
        )
        for place, witness in zip(suspects, witnesses, strict=True):
            found[place] = found[place].refuted(witness)
    solved = []
    for place, (arm, max_age) in enumerate(zip(arms, asked, strict=True)):
        cap = int(ages.cap[place])
        if place not in found:
            answer = _dense(arm, max_age, cap, discount, limits)
        elif not ages.settled[place]:
            [sooner], _ = _followed(taken(models, np.array([place])), cap // 2, beta, limits)
            answer = _cut(found[place], sooner, max_age, limits.settling_states // arm.states)
        elif found[place].indexable is None and 1 + arm.states * cap <= limits.dense_states:
            answer = _dense(arm, max_age, cap, discount, limits)
        else:
            answer = found[place].to(max_age)
        solved.append(answer)
    return solved


def _arms_last(arrays: list[FloatArray]) -> FloatArray:
    return np.stack(arrays, -1)


class _Ages(NamedTuple):
    """forgets: (B,), whether the belief has one limit; cap: (B,), the age past which an arm counts
    as never observed; settled: (B,), whether that is right."""

    forgets: BoolArray
    cap: IntArray
    settled: BoolArray


def _ages(models: Models, limits: Limits) -> _Ages:
    S = len(models.reward_active)
    most = limits.settling_states // S
    passive = np.moveaxis(models.passive, -1, 0)
    first = np.moveaxis(models.active - limiting_distributions(models.passive), -1, 0)

    def unsettled(deviations: FloatArray) -> BoolArray:
        return np.asarray(np.abs(deviations).sum(2).max(1) / 2 > _SETTLED)

    age, deviations = last_unsettled(first, passive, unsettled, most)
    settled = (age + 1 < most) | ~unsettled(deviations @ passive)
    cap = np.where(settled, age + 1, limits.cut_states // S)
    return _Ages(forgets(models.passive), cap, settled)


def _alike(ages: _Ages) -> Iterator[IntArray]:
    """Arms that forget, in groups of like ages, those that take longest first."""
    order = np.argsort(-ages.cap, kind="stable")
    order = order[ages.forgets[order]]
    while order.size:
        caps = ages.cap[order]
        alike, similar = (
            (caps * factor >= caps[0]).sum() for factor in (_NEAR_FACTOR, _FAR_FACTOR)
        )
        size = max(alike, min(similar, _SMALL_GROUP))
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
        """Every age to max_age: those past the cap are never observed."""
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


def _cut(found: _Found, sooner: _Found, max_age: int, most: int) -> Indices:
    """The indices of an arm that was cut too early, found with two caps: those that agree."""
    both = [each.to(max_age) for each in (found, sooner)]
    index, other = (np.append(each.never_seen or 0.0, each.index) for each in both)
    finite = np.abs(index[np.isfinite(index)])
    size = float(finite.max()) if finite.size else 0.0
    with np.errstate(invalid="ignore"):
        known = (index == other) | (np.abs(index - other) <= _CUT_TOLERANCE * size)
    known[1:].reshape(both[0].index.shape)[:, sooner.index.shape[1] :] = False
    index = np.where(known, index, np.nan)
    return replace(
        both[0],
        index=index[1:].reshape(both[0].index.shape),
        never_seen=float(index[0]),
        **_slow(most, found.index.shape[1]),
    )


def _slow(most: int, cap: int) -> dict[str, Any]:
    """The verdict on an arm that was cut too early."""
    reason = (
        f"takes more than {most:,} slots to forget what was observed: "
        f"an index that depends on ages beyond {cap // 2:,} is not known"
    )
    return {"indexable": None, "reason": reason, "witness": None}


def _followed(
    models: Models, cap: int, beta: float, limits: Limits
) -> tuple[list[_Found], BoolArray]:
    """Each arm by parametric policy iteration, and whether a state may have come back, (B,)."""
    B = models.reward_active.shape[1]
    signs = _Signs(B, limits.value)
    never, index, finished = follow(models, cap, beta, signs, 1 + cap // _PIECE_AGES)
    doubtful = signs.ill | ~finished
    found = [
        _Found(float(never[b]), index[..., b].T, None if doubtful[b] else True) for b in range(B)
    ]
    return found, signs.returns & ~doubtful


def _witnesses(models: Models, cap: int, beta: float) -> list[tuple[int, int, float, float] | None]:
    """A witness for each arm, if there is one."""
    S, B = models.reward_active.shape
    changes = _ChangesBack(cap, S, B)
    follow(models, cap, beta, changes)
    return [changes.witness(b) for b in range(B)]


def _name(s: int, age: int) -> str:
    return f"state {s} seen {age} slot{'s' * (age != 1)} ago"


class _Signs:
    """Signs that an arm may not be indexable: a passive state comes near to active, or values
    are so large that rounding counts; returns, ill: (B,)."""

    def __init__(self, B: int, large: float) -> None:
        self.returns, self.ill = np.zeros(B, bool), np.zeros(B, bool)
        self._large = large

    def __call__(self, places: IntArray, batch: Batch, interval: Interval) -> None:  # noqa: ARG002 - as _ChangesBack
        near = np.flatnonzero((interval.after.advantage > -_NEARLY_ACTIVE) & ~interval.before.plays)
        rises = (
            interval.after.advantage.ravel()[near] - interval.before.advantage.ravel()[near]
            > _MIN_RISE
        )
        self.returns[places[near[rises] % places.size]] = True
        self.ill[places[interval.segment.size > self._large]] = True


class _ChangesBack:
    """The clearest change back of each state of each arm, from places inside intervals."""

    def __init__(self, J: int, S: int, B: int) -> None:
        self._deepest = np.zeros((J, S, B))  # how clearly passive it ever was, and where
        self._low = np.zeros((J, S, B))
        self._margin = np.zeros((J, S, B))  # of the clearest witness
        self._ends = np.zeros((2, J, S, B))

    def __call__(self, places: IntArray, batch: Batch, interval: Interval) -> None:
        for share in _PLACES:
            self._compare(places, batch, interval, share)

    def _compare(self, places: IntArray, batch: Batch, interval: Interval, share: float) -> None:
        segment = interval.segment
        wide = segment.rising * segment.end > _CLEAR  # elsewhere lambda stands
        advantage = later(
            segment.value + segment.slope * (segment.end * share), interval.beta, 0.0
        ).advantage
        subsidy = segment.subsidy + segment.rising * (segment.end * share)
        subsidy = np.broadcast_to(subsidy * batch.scale + batch.shift, advantage.shape)
        deepest, low = self._deepest[..., places], self._low[..., places]
        margin, ends = self._margin[..., places], self._ends[..., places]

        clear = np.minimum(advantage, deepest)
        back = wide & (clear > np.maximum(margin, _CLEAR))
        self._margin[..., places] = np.where(back, clear, margin)
        self._ends[..., places] = np.where(back, np.stack([low, subsidy]), ends)
        passive = wide & (-advantage > np.maximum(deepest, _CLEAR))
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


def _dense(arm: Arm, max_age: int, cap: int, discount: float | None, limits: Limits) -> Indices:
    """By the dense solver; cap: where the ages end if the arm forgets."""
    S, most = arm.states, (limits.dense_states - 1) // arm.states
    if expansion(arm, 1).wrap:  # all ages of the last period have settled
        cap = min(settled_age(arm, _SETTLED, most) + period(arm.passive) - 1, most)
    wrap = expansion(arm, cap).wrap

    def name(row: int) -> str:
        return "never seen" if row == 0 else _name((row - 1) // cap, (row - 1) % cap + 1)

    # No exact arithmetic: beliefs are rounded, and ages end where they have nearly settled.
    found = finite_indices(expand(arm, cap), discount, name, max_exact_states=0)
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
    if wrap and cap == most:
        return Indices(np.full_like(index, np.nan), never_seen=np.nan, **_slow(most, cap))
    return Indices(index, found.indexable, found.reason, witness, never)
