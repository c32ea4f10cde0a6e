"""rmab fit: what it prints and writes, and what it refuses."""

import json

import numpy as np
import pytest

import rmab
from tests.traces.made import SLOTS, chain


@pytest.fixture
def trace(tmp_path):
    """A trace in a file, with levels."""
    state = chain()
    path = tmp_path / "trace.npz"
    level = np.where(state == 1, 1 + chain(seed=3), 0)
    np.savez(path, state=state, seg=np.arange(SLOTS) // 250, level=level, meta="{}")
    return path


def test_tables_verdicts_and_files(call, trace, tmp_path):
    out = tmp_path / "fitted"
    alone = call("fit", trace, "--json")
    assert (alone.code, alone.err) == (0, "")
    ran = call("fit", trace, "--out", out, "--study", tmp_path / "study.toml")
    assert ran.code == 0
    for line in (
        "4 of 4 series tested",
        "order1",
        "whittle",
        "The order ",
        "memory: The last",
    ):
        assert line in ran.out
    assert ran.err.strip() == (
        f"written to {tmp_path / 'study.toml'} and {out}/: fit.html, fit.json, pictures"
    )
    assert json.loads((out / "fit.json").read_text(encoding="utf-8")) == alone.json
    assert "Does a Markov chain fit trace?" in (out / "fit.html").read_text(encoding="utf-8")
    assert len(rmab.load(tmp_path / "study.toml").arms) == 2


def test_good_is_what_a_rule_says(call, trace):
    plain, other = (call("fit", trace, "--json", *more).json for more in ([], ["--good", "== 0"]))
    for one, two in zip(plain["arms"], other["arms"], strict=True):
        assert one["good"] + two["good"] == pytest.approx(1)
        assert one["p01"] + two["p11"] == pytest.approx(1)
    assert plain["bits"] == pytest.approx(other["bits"], rel=0.01)


def test_levels(call, trace):
    found = call("fit", trace, "--levels", "--json").json
    assert found["bits"]["flicker"] is None
    upper = call("fit", trace, "--levels", "--good", ">= 2", "--json").json
    assert upper["bits"]["flicker"] is not None
    assert upper["arms"] == found["arms"]


def test_arms_never_measured_are_named(call, tmp_path):
    state = chain()
    state[1, :, 0] = -1
    np.savez(tmp_path / "trace.npz", state=state)
    ran = call("fit", tmp_path / "trace.npz")
    assert ran.code == 0
    assert "agent 1: never measured and left out: arm 0" in ran.err


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["absent.npz"], "absent.npz"),
        (["{trace}", "--good", "good"], "--good"),
        (["{trace}", "--good", ">= 5"], "no good anywhere"),
        (["{trace}", "--study", "{folder}"], "it is a folder"),
        (["{trace}", "--study", ""], "--study must name a file, got ''"),
        (["{trace}", "--study", "{folder}/absent/study.toml"], "there is no such folder"),
        (["{trace}", "--out", "{trace}"], "--out"),
        ([], "TRACE.npz"),
    ],
)
def test_refusals_are_one_line(call, trace, tmp_path, arguments, rule):
    ran = call("fit", *(each.format(trace=trace, folder=tmp_path) for each in arguments))
    assert (ran.code, ran.out) == (2, "")
    assert rule in ran.err
    assert len(ran.err.strip().splitlines()) == 1
