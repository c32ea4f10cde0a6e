"""Recordings of every form become traces: what is read, how it is graded, what is refused."""

import gzip
import io
import struct
import zlib

import numpy as np
import pytest
from scipy.io import savemat

import rmab
from rmab.traces.recordings import read_recording
from rmab.traces.samples import DUPLICATES

# Two arms over five slots, -1 where nothing was measured.
EXPECTED = [[1, 0], [0, 1], [1, -1], [-1, 1], [0, 0]]
LONG = """\
time,arm,value
0,a,-100
0,b,-90
1,a,-80
1,b,-99
2,a,-96
3,b,-120
4,a,-94
4,b,-1e1
"""
WIDE = """\
time,a,b
0,-100,-90
1,-80,-99
2,-96,
3,,-120
4,-94,-10
"""
VALUES = np.array([[-100, -90], [-80, -99], [-96, np.nan], [np.nan, -120], [-94, -10.0]])
GOOD = "<= -95"


@pytest.fixture
def write(tmp_path):
    """Write a file of this text or these bytes."""

    def put(data, name="raw.csv"):
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return put


def states(path, **options):
    """The states (slots, arms) of the first agent."""
    return read_recording(path, **options).trace.state[0].tolist()


def table(times, *arms):
    """A wide CSV file; an arm is a list of values or None."""
    rows = [
        ",".join(["" if cell is None else str(cell) for cell in row])
        for row in zip(times, *arms, strict=True)
    ]
    names = ",".join("abcdef"[: len(arms)])
    return f"time,{names}\n" + "\n".join(rows) + "\n"


# -------------------------------------------------------------------------------------------- forms


def test_a_long_table(write):
    found = read_recording(write(LONG), good=GOOD)
    assert found.trace.state.tolist() == [EXPECTED]
    assert (found.trace.slot_s, found.trace.arms, found.not_finite) == (1.0, ("a", "b"), 0)
    assert found.trace.source == "raw.csv; good: <= -95"


def test_a_wide_table(write):
    assert states(write(WIDE), good=GOOD) == EXPECTED


@pytest.mark.parametrize("text", [LONG, WIDE])
def test_a_packed_table(write, text):
    path = write(gzip.compress(text.encode()), "raw.csv.gz")
    assert states(path, good=GOOD) == EXPECTED
    for damaged in (text.encode(), gzip.compress(text.encode())[:-20]):
        with pytest.raises(rmab.TraceError, match=r"not a whole \.gz file"):
            read_recording(write(damaged, "bad.csv.gz"), good=GOOD)


def test_columns_have_other_names(write):
    text = LONG.replace("time,arm,value", "t,channel,dBm")
    assert states(write(text), good=GOOD, time="t", arm="channel", value="dBm") == EXPECTED
    text = WIDE.replace("time", "t")
    assert states(write(text), good=GOOD, time="t") == EXPECTED


@pytest.mark.parametrize("delimiter", [";", "\t", " , "])
def test_other_delimiters_and_ends_of_lines(write, delimiter):
    text = "\ufeff" + WIDE.replace(",", delimiter).replace("\n", "\r\n") + "\r\n"
    assert states(write(text), good=GOOD) == EXPECTED


def test_an_index_that_a_program_wrote_is_no_arm(write):
    lines = [f"{i if i else ''},{line}" for i, line in enumerate(WIDE.splitlines())]
    assert states(write("\n".join(lines)), good=GOOD) == EXPECTED


def test_several_agents(write):
    rows = [f"{line},{who}" for who in ("radio-10", "radio-9") for line in LONG.splitlines()[1:]]
    rows.remove("2,a,-96,radio-10")
    found = read_recording(write("\n".join(["time,arm,value,agent", *rows])), good=GOOD).trace
    assert found.agents == ("radio-9", "radio-10")
    assert found.state[0].tolist() == EXPECTED
    assert found.state[1, 2, 0] == -1
    assert found.state.shape == (2, 5, 2)

    rows = [f"{who},{line}" for line in WIDE.splitlines()[1:] for who in "xy"]
    found = read_recording(
        write("\n".join(["node,time,a,b", *rows])), good=GOOD, agent="node"
    ).trace
    assert found.agents == ("x", "y")
    assert found.state.tolist() == [EXPECTED, EXPECTED]


def test_arms_may_be_numbers_of_many_digits(write):
    names = ["0" + 5000 * "9", 5000 * "8", "7"]
    text = "time,arm,value\n" + "".join(f"{t},{n},{t}\n" for t in range(2) for n in names)
    assert read_recording(write(text)).trace.arms == (names[2], names[1], names[0])


def test_arms_that_are_numbers_are_in_their_order(write):
    text = "time,arm,value\n" + "".join(f"{t},{n},{n % 2}\n" for t in range(3) for n in (10, 9, 2))
    found = read_recording(write(text)).trace
    assert found.arms == ("2", "9", "10")
    assert found.state[0].tolist() == [[0, 1, 0]] * 3


def test_an_arm_that_an_agent_never_measured_is_missing(write):
    text = LONG.replace("value", "value,agent").replace("\n", ",x\n").replace("agent,x", "agent")
    text += "".join(f"{t},a,{-100 + 10 * (t % 2)},y\n" for t in range(5))
    found = read_recording(write(text), good=GOOD).trace
    assert found.never_measured == [(1, 1)]


SWEEPS = """\
2024-01-02, 10:00:00, 2400000000, 2402000000, 1000000.00, 20, -100, -100
2024-01-02, 10:00:00, 2402000000, 2404000000, 1000000.00, 20, -100, -50
2024-01-02, 10:00:01, 2402000000, 2404000000, 1000000.00, 20, -100, nan
2024-01-02, 10:00:01, 2400000000, 2402000000, 1000000.00, 20, -40, -100
2024-01-02, 10:00:03, 2400000000, 2402000000, 1000000.00, 20, -100, -100
2024-01-02, 10:00:03, 2402000000, 2404000000, 1000000.00, 20, -99, -98
"""


