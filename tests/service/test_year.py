"""A simulated year in small: the database stops growing, and its sums are exact."""

import pytest
from benchmarks.year import Year


def test_the_database_stops_growing(database_url):
    found = list(Year(agents=3, days=70).play(database_url, (1, 10, 33, 45)))
    assert [one.day for one in found] == [1, 10, 33, 45, 70]
    assert {one.incarnations for one in found} == {3}
    assert {one.ledger for one in found[1:]} == {6}
    assert [one.ended for one in found[2:]] == [3 * 31] * 3
    if "postgres" not in database_url:  # which gives space back in its own time
        assert found[-1].size < 1.1 * found[2].size  # some pages more, of rounds


def test_without_that_it_grows(tmp_path):
    found = list(Year(agents=3, days=40, keep=True).play(str(tmp_path / "year.db"), (20,)))
    assert [(one.incarnations, one.ledger) for one in found] == [(60, 120), (120, 240)]
    assert found[-1].size > 1.4 * found[0].size


@pytest.mark.slow
def test_a_year_of_a_hundred_agents(tmp_path):
    found = list(Year(agents=100).play(str(tmp_path / "year.db"), (60,)))
    assert found[-1].size < 1.05 * found[0].size
