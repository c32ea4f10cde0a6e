"""What the store gives back."""

from __future__ import annotations

from typing import NamedTuple

from rmab.federation.messages import Merged

__all__ = ["AgentRow", "Credential", "OpenRound", "RewardRow", "RoundRow", "Sighting"]


class Credential(NamedTuple):
    """Whose token a key id belongs to."""

    name: str
    role: str
    lane: int
    secret_hash: bytes
    revoked: bool


class AgentRow(NamedTuple):
    """An agent or admin that was ever enrolled."""

    name: str
    role: str
    lane: int  # -1: an admin
    enrolled: float
    revoked: float | None
    last_seen: float | None
    last_round: int | None  # fetched or reported
    uploads: int
    refused: int
    slots: int
    reward: float | None  # mean per slot, as its visits paid


class Sighting(NamedTuple):
    """What is worth keeping of an agent's requests other than uploads."""

    name: str
    last_seen: float
    last_round: int | None
    refused: int  # since the sighting before


class OpenRound(NamedTuple):
    """A round that agents play, with all that a restarted server needs to go on with it."""

    number: int
    opened: float
    limit: int
    visit_factor: int | None
    merged: Merged  # what its plan was made from
    plan_json: bytes | None


class RoundRow(NamedTuple):
    """A round as history shows it; the last five are None while it is open."""

    number: int
    opened: float
    limit: int
    closed: float | None
    reason: str | None
    reports: int | None
    slots: int | None
    reward: float | None


class RewardRow(NamedTuple):
    """What a closed round's uploads brought: agent slots, and mean reward of one."""

    round: int
    slots: int
    reward: float | None