def test_sweeps_of_a_spectrum(write):
    bands = "2.4e9:2.402e9, 2.402e9:2.404e9,2.4e9:2.401e9"
    found = read_recording(write(SWEEPS), good="<= -60", slot=1, bands=bands)
    assert found.trace.arms == ("2.4e9:2.402e9", "2.402e9:2.404e9", "2.4e9:2.401e9")
    assert found.trace.state[0].tolist() == [[1, 0, 1], [0, 1, 0], [-1, -1, -1], [1, 1, 1]]
    assert found.not_finite == 1


def test_the_power_of_a_band_is_the_mean_of_powers(write):
    """Of -50 and -100 dB it is -53, where the mean of the decibels is -75."""
    bands = "2.4e9:2.402e9,2.402e9:2.404e9"
    for bound, good in ((-53.02, 0), (-53.0, 1)):
        found = states(write(SWEEPS), good=f"<= {bound}", slot=1, bands=bands)
        assert found[0] == [1, good]


def test_the_bin_that_rtl_power_repeats_is_left_out(write):
    row = "2013-03-21, 15:22:{:02d}, 100, 200, 50.0, 1, {}, {}, {}\n"
    text = row.format(0, -90, -90, -10) + row.format(10, -90, -10, -90)
    assert states(write(text), good=GOOD[:-2] + "80", bands="100:150,150:300") == [[1, 1], [1, 0]]


def test_a_sweep_ends_where_it_is_longer_than_a_slot(write):
    rows = "".join(
        f"2024-01-02, 10:00:0{s}.25, {low}, {low + 10}, 10, 1, {dB}\n"
        for s, low, dB in ((0, 100, -90), (1, 110, -10), (2, 100, -10), (3, 110, -90))
    )
    found = states(write(rows), good="<= -80", slot=1, bands="100:110,110:120")
    assert found == [[1, -1], [-1, 0], [0, -1], [-1, 1]]


@pytest.mark.parametrize("shape", [(5, 2), (1, 5, 2)])
def test_arrays(tmp_path, shape):
    values = VALUES.reshape(shape)
    np.save(tmp_path / "raw.npy", values)
    np.savez(tmp_path / "raw.npz", rssi=values, place="here", gain=3.0)
    np.savez(tmp_path / "more.npz", rssi=values, other=values)
    savemat(tmp_path / "raw.mat", {"rssi": values, "gain": 3.0, "note": "text", "row": [1, 2, 3]})
    savemat(tmp_path / "packed.mat", {"rssi": values}, do_compression=True)
    savemat(tmp_path / "old.mat", {"rssi": values[0] if values.ndim == 3 else values}, format="4")
    for name in ("raw.npy", "raw.npz", "raw.mat", "packed.mat", "old.mat"):
        found = read_recording(tmp_path / name, good=GOOD, slot=2.5)
        assert found.trace.state.tolist() == [EXPECTED], name
        assert (found.trace.slot_s, found.not_finite) == (2.5, 2)
    assert states(tmp_path / "more.npz", good=GOOD, variable="rssi") == EXPECTED


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float32])
def test_arrays_of_states(tmp_path, kind):
    state = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 0]])
    np.save(tmp_path / "raw.npy", state.astype(kind))
    assert states(tmp_path / "raw.npy") == state.tolist()
    if kind in (np.int64, np.float32):
        np.save(tmp_path / "raw.npy", (state - np.eye(3)).astype(kind))  # -1 is missing
        assert states(tmp_path / "raw.npy") == (state - np.eye(3)).tolist()


def test_values_are_judged_in_their_precision(tmp_path):
    share = np.array([[0.95, 0.1], [0.94, 0.95], [0.95, 0.95]])
    for kind in (np.float16, np.float32, np.float64):
        np.save(tmp_path / "raw.npy", share.astype(kind))
        for how in ("first", "mean"):
            found = states(tmp_path / "raw.npy", good=">= 0.95", how=how)
            assert found == [[1, 0], [0, 1], [1, 1]], kind
        assert states(tmp_path / "raw.npy", good="== 0.95") == [[1, 0], [0, 1], [1, 1]]
        assert states(tmp_path / "raw.npy", levels="0.95") == [[1, 0], [0, 1], [1, 1]]
    np.save(tmp_path / "raw.npy", np.array([[1, 2], [3, 4]], np.float16))
    with pytest.raises(rmab.TraceError, match="no bad"):
        read_recording(tmp_path / "raw.npy", good="<= 1e300")


def test_states_of_a_trace_that_are_missing_stay_so_under_any_rule(tmp_path):
    path = tmp_path / "raw.npz"
    state = np.array([EXPECTED], np.int8)
    np.savez(path, state=state, seg=np.zeros(5, int), level=state)
    for name in ("state", "level"):
        found = read_recording(path, variable=name, good="<= 0").trace
        np.testing.assert_array_equal(found.state, np.where(state < 0, -1, 1 - state))
    np.savez(path, other=state)  # which may be of anything
    assert read_recording(path, good="<= 0").trace.missing == 0


def test_states_alone_are_a_trace_and_other_numbers_are_not(tmp_path):
    path = tmp_path / "raw.npz"
    holes = np.tile([[1, 0]], (40, 1))
    holes[10:25] = -1
    holes[30] = 0, 1
    np.savez(path, state=holes)
    assert read_recording(path).trace.n_segments == rmab.load_trace(path).n_segments == 1
    np.savez(path, state=VALUES)
    assert states(path, good=GOOD) == EXPECTED
    np.savez(path, state=np.array([[-90, -99], [-98, -80]]))
    assert states(path, good=GOOD) == [[0, 1], [1, 0]]
    np.savez(path, state=VALUES, seg=np.zeros(5, int))  # of floats is no trace
    assert states(path, good=GOOD) == EXPECTED


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"how": "mean"}, "it is a trace, and --how is for samples"),
        ({"sort": True}, "--sort is for samples"),
        ({"hole": 3}, "--hole is for samples"),
        ({"bands": "1:2"}, "--bands is for samples"),
        ({"time": "t"}, "names of columns are for samples"),
        ({"duplicates": "mean"}, "--duplicates is for samples"),
        ({"decimal": ","}, "--decimal is for samples"),
        ({"missing": ["NA"]}, "--missing is for samples"),
        ({"dates": "%d.%m.%Y"}, "--dates is for samples"),
    ],
)
def test_what_is_for_samples_is_refused_for_a_trace(tmp_path, options, rule):
    np.savez(tmp_path / "t.npz", state=np.array(EXPECTED, np.int8))
    with pytest.raises(rmab.TraceError, match=rule):
        read_recording(tmp_path / "t.npz", **options)


