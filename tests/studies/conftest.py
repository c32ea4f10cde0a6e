"""Results of a small study, run once."""

import pytest

from rmab import Results, run
from tests.studies.small import STUDY


@pytest.fixture(scope="session")
def results() -> Results:
    return run(STUDY)
