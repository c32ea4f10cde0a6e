"""Regret against the number of agents, of FedTSWI and FedTSWI-gap."""

from rmab.experiments.regret_growth import judge

__all__ = ["judge"]
