"""A trace: its shapes and shares, kept in a file and read from it, and what is refused."""

import io
import json
import os
import zipfile

import numpy as np
import pytest

import rmab
from rmab.traces.readers.arrays import ArrayFile, read_npy
from rmab.traces.trace import Threshold, check_usable

STATE = np.array([[[1, 0], [0, 1], [-1, 1], [1, -1]], [[1, 1], [-1, -1], [0, 0], [1, 1]]], np.int8)


def trace(**changes):
    """Two agents, four slots, two arms, three segments."""
    settings = {"state": STATE, "segment": [0, 0, 1, 2], "slot_s": 0.1, "source": "made up"}
    return rmab.Trace(**{**settings, **changes})


def test_shares_and_sizes():
    found = trace().summary()
    assert found == {
        "agents": 2,
        "slots": 4,
        "arms": 2,
        "agent_slots": 7,
        "segments": 3,
        "missing": 4 / 16,
        "good": 8 / 12,
    }
    np.testing.assert_array_equal(trace().measured, STATE >= 0)


def test_names_are_numbers_unless_given():
    assert (trace().agents, trace().arms) == (("0", "1"), ("0", "1"))
    assert trace(arms=("a", "b")).arms == ("a", "b")
    with pytest.raises(rmab.TraceError, match="2 arms have 3 names"):
        trace(arms=("a", "b", "c"))


def test_its_arrays_cannot_be_written_to():
    made = trace()
    for array in (made.state, made.segment):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    assert STATE.flags.writeable


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"state": STATE[0]}, r"shape \(4, 2\)"),
        ({"state": STATE.astype(float)}, "whole numbers"),
        ({"state": np.where(STATE == -1, 2, STATE)}, r"state\[0, 2, 0\] is 2: must be from 0 to 1"),
        ({"state": STATE - 1}, r"state\[0, 2, 0\] is -2"),
        ({"segment": [0, 1]}, "for each of 4 slots"),
        ({"segment": [0, 2, 1, 1]}, r"segment\[2\] is 1, below"),
        ({"slot_s": 0.0}, "slot_s must be a number of seconds above 0"),
        ({"slot_s": float("nan")}, "slot_s must be a number of seconds above 0"),
        ({"states": 1}, "states must be a whole number from 2"),
        ({"states": 2.5}, "states must be a whole number from 2"),
        ({"states": 128}, "states must be a whole number from 2 to 127, got 128"),
        ({"slot_s": "1"}, "slot_s must be a number"),
    ],
)
def test_a_trace_that_is_none_is_refused(changes, rule):
    with pytest.raises(rmab.TraceError, match=rule):
        trace(**changes)


def test_arms_that_an_agent_never_measured_are_found():
    state = STATE.copy()
    state[1, :, 0] = -1
    assert trace(state=state).never_measured == [(1, 0)]
    assert trace().never_measured == []


def test_good_can_be_said_anew():
    other = trace().regraded("== 0")
    np.testing.assert_array_equal(other.state, np.where(STATE < 0, -1, 1 - STATE))
    assert other.source == "made up; good: state == 0"
    several = trace(state=np.where(STATE == 1, 2, STATE), states=3).regraded(">= 2")
    np.testing.assert_array_equal(several.state, STATE)
    assert several.states == 2
    with pytest.raises(rmab.TraceError, match="--good '> 1': there is no good anywhere"):
        trace().regraded("> 1")
    for text in ("", "0", "=0", "<= x", "<= nan", "== 1; 2", "<= 1e999", "<= ."):
        with pytest.raises(rmab.TraceError, match="--good must be one of"):
            trace().regraded(text)


def test_what_leaves_nothing_to_choose_or_learn_is_refused():
    cases = [
        (trace(state=STATE[:, :, :1]), "one arm"),
        (trace(state=STATE[:, :1], segment=[0]), "2 slots or more, this has 1"),
        (trace(state=np.ones_like(STATE)), "no bad anywhere"),
        (trace(state=np.zeros_like(STATE)), "no good anywhere"),
        (trace(state=np.full_like(STATE, -1)), "nothing was measured"),
        (trace(state=np.ones_like(STATE), states=3), "no state but 1"),
    ]
    for made, rule in cases:
        with pytest.raises(rmab.TraceError, match=f"here: .*{rule}"):
            check_usable(made, "here")


