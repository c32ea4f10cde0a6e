"""Entry of a policy by name: its maker, its options, its capabilities, and how it is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rmab.policies.capabilities import Capabilities
from rmab.policies.options import GOSSIP_OPTIONS, Option, shared

__all__ = ["BROKEN", "GROUPS", "Entry"]

BROKEN = (0, (8, 1))  # the dash of published learners: lines that are hardly broken

# Groups of policies by name with their titles, in the order of help and pages.
GROUPS: Mapping[str, str] = {
    "paper": "the paper's learners (consecutive observations)",
    "gap": "learn from observations at any gap",
    "published": "other published learners, to compare with",
    "known": "know the dynamics",
    "rules": "learn nothing and know nothing",
    "hindsight": "see the states, in a back-test alone",
}


@dataclass(frozen=True)
class Entry:
    """Policy by name."""

    group: str  # one of GROUPS
    maker: str  # "module:function", called with name, horizon in slots, and options that are set
    options: Mapping[str, Option]  # by name; with "aggregation" come the options of gossip
    summary: str  # a line of help
    label: str  # in tables and figures, as are colour, dash and marker
    colour: str
    dash: str | tuple[int, tuple[int, ...]] = "-"
    marker: str = ""
    preset: Mapping[str, Any] = field(default_factory=dict)  # its own defaults
    capabilities: Capabilities = field(default_factory=Capabilities)

    def __post_init__(self) -> None:
        if "aggregation" in self.options:
            whole = {**shared(*GOSSIP_OPTIONS), **self.options}
            object.__setattr__(self, "options", {name: whole[name] for name in sorted(whole)})
