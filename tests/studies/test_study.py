"""A study is checked when it is made; what the command line refuses is in tests/cli."""

import json
import re
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmab import Arm, Arms, Policy, RmabError, Study, StudyError, catalogue, channels, load
from rmab.policies.capabilities import Conditions
from rmab.policies.refusal import refusal
from rmab.policies.registry import POLICIES, STUDIED, named
from rmab.studies.study import KEYS, from_table, read_table

ARMS = channels(p01=[0.2, 0.89], p11=[0.8, 0.17], reward=[0.4, 0.9])
THREE = Arm([[0.5, 0.5, 0], [0.25, 0.5, 0.25], [0, 0.5, 0.5]], reward=[0, 1, 2])
MOVED = Arm([[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.3], [0.1, 0.9]], reward=[0, 1])
NAN = float("nan")


def study(**changes: Any) -> Study:
    return Study(**{"arms": ARMS, **changes})


def test_only_the_arms_must_be_given():
    made = Study(arms=ARMS)
    assert (made.agents, made.plays, made.seed) == (1, 1, 0)
    words = (made.realisations, made.schedule, made.draws)
    assert words == ("independent", "paper", "shared")
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


@pytest.mark.parametrize(
    "arms",
    [None, [], "ab", [[0.2, 0.8, 0.4]], {"p01": 0.2}, np.zeros((40, 40)), THREE, [THREE, 3]],
)
def test_arms_must_be_arms(arms):
    with pytest.raises(StudyError, match=r"^arms must be a list of rmab\.Arm, or ") as caught:
        Study(arms=arms)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_list_of_arms_becomes_arms():
    several: Any = [THREE, *ARMS, MOVED]
    for each in (several, tuple(several), Arms(several)):
        made = study(arms=each, plays=4)
        assert isinstance(made.arms, Arms)
        assert list(made.arms) == several
        assert replace(made, trials=2).arms is made.arms


def test_an_arm_of_a_study_has_at_most_64_states():
    assert len(study(arms=[Arm(np.eye(64), reward=np.ones(64))]).arms) == 1
    with pytest.raises(StudyError, match=r"^arm 2 must have at most 64 states in a study, got 65$"):
        study(arms=[THREE, Arm(np.eye(65), reward=np.ones(65))])


def test_so_many_arms_of_so_many_states():
    """2^22 numbers describe all transitions at most."""
    large = Arm(np.eye(64), reward=np.ones(64))
    assert len(study(arms=[large] * 1024).arms) == 1024
    with pytest.raises(StudyError, match=r"at most 1024 arms where one has 64 states, got 1025$"):
        study(arms=[large] * 1025)


@pytest.mark.parametrize("reward", [1e31, 1e300, 1e-31])
def test_rewards_must_fit_single_precision(reward):
    rule = "must be 0 or from 1e-30 to 1e30 in size in a study, got"
    shown = re.escape(str(reward))
    with pytest.raises(StudyError, match=f"^arm 2: reward_active of state 1 {rule} {shown}$"):
        Study(arms=channels(0.2, 0.8, [1, reward]))
    assert len(Study(arms=channels(0.2, 0.8, [0, 1e-30, 1e30])).arms) == 3
    costly = Arm(np.eye(3), reward_passive=[0, -1, -reward])
    with pytest.raises(StudyError, match=f"^arm 1: reward_passive of state 2 {rule} -{shown}$"):
        study(arms=[costly])


def test_rewards_of_general_arms_may_be_negative():
    costs = Arm(np.eye(3), reward=[-1, 0, -1e30], reward_passive=[-1e-30, 0, 1])
    assert study(arms=[costs]).arms[0] is costs


def test_what_agents_share_none_of_them_moves():
    assert study(arms=[*ARMS, THREE], realisations="shared").realisations == "shared"
    with pytest.raises(StudyError, match=r"^realisations must be 'independent', as arm 3 moves"):
        study(arms=[*ARMS, MOVED], realisations="shared")


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
        (["whittle", named("whittle", 10)], "'whittle' twice"),
        ([Policy("", depth=1)], "names"),
        ([SimpleNamespace(name="whittle")], "names"),
        ([3], "got 3"),
        ([None], "got None"),
        ([["whittle"]], r"got \['whittle'\]"),
    ],
)
def test_policies_must_be_known_and_differ(policies, rule):
    with pytest.raises(StudyError, match=f"policies.*{rule}"):
        study(policies=policies)


