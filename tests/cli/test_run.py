"""`rmab run`: what it prints and writes."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from rmab.cli import main
from rmab.policies.registry import KNOWN, LEARNERS
from tests.cli.commands import Ran, toml

EVERY_POLICY = [*LEARNERS, *KNOWN]
# A learner takes long to compile. Their results are tests of the engine; here is one of each shape
# of table that is written: episodes that grow, phases, and no episodes at all.
FEW_LEARNERS = ["fedtswi", "fed1-ucb", "ucb"]
ONE_EPISODE = ["fed1-ucb", "ucb", *KNOWN]  # in so few slots


@pytest.fixture(
    scope="session",
    params=[
        pytest.param([*FEW_LEARNERS, *KNOWN], id="few learners"),
        pytest.param(EVERY_POLICY, id="every policy", marks=pytest.mark.slow),
    ],
)
def ran_all(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Ran, list[str]]:
    """A study of many policies, run once with --json and --out, and their names."""
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO

    names: list[str] = request.param
    folder = tmp_path_factory.mktemp("many")
    path = folder / "many policies.toml"
    few = "".join(f"[options.{n}]\ngaps = 8\n" for n in names if n.endswith("-gap"))  # quicker
    path.write_text(toml({"policies": json.dumps(names)}) + "\n" + few)
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["run", str(path), "--json", "--out", str(folder / "new" / "out")])
    return folder / "new" / "out", Ran(code, out.getvalue(), err.getvalue()), names


def test_run_prints_one_json_object(ran_all):
    folder, ran, names = ran_all
    assert ran.code == 0
    assert ran.json["trials"] == 30
    assert list(ran.json["policies"]) == names
    for name, numbers in ran.json["policies"].items():
        assert {"mean", "se", "final", "episodes"} <= set(numbers)
        assert 0 < numbers["mean"] < 0.9
        assert 0 < numbers["se"] < 0.1
        assert 0 <= numbers["final"] <= 0.9
        assert numbers["episodes"] >= 1
        assert (numbers["episodes"] > 1) == (name not in ONE_EPISODE)
    assert ran.err.count("\n") == 1
    assert str(folder) in ran.err


def test_run_writes_what_it_promises(ran_all):
    folder, ran, names = ran_all
    files = {path.name for path in folder.iterdir()}
    assert {"results.json", "slots.csv", "episodes.csv", "report.html"} <= files
    assert {".png", ".svg"} <= {Path(name).suffix for name in files}
    assert json.loads((folder / "results.json").read_text()) == ran.json
    (png,) = folder.glob("*.png")
    assert png.read_bytes().startswith(b"\x89PNG")
    (svg,) = folder.glob("*.svg")
    assert "<svg" in svg.read_text(encoding="utf-8")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "many policies" in page
    assert all(name in page for name in names)


def test_slots_and_episodes_agree_with_the_summary(ran_all):
    folder, ran, names = ran_all

    def read(name: str) -> list[dict[str, str]]:
        with (folder / name).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    slots, episodes = read("slots.csv"), read("episodes.csv")
    assert len(slots) == 40 * len(names)
    for name, numbers in ran.json["policies"].items():
        mine = [row for row in slots if row["policy"] == name]
        assert [int(row["slot"]) for row in mine] == list(range(1, 41))
        rewards = np.array([float(row["reward"]) for row in mine])
        assert rewards.mean() == pytest.approx(numbers["mean"])
        assert rewards[-4:].mean() == pytest.approx(numbers["final"])
        behind = float(mine[-1]["regret"]) / 40
        assert behind == pytest.approx(numbers["behind_whittle"], abs=1e-9)
        played = [row for row in episodes if row["policy"] == name]
        assert int(played[0]["trials"]) == 30
        count = sum(int(row["trials"]) for row in played) / 30
        assert count == pytest.approx(numbers["episodes"])
        slots_in_all = sum(int(row["trials"]) * float(row["length"]) for row in played) / 30
        assert slots_in_all == pytest.approx(40)


def test_run_prints_a_table(call, study):
    path = study(toml({"policies": '["whittle", "random"]'}))
    ran = call("run", path)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith("30 trials")
    assert lines[1].split()[:5] == ["policy", "mean", "se", "final", "episodes"]
    numbers = call("run", path, "--json").json["policies"]
    for line in lines[2:]:
        name, *cells = line.split()
        for cell, key in zip(cells, ("mean", "se", "final"), strict=False):
            assert float(cell) == pytest.approx(numbers[name][key], abs=1e-5)
    assert len(lines) == 4


def test_run_takes_arms_of_several_kinds(call, study):
    """A channel beside an arm that pays .5 whatever happens: it adds just that."""
    head = {"policies": '["whittle"]', "plays": "2"}
    sure = {"observed": '"always"', "reward": "[0.5, 0.5]"}
    both = call("run", study(toml(head, general=sure)), "--json").json["policies"]["whittle"]
    alone = call("run", study(toml(head, arm={"reward": "0"})), "--json").json["policies"][
        "whittle"
    ]
    assert both["mean"] == pytest.approx(0.5 + alone["mean"], abs=5 * alone["se"])


def test_trials_and_seed_replace_those_of_the_study(call, study):
    policies = '["whittle", "random"]'
    path = study(toml({"policies": policies}))
    asked = call("run", path, "--json", "--trials", "20", "--seed", "7").json
    assert asked["trials"] == 20
    path = study(toml({"policies": policies, "trials": "20", "seed": "7"}))
    for key in ("trials", "policies", "study", "seed"):
        assert call("run", path, "--json").json[key] == asked[key]
    assert call("run", path, "--json", "--seed", "8").json["policies"] != asked["policies"]


def test_one_trial_has_no_error_and_no_nan(call, study, tmp_path):
    path = study(toml({"policies": '["whittle", "random"]'}))
    ran = call("run", path, "--trials", "1", "--json", "--out", tmp_path / "one")
    for numbers in ran.json["policies"].values():
        assert numbers["se"] is None
        assert isinstance(numbers["mean"], float)
    assert (tmp_path / "one" / "report.html").exists()
    assert "nan" not in (tmp_path / "one" / "slots.csv").read_text()
    assert call("run", path, "--trials", "1").code == 0


def test_a_horizon_of_one_slot_runs(call, study, tmp_path):
    path = study(toml({"policies": '["whittle"]', "horizon": "1"}))
    ran = call("run", path, "--json", "--out", tmp_path / "short")
    numbers = ran.json["policies"]["whittle"]
    assert numbers["final"] == pytest.approx(numbers["mean"])
    assert (tmp_path / "short" / "slots.csv").read_text().count("\n") == 2


def test_a_folder_is_written_over(call, study, tmp_path):
    path = study(toml({"policies": '["whittle", "random"]'}))
    out = tmp_path / "again"
    out.mkdir()
    (out / "results.json").write_text("old")
    (out / "mine.txt").write_text("kept")
    assert call("run", path, "--out", out).code == 0
    assert json.loads((out / "results.json").read_text())["trials"] == 30
    assert (out / "mine.txt").read_text() == "kept"


def test_a_file_that_cannot_be_written_is_one_line(call, study, tmp_path):
    (tmp_path / "out" / "results.json").mkdir(parents=True)
    path = study(toml({"policies": '["whittle", "random"]'}))
    ran = call("run", path, "--out", tmp_path / "out")
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    assert "results.json" in ran.err
