"""The page of benchmarks: what the writer makes of the records that are kept, and no other."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.bench import main
from benchmarks.cluster_records import part_of
from benchmarks.figures import DRAWN
from benchmarks.page import FIGURES, duration, number, page, table
from benchmarks.records import Part, Row, read, store

DOCS = Path(__file__).parent.parent.parent / "docs"
TEXT = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
RUN = Row("FedTSWI", 4.8, 4.7, 5.2, 5, limit=5.0, more={"trials": 20480, "microseconds": 139.0})
PROGRAM = Row("FedTSWI", 3.0, 2.9, 3.3, 5, limit=3.2)
ENGINE = Part("2026-01-31", "2 cores", {"numpy": "2.0"}, {"run": [RUN], "program": [PROGRAM]}, 0.1)


def test_the_page_is_what_the_writer_makes_of_the_records():
    kept = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert kept == page(kept, read(DOCS / "benchmarks.json")), "make bench ARGS=--page writes it"


def test_every_part_that_is_kept_has_its_figure():
    parts = read(DOCS / "benchmarks.json")
    drawn = {path.stem.removeprefix("benchmark-") for path in DOCS.glob("pictures/benchmark-*")}
    assert drawn == set(FIGURES) & set(parts)
    assert set(DRAWN) == set(FIGURES)


def test_what_is_kept_tells_of_no_machine_or_folder():
    for name in ("benchmarks.md", "benchmarks.json"):
        text = (DOCS / name).read_text(encoding="utf-8")
        assert not re.search(
            r"/(tmp|home|work|var|opt|usr|root)/|://(?!pypi\.org/project/|www\.ray\.io)", text
        )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.714, ".71"),
        (0.00041, ".00041"),
        (4.833, "4.83"),
        (34.92, "34.9"),
        (200.0, "200"),
        (961.27, "961"),
        (20480, "20,480"),
        (-0.25, "-.25"),
        (0.999, "1"),
        (float("nan"), "?"),
    ],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_times_have_the_unit_that_suits_them():
    assert [duration(x) for x in (92.96, 999.0, 11634.0)] == ["93.0 µs", "999 µs", "11.6 ms"]


def test_a_row_stands_beside_its_limit():
    assert "| FedTSWI | 4.80 | 4.70 to 5.20 | at most 5 |" in table([RUN])
    missed = table([replace(RUN, value=5.3)])
    assert "| at most 5: **missed** |" in missed
    faster = Row("two cores", 1.8, 1.7, 1.9, 3, limit=1.85, sense="least")
    assert "| at least 1.85: **missed** |" in table([faster])
    seconds = Row("the same again", 2.4, 2.4, 2.9, 3, "s", limit=3.0)
    assert "| the same again | 2.40 s | 2.40 to 2.90 | at most 3 s |" in table([seconds])


def test_the_page_says_which_limits_are_missed():
    assert "All 2 limits are kept." in page(TEXT, {"engine": ENGINE})
    late = replace(ENGINE, tables={"run": [replace(RUN, value=5.3)], "program": [PROGRAM]})
    assert "Of 2 limits 1 is missed:\n\n- engine, run: FedTSWI\n" in page(TEXT, {"engine": late})


def test_a_part_that_was_not_measured_is_left_open():
    text = page(TEXT, {"engine": ENGINE})
    assert "| FedTSWI | 4.80 | 4.70 to 5.20 | at most 5 | 20,480 | 139 µs |" in text
    assert "Not measured yet." in text.partition("## On a GPU")[2].partition("##")[0]


def test_a_cluster_is_told_by_the_cost_of_a_block():
    """What `benchmarks.cluster` measures, and the formula for many workers."""
    found = {
        "rounds": 5,
        "trials": 49152,
        "against_threads": {1: 0.97, 2: 0.96},
        "efficiency_threads": 0.94,
        "efficiency_workers": 0.93,
        "merge_seconds_per_block": 0.008,
        "bytes_per_block": 90_000.0,
        "many": {"workers": 1000, "seconds_per_block": 20.0},
    }
    text = page(TEXT, {"cluster": part_of(found, 0.1)})
    section = text.partition("## On a cluster")[2].partition("\n## ")[0]
    assert "| 2 workers over 2 times one | .93 | 49,152 |" in section
    assert "| workers over threads, 1 of each | .97 | 49,152 |" in section
    assert "c = 8 ms on each (90 kB)" in section
    assert ": 1 with 1,000 cores, at which the process that merges is busy 40 % of" in section
    slow = part_of({**found, "merge_seconds_per_block": 0.04}, 0.1)
    assert ": .5 with 1,000 cores" in page(TEXT, {"cluster": slow})


def test_records_of_another_machine_come_into_the_page(tmp_path):
    store(tmp_path / "benchmarks.json", {"engine": ENGINE})
    (tmp_path / "benchmarks.md").write_text(TEXT, encoding="utf-8")
    seconds = Row("FedTSWI, 10,000 trials", 0.11, 0.11, 0.12, 5, "s", 0.2)
    store(tmp_path / "gpu.json", {"gpu": Part("2026-01-31", "a GPU", {}, {"gpu": [seconds]}, 0.0)})
    assert main(["--add", str(tmp_path / "gpu.json"), "--docs", str(tmp_path)]) == 0
    text = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "| FedTSWI, 10,000 trials | .11 s | .11 to .12 | at most .2 s |" in text
    assert "| FedTSWI | 4.80 |" in text
    assert (tmp_path / "pictures" / "benchmark-engine.svg").exists()


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["motor"])
    assert "no part 'motor'" in capsys.readouterr().err
