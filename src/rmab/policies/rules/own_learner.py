"""Rules with a learner of their own: it keeps a state by slot and gives the index from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

from rmab.model.information import InformationStates
from rmab.policies.rules.rule import Places, Plan, Rule
from rmab.text import is_number, shown

__all__ = ["OwnIndexRule", "OwnPlan"]


@dataclass(frozen=True, eq=False)
class OwnIndexRule(Rule):
    """Play the K arms of the largest index that `own` gives; no server is needed.

    own: a `rmab.policies.own_index.OwnLearner` with `index` or `index_at`.
    """

    own: Any

    jax_half: ClassVar[str] = "rmab.policies.rules.own_learner_jax"
    learns: ClassVar[bool] = True

    def standing_plan(self, name: str, options: Mapping[str, Any]) -> Plan:
        """Return the plan of all rounds: agents learn by themselves."""
        return OwnPlan(name, dict(options))


@dataclass(frozen=True)
class OwnPlan(Plan):
    """A learner of OWN_INDICES, made with these options; the agent keeps its state."""

    learner: str
    options: Mapping[str, Any]

    @cached_property
    def own(self) -> Any:
        """The learner."""
        from rmab.policies.own_index import OWN_INDICES

        return OWN_INDICES[self.learner](**self.options)

    def choose(self, observed: InformationStates, plays: int) -> Places:
        """Refuse: the choice needs the state that the agent keeps."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON has it."""
        return {"kind": "own", "learner": self.learner, "options": dict(self.options)}

    @classmethod
    def from_json(cls, table: dict[str, Any], shape: Any, checks: Any) -> OwnPlan:  # noqa: ARG003
        """Return the plan that a server sent."""
        from rmab.policies.own_index import OWN_INDICES

        _, learner, options = checks.take(table, "plan", "kind", "learner", "options")
        if learner not in OWN_INDICES:
            raise checks.malformed(
                f"plan.learner must be one of {', '.join(OWN_INDICES)}, got {shown(learner)}"
            )
        if not isinstance(options, dict):
            raise checks.malformed(f"plan.options must be an object, got {shown(options)}")
        known = {field.name for field in fields(OWN_INDICES[learner])}
        for key, value in options.items():
            if key not in known or not is_number(value):
                raise checks.malformed(
                    f"plan.options must have numbers for {', '.join(sorted(known))} alone, "
                    f"got {shown(key)} = {shown(value)}"
                )
        return cls(learner, options)
