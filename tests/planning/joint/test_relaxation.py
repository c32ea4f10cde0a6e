"""The Lagrangian bound against recomputed values and its own meaning."""

import numpy as np
import pytest

from rmab.errors import ModelError, TooLargeError
from rmab.markov import limit, limiting_distribution
from rmab.model.arms import Arm, Arms, channels
from rmab.model.information import stationary_belief
from rmab.planning.channel.subsidy import solve
from rmab.planning.joint.chain import merged_ages
from rmab.planning.joint.relaxation import relaxed_value, upper_bound

PAPER = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])


def random_arms(n_arms: int, seed: int) -> Arms:
    return channels(*np.random.default_rng(seed).random((3, n_arms)))


@pytest.mark.parametrize(
    ("arms", "plays", "bound"),
    [
        (PAPER, 1, 0.64617),
        (PAPER, 2, 1.05377),
        (PAPER, 3, 1.24058),
        (channels([0.2] * 4, 0.8, 1.0), 2, 1.37543),
        (
            channels([0.13, 0.26, 0.77, 0.57], [0.13, 0.44, 0.48, 0.19], [0.81, 0.38, 0.57, 0.66]),
            1,
            0.37140,
        ),
        (channels([0.3, 0.4, 0.5, 0.6], [0.7, 0.6, 0.5, 0.4], 1.0), 2, 1.12837),
        (channels([0.2, 0.4], [0.7, 0.5], [1.0, 0.8]), 1, 0.46061),
        (channels([0.0, 0.0], 1.0, [0.3, 0.6]), 1, 0.45),  # never change: plays half the time each
        (channels([0.5, 0.5], 0.5, 0.0), 1, 0.0),
    ],
)
def test_known_bounds(arms, plays, bound):
    assert upper_bound(arms, plays) == pytest.approx(bound, abs=5e-6)


def test_is_the_least_of_the_relaxed_values():
    """Eq. (10) on a fine grid of subsidies: never below the bound, and close to it somewhere."""
    arms = random_arms(12, seed=1)
    subsidy = np.linspace(-0.5, 1.5, 20_001)[:, None]
    gains = solve(arms.p01, arms.p11, arms.reward, subsidy).gain.sum(axis=-1)
    for plays in (1, 5, 11):
        relaxed = gains - subsidy[:, 0] * (12 - plays)
        bound = upper_bound(arms, plays)
        assert np.all(np.diff(relaxed, n=2) > -1e-12)
        assert bound - 1e-12 <= relaxed.min() <= bound + 1e-3


@pytest.mark.parametrize("seed", range(5))
def test_above_random_play_and_the_best_fixed_arms(seed):
    arms = random_arms(6, seed)
    mean = arms.reward * stationary_belief(arms)
    bounds = [upper_bound(arms, plays) for plays in range(1, 7)]
    for plays, bound in enumerate(bounds, start=1):
        assert bound >= plays / 6 * mean.sum()
        assert bound >= np.sort(mean)[-plays:].sum() - 1e-12
    assert np.all(np.diff(bounds, n=2) <= 1e-12)  # each further play is worth less
    assert bounds[-1] == pytest.approx(mean.sum(), abs=1e-12)  # all arms always played


def test_many_arms_scale():
    """25 copies of the paper's arms with 25 times the plays: 25 times the bound."""
    copies = channels(*(np.tile(x, 25) for x in PAPER.dynamics))
    assert upper_bound(copies, 50) == pytest.approx(25 * upper_bound(PAPER, 2), abs=1e-10)


# --- any arms, by linear programme ---

# What never changes, changes in every slot, ends bad, ends good, is always bad.
ODD = [(0, 1), (1, 0), (0, 0.5), (0.5, 1), (0, 0)]


@pytest.mark.parametrize("seed", range(5))
def test_the_programme_gives_the_bound_of_channels(seed):
    p01, p11, reward = np.random.default_rng(seed).random((3, 4))
    p01[0], p11[0] = ODD[seed % len(ODD)]
    arms = channels(p01, p11, reward)
    for plays in range(1, 5):
        assert relaxed_value(arms, plays) == pytest.approx(upper_bound(arms, plays), abs=1e-7)


