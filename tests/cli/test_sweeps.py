"""`rmab run` and the other commands on a study with a sweep."""

import csv
import json
from pathlib import Path

import pytest

from tests.cli.commands import VALUES, Ran, interrupt, toml

STUDY = toml({"policies": '["whittle", "random"]'})
SWEEP = STUDY + "[sweep]\nagents = [1, 2]\nplays = [1, 2]\n"
LABELS = ["M = 1, K = 1", "M = 1, K = 2", "M = 2, K = 1", "M = 2, K = 2"]


@pytest.fixture(autouse=True)
def _one_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 32, one at a time: programs are compiled once."""
    monkeypatch.setattr("rmab.engine.montecarlo.batch_size", lambda _: 32)
    monkeypatch.setattr("rmab.engine.montecarlo.default_threads", lambda: 1)


def numbers(folder: Path) -> list[bytes]:
    """Every number that was written."""
    curves = sorted(folder.glob("points/*/*.csv"))
    assert len(curves) == 8
    return [path.read_bytes() for path in (folder / "sweep.csv", folder / "sweep.json", *curves)]


def test_a_sweep_is_one_object(call, study, tmp_path):
    ran = call("run", study(SWEEP), "--json", "--out", tmp_path / "out")
    assert ran.code == 0
    found = ran.json
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == found
    assert (found["trials"], found["interrupted"]) == (120, False)
    assert [point["label"] for point in found["points"]] == LABELS
    assert found["sweep"] == {"agents": [1, 2], "plays": [1, 2], "together": False}
    assert found["command"].startswith("rmab run ")
    alone = call("run", study(toml({"policies": '["whittle", "random"]', "plays": "2"})), "--json")
    assert found["points"][3]["policies"] == alone.json["policies"]


def test_a_sweep_is_one_table(call, study, tmp_path):
    out = tmp_path / "out"
    ran = call("run", study(SWEEP), "--out", out)
    assert ran.code == 0
    assert ran.err == (
        f"written to {out}/: report.html, results.json, sweep.csv, sweep.json, points, figure\n"
    )
    lines = ran.out.splitlines()
    assert lines[0].startswith("30 trials at each of 4 points; ")
    assert lines[1].split()[:5] == ["agents", "plays", "policy", "mean", "se"]
    assert len(lines) == 2 + 8
    with (out / "sweep.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [[row["agents"], row["plays"], row["policy"]] for row in rows] == [
        line.split()[:3] for line in lines[2:]
    ]
    assert json.loads((out / "sweep.json").read_text())[7]["mean"] == float(rows[7]["mean"])
    files = {path.name for path in out.iterdir()}
    assert {"report.html", "results.json", "figure.png", "figure.svg"} <= files
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(label in page for label in LABELS)


def test_options_of_policies_are_swept(call, study):
    text = toml({"policies": '["ucb", "whittle"]'})
    for table in ("policies", "options"):
        found = call("run", study(f"{text}[sweep]\n{table}.ucb.c = [0, 2]\n"), "--json").json
        assert [point["settings"] for point in found["points"]] == [
            {f"{table}.ucb.c": c} for c in (0, 2)
        ]
        first, second = (point["policies"] for point in found["points"])
        assert first["whittle"] == second["whittle"]
        assert first["ucb"] != second["ucb"]


def test_lists_go_together(call, study):
    found = call("run", study(SWEEP + "together = true\n"), "--json").json
    settings = [point["settings"] for point in found["points"]]
    assert settings == [{"agents": 1, "plays": 1}, {"agents": 2, "plays": 2}]


def test_labels_name_the_points(call, study):
    path = study(STUDY + '[sweep]\nplays = [1, 2]\nlabels = ["a few", "all"]\n')
    lines = call("run", path).out.splitlines()
    assert lines[1].split()[:2] == ["point", "policy"]
    assert [line[:7] for line in lines[2:]] == ["a few  "] * 2 + ["all    "] * 2
    assert [point["label"] for point in call("run", path, "--json").json["points"]] == [
        "a few",
        "all",
    ]
    assert call("value", path).out.count("a few") == len(VALUES)


def test_trials_and_seed_hold_for_all_points(call, study):
    found = call("run", study(SWEEP), "--json", "--trials", "3", "--seed", "4").json
    assert [point["trials"] for point in found["points"]] == [3] * 4
    assert found["seed"] == 4
    path = study(STUDY + "[sweep]\nseed = [1, 2]\n")
    call("run", path, "--seed", "4").assert_refused("--seed cannot be given", "values of seed")


def test_values_of_every_point(call, study):
    ran = call("value", study(SWEEP), "--json")
    assert (ran.code, ran.err) == (0, "")
    points = ran.json["points"]
    assert [point["label"] for point in points] == LABELS
    for point in points:
        head = {"policies": '["whittle"]', "plays": str(point["settings"]["plays"])}
        assert point["values"] == call("value", study(toml(head)), "--json").json
    table = call("value", study(SWEEP)).out.splitlines()
    assert table[1].split() == ["agents", "plays", "value", "of", "optimum"]
    assert len(table) == 2 + 4 * len(VALUES)
    assert table[2].split()[:3] == ["1", "1", "optimum"]


def test_why_values_are_not_known_is_said_once(call, study):
    ran = call("value", study(STUDY + "[sweep]\nagents = [1, 2]\ncopies = [15]\n"), "--json")
    assert ran.code == 0
    assert ran.json["points"][1]["values"]["optimum"] is None
    said = ran.err.splitlines()
    assert len(said) == len(set(said)) > 0


def test_indices_are_those_of_the_study(call, study):
    alone = call("index", study(STUDY), "--json")
    assert call("index", study(SWEEP), "--json") == alone
    assert alone.code == 0


# ----------------------------------------------------------------------------------- interruptions


@pytest.mark.parametrize(("place", "points", "trials"), [(3, 1, 48), (4, 2, 80)])
def test_a_sweep_goes_on_after_ctrl_c(call, study, tmp_path, monkeypatch, place, points, trials):
    """Before the first batch of the second point, which is of 32 trials, or after it."""
    path = study(SWEEP.replace("trials = 30", "trials = 48"))
    out, whole = tmp_path / "out", tmp_path / "whole"
    with monkeypatch.context() as patch:
        interrupt(patch, place)
        ran = call("run", path, "--out", out, "--json")
    assert ran.code == 130
    assert ran.json["interrupted"] is True
    assert [len(ran.json["points"]), ran.json["trials"]] == [points, trials]
    assert f"interrupted: {trials} of 192 trials done" in ran.err
    assert f"rmab run --resume {out} goes on" in ran.err
    page = (out / "report.html").read_text(encoding="utf-8")
    assert f"Interrupted: {trials} of 192 trials were done, of {points} of 4 points" in page
    assert call("run", "--resume", out).code == 0
    assert call("run", path, "--out", whole).code == 0
    assert numbers(out) == numbers(whole)
    again = call("run", "--resume", out)
    assert again.err.startswith("all trials were done before; written to ")


def test_a_sweep_goes_on_without_its_file(call, study, tmp_path, monkeypatch):
    path = study(SWEEP)
    with monkeypatch.context() as patch:
        interrupt(patch, 3)
        assert call("run", path, "--out", tmp_path / "out").code == 130
    path.unlink()
    assert len(call("run", "--resume", tmp_path / "out", "--json").json["points"]) == 4
    path.write_text(SWEEP.replace("plays = [1, 2]", "plays = [2]"))
    call("run", "--resume", tmp_path / "out").assert_refused(
        f"sweep.plays: [1, 2] in the checkpoint, [2] in {path}"
    )
    path.write_text(STUDY)
    call("run", "--resume", tmp_path / "out").assert_refused("sweep: {", "in the checkpoint, none")


def test_a_sweep_interrupted_before_its_first_trial_is_one_line(call, study, monkeypatch):
    interrupt(monkeypatch, 1)
    ran: Ran = call("run", study(SWEEP), "--json")
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.count("\n") == 1


def test_a_point_that_is_too_large_is_named(call, study):
    text = toml({"policies": '["optimal"]'}) + "[sweep]\ncopies = [1, 15]\nplays = [1, 15]\n"
    ran = call("run", study(text + "together = true\n"), "--json")
    ran.assert_refused("study.toml: point copies = 15: policies: 'optimal' is too large")
