"""Whittle indices of arms observed when played, many arms at once.

The information states of such an arm, (s, k) and never observed, are those of
`rmab.model.expansion`; `rmab.planning.index.parametric` follows their optimal policies along the
subsidy line.

    information_indices  with a verdict, on NumPy
    information_table    only indices, on NumPy and JAX, with ages up to a given cap

The verdict:

- Ages end where the belief has settled: past that age an arm counts as never observed. The index
  therefore does not depend on `max_age`. The verdict on an arm that takes too many information
  states to settle is undecided. It is cut earlier (`Limits`), and once more at half that age: an
  index that differs between both depends on the cut, is not known, and NaN.
- An arm whose passive chain does not forget (several recurrent classes, or a period) goes to the
  dense solver, `rmab.planning.index.finite`, with its ages wrapped.
- True: no passive state came near to being active again.
- False: followed once more, a state is clearly passive inside one interval of subsidies and clearly
  active at a higher one inside the same or a later interval: the witness.
- The rest is doubtful: hardly connected classes, states that come near without a witness. There the
  dense solver decides; where the arm is too large for it, the verdict is undecided.

Reference: P. Whittle, "Restless bandits: activity allocation in a changing world", J. Appl. Prob.
25A, 1988.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rmab.arrays import Array, Bool, BoolArray, Float, FloatArray, Int, IntArray
from rmab.errors import ModelError
from rmab.linalg import array_namespace
from rmab.markov import forgets, limiting_distributions, period
from rmab.model.arms import Arm
from rmab.model.expansion import expand, expansion, last_unsettled, settled_age
from rmab.model.information import NEVER
from rmab.planning.index.finite import (
    Indices,
    changes_back,
    checked_discount,
    finite_indices,
)
from rmab.planning.index.parametric import ArmBatch, Models, StepRecord, follow, later, taken

__all__ = ["Limits", "information_indices", "information_table"]

_SETTLED = 1e-13  # beliefs this close to their limit, in total variation, have settled
_NEAR_FACTOR = 1.5  # arms whose ages end within this factor are followed together
_FAR_FACTOR = 2.5  # few arms are followed together within this factor
_SMALL_GROUP = 100  # size of a group of few arms
_PIECE_AGES = 50  # ages for each piece of a path
_NEARLY_ACTIVE = 1e-9  # a passive state this near to active may come back
_MIN_RISE = 1e-12  # smaller rises of an advantage are rounding
_CLEAR = 1e-9  # larger advantages are not rounding
_CUT_TOLERANCE = 1e-9  # indices this close, relative to the largest, do not depend on the cut
_SHARES = (1 / 16, 1 / 2, 15 / 16)  # points of a step at which the second pass compares


@dataclass(frozen=True)
class Limits:
    """Limits of the solvers.

    settling_states: an arm that takes more information states to settle is cut at cut_states;
    dense_states: largest arm of the dense solver; value: larger values, per age, belong to hardly
    connected classes, which go to the dense solver.
    """

    settling_states: int = 20_000
    cut_states: int = 6_000
    dense_states: int = 2_000
    value: float = 3e3


_DEFAULT_LIMITS = Limits()


def information_table(
    passive: Float[Array, "S S *#B"],
    active: Float[Array, "S S *#B"],
    reward_passive: Float[Array, " S *#B"],
    reward_active: Float[Array, " S *#B"],
    max_age: int,
) -> Float[Array, "I ..."]:
    """Compute Whittle indices of information states up to an age; older arms are never observed.

    Arguments broadcast in B; the rows of the result are those of `information_states`. Average
    reward. A state of an arm that is not indexable has the lowest subsidy above which it is
    passive. Runs on NumPy in float64 and, also under `jax.jit`, on JAX; always finite.

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
    """Compute the indices of the information states of each arm; `observed` is ignored.

    max_age is one for all arms or one for each; discount None is average reward.

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
    """Compute the indices of arms of one size, each up to the age asked for."""
    models = Models(
        _arms_last([arm.passive / arm.passive.sum(1, keepdims=True) for arm in arms]),
        _arms_last([arm.active / arm.active.sum(1, keepdims=True) for arm in arms]),
        _arms_last([arm.reward_passive for arm in arms]),
        _arms_last([arm.reward_active for arm in arms]),
    )
    beta, ages = 1.0 if discount is None else discount, _ages(models, limits)
    found: dict[int, _CappedIndices] = {}
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
    """forgets: whether the belief has one limit; cap: age past which an arm counts as never
    observed; settled: whether the belief has settled there."""

    forgets: Bool[BoolArray, " B"]
    cap: Int[IntArray, " B"]
    settled: Bool[BoolArray, " B"]


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
    """Yield arms that forget in groups of similar ages, the slowest first."""
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
class _CappedIndices:
    """Indices of one arm up to its cap, index (S, cap); witness: (s, k - 1, low, high)."""

    never_seen: float
    index: FloatArray
    indexable: bool | None
    witness: tuple[int, int, float, float] | None = None

    def refuted(self, witness: tuple[int, int, float, float] | None) -> _CappedIndices:
        """Return the indices with a witness, or in doubt without one."""
        return replace(self, indexable=None if witness is None else False, witness=witness)

    def to(self, max_age: int) -> Indices:
        """Return the indices of every age to max_age: past the cap those of never observed."""
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


def _cut(found: _CappedIndices, sooner: _CappedIndices, max_age: int, most: int) -> Indices:
    """Return the indices of an arm that was cut too early where those of two caps agree."""
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
    """Return the verdict on an arm that was cut too early."""
    reason = (
        f"takes more than {most:,} slots to forget what was observed: "
        f"an index that depends on ages beyond {cap // 2:,} is not known"
    )
    return {"indexable": None, "reason": reason, "witness": None}


def _followed(
    models: Models, cap: int, beta: float, limits: Limits
) -> tuple[list[_CappedIndices], BoolArray]:
    """Follow each arm by parametric policy iteration; return also where a state may come back."""
    B = models.reward_active.shape[1]
    signs = _Signs(B, limits.value)
    never, index, finished = follow(models, cap, beta, signs, 1 + cap // _PIECE_AGES)
    doubtful = signs.ill | ~finished
    indices = [
        _CappedIndices(float(never[b]), index[..., b].T, None if doubtful[b] else True)
        for b in range(B)
    ]
    return indices, signs.returns & ~doubtful


def _witnesses(models: Models, cap: int, beta: float) -> list[tuple[int, int, float, float] | None]:
    """Search a witness for each arm."""
    S, B = models.reward_active.shape
    changes = _ChangesBack(cap, S, B)
    follow(models, cap, beta, changes)
    return [changes.witness(b) for b in range(B)]


def _name(s: int, age: int) -> str:
    return f"state {s} seen {age} slot{'s' * (age != 1)} ago"


class _Signs:
    """Signs that an arm may not be indexable: a passive state comes near to active (returns), or
    values are so large that rounding matters (ill)."""

    def __init__(self, B: int, large: float) -> None:
        self.returns, self.ill = np.zeros(B, bool), np.zeros(B, bool)
        self._large = large

    def __call__(self, places: IntArray, batch: ArmBatch, record: StepRecord) -> None:  # noqa: ARG002 - as _ChangesBack
        near = np.flatnonzero((record.after.advantage > -_NEARLY_ACTIVE) & ~record.before.plays)
        rises = (
            record.after.advantage.ravel()[near] - record.before.advantage.ravel()[near] > _MIN_RISE
        )
        self.returns[places[near[rises] % places.size]] = True
        self.ill[places[record.segment.size > self._large]] = True


class _ChangesBack:
    """Clearest change back of each state of each arm, from points inside steps."""

    def __init__(self, J: int, S: int, B: int) -> None:
        self._deepest = np.zeros((J, S, B))  # largest advantage of passive
        self._low = np.zeros((J, S, B))  # subsidy of that advantage
        self._margin = np.zeros((J, S, B))  # of the clearest witness
        self._ends = np.zeros((2, J, S, B))

    def __call__(self, places: IntArray, batch: ArmBatch, record: StepRecord) -> None:
        for share in _SHARES:
            self._compare(places, batch, record, share)

    def _compare(self, places: IntArray, batch: ArmBatch, record: StepRecord, share: float) -> None:
        segment = record.segment
        wide = segment.subsidy_slope * segment.end > _CLEAR  # elsewhere lambda is constant
        advantage = later(
            segment.value + segment.slope * (segment.end * share), record.beta, 0.0
        ).advantage
        subsidy = segment.subsidy + segment.subsidy_slope * (segment.end * share)
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
        """Return (s, k - 1, low, high) with the widest margin, or None."""
        margin = self._margin[..., b]
        age, s = np.unravel_index(int(margin.argmax()), margin.shape)
        if not margin[age, s] > 0:
            return None
        low, high = self._ends[:, age, s, b].tolist()
        return int(s), int(age), low, high


def _dense(arm: Arm, max_age: int, cap: int, discount: float | None, limits: Limits) -> Indices:
    """Compute the indices by the dense solver; an arm that forgets has ages up to cap."""
    S, most = arm.states, (limits.dense_states - 1) // arm.states
    if expansion(arm, 1).wrap:  # all ages of the last period have settled
        cap = min(settled_age(arm, _SETTLED, most) + period(arm.passive) - 1, most)
    wrap = expansion(arm, cap).wrap

    def name(row: int) -> str:
        return "never seen" if row == 0 else _name((row - 1) // cap, (row - 1) % cap + 1)

    # No exact arithmetic: beliefs are rounded, and ages end where they have nearly settled.
    dense = finite_indices(expand(arm, cap), discount, name, max_exact_states=0)
    never, by_age = float(dense.index[0]), dense.index[1:].reshape(S, cap)
    index = np.full((S, max_age), never)
    index[:, :cap] = by_age[:, :max_age]
    if wrap and max_age > cap:
        index[:, cap:] = by_age[:, cap - wrap + np.arange(max_age - cap) % wrap]
    witness = None
    if dense.witness is not None:
        row, low, high = dense.witness
        assert isinstance(row, int)
        state = ((row - 1) // cap, (row - 1) % cap + 1) if row else (None, NEVER)
        witness = (state, low, high)
    if wrap and cap == most:
        return Indices(np.full_like(index, np.nan), never_seen=np.nan, **_slow(most, cap))
    return Indices(index, dense.indexable, dense.reason, witness, never)
