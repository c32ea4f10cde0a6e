"""Problems of the arena: studies without policies, with the reason for each.

A problem is a TOML file of this folder, or anybody's own:

    reason      why it is in the arena, one line
    study       the arms and settings of a bundled study, as "catalogue:fading", for a start
    left_out    policies that take very long there, with the reason: they play if they are named

All other keys are those of a study. A problem names no policies: every policy plays it that a study
of its arms accepts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from rmab.errors import ModelError, StudyError
from rmab.policies.registry import STUDIED
from rmab.studies.study import Study, from_table, read_table, with_bundled_study
from rmab.text import one_of, shown

__all__ = ["PROBLEMS", "ArenaProblem", "load_problem", "load_problems"]

# In the order in which they are run and shown. Problems of one shape share programs and stand
# together.
PROBLEMS = (
    *("paper-k1-m1", "paper-k2-m1", "identical", "whittle-loses"),
    *("paper-k1-m4", "paper-k2-m4", "paper-k1-m16", "paper-k2-m16", "jt4", "slow"),
    *("c1", "ht", "ge5", "rb-4", "ucwhittle", "circulant", "restart"),
    *("fading", "machine", "adherence", "n64", "n256"),
)
_ALWAYS_PLAY = ("whittle", "random")  # regret is against the first, scores begin at the second
_ASIDE = ("reason", "left_out", "figure", "sweep", "policies", "options")


@dataclass(frozen=True, eq=False)
class ArenaProblem:
    """Study without policies, with the reason why it is in the arena."""

    name: str
    reason: str
    study: Study
    left_out: Mapping[str, str] = field(default_factory=dict)

    def to_table(self) -> dict[str, Any]:
        """Table of the study, without policies."""
        table = replace(self.study, policies=("whittle",), options={}).to_table()
        return {key: each for key, each in table.items() if key not in ("policies", "options")}


def load_problems(
    names: Sequence[str] = (), trials: int | None = None, seed: int | None = None
) -> list[ArenaProblem]:
    """Load problems by name or file, all shipped ones if none is given.

    trials, seed: of every problem; None: as its file has them.
    """
    changes: dict[str, Any] = {
        key: each for key, each in (("trials", trials), ("seed", seed)) if each is not None
    }
    loaded = [load_problem(name) for name in (names or PROBLEMS)]
    for number, problem in enumerate(loaded):
        if problem.name in [other.name for other in loaded[:number]]:
            raise StudyError(f"problems must differ in name, got {problem.name!r} twice")
    return [replace(each, study=replace(each.study, **changes)) for each in loaded]


def load_problem(name: str) -> ArenaProblem:
    """Load a shipped problem by name, or the one in a TOML file."""
    if name.endswith(".toml"):
        return _read_problem(name, Path(name).stem)
    if name not in PROBLEMS:
        raise StudyError(
            f"unknown problem {shown(name)}; known are {', '.join(PROBLEMS)}; or a file, NAME.toml"
        )
    with resources.as_file(resources.files("rmab.arena.problems") / f"{name}.toml") as path:
        return _read_problem(str(path), name)


def _read_problem(path: str, name: str) -> ArenaProblem:
    table = read_table(path)
    try:
        sweeps = "sweep" in table
        table = with_bundled_study(table)
        reason, left_out = table.get("reason", "a problem of one's own"), table.get("left_out", {})
        if not isinstance(reason, str) or not reason or "\n" in reason:
            raise StudyError(f"reason must be one line of text, got {shown(reason)}")
        if not isinstance(left_out, dict) or not all(
            isinstance(why, str) for why in left_out.values()
        ):
            raise StudyError(f"left_out must be reasons by policy, got {shown(left_out)}")
        for policy in left_out:
            one_of("left_out", policy.partition("@")[0], STUDIED)
            if policy in _ALWAYS_PLAY:
                raise StudyError(f"left_out: {policy} must play, as what others earn is told by it")
        if sweeps:
            raise StudyError("sweep: a problem is one study; rmab run has sweeps")
        study = from_table({key: each for key, each in table.items() if key not in _ASIDE})
    except (StudyError, ModelError) as error:
        raise StudyError(f"{path}: {error}") from None
    return ArenaProblem(name, reason, study, left_out)
