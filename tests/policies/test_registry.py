"""Policies by name: what a study may name is what there is, with the same options."""

import numpy as np
import pytest

from rmab import Arm, Study, channels
from rmab.errors import ModelError, StudyError
from rmab.policies.aggregation import Gossip
from rmab.policies.entry import GROUPS
from rmab.policies.policy import Forgetting, Policy, Sharing
from rmab.policies.registry import (
    KNOWN,
    LEARNERS,
    OPTIONS,
    POLICIES,
    SERVED,
    STUDIED,
    check_options,
    named,
)

VALUES = {
    "L": 2.0,
    "ages": 3,
    "aggregation": "none",
    "c": 3.0,
    "clip": True,
    "degree": 3,
    "delta": 0.01,
    "depth": 3,
    "epsilon": 1.0,
    "equal": True,
    "exploration": 2.0,
    "explore": 0.2,
    "exponent": 0.5,
    "failure": 0.25,
    "forget": "bank",
    "gaps": 16,
    "graph": "grid",
    "index_rate": 0.3,
    "longest": 50,
    "plan_by": "mode",
    "planner": "myopic",
    "prior": 2.0,
    "pulls": 10,
    "radius": 0.0,
    "rate": 0.05,
    "scale": 0.1,
    "sigma": 1.0,
    "sigma_c": 0.1,
    "support": 4,
    "tied": True,
}


@pytest.mark.parametrize("name", POLICIES)
def test_every_entry_makes_its_policy(name):
    """With exactly the options that it says it has."""
    entry = POLICIES[name]
    policy = named(name, 100)
    assert policy.name == name
    assert (policy.learns or policy.rule.learns) == (name in LEARNERS)
    assert set(entry.options) <= set(VALUES) == set(OPTIONS)
    for option, value in VALUES.items():
        if option in entry.options:
            check_options(name, {option: value}, "options")
            named(name, 100, {option: value})
        else:
            with pytest.raises(StudyError, match=f"unknown key '{option}'; {name} "):
                check_options(name, {option: value}, "options")


def test_entries_differ_where_people_tell_them_apart():
    entries = list(POLICIES.values())
    assert {entry.group for entry in entries} == set(GROUPS)
    for key in ("summary", "label", "colour"):
        assert len({getattr(entry, key) for entry in entries}) == len(entries)
    assert all(option.allowed(VALUES[name]) for name, option in OPTIONS.items())


def test_policies_that_learn_from_every_look_count_by_gap():
    for name in LEARNERS:
        every_look = name.endswith(("-gap", "-robust", "-grid"))
        colours = 3 if name == "colored-ucrl2" else 0  # gaps below the highest age
        assert named(name, 100).learner.gaps == (32 if every_look else colours)
    policy = named("fedtswi-gap", 100, {"gaps": 12})
    assert policy.learner.gaps == 12
    assert getattr(policy.learner.function, "keywords", {})["gaps"] == 12


def test_the_same_policy_is_the_same_object():
    """Its compiled program is found by identity."""
    assert named("feducb-wi", 100, {"clip": False}) is named("feducb-wi", 100, {"clip": False})
    assert named("fedtswi", 100, {"prior": [1, 2]}) is named("fedtswi", 100, {"prior": (1, 2)})
    assert named("fedtswi", 100) is not named("fedtswi", 200)


@pytest.mark.parametrize(
    ("key", "value"), [("depth", 2.0), ("depth", -1), ("gaps", -1), ("gaps", 2.5), ("max_age", 0)]
)
def test_numbers_of_ones_own_policy_are_checked(key, value):
    with pytest.raises(
        ModelError, match=f"policy mine: {key} must be a whole number .* got {value}"
    ):
        Policy("mine", None, **{key: value})


@pytest.mark.parametrize("value", [0, -3, float("nan"), float("inf"), True, "soon", None])
def test_a_half_life_is_a_positive_number(value):
    with pytest.raises(StudyError, match=r"options\.forget must be .*half-life.*, got "):
        check_options("fedtswi-gap", {"forget": value}, "options")


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "50"])
def test_the_longest_episode_is_a_whole_number(value):
    with pytest.raises(StudyError, match=r"options\.longest must be a whole number from 1 .* got "):
        check_options("fedtswi-gap", {"longest": value}, "options")


