"""`rmab trace`: one line of what was read, the file it writes, bad input."""

import re
import zipfile

import numpy as np
import pytest

import rmab
from tests.cli.commands import program

RAW = """\
time,arm,value,agent
0.0,a,-100,x
0.0,b,-90,x
0.1,a,-96,x
0.1,b,nan,x
0.30000000000000004,a,-70,x
0.3,b,-99,x
0.0,a,-100,y
0.2,a,-inf,y
2.0,a,-94,y
"""


@pytest.fixture
def raw(tmp_path):
    path = tmp_path / "raw.csv"
    path.write_text(RAW)
    return path


def test_one_line_says_what_was_read(call, raw, tmp_path):
    out = tmp_path / "trace.npz"
    ran = call("trace", raw, "--good", "<= -95", "--slot", "0.1", "--out", out)
    assert ran.code == 0
    assert ran.out == (
        "2 agents, 21 slots, 2 arms, slot 0.1 s, 57.14 % good, 91.67 % missing, 2 segments, "
        "2 values NaN or Inf, read as missing\n"
    )
    assert ran.err == "agent y: never measured and left out: arm b\n"
    found = rmab.load_trace(out)
    assert found.state[0, :4].tolist() == [[1, 0], [1, -1], [-1, -1], [0, 1]]
    assert found.state[1, [0, 2, 20], 0].tolist() == [1, -1, 0]
    assert (found.agents, found.arms, found.slot_s) == (("x", "y"), ("a", "b"), 0.1)
    with np.load(out) as arrays:  # as others read it
        assert sorted(arrays) == ["meta", "seg", "state"]
        assert arrays["state"].dtype == np.int8

    ran = call("trace", out)
    assert ran.out.startswith("2 agents, 21 slots, 2 arms, slot 0.1 s, 57.14 % good")
    assert call("trace", out, "--good", "== 0").out.startswith("2 agents, 21 slots, 2 arms")


def test_json(call, raw):
    ran = call("trace", raw, "--good", "<= -95", "--slot", "0.1", "--hole", "30", "--json")
    assert ran.code == 0
    assert ran.json == {
        "agents": 2,
        "slots": 21,
        "arms": 2,
        "agent_slots": 5,
        "segments": 1,
        "missing": pytest.approx(77 / 84),
        "good": pytest.approx(4 / 7),
        "slot_s": 0.1,
        "states": 2,
        "levels": None,
        "not_finite": 2,
        "agent_names": ["x", "y"],
        "arm_names": ["a", "b"],
        "left_out": [{"agent": "y", "arm": "b"}],
        "noise_floors": [],
        "source": "raw.csv; good: <= -95",
    }


def test_the_noise_floor_and_what_is_good_by_it_are_printed(call, raw):
    ran = call("trace", raw, "--good", "auto")
    lines = [line.split() for line in ran.out.splitlines()]
    assert lines[1] == ["agent", "arm", "noise", "floor", "good", "up", "to"]
    assert lines[2:] == [
        ["x", "a", "-99.20", "-93.20"],
        ["x", "b", "-98.10", "-92.10"],
        ["y", "a", "-99.40", "-93.40"],
    ]
    (floor, *_) = call("trace", raw, "--good", "auto", "--json").json["noise_floors"]
    assert floor == pytest.approx(
        {"agent": "x", "arm": "a", "floor": -99.2, "good_up_to": -93.2}, abs=1e-9
    )


def test_levels_are_written_beside_good(call, raw, tmp_path):
    out = tmp_path / "trace.npz"
    ran = call("trace", raw, "--levels", "-95,-80", "--good", "<= -95", "--out", out)
    assert ran.code == 0, ran.err
    assert ", 3 states" in ran.out
    assert rmab.load_trace(out).states == 2
    assert rmab.load_trace(out, levels=True).state[0, 0].tolist() == [0, 1]
    ran = call("trace", raw, "--levels=-80,-95", "--out", out)
    assert ", 3 states, the highest good" in ran.out
    for levels in (False, True):
        assert rmab.load_trace(out, levels).state[0, 0].tolist() == [2, 1]
    assert call("trace", raw, "--levels", "-95", "--out", out).code == 0  # two states, and levels
    assert rmab.load_trace(out, levels=True).states == 2


