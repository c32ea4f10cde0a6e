"""External play: something outside the engine plays its trials (`rmab.envs.evaluation`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from rmab.policies.rules.rule import Rule

__all__ = ["OutsideRule"]


@dataclass(frozen=True, eq=False)
class OutsideRule(Rule):
    """Give the engine the rewards of its trials.

    player: (an `rmab.engine.montecarlo.Trials`, numbers of trials) -> rewards of all agents in each
    slot of each, (T, trials).
    """

    player: Callable[[Any, Any], Any]
    outside: ClassVar[bool] = True

    def play(self, trials: Any, numbers: Any) -> Any:
        """Return the rewards of these trials, (T, trials)."""
        return self.player(trials, numbers)
