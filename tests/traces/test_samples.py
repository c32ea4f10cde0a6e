"""Samples and the slots they fall into, by hand: times, their order, grids, holes."""

import numpy as np
import pytest

from rmab.errors import TraceError
from rmab.traces import samples as module
from rmab.traces.readers.clock import NS, Clock
from rmab.traces.samples import (
    Samples,
    Series,
    natural_order,
    on_grid,
    on_steps,
    segments,
)


def series(times, values=None, lines=None, scale=NS):
    times = np.array([round(t * scale) for t in times], np.int64)
    values = np.ones(len(times)) if values is None else np.array(values, float)
    return Series(times, values, None if lines is None else np.array(lines))


def recording(*each, arms=None):
    """One agent, an arm for each series."""
    arms = arms or tuple("abcdef"[: len(each)])
    by_place = {(0, n): one for n, one in enumerate(each)}
    return Samples(("x",), arms, by_place, timed=True, not_finite=0)


# --- times as they are written ---


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0.1", 100_000_000),
        ("-3", -3 * NS),
        ("1e-9", 1),
        ("9000000000", 9_000_000_000 * NS),
        ("-9e9", -9_000_000_000 * NS),
        ("1970-01-02", 86_400 * NS),
        ("1970-01-01T00:00:01.5", 1_500_000_000),
        ("1970-01-01 00:00:01,123456789", 1_123_456_789),
        ("1970-01-01T00:00:01.1234567899", 1_123_456_789),  # the rest of a nanosecond is cut off
        ("19700101T000001.25", 1_250_000_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:59:59.75", -250_000_000),
    ],
)
def test_a_time_is_read_to_the_nanosecond(text, nanoseconds):
    assert Clock().read(text) == nanoseconds


def test_decimal_marks_and_forms_of_dates():
    assert Clock(",").read("1,5") == 1_500_000_000
    with pytest.raises(ValueError, match="neither a number of seconds nor a date"):
        Clock(",").read("1.5")
    by_form = Clock(dates="%d.%m.%Y %H:%M:%S.%f")
    assert by_form.read("02.01.1970 00:00:00.250000") == 86_400 * NS + 250_000_000
    with pytest.raises(ValueError, match=r"time '5' is no date of the form '%d\.%m"):
        by_form.read("5")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "neither a number"),
        ("1_000", "neither a number"),
        ("soon", "neither a number"),
        ("10:00.5", "neither a number"),
        ("nan", "must be a finite number of seconds"),
        ("9000000001", "milliseconds must be divided by 1000"),
        ("-9000000001", "milliseconds must be divided by 1000"),
        ("2300-01-01", "must lie within 285 years of 1970"),
        ("1650-01-01", "must lie within 285 years of 1970"),
    ],
)
def test_a_time_that_is_none_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        Clock().read(text)


@pytest.mark.parametrize(
    ("first", "second", "were"),
    [
        ("5", "1970-01-01", "seconds"),
        ("1970-01-01", "5", "dates without a zone"),
        ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00", "dates with a zone"),
    ],
)
def test_times_are_of_one_kind(first, second, were):
    clock = Clock()
    assert clock.read(first) == clock.read(first)
    with pytest.raises(ValueError, match=f"of one kind, and these were {were}$"):
        clock.read(second)


# --- their order ---


def test_a_time_that_goes_back_is_refused_at_the_first_such_line():
    made = recording(series([1, 3, 2], lines=[2, 5, 9]), series([1, 4, 3], lines=[3, 6, 7]))
    with pytest.raises(
        TraceError, match=r"^f: line 7: time 3 s of arm 'b' goes back from 4; --sort sorts$"
    ):
        made.in_order("f", sort=False)
    made.in_order("f", sort=True)
    one, other = made.series.values()
    assert one.times.tolist() == [NS, 2 * NS, 3 * NS]
    assert one.lines.tolist() == [2, 9, 5]
    assert other.lines.tolist() == [3, 7, 6]


def test_a_time_that_comes_twice_is_refused_unless_one_is_made_of_them():
    with pytest.raises(TraceError, match=r"line 1: time 2 s of arm 'a' comes twice; --duplicates"):
        recording(series([2, 2])).in_order("f", sort=True)
    made = recording(series([2, 2, 1], [7, 8, 9]))
    with pytest.raises(TraceError, match="goes back from 2"):
        made.in_order("f", sort=False, duplicates="last")
    made = recording(series([2, 2, 1], [7, 8, 9]))
    made.in_order("f", sort=True, duplicates="last")
    assert made.series[0, 0].values.tolist() == [9, 8]


