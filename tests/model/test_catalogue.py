"""The catalogue: matrices by hand, published indices, the studies that come with the package."""

import math
import re
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmab import Arm, Arms, ModelError, catalogue, channels, load, load_sweep, whittle_indices
from rmab.model.catalogue import (
    adherence,
    age_of_information,
    client,
    fading,
    gilbert_elliott,
    hidden_restart,
    machine,
)
from rmab.policies.registry import LEARNERS

STUDIES = {
    "adherence": "adherence",
    "age-of-information": "age_of_information",
    "client-selection": "client",
    "fading": "fading",
    "gilbert-elliott": "gilbert_elliott",
    "hidden-restart": "hidden_restart",
    "machine": "machine",
}
# What more there is to show of models that have a study.
APPLICATIONS = {
    "fashions": "gilbert_elliott",
    "recommendation": "gilbert_elliott",
    "tied-ages": "age_of_information",
}
PAGE = Path(__file__).parents[2] / "docs" / "catalogue.md"
chance = st.floats(0, 1) | st.sampled_from([0.0, 0.1, 0.3, 0.9, 1.0])


def two_chances() -> st.SearchStrategy[tuple[float, float]]:
    """Chances that sum to at most 1, some to 1 exactly, as decimals do."""
    decimals = st.integers(0, 10).map(lambda tenths: (tenths / 10, (10 - tenths) / 10))
    return decimals | st.tuples(chance, chance).map(lambda two: (two[0], two[1] * (1 - two[0])))


# ----------------------------------------------------------------------------------------- channels


def test_a_gilbert_elliott_channel_pays_what_succeeds():
    arm = gilbert_elliott(0.25, 0.75, reward=2, good=0.9, bad=0.2)
    assert arm.passive.tolist() == [[0.75, 0.25], [0.25, 0.75]]
    assert arm.reward_active.tolist() == [0.4, 1.8]
    assert arm.reward_passive.tolist() == [0, 0]
    assert (arm.observed, arm.action_dependent) == ("when_played", False)


@given(chance, chance, st.floats(0, 1e6))
def test_a_channel_that_never_fails_when_good_is_the_papers(p01, p11, reward):
    made = Arms([gilbert_elliott(p01, p11, reward)])
    paper = channels(p01, p11, reward)
    assert made.are_channels
    np.testing.assert_array_equal(made.passive, paper.passive)
    np.testing.assert_array_equal(made.reward_active, paper.reward_active)


def test_fading_moves_by_one_level():
    arm = fading(4, up=0.25, down=0.5, rates=[0, 1, 1, 3])
    assert arm.passive.tolist() == [
        [0.75, 0.25, 0, 0],
        [0.5, 0.25, 0.25, 0],
        [0, 0.5, 0.25, 0.25],
        [0, 0, 0.5, 0.5],
    ]
    assert arm.reward_active.tolist() == [0, 1, 1, 3]
    assert (arm.observed, arm.action_dependent) == ("when_played", False)


def test_fading_as_often_up_as_down_rests_in_all_levels_alike():
    arm = fading(levels=5, up=0.3)
    np.testing.assert_allclose(np.full(5, 0.2) @ arm.passive, 0.2, atol=1e-15)
    assert arm.reward_active.tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_a_fading_channel_of_two_levels_is_a_channel():
    made = Arms([fading(2, up=0.2, down=0.1)])
    assert made.are_channels
    assert (made.p01[0], made.p11[0], made.reward[0]) == pytest.approx((0.2, 0.9, 1))


@settings(max_examples=50)
@given(st.integers(2, 12), two_chances())
def test_any_two_chances_make_a_chain(levels, moves):
    arm = fading(levels, *moves)
    np.testing.assert_allclose(arm.passive.sum(1), 1, atol=1e-12)
    assert machine(levels, wear=moves[0], renewal=moves[1]).states == levels


# ----------------------------------------------------------------------------------------- machines


