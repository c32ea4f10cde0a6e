"""Where is an agent? A guess from its counts, from sums, and from two sums, one without it.

Eight places differ in their channels. One who sees an agent's counts finds its place; one who sees
sums of three does no better than one who is told the three places, but not whose is which.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import numpy.typing as npt
import pytest

PLACES, ARMS, SLOTS, TRIALS = 8, 4, 1000, 800
SETS = list(combinations_with_replacement(range(PLACES), 3))
Floats = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def laws() -> Floats:
    """p01 and p11 of every arm, (place, arm, from): those of the paper, moved by up to .12."""
    rng = np.random.default_rng(3)
    paper = np.array([[0.2, 0.8], [0.89, 0.17], [0.5, 0.6], [0.3, 0.4]])
    return np.clip(paper + rng.uniform(-0.12, 0.12, (PLACES, ARMS, 2)), 0.03, 0.97)


def counted(laws: Floats, places: npt.NDArray[np.int64], slots: int, seed: int) -> Floats:
    """Pairs of consecutive looks (..., arm, from, to) of agents at these places who play two arms
    of four, at random."""
    rng = np.random.default_rng(seed)
    up = laws[places]  # (..., arm, from)
    state = (rng.random(up.shape[:-1]) < 0.5).astype(int)
    seen = np.zeros(state.shape, bool)
    counts = np.zeros((*state.shape, 2, 2))
    for _ in range(slots):
        order = rng.random(state.shape).argsort(-1)
        played = order < 2
        moved = (
            rng.random(state.shape) < np.take_along_axis(up, state[..., None], -1)[..., 0]
        ).astype(int)
        both = played & seen
        for a in (0, 1):
            for b in (0, 1):
                counts[..., a, b] += both & (state == a) & (moved == b)
        seen, state = played, moved
    return counts


def likelihoods(counts: Floats, up: Floats) -> Floats:
    """Of counts (trial, arm, from, to) under laws (law, arm, from), in logarithms (trial, law)."""
    log = np.log(np.stack((1 - up, up), -1))
    found: Floats = np.einsum("tafb,lafb->tl", counts, log)
    return found


def guesses(counts: Floats, laws: Floats) -> npt.NDArray[np.int64]:
    """The place that one agent's counts are likeliest at."""
    found: npt.NDArray[np.int64] = likelihoods(counts, laws).argmax(1)
    return found


def guesses_from_sum(sums: Floats, laws: Floats) -> npt.NDArray[np.int64]:
    """The likeliest place of one of three, by their sum: each set of three by what it predicts."""
    mixed = np.stack([laws[list(places)].mean(0) for places in SETS])
    log = likelihoods(sums, mixed)
    weights = np.exp(log - log.max(1, keepdims=True))
    shares = np.array([[places.count(p) / 3 for p in range(PLACES)] for places in SETS])
    found: npt.NDArray[np.int64] = (weights @ shares).argmax(1)
    return found


def test_raw_counts_tell_a_place_and_sums_of_three_do_not(laws):
    rng = np.random.default_rng(1)
    places = rng.integers(PLACES, size=(TRIALS, 4))
    first = counted(laws, places, SLOTS, 10)  # agents a, b, c, d: what each adds until then
    target = places[:, 0]
    raw = (guesses(first[:, 0], laws) == target).mean()
    assert raw >= 0.85
    # Told the three places, a guess is right as often as its place is among them.
    among = (places[:, :3, None] == np.arange(PLACES)).sum(1)
    bound = (among.max(1) / 3).mean()
    assert 0.4 < bound < 0.55
    in_sum = (guesses_from_sum(first[:, :3].sum(1), laws) == target).mean()
    chance = 3 * (bound * (1 - bound) / TRIALS) ** 0.5
    assert in_sum <= bound + chance
    # Two sums of increments, the second without the agent: what they differ by is not its counts.
    second = counted(laws, places, SLOTS, 11)
    difference = np.maximum(first[:, :3].sum(1) - second[:, 1:].sum(1), 0)
    assert (guesses(difference, laws) == target).mean() <= bound + chance


def test_cumulative_sums_over_changing_sets_would_tell_it(laws):
    """Why increments alone are opened, each once: the attack that this refuses."""
    rng = np.random.default_rng(2)
    places = rng.integers(PLACES, size=(TRIALS, 4))
    cumulative = counted(laws, places, SLOTS, 12)
    with_it = cumulative[:, :4].sum(1)
    without = cumulative[:, 1:].sum(1)
    assert (guesses(with_it - without, laws) == places[:, 0]).mean() >= 0.85
