"""Tables of a study file that describe arms, and the agents whose arms differ.

An `[[arm]]` table is of one of two kinds, which may be mixed in a study:

    channel     p01, p11, reward             numbers; see rmab.channels
    general     passive                      S rows of S numbers
                active                       S rows of S numbers; default: as passive
                reward or reward_active      S numbers, the reward of a play
                reward_passive               S numbers, the reward of a slot without a play
                observed                     "when_played" (the default) or "always"
                tied_passive, tied_active    of each state the next states of one event, whose
                                             chance is the same in all rows that have it

Arms count from 1, rows, columns and states from 0.

Agents may differ. An `[[agent]]` table names some of them, and the differences:

    agents      the number of one, or a list of numbers; agents count from 1
    arm         [[agent.arm]] tables: `number`, the arm's (default: the place of the table), and
                its changes; with `passive` the whole arm
    rewards     reward of a play of each arm: N numbers, or lists of numbers by state

In Python such a table may have `arms` in place of both, all arms of these agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rmab.errors import ModelError, StudyError
from rmab.model.arms import OBSERVED, Arm, Arms, channels
from rmab.text import is_number, is_whole, one_of, shown

__all__ = [
    "CHANNEL_KEYS",
    "arm_table",
    "changed_arms",
    "check_rewards",
    "read_agents",
    "read_arm",
    "same_arms",
]

# The engine counts in single precision: a reward far smaller or larger would be lost.
_REWARD_SIZES = (1e-30, 1e30)
CHANNEL_KEYS = ("p01", "p11", "reward")
_REWARD_KEYS = ("reward", "reward_active", "reward_passive")
_TIED_KEYS = ("tied_passive", "tied_active")
_GENERAL_KEYS = ("passive", "active", *_REWARD_KEYS, "observed", *_TIED_KEYS)
_KINDS = f"a channel has {', '.join(CHANNEL_KEYS)}; any other arm {', '.join(_GENERAL_KEYS)}"
_AGENT_KEYS = ("agents", "arm", "rewards")


def check_rewards(arms: Arms, agent: str = "") -> None:
    """Refuse rewards that the engine cannot count; agent: begins the message."""
    for name in ("reward_active", "reward_passive"):
        rewards = getattr(arms, name)
        size = np.abs(rewards)
        lost = (size > 0) & ~((size >= _REWARD_SIZES[0]) & (size <= _REWARD_SIZES[1]))
        for n, state in np.argwhere(lost)[:1]:
            raise StudyError(
                f"{agent}arm {n + 1}: {name} of state {state} must be 0 or from 1e-30 to 1e30 in "
                f"size in a study, got {rewards[n, state]}"
            )


def same_arms(one: Arms, other: Arms) -> bool:
    """Whether arms have equal kinds, dynamics and rewards."""
    keys = ("passive", "active", "reward_passive", "reward_active")
    return one.kinds == other.kinds and all(
        np.array_equal(getattr(one, key), getattr(other, key)) for key in keys
    )


def read_arm(table: Mapping[str, Any]) -> Arm:
    """Make the arm of an [[arm]] table.

    Only the types of numbers are checked here, as NumPy accepts "0.5" and true; `Arm` and
    `channels` check their values.
    """
    for key in table:
        if key not in (*CHANNEL_KEYS, *_GENERAL_KEYS):
            raise StudyError(f"unknown key {shown(key)}; {_KINDS}")
    channel = [key for key in ("p01", "p11") if key in table]
    general = [key for key in _GENERAL_KEYS if key in table and key != "reward"]
    if channel and general:
        raise StudyError(f"{channel[0]} and {general[0]} must not be in one table; {_KINDS}")
    for key in CHANNEL_KEYS if channel else ("passive",):
        if key not in table:
            raise StudyError(f"{key if channel else 'p01 or passive'} is missing; {_KINDS}")
    if channel:
        for key in CHANNEL_KEYS:
            if not is_number(table[key]):
                raise StudyError(f"{key} must be a finite number, got {shown(table[key])}")
        return channels(**table)[0]
    for key in ("passive", "active"):
        rows = table.get(key, [])
        if not isinstance(rows, list | tuple):
            raise StudyError(f"{key} must be a list of rows of numbers, got {shown(rows)}")
        for state, row in enumerate(rows):
            _check_numbers(f"{key} row {state}", "column", row)
    for key in _REWARD_KEYS:
        _check_numbers(key, "state", table.get(key, []))
    one_of("observed", table.get("observed", OBSERVED[0]), OBSERVED)
    return Arm(**table)


def arm_table(arm: Arm) -> dict[str, Any]:
    """Make the [[arm]] table of an arm: a channel's if that is equal to the last bit."""
    if arm.is_channel:
        p01, p11 = arm.passive[:, 1].tolist()
        if np.array_equal(arm.passive[:, 0], [1 - p01, 1 - p11]):
            return {"p01": p01, "p11": p11, "reward": float(arm.reward_active[1])}
    table: dict[str, Any] = {"passive": arm.passive.tolist()}
    if arm.action_dependent:
        table["active"] = arm.active.tolist()
    table["reward_active"] = arm.reward_active.tolist()
    if arm.reward_passive.any():
        table["reward_passive"] = arm.reward_passive.tolist()
    table["observed"] = arm.observed
    if arm.tie is not None:
        events = zip(_TIED_KEYS, arm.tie[:2], strict=True)
        table |= {key: [list(row) for row in event] for key, event in events if any(event)}
    return table