def test_every_built_in_policy_is_known():
    """Each on channels or, where it refuses those, on arms that are always observed."""
    watched = Arm(
        [[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.3], [0.1, 0.9]], reward=[0, 1], observed="always"
    )
    assert {*STUDIED, "genie"} == set(POLICIES)
    for name in STUDIED:
        arms = Arms([watched, watched]) if refusal(name, Conditions(ARMS.kinds)) else ARMS
        assert Study(arms, policies=[name]).policy_names == [name]
    everywhere = [name for name in STUDIED if not POLICIES[name].capabilities.arms]
    assert study(policies=everywhere).policy_names == everywhere


@pytest.mark.parametrize(
    ("options", "more", "key"),
    [
        ({}, {"policies": ["fedtswi-robust"]}, "options.fedtswi-robust.forget"),
        ({"prior": "population"}, {}, "options.fedtswi-gap.prior"),
        ({"aggregation": "pairs"}, {}, "options.fedtswi-gap.aggregation"),
        ({}, {"aggregation": "pairs"}, "options.fedtswi-gap.aggregation"),
    ],
)
def test_what_is_for_channels_alone_is_refused_where_other_arms_are(options, more, key):
    watched = Arm([[0.6, 0.4], [0.7, 0.3]], reward=[0.0, 0.1], observed="always")
    given = {"policies": ["fedtswi-gap"], "options": {"fedtswi-gap": options}, **more}
    Study(channels([0.2, 0.3], [0.8, 0.7], [1, 1]), **given)
    with pytest.raises(
        StudyError, match=rf"^{re.escape(key)} of .* must not be .* as arm 1 is not"
    ):
        Study(Arms([watched, watched]), **given)


def test_every_field_but_the_arms_is_a_key_of_a_file():
    assert sorted(["arms", *KEYS]) == sorted(field.name for field in fields(Study))
    after = ["policies", "options", "weights", "agent", "privacy"]
    assert list(KEYS)[-5:] == after  # plain values
    assert all(key.label and key.about for key in KEYS.values())
    assert len({key.label for key in KEYS.values()}) == len(KEYS)


@pytest.mark.parametrize("key", [name for name, key in KEYS.items() if key.choices])
@pytest.mark.parametrize("word", ["default", "last"])
def test_words_that_are_known_are_taken(key, word):
    choices = tuple(KEYS[key].choices)
    assert getattr(study(), key) in choices
    given = getattr(study(), key) if word == "default" else choices[-1]
    assert getattr(study(**{key: given}), key) == given


@pytest.mark.parametrize("key", [name for name, key in KEYS.items() if key.choices])
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
        ({"fedtswi": {"sigma": 1}}, "unknown key 'sigma'; fedtswi has aggregation, .*prior"),
        ({"random": {"sigma": 1}}, "unknown key 'sigma'; random takes no options"),
        ({"feducb-wi": {"clip": 1}}, r"feducb-wi\.clip must be true or false, got 1"),
        ({"fedtswi": {"prior": (0, 1)}}, r"fedtswi\.prior must be a number, or two numbers"),
        ({"fedtswi": {"prior": (1, NAN)}}, r"fedtswi\.prior must be a number, or two numbers"),
        ({"fedtswi": {"prior": 0}}, r"fedtswi\.prior must be a number, or two .*, got 0$"),
        ({"fedtswi": {"prior": [1]}}, r"fedtswi\.prior must be a number, or two .*, got \[1\]$"),
        ({"fed1-ucb": {"sigma": 0}}, r"fed1-ucb\.sigma must be a positive number"),
        ({"fed1-ucb": {"sigma": 10**400}}, r"fed1-ucb\.sigma must be a positive number"),
    ],
)
def test_options_are_checked(options, rule):
    with pytest.raises(StudyError, match=rule):
        study(options=options)


def test_a_prior_is_a_number_or_for_two_states_two():
    for arms in (ARMS, [MOVED, *ARMS]):
        for prior in (1, 0.5, [1, 0.5], (2, 1)):
            made = study(arms=arms, options={"fedtswi": {"prior": prior}})
            assert made.options["fedtswi"]["prior"] == prior
    study(arms=[THREE], options={"feducb-wi": {"prior": 0.5}})
    rule = r"^options\.feducb-wi\.prior must be one number, as arm 3 has 3 states, got \[1, 1\]$"
    with pytest.raises(StudyError, match=rule):
        study(arms=[*ARMS, THREE], options={"feducb-wi": {"prior": [1, 1]}})