def test_what_does_not_fit_into_memory_is_refused(tmp_path, write, monkeypatch):
    def full(*_, **__):
        raise MemoryError

    np.save(tmp_path / "raw.npy", VALUES)
    monkeypatch.setattr("rmab.traces.recordings.on_steps", full)
    monkeypatch.setattr("numpy.lib.format.read_array", full)
    for path in (write(WIDE), tmp_path / "raw.npy"):
        with pytest.raises(rmab.TraceError, match=r"raw\.\w+: does not fit into memory"):
            read_recording(path, good=GOOD)


def test_empty_lines_before_the_header(write):
    assert states(write("\n \n" + WIDE), good=GOOD) == EXPECTED
    with pytest.raises(rmab.TraceError, match="line 5: column 'a': 'abc'"):
        read_recording(write("\n\n" + WIDE.replace("-80", "abc")), good=GOOD)
    with pytest.raises(rmab.TraceError, match="line 1: a header"):
        read_recording(write("\n\n"), good=GOOD)


def test_the_line_that_is_no_text_is_named(write):
    lines = ["time,a,b", *(f"{t},1,0" for t in range(5000))]
    text = "\n".join([*lines, "5000,\xe9,1", "5001,1,0"]).encode("latin-1")
    for data, name in ((text, "raw.csv"), (gzip.compress(text), "raw.csv.gz")):
        with pytest.raises(rmab.TraceError, match="line 5002: not text in UTF-8: byte 0xe9"):
            read_recording(write(data, name))


def test_a_file_that_is_a_trace_already(tmp_path):
    state = np.array([EXPECTED], np.int8)
    pdr = np.where(state == 1, 99, 12)
    meta = '{"slot_s": 2, "channels": ["x", "y"]}'
    path = tmp_path / "t.npz"
    np.savez(
        path,
        state=state,
        seg=[0, 0, 1, 1, 1],
        level=np.where(state == 1, 2, state),
        pdr=pdr,
        meta=meta,
    )
    found = read_recording(path)
    assert found.trace.state.tolist() == [EXPECTED]
    assert found.levels is not None
    assert found.levels.states == 3
    assert found.trace.arms == ("x", "y")
    np.testing.assert_array_equal(
        read_recording(path, good="== 0", slot=5).trace.state[state >= 0], 1 - state[state >= 0]
    )
    assert read_recording(path, slot=5).trace.slot_s == 5
    other = read_recording(path, variable="pdr", good=">= 95").trace
    assert (other.arms, other.n_segments, other.slot_s) == (("x", "y"), 2, 2)
    np.testing.assert_array_equal(other.state, pdr > 95)
    np.savez(path, state=np.where(state == 1, 2, state), meta='{"states": 3}')  # one segment
    assert read_recording(path).trace.states == 3
    with pytest.raises(rmab.TraceError, match="need what was measured; --variable"):
        read_recording(path, levels="1,2")


def test_a_parquet_file_is_read_as_pandas_reads_it(write, monkeypatch):
    pd = pytest.importorskip("pandas")
    path = write(b"PAR1", "raw.parquet")
    wide = pd.read_csv(io.StringIO(WIDE))
    long = pd.read_csv(io.StringIO(LONG))
    long["time"] = pd.to_datetime(long["time"], unit="s", utc=True)
    for frame in (wide, long, wide.set_index("time"), wide.astype({"b": "Float64"})):
        monkeypatch.setattr("pandas.read_parquet", lambda name, frame=frame: frame)
        found = read_recording(path, good=GOOD)
        assert found.trace.state[0].tolist() == EXPECTED
        assert found.trace.slot_s == 1

    single = pd.DataFrame(
        {"time": [0, 1], "a": np.array([0.95, 0.1], np.float32), "b": [0.1, 0.95]}
    )
    states_of = {"time": pd.to_timedelta([0, 2], unit="s"), "a": [True, False], "b": [False, True]}
    for frame, options in ((single, {"good": ">= 0.95"}), (pd.DataFrame(states_of), {})):
        monkeypatch.setattr("pandas.read_parquet", lambda name, frame=frame: frame)
        assert states(path, **options) == [[1, 0], [0, 1]]

    def refuse(error):
        def read(name):
            raise error

        return read

    monkeypatch.setattr("pandas.read_parquet", refuse(ImportError("no engine")))
    with pytest.raises(rmab.TraceError, match="with pyarrow or fastparquet, and neither"):
        read_recording(path, good=GOOD)
    monkeypatch.setattr("pandas.read_parquet", refuse(OSError("magic bytes")))
    with pytest.raises(rmab.TraceError, match=r"not a \.parquet file that pandas reads: magic"):
        read_recording(path, good=GOOD)


# --------------------------------------------------------------------------------------------- good


@pytest.mark.parametrize(
    ("good", "expected"),
    [
        ("<= 2", [1, 1, 0]),
        ("< 2", [1, 0, 0]),
        (">=2", [0, 1, 1]),
        (" > 2 ", [0, 0, 1]),
        ("== 2", [0, 1, 0]),
        ("!= 2e0", [1, 0, 1]),
    ],
)
def test_rules_for_good(write, good, expected):
    found = np.array(states(write(table([0, 1, 2], [1, 2, 3], [3, 2, 1])), good=good))
    assert found[:, 0].tolist() == expected
    assert found[:, 1].tolist() == expected[::-1]


def test_good_by_the_noise_floor(write):
    quiet, loud = np.linspace(-100, -90, 101), np.linspace(-80, -60, 101)
    found = read_recording(write(table(range(101), quiet, loud)), good="auto")
    for floor, values, low in zip(found.floors, (quiet, loud), (-99, -78), strict=True):
        assert floor.floor == pytest.approx(low)
        assert floor.good_up_to == pytest.approx(low + 6)
        n = found.trace.arms.index(floor.arm)
        np.testing.assert_array_equal(found.trace.state[0, :, n], values <= floor.good_up_to)
    assert found.trace.source == "raw.csv; good: at most 6 dB above the noise floor"


