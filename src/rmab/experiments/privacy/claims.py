"""Costs of noise, liars, strangers and false totals for agents that draw for themselves.

The paper's arms, `fedtswi-gap` with 8 gaps, linear rounds, draws = "own". The study sweeps epsilon
and the number of agents. This module adds the cases that no sweep can state: isolated agents; no
noise; *liars*, who claim of arms 2 and 3 that they played both in every slot and saw outcomes of
p01 = p11 = .05; *strangers*, whose arms move as arms 2 1 4 3 do; a false total, and a false total
of one of five groups; and Fed1-UCB with noise, which has no memory of states.

Loss is the reward per agent and slot below Whittle indices with known dynamics on the same trials.
Where the loss of some agents is measured, the rewards of the others count a thousandth, which
changes no rank of an index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rmab.experiments.estimates import with_known_error
from rmab.experiments.figure import Figure, FigureResult
from rmab.experiments.verdict import Claim, Effect, Estimate
from rmab.linalg import Array, array_namespace
from rmab.model.arms import Arms, channels
from rmab.policies.aggregation import Sum
from rmab.policies.registry import named
from rmab.studies.results import Curve
from rmab.studies.study import Study
from rmab.studies.sweep import Point

__all__ = ["BASELINE", "LEARNER", "WithLies", "curves", "extend", "judge", "levels"]

LEARNER, BASELINE, KNOWN = "fedtswi-gap", "fed1-ucb", "whittle"
_CLAIMED = 0.05  # p01 and p11 that liars claim
_LIED_OF = (1, 2)  # arms, from 0
_STRANGE = (1, 0, 3, 2)  # the arm whose dynamics each arm of a stranger has
_LIARS, _STRANGERS, _AMONG, _GROUPS = 3, 4, 16, 5
_MORE_DOUBT = 0.3
_UNREAD = 1e-3  # factor of rewards that are not measured

_ALONE = "alone"
_LYING = f"M = {_AMONG}, {_LIARS} liars: honest agents"
_REPLACED = f"M = {_AMONG}, the sum is a lie"
_GROUPED = f"M = {_AMONG}, {_GROUPS} groups"
_GROUP_REPLACED = f"{_GROUPED}, the sum of one is a lie"
_STRANGE_ONES = f"M = {_AMONG}, {_STRANGERS} strangers: strangers"
_OTHERS = f"M = {_AMONG}, {_STRANGERS} strangers: the others"
_SHARED = "one draw for all"
# Largest loss per slot that is claimed, by M and epsilon (None: no noise).
_TO_REACH: Mapping[tuple[int, float | None], float] = {
    (16, None): 0.003,
    (4, 1.0): 0.0095,
    (16, 1.0): 0.008,
    (64, 1.0): 0.0045,
    (4, 8.0): 0.007,
    (16, 8.0): 0.004,
    (64, 8.0): 0.003,
}
_MOST_BY_LIARS = _MOST_BY_GROUP = 0.005
_LEAST_OF_STRANGERS, _LEAST_OF_OTHERS = -0.005, 0.0
_MOST_BY_NOISE = 0.001


@dataclass(frozen=True)
class WithLies(Sum):
    """Sum of counts in which liars, agents numbered from 0, make up those of some arms."""

    running: bool = False
    liars: tuple[int, ...] = ()
    plays: int = 2

    def combine(self, counts: Array, weights: Array) -> Array:
        """Sum counts; pairs, (C, 2, 2, N, M, R), have lies, other counts are true."""
        if counts.ndim < 6:
            return super().combine(counts, weights)
        xp = array_namespace(counts)
        slots = counts.sum((0, 1, 2, 3)) / self.plays  # (M, R)
        row = np.array([1 - _CLAIMED, _CLAIMED], np.float32)
        first = (np.arange(counts.shape[0]) == 0).astype(np.float32)
        cells = (first[:, None, None] * np.outer(row, row))[..., None, None, None]
        agents, arms = np.arange(counts.shape[-2]), np.arange(counts.shape[-3])
        lies = np.isin(arms, _LIED_OF)[:, None, None] & np.isin(agents, self.liars)[:, None]
        return super().combine(xp.where(lies, cells * slots, counts), weights)


# -------------------------------------------------------------------------------------------- cases


def extend(figure: Figure) -> Figure:
    """Add the cases to the sweep's points; each has the trials of the sweep's M agents."""
    study = figure.variants[0].study
    trials = {point.study.agents: point.study.trials for point in figure.variants}
    budgets = [point.study.budget for point in figure.variants if point.study.agents == min(trials)]
    epsilons = [budget.epsilon for budget in budgets if budget is not None]

    def of(agents: int, **changes: Any) -> Study:
        without = {"agents": agents, "trials": trials[agents], "privacy": None}
        return replace(study, **{**without, **changes})

    def lying(liars: Iterable[int], **changes: Any) -> Study:
        lies = WithLies(liars=tuple(liars), plays=study.plays)
        options = {**study.options[LEARNER], "aggregation": lies}
        policy = named(LEARNER, study.horizon, options)
        return of(_AMONG, policies=(policy, KNOWN), options={}, **changes)

    shared = {"draws": "shared"}
    alone = {**shared, "aggregation": "none"}
    few, everybody = min(trials), range(_AMONG)
    last, groups = everybody[-_LIARS:], {"privacy": {"groups": _GROUPS}}
    cases = {
        _ALONE: of(few, **alone),
        **{_at(agents): of(agents) for agents in trials},
        f"{_at(few, 1.0)}, {_SHARED}": of(few, privacy={"epsilon": 1.0}, **shared),
        _LYING: _read(lying(last), _LIARS, others=True),
        f"{_LYING}, {_SHARED}": _read(lying(last, **shared), _LIARS, others=True),
        _REPLACED: lying(everybody),
        f"{_REPLACED}, doubt {_MORE_DOUBT:g}": lying(everybody, doubt=_MORE_DOUBT),
        f"{_REPLACED}, {_SHARED}": lying(everybody, **shared),
        _GROUPED: of(_AMONG, **groups),
        _GROUP_REPLACED: lying(everybody[::_GROUPS], **groups),
        _STRANGE_ONES: _strangers(of(_AMONG), others=False),
        f"{_STRANGE_ONES}, {_ALONE}": _strangers(of(_AMONG, **alone), others=False),
        f"{_STRANGE_ONES}, {_SHARED}": _strangers(of(_AMONG, **shared), others=False),
        _OTHERS: _strangers(of(_AMONG), others=True),
    }
    for agents in trials:
        for epsilon in epsilons:
            cases[f"{BASELINE}, {_at(agents, epsilon)}"] = of(
                agents,
                policies=(BASELINE, KNOWN),
                options={BASELINE: {"epsilon": epsilon}},
                **shared,
            )
    swept = [
        replace(point, label=_at(point.study.agents, point.study.budget.epsilon))
        for point in figure.variants
        if point.study.budget is not None
    ]
    more = [Point(label, each) for label, each in cases.items()]
    return replace(figure, variants=(*swept, *more))


def _at(agents: int, epsilon: float | None = None) -> str:
    return f"M = {agents}, " + ("no noise" if epsilon is None else f"epsilon = {epsilon:g}")


def _channels(arms: Arms, share: float, order: Sequence[int]) -> Arms:
    """Channels with a share of the rewards and the dynamics in another order."""
    moves = list(order)
    return channels(arms.p01[moves], arms.p11[moves], share * arms.reward)


def _read(study: Study, apart: int, *, others: bool, order: Sequence[int] = (0, 1, 2, 3)) -> Study:
    """Study in which the rewards of the last agents count, or those of the others.

    order: the arms whose dynamics the last agents have.
    """
    last = list(range(study.agents - apart + 1, study.agents + 1))
    theirs = _channels(study.arms, _UNREAD if others else 1.0, order)
    mine = _channels(study.arms, 1.0 if others else _UNREAD, (0, 1, 2, 3))
    return replace(study, arms=mine, agent=[{"agents": last, "arms": theirs}])


def _strangers(study: Study, *, others: bool) -> Study:
    return _read(study, _STRANGERS, others=others, order=_STRANGE)


# ------------------------------------------------------------------------------------------- claims


class _Losses:
    """Losses of a figure's cases, per slot and agent whose rewards count, with standard errors."""

    def __init__(self, done: FigureResult) -> None:
        runs = zip(done.figure.variants, done.results, strict=False)
        self.results = {variant.label: results for variant, results in runs}

    def of(self, label: str) -> Estimate:
        results = self.results[label]
        loss = Estimate(*results.difference(KNOWN, next(iter(results))))
        return loss.times(1 / _share(label))

    def trials(self, *labels: str) -> int:
        """Trials, the fewest of these cases."""
        return min(self.results[label].trials for label in labels)

    def __contains__(self, label: str) -> bool:
        return label in self.results


