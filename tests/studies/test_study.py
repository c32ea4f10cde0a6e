"""A study is checked when it is made; what the command line refuses is in tests/test_cli.py."""

from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rmab import Arms, ModelError, RmabError, Study, StudyError, channels, load, run
from rmab.studies.study import KNOWN, LEARNERS, from_table, read_table

ARMS = channels(p01=[0.2, 0.89], p11=[0.8, 0.17], reward=[0.4, 0.9])
NAN = float("nan")


def study(**changes: Any) -> Study:
    return Study(**{"arms": ARMS, **changes})


def test_only_the_arms_must_be_given():
    made = Study(arms=ARMS)
    assert (made.agents, made.plays, made.seed) == (1, 1, 0)
    assert (made.realisations, made.schedule) == ("independent", "paper")
    assert made.policy_names == ["fedtswi", "whittle"]
    assert made.options == {}
    assert made.weights is None


def test_a_study_cannot_be_changed():
    made = study(policies=["whittle"], agents=2, weights=[1, 2])
    assert made.policies == ("whittle",)
    assert made.weights == (1.0, 2.0)
    with pytest.raises(FrozenInstanceError):
        made.trials = 3  # type: ignore[misc]  # that is the point


def test_a_changed_copy_is_checked_again():
    assert replace(study(), trials=5).trials == 5
    with pytest.raises(StudyError, match=r"trials must be a whole number .*, got 0"):
        replace(study(), trials=0)


@pytest.mark.parametrize("key", ["agents", "plays", "horizon", "trials", "seed"])
@pytest.mark.parametrize("whole", [np.int64(1), np.uint8(1), np.int32(1)])
def test_whole_numbers_of_numpy_are_whole_numbers(key, whole):
    value = getattr(study(**{key: whole}), key)
    assert type(value) is int
    assert value == 1


@pytest.mark.parametrize("key", ["agents", "plays", "horizon", "trials", "seed"])
@pytest.mark.parametrize("value", [-1, 1.0, 1.5, "1", True, None, NAN, [1], np.float64(1), 2**70])
def test_counts_must_be_whole_numbers_in_range(key, value):
    with pytest.raises(StudyError, match=f"^{key} must be a whole number"):
        study(**{key: value})


@pytest.mark.parametrize("key", ["agents", "plays", "horizon", "trials"])
def test_counts_begin_at_one(key):
    with pytest.raises(StudyError, match=f"^{key} must be .*, got 0$"):
        study(**{key: 0})


def test_the_extremes_are_allowed():
    made = study(agents=2**16, plays=2, horizon=10**6, trials=2**32, seed=2**64 - 1)
    assert made.seed == 2**64 - 1


def test_no_more_plays_than_arms():
    with pytest.raises(StudyError, match=r"plays must .* between 1 and 2, .* arms, got 3"):
        study(plays=3)


@pytest.mark.parametrize("arms", [None, [[0.2, 0.8, 0.4]], {"p01": 0.2}, np.zeros((40, 40))])
def test_arms_must_be_arms(arms):
    with pytest.raises(StudyError, match=r"arms must be made by rmab\.channels") as caught:
        Study(arms=arms)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("reward", [1e31, 1e300, 1e-31])
def test_rewards_must_fit_single_precision(reward):
    with pytest.raises(StudyError, match="arm 2: reward must be 0 or from 1e-30 to 1e30"):
        Study(arms=channels(0.2, 0.8, [1, reward]))
    assert len(Study(arms=channels(0.2, 0.8, [0, 1e-30, 1e30])).arms) == 3


@pytest.mark.parametrize("policies", ["whittle", None, 3, {"whittle": 1}, {"whittle"}])
def test_policies_must_be_a_list(policies):
    with pytest.raises(StudyError, match="policies must be a list of names"):
        study(policies=policies)


@pytest.mark.parametrize(
    ("policies", "rule"),
    [
        ([], "at least one"),
        ((), "at least one"),
        (["nope"], "unknown 'nope'; known are fedtswi, "),
        (["whittle", "whittle"], "'whittle' twice"),
        (["whittle", SimpleNamespace(name="whittle", planner=None)], "'whittle' twice"),
        ([SimpleNamespace(name="", planner=None)], "names"),
        ([SimpleNamespace(planner=None)], "names"),
        ([3], "got 3"),
        ([None], "got None"),
        ([["whittle"]], r"got \['whittle'\]"),
    ],
)
def test_policies_must_be_known_and_differ(policies, rule):
    with pytest.raises(StudyError, match=f"policies.*{rule}"):
        study(policies=policies)


def test_every_built_in_policy_is_known():
    from rmab.federation.policies import POLICIES

    assert {*LEARNERS, *KNOWN} == set(POLICIES)
    assert study(policies=[*LEARNERS, *KNOWN]).policy_names == [*LEARNERS, *KNOWN]


