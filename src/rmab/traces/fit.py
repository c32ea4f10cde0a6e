"""Fit of a trace: whether a Markov chain is a fair model of it.

Effects are measured in two units, and there are no tests of significance: bits a slot that a model
could save (rmab.traces.code_length), and rewards of policies on the trace and on its replicates
(rmab.traces.replicates).

A series, one arm of one agent, is tested if it has 100 pairs of neighbouring slots and 8 changes.
Bits are of all tested series, a slot: b(model) = sum of code lengths / sum of n. The share of a
model is its gain over `iid`, divided by that of the best model:

    share(model) = (b(iid) - b(model)) / (b(iid) - b(best)).

Agents are alike as far as one chain for all of them, arm by arm, loses no bits. With b(one share)
and b(one chain) for tested series of an arm together,

    lost = (b(one chain) - b(order1)) / (b(one share) - b(order1)),

0 where one chain is as good as a chain for each agent, 1 where it is no better than one share.
Agents are correlated by rho, the correlation of the states of two agents on one arm in slots that
both measured: the mean over pairs, then over arms. M agents are then worth M / (1 + (M - 1) rho).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, permutations
from typing import Any, NamedTuple

import numpy as np

from rmab.traces.backtest import rewards_of_replicates
from rmab.traces.code_length import (
    HMM_PARAMETERS,
    MODELS,
    Piece,
    chain_bits,
    code_lengths,
    regimes_of,
    share_bits,
)
from rmab.traces.fitted_chains import fitted_chains, pair_counts
from rmab.traces.misclassified_hmm import fit_misclassified_hmm
from rmab.traces.pairs import Floats, States, by_series, pairs_of
from rmab.traces.replicates import N_REPLICATES, replicates_of
from rmab.traces.summaries import SummaryStatistics, summary_statistics
from rmab.traces.trace import MISSING, Trace, check_usable
from rmab.traces.verdicts import CORRELATED, DIFFER, FITS, UNKNOWN, Sizes, Verdict, verdicts_of

__all__ = [
    "POLICIES",
    "Fit",
    "FittedSeries",
    "ReplicatedReward",
    "fit_trace",
    "steps_of",
    "study_text",
]

POLICIES = ("stay", "myopic", "whittle", "genie")
_MIN_PAIRS = 100
_MIN_CHANGES = 8
_PLAYS = 1
_RANKED = ("stay", "myopic", "whittle")  # policies in order; the oracle is above them all
_AS_FITTING = {"agents correlated": "agents independent"}  # what would fit
_NEARLY_ALL = 0.95  # of the replicates
_MATTERS = 1 / 500  # of the reward
_STUDY_POLICIES = ("stay", "fedtswi-gap", "myopic", "whittle", "fixed-best")
_MAX_STUDY_HORIZON = 2000
_STUDY_TRIALS = 200


class FittedSeries(NamedTuple):
    """One arm as one agent measured it, with the models fitted to it."""

    agent: int
    arm: int
    p01: float  # (n01 + 1/2) / (n0 + 1)
    p11: float
    good: float  # share of measured slots
    pairs: int
    bits: Mapping[str, float]  # code length by model; empty where it is not tested
    pieces: tuple[Piece, ...]  # of `regimes`
    errors: tuple[float, float] | None  # of `flicker`: good seen when bad, bad seen when good


class ReplicatedReward(NamedTuple):
    """Average reward of a policy on the trace and on each of its replicates."""

    trace: float
    replicates: Floats  # (replicates,)


@dataclass(frozen=True, eq=False)
class Fit:
    """Models fitted to a trace, its summary statistics and replicates, and rewards on them.

    counts: (S, S, agents, arms), pairs by state and next state; replicate_state: the states of the
    first replicate.
    """

    trace: Trace
    counts: Floats
    series: tuple[FittedSeries, ...]
    summary: SummaryStatistics
    replicate_state: States
    replicates: tuple[SummaryStatistics, ...]
    earned: Mapping[str, ReplicatedReward]

    @cached_property
    def tested(self) -> list[FittedSeries]:
        """Series with enough pairs and changes."""
        return [each for each in self.series if each.bits]

    @cached_property
    def bits(self) -> dict[str, float | None]:
        """Bits a slot by model; None without a tested series, or a model of two states only."""
        n = sum(each.pairs for each in self.tested)
        known = self.tested[0].bits if self.tested else ()
        return {
            model: sum(each.bits[model] for each in self.tested) / n if model in known else None
            for model in MODELS
        }

    @cached_property
    def best(self) -> str:
        """Model of fewest bits; `iid` where nothing was tested."""
        return min(self.bits, key=lambda model: _or_inf(self.bits[model]))

    @cached_property
    def share(self) -> dict[str, float | None]:
        """Gain of each model over iid as a share of the best gain; None if there is no gain."""
        most = self._beyond_iid(self.best)
        if not most:
            return dict.fromkeys(MODELS)
        found = {model: self._beyond_iid(model) for model in MODELS}
        return {model: None if x is None else x / most for model, x in found.items()}

    def _beyond_iid(self, model: str) -> float | None:
        iid, bits = self.bits["iid"], self.bits[model]
        return None if iid is None or bits is None else iid - bits

    @cached_property
    def pooling_bits_lost(self) -> float | None:
        """Share of bits lost by one chain for all agents, from 0 to 1."""
        if not self.tested:
            return None
        own = sum(each.bits["order1"] for each in self.tested)
        one_chain = one_share = 0.0
        for arm in {each.arm for each in self.tested}:
            agents = [each.agent for each in self.tested if each.arm == arm]
            counts = self.counts[:, :, agents, arm].sum(-1)
            one_chain += chain_bits(counts)
            one_share += share_bits(counts.sum(0))
        lost, most = one_chain - own, one_share - own
        return float(np.clip(lost / most, 0, 1)) if most > 0 and lost > 0 else 0.0

    @cached_property
    def correlation(self) -> float | None:
        """Correlation of two agents on one arm; None if no two have common slots."""
        return _mean(self.summary.agents)

    @cached_property
    def effective(self) -> float:
        """Number of independent agents of equal worth; negative correlation counts as 0."""
        M = self.n_agents
        return M / (1 + (M - 1) * max(self.correlation or 0.0, 0.0))

    @cached_property
    def n_agents(self) -> int:
        """Number of agents that measured anything."""
        return len({each.agent for each in self.series})

    @cached_property
    def errors(self) -> tuple[float | None, float | None]:
        """Errors of the misclassified HMM, e0 and e1: medians over tested series."""
        both = [each.errors for each in self.tested if each.errors is not None]
        if not both:
            return None, None
        good_when_bad, bad_when_good = np.median(both, axis=0)
        return float(good_when_bad), float(bad_when_good)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Verdicts on the six questions."""
        order1, regimes, flicker = (self.share[m] for m in ("order1", "regimes", "flicker"))
        saved, iid = self._beyond_iid("order1"), self.bits["iid"]
        chances = [_mean(each.agents) or 0.0 for each in self.replicates]
        good_when_bad, bad_when_good = self.errors
        return verdicts_of(
            Sizes(
                tested=bool(self.tested),
                memory=saved / iid if saved is not None and iid else 0.0,
                order=order1,
                best=self.best,
                regimes=regimes,
                changed=self.regimes[1] or 0.0,
                flicker=flicker,
                good_when_bad=good_when_bad,
                bad_when_good=bad_when_good,
                n_agents=self.n_agents,
                lost=self.pooling_bits_lost,
                correlation=self.correlation,
                by_chance=max(chances),
                effective=self.effective,
            )
        )

    @cached_property
    def regimes(self) -> tuple[float | None, float | None]:
        """Median number of pieces of a tested series, and the share that has several."""
        pieces = [len(each.pieces) for each in self.tested]
        if not pieces:
            return None, None
        return float(np.median(pieces)), float(np.mean([n > 1 for n in pieces]))

    @cached_property
    def reversals(self) -> list[tuple[str, str]]:
        """Policies (a, b): a earns more than b on the trace, less on nearly all replicates."""
        return [
            (a, b)
            for a, b in permutations(_RANKED, 2)
            if self.earned[a].trace > self.earned[b].trace
            and (self.earned[a].replicates < self.earned[b].replicates).mean() >= _NEARLY_ALL
        ]

    @cached_property
    def reversal_matters(self) -> bool:
        """True if the order on replicates costs a five-hundredth of the reward or more."""
        earned = [(self.earned[a].trace, self.earned[b].trace) for a, b in self.reversals]
        return any(a - b >= _MATTERS * a for a, b in earned)

    @cached_property
    def in_short(self) -> str:
        """Questions that fit and questions that do not, in a sentence or two."""
        by_answer: dict[str, list[str]] = {answer: [] for answer in (FITS, "", UNKNOWN)}
        for v in self.verdicts:
            by_answer[v.answer if v.answer in (FITS, UNKNOWN) else ""].append(
                _AS_FITTING.get(v.question, v.question)
            )
        said = [
            f"{kind}: {', '.join(questions)}"
            for kind, questions in zip(
                ("Fits", "Does not fit", "Not known"), by_answer.values(), strict=True
            )
            if questions
        ]
        return ". ".join(said) + "."

    @cached_property
    def order_in_words(self) -> str:
        """Comparison of the order of policies on trace and replicates, in words."""
        if not self.reversals:
            return self._no_reversal()
        promised: dict[str, list[str]] = {}
        for a, b in self.reversals:
            promised.setdefault(b, []).append(a)
        said = ["The order reverses."]
        for b, others in promised.items():
            replicate = _against(b, others, {x: _on_replicates(e) for x, e in self.earned.items()})
            trace = _against(b, others, {x: _on_trace(e) for x, e in self.earned.items()})
            said.append(f"On its twins {b} earns more ({replicate}), on the trace less ({trace}).")
        if not self.reversal_matters:
            said.append("On the trace that is less than a five-hundredth of the reward.")
        return " ".join(said)

    def _no_reversal(self) -> str:
        trace, average = (
            sorted(_RANKED, key=lambda name: -reward(self.earned[name]))
            for reward in (_on_trace, _on_replicates)
        )
        order = ", ".join(average)
        if any(
            _on_trace(self.earned[a]) < _on_trace(self.earned[b])
            for a, b in combinations(average, 2)
        ):
            return (
                f"The order differs, but twins do not agree on theirs: {order} on their mean, "
                f"{', '.join(trace)} on the trace."
            )
        return f"The order is the same on trace and twins: {order}."

    def to_json(self) -> dict[str, Any]:
        """Return everything except the pictures; unknown numbers are None."""
        median, changed = self.regimes
        good_when_bad, bad_when_good = self.errors
        agents, arms = self.trace.agents, self.trace.arms
        return {
            "series": len(self.series),
            "tested": len(self.tested),
            "bits": self.bits,
            "share": self.share,
            "regimes": {"median": median, "changed": changed},
            "flicker": {"good_when_bad": good_when_bad, "bad_when_good": bad_when_good},
            "agents": {
                "correlation": self.correlation,
                "effective": self.effective,
                "pooling_bits_lost": self.pooling_bits_lost,
            },
            "twin": {
                name: {
                    "trace": each.trace,
                    "twin": float(each.replicates.mean()),
                    "low": float(each.replicates.min()),
                    "high": float(each.replicates.max()),
                }
                for name, each in self.earned.items()
            },
            "verdicts": [
                {"question": v.question, "size": v.size, "answer": v.answer, "so": v.so}
                for v in self.verdicts
            ],
            "arms": [
                {
                    "agent": agents[each.agent],
                    "arm": arms[each.arm],
                    "p01": each.p01,
                    "p11": each.p11,
                    "good": each.good,
                    "pairs": each.pairs,
                }
                for each in self.series
            ],
        }