def test_a_machine_wears_and_restarts():
    arm = machine(3, wear=0.25, repair_cost=0.5, renewal=0.5)
    assert arm.passive.tolist() == [[0.75, 0.25, 0], [0.5, 0.25, 0.25], [0.5, 0, 0.5]]
    assert arm.active.tolist() == [[1, 0, 0]] * 3
    assert arm.reward_passive.tolist() == [1, 0.5, 0]
    assert arm.reward_active.tolist() == [-0.5] * 3
    assert arm.observed == "always"


def test_the_restart_problem_of_avrachenkov_and_borkar():
    arm = machine(5, wear=0.9, renewal=0.1, reward=0.9 ** np.arange(1, 6))
    found = whittle_indices(arm)
    assert found.indexable is True
    published = [-0.9, -0.729, -0.50949, -0.258787, 0.009893]
    assert found.index == pytest.approx(published, abs=5e-7)


@settings(max_examples=25)
@given(
    st.floats(0.05, 1),
    st.floats(0, 3),
    st.lists(st.floats(0, 1), min_size=2, max_size=8),
)
def test_the_index_of_a_machine_by_renewal(wear, cost, losses):
    """Restarting in x or in x + 1 earns alike at the index: with state y lasting 1 / wear slots,
    sum_{y < x} r_y / wear - (1 + x / wear) r_x - cost."""
    reward = np.cumsum(losses[::-1])[::-1]
    found = whittle_indices(machine(len(reward), wear, reward.tolist(), cost))
    before = np.append(0, np.cumsum(reward)[:-1])
    x = np.arange(len(reward))
    expected = before / wear - (1 + x / wear) * reward - cost
    np.testing.assert_allclose(found.index, expected, rtol=1e-8, atol=1e-8)
    assert found.indexable is not False


# ----------------------------------------------------------------------------- age of information


def test_news_age_until_they_are_fetched():
    arm = age_of_information(3, success=0.75, weight=2)
    assert arm.passive.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1]]
    assert arm.active.tolist() == [[0.75, 0.25, 0], [0.75, 0, 0.25], [0.75, 0, 0.25]]
    assert arm.reward_passive.tolist() == arm.reward_active.tolist() == [-2, -4, -6]
    assert arm.observed == "always"


@pytest.mark.parametrize(("success", "weight"), [(1, 1), (0.9, 1), (0.8, 2.5), (0.6, 0.1)])
def test_the_index_of_kadota_and_others(success, weight):
    """w h (1 + p (h - 1) / 2) at age h, where the limit of the age is far."""
    found = whittle_indices(age_of_information(60, success, weight))
    age = np.arange(1, 11)
    published = weight * age * (1 + success * (age - 1) / 2)
    np.testing.assert_allclose(found.index[:10], published, rtol=1e-9)
    assert found.indexable is True


# ------------------------------------------------------------------------------------- adherence


def test_adherence_wanes_and_is_lifted():
    arm = adherence(wane=0.5, lift=0.75, regain=0.25, slip=0.125)
    assert arm.passive.tolist() == [[0.75, 0.25, 0], [0.5, 0.25, 0.25], [0, 0.5, 0.5]]
    assert arm.active.tolist() == [[0.25, 0.75, 0], [0.125, 0.125, 0.75], [0, 0.125, 0.875]]
    assert arm.reward_passive.tolist() == arm.reward_active.tolist() == [0, 0, 1]
    assert (arm.observed, arm.action_dependent) == ("when_played", True)


def test_adherence_of_more_states_and_other_worth():
    arm = adherence(0.5, 0.5, states=4, reward=[0, 0.5, 0.75, 1])
    assert arm.states == 4
    assert arm.reward_passive.tolist() == [0, 0.5, 0.75, 1]
    assert adherence(0.5, 0.5, states=2).passive.tolist() == [[1, 0], [0.5, 0.5]]


@settings(max_examples=50)
@given(two_chances(), st.floats(0, 1), st.floats(0, 1), st.integers(2, 6))
def test_a_call_never_harms(moves, more, less, states):
    """From every state the law after a call lies above the law without, in every upper set."""
    wane, regain = moves
    slip = wane * less
    lift = regain + more * max(0.0, 1 - slip - regain)
    arm = adherence(wane, lift, regain, slip, states)
    called = arm.active[:, ::-1].cumsum(1)
    alone = arm.passive[:, ::-1].cumsum(1)
    assert (called >= alone - 1e-12).all()