def test_a_prior_is_learnt_by_those_that_learn_from_any_gap():
    check_options("fedtswi-gap", {"prior": "population"}, "options")
    with pytest.raises(
        StudyError, match=r"prior must be a number.*, or 'population', got 'people'"
    ):
        check_options("fedtswi-gap", {"prior": "people"}, "options")
    with pytest.raises(StudyError, match=r"prior must be a number.* got 'population'"):
        check_options("fedtswi", {"prior": "population"}, "options")
    with pytest.raises(StudyError, match=r"plan_by must be \"draw\" or \"mode\", got 'mean'"):
        check_options("fedtswi-gap", {"plan_by": "mean"}, "options")


def test_robust_names_have_all_of_it_set_and_options_go_over_it():
    for name in ("fedtswi-robust", "fedts-myopic-robust", "fedce-myopic-robust"):
        policy = named(name, 100)
        assert policy.sharing == Sharing("pairs", "per-agent")
        assert policy.episodes.longest == 50
        bank = Forgetting((float("inf"), 2048.0, 512.0, 128.0), (0.7, 0.1, 0.1, 0.1))
        assert policy.learner.forget == bank
        assert policy.learner.prior == "population"
        assert policy.learner.randomised == (name != "fedce-myopic-robust")
    other = named("fedtswi-robust", 100, {"forget": "never", "aggregation": "sum", "prior": 2.0})
    assert (other.learner.forget, other.learner.prior) == (None, 2.0)
    assert (other.sharing.aggregation, other.episodes.longest) == ("sum", 50)


def test_plain_names_have_the_defaults_of_before():
    policy = named("fedtswi-gap", 100)
    assert (policy.learner.forget, policy.episodes.longest) == (None, None)
    assert policy.sharing == Sharing()
    assert policy.learner.prior == 1.0
    assert policy.learner.randomised


def test_a_half_life_is_one_expert():
    assert named("fedtswi-gap", 100, {"forget": 200}).learner.forget == Forgetting((200.0,), (1.0,))


# ------------------------------------------------------------------------------------------- edges


def study(**changes):
    """A study of two channels."""
    return Study(**{"arms": ARMS, "policies": ["whittle"], **changes})


ARMS = channels([0.2, 0.89], [0.8, 0.17], [0.4, 0.9])
CHANGING = Arm([[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.3], [0.1, 0.9]], reward=[0, 1])
SHOWN = Arm([[0.9, 0.1], [0.2, 0.8]], reward=[0, 1], observed="always")
THREE = Arm(np.full((3, 3), 1 / 3), reward=[0, 1, 2])
THREE_SHOWN = Arm(np.full((3, 3), 1 / 3), reward=[0, 1, 2], observed="always")


@pytest.mark.parametrize(
    ("option", "allowed", "refused"),
    [
        ("ages", [2, 64], [1, 65, 2.0]),
        ("aggregation", ["sum", "none", "pairs", "gossip"], ["all", 1, None]),
        ("c", [0, 1e6], [-1e-9, 1.1e6]),
        ("clip", [True, False], [1, "true"]),
        ("degree", [1, 1023], [0, 1.0]),
        ("delta", [1e-9, 0.999], [0, 1]),
        ("depth", [2], [0, 99, 2.0]),
        ("failure", [0, 0.999], [1, -1e-9]),
        ("exploration", [1e-9, 1e6], [0, 1.1e6]),
        ("exponent", [0, 1], [-1e-9, 1.001]),
        ("epsilon", [1e-9, 100], [0, 100.1]),
        ("equal", [True, False], [1, None]),
        ("explore", [0, 1], [-1e-9, 1.001]),
        ("forget", ["never", "bank", 1e-9, 1e12], ["soon", 0, 1.1e12, None]),
        ("gaps", [8, 128], [7, 129]),
        ("graph", ["ring", "regular"], ["star", 1]),
        ("index_rate", [0, 1], [-1e-9, 1.001]),
        ("L", [0, 1e6], [-1e-9, 1.1e6]),
        ("longest", [1, 10**9], [0, 10**9 + 1]),
        ("plan_by", ["draw", "mode"], ["mean", 1]),
        ("planner", ["whittle", "myopic", "fixed"], ["random", None]),
        ("prior", [1e-6, 1e6, [1e-6, 1e6], (1, 2)], [9e-7, 1.1e6, [1, 0], [1, 2, 3], [], "1"]),
        ("pulls", [1, 10**6], [0, 10**6 + 1]),
        ("radius", [0, 1e6], [-1e-9, 1.1e6]),
        ("scale", [0, 1e6], [-1e-9, 1.1e6]),
        ("rate", [0, 1], [-1e-9, 1.001]),
        ("sigma", [1e-9, 1e6], [0, 1.1e6]),
        ("sigma_c", [0, 1e6], [-1e-9, 1.1e6]),
        ("support", [2, 49], [1, 50]),
        ("tied", [True, False], [0, "no"]),
    ],
)
def test_each_option_is_taken_to_its_ends_and_not_beyond(option, allowed, refused):
    (name, *_) = [name for name, entry in POLICIES.items() if option in entry.options]
    for value in allowed:
        check_options(name, {option: value}, "options")
    for value in (*refused, *([] if option in ("clip", "equal", "tied") else [True]), float("nan")):
        with pytest.raises(StudyError, match=rf"^options\.{option} must be .*, got "):
            check_options(name, {option: value}, "options")
    assert {option} <= set(OPTIONS)
    with pytest.raises(StudyError, match=r"^options must be a table, got 3"):
        check_options(name, 3, "options")


