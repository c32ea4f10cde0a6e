"""Published learners of counts by name: what they refuse, and how they are set."""

import pytest

from rmab.errors import StudyError
from rmab.model.arms import Arm, Arms, channels
from rmab.policies.registry import check_arms, check_options, named, settings_of
from rmab.studies.study import Study

CHANNELS = channels([0.2, 0.5], [0.8, 0.6], [1.0, 0.9])
TWO = [[0.5, 0.5], [0.25, 0.75]]
THREE = [[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]]
PLAYED = [[0.2, 0.8], [0.1, 0.9]]
WATCHED = Arm(TWO, PLAYED, reward=[0.0, 1.0], observed="always")
LEVELS = Arm(THREE, reward=[0.0, 0.5, 1.0])
SEEN_LEVELS = Arm(THREE, reward=[0.0, 0.5, 1.0], observed="always")
TENDED = Arm(TWO, PLAYED, reward=[0.0, 1.0])
ONE = CHANNELS[0]


@pytest.mark.parametrize(
    ("name", "arms", "why"),
    [
        ("ts-grid", [ONE, LEVELS], "for channels alone, and arm 2 is not"),
        ("ts-grid", [WATCHED], "for channels alone, and arm 1 is not"),
        ("restless-ucb", [ONE, WATCHED], "observed when played, and arm 2 always is"),
        ("restless-ucb", [ONE, TENDED], "move alike played or not, and arm 2 does not"),
        ("ucw-value", [WATCHED, ONE], "always observed, and arm 2 is observed when played"),
        ("ucw-extreme", [LEVELS], "always observed, and arm 1 is observed when played"),
        ("ucw-penalty", [WATCHED, TENDED], "always observed, and arm 2 is observed when played"),
        ("ucw-penalty", [WATCHED, SEEN_LEVELS], "for arms of two states, and arm 2 has 3"),
    ],
)
def test_arms_that_a_policy_is_not_for_are_refused_in_one_line(name, arms, why):
    with pytest.raises(StudyError, match=f"policies: '{name}' is .*{why}") as refused:
        Study(arms=Arms(arms), horizon=10, trials=2, policies=[name])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "arms"),
    [
        ("ts-grid", CHANNELS),
        ("restless-ucb", [ONE, LEVELS]),
        ("ucw-value", [WATCHED, SEEN_LEVELS]),
        ("ucw-penalty", [WATCHED]),
        ("ucw-extreme", [SEEN_LEVELS]),
        ("rb-tsde", [ONE, WATCHED, LEVELS, TENDED]),
        ("dsee", [ONE, WATCHED, LEVELS, TENDED]),
    ],
)
def test_arms_that_a_policy_is_for(name, arms):
    kinds = Arms(arms).kinds if isinstance(arms, list) else arms.kinds
    check_arms(name, None, kinds, 1)


def test_rb_tsde_learns_alone_unless_told_otherwise():
    assert named("rb-tsde", 100).sharing.aggregation == "none"
    assert named("rb-tsde", 100, {"aggregation": "sum"}).sharing.aggregation == "sum"
    assert settings_of("rb-tsde")["aggregation"] == "none"


def test_one_table_is_for_arms_of_as_many_states():
    arms = Arms([WATCHED, SEEN_LEVELS])
    Study(arms, policies=["qwi"])
    with pytest.raises(StudyError, match=r"one table for all arms, .* arm 2 has 3 states, arm 1 2"):
        Study(arms, policies=["qwi"], options={"qwi": {"equal": True}})


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("ts-grid", "support", 1),
        ("ts-grid", "support", 9.0),
        ("ts-grid", "planner", "optimal"),
        ("restless-ucb", "exponent", 1.5),
        ("restless-ucb", "radius", -1),
        ("ucw-value", "delta", 0),
        ("ucw-value", "scale", "wide"),
        ("dsee", "exploration", 0),
    ],
)
def test_options_out_of_range_are_refused(name, option, value):
    with pytest.raises(StudyError, match=rf"options\.{option} must be .*, got "):
        check_options(name, {option: value}, "options")
