"""Bad input: exit 2, one line that says the value, the place and the rule."""

import pytest

from rmab.experiments.registry import FIGURES
from tests.cli.bad_studies import bad_studies
from tests.cli.commands import OTHER_ARM, Ran, program, toml


@pytest.mark.parametrize(("text", "words"), list(bad_studies()))
def test_a_bad_study_is_refused_in_one_line(call, study, text, words):
    path = study(text)
    for command in ("run", "value", "index"):
        ran = call(command, path, "--json")
        ran.assert_refused()
        place, rest = f"rmab {command}: {path}: ", ran.err
        assert rest.startswith(place)
        for word in words:  # not in the path, which has digits of its own
            assert word in rest.removeprefix(place), (word, rest)


def test_a_bad_study_is_refused_by_the_program_too(study, tmp_path):
    ran = program("run", study(toml({"plays": "3"})), "--out", tmp_path / "out")
    Ran(ran.returncode, ran.stdout, ran.stderr).assert_refused("study.toml: plays must", "got 3")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["run", "value", "index"])
def test_a_file_that_cannot_be_read_is_refused(call, tmp_path, command):
    call(command, tmp_path / "none.toml").assert_refused("none.toml: no such file")
    call(command, tmp_path).assert_refused(f"{tmp_path}: cannot be read", "directory")
    call(command, tmp_path / "none" / "x.toml").assert_refused("no such file")
    call(command, "").assert_refused("cannot be read")
    (tmp_path / "latin.toml").write_bytes("# größer\n".encode("latin-1") + toml().encode())
    call(command, tmp_path / "latin.toml").assert_refused("latin.toml: not valid TOML", "utf-8")
    (tmp_path / "picture.toml").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    call(command, tmp_path / "picture.toml").assert_refused("picture.toml: not valid TOML")
    call(command, tmp_path / "latin.toml" / "x").assert_refused("cannot be read", "directory")
    call(command, "nul\0byte").assert_refused()
    call(command, tmp_path / "two\nlines.toml").assert_refused("two lines.toml: no such file")


@pytest.mark.parametrize("value", ["0", "-3", "abc", "1.5", "1e3", "", "nan", "0x10", "9" * 5000])
def test_trials_must_be_a_whole_number_from_1(call, study, value):
    call("run", study(toml()), "--trials", value, "--json").assert_refused("trials")
    call("run", study(toml()), f"--trials={value}").assert_refused("trials", "whole number")


def test_trials_and_seeds_have_a_largest(call, study):
    call("run", study(toml()), "--trials", 2**32 + 1).assert_refused("trials", "2^32")
    call("run", study(toml()), "--seed", 2**64).assert_refused("seed", "2^64 - 1", str(2**64))
    call("reproduce", "fig13", "--trials", 2**32 + 1).assert_refused("trials", "2^32")


@pytest.mark.parametrize("value", ["-1", "abc", "1.5", "", "inf"])
def test_seed_must_be_a_whole_number_from_0(call, study, value):
    call("run", study(toml()), "--seed", value).assert_refused("--seed", "whole number", value)


@pytest.mark.parametrize("value", ["0", "-1", "abc", "2.5", "", "1000000000", "9" * 100])
def test_max_age_must_be_a_whole_number_from_1(call, study, value):
    call("index", study(toml()), "--max-age", value).assert_refused("--max-age", "whole", value)


@pytest.mark.parametrize("value", ["0", "1", "-0.5", "1.5", "abc", "", "nan", "inf", "1e400"])
def test_discount_must_lie_between_0_and_1(call, study, value):
    for text in (toml(), toml(general={})):
        ran = call("index", study(text), f"--discount={value}", "--json")
        ran.assert_refused("--discount must be a number above 0 and below 1, got", repr(value))


@pytest.mark.parametrize("command", ["run", "value", "index"])
@pytest.mark.parametrize(
    "name", ["", "none", "fading.toml", "../paper_figures/fig06", "two\nlines"]
)
def test_an_unknown_study_of_the_catalogue_is_refused(call, command, name):
    known = "adherence, age-of-information, client-selection, fading, fashions, gilbert-elliott"
    call(command, f"catalogue:{name}").assert_refused("catalogue: unknown", f"known are {known}")


@pytest.mark.parametrize("value", ["0", "-3", "abc", "1.5", ""])
def test_reproduce_refuses_bad_trials_before_it_begins(call, tmp_path, value):
    out = tmp_path / "out"
    call("reproduce", "fig07", "--trials", value, "--out", out).assert_refused("--trials", value)
    assert not out.exists()


