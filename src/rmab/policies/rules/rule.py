"""Base class of rules: how agents choose arms by dynamics that are learnt or known.

A rule is a small value: options and capabilities. Its module owns everything else about it, in two
halves. The light half, which an agent imports, has the plan that a server sends and a choice from
it on NumPy. The JAX half (`rmab.policies.rules.compiled`) has tables, data of known arms, a state
by slot and the choice for a batch of trials; a rule finds it when it is first needed.

Engine, server, environments and back-tests ask a rule for its capabilities; none asks which rule it
is. A rule from elsewhere is a subclass that overrides `compiled`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from rmab.model.information import InformationStates

if TYPE_CHECKING:  # an agent loads no JAX, and a rule no engine
    from rmab.model.arms import ArmKind, Arms
    from rmab.policies.rules.compiled import CompiledRule, Scene

__all__ = ["Cut", "Floats", "Places", "Plan", "Rule", "read_ages", "written"]

MAX_PLAN_AGES = 4096
Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]
Cut = Callable[[Any], tuple[Any, int, int]]  # tables -> tables to send, their max_age and wrap


class Plan(ABC):
    """A value that a server makes and an agent plays by, from its *information states*.

    Those are of each arm the state last observed and its age, the slots since. Tables have the rows
    of `rmab.model.information.information_states`; older arms fall back by `wrap` ages, or become
    never observed where wrap is 0.
    """

    looks: ClassVar[bool] = True  # an arm that is always observed is in (state now, 1)

    @property
    def own(self) -> Any:
        """The learner whose state the agent keeps, which gives the index; None: there is none."""
        return None

    @abstractmethod
    def choose(self, observed: InformationStates, plays: int) -> Places:
        """Return the K arms to play in ascending order, from information states (N,) each."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON has it; numbers keep all digits of single precision."""

    @classmethod
    @abstractmethod
    def from_json(cls, table: dict[str, Any], shape: Any, checks: Any) -> Plan:
        """Return the plan that a server sent, or raise ProtocolError.

        shape: `rmab.protocol.messages.Shape` of the arms; checks: `rmab.protocol.checks`.
        """


def read_ages(age: Any, wrap: Any, checks: Any) -> tuple[int, int]:
    """Return the highest age of tables and their wrap, checked."""
    if checks.whole_number("plan.max_age", age, 1) > MAX_PLAN_AGES:
        raise checks.malformed(f"plan.max_age must be at most {MAX_PLAN_AGES}, got {age}")
    if checks.whole_number("plan.wrap", wrap, 0) > age:
        raise checks.malformed(f"plan.wrap must be at most max_age, {age}, got {wrap}")
    return age, wrap


def written(row: Floats) -> list[float]:
    """Return numbers of single precision by their shortest digits, which lead back to them."""
    return [float(str(number)) for number in row]


class Rule:
    """A rule and its capabilities; the defaults are those of a rule without a plan."""

    jax_half: ClassVar[str] = ""  # module with `compiled` and, if it is served, `fill`; "": its own
    by_arm: ClassVar[bool] = False  # an index of each arm by itself decides
    fits: ClassVar[bool] = False  # it can be given dynamics fitted to a recording
    draws: ClassVar[bool] = False  # choices are random whatever is learnt
    learns: ClassVar[bool] = False  # it learns by itself, slot by slot
    estimates: ClassVar[bool] = True  # its learner gives estimates of the dynamics
    fixes_plays: ClassVar[bool] = False  # K is part of its program, as sets of K arms are
    serial: ClassVar[bool] = False  # two programs at once would take too much memory
    outside: ClassVar[bool] = False  # `play` says what trials paid; there is no program
    optimal: ClassVar[bool] = False  # it plays the joint optimum, which may be too large
    name: str = ""  # of an index that agents can compute themselves

    def compiled(self, scene: Scene) -> CompiledRule:
        """Return the rule as part of a JAX program."""
        module = import_module(self.jax_half or type(self).__module__)
        made: CompiledRule = module.compiled(self, scene)
        return made

    def check(self, name: str, arms: Arms) -> None:
        """Refuse a part that gives no numbers for these arms; name: of the policy."""

    def check_kinds(self, kinds: Sequence[ArmKind], plays: int) -> None:
        """Refuse arms for which the rule would take too long."""

    def play(self, trials: Any, numbers: Any) -> Any:
        """Return the rewards of trials that are played outside the engine, (T, trials)."""
        raise NotImplementedError

    # ------------------------------------------------------------------- a server's half

    def standing_plan(self, name: str, options: Mapping[str, Any]) -> Plan | None:  # noqa: ARG002
        """Return the plan of all rounds, where it does not depend on evidence."""
        return None

    def fill(self, name: str, learnt: Any, plays: int, max_age: int) -> Any:
        """Return the arrays of a plan, (N, ..., trials), from `LearnedArms`."""
        return import_module(self.jax_half).fill(self, name, learnt, plays, max_age)

    def plan(self, filled: Any, shape: Any, cut: Cut) -> Plan:
        """Return the plan of a round; filled: NumPy arrays of one trial; shape: of messages."""
        raise NotImplementedError
