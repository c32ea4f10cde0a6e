"""Arms: what they hold, and what is wrong with them."""

from typing import Any

import numpy as np
import pytest
from scipy.sparse import coo_array, csr_matrix

from rmab.errors import ModelError
from rmab.model.arms import Arm, ArmKind, Arms, channels


@pytest.mark.parametrize(
    ("p01", "p11", "reward", "message"),
    [
        ([0.2, -0.1], 0.8, 1, r"^arm 2: p01 must lie in \[0, 1\], got -0.1$"),
        (1.5, 0.8, 1, r"^arm 1: p01 must lie in \[0, 1\], got 1.5$"),
        ([0.2, 0.2, np.nan], 0.8, 1, r"^arm 3: p01 must lie in \[0, 1\], got nan$"),
        (0.2, [0.8, np.inf], 1, r"^arm 2: p11 must lie in \[0, 1\], got inf$"),
        (0.2, [np.nan], 1, r"^arm 1: p11 must lie in \[0, 1\], got nan$"),
        (0.2, 0.8, [1, -1], r"^arm 2: reward must be finite and not negative, got -1.0$"),
        (0.2, 0.8, np.inf, r"^arm 1: reward must be finite and not negative, got inf$"),
        (0.2, 0.8, np.nan, r"^arm 1: reward must be finite and not negative, got nan$"),
        ([0.2, 0.3], [0.8, 0.7, 0.6], 1, r"^p01, p11 and reward must be .* of one length: "),
        ([[0.2], [0.3, 0.4]], 0.8, 1, r"^p01, p11 and reward must be .* of one length: "),
        ("often", 0.8, 1, r"^p01, p11 and reward must be numbers or lists of one length: "),
        ([], 0.8, 1, r"^p01, p11 and reward must be one value per arm, got shape \(0,\)$"),
        ([[0.2]], 0.8, 1, r"^p01, p11 and reward must be one value per arm, got shape \(1, 1\)$"),
    ],
)
def test_channels_say_what_is_wrong(p01, p11, reward, message):
    with pytest.raises(ModelError, match=message):
        channels(p01, p11, reward)


# ---------------------------------------------------------------------------- arms of any states

