"""FedTSWI on machines to restart, which are fully observed."""

from rmab.experiments.general_arms import judge

__all__ = ["judge"]