# ------------------------------------------------------------------- clients, and hidden restarts


def test_a_client_pays_what_is_left_of_the_deadline():
    arm = client(0.25, 0.75, fast=1.0, slow=3.0, deadline=4.0)
    assert arm.passive.tolist() == [[0.75, 0.25], [0.25, 0.75]]
    assert arm.reward_active.tolist() == [0.25, 0.75]
    assert Arms([client(0.2, 0.8, fast=0.5, slow=2)]).are_channels


def test_a_hidden_restart_pays_what_its_unseen_state_does_on_average():
    """Against many runs of the chain that nobody sees."""
    moves = np.array([[0.6, 0.3, 0.1], [0.1, 0.6, 0.3], [0.0, 0.2, 0.8]])
    arm = hidden_restart(moves, [0.7, 0.3, 0], [2.0, 1.0, -1.0], cost=0.5, max_age=5)
    assert arm.reward_active.tolist() == [-0.5] * 5
    assert arm.passive[[0, 1, 2, 3, 4], [1, 2, 3, 4, 4]].tolist() == [1] * 5
    assert arm.active[:, 0].tolist() == [1] * 5
    assert (arm.observed, arm.tie) == ("always", None)
    rng = np.random.default_rng(2)
    state = rng.choice(3, 40_000, p=[0.7, 0.3, 0])
    for age in range(5):
        pays = np.array([2.0, 1.0, -1.0])[state]
        assert abs(pays.mean() - arm.reward_passive[age]) < 4 * pays.std() / 200
        state = (rng.random((40_000, 1)) > moves[state].cumsum(1)).sum(1)


def falling(ages: int, keeps: float = 0.8, cost: float = 0.3) -> Arm:
    """It earns keeps^x after x slots."""
    return hidden_restart([[keeps, 1 - keeps], [0.0, 1.0]], [1, 0], [1, 0], cost, ages)


def test_the_index_of_a_hidden_restart_has_a_closed_form():
    """Where thresholds x and x + 1 tie: the sum of what came before, less (x + 1) times what is
    earned now, less the cost."""
    found = whittle_indices(falling(40))
    g = 0.8 ** np.arange(40)
    closed = np.concatenate([[0], g.cumsum()[:-1]]) - (np.arange(40) + 1) * g - 0.3
    assert closed[:4].round(3).tolist() == [-1.3, -0.9, -0.42, 0.092]
    np.testing.assert_allclose(found.index[:39], closed[:39], atol=1e-9)  # up to the last age
    assert found.indexable