def test_levels(write):
    path = write(table(range(5), [-100, -95, -90, -80, -70], [0, 0, -99, None, 0]))
    found = read_recording(path, levels="-95,-80")
    assert found.trace.states == 3
    assert found.levels is found.trace
    assert found.trace.state[0].T.tolist() == [[0, 1, 1, 2, 2], [2, 2, 0, -1, 2]]
    found = read_recording(path, levels="-80, -95")  # lower is better
    assert found.trace.state[0].T.tolist() == [[2, 2, 1, 1, 0], [0, 0, 2, -1, 0]]
    found = read_recording(path, levels="-95,-80", good=GOOD)
    assert found.levels is not None
    assert (found.trace.states, found.levels.states) == (2, 3)
    assert found.trace.state[0, :, 0].tolist() == [1, 1, 0, 0, 0]


def test_hysteresis_asks_for_more_to_go_back(write):
    power = [-96, -94, -96, -98, -96, None, -97, -90, None, -96]
    path = write(table(range(10), power, [-200, 0] * 5))
    plain = [1, 0, 1, 1, 1, -1, 1, 0, -1, 1]
    assert [row[0] for row in states(path, good=GOOD)] == plain
    slow = [1, 0, 0, 1, 1, -1, 1, 0, -1, 0]
    assert [row[0] for row in states(path, good=GOOD, hysteresis=3)] == slow
    up = write(table(range(6), [0.96, 0.94, 0.96, 0.98, 0.96, 0.9], [0, 1] * 3))
    found = states(up, good=">= 0.95", hysteresis=0.02)
    assert [row[0] for row in found] == [1, 0, 0, 1, 1, 0]


def test_hysteresis_of_levels(write):
    path = write(table(range(7), [0, 11, 14, 21, 24, 19, 9], [0, 30] * 3 + [0]))
    found = states(path, levels="10,20", hysteresis=3)
    assert [row[0] for row in found] == [0, 0, 1, 1, 2, 1, 0]


def test_hysteresis_forgets_at_a_new_segment(write):
    times = [0, 1, 2, 20, 21]
    path = write(table(times, [-90, -96, -96, -96, -96], [-100, -90, -100, -90, -100]))
    found = np.array(states(path, good=GOOD, hysteresis=3, slot=1, hole=10))
    assert found[[0, 1, 2, 20, 21], 0].tolist() == [0, 0, 0, 1, 1]


# -------------------------------------------------------------------------------------------- slots


@pytest.mark.parametrize("start", [0, 1.7e9, -3])
@pytest.mark.parametrize("slot", [0.1, 0.2, 1 / 3, 0.001, 60])
@pytest.mark.parametrize("digits", ["", ".9f", ".17g"])
def test_times_fall_into_their_slots_whatever_their_last_digit(write, start, slot, digits):
    n = 400
    times = [format(start + i * slot, digits) for i in range(n)]
    good = np.random.default_rng(0).integers(0, 2, (n, 2))
    found = read_recording(write(table(times, *good.T)), slot=slot).trace
    np.testing.assert_array_equal(found.state[0], good)


def test_times_that_were_added_up_fall_into_their_slots(write):
    times = [repr(t) for t in np.cumsum(np.full(20_000, 0.1)).tolist()]
    good = np.random.default_rng(0).integers(0, 2, (20_000, 2))
    found = read_recording(write(table(times, *good.T)), slot=0.1).trace
    np.testing.assert_array_equal(found.state[0], good)


def test_a_time_just_before_a_slot_is_in_the_one_before(write):
    path = write(table([0, 0.0999, 0.2], [1, 0, 1], [0, 1, 1]))
    assert states(path, slot=0.1) == [[1, 0], [-1, -1], [1, 1]]


def test_what_becomes_of_several_samples_in_a_slot(write):
    path = write(
        table(
            [0, 0.2, 0.4, 1.0, 1.3, 2.5, 2.9],
            [-100, -90, -100, -90, -106, None, -96],
            [-90, -101, -101, -100, -100, -90, -98],
        )
    )
    assert states(path, good=GOOD, slot=1) == [[1, 0], [0, 1], [1, 0]]
    assert states(path, good=GOOD, slot=1, how="any-bad") == [[0, 0], [0, 1], [1, 0]]
    assert states(path, good=GOOD, slot=1, how="mean") == [[1, 1], [1, 1], [1, 0]]
    assert states(path, levels="-105,-95", slot=1, how="any-bad") == [[1, 1], [0, 1], [1, 1]]


def test_a_slot_without_a_sample_is_missing(write):
    assert states(write(table([0, 1, 3], [1, 0, 1], [0, 1, 1])), slot=1) == [
        [1, 0],
        [0, 1],
        [-1, -1],
        [1, 1],
    ]


def test_without_a_slot_it_is_the_median_step(write):
    """Times that waver have a slot each, and what was left out is missing."""
    times = [0, 0.98, 2.04, 3.01, 6.0, 7.03]
    found = read_recording(write(table(times, [1, 0, 1, 0, 1, 0], [1] * 6))).trace
    assert found.state[0, :, 0].tolist() == [1, 0, 1, 0, -1, -1, 1, 0]
    assert found.slot_s == pytest.approx(1.03)


@pytest.mark.parametrize(
    "times",
    [
        ["2024-03-01T10:00:00", "2024-03-01T10:00:00.100", "2024-03-01T10:00:00.200000001"],
        ["2024-03-01 23:59:59.9", "2024-03-02 00:00:00", "2024-03-02 00:00:00,1"],
        ["2024-03-01T10:00:00Z", "2024-03-01T11:00:00.1+01:00", "2024-03-01T05:00:00.2-05:00"],
        ["20240301T100000.0", "20240301T100000.1", "20240301T100000.2"],
    ],
)
def test_times_are_dates(write, times):
    good = [[1, 0], [0, 1], [1, 1]]
    rows = (f"{time};{a};{b}" for time, (a, b) in zip(times, good, strict=True))
    assert states(write("\n".join(["time;a;b", *rows])), slot=0.1) == good


# --------------------------------------------------------------------------------------------- gaps


