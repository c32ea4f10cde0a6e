"""`rmab index`: the closed form, discounts, witnesses, corners."""

import numpy as np
import pytest

import rmab
from rmab.model.expansion import expand
from tests.cli.commands import toml


@pytest.mark.parametrize(
    ("p01", "p11", "expected"),
    [
        (0.2, 0.8, {(0, 2): 0.392857, (0, 3): 0.518987, (1, 2): 0.772727, (1, 3): 0.752475}),
        (0.89, 0.17, {(0, 2): 0.270634, (0, 3): 0.792944, (1, 2): 0.792944, (1, 3): 0.405115}),
    ],
)
@pytest.mark.parametrize("reward", [1, 0.4])
def test_index_gives_the_closed_form_times_the_reward(call, study, p01, p11, expected, reward):
    path = study(toml(arm={"p01": str(p01), "p11": str(p11), "reward": str(reward)}))
    ran = call("index", path, "--max-age", "3", "--json")
    assert (ran.code, ran.err) == (0, "")
    first, second = ran.json["arms"]
    assert list(second) == ["indexable", "never_seen", "index"]
    assert second["indexable"] is True
    assert [len(ages) for ages in second["index"]] == [3, 3]
    for (state, age), value in expected.items():
        assert second["index"][state][age - 1] == pytest.approx(reward * value, abs=5e-7)
    # One slot after an observation the index is the belief.
    assert second["index"][0][0] == pytest.approx(reward * p01)
    assert second["index"][1][0] == pytest.approx(reward * p11)
    assert first["index"][1][1] == pytest.approx(0.9 * 0.792944, abs=5e-7)
    # Long unseen is like never seen.
    far = call("index", path, "--max-age", "400", "--json").json["arms"][1]
    assert far["index"][1][-1] == pytest.approx(second["never_seen"], abs=1e-9)
    assert far["index"][0][:3] == second["index"][0]


def test_index_has_twenty_ages_unless_told(call, study):
    arms = call("index", study(toml()), "--json").json["arms"]
    assert [len(ages) for arm in arms for ages in arm["index"]] == [20] * 4
    arms = call("index", study(toml()), "--json", "--max-age", "1").json["arms"]
    assert [len(ages) for arm in arms for ages in arm["index"]] == [1] * 4


def test_index_prints_the_same_numbers_as_a_table(call, study):
    path = study(toml())
    table = call("index", path, "--max-age", "4").out.splitlines()
    arms = call("index", path, "--max-age", "4", "--json").json["arms"]
    assert table[0].startswith("Whittle index, average reward, ")
    assert table[1].split() == ["arm", "seen", "1", "2", "3", "4"]
    for number, arm in enumerate(arms, start=1):
        never, *seen = table[3 * number - 1 : 3 * number + 2]
        assert never.split()[:2] == [str(number), "never"]
        assert float(never.split()[2]) == pytest.approx(arm["never_seen"], abs=1e-6)
        for state, line in enumerate(seen):
            label, *numbers = line.split()
            assert label == str(state)
            assert [float(x) for x in numbers] == pytest.approx(arm["index"][state], abs=1e-6)
    assert table[8:] == ["arm 1: indexable", "arm 2: indexable"]


TWO = {  # whose indices are known: 1.5 and 1, with discount .9 1.5 and .909091
    "passive": "[[0.5, 0.5], [0.25, 0.75]]",
    "active": "[[1, 0], [0.5, 0.5]]",
    "reward": "[2, 1]",
    "reward_passive": "[0.5, 0.5]",
    "observed": '"always"',
}


def test_index_of_a_fully_observed_arm(call, study):
    path = study(toml(general=TWO))
    channel, arm = call("index", path, "--max-age", "2", "--json").json["arms"]
    assert [len(ages) for ages in channel["index"]] == [2, 2]
    assert list(arm) == ["indexable", "index"]
    assert arm["indexable"] is True
    assert arm["index"] == pytest.approx([1.5, 1.0], abs=1e-9)
    table = call("index", path, "--max-age", "2").out.splitlines()
    assert table[5].split() == ["2", "now", "0", "1.500000"]
    assert table[6].split() == ["now", "1", "1.000000"]
    assert table[7:] == ["arm 1: indexable", "arm 2: indexable"]