def _share(label: str) -> float:
    """Share of the agents whose rewards count."""
    for case, read in (
        (_LYING, _AMONG - _LIARS),
        (_STRANGE_ONES, _STRANGERS),
        (_OTHERS, _AMONG - _STRANGERS),
    ):
        if label.startswith(case):
            return read / _AMONG
    return 1.0


def curves(done: FigureResult, name: str) -> dict[int, tuple[list[float], Curve]]:
    """Epsilons by M, and the loss of a policy at each of them, as far as they were run."""
    losses = _Losses(done)
    before = f"{BASELINE}, " if name == BASELINE else ""
    found: dict[int, tuple[list[float], Curve]] = {}
    swept = {(v.study.agents, b.epsilon) for v in done.figure.variants if (b := v.study.budget)}
    for agents in sorted({agents for agents, _ in swept}):
        at = sorted(e for m, e in swept if m == agents and before + _at(m, e) in losses)
        if at:
            mean, se = np.array([losses.of(before + _at(agents, e)) for e in at]).T
            found[agents] = at, Curve(mean, se)
    return found


def levels(done: FigureResult) -> dict[str, Estimate]:
    """Losses that do not depend on epsilon: of isolated agents, and by M without noise."""
    losses = _Losses(done)
    agents = sorted({variant.study.agents for variant in done.figure.variants})
    wanted = [_ALONE, *(_at(m) for m in agents)]
    return {label: losses.of(label) for label in wanted if label in losses}


