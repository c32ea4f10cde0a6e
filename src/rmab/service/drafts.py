"""Rounds in the making: from merged counts to what the database keeps and what agents are told."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Protocol

from rmab.federation.charter import Federation
from rmab.federation.messages import Merged, RoundMessage
from rmab.federation.plans import Plan, parse_plan
from rmab.federation.rounds import LONGEST, visits_can_end
from rmab.service.rows import OpenRound

__all__ = ["Planned", "Planning", "as_json", "message_parts", "visit_factor"]

_NAME = "agent-name-goes-here"  # its place in a round's message


class Planned(Protocol):
    """A plan, and the slots of its episodes if the policy sets them."""

    @property
    def plan(self) -> Plan: ...

    @property
    def limit(self) -> int | None: ...


class Planning(Protocol):
    """What makes plans and estimates; `rmab.federation.serving.Planner` in earnest."""

    def plan(self, merged: Merged, number: int, lane: int = 0) -> Planned: ...

    def estimates(self, merged: Merged) -> list[dict[str, Any]]: ...


def visit_factor(schedule: str, live: Collection[str]) -> int | None:
    """2^M of the paper's stop rule for M agents; None where it never ends an episode."""
    agents = max(1, len(live))
    return 2**agents if visits_can_end(schedule, agents, LONGEST) else None


def message_parts(
    federation: Federation, opened: OpenRound, plan_json: bytes
) -> tuple[bytes, bytes]:
    """A round's message before and after the name of the agent that it is for."""
    message = RoundMessage(
        federation=federation.name,
        agent=_NAME,
        round=opened.number,
        slots=opened.limit,
        visit_factor=opened.visit_factor,
        shape=federation.shape,
        rewards=tuple(arm.reward for arm in federation.arms),
        plan=parse_plan(json.loads(plan_json), federation.shape),
    )
    key = b'"agent":"'
    head, _, tail = message.to_json().partition(key + _NAME.encode())
    return head + key, tail


def as_json(table: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(table, separators=(",", ":"), allow_nan=False).encode()
