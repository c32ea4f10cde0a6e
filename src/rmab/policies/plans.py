"""Plans: the values that a server makes and an agent plays by, one for each rule that is served.

Each stands in the module of its rule, with its JSON and its choice on NumPy. This module imports
only NumPy and no solver, as agents do.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmab.policies.rules.index import IndexPlan
from rmab.policies.rules.lookahead import LookaheadPlan
from rmab.policies.rules.own_learner import OwnPlan
from rmab.policies.rules.rule import Plan
from rmab.policies.rules.turns import TurnsPlan

__all__ = ["PLANS", "IndexPlan", "LookaheadPlan", "OwnPlan", "Plan", "TurnsPlan"]

# By their kind in JSON.
PLANS: Mapping[str, type[Plan]] = {
    "index": IndexPlan,
    "turns": TurnsPlan,
    "lookahead": LookaheadPlan,
    "own": OwnPlan,
}
