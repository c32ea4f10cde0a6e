"""Sweeps: from lists of values to points, what is refused, and results point by point."""

import csv
import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmab import Arms, Policy, StudyError, Sweep, SweepResults, load, load_sweep, run, run_sweep
from rmab.policies.registry import named
from rmab.studies.study import Study
from rmab.studies.sweep import key_label, settings_label, sweep_of, telling, value_text
from tests.studies.small import KNOWN, STUDY

GAP = replace(STUDY, policies=["fedtswi", "fedtswi-gap", "whittle"])


def studies(sweep: Sweep) -> list[Study]:
    return [point.study for point in sweep.points]


# --------------------------------------------------------------------------------------- the points

# Some values of each of several keys, and how a study shows that it has one.
AXES: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    "agents": (st.integers(1, 64), lambda s: s.agents),
    "plays": (st.integers(1, 2), lambda s: s.plays),
    "horizon": (st.integers(1, 1000), lambda s: s.horizon),
    "seed": (st.integers(0, 2**64 - 1), lambda s: s.seed),
    "schedule": (st.sampled_from(["paper", "linear", "doubling"]), lambda s: s.schedule),
    "policies.fedtswi-gap.gaps": (
        st.integers(8, 128),
        lambda s: s.options["fedtswi-gap"]["gaps"],
    ),
    "options.fedtswi.prior": (
        st.one_of(st.floats(0.5, 2), st.lists(st.floats(0.5, 2), min_size=2, max_size=2)),
        lambda s: s.options["fedtswi"]["prior"],
    ),
    "arm.2.p11": (st.floats(0, 1), lambda s: float(s.arms.p11[1])),
    "copies": (st.integers(1, 3), lambda s: len(s.arms) // 2),
}


