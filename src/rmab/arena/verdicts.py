"""Verdicts on learners over the problems that they played.

A verdict is a word, which follows from three numbers,

    middle   median over problems of the normalised score: 0 random, 1 the best known
    least    smallest of these scores
    failed   share of all trials that failed, beyond the share that fails by chance

each with bounds. Bounds are four standard errors to each side, or, where trials are few, as many
as have the same probability under Student's t. A word is chosen if it holds for all numbers within
the bounds; where two words are possible, the verdict is "undecided". So a policy gets no better
word by being noisy. Ranks and ties have no part in it: many are tied where trials are few or
rewards vary much.

The median and the smallest of lower bounds are lower bounds of the median and the smallest; upper
bounds are alike. For failed trials the bounds are Wilson's (E. B. Wilson, J. Am. Stat. Assoc. 22,
1927), which are wide of zero where a few trials had no failure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from scipy.special import ndtr, stdtrit

from rmab.arena.scores import SIGMA

__all__ = ["RULES", "UNDECIDED", "Bounds", "Score", "Word", "in_words", "percent", "word_of"]

UNDECIDED = "undecided"
_GOOD, _FAIR, _WEAK = 0.9, 0.5, 0.1  # least median scores
_EVERYWHERE = 0.5  # least score of a good policy on any problem
_FAILED = 0.1  # largest share of failed trials of a good policy

# Words from the best to the worst, of which the first whose rule holds is chosen.
RULES = (
    (
        "good",
        "a median share of at least 90 %, at least 50 % everywhere, and at most 10 % of trials "
        "failed",
    ),
    ("uneven", "a median share of at least 90 %"),
    ("fair", "a median share of at least 50 %"),
    ("weak", "a median share of at least 10 %"),
    ("no better than chance", "a smaller one"),
    (UNDECIDED, "trials are too few: within the errors two words are possible"),
)


class Score(NamedTuple):
    """Normalised score of a learner on a problem.

    score: 0 random, 1 the best known; se: its standard error; trials: their number; failed: the
    share of failed trials; chance: the share that fails by chance. None: unknown.
    """

    score: float
    se: float | None
    trials: int
    failed: float | None = 0.0
    chance: float = 0.0


class Bounds(NamedTuple):
    """Number with its bounds."""

    value: float
    low: float
    high: float


class Word(NamedTuple):
    """Best and worst possible word, with the numbers that they follow from."""

    best: str
    worst: str
    middle: Bounds
    least: Bounds
    failed: Bounds

    @property
    def word(self) -> str:
        """Word that is chosen."""
        return self.best if self.best == self.worst else UNDECIDED

    def to_json(self) -> dict[str, Any]:
        """Table for arena.json; an unknown number is null."""
        numbers = {"middle": self.middle, "least": self.least, "failed": self.failed}
        plain = {
            name: {key: x if math.isfinite(x) else None for key, x in each._asdict().items()}
            for name, each in numbers.items()
        }
        return {"word": self.word, "best": self.best, "worst": self.worst, **plain}


def word_of(scores: Sequence[Score]) -> Word:
    """Choose the word for a learner with these scores, one or more."""
    around = [_around(each) for each in scores]
    middle = Bounds(*(median(numbers) for numbers in zip(*around, strict=True)))
    least = Bounds(*(min(numbers) for numbers in zip(*around, strict=True)))
    failed = _failed(scores)
    return Word(
        best=_word(middle.high, least.high, failed.low),
        worst=_word(middle.low, least.low, failed.high),
        middle=middle,
        least=least,
        failed=failed,
    )


def _word(middle: float, least: float, failed: float) -> str:
    holds = (
        middle >= _GOOD and least >= _EVERYWHERE and failed <= _FAILED,
        middle >= _GOOD,
        middle >= _FAIR,
        middle >= _WEAK,
        True,
    )
    return RULES[holds.index(True)][0]


def _around(score: Score) -> Bounds:
    """Bounds of a score; without a known error they are infinite."""
    if score.se is None or score.trials < 2:
        return Bounds(score.score, -math.inf, math.inf)
    reach = float(-stdtrit(score.trials - 1, ndtr(-SIGMA))) * score.se
    return Bounds(score.score, score.score - reach, score.score + reach)


def _failed(scores: Sequence[Score]) -> Bounds:
    """Share of failed trials beyond chance, over all problems; bounds by Wilson."""
    known = [(each.trials, each.failed, each.chance) for each in scores if each.failed is not None]
    if not known:
        return Bounds(math.nan, 0.0, 1.0)
    trials = sum(n for n, *_ in known)
    share = sum(n * failed for n, failed, _ in known) / trials
    chance = sum(n * by_chance for n, _, by_chance in known) / trials
    square = SIGMA**2
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    spread = share * (1 - share) / trials + square / (4 * trials**2)
    reach = SIGMA * math.sqrt(spread) / (1 + square / trials)
    return Bounds(*(max(x - chance, 0.0) for x in (share, centre - reach, centre + reach)))


def percent(share: float) -> str:
    """Write a share in per cent."""
    return f"{100 * share:z.0f} %"


def in_words(number: Bounds) -> str:
    """Write a score with its bounds, in per cent."""
    if not math.isfinite(number.high - number.low):
        return f"{percent(number.value)} (error unknown)"
    return f"{percent(number.value)} ({100 * number.low:z.0f} to {100 * number.high:z.0f})"
