"""Code lengths of models of the next state, against sums by hand and against every way to cut."""

from itertools import combinations

import numpy as np
import pytest

from rmab.traces.code_length import chain_bits, code_lengths, counts_of, regimes_of, share_bits
from rmab.traces.pairs import lanes_of, pairs_of, runs_of
from tests.traces.made import chain, second_order

STATE = np.array([1, 1, 0, -1, 0, 0, 1, 1, 1, 0], np.int8)
SEGMENT = np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, 1])


def entropy(*counts):
    """Bits of counts under their own shares."""
    total = sum(counts)
    return -sum(n * np.log2(n / total) for n in counts if n)


def test_pairs_cross_neither_holes_nor_segments():
    pairs = pairs_of(STATE, SEGMENT)
    assert pairs.at.tolist() == [1, 2, 5, 6, 7, 9]
    assert pairs.last.tolist() == [1, 1, 0, 0, 1, 1]
    assert pairs.next.tolist() == [1, 0, 0, 1, 1, 0]
    assert pairs.before.tolist() == [-1, 1, -1, 0, 0, -1]
    assert pairs.age.tolist() == [1, 2, 1, 2, 1, 1]


def test_runs_cross_neither_holes_nor_segments():
    runs = runs_of(np.stack([STATE, np.full(10, -1, np.int8), STATE]), SEGMENT)
    assert runs.series.tolist() == [0] * 6 + [2] * 6
    assert runs.state.tolist() == [1, 0, 0, 1, 1, 0] * 2
    assert runs.length.tolist() == [2, 1, 2, 2, 1, 1] * 2
    assert runs.begins.tolist() == [True, False, True, False, True, False] * 2


def test_short_segments_share_a_lane():
    lanes = lanes_of(np.array([3, 3, 3, 7, 9, 9, 11, 11]))
    assert lanes.slots.T.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, -1]]
    assert lanes.begins.T.tolist() == [
        [True, False, False],
        [True, True, False],
        [True, False, False],
    ]


def test_code_lengths_by_hand():
    """Six pairs: 1 after 1, 0 after 1, 0 after 0, 1 after 0, 1 after 1, 0 after 1."""
    bits = code_lengths(pairs_of(STATE, SEGMENT), 2)
    log_n = np.log2(6)
    assert bits["iid"] == pytest.approx(entropy(3, 3) + 0.5 * log_n)
    assert bits["order1"] == pytest.approx(entropy(1, 1) + entropy(2, 2) + log_n)
    # Three pairs are two slots into a stretch, each after another two states; the others are even.
    assert bits["order2"] == pytest.approx(3 * 1 + 2 * log_n)
    # (1, age 1): 1, 1, 0; (1, 2-3): 0; (0, 1): 0; (0, 2-3): 1.
    assert bits["ages"] == pytest.approx(entropy(2, 1) + 0.5 * 4 * log_n)


def test_ages_are_classes_of_doubling_length():
    state = np.repeat([0, 1], [2100, 2]).astype(np.int8)
    pairs = pairs_of(state, np.zeros(len(state), int))
    cells = 12  # bad at age 1, 2-3, ..., 512-1023, 1024 and more; good at age 1
    last = entropy(2100 - 1024, 1)  # of the last class of bad, which ends with the change
    expected = last + 0.5 * cells * np.log2(2101)
    assert code_lengths(pairs, 2)["ages"] == pytest.approx(expected)


def test_parameters_of_several_states():
    rng = np.random.default_rng(0)
    state = rng.integers(0, 3, 400).astype(np.int8)
    pairs = pairs_of(state, np.zeros(400, int))
    counts = counts_of(pairs, 3)
    log_n = np.log2(399)
    bits = code_lengths(pairs, 3)
    assert bits["iid"] == pytest.approx(entropy(*counts.sum(0)) + log_n)
    assert bits["iid"] == share_bits(counts.sum(0))
    assert bits["order1"] == pytest.approx(sum(entropy(*row) for row in counts) + 3 * log_n)
    assert bits["order1"] == chain_bits(counts)
    whole, pieces = regimes_of(pairs, 3)
    assert len(pieces) == 1
    assert whole == pytest.approx(bits["order1"] + 0.5 * log_n)


def test_regimes_are_the_best_of_all_cuts():
    """With eight pairs every pair is a block, and there are 128 ways to cut."""
    states = [chain(seed=seed, slots=9, agents=1, arms=1)[0, :, 0] for seed in range(5)]
    sticky = np.repeat([0, 1], 1000)
    for state in [*states, np.array([0, 0, 0, 0, 0, 1, 0, 1, 0])]:
        pairs = pairs_of(state.astype(np.int8), np.zeros(9, int))
        steps = list(zip(pairs.last, pairs.next, strict=True))

        def bits(start, end, steps=steps):
            rows = [[steps[start:end].count((i, j)) for j in (0, 1)] for i in (0, 1)]
            return sum(entropy(*row) for row in rows) + 1.5 * np.log2(8)

        cuts = (c for k in range(8) for c in combinations(range(1, 8), k))
        best = min(
            sum(bits(a, b) for a, b in zip((0, *cut), (*cut, 8), strict=True)) for cut in cuts
        )
        assert regimes_of(pairs, 2)[0] == pytest.approx(best)
    assert len(regimes_of(pairs_of(sticky.astype(np.int8), np.zeros(2000, int)), 2)[1]) == 1


def test_pieces_cover_the_series():
    half = chain(0.1, 0.9, 1, 1, 2400)[0, :, 0], chain(0.9, 0.1, 1, 1, 2400)[0, :, 0]
    _, pieces = regimes_of(pairs_of(np.concatenate(half), np.zeros(4800, int)), 2)
    first, second = pieces
    assert (first.start, second.end) == (0, 4800)
    assert first.end == second.start + 1  # pairs overlap by a slot
    assert abs(second.start - 2400) <= 100  # a block
    assert (first.counts + second.counts).sum() == 4799


def test_order2_finds_what_order1_does_not():
    pairs = pairs_of(second_order(1, 1)[0, :, 0].astype(np.int8), np.zeros(4000, int))
    bits = code_lengths(pairs, 2)
    assert bits["order1"] > 0.999 * bits["iid"]
    assert bits["order2"] / 3999 == pytest.approx(entropy(0.9, 0.1), abs=0.03)