@settings(max_examples=20, deadline=None)
@given(st.floats(0.05, 0.95), st.floats(0, 2))
def test_the_closed_form_holds_for_any_that_falls(keeps, cost):
    g = keeps ** np.arange(12)
    closed = np.concatenate([[0], g.cumsum()[:-1]]) - (np.arange(12) + 1) * g - cost
    found = whittle_indices(falling(12, keeps, cost))
    np.testing.assert_allclose(found.index[:11], closed[:11], atol=1e-8)


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("gilbert_elliott(1.1, 0.5)", "p01 must be a number from 0 to 1, got 1.1"),
        ("gilbert_elliott(0.5, -0.1)", "p11 must be a number from 0 to 1, got -0.1"),
        ("gilbert_elliott(nan, 0.5)", "p01 must be a number from 0 to 1, got nan"),
        ("gilbert_elliott('0.5', 0.5)", "p01 must be a number from 0 to 1, got '0.5'"),
        ("gilbert_elliott(True, 0.5)", "p01 must be a number from 0 to 1, got True"),
        ("gilbert_elliott([0.5], 0.5)", "p01 must be a number from 0 to 1, got [0.5]"),
        (
            "gilbert_elliott(0.5, 0.5, good=2)",
            "good must be a number from 0 to 1, got 2",
        ),
        (
            "gilbert_elliott(0.5, 0.5, good=0.1, bad=0.2)",
            "bad must be at most good, 0.1, got 0.2",
        ),
        (
            "gilbert_elliott(0.5, 0.5, reward=-1)",
            "reward must be a finite number of at least 0, got -1",
        ),
        (
            "gilbert_elliott(0.5, 0.5, reward=inf)",
            "reward must be a finite number of at least 0, got inf",
        ),
        ("fading(1, 0.2)", "levels must be a whole number from 2 to 4096, got 1"),
        ("fading(4.0, 0.2)", "levels must be a whole number from 2 to 4096, got 4.0"),
        ("fading(True, 0.2)", "levels must be a whole number from 2 to 4096, got True"),
        ("fading(10**6, 0.2)", "levels must be a whole number from 2 to 4096, got 1000000"),
        ("fading(3, 0.6)", "up + down must be at most 1, got 0.6 + 0.6"),
        ("fading(3, 0.6, 1.6)", "down must be a number from 0 to 1, got 1.6"),
        ("fading(3, 0.2, rates=[0, 1])", "rates must be 3 numbers, one for each state, got "),
        ("fading(3, 0.2, rates=1)", "rates must be 3 numbers, one for each state, got 1"),
        ("fading(3, 0.2, rates=[0, 2, 1])", "rates must not fall from state to state, got "),
        ("fading(3, 0.2, rates=[0, '1', 2])", "rates: state 1 must be a finite number, got "),
        ("fading(3, 0.2, rates=[0, [1], 2])", "rates: state 1 must be a finite number, got "),
        ("fading(2, 0.2, rates=np.eye(2))", "rates: state 0 must be a finite number, got "),
        ("fading(2, 0.2, rates=[0, nan])", "rates: state 1 must be a finite number"),
        ("machine(0, 0.2)", "states must be a whole number from 2 to 4096, got 0"),
        ("machine(3, 0.6, renewal=0.5)", "wear + renewal must be at most 1, got 0.6 + 0.5"),
        ("machine(3, 0.6, [0, 0, 1])", "reward must not rise from state to state, got 0.0 "),
        (
            "machine(3, 0.6, repair_cost=-1)",
            "repair_cost must be a finite number of at least 0, got -1",
        ),
        (
            "age_of_information(1, 0.5)",
            "max_age must be a whole number from 2 to 4096, got 1",
        ),
        (
            "age_of_information(9, 1.5)",
            "success must be a number from 0 to 1, got 1.5",
        ),
        (
            "age_of_information(9, 0.5, weight=-1)",
            "weight must be a finite number of at least 0, got -1",
        ),
        ("client(1.5, 0.5, 0.1, 0.2)", "p01 must be a number from 0 to 1, got 1.5"),
        ("client(0.5, 0.5, 0.3, 0.2)", "slow must be a finite number of at least 0.3, got 0.2"),
        ("client(0.5, 0.5, 0.1, 0.2, 0)", "deadline must be a positive number, got 0"),
        ("hidden_restart([[1]], [1], [1])", "moves must have at least 2 rows"),
        ("hidden_restart([[1, 0], [0, 1]], [1], [1, 0])", "start must have 2 numbers"),
        ("hidden_restart([[1, 0], [0, 1]], [0.5, 0.4], [1, 0])", "start must sum to 1, got 0.9"),
        ("hidden_restart([[1, 0], [0, 1]], [1, 0], [1])", "reward must be 2 numbers"),
        (
            "hidden_restart([[1, 0], [0, 1]], [1, 0], [1, 0], cost=-1)",
            "cost must be a finite number of at least 0, got -1",
        ),
        ("adherence(0.6, 0.5, 0.5)", "wane + regain must be at most 1, got 0.6 + 0.5"),
        (
            "adherence(0.6, 0.7, 0.1, 0.4)",
            "lift + slip must be at most 1, got 0.7 + 0.4",
        ),
        ("adherence(0.5, 0.1, 0.2)", "lift must be at least regain, 0.2, got 0.1"),
        ("adherence(0.1, 0.5, slip=0.2)", "slip must be at most wane, 0.1, got 0.2"),
        ("adherence(0.1, 0.5, states=1)", "states must be a whole number from 2 to 4096, "),
        ("adherence(0.1, 0.5, reward=[1, 0, 0])", "reward must not fall from state to state"),
    ],
)
def test_a_model_says_what_is_wrong(call, message):
    names = {**vars(catalogue), "nan": math.nan, "inf": math.inf}
    with pytest.raises(ModelError, match=f"^{re.escape(message)}") as caught:
        eval(call, names)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