def test_a_long_hole_starts_a_segment(write):
    times = [0, 1, 2, 13, 14, 26, 27]  # holes of 10 and 11 slots
    path = write(table(times, [1, 0] * 3 + [1], [1] * 7))
    for hole, starts in ((10, [26]), (11, []), (9, [13, 26]), (0, [13, 26])):
        found = read_recording(path, slot=1, hole=hole).trace
        assert found.state.shape == (1, 28, 2)
        changes = np.flatnonzero(np.diff(found.segment)) + 1
        assert changes.tolist() == starts
        assert found.n_segments == len(starts) + 1
    assert read_recording(path).trace.n_segments == 2  # by the median step, and 10 slots


def test_a_hole_in_some_arms_or_agents_is_none(write):
    times = range(30)
    path = write(table(times, [1] * 5 + [None] * 20 + [1] * 5, [0] * 30))
    assert read_recording(path).trace.n_segments == 1
    path = write(table(times, [1] * 5 + ["nan"] * 20 + [1] * 5, [0] * 5 + ["inf"] * 20 + [0] * 5))
    found = read_recording(path)
    assert found.trace.n_segments == 2
    assert found.not_finite == 40


def test_holes_of_arrays_are_holes(tmp_path):
    values = np.tile([0.0, 1.0], (40, 1))
    values[10:25] = np.nan
    np.save(tmp_path / "raw.npy", values)
    assert read_recording(tmp_path / "raw.npy").trace.segment.tolist() == [0] * 25 + [1] * 15


def test_sorting(write):
    lines = LONG.splitlines()
    path = write("\n".join([lines[0], *lines[:0:-1]]))
    assert states(path, good=GOOD, sort=True) == EXPECTED
    with pytest.raises(rmab.TraceError, match=r"raw.csv: line 4: time 3 s of arm 'b' goes back"):
        read_recording(path, good=GOOD)


# --------------------------------------------------------------------------- repeats, marks, dates

REPEATED = "time,a,b\n0,-100,-90\n1,,-99\n1,-80,\n1,-98,-91\n2,-94,-10\n"


@pytest.mark.parametrize(("how", "second"), [("first", [0, 1]), ("last", [1, 0]), ("mean", [0, 1])])
def test_samples_of_one_time_become_one(write, how, second):
    """Of a: missing, -80, -98, and their mean is -89; of b: -99, missing, -91, and -95."""
    found = states(write(REPEATED), good=GOOD, duplicates=how)
    assert found == [[1, 0], second, [0, 0]]


def test_samples_of_one_time_after_sorting(write):
    head, *rows = REPEATED.splitlines()
    path = write("\n".join([head, rows[-1], rows[0], *rows[1:-1]]))
    assert states(path, good=GOOD, sort=True, duplicates="last")[1] == [1, 0]
    with pytest.raises(rmab.TraceError, match=r"line 3: time 0 s .* goes back"):
        read_recording(path, good=GOOD, duplicates="last")


def test_a_time_of_which_nothing_was_measured_stays_missing(write):
    path = write("time,a,b\n0,-100,-90\n1,,-99\n1,,-98\n2,-94,-10\n")
    for how in DUPLICATES:
        assert states(path, good=GOOD, duplicates=how)[1] == [-1, 1]


def test_samples_of_one_time_in_a_long_table_are_by_arm(write):
    path = write("time,arm,value\n0,a,1\n0,b,0\n1,a,0\n1,a,1\n1,b,1\n2,a,1\n")
    assert states(path, duplicates="first")[1] == [0, 1]
    assert states(path, duplicates="last")[1] == [1, 1]


@pytest.mark.parametrize("delimiter", [";", "\t", ","])
def test_decimal_commas(write, delimiter):
    rows = [["0,0", "-100,5", "-90"], ["0,1", "-94,9", "-95,1"], ["0,2", "-1e2", "-9,4e1"]]
    quote = '"' if delimiter == "," else ""
    lines = [delimiter.join(f"{quote}{cell}{quote}" for cell in row) for row in rows]
    path = write("\n".join([delimiter.join(["time", "a", "b"]), *lines]))
    found = read_recording(path, good=GOOD, decimal=",")
    assert found.trace.state[0].tolist() == [[1, 0], [0, 1], [1, 0]]
    assert found.trace.slot_s == pytest.approx(0.1)


def test_marks_of_missing_values(write, tmp_path):
    path = write("time,a,b\n0,NA,-90\n1,-9999,-99\n2,-9999.0,-\n3,-100,nan\n")
    found = read_recording(path, good=GOOD, missing=["NA", "-9999", "-"])
    assert found.trace.state[0].tolist() == [[-1, 0], [-1, 1], [-1, -1], [1, -1]]
    assert found.not_finite == 1  # marks are not counted
    values = np.array([[-100, -9999], [-90, -99], [np.nan, -90]], np.float32)
    np.save(tmp_path / "raw.npy", values)
    found = read_recording(tmp_path / "raw.npy", good=GOOD, missing=["-9999"])
    assert found.trace.state[0].tolist() == [[1, -1], [0, 1], [-1, 0]]
    assert found.not_finite == 1


def test_dates_of_another_form(write):
    rows = ["01.02.2024 10:00:00", "01.02.2024 10:00:30", "01.02.2024 10:01:00"]
    text = "time;a;b\n" + "".join(f"{time};{n % 2};{(n + 1) % 2}\n" for n, time in enumerate(rows))
    found = read_recording(write(text), dates="%d.%m.%Y %H:%M:%S").trace
    assert (found.slot_s, found.state.shape) == (30.0, (1, 3, 2))
    iso = text
    for time in rows:
        iso = iso.replace(time, f"2024-02-01T{time[-8:]}")
    assert read_recording(write(iso)).trace.slot_s == 30.0
    path = write(text.replace("10:00:30", "10:00:00.25").replace("10:00:00;", "10:00:00.0;"))
    zoned = path.read_text().replace("10:01:00", "10:00:00.5").replace(";0;", " +0100;0;")
    path.write_text(zoned.replace(";1;0", " +0100;1;0"))
    assert read_recording(path, dates="%d.%m.%Y %H:%M:%S.%f %z").trace.slot_s == 0.25