@pytest.mark.parametrize(
    ("how", "values", "lines"),
    [
        ("first", [1, 4, np.nan, 6], [2, 5, 6, 8]),
        ("last", [3, 4, np.nan, 7], [4, 5, 6, 9]),
        ("mean", [2, 4, np.nan, 6.5], [2, 5, 6, 8]),
    ],
)
def test_samples_of_one_time_are_those_that_were_measured(how, values, lines):
    nan = np.nan
    one = series(
        [0, 0, 0, 1, 1, 2, 2, 3, 3],
        [1, nan, 3, 4, nan, nan, nan, 6, 7],
        [2, 3, 4, 5, 50, 6, 7, 8, 9],
    )
    one.merge(how)
    np.testing.assert_array_equal(one.values, values)
    assert one.times.tolist() == [0, NS, 2 * NS, 3 * NS]
    assert one.lines.tolist() == lines
    nothing = series([])
    nothing.merge(how)
    assert nothing.times.size == 0


def test_a_place_is_a_line_or_a_cell():
    made = recording(series([0, 5], lines=[2, 3]), series([7, 8], scale=1))
    assert made.place((0, 0), 1) == "line 3"
    assert made.place((0, 1), 1) == "cell [0, 8, 1]"


# --- slots ---


def test_a_sample_is_in_the_slot_that_its_time_falls_into():
    one = series([10, 10.9, 11, 12 - 0.9e-5, 12 - 1.1e-5, 13])
    made = recording(one, series([12.5]))
    assert on_grid("f", made, 1.0) == 4
    assert one.times.tolist() == [0, 0, 1, 2, 1, 3]
    assert made.series[0, 1].times.tolist() == [2]
    halves = recording(series([0, 0.5, 1.0]))
    assert on_grid("f", halves, 0.5) == 3
    assert halves.series[0, 0].times.tolist() == [0, 1, 2]


def test_times_of_few_digits_may_lie_a_quarter_of_a_slot_before_it():
    """So late a number of seconds is exact to two microseconds only."""
    one = Series(9_000_000_000 * NS + np.array([0, 700, 760, 2000]), np.ones(4))
    assert on_grid("f", recording(one), 1e-6) == 3
    assert one.times.tolist() == [0, 0, 1, 2]


def test_slots_without_a_length_are_the_times_and_median_steps_left_out():
    made = recording(series([0, 2, 4, 10]), series([2, 5]))  # steps 2, 2, 1, 5
    assert on_steps("f", made) == (6, 2.0)
    assert made.series[0, 0].times.tolist() == [0, 1, 2, 5]
    assert made.series[0, 1].times.tolist() == [1, 3]  # half a step is a slot all the same
    with pytest.raises(TraceError, match="2 slots or more, this has 1"):
        on_steps("f", recording(series([3]), series([3])))
    assert on_steps("f", recording(series([3, 4]))) == (2, 1.0)


def test_a_grid_of_holes_is_refused():
    """One slot of a hundred must be filled, in all series that measured anything."""
    empty = series([0, 1], [np.nan, np.nan])
    assert on_grid("f", recording(series([0, 199]), empty), 1.0) == 200
    for made in (
        recording(series([0, 200])),
        recording(series([0, 150]), series([0])),
        recording(series([0, 0.1, 0.2, 250])),  # four samples in two slots
        recording(series([0, 1, 250], [1, np.nan, 1])),
    ):
        with pytest.raises(TraceError, match=r"slot of 1 s is too short: over 99 % of the grid"):
            on_grid("f", made, 1.0)


def test_a_grid_of_too_many_cells_is_refused(monkeypatch):
    monkeypatch.setattr(module, "MAX_CELLS", 10)
    assert on_grid("f", recording(series([0, 9 - 1e-4])), 1.0) == 9
    with pytest.raises(TraceError, match="more than 2\\^31 cells"):
        on_grid("f", recording(series([0, 10])), 1.0)


def test_a_segment_ends_where_a_hole_is_longer_than_it_may_be():
    measured = np.array([0, 1, 1, 0, 0, 1, 0, 0, 0, 1, 1], bool)
    assert segments(measured, 2).tolist() == [0] * 9 + [1, 1]
    assert segments(measured, 3).tolist() == [0] * 11
    assert segments(measured, 1).tolist() == [0] * 5 + [1] * 4 + [2, 2]
    assert segments(measured, 0).tolist() == [0] * 5 + [1] * 4 + [2, 2]
    assert segments(np.zeros(3, bool), 0).tolist() == [0, 0, 0]


def test_names_sort_with_their_numbers():
    names = ["a10", "a9", "b", "a2x", "a02", "10", "9", "a2"]
    assert natural_order(names) == ["a02", "a2", "a2x", "a9", "a10", "b", "9", "10"]
    many = "9" * 5000
    assert natural_order([f"a1{many}", f"a{many}"]) == [f"a{many}", f"a1{many}"]
