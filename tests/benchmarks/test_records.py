"""Records of measurements: limits, ranges, slopes, and the file that keeps them."""

import json

import numpy as np
import pytest
from benchmarks.growth import slope_row
from benchmarks.records import Part, Row, machine_kind, ratios, read, slope, store, versions

ROW = Row("FedTSWI", 4.8, 4.7, 5.2, 5, limit=5.0, more={"trials": 20480})
PART = Part("2026-01-31", "2 cores of a processor", {"numpy": "2.0"}, {"run": [ROW]}, 0.1)


@pytest.mark.parametrize(
    ("value", "limit", "sense", "missed"),
    [
        (4.8, 5.0, "most", False),
        (5.0, 5.0, "most", False),
        (5.1, 5.0, "most", True),
        (1.9, 1.85, "least", False),
        (1.8, 1.85, "least", True),
        (7.0, None, "most", False),
        (float("nan"), 5.0, "most", True),
        (float("nan"), 5.0, "least", True),
    ],
)
def test_a_limit_is_kept_or_missed(value, limit, sense, missed):
    assert Row("a case", value, value, value, 1, limit=limit, sense=sense).missed is missed


def test_the_best_is_the_smallest_unless_more_is_better():
    assert Row.of("seconds", [3.0, 2.0, 4.0]).value == 2
    row = Row.of("a rate", [3.0, 2.0, 4.0], sense="least")
    assert (row.value, row.low, row.high, row.repetitions) == (4, 2, 4, 3)


def test_a_ratio_has_the_best_of_each_side_and_lies_in_its_range():
    rng = np.random.default_rng(0)
    for _ in range(100):
        times, beside = rng.lognormal(size=(2, 5))
        row = ratios("a case", times.tolist(), beside.tolist())
        assert row.value == times.min() / beside.min()
        assert row.low <= row.value <= row.high
        assert row.low == (times / beside).min()


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 1.1, 2.0])
def test_slopes_are_those_of_powers(power):
    sizes = [10, 30, 100, 300, 1000]
    assert slope(sizes, [7 * n**power for n in sizes]) == pytest.approx(power)


def test_the_slope_of_the_best_times_stands_beside_those_of_each_round():
    sizes = [1, 10, 100]
    rounds = [[2.0 * n, 3.0 * n**1.2] for n in sizes]
    row = slope_row("arms", sizes, rounds)
    assert (row.value, row.low, row.high) == pytest.approx((1.0, 1.0, 1.2))
    assert not row.missed
    assert slope_row("arms", sizes, [[float(n**1.2)] for n in sizes]).missed


def test_a_file_of_records_is_read_back(tmp_path):
    path = tmp_path / "records.json"
    assert read(path) == {}
    store(path, {"engine": PART})
    assert read(path) == {"engine": PART}
    assert json.loads(path.read_text())["engine"]["tables"]["run"][0]["limit"] == 5


def test_numbers_are_kept_with_five_digits(tmp_path):
    path = tmp_path / "records.json"
    store(path, {"engine": Part("", "", {}, {"run": [Row.of("a", [1 / 3])]}, 2 / 3)})
    (row,) = read(path)["engine"].tables["run"]
    assert (row.value, read(path)["engine"].load) == (0.33333, 0.66667)


def test_the_machine_is_told_by_its_kind():
    assert "core" in machine_kind()
    assert versions(["numpy", "no-such-package"])["numpy"] == np.__version__
    assert "no-such-package" not in versions(["no-such-package"])