# ---------------------------------------------------------------------------------- what is refused

REFUSED = [
    # a table
    ("", {}, "line 1: a header"),
    ("time,a,b\n", {}, "2 slots or more, and here is no row"),
    ("t,a,b\n0,1,0\n", {}, "line 1: no column 'time'; --time names another; columns are t, a, b"),
    (WIDE, {"time": "t"}, r"line 1: no column 't' \(--time\); columns are time, a, b"),
    (WIDE, {"agent": "who"}, "line 1: no column 'who'"),
    (LONG, {"value": "power"}, "line 1: no column 'power'"),
    ("time,arm,dBm\n0,a,1\n", {}, "no column 'value'; --value names another"),
    ("time,value\n0,1\n", {}, "no column 'arm'; --arm names another"),
    ("time,a,a\n0,1,1\n", {}, "line 1: two columns have the name 'a'"),
    (WIDE.replace("-80", "abc"), {}, "line 3: column 'a': 'abc' is no number"),
    (LONG.replace("-99", "1_0"), {}, "line 5: '1_0' is no number"),
    (WIDE + "5,1\n", {}, "line 7: 2 fields, where the header has 3"),
    ("time,arm,value\n0,,1\n", {}, "line 2: arm has no name"),
    ("time,a,b,agent\n0,1,1,\n", {}, "line 2: agent has no name"),
    ('time,a,b\n0,1,"\n' + "x" * 200_000, {}, "not CSV: field larger"),
    ('time,a,b\n0,1,0\n1,0,"1\n', {}, "line 3: not CSV: .*inside string"),
    ("time,a,b\n0,\xe9,1\n".encode("latin-1"), {}, "line 2: not text in UTF-8"),
    (WIDE.replace("-80", "x" * 500), {}, r"line 3: column 'a': 'x+\.\.\. \(502 characters\) is no"),
    ("time,a,b\x1b[31m\n0,1,0\n", {}, "line 1: the name .* cannot be printed"),
    ("time,arm,value\n0,a\x07,1\n", {}, "line 2: the name .* cannot be printed"),
    ("time,a,b,agent\n0,1,0,\x1b\n", {}, "line 2: the name .* cannot be printed"),
    # times
    (WIDE.replace("\n3,", "\n1.5,"), {}, "line 5: time 1.5 s of arm 'a' goes back from 2; --sort"),
    (WIDE.replace("\n3,", "\n2,"), {}, "line 5: time 2 s of arm 'a' comes twice"),
    (WIDE.replace("\n3,", "\n2,"), {"sort": True}, "line 5: time 2 s of arm 'a' comes twice"),
    (WIDE.replace("\n3,", "\nnoon,"), {}, "line 5: time 'noon' is neither"),
    (WIDE.replace("\n3,", "\n,"), {}, "line 5: time '' is neither"),
    (WIDE.replace("\n3,", "\nnan,"), {}, "line 5: time 'nan' must be a finite number"),
    (WIDE.replace("\n3,", "\n1.7e12,"), {}, "line 5: time '1.7e12' must be seconds"),
    (WIDE.replace("\n3,", "\n1e999999,"), {}, "line 5: time '1e999999' must be seconds"),
    (WIDE.replace("\n3,", "\n2024-01-01T00:00:00,"), {}, "all times must be of one kind"),
    ("time,a,b\n2024-01-01T10:00.5,1,0\n", {}, "line 2: time '2024-01-01T10:00.5' is neither"),
    ("time,a,b\n2024-01-01.5,1,0\n", {}, "line 2: time '2024-01-01.5' is neither"),
    ("time,a,b\n2024-01-01T00:00Z,1,0\n2024-01-01T00:01,1,0\n", {}, "these were dates with a zone"),
    # repeats, marks, dates
    (REPEATED, {"sort": True}, "line 4: .* comes twice; --duplicates first, last, mean makes one"),
    (REPEATED, {"duplicates": "any"}, "--duplicates: unknown 'any'; known are first, last, mean"),
    (WIDE, {"decimal": ";"}, r"--decimal must be \. or a comma, got ';'"),
    ("time;a;b\n0;1,5;2\n", {}, "line 2: column 'a': '1,5' is no number; --decimal , reads"),
    ("time;a;b\n0;1.5;2\n", {"decimal": ","}, r"line 2: column 'a': '1\.5' is no number"),
    ("time;a;b\n0.5;1;2\n", {"decimal": ","}, r"line 2: time '0\.5' is neither"),
    ("time,a,b\n0,1,NA\n", {}, "line 2: column 'b': 'NA' is no number; --missing NA reads it"),
    ("time,a,b\n0,1,NA\n", {"missing": ["na"]}, "line 2: column 'b': 'NA' is no number"),
    (WIDE, {"missing": ["NA", ""]}, "--missing must be marks such as NA or -9999"),
    ("time,a,b\n1.2.2024,1,0\n", {}, "line 2: time '1.2.2024' is neither .*; --dates says"),
    (WIDE, {"dates": "%d.%m.%Y"}, "line 2: time '0' is no date of the form '%d.%m.%Y'"),
    (WIDE, {"dates": "%H:%M:%S"}, "--dates must have a year, a month and a day"),
    (WIDE, {"dates": "%d.%m.%Y %Q"}, "--dates must have a year"),
    (WIDE, {"dates": "day"}, "--dates must have a year"),
    (SWEEPS, {"bands": "1:9e9", "decimal": ","}, "it is a sweep, and --decimal and --dates"),
    (SWEEPS, {"bands": "1:9e9", "dates": "%d.%m.%Y"}, "it is a sweep, and --decimal and --dates"),
    # slots
    (WIDE, {"slot": 0.0}, "--slot must be a number of seconds above 0, got 0.0"),
    (WIDE, {"slot": -1.0}, "--slot must be"),
    (WIDE, {"slot": float("inf")}, "--slot must be"),
    (WIDE, {"slot": 1e-3}, "slot of 0.001 s is too short: over 99 % of the grid of 4001 slots"),
    (WIDE, {"slot": 1e-300}, "too short"),
    (WIDE, {"slot": 5e-324}, "too short"),
    (WIDE, {"slot": 100.0}, "2 slots or more, this has 1"),
    ("time,a,b\n0,-100,0\n", {}, "2 slots or more, this has 1"),
    # good
    (WIDE, {"good": "-95"}, "--good must be one of"),
    (WIDE, {"good": "<= -500"}, "no good anywhere"),
    (WIDE, {"good": "<= 500"}, "no bad anywhere"),
    (WIDE, {"good": None}, "line 2: -100 is no state: that is 0, 1, or -1"),
    (table([0, 1], [1, 0], [2, 1]), {"good": None}, "line 2: 2 is no state"),
    (WIDE, {"good": None, "levels": "x"}, "--levels must be numbers"),
    (WIDE, {"good": None, "levels": "1,1"}, "--levels must be numbers that rise"),
    (WIDE, {"good": None, "levels": "1,3,2"}, "--levels must be numbers that rise"),
    (WIDE, {"good": None, "levels": ""}, "--levels must be"),
    (WIDE, {"good": None, "levels": "1,nan"}, "--levels must be"),
    (WIDE, {"good": None, "levels": "500,600"}, "no state but 0"),
    (WIDE, {"hysteresis": -1.0}, "--hysteresis must be a number of at least 0"),
    (WIDE, {"hysteresis": 1.0, "good": "== -96"}, "--hysteresis needs a rule for good with"),
    (WIDE, {"how": "last"}, "--how: unknown 'last'; known are first, any-bad, mean"),
    (WIDE, {"hole": -1}, "--hole must be"),
    ("time,a\n0,-100\n1,-90\n", {}, "one arm"),
    ("time,a,b\n0,,\n1,,nan\n", {}, "nothing was measured"),
    # what is for other files
    (WIDE, {"variable": "x"}, "--variable is not for files of this kind"),
    (WIDE, {"bands": "1:2"}, "--bands is for sweeps"),
    # sweeps
    (SWEEPS, {}, "a sweep needs --bands"),
    (SWEEPS, {"bands": "1:2:3"}, "--bands must be LOW:HIGH in Hz"),
    (SWEEPS, {"bands": "2:1"}, "--bands must be LOW:HIGH in Hz"),
    (SWEEPS, {"bands": "2.4e9:2.401e9,1:2,2.4e9:2.401e9"}, "--bands: 2.4e9:2.401e9 comes twice"),
    (SWEEPS, {"bands": "2.4e9:2.401e9,1:2"}, "--bands 1:2: no bin of the sweeps"),
    (SWEEPS, {"bands": "2.4e9:2.401e9", "time": "t"}, "no columns to be named"),
    (SWEEPS.replace("-98", "x"), {"bands": "2.4e9:2.401e9"}, "line 6: 'x' is no number"),
    (SWEEPS.replace("01, 2402", "0x, 2402"), {"bands": "2.4e9:2.401e9"}, "line 3: time"),
    (SWEEPS.replace(", -99, -98", ""), {"bands": "2.4e9:2.401e9"}, "line 6: 6 fields"),
    (SWEEPS.replace("0.00, 20, -99", "0, 20, -99").replace("100000000, 20", "0, 20"), {}, "needs"),
    (
        SWEEPS.replace("2402000000", "2406000000"),
        {"bands": "1:9e9"},
        "line 2: Hz low must be below",
    ),
    (SWEEPS.replace(":03,", ":01,"), {"bands": "1:2.402e9,2e9:9e9"}, "line 5: time .* comes twice"),
]