@pytest.mark.parametrize("key", ["realisations", "schedule"])
@pytest.mark.parametrize("value", ["", "Paper", None, 1, ["shared"], {}])
def test_words_must_be_among_the_known(key, value):
    with pytest.raises(StudyError, match=f"^{key}: unknown .*known are "):
        study(**{key: value})


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (3, "^options must be a table"),
        ({"nope": {}}, "^options: unknown 'nope'"),
        ({"fedtswi": 3}, r"^options\.fedtswi must be a table"),
        ({"fedtswi": {"sigma": 1}}, "unknown key 'sigma'; fedtswi has prior"),
        ({"random": {"sigma": 1}}, "unknown key 'sigma'; random takes no options"),
        ({"feducb-wi": {"clip": 1}}, r"feducb-wi\.clip must be true or false, got 1"),
        ({"fedtswi": {"prior": (0, 1)}}, r"fedtswi\.prior must be two numbers"),
        ({"fedtswi": {"prior": (1, NAN)}}, r"fedtswi\.prior must be two numbers"),
        ({"fed1-ucb": {"sigma": 0}}, r"fed1-ucb\.sigma must be a positive number"),
        ({"fed1-ucb": {"sigma": 10**400}}, r"fed1-ucb\.sigma must be a positive number"),
    ],
)
def test_options_are_checked(options, rule):
    with pytest.raises(StudyError, match=rule):
        study(options=options)


@pytest.mark.parametrize(
    "weights", [[1], [1, 2, 3], "ab", 1, [1, -1], [1, NAN], [1, True], [1, 1e9]]
)
def test_weights_are_checked(weights):
    with pytest.raises(StudyError, match=r"^weights"):
        study(agents=2, weights=weights)


def test_messages_stay_short_whatever_is_given():
    nested: Any = []
    for _ in range(5000):
        nested = [nested]
    for value in (nested, "x" * 10**6, [1] * 10**5, 10**5000, "two\nlines"):
        with pytest.raises(StudyError) as caught:
            study(trials=value)
        assert len(str(caught.value)) < 300
        assert "\n" not in str(caught.value)


# --------------------------------------------------------------------------------------- from files


def table(**changes: Any) -> dict[str, Any]:
    arms = [{"p01": 0.2, "p11": 0.8, "reward": 0.4}, {"p01": 1, "p11": 0, "reward": 0}]
    return {"arm": arms, **changes}


def test_a_table_is_a_study():
    made = from_table(table(agents=2, plays=2, policies=["random"], weights=[1, 0.5]))
    assert (made.agents, made.plays, made.policies) == (2, 2, ("random",))
    np.testing.assert_array_equal(made.arms.p01, [0.2, 1])
    np.testing.assert_array_equal(made.arms.p11, [0.8, 0])
    np.testing.assert_array_equal(made.arms.reward, [0.4, 0])


@pytest.mark.parametrize("key", ["p01", "p11", "reward"])
def test_a_field_of_an_arm_cannot_be_left_out(key):
    arms = table()["arm"]
    del arms[1][key]
    with pytest.raises(StudyError, match=f"^arm 2: {key} is missing"):
        from_table({"arm": arms})


@pytest.mark.parametrize("value", [-0.1, 1.1, NAN, float("inf"), "0.5", True, None, 10**400])
def test_a_probability_lies_in_0_to_1(value):
    arms = [{"p01": value, "p11": 0.8, "reward": 0.4}]
    with pytest.raises(RmabError, match=r"^arm 1: p01 must"):
        from_table({"arm": arms})


def test_load_reads_a_file(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(
        'trials = 7\npolicies = ["myopic"]\n[[arm]]\np01 = 1\np11 = 0\nreward = 2\n'
        '[figure]\ntitle = "kept aside"\n'
    )
    made = load(path)
    assert load(str(path)).trials == made.trials == 7
    assert made.policies == ("myopic",)
    assert len(made.arms) == 1
    assert read_table(path)["figure"] == {"title": "kept aside"}


def test_load_names_the_file_whatever_is_wrong(tmp_path):
    path = tmp_path / "bad.toml"
    for content in (b"x", b"\xff", b"", b"arm = 3", b"[[arm]]\np01 = 2\np11 = 0\nreward = 1\n"):
        path.write_bytes(content)
        with pytest.raises(StudyError, match=r"bad\.toml: "):
            load(path)
    for missing in (tmp_path / "none.toml", tmp_path, Path("nul\0byte")):
        with pytest.raises(StudyError, match=": "):
            load(missing)


def test_general_arms_are_refused_when_run():
    flat = np.full((2, 2, 2), 0.5)
    arms = Arms(flat, flat, np.zeros((2, 2)), np.ones((2, 2)), ("always", "always"))
    with pytest.raises(ModelError, match="channels"):
        run(Study(arms=arms, trials=1, horizon=1))