def test_two_arms_in_two_slots_are_enough():
    check_usable(trace(state=STATE[:, :2], segment=[0, 0]), "here")
    assert trace(states=127, segment=[0, 0, 0, 5]).states == 127


def test_rules_for_good():
    values = np.array([0.9, 0.95, 1.0], np.float32)
    expected = {
        "<=": [True, True, False],
        ">=": [False, True, True],
        "==": [False, True, False],
        "!=": [True, False, True],
        "<": [True, False, False],
        ">": [False, False, True],
    }
    for sign, good in expected.items():
        rule = Threshold.parse(f" {sign} .95 ")  # in the precision of the values
        assert (rule.sign, rule.bound) == (sign, 0.95)
        assert rule(values).tolist() == good
        harder = rule.stricter(0.05)
        assert harder.bound == pytest.approx(1.0 if ">" in sign else 0.9)
    assert str(Threshold.parse("<=-9.5e1")) == "<= -95"


# ------------------------------------------------------------------------------------------- files


def test_what_is_saved_is_loaded(tmp_path):
    path = tmp_path / "t.npz"
    made = trace(arms=("a", "b"), agents=("x", "y"))
    rmab.save_trace(made, path)
    found = rmab.load_trace(path)
    np.testing.assert_array_equal(found.state, made.state)
    np.testing.assert_array_equal(found.segment, made.segment)
    assert (found.slot_s, found.arms, found.agents, found.source, found.states) == (
        0.1,
        ("a", "b"),
        ("x", "y"),
        "made up",
        2,
    )
    assert found.state.dtype == np.int8


def test_levels_are_chosen_when_it_is_loaded(tmp_path):
    path = tmp_path / "t.npz"
    levels = trace(state=np.where(STATE == 1, 2, STATE), states=4)
    rmab.save_trace(trace(), path, levels)
    assert rmab.load_trace(path).states == 2
    found = rmab.load_trace(path, levels=True)
    assert found.states == 4  # as was said, though the highest does not occur
    np.testing.assert_array_equal(found.state, levels.state)

    rmab.save_trace(levels, path)  # several states and no rule for good
    for flag in (False, True):
        found = rmab.load_trace(path, levels=flag)
        assert found.states == 4
        np.testing.assert_array_equal(found.state, levels.state)

    rmab.save_trace(trace(), path)
    with pytest.raises(rmab.TraceError, match="--levels: it has no array 'level'"):
        rmab.load_trace(path, levels=True)


def test_a_file_of_others_is_loaded(tmp_path):
    path = tmp_path / "t.npz"
    names = {"slot_s": 60, "agents": ["x", "y"], "channels": [["a", "b"], ["c"]]}
    meta = json.dumps({**names, "good": "not labelled", "source": "somewhere", "licence": "MIT"})
    level = np.where(STATE == 1, 3, STATE)
    segment = np.array([3, 3, 0, 3], np.int16)  # blocks, whatever their ids
    np.savez(path, state=STATE.astype(np.int64), seg=segment, level=level, meta=meta)
    found = rmab.load_trace(path)
    np.testing.assert_array_equal(found.segment, [0, 0, 1, 2])
    assert found.source == "somewhere; good: not labelled"
    assert (found.slot_s, found.agents, found.arms) == (60, ("x", "y"), ("0", "1"))
    assert rmab.load_trace(path, levels=True).states == 4

    np.savez(path, state=STATE[0])  # one agent, and nothing else is known
    found = rmab.load_trace(path)
    assert found.state.shape == (1, 4, 2)
    assert found.n_segments == 1
    assert found.slot_s is None