GOOD: dict[str, Any] = {
    "passive": [[0.9, 0.1], [0.2, 0.8]],
    "active": [[0.7, 0.3], [0.1, 0.9]],
    "reward": [0, 1],
    "observed": "always",
}
PAYING_ALWAYS = {"reward": None, "reward_active": [1, 2], "reward_passive": [3, -4]}
NOT_ROWS = r"must be a list of rows of numbers$"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"passive": [[0.9, 0.1], [0.2, 0.9]]}, r"^passive row 1 must sum to 1, got 1.1: \[0.2, "),
        ({"active": [[0.5, 0.4], [0, 1]]}, r"^active row 0 must sum to 1, got 0.9: \[0.5, 0.4\]$"),
        ({"passive": np.full((9, 9), 0.2)}, r"^passive row 0 must sum to 1, got 1.8: 9 numbers$"),
        ({"passive": [[1.5, -0.5], [0, 1]]}, r"^passive row 0: column 1 must be .*, got -0.5$"),
        ({"active": [[1, 0], [-0.5, 1.5]]}, r"^active row 1: column 0 must be .*, got -0.5$"),
        ({"passive": [[1, 0], [np.nan, 1]]}, r"^passive row 1: column 0 must be .*, got nan$"),
        ({"active": [[np.inf, 0], [0, 1]]}, r"^active row 0: column 0 must be .*, got inf$"),
        ({"active": [[1, 0], [1, -np.inf]]}, r"^active row 1: column 1 must be .*, got -inf$"),
        ({"passive": [[1, 0], [1]]}, r"^passive row 1 must have 2 numbers, .*: 1 numbers$"),
        ({"passive": [[1, 0], []]}, r"^passive row 1 must have 2 numbers, .*: 0 numbers$"),
        ({"active": [[0.5, 0.5, 0]] * 2}, r"^active row 0 must have 2 numbers, .*: 3 numbers$"),
        ({"active": np.eye(3)}, r"^active must have 2 rows, as passive has 2 states, got 3$"),
        ({"passive": np.eye(3)}, r"^active must have 3 rows, as passive has 3 states, got 2$"),
        ({"passive": [[1]]}, r"^passive must have at least 2 rows, one for each state, got 1$"),
        ({"passive": []}, r"^passive must have at least 2 rows, one for each state, got 0$"),
        ({"passive": [np.eye(2), np.eye(2)]}, r"^passive row 0 must have 2 numbers, .*\(2, 2\)$"),
        ({"passive": [1, 2]}, r"^passive row 0 must have 2 numbers, .*: shape \(\)$"),
        ({"passive": 0.5}, rf"^passive {NOT_ROWS}"),
        ({"passive": None}, rf"^passive {NOT_ROWS}"),
        ({"passive": [["a", "b"], [0, 1]]}, rf"^passive {NOT_ROWS}"),
        ({"active": [[10**400, 0], [0, 1]]}, rf"^active {NOT_ROWS}"),
        ({"active": [[[1], [1, 0]], [0, 1]]}, rf"^active {NOT_ROWS}"),
        ({"reward": [0, 1, 2]}, r"^reward must be 2 numbers, one for each state, got 3 numbers$"),
        ({"reward": []}, r"^reward must be 2 numbers, one for each state, got 0 numbers$"),
        ({"reward": 1}, r"^reward must be 2 numbers, one for each state, got shape \(\)$"),
        ({"reward": [[0, 1]]}, r"^reward must be 2 numbers, .*, got shape \(1, 2\)$"),
        ({"reward": ["a", "b"]}, r"^reward must be 2 numbers, one for each state$"),
        ({"reward": [0, 10**400]}, r"^reward must be 2 numbers, one for each state$"),
        ({"reward": [0, np.nan]}, r"^reward: state 1 must be finite, got nan$"),
        ({"reward": None, "reward_active": [np.inf, 0]}, r"^reward_active: state 0 .*, got inf$"),
        ({"reward_passive": [0, -np.inf]}, r"^reward_passive: state 1 must be finite, got -inf$"),
        ({"reward_passive": [0]}, r"^reward_passive must be 2 numbers, .*, got 1 numbers$"),
        ({"reward": None}, r"^reward is missing: 2 numbers, one for each state$"),
        ({"reward_active": [0, 1]}, r"^reward and reward_active are the same: only one may be "),
        ({"observed": "never"}, r"^observed must be one of when_played, always, got 'never'$"),
        ({"observed": None}, r"^observed must be one of when_played, always, got None$"),
    ],
)
def test_an_arm_says_what_is_wrong(changes, message):
    with pytest.raises(ModelError, match=message):
        Arm(**{**GOOD, **changes})


TIED: dict[str, Any] = {  # a failure leads one state on, a success back to the first
    "passive": [[0, 1, 0], [0, 0, 1], [0, 0, 1]],
    "active": [[0.75, 0.25, 0], [0.75, 0, 0.25], [0.75, 0, 0.25]],
    "reward": [0, 0, 1],
    "observed": "always",
    "tied_active": [[0], [0], [0]],
}


def test_tied_rows_are_mixed_from_what_happens_for_sure_and_never():
    tie = Arm(**TIED).tie
    assert tie is not None
    assert (tie.passive, tie.active) == (((), (), ()), ((0,), (0,), (0,)))
    for_sure, never = np.array(tie.for_sure), np.array(tie.never)
    np.testing.assert_array_equal(for_sure[0], TIED["passive"])  # which the event does not concern
    np.testing.assert_array_equal(never[0], TIED["passive"])
    assert for_sure[1].tolist() == [[1, 0, 0]] * 3
    assert never[1].tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1]]


