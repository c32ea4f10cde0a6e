"""Parametric policy iteration against the dense solver, and its pieces against the whole."""

import numpy as np
import pytest

from rmab.errors import ModelError
from rmab.model.expansion import expand
from rmab.planning.index.finite import finite_indices
from rmab.planning.index.hidden import information_indices, information_table
from rmab.planning.index.parametric import follow

from .models import arm_of, degenerate_models, random_models, table_of


@pytest.mark.parametrize(("S", "max_age"), [(2, 1), (2, 6), (3, 5), (4, 4)])
def test_the_table_is_that_of_the_arm_cut_at_the_age(S, max_age):
    models = random_models(S, S, 25)
    table = table_of(models, max_age)
    assert table.shape == (1 + S * max_age, 25)
    for b in range(25):
        found = finite_indices(expand(arm_of(models, b), max_age))
        if found.indexable is not None:
            np.testing.assert_allclose(table[:, b], found.index, atol=1e-9)


def test_the_table_is_what_information_indices_says():
    models = random_models(3, 3, 200)
    models = models._replace(passive=0.5 / 3 + 0.5 * models.passive)  # forgets within 50 slots
    table = table_of(models, 60)
    found = information_indices([arm_of(models, b) for b in range(200)], 60)
    np.testing.assert_allclose(table[0], np.array([f.never_seen for f in found]), atol=1e-8)
    seen = np.stack([f.index.ravel() for f in found], 1)
    np.testing.assert_allclose(table[1:], seen, atol=1e-8)


@pytest.mark.parametrize("S", [2, 4])
def test_always_finite(S):
    assert np.isfinite(table_of(degenerate_models(S, S, 400), 6)).all()


def test_shapes_broadcast():
    models = random_models(4, 2, 6)
    passive, active = (array.reshape(2, 2, 2, 3) for array in models[:2])
    unpaid, paid = (array[:, :2, None] for array in models[2:])
    table = information_table(passive, active, unpaid, paid, 5)
    assert table.shape == (11, 2, 3)
    one = information_table(
        passive[..., 1, 2], active[..., 1, 2], unpaid[:, 1, 0], paid[:, 1, 0], 5
    )
    np.testing.assert_allclose(table[:, 1, 2], one, atol=1e-12)
    with pytest.raises(ModelError, match="max_age must be at least 1, got 0"):
        table_of(models, 0)


@pytest.mark.parametrize("beta", [1.0, 0.9])
def test_a_line_in_pieces_is_the_line(beta):
    models = random_models(6, 3, 60)
    whole = follow(models, 70, beta)
    for pieces in (2, 5):
        parts = follow(models, 70, beta, None, pieces)
        for one, other in zip(whole[:2], parts[:2], strict=True):
            np.testing.assert_allclose(one, other, atol=1e-10)
        assert parts[2].all()
    assert whole[2].all()
