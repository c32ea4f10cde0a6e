"""Results of every policy on the study `paper`; see tests.golden.studies."""

import pytest

from tests.golden.frozen_study import check
from tests.golden.studies import POLICIES


@pytest.mark.parametrize("policy", POLICIES)
def test_results_are_as_recorded(policy):
    check("paper", policy)