def test_a_policy_without_options_says_so():
    with pytest.raises(StudyError, match="unknown key 'depth'; whittle takes no options"):
        check_options("whittle", {"depth": 2}, "options")


def test_what_a_federation_may_run():
    assert list(SERVED) == [
        *("fedtswi", "fedts-myopic", "feducb-wi", "feducb-myopic"),
        *("fedtswi-gap", "fedts-myopic-gap", "feducb-wi-gap", "fedts-lookahead-gap"),
        *("fedtswi-robust", "fedts-myopic-robust", "fedce-myopic-robust", "fed1-ucb"),
        *("ucb", "rca", "wiql"),
    ]
    assert set(SERVED) < set(LEARNERS)
    known = ("whittle", "myopic", "lookahead", "optimal", "fixed", "fixed-best", "random")
    assert tuple(KNOWN) == known
    assert tuple(STUDIED) == (*LEARNERS, *KNOWN, "stay", "round-robin")


CHANNELS_ONLY = "is not of two states, observed when played, moving alike played or not"


@pytest.mark.parametrize(
    ("name", "options", "arm", "why"),
    [
        ("ts-grid", {}, CHANGING, f"is for channels alone, and arm 3 {CHANNELS_ONLY}"),
        ("ts-grid", {}, THREE, f"is for channels alone, and arm 3 {CHANNELS_ONLY}"),
        ("colored-ucrl2", {}, THREE, f"is for channels alone, and arm 3 {CHANNELS_ONLY}"),
        ("restless-ucb", {}, SHOWN, "is for arms that are observed when played, and arm 3 always"),
        ("restless-ucb", {}, CHANGING, "move alike played or not, and arm 3 does not"),
        ("restless-ucb", {}, THREE, None),
        ("feducb-wi", {}, CHANGING, None),
    ],
)
def test_arms_that_a_policy_is_not_for_beside_channels(name, options, arm, why):
    made = {"arms": [*ARMS, arm], "policies": [name], "options": {name: options}}
    if why is None:
        assert study(**made).policies == (name,)
        return
    with pytest.raises(StudyError) as caught:
        study(**made)
    assert f"policies: '{name}' is " in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.parametrize("name", ["ucw-value", "ucw-penalty", "ucw-extreme", "qwi", "wiql"])
def test_some_policies_are_for_arms_that_are_always_observed(name):
    assert study(arms=[SHOWN, SHOWN], policies=[name]).policies == (name,)
    with pytest.raises(
        StudyError,
        match=f"'{name}' is for arms that are always observed, and arm 2 is observed when played",
    ):
        study(arms=[SHOWN, CHANGING], policies=[name])
    if name == "ucw-penalty":
        with pytest.raises(StudyError, match="is for arms of two states, and arm 2 has 3"):
            study(arms=[SHOWN, THREE_SHOWN], policies=[name])
    else:
        study(arms=[SHOWN, THREE_SHOWN], policies=[name])