@pytest.mark.parametrize(
    ("arrays", "rule"),
    [
        ({"other": STATE}, "no array 'state'; rmab trace makes one"),
        ({"state": STATE + 1}, r"state\[0, 0, 0\] is 2: must be from 0 to 1"),
        ({"state": STATE * 1.0}, "state must be whole numbers"),
        ({"state": STATE[0, 0]}, r"got shape \(2,\)"),
        ({"state": STATE, "seg": [0, 0]}, "seg must be a whole number for each of 4 slots"),
        ({"state": STATE, "meta": "{"}, "meta is not JSON"),
        ({"state": STATE, "meta": "[1]"}, "meta must be the text of one JSON object"),
        ({"state": STATE, "meta": 3}, "meta must be the text"),
        ({"state": STATE, "meta": '{"slot_s": 0}'}, "slot_s must be a number of seconds above 0"),
        ({"state": STATE, "meta": '{"slot_s": "x"}'}, "slot_s must be a number of seconds"),
        ({"state": STATE, "meta": '{"states": "x"}'}, "states must be a whole number"),
        ({"state": STATE, "meta": '{"states": 2.5}'}, "states must be a whole number"),
        ({"state": STATE, "meta": '{"slot_s": true}'}, "slot_s must be a number of seconds"),
        ({"state": STATE, "meta": '{"agents": ["x"]}'}, "2 agents have 1 names"),
        ({"state": STATE[:, :, :1]}, "one arm"),
        ({"state": STATE[:, :1]}, "2 slots or more"),
        ({"state": np.where(STATE == 0, 1, STATE)}, "no bad anywhere"),
        ({"state": STATE.astype(object)}, "pickled arrays are not read"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, arrays, rule):
    path = tmp_path / "t.npz"
    np.savez(path, **arrays)
    with pytest.raises(rmab.TraceError, match=rule) as raised:
        rmab.load_trace(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    path = tmp_path / "t.npz"
    with pytest.raises(rmab.TraceError, match=r"t\.npz: no such file"):
        rmab.load_trace(path)
    with pytest.raises(rmab.TraceError, match="cannot be read: Is a directory"):
        rmab.load_trace(tmp_path)
    path.write_bytes(b"PK\x03\x04 no more")
    with pytest.raises(rmab.TraceError, match=r"not a \.npz file"):
        rmab.load_trace(path)
    rmab.save_trace(trace(), path)
    whole = path.read_bytes()
    for end in range(1, len(whole), 37):
        path.write_bytes(whole[:end])
        with pytest.raises(rmab.TraceError):
            rmab.load_trace(path)
    for place in range(30, len(whole), 5):  # damaged: refused, or what was damaged did not matter
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        try:
            rmab.load_trace(path)
        except rmab.TraceError:
            continue


def header(shape, kind="|i1"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": kind, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


@pytest.mark.parametrize(
    ("shape", "rule"),
    [
        ((4, 2**40, 2), "more than 2\\^31 cells"),
        ((2**31 + 1,), "more than 2\\^31 cells"),
        ((2, 2**28, 2), "does not fit into"),
        ((-1, 4, 2), "does not fit into"),
    ],
)
def test_a_bomb_is_refused_by_its_header(tmp_path, shape, rule):
    """Nothing after the header is read: the file has nothing there."""
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("state.npy", header(shape))
    with pytest.raises(rmab.TraceError, match=f"t.npz: state: .*{rule}"):
        rmab.load_trace(path)
    (tmp_path / "t.npy").write_bytes(header(shape))
    with pytest.raises(rmab.TraceError, match=f"t.npy: .*{rule}"):
        read_npy(tmp_path / "t.npy")


def test_arrays_of_numbers_are_told_by_their_headers(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, a=STATE, b=STATE[0] * 0.5, c=[1, 2], d=STATE * 1j, e="text", f=STATE > 0)
    with ArrayFile(path) as file:
        assert [name for name in file.names if file.is_numbers(name)] == ["a", "b", "f"]


def test_what_is_no_file_stays_and_a_link_leads_to_the_new_one(tmp_path):
    os.mkfifo(tmp_path / "fifo.npz")
    with pytest.raises(OSError, match="not a file"):
        rmab.save_trace(trace(), tmp_path / "fifo.npz")
    assert (tmp_path / "fifo.npz").is_fifo()
    (tmp_path / "link.npz").symlink_to(tmp_path / "t.npz")
    for made in (trace(), trace(slot_s=7.0)):
        rmab.save_trace(made, tmp_path / "link.npz")
        assert (tmp_path / "link.npz").is_symlink()
        assert rmab.load_trace(tmp_path / "t.npz").slot_s == made.slot_s


def test_names_that_no_page_could_show_become_numbers(tmp_path):
    path = tmp_path / "t.npz"
    for name in ("\ud800", "a\nb", "\x1b[31m", "a\u2028b"):
        meta = json.dumps({"agents": [name, "b"], "channels": ["x", "y"], "source": "s\udcff"})
        np.savez(path, state=STATE, meta=meta)
        found = rmab.load_trace(path)
        assert found.agents == ("0", "1")
        assert (found.arms, found.source) == (("x", "y"), "s?")