@st.composite
def products(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Lists of different values for some keys, in any order."""
    keys = draw(st.lists(st.sampled_from(list(AXES)), min_size=1, max_size=4, unique=True))
    return {
        key: draw(st.lists(AXES[key][0], min_size=1, max_size=3, unique_by=repr)) for key in keys
    }


@given(products())
def test_points_are_the_product_in_the_order_of_the_file(values):
    sweep = Sweep(GAP, values)
    assert len(sweep.points) == math.prod(map(len, values.values()))
    expected = [
        dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())
    ]
    assert [point.settings for point in sweep.points] == expected
    for point in sweep.points:
        for key, value in point.settings.items():
            assert AXES[key][1](point.study) == value
        untouched = [key for key in ("agents", "plays", "horizon", "seed") if key not in values]
        assert all(getattr(point.study, key) == getattr(GAP, key) for key in untouched)
    labels = [point.label for point in sweep.points]
    assert len(set(labels)) == len(labels)
    assert all(labels)


@given(st.data())
def test_lists_that_go_together_are_side_by_side(data):
    size = data.draw(st.integers(1, 5))
    values = {
        "agents": data.draw(
            st.lists(st.integers(1, 64), min_size=size, max_size=size, unique=True)
        ),
        "plays": data.draw(st.lists(st.integers(1, 2), min_size=size, max_size=size)),
        "policies.fedtswi.prior": [0.5 + n for n in range(size)],
    }
    found = [
        (s.agents, s.plays, s.options["fedtswi"]["prior"])
        for s in studies(Sweep(STUDY, values, together=True))
    ]
    assert found == list(zip(*values.values(), strict=True))


@given(products(), st.booleans())
def test_the_table_of_a_sweep_says_the_same(values, together):
    shortest = min(map(len, values.values()))
    values = {key: each[:shortest] for key, each in values.items()} if together else values
    sweep = Sweep(
        GAP, values, together, [f"point {n}" for n in range(1000)][: _size(values, together)]
    )
    again = sweep_of(json.loads(json.dumps(sweep.to_table())))
    assert again.to_table() == sweep.to_table()
    assert [p.label for p in again.points] == [p.label for p in sweep.points]
    assert [s.to_table() for s in studies(again)] == [s.to_table() for s in studies(sweep)]


def _size(values: dict[str, list[Any]], together: bool) -> int:
    return min(map(len, values.values())) if together else math.prod(map(len, values.values()))


def test_tables_in_tables_are_keys_with_dots():
    nested = {"policies": {"fedtswi-gap": {"gaps": [8, 32]}, "fedtswi": {"prior": [1]}}}
    sweep = Sweep(GAP, nested)
    assert list(sweep.values) == ["policies.fedtswi-gap.gaps", "policies.fedtswi.prior"]
    assert [s.options for s in studies(sweep)] == [
        {"fedtswi-gap": {"gaps": gaps}, "fedtswi": {"prior": 1}} for gaps in (8, 32)
    ]
    assert GAP.options == {}


def test_other_options_of_the_study_stay():
    study = replace(GAP, options={"fedtswi-gap": {"prior": 2}, "fedtswi": {"prior": 3}})
    (point,) = Sweep(study, {"options.fedtswi-gap.gaps": [8]}).points
    assert point.study.options == {"fedtswi-gap": {"prior": 2, "gaps": 8}, "fedtswi": {"prior": 3}}
    assert study.options["fedtswi-gap"] == {"prior": 2}


def test_an_arm_that_changes_leaves_the_others():
    sweep = Sweep(STUDY, {"arm.2.reward": [0.4, 1.0], "copies": [2]})
    first, second = studies(sweep)
    assert first.arms.reward.tolist() == [0.9, 0.4, 0.9, 0.4]
    assert second.arms.reward.tolist() == [0.9, 1.0, 0.9, 1.0]
    assert second.arms.p11.tolist() == [0.17, 0.8, 0.17, 0.8]


def test_arms_that_do_not_change_are_the_same_object():
    assert all(s.arms is STUDY.arms for s in studies(Sweep(STUDY, {"agents": [1, 2]})))


def test_arrays_and_ranges_are_lists():
    sweep = Sweep(STUDY, {"agents": np.arange(1, 3), "horizon": range(5, 7), "seed": (1,)})
    assert sweep.values == {"agents": [1, 2], "horizon": [5, 6], "seed": [1]}
    json.dumps(sweep.to_table())
    sweep = Sweep(STUDY, {"policies.fedtswi.prior": [(1, 2), np.float64(0.5)]})
    assert sweep.values == {"policies.fedtswi.prior": [[1, 2], 0.5]}


def test_a_study_alone_is_one_point():
    (point,) = Sweep(STUDY, {}).points
    assert (point.label, point.settings) == ("", {})
    assert point.study is STUDY


def test_policies_of_ones_own_are_swept_with_the_others():
    own = replace(named("whittle", 40), name="mine")
    sweep = Sweep(replace(STUDY, policies=[own, "fedtswi"]), {"agents": [1, 2]})
    assert all(isinstance(s.policies[0], Policy) for s in studies(sweep))


# --------------------------------------------------------------------------------------- the labels


@pytest.mark.parametrize(
    ("values", "together", "labels"),
    [
        ({"agents": [1, 2]}, False, ["M = 1", "M = 2"]),
        ({"plays": [1], "agents": [1, 2]}, False, ["M = 1", "M = 2"]),
        ({"plays": [2], "agents": [4]}, False, ["K = 2, M = 4"]),
        ({"horizon": [5, 6], "trials": [7, 8]}, True, ["T = 5", "T = 6"]),
        (
            {"plays": [1, 1, 2, 2], "agents": [1, 2, 1, 2], "seed": [0, 1, 2, 3]},
            True,
            ["K = 1, M = 1", "K = 1, M = 2", "K = 2, M = 1", "K = 2, M = 2"],
        ),
        ({"schedule": ["paper", "linear"]}, False, ["schedule = paper", "schedule = linear"]),
        (
            {"policies.fedtswi.prior": [0.5, [1, 2]]},
            False,
            ["fedtswi.prior = 0.5", "fedtswi.prior = [1, 2]"],
        ),
        ({"arm.1.p11": [0.5, 1]}, False, ["arm.1.p11 = 0.5", "arm.1.p11 = 1"]),
    ],
)
def test_a_label_has_what_tells_the_points_apart(values, together, labels):
    assert [point.label for point in Sweep(STUDY, values, together).points] == labels


def test_labels_may_be_given():
    sweep = Sweep(STUDY, {"agents": [1, 2]}, labels=["alone", "two"])
    assert [point.label for point in sweep.points] == ["alone", "two"]


@given(products())
def test_what_tells_apart_does_and_nothing_of_it_could_go(values):
    settings = [point.settings for point in Sweep(GAP, values).points]
    keys = telling(settings)
    assert set(keys) == {key for key, each in values.items() if len(each) > 1}


# ---------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"agent": [1]}, "sweep: unknown key 'agent'; known are agents, plays"),
        ({"policies": [["whittle"]]}, "sweep: unknown key 'policies'"),
        ({"options": [{}]}, "sweep: unknown key 'options'"),
        ({"arm": [1]}, "sweep: unknown key 'arm'"),
        ({"policies.fedtswi": [1]}, "sweep: unknown key 'policies.fedtswi'"),
        ({"agents": {"more": [1]}}, "sweep: unknown key 'agents.more'"),
        ({"agents": []}, "sweep.agents must have at least one value, got an empty list"),
        ({"agents": 3}, "sweep.agents must be a list of values, got 3"),
        ({"schedule": "paper"}, "sweep.schedule must be a list of values, got 'paper'"),
        ({"agents": {}}, "sweep.agents must be a list of values, got {}"),
        ({"policies.nope.gaps": [8]}, "'nope' must be a built-in policy of the study: fedtswi, wh"),
        ({"policies.fedtswi-gap.gaps": [8]}, "'fedtswi-gap' must be a built-in policy of"),
        ({"policies.fedtswi.gaps": [8]}, "unknown key 'gaps'; fedtswi has aggregation, degree"),
        ({"options.whittle.prior": [8]}, "unknown key 'prior'; whittle takes no options"),
        ({"arm.3.p11": [0.5]}, "'arm.3.p11' must be arm.NUMBER and one of p01, p11, reward, of an"),
        ({"arm.0.p11": [0.5]}, "from 1 to 2 that is a channel"),
        ({"arm.01.p11": [0.5]}, "from 1 to 2 that is a channel"),
        ({"arm.1.passive": [0.5]}, "one of p01, p11, reward"),
        ({"plays": [1, 2, 3]}, "sweep: point 3 (plays = 3): plays must be a whole number between"),
        ({"agents": [1, 1.5]}, "point 2 (agents = 1.5): agents must be a whole number"),
        ({"agents": [[1]]}, "point 1 (agents = [1]): agents must be a whole number"),
        ({"schedule": ["weekly"]}, "point 1 (schedule = 'weekly'): schedule: unknown 'weekly'"),
        ({"policies.fedtswi.prior": [1, -1]}, "options.fedtswi.prior must be a number"),
        ({"arm.1.p11": [0.5, 2]}, "point 2 (arm.1.p11 = 2): arm 1: p11 must lie in [0, 1], got 2"),
        ({"arm.2.reward": ["1"]}, "arm 2: reward must be a finite number, got '1'"),
        ({"copies": [0]}, "copies must be a whole number from 1 to 4096, got 0"),
        ({"copies": [10**9]}, "copies must be a whole number from 1 to 4096"),
        ({"agents": [1, 2, 1]}, "points 1 and 3 must differ, got 'M = 1' twice"),
        (
            {"agents": [1, 2], "seed": range(501)},
            "sweep must have at most 1000 points, got 1002",
        ),
        (
            {"policies.fedtswi.prior": [1], "options.fedtswi.prior": [2]},
            "sweep.options.fedtswi.prior is there twice",
        ),
        ([1], "sweep must be a table of lists, got [1]"),
    ],
)
def test_what_is_no_sweep_is_refused(values, words):
    with pytest.raises(StudyError) as refused:
        Sweep(STUDY, values)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_lists_of_several_lengths_do_not_go_together(sizes):
    keys = ["agents", "horizon", "trials", "seed"]
    values = {key: list(range(1, size + 1)) for key, size in zip(keys, sizes, strict=False)}
    if len(set(sizes)) == 1:
        assert len(Sweep(STUDY, values, together=True).points) == sizes[0]
        return
    with pytest.raises(StudyError, match=f"of one length, got agents {sizes[0]}, horizon"):
        Sweep(STUDY, values, together=True)


def test_a_sweep_is_of_a_study():
    with pytest.raises(StudyError, match=r"must be of an rmab.Study, got Sweep"):
        Sweep(Sweep(STUDY, {}), {})  # type: ignore[arg-type]
    with pytest.raises(StudyError, match=r"must be of an rmab.Study, got Sweep"):
        run(Sweep(STUDY, {"agents": [1, 2]}))  # type: ignore[arg-type]


@pytest.mark.parametrize("together", [1, "yes", None, [True]])
def test_together_is_true_or_false(together):
    with pytest.raises(StudyError, match=r"sweep.together must be true or false, got"):
        Sweep(STUDY, {"agents": [1]}, together)


@pytest.mark.parametrize(
    "labels", [[], ["one"], ["one", 2], "ab", {"a": 1, "b": 2}, ["a", "a"], ["a", ""]]
)
def test_labels_are_one_text_for_each_point(labels):
    with pytest.raises(StudyError, match=r"sweep.labels must be a list of 2 texts|must differ"):
        Sweep(STUDY, {"agents": [1, 2]}, labels=labels)


def test_points_that_are_the_same_are_refused_whatever_their_labels():
    with pytest.raises(StudyError, match="points 1 and 2 must differ, got 'M = 1' twice"):
        Sweep(STUDY, {"agents": [1, 1]}, labels=["one", "other"])


# ------------------------------------------------------------------------------------------- a file

FILE = """
horizon = 40
trials = 30
policies = ["whittle", "random"]
[[arm]]
p01 = 0.89
p11 = 0.17
reward = 0.9
[[arm]]
p01 = 0.2
p11 = 0.8
reward = 0.4
[sweep]
agents = [1, 2]
plays = [1, 2]
"""


def test_a_file_has_a_study_and_its_sweep(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(FILE)
    sweep = load_sweep(path)
    assert [(s.agents, s.plays) for s in studies(sweep)] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert load(path).to_table() == sweep.study.to_table()
    path.write_text(FILE.replace("agents = [1, 2]", "agents = [1, 0]"))
    with pytest.raises(StudyError, match=r"study.toml: sweep: point 3 \(agents = 0, plays = 1\)"):
        load_sweep(path)


def test_a_bundled_study_is_a_sweep_of_one_point():
    assert [point.label for point in load_sweep("catalogue:fading").points] == [""]


# ----------------------------------------------------------------------------------------- the runs


@pytest.fixture(scope="module")
def swept() -> SweepResults:
    return run_sweep(Sweep(KNOWN, {"agents": [1, 2], "plays": [1, 2]}))


def test_points_are_the_studies_run_alone(swept):
    assert list(swept) == ["M = 1, K = 1", "M = 1, K = 2", "M = 2, K = 1", "M = 2, K = 2"]
    for point, results in swept.each():
        alone = run(point.study)
        assert results.summary() == alone.summary()
        assert results.slot_rows() == alone.slot_rows()
        assert results.episode_rows() == alone.episode_rows()
        assert np.array_equal(results.covariance, alone.covariance)


def test_points_that_differ_in_an_option_alone_are_paired():
    """What the option does not concern is the same to the last bit."""
    done = run_sweep(Sweep(replace(KNOWN, policies=["whittle", "ucb"]), {"policies.ucb.c": [0, 2]}))
    first, second = done.values()
    assert first["whittle"].summary() == second["whittle"].summary()
    assert first["ucb"].mean != second["ucb"].mean


def test_progress_counts_the_trials_of_all_points():
    steps: list[int] = []
    sweep = Sweep(KNOWN, {"plays": [1, 2]})
    run_sweep(sweep, steps.append)
    assert sum(steps) == sweep.n_trials == 60


def test_rows_have_settings_and_numbers(swept):
    rows = swept.rows()
    assert len(rows) == 8
    assert list(rows[0]) == [
        "point",
        "agents",
        "plays",
        "policy",
        *swept["M = 1, K = 1"]["random"].summary(),
    ]
    place = {(row["agents"], row["plays"], row["policy"]): row for row in rows}
    for point, results in swept.each():
        for name, result in results.items():
            row = place[point.study.agents, point.study.plays, name]
            assert {key: row[key] for key in result.summary()} == result.summary()
    frame = swept.to_pandas()
    assert frame.shape == (8, len(rows[0]))
    assert frame["mean"].tolist() == [row["mean"] for row in rows]


def test_what_is_written_is_what_was_found(swept, tmp_path):
    swept.write(tmp_path)
    with (tmp_path / "sweep.csv").open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    rows = swept.rows()
    assert [{key: str(value) for key, value in row.items()} for row in rows] == read
    assert json.loads((tmp_path / "sweep.json").read_text()) == rows
    table = json.loads((tmp_path / "results.json").read_text())
    assert table["sweep"] == {"agents": [1, 2], "plays": [1, 2], "together": False}
    assert table["study"] == KNOWN.to_table()
    assert (table["trials"], table["interrupted"]) == (120, False)
    assert table["device"]
    assert [point["settings"] for point in table["points"]] == [
        {"agents": agents, "plays": plays} for agents in (1, 2) for plays in (1, 2)
    ]
    for number, (point, results) in enumerate(swept.each(), start=1):
        assert table["points"][number - 1]["policies"] == results.summary()["policies"]
        folder = tmp_path / "points" / str(number)
        assert json.loads((folder / "results.json").read_text())["study"] == point.study.to_table()
        assert len((folder / "slots.csv").read_text().splitlines()) == 1 + 2 * 40
    again = sweep_of({**table["study"], "sweep": table["sweep"]})
    assert again.to_table() == swept.sweep.to_table()


def test_labels_that_were_given_are_in_the_rows():
    done = run_sweep(Sweep(KNOWN, {"plays": [1, 2]}, labels=["one", "two"]))
    assert [(row["point"], row["label"], row["plays"]) for row in done.rows()] == [
        (1, "one", 1),
        (1, "one", 1),
        (2, "two", 2),
        (2, "two", 2),
    ]
    assert list(done) == ["one", "two"]


def test_one_trial_has_no_error_and_no_nan(tmp_path):
    done = run_sweep(Sweep(replace(KNOWN, trials=1), {"plays": [1, 2]}))
    done.write(tmp_path)
    assert json.loads((tmp_path / "sweep.json").read_text())[0]["se"] is None
    assert "nan" not in (tmp_path / "sweep.csv").read_text()


# ------------------------------------------------------------------------------- cut short, resumed


def interrupt_point(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """Ctrl-C before the first trial of that point."""
    from rmab.engine.montecarlo import simulate

    begun = 0

    def until(*arguments: Any) -> Any:
        nonlocal begun
        begun += 1
        if begun == place:
            raise KeyboardInterrupt
        return simulate(*arguments)

    monkeypatch.setattr("rmab.studies.run.simulate", until)


def test_an_interrupted_sweep_has_the_points_that_are_done(monkeypatch, swept, tmp_path):
    interrupt_point(monkeypatch, 3)
    done = run_sweep(swept.sweep)
    assert done.interrupted
    assert list(done) == list(swept)[:2]
    assert done.rows() == swept.rows()[:4]
    assert done.to_json()["interrupted"] is True
    done.write(tmp_path)
    assert len((tmp_path / "sweep.csv").read_text().splitlines()) == 5


def test_a_sweep_interrupted_at_once_is_nothing(monkeypatch, swept):
    interrupt_point(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(swept.sweep)


def test_a_sweep_goes_on_from_its_checkpoint(monkeypatch, swept, tmp_path):
    with monkeypatch.context() as patch:
        interrupt_point(patch, 3)
        assert len(run_sweep(swept.sweep, checkpoint=tmp_path)) == 2
    steps: list[int] = []
    done = run_sweep(swept.sweep, steps.append, checkpoint=tmp_path)
    assert done.rows() == swept.rows()
    assert [r.slot_rows() for r in done.values()] == [r.slot_rows() for r in swept.values()]
    assert sum(steps) == 120
    ran = run_sweep(swept.sweep, checkpoint=tmp_path)  # again, from what is kept alone
    assert ran.rows() == swept.rows()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"agents": [1, 3], "plays": [1, 2]},
            r"sweep.agents: \[1, 2\] in the checkpoint, \[1, 3\]",
        ),
        ({"plays": [1, 2], "agents": [1, 2]}, "sweep: keys in another order now"),
        ({"agents": [1, 2]}, r"sweep.plays: \[1, 2\] in the checkpoint, none now"),
        ({}, "sweep: {.*} in the checkpoint, none now"),
    ],
)
def test_another_sweep_is_refused(swept, tmp_path, values, words):
    run_sweep(swept.sweep, checkpoint=tmp_path)
    with pytest.raises(StudyError, match=words):
        run_sweep(Sweep(KNOWN, values), checkpoint=tmp_path)


def test_a_point_that_cannot_be_run_is_named():
    many = replace(KNOWN, policies=["optimal"], arms=Arms([STUDY.arms[0]] * 2))
    with pytest.raises(StudyError, match=r"point copies = 15: policies: 'optimal' is too large"):
        run_sweep(Sweep(many, {"copies": [1, 15], "plays": [1, 15]}, together=True))


# ------------------------------------------------------------------------------------------- edges


@pytest.mark.parametrize("key", ["privacy.nothing", "agents.epsilon", "privacy.epsilon.more"])
def test_only_some_keys_of_a_table_are_swept(key):
    with pytest.raises(StudyError, match=f"sweep: unknown key '{key}'; known are agents"):
        Sweep(STUDY, {key: [1.0]})


def test_copies_repeat_what_agents_have_of_their_own():
    own = [{"number": 1, "p11": 0.5}, {"number": 2, "reward": 0.7}]
    study = replace(STUDY, agent=[{"agents": 2, "arm": own}])
    one, three = studies(Sweep(study, {"copies": [1, 3]}))
    assert one.agent == study.agent
    (table,) = three.agent
    assert table["agents"] == [2]
    assert [arm["number"] for arm in table["arm"]] == [1, 2, 3, 4, 5, 6]
    assert [{**arm, "number": 1 + (arm["number"] - 1) % 2} for arm in table["arm"]] == 3 * own
    assert list(study.agent) == list(one.agent)


def test_copies_end_at_4096():
    with pytest.raises(StudyError, match="copies must be a whole number from 1 to 4096, got 4097"):
        Sweep(STUDY, {"copies": [4097]})
    with pytest.raises(StudyError, match=r"whole number from 1 to 4096, got 1\.0"):
        Sweep(STUDY, {"copies": [1.0]})
    one = replace(STUDY, arms=Arms(STUDY.arms[:1]), policies=["whittle"], plays=1)
    (point,) = Sweep(one, {"copies": [4096]}).points
    assert len(point.study.arms) == 4096


def test_a_thousand_points_are_not_too_many():
    assert len(Sweep(STUDY, {"seed": range(1000)}).points) == 1000
    with pytest.raises(StudyError, match="sweep must have at most 1000 points, got 1001"):
        Sweep(STUDY, {"seed": range(1001)})
    together = {"seed": range(40), "horizon": range(1, 41)}
    assert len(Sweep(STUDY, together, together=True).points) == 40
    with pytest.raises(StudyError, match="at most 1000 points, got 1600"):
        Sweep(STUDY, together)


def test_values_and_keys_as_labels_have_them():
    shown = [value_text(each) for each in (True, False, "paper", 0.5, 1, [1, 2.0])]
    assert shown == ["true", "false", "paper", "0.5", "1", "[1, 2.0]"]
    keys = ("policies.fedtswi.prior", "options.a.b", "privacy.epsilon", "arm.1.p11", "copies")
    assert [key_label(key) for key in keys] == ["fedtswi.prior", "a.b", "epsilon", *keys[3:]]
    assert settings_label({"agents": 2, "plays": 1}) == "M = 2, K = 1"
    assert key_label("agents") != "M"
    point = {"agents": 2, "plays": 1, "seed": 0}
    assert telling([point, {**point, "agents": 3, "plays": 2}], ["plays"]) == []
    assert telling([point, {**point, "seed": 1}], ["plays"]) == ["seed"]
    assert telling([point]) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, r"sweep must be a \[sweep\] table, got 3"),
        ({}, "sweep must have a list of values; known keys are agents"),
        ({"together": True, "labels": ["one"]}, "sweep must have a list of values"),
    ],
)
def test_a_sweep_in_a_file_has_lists(given, words):
    with pytest.raises(StudyError, match=words):
        sweep_of({**STUDY.to_table(), "sweep": given})
