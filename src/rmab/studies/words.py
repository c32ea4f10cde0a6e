"""Words for learners: how good one is over the problems that it played.

A word follows from three numbers,

    middle   the median over problems of its share: 0 random, 1 the best with known dynamics
    least    the smallest of these shares
    failed   the share of all its trials that failed, beyond what fails by chance

each with bounds. Bounds are four standard errors to each side, or, where trials are few, as many
as have the same probability under Student's t. A word is said where it holds for all numbers
within the bounds; where two words are possible, the answer is "undecided". So a policy gets no
better word by being noisy.

The median and the smallest of lower bounds are lower bounds of the median and the smallest, and
likewise above. For failed trials the bounds are Wilson's (E. B. Wilson, J. Am. Stat. Assoc. 22,
1927), which are wide of zero where a few trials had no failure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from scipy.special import ndtr, stdtrit

__all__ = ["RULES", "SIGMA", "UNDECIDED", "Bounds", "Score", "Word", "word_of"]

SIGMA = 4.0  # standard errors to each side, within which nothing is told apart
UNDECIDED = "undecided"
_GOOD, _FAIR, _WEAK = 0.9, 0.5, 0.1  # least median shares
_EVERYWHERE = 0.5  # least share of a policy that is good
_FAILED = 0.1  # most failed trials of a policy that is good

# The words from the best to the worst; the first whose rule holds is said.
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
    """A learner on a problem.

    share: 0 random, 1 the best with known dynamics; se: its standard error; trials: how many;
    failed: the share of them that failed; chance: the share that fails by chance. None: unknown.
    """

    share: float
    se: float | None
    trials: int
    failed: float | None = 0.0
    chance: float = 0.0


class Bounds(NamedTuple):
    """A number, and what it may be within its error."""

    value: float
    low: float
    high: float


class Word(NamedTuple):
    """The best and the worst word that are possible, and the numbers that they follow from."""

    best: str
    worst: str
    middle: Bounds
    least: Bounds
    failed: Bounds

    @property
    def word(self) -> str:
        """The word that is said."""
        return self.best if self.best == self.worst else UNDECIDED

    def to_json(self) -> dict[str, Any]:
        """As arena.json has it; what is unknown is null."""
        numbers = {"middle": self.middle, "least": self.least, "failed": self.failed}
        plain = {
            name: {key: x if math.isfinite(x) else None for key, x in each._asdict().items()}
            for name, each in numbers.items()
        }
        return {"word": self.word, "best": self.best, "worst": self.worst, **plain}


def word_of(scores: Sequence[Score]) -> Word:
    """The word for a learner with these scores, one or more."""
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
    """The share; without a known error it may be anything."""
    if score.se is None or score.trials < 2:
        return Bounds(score.share, -math.inf, math.inf)
    reach = float(-stdtrit(score.trials - 1, ndtr(-SIGMA))) * score.se
    return Bounds(score.share, score.share - reach, score.share + reach)


def _failed(scores: Sequence[Score]) -> Bounds:
    """Failed trials beyond chance, of all trials of all problems; bounds by Wilson."""
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