def steps_of(trace: Trace) -> int:
    """Return the steps that `fit_trace` reports: replicates, and measured arms of agents."""
    return N_REPLICATES + int((by_series(trace.state) >= 0).any(-1).sum())


def fit_trace(trace: Trace, advance: Callable[[int], None] | None = None) -> Fit:
    """Compare a trace with the model: bits, agents, replicates.

    Parameters
    ----------
    advance : callable, optional
        Called with the number of steps just done, of `steps_of`.
    """
    check_usable(trace, "the trace")
    done = advance or (lambda _: None)
    summaries: list[SummaryStatistics] = []
    rewards: dict[str, list[Floats]] = {name: [] for name in POLICIES}
    first: States | None = None
    for replicates in replicates_of(trace):
        summaries += [summary_statistics(each, trace.segment, trace.states) for each in replicates]
        played = replicates
        if first is None:
            first = replicates[0].copy()
            played = np.concatenate([trace.state[None], replicates])  # one program for both
        in_order = np.moveaxis(_good_or_bad(played, trace.states), (2, 3, 1, 0), (0, 1, 2, 3))
        for name, each in rewards_of_replicates(in_order, trace.segment, _PLAYS, POLICIES).items():
            rewards[name].append(each)
        done(len(replicates))
    assert first is not None
    earned = {name: np.concatenate(each) for name, each in rewards.items()}
    counts = pair_counts(trace)
    return Fit(
        trace=trace,
        counts=counts,
        series=tuple(_series_of(trace, counts, done)),
        summary=summary_statistics(trace.state, trace.segment, trace.states),
        replicate_state=first,
        replicates=tuple(summaries),
        earned={name: ReplicatedReward(float(each[0]), each[1:]) for name, each in earned.items()},
    )