def all_policies(arm: Arm):
    """Long-run reward and share of slots left alone from each state, (policies, S) each, of an arm
    that is always seen."""
    states = np.arange(arm.states)
    pays, alone = [], []
    for code in range(2**arm.states):
        plays = (code >> states) & 1 == 1
        ends = limit(np.where(plays[:, None], arm.active, arm.passive))
        pays.append(ends @ np.where(plays, arm.reward_active, arm.reward_passive))
        alone.append(ends @ ~plays)
    return np.array(pays), np.array(alone)


@pytest.mark.parametrize("seed", range(6))
def test_is_the_least_of_the_relaxed_values_for_any_arms(seed):
    """Eq. (10) over subsidies of either sign, with arms whose start decides among them."""
    rng = np.random.default_rng(seed)
    moves = rng.dirichlet(np.ones(3), (3, 2, 3))
    moves[0] = np.eye(3)[rng.integers(3, size=(2, 3))]
    moves[1, :, 0] = [1, 0, 0]
    pays = rng.normal(size=(3, 2, 3))
    arms = Arms(
        Arm(*move, reward_passive=pay[0], reward_active=pay[1], observed="always")
        for move, pay in zip(moves, pays, strict=True)
    )

    policies = [(*all_policies(arm), limiting_distribution(arm.passive)) for arm in arms]

    def at(subsidy: float, plays: int) -> float:
        gains = [start @ (pays + subsidy * alone).max(0) for pays, alone, start in policies]
        return float(sum(gains)) - subsidy * (3 - plays)

    for plays in (1, 2):
        bound = upper_bound(arms, plays)
        low, high = -30.0, 30.0
        for _ in range(60):  # a convex function: a third of the interval cannot hold its least
            third = (high - low) / 3
            if at(low + third, plays) < at(high - third, plays):
                high -= third
            else:
                low += third
        assert bound == pytest.approx(at(low, plays), abs=1e-7)


def test_copies_of_any_arms_scale():
    rng = np.random.default_rng(4)
    kinds = [
        Arm(*rng.dirichlet(np.ones(3), (2, 3)), reward=rng.random(3), observed=observed)
        for observed in ("always", "when_played")
    ]
    few, many = Arms(kinds * 2), Arms(kinds * 50)
    assert upper_bound(many, 25) == pytest.approx(25 * upper_bound(few, 1), rel=1e-9)


def test_arms_of_many_information_states_are_refused():
    slow = Arm(0.9 * np.eye(3) + 0.1 / 3, reward=[0, 1, 2])
    with pytest.raises(TooLargeError, match=r"1 different arms: \d+ information states.*0\.001"):
        relaxed_value(Arms([slow, slow]), 1, max_columns=100)


def test_programmes_end_at_their_limits(monkeypatch):
    """Rows of information states in all, of an arm that does not forget, and ages."""
    moves = [[0.9, 0.1], [0.3, 0.7]]
    seen = Arms(Arm(moves, reward=[0, pays], observed="always") for pays in (1, 2))
    assert relaxed_value(seen, 1, max_columns=4) == pytest.approx(relaxed_value(seen, 1))
    with pytest.raises(TooLargeError, match="4 information states") as error:
        relaxed_value(seen, 1, max_columns=3)
    assert error.value.states == 4

    frozen = Arms([Arm(np.eye(3), reward=[0, 1, 2])])  # never seen, or in one of three
    bound = "rmab.planning.joint.relaxation"
    monkeypatch.setattr(f"{bound}._MAX_STATES", 4)
    assert relaxed_value(frozen, 1) == pytest.approx(1.0)
    monkeypatch.setattr(f"{bound}._MAX_STATES", 3)
    with pytest.raises(TooLargeError, match="4 of one arm that does not forget"):
        relaxed_value(frozen, 1)

    hidden = Arms([Arm(moves, reward=[0, 1])])
    oldest = int(merged_ages(hidden, 1e-3).caps[0])
    monkeypatch.setattr(f"{bound}.MAX_CAP", oldest)
    assert relaxed_value(hidden, 1) == pytest.approx(0.25)
    monkeypatch.setattr(f"{bound}.MAX_CAP", oldest - 1)
    with pytest.raises(TooLargeError, match=f"ages up to {oldest}"):
        relaxed_value(hidden, 1)


@pytest.mark.parametrize("plays", [0, 5])
def test_refuses_plays_that_cannot_be(plays):
    with pytest.raises(ModelError, match=rf"^plays must lie in 1\.\.4.* got {plays}$"):
        upper_bound(PAPER, plays)
