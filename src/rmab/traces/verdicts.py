"""Verdicts on a trace: six questions, each answered by the size of an effect, with advice.

memory             bits of iid that order1 saves                              fits from 2 %
order              share of order1 in the gain of the best model              fits from 75 %
regimes            how much larger the share of chains on pieces is           fits below 5 %
flicker            how much larger that of the misclassified HMM is           fits below 5 %, or
                   where another model predicts far more than the HMM does
agents alike       share of bits lost by one chain for all agents             fits below 5 %
agents correlated  correlation of two agents on one arm                       fits below .1, and
                   where it is no larger than in the trace's replicates, which are independent
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CORRELATED", "DIFFER", "FITS", "UNKNOWN", "Sizes", "Verdict", "verdicts_of"]

FITS = "fits"
UNKNOWN = "not known"
CORRELATED = "correlated"
DIFFER = "agents differ"
_MIN_MEMORY = 0.02
_MIN_ORDER = 0.75
_MAX_MORE = 0.05  # gain of regimes or the HMM, or loss by one chain
_NEARLY_BEST = 0.85  # of the best gain: less is no sign of wrong sensing
_MAX_CORRELATION = 0.1
_FLAKY = 0.4  # an error from here on, near 1/2, is none of a sensor


class Verdict(NamedTuple):
    """Verdict: an answer in a word or two, advice, and a sentence with the size."""

    question: str
    size: float | None  # None where it is not known
    answer: str
    so: str
    sentence: str


class Sizes(NamedTuple):
    """Sizes of the effects behind the verdicts."""

    tested: bool  # whether any series has enough pairs and changes
    memory: float
    order: float | None  # shares by model; None where the best predicts nothing
    regimes: float | None
    flicker: float | None  # None, too, where there are more than two states
    best: str  # the best model
    changed: float  # share of series with more than one piece
    good_when_bad: float | None
    bad_when_good: float | None
    n_agents: int
    lost: float | None
    correlation: float | None
    by_chance: float  # the largest correlation of replicates
    effective: float


def verdicts_of(sizes: Sizes) -> list[Verdict]:
    """Return the six verdicts, in the order of the questions."""
    of_models = {"memory": _memory, "order": _order, "regimes": _regimes, "flicker": _misread}
    found = [
        answer(sizes) if sizes.tested else _untested(question)
        for question, answer in of_models.items()
    ]
    return [*found, _alike(sizes), _correlated(sizes)]


def _untested(question: str) -> Verdict:
    return Verdict(
        question,
        None,
        UNKNOWN,
        "Record for longer.",
        "Too little to say: no series has 100 pairs of neighbouring slots and 8 changes.",
    )


def _memory(sizes: Sizes) -> Verdict:
    saved = f"the chain saves {_percent(sizes.memory)} of the bits that the share of good needs"
    if sizes.memory < _MIN_MEMORY:
        answer = "no memory"
        so = "Play the arms with the largest share of good: fixed-best, or ucb to learn them."
        sentence = f"The last state says next to nothing of the next: {saved}."
    else:
        answer = FITS
        so = "Follow the state: back-test stay, myopic and whittle."
        sentence = f"The last state tells of the next: {saved}."
    return Verdict("memory", sizes.memory, answer, so, sentence)


def _order(sizes: Sizes) -> Verdict:
    if sizes.order is None:
        sentence = "There is nothing to miss: no model predicts more than the share of good."
        return Verdict("order", None, FITS, "Nothing to set.", sentence)
    share = f"it predicts {_percent(sizes.order)} of what the best model, {sizes.best}, does"
    if sizes.order < _MIN_ORDER:
        answer = "misses something"
        so = "Trust no index before a back-test beside stay and fedce-myopic-robust."
        sentence = f"The chain misses something: {share}."
    else:
        answer = FITS
        so = "Indices made for chains may be trusted: whittle, myopic and what learns them."
        sentence = f"The chain misses little: {share}."
    return Verdict("order", sizes.order, answer, so, sentence)


def _regimes(sizes: Sizes) -> Verdict:
    more, shares = _gain(sizes.regimes, sizes.order, "chains on pieces predict")
    several = f"{_percent(sizes.changed)} of the series have several"
    if more < _MAX_MORE:
        answer = FITS
        so = 'Keep forget = "never".'
        sentence = f"One law is nearly as good: {shares}; {several}."
    else:
        answer = "laws change"
        so = 'Set forget = "bank" and longest = 50, as the -robust policies do.'
        sentence = f"Laws change: {shares}; {several}."
    return Verdict("regimes", more, answer, so, sentence)


def _misread(sizes: Sizes) -> Verdict:
    if sizes.good_when_bad is None or sizes.bad_when_good is None:
        sentence = "A hidden chain is fitted to two states alone."
        return Verdict("flicker", None, UNKNOWN, "Leave out --levels to ask this.", sentence)
    more, shares = _gain(sizes.flicker, sizes.order, "a hidden chain seen wrongly predicts")
    seen = (
        f"good is seen in {_percent(sizes.good_when_bad)} of bad slots, "
        f"bad in {_percent(sizes.bad_when_good)} of good ones"
    )
    if more < _MAX_MORE:
        answer = FITS
        so = "Take the states as they are."
        sentence = f"What is seen is what there is: {shares}."
    elif (sizes.flicker or 0.0) < _NEARLY_BEST:
        answer = FITS
        so = "Take the states as they are."
        sentence = f"Wrong sensing does not explain it, {sizes.best} does better: {shares}."
    elif max(sizes.good_when_bad, sizes.bad_when_good) < _FLAKY:
        answer = "sensing errors"
        so = "Import again with --hysteresis, longer slots or another rule for good."
        sentence = f"States look misread now and then: {shares}; {seen}."
    else:
        bad = sizes.good_when_bad >= sizes.bad_when_good
        state, other = ("bad", "good") if bad else ("good", "bad")
        answer = f"flaky {state} state"
        so = (
            f"Do not trust one {other} slot amid {state} ones: take longer slots with --how "
            "any-bad, or a -robust policy."
        )
        sentence = f"The {state} state is flaky, which is no sensor's error: {shares}; {seen}."
    return Verdict("flicker", more, answer, so, sentence)


def _gain(share: float | None, order1: float | None, name: str) -> tuple[float, str]:
    """Return the gain of a model over the chain, and both shares in words."""
    if share is None or order1 is None:
        return 0.0, f"{name} nothing either"
    return max(share - order1, 0.0), f"{name} {_percent(share)}, one chain {_percent(order1)}"


def _alike(sizes: Sizes) -> Verdict:
    question = "agents alike"
    if sizes.n_agents == 1:
        return Verdict(question, 0.0, FITS, "Nothing to set.", "There is one agent.")
    if sizes.lost is None:
        return _untested(question)
    lost = f"one law for all loses {_percent(sizes.lost)} of what laws of their own predict"
    if sizes.lost < _MAX_MORE:
        answer, so = FITS, 'Set aggregation = "sum".'
        sentence = f"Agents are alike: {lost}."
    else:
        answer = DIFFER
        so = 'Set aggregation = "pairs", or "none" where the server learns sums alone.'
        sentence = f"Agents differ: {lost}."
    return Verdict(question, sizes.lost, answer, so, sentence)


def _correlated(sizes: Sizes) -> Verdict:
    question = "agents correlated"
    if sizes.n_agents == 1:
        return Verdict(question, 0.0, FITS, "Nothing to set.", "There is one agent.")
    size = sizes.correlation
    if size is None:
        sentence = "No two agents measured a change of one arm in the same slots."
        return Verdict(question, None, UNKNOWN, "Let agents measure together.", sentence)
    worth = (
        f"the correlation of two agents on one arm is {size:.2f}, and {sizes.n_agents} agents are "
        f"worth {sizes.effective:.1f}"
    )
    if size < _MAX_CORRELATION or size <= sizes.by_chance:
        answer, so = FITS, "Draws may be shared or per agent."
        sentence = f"Agents see different things: {worth}."
    else:
        answer = CORRELATED
        so = 'Set draws = "per-agent"; sharing gains less, and intervals are too narrow.'
        sentence = f"Agents see the same things: {worth}."
    return Verdict(question, size, answer, so, sentence)


def _percent(share: float) -> str:
    shown = 100 * share
    return f"{shown:.0f} %" if abs(shown) >= 1 or abs(shown) < 0.05 else f"{shown:.1f} %"