def test_index_with_a_discount(call, study):
    path = study(toml(general=TWO))
    channel, arm = call("index", path, "--discount", "0.9", "--max-age", "3", "--json").json["arms"]
    assert arm["index"] == pytest.approx([1.5, 0.909091], abs=5e-7)
    assert (channel["indexable"], arm["indexable"]) == (True, True)
    # One slot after an observation a channel's index is its belief at any discount (Liu and Zhao).
    assert channel["index"][0][0] == pytest.approx(0.9 * 0.89)
    assert channel["index"][1][0] == pytest.approx(0.9 * 0.17)
    assert call("index", path, "--discount", "0.9").out.startswith("Whittle index, discount 0.9, ")


def test_index_of_an_arm_with_action_dependent_transitions(call, study):
    """Played on and on it pays .75 a slot, so that is what idling must be worth, seen or not."""
    general = {"passive": "[[0.5, 0.5], [0.5, 0.5]]", "active": "[[0.25, 0.75], [0.25, 0.75]]"}
    arm = call("index", study(toml(general=general)), "--max-age", "3", "--json").json["arms"][1]
    assert list(arm) == ["indexable", "never_seen", "index"]
    assert arm["indexable"] is True
    assert arm["never_seen"] == pytest.approx(0.75)
    assert np.array(arm["index"]) == pytest.approx(np.full((2, 3), 0.75))


NOT_INDEXABLE = {
    "passive": "[[0.005, 0.793, 0.202], [0.027, 0.558, 0.415], [0.736, 0.249, 0.015]]",
    "active": "[[0.718, 0.254, 0.028], [0.347, 0.097, 0.556], [0.015, 0.956, 0.029]]",
    "reward": "[0.699, 0.362, 0.715]",
    "observed": '"always"',
}


def test_index_gives_a_witness_where_an_arm_is_not_indexable(call, study):
    """At the subsidy `low` passive is better in that state, at the higher `high` active is."""
    path = study(toml(general=NOT_INDEXABLE))
    arm = call("index", path, "--json").json["arms"][1]
    assert list(arm) == ["indexable", "index", "reason", "witness"]
    assert arm["indexable"] is False
    assert len(arm["index"]) == 3
    witness = arm["witness"]
    assert list(witness) == ["state", "low", "high"]
    given = rmab.load(path).arms[1]
    low, high = (_advantage(given, witness[key])[witness["state"]] for key in ("low", "high"))
    assert witness["low"] < witness["high"]
    assert low < -1e-9 < 1e-9 < high
    assert call("index", path).out.splitlines()[-1] == f"arm 2: not indexable: {arm['reason']}"


WANING = {  # rmab.model.catalogue.adherence(wane=0.15, lift=0.5, regain=0.05, slip=0.05)
    "passive": "[[0.95, 0.05, 0], [0.15, 0.8, 0.05], [0, 0.15, 0.85]]",
    "active": "[[0.5, 0.5, 0], [0.05, 0.45, 0.5], [0, 0.05, 0.95]]",
    "reward": "[0, 0, 1]",
    "reward_passive": "[0, 0, 1]",
}


@pytest.mark.parametrize("max_age", ["2", "30"])
def test_a_witness_may_be_what_was_seen_and_when(call, study, max_age):
    path = study(toml(general=WANING))
    arm = call("index", path, "--max-age", max_age, "--json").json["arms"][1]
    assert list(arm) == ["indexable", "never_seen", "index", "reason", "witness"]
    assert arm["indexable"] is False
    witness = arm["witness"]
    assert list(witness) == ["last_seen", "age", "low", "high"]
    given = expand(rmab.load(path).arms[1], 150)
    row = 150 * witness["last_seen"] + witness["age"]
    low, high = (_advantage(given, witness[key])[row] for key in ("low", "high"))
    assert witness["low"] < witness["high"]
    assert low < 0 < high