@pytest.mark.parametrize(("text", "options", "rule"), REFUSED)
def test_what_is_refused(write, text, options, rule):
    path = write(text)
    with pytest.raises(rmab.TraceError, match=rule) as raised:
        read_recording(path, **{"good": GOOD, **options})
    said = str(raised.value)
    assert "\n" not in said
    assert said.startswith("--") or said.startswith(f"{path}: ")


def test_the_grid_has_at_most_2_31_cells(write):
    rows = "".join(f"{t},{i},{t % 2},{i}\n" for i in range(5_000) for t in (0, 100))
    with pytest.raises(rmab.TraceError, match="more than 2\\^31 cells"):
        read_recording(write("time,arm,value,agent\n" + rows), slot=1)


def test_arrays_that_are_refused(tmp_path):
    def refuse(array, rule, **options):
        np.save(tmp_path / "raw.npy", array)
        with pytest.raises(rmab.TraceError, match=rule):
            read_recording(tmp_path / "raw.npy", **options)

    good = VALUES
    refuse(np.array([["a", "b"]]), "must be numbers of shape")
    refuse(good[:, 0], r"got shape \(5,\)")
    refuse(good[None, None], r"got shape \(1, 1, 5, 2\)")
    refuse(good * 1j, "IQ samples")
    refuse(good.astype(object), "pickled arrays are not read")
    refuse(good[:0], "has no cells")
    refuse(np.array([[0, 1], [1, 2]]), r"cell \[0, 1, 1\]: 2 is no state")
    refuse(good, "no columns to be named", time="t", good=GOOD)
    refuse(good, "--bands is not for", bands="1:2", good=GOOD)
    refuse(good, "--variable is not for", variable="x", good=GOOD)
    refuse(good[:1], "2 slots or more", good="<= -95")
    refuse(good[:, :1], "one arm", good="<= -95")
    (tmp_path / "raw.npy").write_bytes(b"\x80\x04K\x01.")  # a pickle
    with pytest.raises(rmab.TraceError, match=r"not a \.npy file"):
        read_recording(tmp_path / "raw.npy")


def test_which_array_of_several_must_be_said(tmp_path):
    np.savez(tmp_path / "raw.npz", a=VALUES.astype(object), c="text")
    with pytest.raises(rmab.TraceError, match="a: pickled arrays are not read"):
        read_recording(tmp_path / "raw.npz", good=GOOD)
    np.savez(tmp_path / "raw.npz", a=VALUES, b=VALUES, c="text")
    with pytest.raises(rmab.TraceError, match=r"--variable must name .* of a, b"):
        read_recording(tmp_path / "raw.npz", good=GOOD)
    with pytest.raises(rmab.TraceError, match="no array 'x'; there are a, b, c"):
        read_recording(tmp_path / "raw.npz", good=GOOD, variable="x")
    with pytest.raises(rmab.TraceError, match="c: must be numbers"):
        read_recording(tmp_path / "raw.npz", good=GOOD, variable="c")
    savemat(tmp_path / "raw.mat", {"a": VALUES, "b": VALUES, "c": {"d": 1}})
    with pytest.raises(rmab.TraceError, match=r"--variable must name .* of a, b"):
        read_recording(tmp_path / "raw.mat", good=GOOD)
    with pytest.raises(rmab.TraceError, match="c: must be a full array of numbers, and is struct"):
        read_recording(tmp_path / "raw.mat", good=GOOD, variable="c")