def _good_or_bad(state: States, states: int) -> States:
    """Return 1 for the highest state, 0 for all others, -1 where nothing was measured.

    Indices of more states take a second for each chain, and each replicate has its own chains.
    """
    if states == 2:
        return state
    return np.where(state < 0, MISSING, state == states - 1).astype(np.int8)


def _series_of(trace: Trace, counts: Floats, done: Callable[[int], None]) -> list[FittedSeries]:
    """Return every arm that an agent measured, in the order of agents and arms."""
    rows = by_series(trace.state)
    chances = fitted_chains(_good_and_not(counts))
    found = []
    for number in np.flatnonzero((rows >= 0).any(-1)).tolist():
        agent, arm = divmod(number, len(trace.arms))
        row = rows[number]
        pairs = pairs_of(row, trace.segment)
        n = len(pairs.next)
        bits: dict[str, float] = {}
        pieces: list[Piece] = []
        if n >= _MIN_PAIRS and np.count_nonzero(pairs.last != pairs.next) >= _MIN_CHANGES:
            bits = code_lengths(pairs, trace.states)
            bits["regimes"], pieces = regimes_of(pairs, trace.states)
        p01, p11 = (float(p) for p in chances[:, 1, agent, arm])
        good = float(np.mean(row[row >= 0] == trace.states - 1))
        found.append(FittedSeries(agent, arm, p01, p11, good, n, bits, tuple(pieces), None))
        done(1)
    return found if trace.states > 2 else _with_hmm(trace, rows, found)


