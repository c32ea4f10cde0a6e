"""FedTSWI on waning adherence, with action-dependent transitions."""

from rmab.experiments.general_arms import judge

__all__ = ["judge"]
