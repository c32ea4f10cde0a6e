"""Shapes in annotations: checked here, notes everywhere else."""

import subprocess
import sys

import numpy as np
import pytest

from rmab.linalg import solve
from rmab.markov import stationary


def test_a_shape_that_does_not_fit_is_refused():
    from jaxtyping import TypeCheckError

    with pytest.raises(TypeCheckError, match="S S"):
        stationary(np.ones((2, 3)))
    with pytest.raises(TypeCheckError, match="S C"):
        solve(np.ones((2, 2, 5)), np.ones((2, 1, 4)))
    with pytest.raises(TypeCheckError, match="Float"):
        stationary(np.array([[1, 0], [0, 1]]))


def test_nothing_is_checked_or_imported_outside_tests():
    lines = (
        "import sys, numpy as np, rmab.arrays, rmab.model.arms, rmab.markov as markov",
        "assert not {'jaxtyping', 'beartype', 'jax'} & set(sys.modules)",
        "assert rmab.arrays.Float[rmab.arrays.FloatArray, 'S S']",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