def _good_and_not(counts: Floats) -> Floats:
    """Return pairs (2, 2, ...) of (S, S, ...) with all states below the highest as one."""
    rows = np.stack([counts[:-1].sum(0), counts[-1]])
    return np.stack([rows[:, :-1].sum(1), rows[:, -1]], axis=1)


def _with_hmm(trace: Trace, rows: States, series: list[FittedSeries]) -> list[FittedSeries]:
    """Return the series with the misclassified HMM, fitted to all tested ones at once."""
    tested = [each.agent * len(trace.arms) + each.arm for each in series if each.bits]
    if not tested:
        return series
    fitted = zip(*fit_misclassified_hmm(rows[tested], trace.segment), strict=True)
    found = []
    for each in series:
        if each.bits:
            _, _, good_when_bad, bad_when_good, needed = map(float, next(fitted))
            bits = needed + 0.5 * HMM_PARAMETERS * float(np.log2(each.pairs))
            found.append(
                each._replace(
                    bits={**each.bits, "flicker": bits}, errors=(good_when_bad, bad_when_good)
                )
            )
        else:
            found.append(each)
    return found


def _on_trace(earned: ReplicatedReward) -> float:
    return earned.trace


def _on_replicates(earned: ReplicatedReward) -> float:
    return float(earned.replicates.mean())


