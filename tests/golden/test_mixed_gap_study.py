"""Results on the study `mixed` of the policies that learn from observations at every gap.

They stand apart because they take the longest to compile of all: the slow suite has them.
"""

from math import hypot
from typing import Any

import pytest

from tests.golden.frozen_study import check, outcome
from tests.golden.studies import POLICIES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def random() -> dict[str, Any]:
    """What plays at random give."""
    return outcome("mixed", "random")


GAP_POLICIES = [name for name in POLICIES if name.endswith("-gap")]


@pytest.mark.parametrize("policy", GAP_POLICIES)
def test_results_are_as_recorded(policy, random):
    """And better than random plays, with arms of all kinds at once."""
    found = check("mixed", policy, file="mixed-gap")
    gain = random["behind_whittle"] - found["behind_whittle"]
    assert gain > 4 * hypot(random["behind_whittle_se"], found["behind_whittle_se"])