@pytest.mark.parametrize("names", [["fig99"], ["fig13", "Fig07"], [""], ["fig6"], ["../fig06"]])
def test_an_unknown_figure_is_refused(call, tmp_path, names):
    ran = call("reproduce", *names, "--out", tmp_path / "out")
    ran.assert_refused("unknown figure", repr(names[-1]), ", ".join(FIGURES))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["fly"], "'fly'"),
        (["run"], "STUDY.toml"),
        (["value"], "STUDY.toml"),
        (["index"], "STUDY.toml"),
        (["run", "a.toml", "b.toml"], "b.toml"),
        (["run", "a.toml", "--fast"], "--fast"),
        (["run", "a.toml", "--max-age", "3"], "--max-age"),
        (["value", "a.toml", "--trials", "3"], "--trials"),
        (["value", "a.toml", "--discount", "0.9"], "--discount"),
        (["index", "a.toml", "--discount"], "--discount"),
        (["run", "a.toml", "--trials"], "--trials"),
        (["run", "a.toml", "--out"], "--out"),
        (["--fast"], "--fast"),
        (["run", "a.toml", "--two\nlines"], "--two lines"),
    ],
    ids=" ".join,
)
def test_a_bad_command_line_is_refused(call, arguments, word):
    call(*arguments).assert_refused("rmab", word, "--help")


@pytest.mark.parametrize("command", ["run", "reproduce"])
def test_an_unusable_folder_is_refused_before_the_work(call, study, tmp_path, command):
    first = [study(toml({"trials": "1000000"}))] if command == "run" else ["fig06"]
    (tmp_path / "file").write_text("x")
    for out in ("file", "file/under", "file/under/deep"):
        path = tmp_path / out
        call(command, *first, "--out", path).assert_refused(f"--out {path}", "folder")
    for out in ("", "nul\0byte", "x" * 5000):
        call(command, *first, "--out", out).assert_refused("--out", "folder")


def test_a_folder_that_takes_no_files_is_refused(call, study, tmp_path, monkeypatch):
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # who runs the tests may write anywhere
    ran = call("run", study(toml()), "--out", tmp_path)
    ran.assert_refused(f"--out {tmp_path}", "Permission denied")


def test_an_optimum_that_is_too_large_is_refused_by_run(call, study):
    path = study('plays = 15\npolicies = ["whittle", "optimal"]\n' + OTHER_ARM * 30)
    ran = call("run", path, "--json", "--trials", "1")
    ran.assert_refused(f"{path}: policies", "'optimal'", "30 arms", "states")


@pytest.mark.parametrize(
    "text",
    [
        toml(arm={"p01": "1", "p11": "0", "reward": "1"}),
        toml(arm={"p01": "0", "p11": "1", "reward": "0"}),
        toml(arm={"p01": "0.0", "p11": "1.0", "reward": "3"}),
        toml({"weights": "[0, 2.5]"}),
        toml({"seed": str(2**64 - 1)}),
        toml({"options.fedtswi.prior": "[1, 0.5]", "options.feducb-wi.clip": "false"}),
        toml({"options.fed1-ucb.sigma": "1", "options.whittle": "{}"}),
        toml({"options.fedtswi.prior": "1"}),
        toml(general={}),
        toml(general={"active": None, "observed": None}),
        toml(general={"observed": '"always"', "reward_passive": "[-1, -2.5]"}),
        toml(general={"reward": None, "reward_passive": "[1, 0]"}),
        toml({"realisations": '"shared"'}, general={"active": None, "reward": "[1, 2]"}),
        toml({"options.feducb-wi.clip": "false"}, general={"active": None}),
        toml(
            {"options.fedtswi.prior": "0.5"},
            general={"passive": "[[1, 0, 0], [1, 0, 0], [1, 0, 0]]", "active": None}
            | {"reward": "[3, 0, -4]", "observed": '"always"'},
        ),
        toml({"agents": None, "plays": None, "horizon": None, "trials": None, "policies": None}),
        toml().replace("\n", "\r\n"),
        "# Übertragungskanäle\n" + toml(),
        toml() + '\n[figure]\ntitle = "of its own"\n',
    ],
)
def test_a_good_study_is_accepted(call, study, text):
    ran = call("index", study(text), "--json", "--max-age", "2")
    assert (ran.code, ran.err) == (0, "")
    assert len(ran.json["arms"]) == 2
