"""The K largest, by either implementation, against a stable sort."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmab.policies.constraint import _MAX_PAIRWISE_ARMS as MOST
from rmab.policies.constraint import Constraint, _by_bisection, _by_pairs, _select

WIDTH = 8  # columns sorted side by side; one compilation serves all examples of a size
SIZES = (1, 2, 5, MOST, MOST + 1, 33)

# Compiled, as in the engine: the compiler may not tell -0.0 from 0.0 apart, or may.
LARGEST, PAIRS, BISECTION = (jax.jit(f) for f in (_select, _by_pairs, _by_bisection))


def implementations(size: int) -> list[Any]:
    """Those that suit so many arms; pairs of many take long to compile."""
    return [LARGEST, BISECTION, PAIRS] if size <= MOST + 1 else [LARGEST, BISECTION]


# Few distinct values make ties; the whole range finds what bits do to signs and infinities.
values = st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 0.3, 0.3000001, np.inf]) | st.floats(
    width=32, allow_nan=False, allow_subnormal=False
)


@st.composite
def problems(draw):
    size = draw(st.sampled_from(SIZES))
    pool = np.array(draw(st.lists(values, min_size=1, max_size=40)), np.float32)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return rng.choice(pool, (size, WIDTH)), draw(st.integers(1, size))


def by_sorting(index: np.ndarray, k: int) -> np.ndarray:
    order = np.argsort(-index, axis=0, kind="stable")
    mask = np.zeros(index.shape, bool)
    np.put_along_axis(mask, order[:k], True, axis=0)
    return mask


@given(problems())
def test_the_largest_are_those_of_a_stable_sort(problem):
    index, k = problem
    answer = by_sorting(index, k)
    for choose in implementations(len(index)):
        np.testing.assert_array_equal(choose(index, jnp.int32(k)), answer)
    np.testing.assert_array_equal(Constraint(k).select(index), answer)
    np.testing.assert_array_equal(Constraint(k).select(index.T, axis=-1), answer.T)


@pytest.mark.parametrize("size", SIZES)
def test_all_equal_is_the_first_arms(size):
    for value in (0.0, -0.0, 0.7, -np.inf, np.inf):
        for k in range(1, size + 1):
            for choose in implementations(size):
                mask = np.asarray(choose(np.full((size, WIDTH), value, np.float32), jnp.int32(k)))
                np.testing.assert_array_equal(mask, np.arange(size)[:, None] < np.full(WIDTH, k))


def test_both_signs_of_zero_tie():
    index = np.tile(np.array([-0.0, 0.0, -0.0], np.float32), (WIDTH, 3)).T
    for choose in implementations(len(index)):
        mask = np.asarray(choose(index, jnp.int32(3)))
        np.testing.assert_array_equal(mask, by_sorting(index, 3))
        assert mask[:3].all()


def test_many_arms_and_neighbouring_floats():
    rng = np.random.default_rng(8)
    start = np.float32(0.25).view(np.uint32)
    index = (start + rng.integers(0, 200, (100, 64), dtype=np.uint32)).view(np.float32)
    for k in (1, 20, 50, 99, 100):
        np.testing.assert_array_equal(
            _select(jnp.asarray(index), jnp.int32(k)), by_sorting(index, k)
        )


def test_subsets_are_in_lexicographic_order():
    constraint = Constraint(2)
    assert constraint.subsets(4).tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert constraint.n_subsets(4) == 6
    assert constraint.relaxed == 2.0
