"""Results on the study `mixed` of the policies that learn from observations at every gap.

They stand apart because they take the longest to compile of all.
"""

import pytest

from tests.golden.frozen_study import check
from tests.golden.studies import POLICIES


@pytest.mark.parametrize("policy", [name for name in POLICIES if name.endswith("-gap")])
def test_results_are_as_recorded(policy):
    check("mixed", policy, file="mixed-gap")