def test_an_event_may_lead_to_several_states_and_leave_rows_alone():
    rows = [[0.4, 0.36, 0.24], [0.6, 0.4, 0.0], [0.1, 0.1, 0.8]]
    tie = Arm(rows, reward=[0, 1, 2], observed="always", tied_active=[[1, 2], [0], []]).tie
    assert tie is not None
    assert tie.passive == tie.active  # one law, one event
    np.testing.assert_allclose(tie.for_sure[1][0], [0, 0.6, 0.4])
    np.testing.assert_allclose(tie.never[1][0], [1, 0, 0])
    np.testing.assert_allclose(tie.never[0][2], rows[2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observed": "when_played"}, r"^tied rows must be those of an arm that is always obs"),
        ({"tied_active": [[0], [0]]}, r"^tied_active must be 3 lists .* state, got 2$"),
        ({"tied_active": 0}, r"^tied_active must be 3 lists of next states, one for each state$"),
        ({"tied_active": [[0], [3], [0]]}, r"^tied_active row 1 must .* from 0 to 2, got 3$"),
        ({"tied_active": [[0], [0.5], [0]]}, r"^tied_active row 1 must .* to 2, got 0\.5$"),
        ({"tied_active": [[0], [True], [0]]}, r"^tied_active row 1 must .* to 2, got True$"),
        ({"tied_active": [[0], [2], [0]]}, r"^tied_active row 1 must have the chance of .* row 0"),
        ({"tied_active": [[0], [0, 2], []]}, r"^tied_active row 1 must .* 0 and 1, got 1$"),
        ({"tied_passive": [[1], [], []]}, r"^tied_passive row 0 must .* 0 and 1, got 1$"),
        ({"tied_active": [[], [], []]}, r"^tied_passive or tied_active must have a row with an"),
    ],
)
def test_tied_rows_say_what_is_wrong(changes, message):
    with pytest.raises(ModelError, match=message):
        Arm(**{**TIED, **changes})


def test_an_arm_has_what_was_given():
    arm = Arm(**{**GOOD, **PAYING_ALWAYS})
    assert (arm.states, arm.observed, arm.action_dependent) == (2, "always", True)
    assert arm.passive.tolist() == GOOD["passive"]
    assert arm.active.tolist() == GOOD["active"]
    assert arm.reward_active.tolist() == [1, 2]
    assert arm.reward_passive.tolist() == [3, -4]


def test_what_an_arm_leaves_out():
    arm = Arm(np.eye(3), reward=[0, 1, 2])
    assert (arm.states, arm.observed, arm.action_dependent) == (3, "when_played", False)
    assert arm.active.tolist() == np.eye(3).tolist()
    assert arm.reward_passive.tolist() == [0, 0, 0]
    assert Arm(np.eye(2), reward_passive=[1, 2]).reward_active.tolist() == [0, 0]


def test_a_row_may_be_off_by_rounding():
    assert Arm([[0.1] * 10] * 10, reward=range(10)).states == 10
    third = [1 / 3] * 3
    assert Arm([third, third, [0.7, 0.2, 0.1]], reward=[0, 1, 2]).states == 3


def test_an_arm_keeps_its_own_numbers():
    """What was given may change later, what it has may not."""
    given: dict[str, Any] = {"passive": np.eye(2), "active": np.eye(2), "reward": np.ones(2)}
    arm = Arm(**given)
    for array in given.values():
        array[:] = 0
    assert arm.passive.tolist() == arm.active.tolist() == [[1, 0], [0, 1]]
    assert arm.reward_active.tolist() == [1, 1]
    for values in (arm.passive, arm.active, arm.reward_active, arm.reward_passive):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0
    with pytest.raises(AttributeError):
        arm.observed = "always"  # type: ignore[misc]  # that is the point


def mixed() -> Arms:
    """A channel, an arm of three states and one that is always seen."""
    three = Arm([[0.5, 0.5, 0], [0.25, 0.5, 0.25], [0, 0.5, 0.5]], reward=[0, 1, 2])
    return Arms([*channels(0.2, 0.8, 0.4), three, Arm(**{**GOOD, **PAYING_ALWAYS})])


def test_arms_of_several_kinds_are_padded_with_states_that_stay():
    arms = mixed()
    assert arms.sizes.tolist() == [2, 3, 2]
    assert arms.observed == ("when_played", "when_played", "always")
    assert arms.passive.shape == arms.active.shape == (3, 3, 3)
    assert arms.passive[0].tolist() == pytest.approx(
        np.array([[0.8, 0.2, 0], [0.2, 0.8, 0], [0, 0, 1]])
    )
    assert arms.active[2].tolist() == [[0.7, 0.3, 0], [0.1, 0.9, 0], [0, 0, 1]]
    assert arms.reward_active.tolist() == [[0, 0.4, 0], [0, 1, 2], [1, 2, 0]]
    assert arms.reward_passive.tolist() == [[0, 0, 0], [0, 0, 0], [3, -4, 0]]
    for n, arm in enumerate(arms):
        S = arm.states
        np.testing.assert_array_equal(arms.passive[n, :S, :S], arm.passive)
        np.testing.assert_array_equal(arms.passive.sum(-1), 1)


