"""Privacy settings of a federation: the `[privacy]` table of its file.

    [privacy]
    helper = "https://helper.example:9443"   # unmasks sums, and is run by somebody else
    least = 3                                # smallest number of agents in a sum
    groups = 1                               # groups of agents with separate sums
    epsilon = 1.0                            # noise in sums, for one slot of a log whose plays are
    delta = 1e-6                             # given: rmab.privacy.accounting; default: no noise
    survey = 16                              # slots that are counted for others, with plays by a
                                             # schedule: rmab.privacy.survey; default: all

With a helper a server learns sums of at least `least` agents of a group, and never the counts of a
single agent (`rmab.privacy.masks`, `rmab.privacy.unmasking`). Without one the server gets the
counts of each agent and draws the noise: it protects agents against one another and against
readers, but not against the server. Then `epsilon` must be given, and `least` and `groups`, which
are rules of a helper, must not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from rmab.errors import FederationError, ModelError
from rmab.privacy.accounting import DELTA, Budget
from rmab.privacy.survey import MOST_SLOTS
from rmab.protocol.checks import is_loopback
from rmab.text import is_whole, shown

__all__ = ["LEAST_AGENTS", "LEAST_SURVEY", "Privacy", "check_survey", "privacy_of"]

LEAST_AGENTS, _MOST = 3, 10_000  # of a sum
LEAST_SURVEY = 2  # slots: one has no pair
_MOST_GROUPS = 1000


@dataclass(frozen=True)
class Privacy:
    """The `[privacy]` table, checked at construction."""

    helper: str | None = None  # None: the server draws the noise
    least: int = LEAST_AGENTS
    groups: int = 1
    epsilon: float | None = None
    delta: float = DELTA
    survey: int | None = None

    def __post_init__(self) -> None:
        if self.helper is not None:
            _check_address(self.helper)
        elif self.epsilon is None:
            raise FederationError(
                "privacy.helper is missing: the address of whoever opens sums; or give "
                "privacy.epsilon alone, for sums with noise that the server draws"
            )
        for key, low, high in (("least", LEAST_AGENTS, _MOST), ("groups", 1, _MOST_GROUPS)):
            value = getattr(self, key)
            if not is_whole(value) or not low <= value <= high:
                raise FederationError(
                    f"privacy.{key} must be a whole number from {low} to {high}, got {shown(value)}"
                )
        check_survey(self.survey, self.epsilon)
        try:
            Budget(1.0 if self.epsilon is None else self.epsilon, self.delta)
        except ModelError as error:
            raise FederationError(str(error)) from None

    @property
    def budget(self) -> Budget | None:
        """Privacy budget of each group; None: sums have no noise."""
        return None if self.epsilon is None else Budget(self.epsilon, self.delta)

    def to_table(self) -> dict[str, Any]:
        """Return the settings on which helper and server must agree, as JSON has them."""
        agreed: dict[str, Any] = {"least": self.least, "groups": self.groups}
        if self.epsilon is not None:
            agreed |= {"epsilon": float(self.epsilon), "delta": float(self.delta)}
        if self.survey is not None:
            agreed["survey"] = self.survey
        return agreed


def check_survey(survey: Any, epsilon: Any) -> None:
    """Refuse a survey that has no pairs, or sums without noise."""
    if survey is None:
        return
    if not is_whole(survey) or not LEAST_SURVEY <= survey <= MOST_SLOTS:
        raise FederationError(
            f"privacy.survey must be a whole number of slots from {LEAST_SURVEY} to {MOST_SLOTS}, "
            f"got {shown(survey)}"
        )
    if epsilon is None:
        raise FederationError("privacy.survey needs privacy.epsilon: it is for sums with noise")


def privacy_of(table: Any) -> Privacy:
    """Read the `[privacy]` table of a file."""
    if not isinstance(table, Mapping):
        raise FederationError(f"privacy must be a table, got {shown(table)}")
    known = [field.name for field in fields(Privacy)]
    for key in table:
        if key not in known:
            raise FederationError(
                f"privacy: unknown key {shown(key)}; known are {', '.join(known)}"
            )
    given = Privacy(**table)
    if given.helper is None:
        for key in ("least", "groups"):
            if key in table:
                raise FederationError(
                    f"privacy.{key} must not be given without privacy.helper: it says which sums a "
                    "helper opens, and here the server is told the counts of each agent"
                )
    return given


def _check_address(address: Any) -> None:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except (ValueError, TypeError, AttributeError):
        host = port = None
        parts = urlsplit("")
    plain = not (parts.query or parts.fragment or parts.username or parts.password)
    if parts.scheme not in ("http", "https") or not host or port == 0 or not plain:
        raise FederationError(
            f"privacy.helper must be an address like https://helper.example:9443, "
            f"got {shown(address)}"
        )
    if parts.scheme == "http" and not is_loopback(host):
        raise FederationError(
            f"privacy.helper must begin with https:// unless it is on this machine, "
            f"got {shown(address)}"
        )
