"""Restless bandits that learn together.

    import rmab

    arms = rmab.channels(p01=[0.2, 0.89], p11=[0.8, 0.17], reward=[0.4, 0.9])
    study = rmab.Study(arms=arms, agents=4, plays=1, policies=["fedtswi", "whittle"])
    print(rmab.run(study).mean)

Names are imported when first used, so that a program that needs little loads little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Arm": "rmab.arms",
    "Arms": "rmab.arms",
    "Dynamics": "rmab.arms",
    "InformationStates": "rmab.arms",
    "Moves": "rmab.arms",
    "belief_after": "rmab.arms",
    "channels": "rmab.arms",
    "information_states": "rmab.arms",
    "slots_to_cross": "rmab.arms",
    "stationary_belief": "rmab.arms",
    "update_belief": "rmab.arms",
    "catalogue": "rmab.catalogue",
    "ConvergenceError": "rmab.errors",
    "FederationError": "rmab.errors",
    "ModelError": "rmab.errors",
    "ProtocolError": "rmab.errors",
    "RmabError": "rmab.errors",
    "StorageError": "rmab.errors",
    "StudyError": "rmab.errors",
    "TooLargeError": "rmab.errors",
    "UnreachableError": "rmab.errors",
    "Policy": "rmab.federation.policies",
    "Draws": "rmab.learning.randomness",
    "Evidence": "rmab.learning.learners",
    "episode_bound": "rmab.planning.bounds",
    "regret_bound": "rmab.planning.bounds",
    "upper_bound": "rmab.planning.bounds",
    "Indices": "rmab.planning.finite",
    "gittins_indices": "rmab.planning.indices",
    "whittle_indices": "rmab.planning.indices",
    "optimal": "rmab.planning.joint",
    "point_based_value": "rmab.planning.pbvi",
    "index_table": "rmab.planning.planners",
    "whittle_index": "rmab.planning.whittle",
    "Agent": "rmab.service.agent",
    "Results": "rmab.studies.results",
    "run": "rmab.studies.running",
    "value": "rmab.studies.running",
    "Study": "rmab.studies.study",
    "load": "rmab.studies.study",
}

__version__ = "0.1.0"
__all__ = [
    "Agent",
    "Arm",
    "Arms",
    "ConvergenceError",
    "Draws",
    "Dynamics",
    "Evidence",
    "FederationError",
    "Indices",
    "InformationStates",
    "ModelError",
    "Moves",
    "Policy",
    "ProtocolError",
    "Results",
    "RmabError",
    "StorageError",
    "Study",
    "StudyError",
    "TooLargeError",
    "UnreachableError",
    "__version__",
    "belief_after",
    "catalogue",
    "channels",
    "episode_bound",
    "gittins_indices",
    "index_table",
    "information_states",
    "load",
    "optimal",
    "point_based_value",
    "regret_bound",
    "run",
    "slots_to_cross",
    "stationary_belief",
    "update_belief",
    "upper_bound",
    "value",
    "whittle_index",
    "whittle_indices",
]

if TYPE_CHECKING:
    from rmab import catalogue
    from rmab.arms import (
        Arm,
        Arms,
        Dynamics,
        InformationStates,
        Moves,
        belief_after,
        channels,
        information_states,
        slots_to_cross,
        stationary_belief,
        update_belief,
    )
    from rmab.errors import (
        ConvergenceError,
        FederationError,
        ModelError,
        ProtocolError,
        RmabError,
        StorageError,
        StudyError,
        TooLargeError,
        UnreachableError,
    )
    from rmab.federation.policies import Policy
    from rmab.learning.learners import Evidence
    from rmab.learning.randomness import Draws
    from rmab.planning.bounds import episode_bound, regret_bound, upper_bound
    from rmab.planning.finite import Indices
    from rmab.planning.indices import gittins_indices, whittle_indices
    from rmab.planning.joint import optimal
    from rmab.planning.pbvi import point_based_value
    from rmab.planning.planners import index_table
    from rmab.planning.whittle import whittle_index
    from rmab.service.agent import Agent
    from rmab.studies.results import Results
    from rmab.studies.running import run, value
    from rmab.studies.study import Study, load


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rmab' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    return home if home.__name__ == f"rmab.{name}" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
