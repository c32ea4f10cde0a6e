"""Restless bandits that learn together.

    import rmab

    arms = rmab.channels(p01=[0.2, 0.89, 0.1], p11=[0.8, 0.17, 0.9], reward=[0.4, 0.9, 0.7])
    study = rmab.Study(arms=arms, agents=4, plays=1, policies=["fedtswi", "whittle"])
    print(rmab.run(study).mean)

Names are imported when first used, so that a program that needs little loads little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Arm": "rmab.model.arms",
    "Arms": "rmab.model.arms",
    "Dynamics": "rmab.model.arms",
    "InformationStates": "rmab.model.information",
    "Moves": "rmab.model.arms",
    "belief_after": "rmab.model.information",
    "channels": "rmab.model.arms",
    "information_states": "rmab.model.information",
    "slots_to_cross": "rmab.model.information",
    "stationary_belief": "rmab.model.information",
    "update_belief": "rmab.model.information",
    "catalogue": "rmab.model.catalogue",
    "ConvergenceError": "rmab.errors",
    "FederationError": "rmab.errors",
    "ModelError": "rmab.errors",
    "ProtocolError": "rmab.errors",
    "RmabError": "rmab.errors",
    "StorageError": "rmab.errors",
    "StudyError": "rmab.errors",
    "TooLargeError": "rmab.errors",
    "TraceError": "rmab.errors",
    "UnavailableError": "rmab.errors",
    "UnreachableError": "rmab.errors",
    "Policy": "rmab.policies.policy",
    "Draws": "rmab.rng.variates",
    "Evidence": "rmab.learning.evidence",
    "episode_bound": "rmab.learning.bounds",
    "regret_bound": "rmab.learning.bounds",
    "upper_bound": "rmab.planning.joint.relaxation",
    "Indices": "rmab.planning.index.finite",
    "gittins_indices": "rmab.planning.index.api",
    "whittle_indices": "rmab.planning.index.api",
    "optimal": "rmab.planning.joint.optimum",
    "index_table": "rmab.planning.tables",
    "whittle_index": "rmab.planning.channel.whittle",
    "Agent": "rmab.service.agent.agent",
    "backtest": "rmab.traces.backtest",
    "Results": "rmab.studies.results",
    "SweepResults": "rmab.studies.results",
    "run": "rmab.studies.run",
    "run_sweep": "rmab.studies.run",
    "value": "rmab.studies.run",
    "Study": "rmab.studies.study",
    "load": "rmab.studies.study",
    "Sweep": "rmab.studies.sweep",
    "load_sweep": "rmab.studies.sweep",
    "Trace": "rmab.traces.trace",
    "fit_trace": "rmab.traces.fit",
    "load_trace": "rmab.traces.trace",
    "read_recording": "rmab.traces.recordings",
    "save_trace": "rmab.traces.trace",
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
    "Sweep",
    "SweepResults",
    "TooLargeError",
    "Trace",
    "TraceError",
    "UnavailableError",
    "UnreachableError",
    "__version__",
    "backtest",
    "belief_after",
    "catalogue",
    "channels",
    "episode_bound",
    "fit_trace",
    "gittins_indices",
    "index_table",
    "information_states",
    "load",
    "load_sweep",
    "load_trace",
    "optimal",
    "read_recording",
    "regret_bound",
    "run",
    "run_sweep",
    "save_trace",
    "slots_to_cross",
    "stationary_belief",
    "update_belief",
    "upper_bound",
    "value",
    "whittle_index",
    "whittle_indices",
]

if TYPE_CHECKING:
    from rmab.errors import (
        ConvergenceError,
        FederationError,
        ModelError,
        ProtocolError,
        RmabError,
        StorageError,
        StudyError,
        TooLargeError,
        TraceError,
        UnavailableError,
        UnreachableError,
    )
    from rmab.learning.bounds import episode_bound, regret_bound
    from rmab.learning.evidence import Evidence
    from rmab.model import catalogue
    from rmab.model.arms import Arm, Arms, Dynamics, Moves, channels
    from rmab.model.information import (
        InformationStates,
        belief_after,
        information_states,
        slots_to_cross,
        stationary_belief,
        update_belief,
    )
    from rmab.planning.channel.whittle import whittle_index
    from rmab.planning.index.api import gittins_indices, whittle_indices
    from rmab.planning.index.finite import Indices
    from rmab.planning.joint.optimum import optimal
    from rmab.planning.joint.relaxation import upper_bound
    from rmab.planning.tables import index_table
    from rmab.policies.policy import Policy
    from rmab.rng.variates import Draws
    from rmab.service.agent.agent import Agent
    from rmab.studies.results import Results, SweepResults
    from rmab.studies.run import run, run_sweep, value
    from rmab.studies.study import Study, load
    from rmab.studies.sweep import Sweep, load_sweep
    from rmab.traces.backtest import backtest
    from rmab.traces.fit import fit_trace
    from rmab.traces.recordings import read_recording
    from rmab.traces.trace import Trace, load_trace, save_trace


def __getattr__(name: str) -> Any:
    if name == "envs":  # no public name of its own, as it needs packages that few have
        return import_module("rmab.envs")
    if name not in _HOMES:
        raise AttributeError(f"module 'rmab' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    return home if name == "catalogue" else getattr(home, name)  # the one that is a module


def __dir__() -> list[str]:
    return sorted(__all__)