def _against(name: str, others: Sequence[str], rewards: Mapping[str, float]) -> str:
    """Return the reward of a policy beside those of others, in words."""
    theirs = " and ".join(f"{rewards[other]:.4f} of {other}" for other in others)
    return f"{rewards[name]:.4f} against {theirs}"


def _or_inf(bits: float | None) -> float:
    return float("inf") if bits is None else bits


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None


# ------------------------------------------------------------------------------------------ a study


def study_text(fit: Fit) -> str:
    """Return the fitted arms as a study file for `rmab run`.

    An arm has one chain for all agents: that of all agents' pairs, counted together. Where agents
    differ each has chains of its own, too, unless they are correlated: only agents with equal
    chains can share realisations. An arm that was never measured is left out.
    """
    trace = fit.trace
    alike, correlated = (verdict.answer for verdict in fit.verdicts[-2:])
    apart = alike == DIFFER and correlated != CORRELATED
    lines = [
        f"# Arms fitted to {json.dumps(trace.source)}, all agents counted together.",
        f"agents = {len(trace.agents)}",
        "plays = 1",
        f"horizon = {min(len(trace.segment), _MAX_STUDY_HORIZON)}",
        f"trials = {_STUDY_TRIALS}",
        "seed = 0",
    ]
    if correlated == CORRELATED:
        lines += [
            'realisations = "shared"  # agents are correlated',
            'draws = "per-agent"',
        ]
    lines.append(f"policies = {json.dumps(_STUDY_POLICIES)}")
    counts = fit.counts.sum(2)  # (S, S, arms)
    chains = fitted_chains(counts)
    arms = sorted({each.arm for each in fit.series})
    for arm in arms:
        lines += ["", f"[[arm]]  # {json.dumps(trace.arms[arm])}", *_law(chains[:, :, arm])]
    return "\n".join([*lines, *(_agents_apart(fit, arms) if apart else [])]) + "\n"


def _agents_apart(fit: Fit, arms: list[int]) -> list[str]:
    """Return tables of each agent's chains; an unmeasured arm keeps the common chain."""
    chains = fitted_chains(fit.counts)  # (S, S, agents, arms)
    lines = ["", "# Agents differ: the arms that an agent measured have its own laws."]
    for agent, name in enumerate(fit.trace.agents):
        own = [each.arm for each in fit.series if each.agent == agent]
        if own:
            lines += ["", f"[[agent]]  # {json.dumps(name)}", f"agents = {agent + 1}"]
        for arm in own:
            number = f"number = {arms.index(arm) + 1}"
            lines += ["", "[[agent.arm]]", number, *_law(chains[:, :, agent, arm])]
    return lines


def _law(chain: Floats) -> list[str]:
    """Return the lines of an arm: p01 and p11, or a matrix; the highest state pays 1."""
    if len(chain) == 2:
        p01, p11 = (round(float(p), 9) for p in chain[:, 1])
        return [f"p01 = {p01!r}", f"p11 = {p11!r}", "reward = 1.0"]
    rows = ", ".join(f"[{', '.join(map(repr, row))}]" for row in chain.tolist())
    pays = [0.0] * (len(chain) - 1) + [1.0]
    return [f"passive = [{rows}]", f"reward = {pays}"]