# -------------------------------------------------------------------------------- shipped studies


def shipped(name: str) -> str:
    return resources.files("rmab.studies").joinpath("catalogue", f"{name}.toml").read_text("utf-8")


def test_every_model_has_a_study():
    folder = resources.files("rmab.studies").joinpath("catalogue")
    names = {f"{name}.toml" for name in (*STUDIES, *APPLICATIONS)}
    assert {file.name for file in folder.iterdir()} == names
    assert sorted(STUDIES.values()) == catalogue.__all__


@pytest.mark.parametrize(("name", "function"), {**STUDIES, **APPLICATIONS}.items())
def test_a_study_has_the_arms_that_its_calls_make(name, function):
    """Each arm stands below a comment with the call."""
    calls = re.findall(r"^# (\w+\(.*\))\n\[\[arm\]\]$", shipped(name), flags=re.MULTILINE)
    made = load(f"catalogue:{name}")
    assert len(calls) == len(made.arms) >= 3
    for call, arm in zip(calls, made.arms, strict=True):
        assert call.startswith(f"{function}(")
        wanted: Any = eval(call, vars(catalogue))
        for part in ("passive", "active", "reward_passive", "reward_active"):
            np.testing.assert_allclose(getattr(arm, part), getattr(wanted, part), atol=1e-15)
        assert arm.observed == wanted.observed
        assert (arm.tie is None) == (wanted.tie is None)
        assert arm.tie is None or wanted.tie is None or arm.tie[:2] == wanted.tie[:2]


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "client-selection"])
def test_a_study_is_complete(name):
    made = load(f"catalogue:{name}")
    assert (made.agents, made.horizon, made.trials) == (4, 1000, 1000)
    assert made.policy_names == [*list(LEARNERS)[:3], "whittle", "myopic", "random"]
    assert made.realisations == "independent"


def test_applications_have_the_settings_of_their_papers():
    clients = load("catalogue:client-selection")
    assert (len(clients.arms), clients.plays, clients.agents) == (20, 5, 1)
    assert clients.options["ucb"]["c"] == clients.plays + 1
    assert clients.arms.are_channels
    items, fashions = load("catalogue:recommendation"), load("catalogue:fashions")
    assert items.policy_names == fashions.policy_names
    np.testing.assert_array_equal(items.arms.p01, items.arms.p11)
    np.testing.assert_allclose(fashions.arms.p11 - fashions.arms.p01, 0.9)
    rest = fashions.arms.p01 / (1 - 0.9)
    np.testing.assert_allclose(rest, items.arms.p01)  # as popular in the long run
    points = load_sweep("catalogue:tied-ages").points
    assert [point.study.options["fedtswi"]["tied"] for point in points] == [False, True]


@pytest.mark.parametrize("name", STUDIES)
def test_the_arms_of_the_studies_are_indexable(name):
    for arm in load(f"catalogue:{name}").arms:
        found = whittle_indices(arm)
        assert (found.indexable, found.reason) == (True, "")


# ------------------------------------------------------------------------------------- the page


def blocks() -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def test_the_examples_of_the_page_run(capsys):
    """What a line prints stands in a comment at its end."""
    expected = []
    space: dict[str, Any] = {}
    for block in blocks():
        exec(compile(block, PAGE.name, "exec"), space)
        expected += re.findall(r"^print\(.*\)  # (.*)$", block, flags=re.MULTILINE)
    assert len(expected) >= len(STUDIES)
    assert capsys.readouterr().out.splitlines() == expected


def test_the_page_has_every_model():
    text = PAGE.read_text(encoding="utf-8")
    for name, function in {**STUDIES, **APPLICATIONS}.items():
        assert f"`{function}(" in text
        assert f"catalogue:{name}" in text
