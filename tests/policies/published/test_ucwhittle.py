"""Optimistic Whittle indices of always observed arms, against sampled dynamics in the box."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab.model.arms import ArmKind, Moves
from rmab.planning.tables import Model, fill_whittle
from rmab.policies.published.ucwhittle import (
    _shifted,
    _values,
    fill_extreme,
    fill_penalty,
    fill_value,
)

TWO = ArmKind(2, fully_observed=True, action_dependent=True)
THREE = ArmKind(3, fully_observed=True, action_dependent=True)


def model_of(passive, active, width=0.0, pays=(0.0, 1.0), kind=TWO) -> Model:
    """One arm that pays the same with a play and without; matrices (S, S) or (S, S, trials)."""
    moves = Moves(*(np.reshape(m, (*np.shape(m)[:2], 1, -1)) for m in (passive, active)))
    rewards = np.reshape(pays, (-1, 1, 1))
    widths = Moves(*(np.full(moves.passive.shape[1:], width),) * 2)
    return Model(moves, rewards, rewards, (kind,), widths)


def two(a, b, c, d, width=0.0, **others) -> Model:
    """From the chances of good: idle after bad and good, played after bad and good."""
    passive = np.array([[1 - a, a], [1 - b, b]])
    return model_of(passive, np.array([[1 - c, c], [1 - d, d]]), width, **others)


@partial(jax.jit, static_argnums=(0, 1))
def _filled(fill, kinds, moves, rewards, width):
    return fill(Model(moves, rewards, rewards, kinds, width), 1)


def index(fill, model: Model) -> np.ndarray:
    """Of each state, (S, trials)."""
    given = jax.tree.map(jnp.float32, (model.moves, model.reward_active, model.width))
    return np.asarray(_filled(fill, model.kinds, *given))[0, 1:]


def whittle(model: Model) -> np.ndarray:
    """The same of the dynamics as they are, on NumPy."""
    return np.asarray(fill_whittle(model, 1))[0, 1:]


@pytest.mark.parametrize(
    "fill",
    [fill_value, *(pytest.param(f, marks=pytest.mark.slow) for f in (fill_penalty, fill_extreme))],
)
def test_without_radii_it_is_the_whittle_index(fill):
    """RB-4's first arm, and with the states the other way round."""
    np.testing.assert_allclose(index(fill, two(0.1, 0.7, 0.5, 0.9))[:, 0], [1, 1 / 3], atol=1e-5)
    turned = two(0.3, 0.9, 0.1, 0.5, pays=(1.0, 0.0))  # P(1 | s) of the same arm, states swapped
    np.testing.assert_allclose(index(fill, turned)[:, 0], [1 / 3, 1], atol=1e-5)


@pytest.mark.parametrize(
    ("fill", "corner"),
    [
        (fill_value, (0.45, 0.65, 0.65, 0.75)),
        pytest.param(fill_extreme, (0.15, 0.35, 0.65, 0.75), marks=pytest.mark.slow),
    ],
)
def test_the_corner_of_each_form(fill, corner):
    box = two(0.3, 0.5, 0.5, 0.6, 0.15)
    np.testing.assert_allclose(index(fill, box), whittle(two(*corner)), atol=1e-5)


def test_ends_that_disobey_are_cut():
    """A play and the good state never harm."""
    box, cut = two(0.6, 0.5, 0.4, 0.5, 0.1), two(0.5, 0.6, 0.5, 0.6)
    np.testing.assert_allclose(index(fill_value, box), whittle(cut), atol=1e-5)


def test_no_dynamics_in_the_box_have_a_larger_index_than_the_penalty():
    random = np.random.default_rng(3)
    centre, width = (0.3, 0.6, 0.5, 0.8), 0.2
    best = index(fill_penalty, two(*centre, width))
    a, b, c, d = np.clip(centre + width * random.uniform(-1, 1, (2000, 4)), 0, 1).T
    obey = (c >= a) & (d >= b) & (b >= a) & (d >= c)
    assert obey.sum() > 500
    found = whittle(two(*(x[obey] for x in (a, b, c, d))))
    assert (found <= best + 1e-5).all()
    assert (found.max(1) > 0.8 * best[:, 0]).all()
    assert (index(fill_value, two(*centre, width)) <= best + 1e-5).all()


def gain(passive, active, pays) -> float:
    """Of the best policy where plays are free, by plain value iteration."""
    worth = np.zeros(len(pays))
    for _ in range(400):
        new = pays + np.maximum(passive @ worth, active @ worth)
        rate, worth = new[0] - worth[0], 0.5 * (worth + new - new[0])
    return float(rate)


def test_three_states_have_the_dynamics_of_the_largest_value():
    """None in the L1 ball has a larger one: half the radius of every row is moved."""
    random = np.random.default_rng(5)
    passive, active = random.dirichlet(np.ones(3), 3), random.dirichlet(np.ones(3), 3)
    pays, width = np.array([0.2, 1.0, 0.0]), 0.3
    model = model_of(passive, active, width, pays, THREE)

    @jax.jit
    def shifted(moves, width):
        given = model._replace(moves=moves, width=width)
        worth = _values(given)
        return _shifted(given, worth, worth)

    single = jax.tree.map(jnp.float32, (model.moves, model.width))
    idle, played = (np.asarray(m, np.float64)[..., 0, 0] for m in shifted(*single))
    for rows, centre in ((idle, passive), (played, active)):
        np.testing.assert_allclose(rows.sum(1), 1, atol=1e-6)
        assert (np.abs(rows - centre).sum(1) <= width + 1e-6).all()
    best = gain(idle, played, pays)
    assert best > gain(passive, active, pays) + 0.05
    for _ in range(60):
        others = []
        for centre in (passive, active):
            step = random.uniform(-1, 1, (3, 3))
            step -= step.mean(1, keepdims=True)
            step *= width / np.abs(step).sum(1, keepdims=True)
            rows = np.maximum(centre + step, 0)
            others.append(rows / rows.sum(1, keepdims=True))
        near = all(
            (np.abs(x - y).sum(1) <= width).all()
            for x, y in zip(others, (passive, active), strict=True)
        )
        assert not near or gain(others[0], others[1], pays) <= best + 1e-6
    chosen = model_of(idle, played, 0.0, pays, THREE)
    np.testing.assert_allclose(index(fill_value, model), whittle(chosen), atol=1e-4)
