"""FedTSWI on four-level fading channels."""

from rmab.experiments.general_arms import judge

__all__ = ["judge"]
