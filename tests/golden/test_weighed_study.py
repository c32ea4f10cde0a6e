"""Results of every policy on the study `weighed`; see tests.golden.studies."""

import pytest

from tests.golden.frozen_study import check
from tests.golden.studies import POLICIES

# A compilation for each; `paper` stays in the default suite.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("policy", POLICIES)
def test_results_are_as_recorded(policy):
    check("weighed", policy)
