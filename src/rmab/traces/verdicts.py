"""Six questions about a trace, each answered by the size of an effect, with what to set.

    memory             what order1 saves of the bits of iid                       fits from 2 %
    order              order1's share of what the best model predicts             fits from 75 %
    regimes            share that chains on pieces add to order1's                fits below 5 %
    flicker            share that a hidden chain seen wrongly adds to order1's    fits below 5 %
    agents alike       share of bits lost by one law for all agents               fits below 5 %
    agents correlated  correlation of two agents on one arm                       fits below .1, or
                       where independent twins of the trace show as much
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FITS", "UNKNOWN", "Sizes", "Verdict", "verdicts_of"]

FITS = "fits"
UNKNOWN = "not known"
_MIN_MEMORY = 0.02
_MIN_ORDER = 0.75
_MAX_MORE = 0.05  # that regimes or flicker add, or one law loses
_MAX_CORRELATION = 0.1
_FLAKY = 0.4  # an error from here on, near 1/2, is no error


class Verdict(NamedTuple):
    """An answer: one word or two; so: what to set; sentence: the answer with its size."""

    question: str
    size: float | None
    answer: str
    so: str
    sentence: str


class Sizes(NamedTuple):
    """What verdicts are about; None where it cannot be said."""

    memory: float | None
    order: float | None
    best: str  # the best model
    regimes: float | None
    changed: float  # share of series with more than one piece
    flicker: float | None
    good_when_bad: float
    bad_when_good: float
    n_agents: int
    lost: float | None
    correlation: float | None
    by_chance: float  # the largest correlation of twins
    effective: float


def verdicts_of(sizes: Sizes) -> list[Verdict]:
    """The six, in the order of the questions."""
    return [
        _memory(sizes),
        _order(sizes),
        _regimes(sizes),
        _flicker(sizes),
        _alike(sizes),
        _correlated(sizes),
    ]


_TOO_LITTLE = "No series has 100 pairs of neighbouring slots and 8 changes: too little to say."
_RECORD_MORE = "Record for longer, or with shorter slots."


def _unknown(question: str) -> Verdict:
    return Verdict(question, None, UNKNOWN, _RECORD_MORE, _TOO_LITTLE)


def _memory(sizes: Sizes) -> Verdict:
    size = sizes.memory
    if size is None:
        return _unknown("memory")
    saved = f"the chain saves {_percent(size)} of the bits that the share of good alone needs"
    if size >= _MIN_MEMORY:
        return Verdict(
            "memory",
            size,
            FITS,
            "Follow the state: stay, myopic and whittle are worth a back-test.",
            f"The last state tells of the next: {saved}.",
        )
    return Verdict(
        "memory",
        size,
        "no memory",
        "Play the arms with the largest share of good: fixed-best, or a learner of shares (ucb).",
        f"The last state says next to nothing of the next: {saved}.",
    )


def _order(sizes: Sizes) -> Verdict:
    size = sizes.order
    if size is None:
        if sizes.memory is None:
            return _unknown("order")
        return Verdict(
            "order",
            None,
            FITS,
            "Nothing to set.",
            "No model predicts more than the share of good, so the chain misses nothing.",
        )
    share = f"the chain predicts {_percent(size)} of what the best model ({sizes.best}) does"
    if size >= _MIN_ORDER:
        return Verdict(
            "order",
            size,
            FITS,
            "Trust indices made for chains: whittle, myopic and the learners of both.",
            f"One slot of memory is nearly all of it: {share}.",
        )
    return Verdict(
        "order",
        size,
        "misses something",
        "Back-test stay and fedce-myopic-robust beside whittle before you trust an index.",
        f"The chain misses something: {share}.",
    )


def _regimes(sizes: Sizes) -> Verdict:
    size = sizes.regimes
    if size is None:
        return _unknown("regimes")
    more = (
        f"chains on pieces add {_percent(size)} to that; "
        f"{_percent(sizes.changed)} of the series are better cut"
    )
    if size < _MAX_MORE:
        return Verdict(
            "regimes", size, FITS, 'Set forget = "never", the default.', f"One law lasts: {more}."
        )
    return Verdict(
        "regimes",
        size,
        "laws change",
        'Set forget = "bank" and longest = 50, or play a -robust policy.',
        f"Laws change over time: {more}.",
    )


def _flicker(sizes: Sizes) -> Verdict:
    size = sizes.flicker
    if size is None:
        if sizes.memory is None:
            return _unknown("flicker")
        return Verdict(
            "flicker",
            None,
            UNKNOWN,
            "Leave out --levels to ask this.",
            "Errors of a sensor are fitted to two states alone.",
        )
    more = f"a hidden chain seen wrongly adds {_percent(size)}"
    if size < _MAX_MORE:
        return Verdict(
            "flicker",
            size,
            FITS,
            "Take the states as they are.",
            f"What is seen is what there is: {more}.",
        )
    seen = (
        f"good is seen in {_percent(sizes.good_when_bad)} of bad slots, "
        f"bad in {_percent(sizes.bad_when_good)} of good ones"
    )
    for error, state, other in (
        (sizes.good_when_bad, "bad", "good"),
        (sizes.bad_when_good, "good", "bad"),
    ):
        if error >= _FLAKY:
            return Verdict(
                "flicker",
                size,
                f"flaky {state} state",
                f"Do not trust one {other} slot after {state} ones: import with longer slots "
                "(--slot, --how any-bad), or play a -robust policy.",
                f"The {state} state itself is flaky, near one half, and no sensor's error: "
                f"{more}, and {seen}.",
            )
    return Verdict(
        "flicker",
        size,
        "sensing errors",
        "Import again with --hysteresis, longer slots or another rule for good.",
        f"States look misread now and then: {more}, and {seen}.",
    )


def _alike(sizes: Sizes) -> Verdict:
    size = sizes.lost
    if sizes.n_agents == 1:
        return Verdict("agents alike", 0.0, FITS, "Nothing to set.", "There is one agent.")
    if size is None:
        return _unknown("agents alike")
    lost = f"one law for all loses {_percent(size)} of what laws of their own predict"
    if size < _MAX_MORE:
        return Verdict(
            "agents alike", size, FITS, 'Set aggregation = "sum".', f"Agents are alike: {lost}."
        )
    return Verdict(
        "agents alike",
        size,
        "agents differ",
        'Set aggregation = "pairs", or "none" where a server learns sums alone.',
        f"Agents differ: {lost}.",
    )


def _correlated(sizes: Sizes) -> Verdict:
    size = sizes.correlation
    question = "agents correlated"
    if sizes.n_agents == 1:
        return Verdict(question, 0.0, FITS, "Nothing to set.", "There is one agent.")
    if size is None:
        so = "Let agents measure at the same time."
        return Verdict(question, None, UNKNOWN, so, "No two agents have slots in common.")
    worth = (
        f"the correlation of two agents on one arm is {size:.2f}, and {sizes.n_agents} agents are "
        f"worth {sizes.effective:.1f}"
    )
    if size < _MAX_CORRELATION or size <= sizes.by_chance:
        so = 'Keep draws = "shared" or "per-agent", as you like.'
        return Verdict(question, size, FITS, so, f"Agents see different things: {worth}.")
    return Verdict(
        question,
        size,
        "correlated",
        'Set draws = "per-agent"; expect less of sharing, and intervals that are too narrow.',
        f"Agents see the same things: {worth}.",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if abs(share) >= 0.01 or share == 0 else f"{100 * share:.1f} %"