def test_one_table_is_for_arms_of_one_size():
    mixed = [SHOWN, THREE_SHOWN]
    study(arms=mixed, policies=["qwi"], options={"qwi": {"equal": False}})
    study(arms=mixed[1:] * 2, policies=["qwi"], options={"qwi": {"equal": True}})
    with pytest.raises(
        StudyError, match="one table for all arms, with equal = true, and arm 2 has 3 states, arm 1"
    ):
        study(arms=mixed, policies=["qwi"], options={"qwi": {"equal": True}})
    with pytest.raises(StudyError, match="is for arms that are always observed, and arm 2"):
        study(arms=[SHOWN, THREE], policies=["qwi"], options={"qwi": {"equal": True}})


def test_joint_plans_are_for_few_arms():
    """5 arms of 1 + 2 ages have 59,049 information states, 6 arms of 9 each 531,441."""
    five = {
        "policies": ["tsde"],
        "options": {"tsde": {"ages": 4}},
        "arms": channels([0.2] * 5, 0.8, 1),
    }
    assert study(**five).policies == ("tsde",)
    with pytest.raises(StudyError) as caught:
        study(**{**five, "arms": channels([0.2] * 6, 0.8, 1)})
    assert str(caught.value) == (
        "policies: 'tsde' is for few arms: ages up to 4 give 531,441 joint information states and "
        "6 sets of 1 arms, and at most 100,000 and 100 are planned for"
    )
    with pytest.raises(StudyError, match=r"ages up to 64 give about 10\^13 joint information st"):
        study(**{**five, "arms": channels([0.2] * 6, 0.8, 1), "options": {"tsde": {"ages": 64}}})
    with pytest.raises(StudyError, match="give 161,051 joint information states and 5 sets of 1"):
        study(**{**five, "options": {"tsde": {"ages": 5}}})
    # An arm that is always observed has its states, whatever the ages.
    shown = [SHOWN] * 14
    assert study(arms=shown, policies=["tsde"], plays=2).plays == 2
    with pytest.raises(StudyError, match="give 16,384 joint information states and 364 sets of 3"):
        study(arms=shown, policies=["tsde"], plays=3)
    with pytest.raises(StudyError, match="'colored-ucrl2' is for few arms: ages up to 4 give 531,"):
        study(arms=channels([0.2] * 6, 0.8, 1), policies=["colored-ucrl2"])


@pytest.mark.parametrize(
    ("name", "options", "key", "value"),
    [
        ("fedtswi-gap", {"forget": "bank"}, "forget", "'bank'"),
        ("fedtswi-gap", {"prior": "population"}, "prior", "'population'"),
        ("fedtswi-gap", {"aggregation": "pairs"}, "aggregation", "'pairs'"),
        ("fedtswi", {"aggregation": "pairs"}, "aggregation", "'pairs'"),
    ],
)
def test_some_settings_are_for_channels(name, options, key, value):
    made = {"policies": [name], "options": {name: options}, "agents": 2}
    assert study(**made).options == {name: options}
    with pytest.raises(StudyError) as caught:
        study(**made, arms=[*ARMS, CHANGING])
    assert str(caught.value) == (
        f"options.{name}.{key} of {name} must not be {value}, as arm 3 is not of two states, "
        "observed when played, moving alike played or not"
    )


def test_the_aggregation_of_a_study_counts_where_a_policy_has_none():
    with pytest.raises(StudyError, match="aggregation of fedtswi must not be 'pairs', as arm 3"):
        study(policies=["fedtswi"], aggregation="pairs", arms=[*ARMS, CHANGING], agents=2)
    own = {"fedtswi": {"aggregation": "sum"}}
    arms = [*ARMS, CHANGING]
    assert study(policies=["fedtswi"], aggregation="pairs", options=own, arms=arms).options == own
    assert study(policies=["ucb"], aggregation="pairs", arms=arms).policies == ("ucb",)


def noisy_means(**changes):
    own = changes.pop("own", {})
    return study(policies=["fed1-ucb"], options={"fed1-ucb": {"epsilon": 1.0, **own}}, **changes)