def judge(done: FigureResult) -> list[Claim]:
    losses = _Losses(done)
    for name in (LEARNER, BASELINE):
        for agents, (at, curve) in curves(done, name).items():
            done.series["epsilon"] = np.array(at)
            done.series[f"loss of {name}, M = {agents}"] = curve.mean
            done.series[f"loss of {name}, M = {agents}, se"] = curve.se
    return [
        *(_reached(losses, *case, bar) for case, bar in _TO_REACH.items()),
        _noise_hardly_costs(losses, done),
        _liars(losses),
        *_with_strangers(losses),
        _whole_sum(losses),
        _one_group(losses),
        _one_draw(losses),
        _baseline(done),
    ]


def _shown(estimate: tuple[float, float]) -> str:
    return with_known_error(*estimate, ".4f")


def _reached(losses: _Losses, agents: int, epsilon: float | None, bar: float) -> Claim:
    label = _at(agents, epsilon)
    found = losses.of(label)
    return Claim(
        f"{label}: agents lose at most {bar:g} a slot.",
        f"a loss of {_shown(found)}; alone {_shown(losses.of(_ALONE))}.",
        [Effect("the loss", *found, bar, "below", None, losses.trials(label))],
    )


def _noise_hardly_costs(losses: _Losses, done: FigureResult) -> Claim:
    """Claim a bound at every point of the sweep with epsilon of 1 or more."""
    alone = losses.of(_ALONE)
    more = [
        Effect(
            _at(agents, e),
            *Estimate(mean, se).less(alone),
            _MOST_BY_NOISE,
            "below",
            trials=losses.trials(_at(agents, e), _ALONE),
        )
        for agents, (at, curve) in curves(done, LEARNER).items()
        for e, mean, se in zip(at, curve.mean.tolist(), curve.se.tolist(), strict=True)
        if e >= 1
    ]
    worst = max(more, key=lambda effect: effect.value)
    return Claim(
        f"With epsilon of 1 or more nobody loses more than alone by above {_MOST_BY_NOISE:g}.",
        f"at most {_shown((worst.value, worst.se))} more than alone, at {worst.of}.",
        more,
    )


