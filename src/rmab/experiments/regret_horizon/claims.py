"""Regret against the horizon, of FedTSWI and FedTSWI-gap."""

from rmab.experiments.regret_growth import judge

__all__ = ["judge"]
