"""Results of every policy on the study `paper`; see tests.golden.studies."""

import pytest

from tests.golden.frozen_study import check
from tests.golden.studies import POLICIES, one_quick


@pytest.mark.parametrize("policy", one_quick(POLICIES))
def test_results_are_as_recorded(policy):
    check("paper", policy)