def _advantage(arm: rmab.Arm, subsidy: float) -> np.ndarray:
    """Of playing over leaving alone in each state, discount near 1: plain policy iteration."""
    S, discount, active = arm.states, 1 - 1e-6, np.zeros(arm.states, bool)
    for _ in range(50):
        moves = np.where(active[:, None], arm.active, arm.passive)
        pays = np.where(active, arm.reward_active, arm.reward_passive + subsidy)
        value = np.linalg.solve(np.eye(S) - discount * moves, pays)
        played = arm.reward_active + discount * arm.active @ value
        advantage = played - (arm.reward_passive + subsidy + discount * arm.passive @ value)
        if (active == (advantage > 0)).all():
            break
        active = advantage > 0
    return np.asarray(advantage)


def test_index_where_the_start_decides(call, study):
    frozen = toml(arm={"p01": "0", "p11": "1", "reward": "0.7"})
    arm = call("index", study(frozen), "--max-age", "2", "--json").json["arms"][1]
    assert list(arm) == ["indexable", "never_seen", "index", "reason"]
    assert arm["indexable"] is None
    assert arm["reason"].startswith("depends on the starting class")
    assert arm["index"] == [[0, 0], [0.7, 0.7]]
    verdict = call("index", study(frozen)).out.splitlines()[-1]
    assert verdict.startswith("arm 2: undecided: depends on the starting class")
    worthless = toml(arm={"p01": "0", "p11": "1", "reward": "0"})
    assert call("index", study(worthless), "--json").json["arms"][1]["indexable"] is True
    apart = {"passive": "[[1, 0], [1, 0]]", "active": "[[1, 0], [0, 1]]", "observed": '"always"'}
    arm = call("index", study(toml(general=apart)), "--json").json["arms"][1]
    assert arm["indexable"] is None
    assert arm["reason"].startswith("depends on the starting class")


def test_an_infinite_index_is_a_word(call, study):
    """State 1 leads to one of two others for good: to the better unless it is played."""
    fork = {
        "passive": "[[1, 0, 0], [0, 0, 1], [0, 0, 1]]",
        "active": "[[1, 0, 0], [1, 0, 0], [0, 0, 1]]",
        "reward": "[0, 0, 1]",
        "observed": '"always"',
    }
    path = study(toml(general=fork))
    arm = call("index", path, "--json").json["arms"][1]
    assert arm["index"] == [0, "-inf", 1]
    assert arm["indexable"] is None
    line = call("index", path).out.splitlines()[6]
    assert line.split() == ["now", "1", "-inf"]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("machine", [5] * 4), ("age-of-information", [8] * 3), ("fading", [4] * 4)],
)
def test_index_of_a_study_of_the_catalogue(call, name, sizes):
    ran = call("index", f"catalogue:{name}", "--max-age", "3", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert [len(arm["index"]) for arm in ran.json["arms"]] == sizes
    assert all(arm["indexable"] for arm in ran.json["arms"])


@pytest.mark.parametrize("p01", ["0", "1e-12", "0.5", "0.999999999999", "1"])
@pytest.mark.parametrize("p11", ["0", "1e-300", "0.5", "0.999999999999", "1"])
def test_index_at_the_corners_is_a_number(call, study, p01, p11):
    path = study(toml(arm={"p01": p01, "p11": p11, "reward": "0.7"}))
    arm = call("index", path, "--max-age", "100", "--json").json["arms"][1]
    values = np.array([arm["never_seen"], *arm["index"][0], *arm["index"][1]])
    assert np.all((values >= -1e-15) & (values <= 0.7 + 1e-15))
    assert "-" not in call("index", path, "--max-age", "100").out