def test_every_option_reaches_the_reader(call, tmp_path):
    path = tmp_path / "raw.csv"
    path.write_text("t,ch,p,who\n1,a,3,x\n0,a,3,x\n0,b,9,x\n0.5,b,1,x\n1,b,1,x\n2.9,a,2,x\n")
    words = ["--time", "t", "--arm", "ch", "--value", "p", "--agent", "who", "--sort"]
    words += ["--slot", "1", "--how", "mean", "--good", "<= 3", "--hysteresis", "0.5"]
    out = tmp_path / "trace.npz"
    ran = call("trace", path, *words, "--hole", "0", "--out", out)
    assert ran.code == 0, ran.err
    assert rmab.load_trace(out).state[0].tolist() == [[1, 0], [1, 1], [1, -1]]


def test_sweeps_and_variables(call, tmp_path):
    path = tmp_path / "sweeps.csv"
    row = "2024-01-02, 10:00:0{}, 100, 120, 10, 1, {}, {}\n"
    path.write_text(row.format(0, -90, -10) + row.format(1, -10, -90))
    ran = call("trace", path, "--bands", "100:110,110:120", "--good", "<= -50", "--json")
    assert ran.json["arm_names"] == ["100:110", "110:120"]
    np.savez(tmp_path / "raw.npz", a=np.eye(3), b=np.ones((3, 3)))
    ran = call("trace", tmp_path / "raw.npz", "--variable", "a")
    assert ran.out.startswith("1 agent, 3 slots, 3 arms, slot length unknown, 33.33 % good")


def test_the_file_may_be_the_one_that_was_read(call, raw, tmp_path):
    out = tmp_path / "trace.npz"
    call("trace", raw, "--good", "<= -95", "--out", out)
    assert call("trace", out, "--good", "== 0", "--out", out).code == 0
    assert rmab.load_trace(out).good == pytest.approx(3 / 7)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slot", "0"], "--slot must be a number of seconds above 0"),
        (["--slot", "-1"], "--slot must be a number of seconds above 0"),
        (["--slot", "x"], "--slot must be a number, got 'x'"),
        (["--slot", "nan"], "--slot must be a number, got 'nan'"),
        (["--slot", ""], "--slot must be a number, got ''"),
        (["--slot", "1e-6"], "slot of 1e-06 s is too short: over 99 %"),
        (["--hysteresis", "-3"], "--hysteresis must be a number of at least 0"),
        (["--hole", "-1"], "--hole must be a whole number of at least 0, got '-1'"),
        (["--hole", "1.5"], "--hole must be a whole number"),
        (["--good", "good"], "--good must be one of <=, >=, ==, !=, <, > and a number"),
        (["--levels", "-80,x"], "--levels must be numbers"),
        (["--how", "worst"], "--how: unknown 'worst'"),
        (["--value", "power"], "raw.csv: line 1: no column 'power'"),
        (["--out", ""], "--out must name a file"),
        (["--out", "none/trace.npz"], "--out none/trace.npz: must be a file to write to"),
        (["--out", "nul\0byte"], "must be a file to write to"),
        (["--fast"], "--fast"),
        (["other.csv"], "other.csv"),
    ],
)
def test_bad_options_are_refused(call, raw, words, said):
    call("trace", raw, "--good", "<= -95", *words).assert_refused("rmab", said)
    call("trace", raw, "--json", "--good", "<= -95", *words).assert_refused(said)


def test_bad_files_are_refused(call, raw, tmp_path):
    call("trace").assert_refused("RECORDING")
    call("trace", tmp_path / "none.csv").assert_refused("none.csv: no such file")
    call("trace", "nul\0byte.csv").assert_refused("cannot be read")
    call("trace", tmp_path / "two\nlines.csv").assert_refused("two lines.csv: no such file")
    call("trace", "").assert_refused("must end in one of")
    call("trace", raw).assert_refused("raw.csv: line 2: -100 is no state")
    raw.write_text(RAW + "0.1,b,1,x\n")
    call("trace", raw, "--good", "<= 0").assert_refused("raw.csv: line 11: time 0.1 s of arm 'b'")


def test_a_bomb_is_refused_by_the_program(tmp_path):
    path = tmp_path / "bomb.npz"
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1, 10000000000, 10), }\n"
    start = np.lib.format.magic(1, 0) + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("state.npy", start + bytes(2**20))
        file.writestr("seg.npy", b"")
    for command in (["trace", path], ["trace", path, "--variable", "state", "--good", "<= 0"]):
        ran = program(*command)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert re.fullmatch(r"rmab trace: .*bomb\.npz: state: shape .* 2\^31 cells\n", ran.stderr)