def _liars(losses: _Losses) -> Claim:
    labels = _LYING, _at(_AMONG)
    honest, none = map(losses.of, labels)
    worse = honest.less(none)
    return Claim(
        f"{_LIARS} plausible liars of {_AMONG} cost honest agents at most {_MOST_BY_LIARS:g}.",
        f"{_shown(worse)}: {_shown(honest)} among liars, {_shown(none)} without; by {_SHARED} they "
        f"lose {_shown(losses.of(f'{_LYING}, {_SHARED}'))} among liars.",
        [Effect("the cost", *worse, _MOST_BY_LIARS, "below", None, losses.trials(*labels))],
    )


def _with_strangers(losses: _Losses) -> list[Claim]:
    labels = [_STRANGE_ONES + more for more in ("", f", {_ALONE}")]
    own, alone = map(losses.of, labels)
    shared = losses.of(f"{_STRANGE_ONES}, {_SHARED}")
    gain, others = alone.less(own), losses.of(_ALONE).less(losses.of(_OTHERS))
    return [
        Claim(
            f"{_STRANGERS} strangers of {_AMONG} earn at most {-_LEAST_OF_STRANGERS:g} less than "
            "alone.",
            f"{_shown(gain)} more: they lose {_shown(own)}, alone {_shown(alone)}, by {_SHARED} "
            f"{_shown(shared)}.",
            [Effect("the gain", *gain, _LEAST_OF_STRANGERS, trials=losses.trials(*labels))],
        ),
        Claim(
            f"Those among whom {_STRANGERS} strangers are earn no less than alone.",
            f"{_shown(others)} more.",
            [Effect("the gain", *others, _LEAST_OF_OTHERS, trials=losses.trials(_ALONE, _OTHERS))],
        ),
    ]


def _whole_sum(losses: _Losses) -> Claim:
    labels = (f"{_REPLACED}, {_SHARED}", _REPLACED, f"{_REPLACED}, doubt {_MORE_DOUBT:g}")
    paid = [losses.results[label][LEARNER] for label in labels]
    shared, own, doubting = (_shown((each.mean, each.se)) for each in paid)
    return Claim(
        "A whole sum that is a lie still costs agents; more doubt makes it less.",
        f"{_AMONG} agents earn {shared} a slot by {_SHARED}, {own} by their own, {doubting} with "
        f"doubt = {_MORE_DOUBT:g}.",
    )


def _one_group(losses: _Losses) -> Claim:
    lied, honest = losses.of(_GROUP_REPLACED), losses.of(_GROUPED)
    worse = lied.less(honest)
    return Claim(
        f"One of {_GROUPS} groups' sums that is a lie costs {_AMONG} agents at most "
        f"{_MOST_BY_GROUP:g}.",
        f"{_shown(worse)}: {_shown(lied)} with the lie, {_shown(honest)} without; "
        f"{_shown(losses.of(_at(_AMONG)))} where there are no groups.",
        [
            Effect(
                "the cost",
                *worse,
                _MOST_BY_GROUP,
                "below",
                trials=losses.trials(_GROUP_REPLACED, _GROUPED),
            )
        ],
    )


def _one_draw(losses: _Losses) -> Claim:
    few = _at(4, 1.0)
    return Claim(
        "One draw for all from sums with noise costs few agents more than they gain.",
        f"{few}: {_shown(losses.of(f'{few}, {_SHARED}'))}, by their own draws "
        f"{_shown(losses.of(few))}, alone {_shown(losses.of(_ALONE))}.",
    )


def _baseline(done: FigureResult) -> Claim:
    parts = [
        f"M = {agents}: " + ", ".join(f"{mean:.3f}" for mean in curve.mean)
        for agents, (_, curve) in curves(done, BASELINE).items()
    ]
    at, _ = next(iter(curves(done, BASELINE).values()))
    return Claim(
        "Fed1-UCB with noise in each agent's means, which has no memory of states, for comparison.",
        f"losses at epsilon = {', '.join(f'{e:g}' for e in at)}: {'; '.join(parts)}.",
    )
