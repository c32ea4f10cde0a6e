"""Results on the study `mixed` of every policy but those of test_mixed_gap_study."""

import pytest

from tests.golden.frozen_study import check
from tests.golden.studies import POLICIES

# A compilation for each; `paper` stays in the default suite.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("policy", [name for name in POLICIES if not name.endswith("-gap")])
def test_results_are_as_recorded(policy):
    check("mixed", policy)