@pytest.mark.parametrize("name", ["feducb-wi", "feducb-myopic"])
@pytest.mark.parametrize("arm", [THREE, MOVED, Arm(np.eye(2), reward=[0.1, 1])])
def test_bounds_are_clipped_unless_all_arms_are_channels(name, arm):
    study(options={name: {"clip": False}})
    study(arms=[*ARMS, arm], options={name: {"clip": True}})
    with pytest.raises(StudyError, match=rf"^options\.{name}\.clip must be true unless all arms "):
        study(arms=[*ARMS, arm], options={name: {"clip": False}})


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
    made = from_table(
        table(agents=2, plays=2, policies=["random"], weights=[1, 0.5], draws="per-agent")
    )
    assert (made.agents, made.plays, made.policies) == (2, 2, ("random",))
    assert made.draws == "per-agent"
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


# ------------------------------------------------------------------------------------ general arms

GENERAL: dict[str, Any] = {
    "passive": [[0.9, 0.1, 0], [0.2, 0.6, 0.2], [0, 0.3, 0.7]],
    "active": [[1, 0, 0], [1, 0, 0], [1, 0, 0]],
    "reward": [0, 1, 2.5],
    "observed": "always",
}


def general(**changes: Any) -> dict[str, Any]:
    """A channel and a general arm, some of whose keys are changed; None leaves one out."""
    arm = {key: value for key, value in {**GENERAL, **changes}.items() if value is not None}
    return {"arm": [table()["arm"][0], arm]}


def test_arms_of_several_kinds_stand_in_one_table():
    made = from_table(general())
    channel, arm = made.arms
    assert channel.passive.tolist() == pytest.approx(np.array([[0.8, 0.2], [0.2, 0.8]]))
    assert channel.reward_active.tolist() == [0, 0.4]
    assert arm.passive.tolist() == GENERAL["passive"]
    assert arm.active.tolist() == GENERAL["active"]
    assert arm.reward_active.tolist() == GENERAL["reward"]
    assert arm.observed == "always"
    assert not from_table(general()).arms.are_channels


def test_what_a_general_arm_leaves_out():
    arm = from_table(general(active=None, observed=None)).arms[1]
    assert not arm.action_dependent
    assert arm.observed == "when_played"
    assert arm.reward_passive.tolist() == [0, 0, 0]
    arm = from_table(general(reward=None, reward_active=[1, 2, 3], reward_passive=[-1, 0, 0])).arms[
        1
    ]
    assert arm.reward_active.tolist() == [1, 2, 3]
    assert arm.reward_passive.tolist() == [-1, 0, 0]
    assert from_table(general(reward=None, reward_passive=[1, 0, 0])).arms[1].states == 3