def test_noise_of_means_is_for_agents_that_count_alike():
    for shares in ("sum", "none"):
        assert noisy_means(aggregation=shares).aggregation == shares
        assert noisy_means(aggregation="pairs", own={"aggregation": shares})
    for changes in ({"aggregation": "pairs"}, {"own": {"aggregation": "pairs"}}):
        with pytest.raises(
            StudyError,
            match="epsilon of fed1-ucb goes with aggregation 'sum' or 'none', got 'pairs'",
        ):
            noisy_means(**changes, agents=2)
    with pytest.raises(StudyError, match="epsilon of fed1-ucb goes without weights"):
        noisy_means(agents=2, weights=[1, 2])
    plain = study(policies=["fed1-ucb"], agents=2, weights=[1, 2], aggregation="pairs")
    assert plain.weights == (1.0, 2.0)


def private(**changes):
    return study(schedule="linear", agents=4, privacy={"epsilon": 1.0}, **changes)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("fedtswi", {}, None),
        ("fedts-myopic", {}, None),
        ("fedtswi-gap", {}, None),
        ("fedts-myopic-gap", {}, None),
        ("fedtswi-gap", {"forget": "never"}, None),
        ("feducb-wi", {}, "is no Thompson index policy; fedtswi, fedts-myopic, fedtswi-gap, fedts"),
        ("fedts-lookahead-gap", {}, "reads more than counts of pairs"),
        ("feducb-wi", {"aggregation": "none"}, None),
        ("fedtswi-robust", {"aggregation": "none"}, None),
        ("fedtswi", {"aggregation": "pairs"}, "its aggregation needs what each has counted"),
        ("fedtswi-gap", {"forget": 100}, "forgets, and what is released has all that was ever"),
        ("fedtswi-gap", {"prior": "population"}, "learns its prior, and would take noise for"),
        ("ucb", {}, None),
        ("whittle", {}, None),
        ("random", {}, None),
    ],
)
def test_what_learns_from_sums_with_noise(name, options, why):
    if why is None:
        assert private(policies=[name], options={name: options}).budget.epsilon == 1.0
        return
    with pytest.raises(StudyError) as caught:
        private(policies=[name], options={name: options})
    assert str(caught.value).startswith(f"privacy.epsilon: {name!r} ")
    assert why in str(caught.value)


def test_noise_is_learnt_from_where_all_arms_are_channels():
    arms = [*ARMS, CHANGING]
    with pytest.raises(StudyError, match="all arms are channels, and arm 3 is none"):
        private(policies=["fedtswi"], arms=arms)
    assert private(policies=["fedtswi"], arms=arms, aggregation="none").aggregation == "none"


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("fedtswi", {}, None),
        ("fedtswi-gap", {"plan_by": "draw"}, None),
        ("fedtswi-gap", {"forget": "never", "prior": 2.0}, None),
        ("feducb-wi", {}, "as feducb-wi does not draw, or not for an index; these do: fedtswi, "),
        ("fedtswi-gap", {"plan_by": "mode"}, "as fedtswi-gap with plan_by = 'mode' does not draw"),
        ("fedtswi-gap", {"forget": 50}, "as fedtswi-gap forgets counts or learns its prior"),
        ("fedtswi-gap", {"prior": "population"}, "forgets counts or learns its prior"),
        ("fedtswi", {"aggregation": "none"}, "share no sum under fedtswi; aggregation must be"),
    ],
)
def test_what_agents_may_draw_by_themselves(name, options, why):
    made = {"policies": [name], "options": {name: options}, "draws": "own", "agents": 2}
    if why is None:
        assert study(**made).draws == "own"
        return
    with pytest.raises(StudyError) as caught:
        study(**made)
    assert str(caught.value).startswith("draws must not be 'own', as ")
    assert why in str(caught.value)


def test_own_draws_are_of_channels():
    with pytest.raises(StudyError, match="draws must not be 'own', as arm 3 is no channel"):
        study(policies=["fedtswi"], draws="own", arms=[*ARMS, CHANGING])
    assert study(policies=["whittle"], draws="own", arms=[*ARMS, CHANGING]).draws == "own"


def test_gossip_of_a_policy_keeps_its_options():
    made = named("fedtswi", 100, {"aggregation": "gossip", "graph": "regular", "degree": 4})
    assert isinstance(made.sharing.aggregation, Gossip)
    assert (made.sharing.aggregation.graph, made.sharing.aggregation.degree) == ("regular", 4)
    assert named("fedtswi", 100, {"aggregation": "gossip"}).sharing.aggregation is not None
