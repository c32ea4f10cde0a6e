"""Claims of the paper about its figures, judged.

Each judge reads the results of one figure, whose study is in `paper_figures/`, and states every
claim of the paper as effects with their errors, which rmab.studies.verdict decides. Lemma 1 and
Theorem 1 are judged as figures, too.

Differences of policies in one study are paired trial by trial. Other differences are of the same
realisations, too (of one policy in two studies, or at two times), but how they are correlated is
not known: there the errors are added. The draws of different arms are independent. A mean over
episodes has the mean of their errors, which is a bound: over half of the episodes of Fig. 7 it is
about twice the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from rmab.experiments.figure import Figure, FigureResult, Judge
from rmab.learning.bounds import episode_bound, regret_bound
from rmab.model.information import stationary_belief
from rmab.planning.channel.subsidy import solve, threshold
from rmab.planning.joint.optimum import optimal
from rmab.studies.results import Curve, Floats, PolicyResult, Results
from rmab.studies.run import value
from rmab.studies.verdict import Claim, Effect, Estimate

__all__ = ["JUDGES"]

_CONVERGED = 0.02  # of the level that is reached, for "converges"
_VERY_CLOSE = 2.0  # per cent of what Whittle earns
_CLOSE = 0.99  # of the optimum
_SAME = 1e-6  # of exact values per slot
_GAIN, _GAIN_WITHIN = 15.0, 1.0  # per cent above Fed1-UCB, and how far from it still is 15 %
_EPSILON = 4.6e-5  # 4.56e-5 as it would be rounded
_FEW_EPISODES = 5


def _first(done: FigureResult, policy: str = "fedtswi") -> PolicyResult:
    return done.results[0][policy]


def _number(estimate: tuple[float, float]) -> str:
    return f"{estimate[0]:.5f} ± {estimate[1]:.5f}"


def _paired(results: Results, better: str, worse: str) -> Effect:
    """Effect that one policy earns more than another."""
    mean, se = results.difference(better, worse)
    return Effect(f"{better} less {worse}", mean, se, trials=results.trials)


def _ratio(results: Results, name: str, base: str) -> Estimate:
    """Reward of a policy as a share of another's, paired trial by trial."""
    names = list(results)
    places = [names.index(each) for each in (name, base)]
    covariance = results.covariance[np.ix_(places, places)]
    share = results[name].mean / results[base].mean
    slope = np.asarray([1.0, -share]) / results[base].mean  # of the share, by each mean
    return Estimate(share, float(np.sqrt(np.maximum(slope @ covariance @ slope, 0))))


def _over(curve: Curve, chosen: slice) -> Estimate:
    """The mean over some episodes."""
    return Estimate(float(curve.mean[chosen].mean()), float(curve.se[chosen].mean()))


def _exact(done: FigureResult) -> None:
    done.values = [value(variant.study) for variant in done.figure.variants]


def _plays(done: FigureResult) -> list[Claim]:
    each = [r["fedtswi"] for r in done.results]
    labels = [v.label for v in done.figure.variants]
    trials = min(results.trials for results in done.results)
    steps = [
        Effect(f"{more} less {fewer}", *mine.less(theirs), trials=trials)
        for (fewer, theirs), (more, mine) in pairwise(
            (n, Estimate(r.mean, r.se)) for n, r in zip(labels, each, strict=True)
        )
    ]
    means = ", ".join(f"{n}: {r.mean:.4f}" for n, r in zip(labels, each, strict=True))
    late = [
        Effect(
            n,
            *Estimate(r.final, r.final_se).less(_over(r.by_episode("reward"), slice(0, 1))),
            trials=trials,
        )
        for n, r in zip(labels, each, strict=True)
    ]
    gains = ", ".join(f"{gain.of}: {gain.value:+.4f} ± {gain.se:.4f}" for gain in late)
    arms = done.results[-1].study.arms
    level = float(np.sum(arms.reward * stationary_belief(arms)))
    curve = each[-1].by_episode("reward")
    converged = [
        Effect(
            f"episode {number}",
            float(curve.mean[place] / level),
            float(curve.se[place] / level),
            claimed=1.0,
            direction="about",
            within=_CONVERGED,
            trials=trials,
        )
        for place, number in enumerate(range(1, min(2, len(curve.mean)) + 1))
    ]
    off = " and ".join(
        f"{100 * (effect.value - 1):+.2f} ± {100 * effect.se:.2f} %" for effect in converged
    )
    return [
        Claim(
            "The average reward grows with K.",
            f"means over the horizon: {means}.",
            steps,
        ),
        Claim(
            "The average reward grows with the episodes.",
            f"last tenth of the slots less first episode: {gains}. With K = N there is nothing "
            "to learn.",
            late[:-1],
        ),
        Claim(
            "K = 4 converges within two episodes.",
            f"the first two episodes are {off} from the exact level {level:.5f}: all arms are "
            f"always played, so no decision is left. Asked is {100 * _CONVERGED:g} %.",
            converged,
        ),
    ]