def test_a_channel_may_be_written_either_way():
    matrix = [[0.8, 0.2], [0.1, 0.9]]
    made = from_table({"arm": [{"passive": matrix, "reward": [0, 0.7]}]})
    assert made.arms.are_channels
    assert (made.arms.p01[0], made.arms.p11[0], made.arms.reward[0]) == (0.2, 0.9, 0.7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"passive": [[0.9, 0.1], [0.5, 0.4]]}, r"passive row 1 must sum to 1, got 0\.9: \[0\.5, "),
        (
            {"passive": [["0.5", 0.5], [0, 1]]},
            r"passive row 0: column 0 must .* number, got '0\.5'",
        ),
        ({"active": [[1, 0, 0], [0, True, 0]]}, r"active row 1: column 1 must .* number, got True"),
        ({"active": [[1, 0, 0], [0, 10**400, 0]]}, r"active row 1: column 1 must .* number, got 1"),
        ({"active": [[1, 0, 0], [0, NAN, 0]]}, r"active row 1: column 1 must .* number, got nan"),
        ({"active": [[1, 0, 0], [[0], 1, 0]]}, r"active row 1: column 0 must .* number, got \[0\]"),
        ({"passive": [0.5, 0.5]}, r"passive row 0 must be a list of numbers, got 0\.5$"),
        ({"passive": "rows"}, r"passive must be a list of rows of numbers, got 'rows'$"),
        ({"passive": {"0": [1]}}, r"passive must be a list of rows of numbers, got \{"),
        ({"reward": ["1", 0, 0]}, r"reward: state 0 must be a finite number, got '1'$"),
        ({"reward": [1, False, 0]}, r"reward: state 1 must be a finite number, got False$"),
        ({"reward_passive": [1, 0, NAN]}, r"reward_passive: state 2 must .* number, got nan$"),
        ({"reward": 1}, r"reward must be a list of numbers, got 1$"),
        ({"reward": [1, 2]}, r"reward must be 3 numbers, one for each state, got 2 numbers$"),
        ({"reward": None}, r"reward is missing: 3 numbers, one for each state$"),
        ({"reward_active": [1, 2, 3]}, "reward and reward_active are the same"),
        ({"observed": "seldom"}, "observed: unknown 'seldom'; known are when_played, always$"),
        ({"observed": ["always"]}, "observed: unknown .*; known are when_played, always$"),
        ({"p11": 0.5}, "p11 and passive must not be in one table; a channel has p01, p11, reward;"),
        ({"passive": None, "p01": 0.5}, "p01 and active must not be in one table; a channel has"),
        ({"passive": None}, "p01 or passive is missing; a channel has p01, p11, reward; any other"),
        (
            {"name": "x"},
            "unknown key 'name'; a channel has p01, p11, reward; any other arm passive,",
        ),
    ],
)
def test_a_general_arm_says_what_is_wrong(changes, message):
    with pytest.raises(StudyError, match=f"^arm 2: {message}") as caught:
        from_table(general(**changes))
    assert "\n" not in str(caught.value)


def test_the_arm_named_is_the_one_in_the_file():
    """Also a channel after general arms."""
    arms = [GENERAL, GENERAL, {"p01": 0.2, "p11": 1.2, "reward": 1}, GENERAL]
    with pytest.raises(StudyError, match=r"^arm 3: p11 must lie in \[0, 1\], got 1\.2$"):
        from_table({"arm": arms})


def test_messages_on_arms_stay_short_whatever_is_given():
    nested: Any = []
    for _ in range(5000):
        nested = [nested]
    for value in (nested, "x" * 10**6, [1] * 10**5, 10**5000, "two\nlines", {"a": nested}):
        for key in ("passive", "active", "reward", "reward_passive", "observed", "p01", "other"):
            with pytest.raises(StudyError, match=r"^arm 2: ") as caught:
                from_table(general(**{key: value}))
            assert len(str(caught.value)) < 300
            assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------ the catalogue


def test_a_study_of_the_catalogue_is_loaded_by_name(tmp_path, monkeypatch):
    made = load("catalogue:fading")
    assert made.arms.sizes.tolist() == [4, 4, 4, 4]
    for name in ("", "none", "fading.toml", "../figures/fig06", "Fading", "two\nlines"):
        with pytest.raises(StudyError, match=r"^catalogue: unknown .*known are adherence, ") as no:
            load(f"catalogue:{name}")
        assert "\n" not in str(no.value)
    # A file may have such a name.
    monkeypatch.chdir(tmp_path)
    Path("catalogue:mine").write_text("[[arm]]\np01 = 1\np11 = 0\nreward = 2\n")
    assert len(load(Path("catalogue:mine")).arms) == 1
    assert len(load("./catalogue:mine").arms) == 1


# --------------------------------------------------------------------------------- as a table again

CHANCE = st.floats(0, 1)
REWARD = st.floats(-9, 9).map(lambda x: round(x, 3)) | st.sampled_from([0.0, 1e-30, 1e30, -0.0])


@st.composite
def matrices(draw: st.DrawFn, size: int) -> list[list[float]]:
    rows = []
    for _ in range(size):
        weights = np.array(draw(st.lists(st.floats(0.001, 1), min_size=size, max_size=size)))
        rows.append((weights / weights.sum()).tolist())
    return rows


@st.composite
def any_arm(draw: st.DrawFn) -> Arm:
    if draw(st.booleans()):
        return channels(draw(CHANCE), draw(CHANCE), abs(draw(REWARD)))[0]
    size = draw(st.integers(2, 4))
    rewards = st.lists(REWARD, min_size=size, max_size=size)
    return Arm(
        draw(matrices(size)),
        draw(st.none() | matrices(size)),
        reward_active=draw(rewards),
        reward_passive=draw(st.none() | rewards),
        observed=draw(st.sampled_from(["when_played", "always"])),
    )