def test_mat_files_that_are_refused(tmp_path, write):
    header = b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + struct.pack(
        "<HH", 0x0200, 0x4D49
    )
    hdf5 = b"\x89HDF\r\n\x1a\n"
    for data in (header.ljust(512, b"\0") + hdf5, hdf5 + b"\0" * 600, header):
        with pytest.raises(rmab.TraceError, match=r"MATLAB 7\.3 is not read; save it with .*-v7"):
            read_recording(write(data, "raw.mat"), good=GOOD)
    savemat(tmp_path / "whole.mat", {"a": VALUES})
    whole = (tmp_path / "whole.mat").read_bytes()
    for data in (b"", b"no", whole[:100], whole[:150], whole[:-8]):
        with pytest.raises(rmab.TraceError, match=r"raw\.mat: "):
            read_recording(write(data, "raw.mat"), good=GOOD)
    savemat(tmp_path / "raw.mat", {"a": VALUES * 1j})
    with pytest.raises(rmab.TraceError, match="a: IQ samples"):
        read_recording(tmp_path / "raw.mat", good=GOOD)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["a", "rssi", "a_longer_name"])
def test_a_mat_file_with_a_type_that_is_none_does_not_end_the_process(write, name, packed):
    path = write("", "raw.mat")
    savemat(path, {"first": np.eye(1), name: VALUES, "last": np.eye(1)}, do_compression=packed)
    whole = path.read_bytes()
    assert states(path, good=GOOD) == EXPECTED
    start = 128 + 8 + struct.unpack_from("<I", whole, 132)[0]
    size = struct.unpack_from("<I", whole, start + 4)[0]
    inside = whole[start + 8 : start + 8 + size]
    inside = zlib.decompress(inside)[8:] if packed else inside
    numbers = VALUES.size * 8
    place = inside.rindex(struct.pack("<II", 9, numbers))  # the tag of the numbers
    inside = inside[:place] + struct.pack("<I", 116) + inside[place + 4 :]
    if packed:
        inside = zlib.compress(struct.pack("<II", 14, len(inside)) + inside)
    damaged = whole[: start + 4] + struct.pack("<I", len(inside)) + inside
    damaged += whole[start + 8 + size :]
    with pytest.raises(rmab.TraceError, match=f"{name}: cannot be read: its numbers have no known"):
        read_recording(write(damaged, "raw.mat"), good=GOOD)


def test_other_files_are_refused(tmp_path, write):
    with pytest.raises(rmab.TraceError, match=r"must end in one of \.csv, \.csv\.gz, \.npz"):
        read_recording(write(WIDE, "raw.txt"), good=GOOD)
    for name in ("raw.csv", "raw.csv.gz", "raw.npy", "raw.npz", "raw.mat", "raw.parquet"):
        with pytest.raises(rmab.TraceError, match=f"{name}: no such file"):
            read_recording(tmp_path / name, good=GOOD)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(rmab.TraceError, match="cannot be read: Is a directory"):
        read_recording(tmp_path / "folder.csv", good=GOOD)


# --------------------------------------------------------------------------------- sample by sample


def read_plainly(rows, cuts, hysteresis, how, hole, n_slots):
    """The same, one sample after another: states (agents, slots, arms) and segments.

    rows: (slot, agent, arm, value) in the order of time; states are how many cuts a value reaches.
    """
    measured = {slot for slot, *_ in rows}
    segment: list[int] = []
    current, empty = 0, 0
    for slot in range(n_slots):
        if slot in measured:
            current += bool(segment) and empty > hole and min(measured) < slot
            empty = 0
        else:
            empty += 1
        segment.append(current)
    state = np.full((2, n_slots, 3), -1)
    for agent in range(2):
        for arm in range(3):
            cells: dict[int, list[float]] = {}
            for slot, m, n, value in rows:
                if (m, n) == (agent, arm):
                    cells.setdefault(slot, []).append(value)
            last: int | None = None
            since: int | None = None
            for slot, values in cells.items():
                judged = {"first": values[:1], "mean": [sum(values) / len(values)]}.get(how, values)
                if segment[slot] != since:
                    last, since = None, segment[slot]
                seen = []
                for value in judged:
                    most = sum(value >= cut for cut in cuts)
                    least = sum(value >= cut + hysteresis for cut in cuts)
                    last = most if last is None else min(max(last, least), most)
                    seen.append(last)
                state[agent, slot, arm] = min(seen)
    return state, segment


@pytest.mark.parametrize("how", ["first", "any-bad", "mean"])
@pytest.mark.parametrize("seed", range(8))
def test_it_is_what_a_reading_sample_by_sample_gives(write, how, seed):
    random = np.random.default_rng(seed)
    times = np.sort(random.choice(60_000, 400, replace=False)) / 1000
    times = times[(times < 20) | (times > 32)]
    times[0] = 0
    hysteresis = float(random.integers(0, 4))
    rows, text = [], ["time,arm,value,agent"]
    for time in times:
        agent, arm, value = random.integers(2), random.integers(3), random.integers(-8, 9)
        rows.append((int(time / 0.5 + 1e-9), agent, arm, float(value)))
        text.append(f"{time},{arm},{value},{agent}")
    found = read_recording(
        write("\n".join(text)), levels="-3,1,5", hysteresis=hysteresis, slot=0.5, how=how, hole=9
    ).trace
    state, segment = read_plainly(rows, (-3, 1, 5), hysteresis, how, 9, found.state.shape[1])
    np.testing.assert_array_equal(found.state, state)
    np.testing.assert_array_equal(found.segment, segment)
    assert found.n_segments > 1
