"""Scores of agents whose counts are unlike the others': small for the honest, large for liars."""

from itertools import product
from math import comb

import numpy as np
import pytest
from benchmarks.liar import lie

from rmab.protocol.outliers import _variance, compared, outlier_scores
from rmab.protocol.shape import Shape

SHAPE = Shape(2, (2, 2, 2, 2), 8)
P01, P11 = [0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16]
UNLIKELY = 5.0  # for one of some hundreds of scores, each the largest of four


def honest(rng: np.random.Generator, slots: int, shape: Shape = SHAPE) -> np.ndarray:
    """Counts (C, S, S, N) of one who stays with an arm that shows 1, and goes on from 0."""
    N, K = shape.n_arms, shape.plays
    p = np.array([P01, P11])
    state = rng.integers(0, 2, N)
    counts = np.zeros((shape.kinds, 2, 2, N), np.int64)
    last: dict[int, tuple[int, int]] = {}
    played = list(range(K))
    for slot in range(slots):
        for arm in played:
            shown = int(state[arm])
            if arm in last:
                then, before = last[arm]
                counts[min(slot - then, shape.kinds) - 1, before, shown, arm] += 1
            last[arm] = (slot, shown)
        stays = [arm for arm in played if state[arm]]
        rest = [arm for arm in rng.permutation(N).tolist() if arm not in stays]
        played = (stays + rest)[:K]
        state = (rng.random(N) < p[state, np.arange(N)]).astype(int)
    return counts


@pytest.mark.parametrize(("row", "columns"), [(5, (4, 10)), (3, (6, 27)), (6, (3, 4, 8))])
def test_the_variance_of_chi_square_is_exact(row, columns):
    """Over all tables of these margins, each as often as it comes by chance."""
    total, other = sum(columns), sum(columns) - row
    chances, squares = [], []
    for cells in product(*(range(c + 1) for c in columns)):
        if sum(cells) == row:
            ways = np.prod([comb(c, a) for c, a in zip(columns, cells, strict=True)])
            chances.append(ways / comb(total, row))
            expected = [row * c / total for c in columns]
            squares.append(
                sum(
                    (a - e) ** 2 * total / (c * row) + (a - e) ** 2 * total / (c * other)
                    for a, e, c in zip(cells, expected, columns, strict=True)
                )
            )
    mean = np.dot(chances, squares)
    assert mean == pytest.approx(total * (len(columns) - 1) / (total - 1))
    variance = np.dot(chances, np.square(squares)) - mean**2
    inverses = sum(1 / c for c in columns)
    got = _variance(float(total), float(row), float(other), inverses, len(columns))
    assert got == pytest.approx(variance)


@pytest.mark.parametrize(("agents", "slots"), [(8, 300), (40, 60)])
def test_honest_agents_score_as_chance_has_it(agents, slots):
    """The largest of four standard normal numbers has mean 1.03 and deviation .70."""
    rng = np.random.default_rng(5)
    found = []
    for _ in range(160 // agents):
        counts = np.stack([honest(rng, slots) for _ in range(agents)])
        found.append(outlier_scores(counts, SHAPE))
    scores = np.concatenate(found)
    assert not np.isnan(scores).any()
    error = 0.7 / np.sqrt(scores.size)
    assert 1.03 - 0.25 < scores.mean() < 1.03 + 4 * error  # a little less where counts are few
    assert 0.5 < scores.std() < 0.9
    assert scores.max() < UNLIKELY


def test_more_counts_are_no_reason_to_look_wrong():
    rng = np.random.default_rng(6)
    counts = np.stack([honest(rng, slots) for slots in (50, 100, 200, 400, 3000)])
    assert outlier_scores(counts, SHAPE).max() < UNLIKELY


@pytest.mark.parametrize("slots", [600, 10**5, 2**40])
@pytest.mark.parametrize("liars", [1, 2])
def test_liars_stand_out_and_nobody_else_whatever_they_claim(slots, liars):
    """Though they are also among the others that everybody is held against."""
    rng = np.random.default_rng(7)
    counts = [honest(rng, 600) for _ in range(4)]
    counts += [lie(SHAPE, slots).counts for _ in range(liars)]
    scores = outlier_scores(np.stack(counts), SHAPE)
    assert scores[:4].max() < UNLIKELY
    assert scores[4:].min() > 12


def test_a_lie_about_one_arm_is_enough():
    rng = np.random.default_rng(8)
    counts = np.stack([honest(rng, 600) for _ in range(5)])
    counts[4, ..., 2] = counts[4, :, ::-1, :, 2]  # states 0 and 1 of what came before exchanged
    scores = outlier_scores(counts, SHAPE)
    assert scores[:4].max() < UNLIKELY
    assert scores[4] > 10


def test_pairs_too_far_apart_to_compare_are_left_out():
    rng = np.random.default_rng(9)
    counts = np.stack([honest(rng, 300) for _ in range(3)])
    far = counts.copy()
    far[0, -1] = 10**6
    np.testing.assert_array_equal(outlier_scores(far, SHAPE), outlier_scores(counts, SHAPE))


def test_nothing_to_compare_is_no_score():
    rng = np.random.default_rng(10)
    counts = np.stack([honest(rng, 300), honest(rng, 300), np.zeros_like(honest(rng, 1))])
    assert np.isnan(outlier_scores(counts[:1], SHAPE)).all()
    assert np.isnan(outlier_scores(counts[:0], SHAPE)).all()
    assert np.isnan(outlier_scores(counts[::2], SHAPE)).all()
    scores = outlier_scores(counts, SHAPE)
    assert np.isnan(scores).tolist() == [False, False, True]
    # Of two that disagree both are unlike the other.
    two = np.stack([counts[0], lie(SHAPE, 300).counts])
    assert outlier_scores(two, SHAPE).min() > 5


def test_names_of_one_owner_are_one_of_those_that_are_compared():
    """Ten names that say the same would be a majority: as one owner they stand out."""
    rng = np.random.default_rng(11)
    counts = {f"agent-{m}": honest(rng, 600) for m in range(4)}
    counts |= {f"liar-{n}": lie(SHAPE, 600).counts for n in range(10)}
    owners = {name: "liar" if name.startswith("liar") else name for name in counts}
    alone, together = compared(counts, SHAPE), compared(counts, SHAPE, owners)
    assert min(alone.scores[f"agent-{m}"] or 0 for m in range(4)) > 6
    assert max(together.scores[f"agent-{m}"] or 9 for m in range(4)) < UNLIKELY
    assert {together.scores[f"liar-{n}"] for n in range(10)} == {together.scores["liar-0"]}
    assert (together.scores["liar-0"] or 0) > 12
    assert together.divided == ()


@pytest.mark.parametrize(
    ("truthful", "liars", "divided"),
    [(1, 1, True), (2, 2, True), (2, 1, False), (3, 1, False), (4, 2, False), (4, 0, False)],
)
def test_two_camps_where_no_majority_is_clear(truthful, liars, divided):
    rng = np.random.default_rng(12)
    counts = {f"agent-{m}": honest(rng, 600) for m in range(truthful)}
    counts |= {f"liar-{n}": lie(SHAPE, 600).counts for n in range(liars)}
    assert bool(compared(counts, SHAPE).divided) == divided
    assert compared({}, SHAPE) == ({}, ())