OPTIONS_OF: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "fedtswi": {"prior": st.floats(1e-6, 1e6), "aggregation": st.sampled_from(["sum", "none"])},
    "fedtswi-gap": {"gaps": st.integers(8, 128)},
    "feducb-wi": {"clip": st.just(True)},
    "lookahead": {"depth": st.just(1)},
    "ucb": {"c": st.floats(0, 10) | st.integers(0, 10)},
}


@st.composite
def any_study(draw: st.DrawFn) -> Study:
    arms = Arms(draw(st.lists(any_arm(), min_size=1, max_size=3)))
    agents = draw(st.integers(1, 3))
    fixed = all(not arm.action_dependent for arm in arms)
    options = {
        name: draw(st.fixed_dictionaries({}, optional=taken)) for name, taken in OPTIONS_OF.items()
    }
    # Those that are not for all arms are refused elsewhere, each by the test of its name.
    names = [
        name
        for name in STUDIED
        if not POLICIES[name].capabilities.arms and not name.endswith("-robust")
    ]
    return Study(
        arms=arms,
        agents=agents,
        plays=draw(st.integers(1, len(arms))),
        horizon=draw(st.integers(1, 10**6)),
        trials=draw(st.integers(1, 2**32)),
        seed=draw(st.integers(0, 2**64 - 1)),
        realisations=draw(st.sampled_from(["independent", *(["shared"] if fixed else [])])),
        schedule=draw(st.sampled_from(["paper", "linear", "doubling"])),
        policies=draw(st.lists(st.sampled_from(names), min_size=1, unique=True)),
        options={name: given for name, given in options.items() if given},
        weights=draw(st.none() | st.lists(st.floats(0, 1e6), min_size=agents, max_size=agents)),
        draws=draw(st.sampled_from(["shared", "per-agent"])),
        aggregation=draw(st.sampled_from(["sum", "none"])),
    )


@given(any_study())
def test_a_study_is_read_back_from_its_table(made):
    table = made.to_table()
    again = from_table(json.loads(json.dumps(table, allow_nan=False)))
    assert again.to_table() == table
    for key in KEYS:
        assert getattr(again, key) == getattr(made, key), key
    assert again.arms.observed == made.arms.observed
    for key in ("passive", "active", "reward_passive", "reward_active"):
        np.testing.assert_array_equal(getattr(again.arms, key), getattr(made.arms, key))


def test_numbers_of_numpy_and_pairs_become_plain():
    made = study(
        seed=np.uint64(7),
        agents=2,
        weights=(np.float64(1), 2),
        options={"fedtswi": {"prior": (1, 2)}},
    )
    table = made.to_table()
    assert type(table["seed"]) is int
    assert table["weights"] == [1.0, 2.0]
    assert type(table["weights"][0]) is float
    assert table["options"] == {"fedtswi": {"prior": [1, 2]}}
    assert table["arm"][0] == {"p01": 0.2, "p11": 0.8, "reward": 0.4}


def test_tied_rows_are_read_and_written():
    table = load("catalogue:age-of-information").to_table()
    assert table["arm"][0]["tied_active"] == [[0]] * 8
    assert "tied_passive" not in table["arm"][0]
    again = from_table(json.loads(json.dumps(table)))
    assert again.to_table() == table
    made = [catalogue.age_of_information(8, x, w) for x, w in ((0.9, 1), (0.6, 1), (0.8, 2))]
    for read, wanted in zip(again.arms, made, strict=True):
        assert read.tie is not None
        assert wanted.tie is not None
        assert read.tie.active == wanted.tie.active
        np.testing.assert_allclose(read.tie.for_sure, wanted.tie.for_sure, atol=1e-12)


def test_tied_needs_an_arm_that_says_what_is_tied():
    with pytest.raises(
        StudyError, match=r"^options\.fedtswi\.tied of fedtswi must be false, as no"
    ):
        study(policies=["fedtswi"], options={"fedtswi": {"tied": True}})
    with pytest.raises(StudyError, match=r"fedtswi\.tied must be true or false, got 1"):
        study(options={"fedtswi": {"tied": 1}})
    with pytest.raises(StudyError, match=r"unknown key 'tied'; feducb-wi has"):
        study(options={"feducb-wi": {"tied": True}})