def _check_numbers(key: str, place: str, values: Any) -> None:
    if not isinstance(values, list | tuple):
        raise StudyError(f"{key} must be a list of numbers, got {shown(values)}")
    for number, value in enumerate(values):
        if not is_number(value):
            raise StudyError(f"{key}: {place} {number} must be a finite number, got {shown(value)}")


# ------------------------------------------------------------------------------ agents that differ


def read_agents(tables: Any, arms: Arms, n_agents: int) -> tuple[dict[str, Any], ...]:
    """Read [[agent]] tables into one form: `agents`, a list, and `arm`, tables with a `number`."""
    if not isinstance(tables, list | tuple) or not all(isinstance(t, Mapping) for t in tables):
        raise StudyError(f"agent must be [[agent]] tables, got {shown(tables)}")
    read = []
    given: set[tuple[int, int]] = set()
    for place, table in enumerate(tables, start=1):
        one = _read_agent(table, arms, n_agents, f"[[agent]] {place}")
        for agent in one["agents"]:
            for arm in one["arm"]:
                if (agent, arm["number"]) in given:
                    raise StudyError(
                        f"[[agent]] {place}: agent {agent}, arm {arm['number']} is there twice"
                    )
                given.add((agent, arm["number"]))
        read.append(one)
    return tuple(read)


def _read_agent(table: Mapping[str, Any], arms: Arms, n_agents: int, place: str) -> dict[str, Any]:
    for key in table:
        if key not in (*_AGENT_KEYS, "arms"):
            raise StudyError(
                f"{place}: unknown key {shown(key)}; known are {', '.join(_AGENT_KEYS)}"
            )
    if "agents" not in table:
        raise StudyError(f"{place}: agents is missing: the number of one, or a list of numbers")
    agents = table["agents"]
    agents = list(agents) if isinstance(agents, list | tuple | range) else [agents]
    for agent in agents:
        if not is_whole(agent) or not 1 <= agent <= n_agents:
            raise StudyError(
                f"{place}: agents must be numbers from 1 to {n_agents}, got {shown(agent)}"
            )
    whole = table.get("arms", ())
    if "arms" in table and (len(whole) != len(arms) or not all(isinstance(a, Arm) for a in whole)):
        raise StudyError(f"{place}: arms must be {len(arms)} rmab.Arm, got {shown(whole)}")
    changes = [{"number": n, **arm_table(arm)} for n, arm in enumerate(whole, start=1)]
    changes += _numbered(table.get("arm", ()), len(arms), place)
    changes += _paid(table.get("rewards", ()), len(arms), place)
    merged: dict[int, dict[str, Any]] = {}
    for change in changes:
        known = merged.setdefault(change["number"], {})
        both = [key for key in change if key in known and key != "number"]
        if both:
            raise StudyError(f"{place}: arm {change['number']}: {both[0]} is there twice")
        known.update(change)
    if not merged:
        raise StudyError(f"{place}: arm or rewards must say what is different, got neither")
    return {"agents": agents, "arm": list(merged.values())}


def _numbered(tables: Any, n_arms: int, place: str) -> list[dict[str, Any]]:
    if not isinstance(tables, list | tuple) or not all(isinstance(t, Mapping) for t in tables):
        raise StudyError(f"{place}: arm must be [[agent.arm]] tables, got {shown(tables)}")
    found = []
    for at, table in enumerate(tables, start=1):
        number = table.get("number", at)
        if not is_whole(number) or not 1 <= number <= n_arms:
            raise StudyError(
                f"{place}: number of an arm must be from 1 to {n_arms}, got {shown(number)}"
            )
        found.append({"number": number, **table})
    return found


def _paid(rewards: Any, n_arms: int, place: str) -> list[dict[str, Any]]:
    if not isinstance(rewards, list | tuple) or len(rewards) not in (0, n_arms):
        raise StudyError(
            f"{place}: rewards must be {n_arms} numbers, or lists, one for each arm, "
            f"got {shown(rewards)}"
        )
    return [{"number": n, "reward": reward} for n, reward in enumerate(rewards, start=1)]


def changed_arms(arms: Arms, tables: Sequence[Mapping[str, Any]]) -> Arms:
    """Arms of an agent to which these [[agent]] tables apply."""
    each = list(arms)
    for table in tables:
        for change in table["arm"]:
            n = change["number"] - 1
            try:
                each[n] = _changed_arm(arms[n], {k: v for k, v in change.items() if k != "number"})
            except (StudyError, ModelError) as error:
                why = str(error).removeprefix("arm 1: ")
                raise StudyError(f"agent {table['agents'][0]}, arm {n + 1}: {why}") from None
    return Arms(each) if tables else arms


def _changed_arm(arm: Arm, change: Mapping[str, Any]) -> Arm:
    if "passive" in change:
        return read_arm(change)
    table = arm_table(arm)
    if "reward" in change:
        table.pop("reward_active", None)
    return read_arm({**table, **change})