def _errors(done: FigureResult) -> list[Claim]:
    curve, trials = _first(done).by_episode("error"), done.results[0].trials
    n_episodes, n_arms = curve.mean.shape
    half = slice(n_episodes // 2, n_episodes)
    by_arm = [Curve(curve.mean[:, n], curve.se[:, n]) for n in range(n_arms)]
    falls = [
        Effect(
            f"arm {n}",
            *_over(arm, slice(0, 1)).less(_over(arm, slice(n_episodes - 1, n_episodes))),
            trials=trials,
        )
        for n, arm in enumerate(by_arm, start=1)
    ]
    shown = ", ".join(
        f"arm {n}: {arm.mean[0]:.3f} to {arm.mean[-1]:.5f}" for n, arm in enumerate(by_arm, start=1)
    )
    late = [_over(arm, half) for arm in by_arm]
    # Arms 2 and 3, counted from 0, below each of the others.
    apart = [
        Effect(f"arm {above + 1} less arm {n + 1}", *late[above].apart(late[n]), trials=trials)
        for n in (1, 2)
        for above in (0, 3)
    ]
    least = min(apart, key=lambda effect: effect.value)
    order = sorted(range(n_arms), key=lambda n: late[n].mean)
    return [
        Claim(
            "The error of every arm's dynamics falls with the episodes.",
            f"{shown}, first to last of the {n_episodes} episodes that count.",
            falls,
        ),
        Claim(
            "Arms 2 and 3 have the lowest errors: they are played most.",
            f"from lowest to highest: arms {', '.join(str(n + 1) for n in order)}; over the second "
            f"half of the episodes {least.of} is {_number((least.value, least.se))}, the least "
            "distance.",
            apart,
        ),
    ]


def _agents(done: FigureResult) -> list[Claim]:
    """Gains are those of the shortfall to Whittle on the same trials, which varies less."""
    each = {
        v.study.agents: r["fedtswi"]
        for v, r in zip(done.figure.variants, done.results, strict=True)
    }
    short = {m: Estimate(r.behind, r.behind_se) for m, r in each.items()}
    trials = min(results.trials for results in done.results)
    up, more = short[1].less(short[4]), short[8].less(short[16])
    means = ", ".join(f"M = {m}: {r.mean:.4f}" for m, r in each.items())
    return [
        Claim(
            "The average reward improves strongly from M = 1 to M = 4.",
            f"{means}; from 1 to 4: {_number(up)}.",
            [Effect("M = 4 less M = 1", *up, trials=trials)],
        ),
        Claim(
            "Beyond M = 8 the gain is small: doubling M gains less than it does from 1 to 4.",
            f"from 8 to 16: {_number(more)}, from 1 to 4 {_number(up.times(0.5))} each time.",
            [Effect("the gain that is missing", *up.times(0.5).less(more), trials=trials)],
        ),
    ]


def _identical(done: FigureResult) -> list[Claim]:
    _exact(done)
    claims = []
    for variant, results, exact in zip(
        done.figure.variants, done.results, done.values, strict=True
    ):
        best = exact["optimum"] or np.nan
        gaps = {name: best - (exact[name] or np.nan) for name in ("whittle", "myopic")}
        apart = ", ".join(
            "{} {:+.5f} ± {:.5f}".format(name, *results.difference(name, "optimal"))
            for name in gaps
        )
        claims.append(
            Claim(
                f"Whittle, myopic and optimal are equal for identical arms ({variant.label}).",
                f"exact optimum {best:.6f}, Whittle {gaps['whittle']:.2e} and myopic "
                f"{gaps['myopic']:.2e} below it; simulated, less optimal: {apart}.",
                [
                    Effect(f"{name} below the optimum", gap, 0.0, _SAME, "below")
                    for name, gap in gaps.items()
                ],
            )
        )
    return claims


def _different(done: FigureResult) -> list[Claim]:
    _exact(done)
    results, exact = done.results[0], done.values[0]
    best = exact["optimum"] or np.nan
    shares = {
        name: (exact[name] or np.nan) / best
        for name in ("whittle", "myopic", "fixed", "fixed-best", "random")
    }
    parts = ", ".join(f"{name} {100 * (1 - x):.3f} % below" for name, x in shares.items())
    worse = [_paired(results, name, "fixed") for name in ("whittle", "myopic")]
    more = ", ".join(f"{effect.of}: {_number((effect.value, effect.se))}" for effect in worse)
    return [
        Claim(
            "Whittle and myopic come close to the optimum for different arms.",
            f"exact optimum {best:.5f}: {parts}. Asked is {100 * (1 - _CLOSE):.0f} %.",
            [
                Effect(f"{name} as a share of the optimum", shares[name], 0.0, _CLOSE)
                for name in ("whittle", "myopic")
            ],
        ),
        Claim("The fixed selection is worse than both.", f"simulated, {more}.", worse),
    ]


def _learning(done: FigureResult) -> list[Claim]:
    _exact(done)
    results, exact = done.results[0], done.values[0]
    learnt, ucb = results["fedtswi"], results["fed1-ucb"]
    kept, over = _ratio(results, "fedtswi", "whittle"), _ratio(results, "fedtswi", "fed1-ucb")
    missing = Estimate(100 * (1 - kept.mean), 100 * kept.se)
    more = Estimate(100 * (over.mean - 1), 100 * over.se)
    myopic = _paired(results, "fedtswi", "fedts-myopic")
    over_late = 100 * (learnt.final / ucb.final - 1)
    fixed = 100 * (results["whittle"].mean / (exact["fixed-best"] or np.nan) - 1)
    gap = (exact["optimum"] or np.nan) - (exact["whittle"] or np.nan)
    return [
        Claim(
            "FedTSWI is very close to Whittle with known dynamics.",
            f"{learnt.behind:.5f} ± {learnt.behind_se:.5f} behind over the horizon, "
            f"{missing.mean:.2f} ± {missing.se:.2f} %; "
            f"{results['whittle'].final - learnt.final:.5f} in the last tenth. Asked is "
            f"{_VERY_CLOSE:g} %.",
            [Effect("per cent behind", *missing, _VERY_CLOSE, "below", trials=results.trials)],
        ),
        Claim(
            "FedTSWI is better than FedTS-myopic.",
            f"by {_number((myopic.value, myopic.se))}.",
            [myopic],
        ),
        Claim(
            "FedTSWI is 15 % above Fed1-UCB.",
            f"{more.mean:.2f} ± {more.se:.2f} % over the horizon, {over_late:.1f} % in the last "
            f"tenth: after {results.study.horizon} slots Fed1-UCB still plays arms in turn "
            f"({ucb.episodes:.1f} phases). Against the pair of arms it would end with, Whittle is "
            f"{fixed:.1f} % ahead.",
            [Effect("per cent above", *more, _GAIN, within=_GAIN_WITHIN, trials=results.trials)],
        ),
        Claim(
            "The Whittle policy is within epsilon = 4.56e-5 of the optimum.",
            f"exact: {gap:.2e} below.",
            [Effect("below the optimum", gap, 0.0, _EPSILON, "below")],
        ),
    ]


def _regret(done: FigureResult) -> list[Claim]:
    claims = []
    trials = done.results[0].trials
    for policy, name in (("fedtswi", "FedTSWI"), ("fedts-myopic", "FedTS-myopic")):
        curve = _first(done, policy).by_episode("regret")
        few = min(_FEW_EPISODES, len(curve.mean))
        before = _over(curve, slice(0, few))
        after = _over(curve, slice(len(curve.mean) - few, len(curve.mean)))
        claims += [
            Claim(
                f"The regret per slot of {name} falls with the episodes.",
                f"from {_number(before)} (first {few}) to {_number(after)} (last {few} of the "
                f"{len(curve.mean)} that count).",
                [Effect("first episodes less last", *before.less(after), trials=trials)],
            ),
            Claim(
                f"The regret per slot of {name} does not reach zero.",
                f"last {few} episodes: {_number(after)}.",
                [Effect("last episodes", *after, trials=trials)],
            ),
        ]
    return claims


def _thompson_or_ucb(done: FigureResult) -> list[Claim]:
    claims = []
    for sampler, bound, pair in (
        ("fedtswi", "feducb-wi", "FedTSWI over FedUCB-WI"),
        ("fedts-myopic", "feducb-myopic", "FedTS-myopic over FedUCB-myopic"),
    ):
        clipped, raw = (_paired(results, sampler, bound) for results in done.results)
        claims.append(
            Claim(
                f"Thompson sampling beats upper confidence bounds: {pair}.",
                f"first less second: {_number((clipped.value, clipped.se))} clipped, "
                f"{_number((raw.value, raw.se))} not clipped.",
                [clipped, raw],
            )
        )
    return claims


def _value_functions(figure: Figure) -> dict[str, Floats]:
    """V(b; 0) and V(b; 1) of each arm of the figure over the belief."""
    belief = np.linspace(0, 1, 401)
    arms = figure.variants[0].study.arms
    series = {"belief": belief}
    for arm in range(len(arms)):
        one = (float(arms.p01[arm]), float(arms.p11[arm]), float(arms.reward[arm]))
        solved = solve(*one, figure.subsidy)
        crossing = threshold(*one, figure.subsidy)
        series[f"passive {arm}"] = np.asarray(solved.passive_value(belief))
        series[f"active {arm}"] = np.asarray(solved.active_value(belief))
        series[f"threshold {arm}"] = np.asarray([crossing.belief, crossing.active_above], float)
    return series


def _threshold(done: FigureResult) -> list[Claim]:
    done.series = _value_functions(done.figure)
    arms = done.figure.variants[0].study.arms
    belief = done.series["belief"]
    crossings, right, words = [], [], []
    for arm in range(len(arms)):
        plays = done.series[f"active {arm}"] > done.series[f"passive {arm}"]
        at, above = done.series[f"threshold {arm}"]
        crossings.append(int(np.sum(plays[1:] != plays[:-1])))
        right.append(bool(above) and not plays[0] and bool(plays[-1]))
        words.append(
            f"({arms.p01[arm]:g}, {arms.p11[arm]:g}): b* = {at:.4f}, played for b "
            f"{'above' if above else 'below'} it"
        )
    text = "; ".join(words) + f", subsidy {done.figure.subsidy:g}, {len(belief)} beliefs"
    return [
        Claim(
            "The best policy for one arm with a subsidy is a threshold on the belief.",
            text + ".",
            [_number_of("crossings", each, 1) for each in crossings],
        ),
        Claim(
            "The arm is played on the left of the threshold (as the printed figure has it).",
            "it is played on the right, where the arm is likelier to be good."
            if all(right)
            else "see the figure.",
            [_number_of("sides that are the right one", int(each), 0) for each in right],
        ),
    ]


def _number_of(what: str, count: int, claimed: int) -> Effect:
    """Effect that a computed whole number is the claimed one."""
    return Effect(what, float(count), 0.0, float(claimed), "about", 0.5)


def _theory(done: FigureResult) -> list[Claim]:
    results = done.results[0]
    study, trials = results.study, results.trials
    slots = np.arange(1, study.horizon + 1)
    shape = (study.agents, len(study.arms), study.plays)
    span = optimal(study.arms, study.plays).span
    measured = _first(done)
    lengths = measured.by_episode("length")
    ends, ends_se = np.cumsum(lengths.mean), np.cumsum(lengths.se)
    done.series = {
        "slot": slots.astype(np.float64),
        "episode bound": episode_bound(*shape, slots),
        "regret bound": regret_bound(*shape, slots, span),
        "episodes": 1 + np.searchsorted(ends, slots, side="left").astype(np.float64),
        "span": np.asarray([span]),
    }
    # Episode l + 1 begins in the slot after the l-th ends, whose error is that of the bound there.
    begun = ends[ends < study.horizon]
    bounds = episode_bound(*shape, begun + 1)
    errors = episode_bound(*shape, begun + 1 + ends_se[: len(begun)]) - bounds
    below = [
        Effect(f"episodes when number {number} begins", number, error, bound, "below", None, trials)
        for number, (bound, error) in enumerate(
            zip(bounds.tolist(), errors.tolist(), strict=True), start=2
        )
    ]
    # The bound is for the sum over arms of one agent, as the measured regret is.
    regret, regret_se = float(measured.regret.mean[-1]), float(measured.regret.se[-1])
    limit = float(done.series["regret bound"][-1])
    broken = int(np.sum(done.series["episodes"] > done.series["episode bound"]))
    return [
        Claim(
            "Lemma 1: no more episodes than its bound.",
            f"{measured.episodes:.1f} episodes in {study.horizon} slots; the bound is "
            f"{float(done.series['episode bound'][-1]):.1f}"
            + (f", passed in {broken} of the slots on the way." if broken else "."),
            below,
        ),
        Claim(
            "Theorem 1: regret below its bound.",
            f"cumulative regret per agent {regret:.2f} ± {regret_se:.2f}, the bound without its "
            f"O(epsilon T) is {limit:.0f} with D = {span:.3f}, the span of the optimal relative "
            "values at the true dynamics (computed).",
            [Effect("regret", regret, regret_se, limit, "below", None, trials)],
        ),
    ]


JUDGES: Mapping[str, Judge] = {
    "fig06": _plays,
    "fig07": _errors,
    "fig08": _agents,
    "fig09a": _identical,
    "fig09b": _different,
    "fig10": _learning,
    "fig11": _regret,
    "fig12": _thompson_or_ucb,
    "fig13": _threshold,
    "theory": _theory,
}