def test_arms_are_a_sequence():
    arms = mixed()
    assert len(arms) == 3
    assert arms[1].states == 3
    assert arms[-1] is arms.each[2]
    assert isinstance(arms[:2], Arms)
    assert [arm.states for arm in arms[1:]] == [3, 2]
    assert list(arms) == list(arms.each)
    with pytest.raises(IndexError):
        arms[3]


@pytest.mark.parametrize(
    ("each", "message"),
    [
        ([], "^there must be at least one arm$"),
        ([*channels(0.2, 0.8, 1), np.eye(2)], "^arm 2 must be an Arm, got ndarray$"),
        (["arm"], "^arm 1 must be an Arm, got str$"),
    ],
)
def test_arms_must_be_arms(each, message):
    with pytest.raises(ModelError, match=message):
        Arms(each)


@pytest.mark.parametrize(
    "changes",
    [
        {"passive": np.eye(3), "reward": [0, 0, 1]},
        {"active": np.eye(2)},
        {"observed": "always"},
        {"reward_passive": [0, 1]},
        {"reward": [0.1, 1]},
        {"reward": [0, -1]},
    ],
)
def test_what_is_no_channel(changes):
    channel: dict[str, Any] = {"passive": [[0.8, 0.2], [0.2, 0.8]], "reward": [0, 1]}
    assert Arms([Arm(**channel)]).are_channels
    assert Arms([Arm(**channel)] * 2).p01.tolist() == [0.2, 0.2]
    arms = Arms([Arm(**channel), Arm(**{**channel, **changes})])
    assert not arms.are_channels
    for name in ("p01", "p11", "reward", "dynamics"):
        with pytest.raises(ModelError, match=r"^this needs channels: two states, uncontrolled"):
            getattr(arms, name)


def test_plays_lie_between_one_and_the_number_of_arms():
    arms = mixed()
    arms.check_plays(1)
    arms.check_plays(3)
    for plays in (0, 4):
        with pytest.raises(ModelError, match=rf"^plays must lie in 1\.\.3, .*, got {plays}$"):
            arms.check_plays(plays)


def test_arms_cannot_be_changed():
    arms = channels([0.2, 0.3], 0.8, [1.0, 0.5])
    assert arms.p01.tolist() == [0.2, 0.3]
    assert arms.reward.tolist() == [1.0, 0.5]
    for values in (arms.p01, arms.p11, arms.reward):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0.9


def test_kinds_have_the_names_that_learners_of_users_may_use():
    for fully_observed in (False, True):
        for action_dependent in (False, True):
            kind = ArmKind(2, fully_observed=fully_observed, action_dependent=action_dependent)
            assert (kind.always, kind.alike) == (fully_observed, not action_dependent)


def test_rows_as_papers_print_them_are_divided_by_their_sum():
    printed = [[0.333333, 0.333333, 0.333333], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]]
    with pytest.warns(RuntimeWarning, match="passive row 0 sums to 0.999999 and was divided"):
        arm = Arm(printed, reward=[0, 0, 1])
    assert arm.passive[0].tolist() == pytest.approx([1 / 3] * 3, abs=1e-15)
    assert arm.passive[1].tolist() == [0.2, 0.3, 0.5]
    with pytest.raises(ModelError, match=r"row 0 must sum to 1, got 0\.99999:"):
        Arm([[0.33333, 0.33333, 0.33333], *printed[1:]], reward=[0, 0, 1])


@pytest.mark.parametrize(
    "kind",
    [np.float32, np.matrix, csr_matrix, coo_array, lambda rows: [list(row) for row in rows]],
    ids=["float32", "matrix", "csr_matrix", "coo_array", "lists"],
)
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_arrays_of_many_kinds_are_taken(kind):
    rows = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.0, 0.0, 1.0]])
    pays = np.array([0.1, 0.2, 1.0])
    given = rows.astype(kind) if kind is np.float32 else kind(rows)
    arm = Arm(given, kind(rows[::-1].copy()) if kind is not np.float32 else given, reward=pays)
    np.testing.assert_allclose(arm.passive, rows, atol=1e-7)
    np.testing.assert_allclose(arm.passive.sum(1), 1, atol=1e-15)
    if kind in (np.matrix, csr_matrix):
        assert Arm(given, reward=kind(pays)).reward_active.tolist() == pays.tolist()