def test_a_policy_of_ones_own_has_no_table():
    mine = Policy("mine", lambda *_: None)
    with pytest.raises(StudyError, match="'mine' is an object of one's own"):
        study(policies=["whittle", mine]).to_table()


@pytest.mark.parametrize("value", [0, -0.1, 1.01, NAN, True, "half", None])
def test_a_doubt_is_a_chance_above_0(value):
    assert study(doubt=1).doubt == 1.0
    with pytest.raises(StudyError, match="doubt must be a number above 0 and at most 1, got"):
        study(doubt=value)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"policies": ["feducb-wi"]}, "feducb-wi does not draw"),
        ({"policies": ["fedts-lookahead-gap"]}, "or not for an index"),
        ({"arms": [*ARMS, THREE]}, "arm 3 is no channel"),
        (
            {"policies": ["fedtswi-gap"], "options": {"fedtswi-gap": {"plan_by": "mode"}}},
            "plan_by = 'mode' does not draw",
        ),
        (
            {"policies": ["fedtswi-gap"], "options": {"fedtswi-gap": {"forget": 100}}},
            "forgets counts or learns its prior",
        ),
        ({"aggregation": "none"}, "share no sum"),
    ],
)
def test_draws_of_ones_own_are_for_thompson_sampling_of_channels(changes, why):
    """What knows the dynamics may stand beside it."""
    made = study(draws="own", policies=["fedtswi", "fedtswi-gap", "whittle", "random"])
    assert made.to_table()["draws"] == "own"
    with pytest.raises(StudyError, match=rf"^draws must not be 'own', as .*{why}"):
        study(**{"draws": "own", "policies": ["fedtswi"], **changes})


# ------------------------------------------------------------------------------------------- edges


def test_what_is_plain_is_left_out_of_a_file():
    """Keys that few studies need, where they have their defaults; all others stand in it."""
    rare = {"weights", "doubt", "graph", "degree", "failure", "agent", "privacy"}
    assert set(study().to_table()) == {*KEYS, "arm"} - rare
    given = {"agents": 2, "weights": [1.0, 2.0], "graph": "regular", "degree": 1, "failure": 0.5}
    assert set(study(**given).to_table()) == {*KEYS, "arm"} - (rare - set(given))
    assert study(doubt=0.5).to_table()["doubt"] == 0.5


def test_arms_of_agents_are_counted():
    assert study(agents=5).differing_arms == {ARMS: 5} or study(agents=5).agent_arms == ()
    plain = study(agents=5)
    assert (plain.agent_arms, list(plain.differing_arms.values())) == ((), [5])
    other = [{"number": 1, "reward": 0.7}]
    made = study(agents=5, agent=[{"agents": [2, 3, 5], "arm": other}])
    assert sorted(made.differing_arms.values()) == [2, 3]
    one, two, three, _, five = made.agent_arms
    assert two is three is five
    assert (one[0].reward_active[1], two[0].reward_active[1]) == (0.4, 0.7)
    assert list(made.differing_arms) == [one, two]


