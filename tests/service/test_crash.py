"""kill -9 under load loses nothing that was acknowledged and counts nothing twice.

`make crash` does the same a thousand times. With a bug planted the same harness must fail.
"""

from pathlib import Path

import pytest

from tests.slow.crash import Run, crash
from tests.slow.ledgers import Broken

EARLY = str(Path(__file__).parent / "support" / "early_server.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all runs, so that servers start quickly."""
    return tmp_path_factory.mktemp("crash")


@pytest.mark.parametrize(("restarts", "closing"), [(6, False), (6, True)])
def test_nothing_acknowledged_is_lost_or_counted_twice(folder, restarts, closing):
    tally = crash(Run(restarts, seed=1, closing=closing), folder)
    assert tally.restarts == restarts
    assert tally.acknowledged > restarts
    assert tally.kept + tally.not_kept > 0  # the kills came at bad moments
    assert tally.rounds >= 1


@pytest.mark.postgres
def test_the_same_on_postgresql(folder, postgres_server):
    tally = crash(Run(5, seed=2, database=postgres_server), folder)
    assert tally.acknowledged > 5


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_acknowledging_before_the_commit_is_found(folder, seed):
    with pytest.raises(Broken, match="was acknowledged and is lost"):
        crash(Run(20, seed=seed, server=EARLY), folder)
