"""`rmab new federation`: a file that is valid as written, and never in place of another."""

from __future__ import annotations

import json
import os
import re
import tomllib
from dataclasses import fields

import pytest

from rmab.cli import main
from rmab.protocol.config import Federation, load_federation


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def new(*words):
    return main(["new", "federation", *words])


def test_the_file_is_a_federation_of_that_name_as_written(folder, capsys):
    assert new("spectrum.a-1") == 0
    out, err = capsys.readouterr()
    assert "spectrum.a-1.toml is written" in out
    assert out.count("\n") == 1
    assert err == ""
    assert list(folder.iterdir()) == [folder / "spectrum.a-1.toml"]
    federation = load_federation(folder / "spectrum.a-1.toml")
    assert federation.name == "spectrum.a-1"
    assert len(federation.arms) > federation.plays > 1


def test_its_settings_bound_what_one_agent_can_do():
    new("spectrum")
    federation = load_federation("spectrum.toml")
    assert federation.draws == "own"
    assert federation.channels
    assert federation.slot_seconds == 1
    assert federation.cap == 2
    assert federation.longest is not None
    longest = federation.longest * federation.slot_seconds
    assert federation.heard_seconds > longest + federation.deadline


def test_a_comment_stands_above_every_key_and_no_key_is_left_out(folder):
    new("spectrum")
    text = (folder / "spectrum.toml").read_text(encoding="utf-8")
    for key in tomllib.loads(text):
        if key not in ("options", "arm"):
            assert re.search(rf"^# .*\n\n?{key} = ", text, re.M), key
    for field in fields(Federation):
        key = "[[arm]]" if field.name == "arms" else field.name
        assert re.search(rf"^(#   )?(\[?{re.escape(key)}\]?)( =|$)", text, re.M), key
    assert max(map(len, text.splitlines())) <= 110


def test_what_is_only_a_comment_is_valid_too(folder):
    new("spectrum")
    text = (folder / "spectrum.toml").read_text(encoding="utf-8")
    further = text.partition("# Keys that most")[2].partition("\n#\n")[0]
    lines = [line[4:].split("  ")[0] for line in further.splitlines() if line.startswith("#   ")]
    assert len(lines) > 5
    for line in lines:
        (folder / "other.toml").write_text(f"{line}\n{text}", encoding="utf-8")
        load_federation(folder / "other.toml")


def test_the_same_as_json(capsys):
    assert new("spectrum", "--json") == 0
    told = {"kind": "federation", "name": "spectrum", "file": "spectrum.toml"}
    assert json.loads(capsys.readouterr().out) == told


def test_a_file_that_is_there_is_left_as_it_is(folder, capsys):
    (folder / "spectrum.toml").write_text("mine\n")
    assert new("spectrum") == 2
    assert capsys.readouterr().err == (
        "rmab new: spectrum.toml is there already, and is not overwritten\n"
    )
    assert (folder / "spectrum.toml").read_text() == "mine\n"


def test_a_link_that_leads_nowhere_is_not_followed(folder):
    (folder / "spectrum.toml").symlink_to(folder / "elsewhere")
    assert new("spectrum") == 2
    assert not (folder / "elsewhere").exists()


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".a", "a b", "ä", "x" * 65, "a\nb"])
def test_a_bad_name_is_refused_in_one_line(folder, capsys, name):
    assert new(name) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rmab new: NAME must have 1 to 64 letters")
    assert err.count("\n") == 1
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code", "told"), [(13, 2, "Permission denied"), (28, 1, "disk full")]
)
def test_a_file_that_cannot_be_written_leaves_nothing(
    folder, monkeypatch, capsys, number, code, told
):
    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, text):
            raise OSError(number, os.strerror(number))

    path = type(folder)
    real = path.open
    monkeypatch.setattr(
        path,
        "open",
        lambda self, *how, **more: (
            Full(real(self, *how, **more)) if how == ("x",) else real(self, *how, **more)
        ),
    )
    assert new("spectrum") == code
    assert f"spectrum.toml cannot be written: {told}" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("words", [[], ["king", "a"], ["federation"]])
def test_what_is_missing_is_told_in_one_line(capsys, words):
    with pytest.raises(SystemExit) as ended:
        main(["new", *words])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("words", [["new"], ["new", "federation"]])
def test_help_has_an_example(capsys, words):
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out.partition("example:\n")[2]
    assert "  rmab new federation spectrum" in out