@pytest.mark.parametrize("agents", [1, 5, 6, 7, 9])
def test_groups_have_at_least_three_agents(agents):
    most = max(1, agents // 3)
    for groups in (1, most):
        assert study(agents=agents, privacy={"groups": groups}).groups == groups
    for groups in (0, most + 1, 1.0, True, "1"):
        with pytest.raises(StudyError, match=f"privacy.groups must be .* from 1 to {most}, for"):
            study(agents=agents, privacy={"groups": groups})


@pytest.mark.parametrize(
    ("privacy", "why"),
    [
        (3, "privacy must be a table, got 3"),
        ({"eps": 1}, "privacy: unknown 'eps'; known are epsilon, delta, groups, survey"),
        ({}, r"privacy.epsilon is missing"),
        ({"delta": 1e-6}, r"privacy.epsilon is missing"),
        ({"delta": 1e-6, "groups": 1}, r"privacy.epsilon is missing"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": 1, "delta": 1}, "delta"),
        ({"survey": 100}, "survey"),
        ({"epsilon": 1, "survey": 0}, "survey"),
        ({"epsilon": 1, "survey": 100}, "privacy.survey needs draws = 'own', .*; got 'shared'"),
    ],
)
def test_what_no_table_of_privacy_says(privacy, why):
    with pytest.raises(StudyError, match=why):
        study(agents=6, schedule="linear", privacy=privacy)


def test_noise_needs_a_schedule_and_no_weights():
    made = {"agents": 6, "policies": ["fedtswi"], "privacy": {"epsilon": 2.0, "groups": 2}}
    found = study(schedule="linear", **made)
    assert (found.groups, found.survey) == (2, 0)
    assert study(schedule="doubling", **made).budget == found.budget
    assert found.budget is not None
    assert (found.budget.epsilon, found.budget.delta) == (2.0, 1e-6)
    assert study(agents=6, privacy={"groups": 2}).budget is study().budget is None
    with pytest.raises(StudyError, match="schedule must be 'linear' or 'doubling' with privacy"):
        study(**made)
    with pytest.raises(StudyError, match=r"weights cannot go with privacy\.epsilon"):
        study(schedule="linear", weights=[1.0] * 6, **made)
    mine = Policy("mine", depth=1)
    assert study(schedule="linear", **{**made, "policies": [mine]}).policy_names == ["mine"]
    learner = replace(named("fedtswi", 10), name="mine")
    with pytest.raises(StudyError, match="'mine' is a learner of one's own, of which it is not"):
        study(schedule="linear", **{**made, "policies": [learner]})


def test_a_survey_costs_more_than_draws_of_ones_own():
    made = {"agents": 6, "schedule": "linear", "draws": "own", "policies": ["fedtswi"]}
    surveyed = study(**made, privacy={"epsilon": 1.0, "survey": 100})
    assert surveyed.survey == 100
    assert "and a survey cost 6 agents about as much" in (surveyed.cost_warning or "")
    own = study(**made, privacy={"epsilon": 1.0})
    assert "leaves 6 agents little to gain" in (own.cost_warning or "")
    assert study().cost_warning is None
    many = {**made, "agents": 2000, "privacy": {"epsilon": 1.0, "survey": 100}}
    assert study(**many).cost_warning is None


def test_gossip_is_of_agents_that_have_links():
    assert study(aggregation="gossip", agents=2).gossips
    assert not study(agents=2).gossips
    own = {"fedtswi": {"aggregation": "gossip", "degree": 4}}
    made = study(agents=9, graph="regular", options=own, failure=0)
    assert made.gossips
    assert type(made.failure) is float
    said = {"graph": "regular", "failure": 0.0, "degree": 4, "aggregation": "gossip"}
    assert made.options_of("fedtswi") == said
    assert made.options_of("whittle") == {}
    assert study(options={"fedtswi": {"prior": 2}}).options_of("fedtswi") == {"prior": 2}
    with pytest.raises(StudyError, match=r"^options\.fedtswi: "):
        study(agents=2, graph="regular", options=own)
    for key, value in (("degree", 0), ("failure", 1.0), ("failure", -0.1)):
        with pytest.raises(StudyError, match=f"^{key} must be a .*number"):
            study(**{key: value})


@pytest.mark.parametrize("weight", [-1e-9, 1.1e6, NAN, "1", None, True])
def test_a_weight_lies_between_0_and_a_million(weight):
    assert study(agents=2, weights=[0, 1e6]).weights == (0.0, 1e6)
    with pytest.raises(StudyError, match="weights: agent 2's must be a number from 0 to 1e6, got"):
        study(agents=2, weights=[1, weight])


def test_what_agents_share_moves_in_one_way():
    moves = [{"agents": 2, "arm": [{"number": 2, "p11": 0.5}]}]
    pays = [{"agents": 2, "arm": [{"number": 2, "reward": 0.5}]}]
    assert study(agents=2, agent=moves).realisations == "independent"
    assert study(agents=2, agent=pays, realisations="shared").realisations == "shared"
    with pytest.raises(StudyError, match="must be 'independent', as agent 2, arm 2 moves otherw"):
        study(agents=2, agent=moves, realisations="shared")


@pytest.mark.parametrize("arm", [None, [], {}, [3], "ab"])
def test_arms_of_a_table_are_tables(arm):
    table = {} if arm is None else {"arm": arm}
    got = "none" if arm is None else ""
    with pytest.raises(StudyError, match=rf"arm must be one or more \[\[arm\]\] tables, got {got}"):
        from_table(table)
    with pytest.raises(StudyError, match=r"unknown key 'arms'; known are .*, arm$"):
        from_table({"arms": [], **table})
