"""What a policy is: a learner, and a rule by which agents choose arms.

A *learner* turns evidence into dynamics (`rmab.learning.thompson`); without one the true dynamics
are known. A *rule* says what the dynamics become, and so what agents play by:

    IndexRule      an index for every information state of every arm; the K largest are played
    LookaheadRule  K arms are chosen together by a lookahead of a few slots
    TurnsRule      arms in play take turns; the learner says which are
    OptimumRule    the exact joint optimum
    JointRule      the joint optimum of what was learnt, planned anew in every episode
    RandomRule     K arms at random
    OwnIndexRule   an index from a learner with its own state, slot by slot
    AgeRule        arms observed longest ago, and perhaps before them those that were good
    TrueStateRule  the arms that pay most in this slot, which only a recording can tell
    OutsideRule    something that is not of the engine plays its trials: `rmab.envs.evaluation`

A learner with its own state (`OwnLearner`) keeps any arrays for each arm and agent. The counts that
other learners read are the first such state: the engine keeps both in the same way.

`rmab.policies.registry` has the policies by name. A policy of one's own is a `Policy`, see
docs/own-policy.md. This module imports no JAX: an agent reads it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rmab.errors import ModelError
from rmab.linalg import Array
from rmab.policies.aggregation import Aggregation
from rmab.text import is_whole, shown

__all__ = [
    "POPULATION",
    "AgeRule",
    "Forgetting",
    "IndexRule",
    "JointRule",
    "Lengths",
    "LookaheadRule",
    "OptimumRule",
    "OutsideRule",
    "OwnIndexRule",
    "Policy",
    "RandomRule",
    "Rule",
    "TrueStateRule",
    "TurnsRule",
]

POPULATION = "population"  # a prior that is learnt from all arms: rmab.learning.population
Learner = Callable[[Any, Any], Any]  # evidence, draws -> Moves, or for channels (p01, p11)


@dataclass(frozen=True, eq=False)
class IndexRule:
    """The K arms of the largest index are played.

    planner    channels: (dynamics, information states) -> index; None: there is a table alone
    table      any arms: (model, highest age) -> index of every row, (N, 1 + S max_age, trials)
    known      any arms of known dynamics: (arms, highest age) -> the same, (N, 1 + S max_age)
    statewise  whether the planner works state by state, so that it need not fill a table first
    max_age    ages that a planner's table distinguishes; older arms count as that old
    first      evidence -> arms that are played before all others, whatever their index, lower ones
               first, (N, trials); None: none
    by_chance  whether ties, but for rounding, are broken by chance; else the lower arm is played.
               Of a table alone
    """

    planner: Callable[[Any, Any], Any] | None = None
    table: Callable[[Any, int], Any] | None = None
    known: Callable[[Any, int], Any] | None = None
    statewise: bool = False
    max_age: int = 64
    first: Callable[[Any], Any] | None = None
    by_chance: bool = False


@dataclass(frozen=True)
class LookaheadRule:
    """K arms are chosen together, `depth` slots ahead: `rmab.policies.lookahead`."""

    depth: int


@dataclass(frozen=True)
class TurnsRule:
    """Arms in play take turns; the learner gives 1 for those, 0 for the others, twice.

    waits: an agent for which no arm is in play plays none, rather than any.
    """

    waits: bool = False


@dataclass(frozen=True)
class OptimumRule:
    """The exact joint optimum of known arms decides: `rmab.planning.joint`."""


@dataclass(frozen=True)
class JointRule:
    """The joint optimum of what the learner gives decides: `rmab.planning.joint.joint_plan`.

    ages: up to which information states are told apart; accuracy: of the average reward, as a part
    of the largest reward; intervals: whether the learner gives `rmab.model.arms.Intervals`, which
    have an accuracy of their own and are taken as the best that they allow, in place of dynamics.
    """

    ages: int
    accuracy: float = 5e-3
    intervals: bool = False


@dataclass(frozen=True)
class RandomRule:
    """Any K arms are as likely as any others."""


@dataclass(frozen=True, eq=False)
class OwnIndexRule:
    """The K arms of the largest index that `own.index` gives are played; no server is needed."""

    own: Any  # an OwnLearner with `index`


@dataclass(frozen=True, eq=False)
class Lengths:
    """Lengths of a policy's own for its episodes, in place of the schedule's.

    slots     (evidence, what the learner made of it) -> slots of the next episode, (trials,)
    complete  where agents have evidence of their own: whether an episode lasts until it is over for
              every agent, or ends with the first
    least     slots that every episode has but the last, which bounds how many there are
    """

    slots: Callable[[Any, Any], Array | int]
    complete: bool = False
    least: int = 1


@dataclass(frozen=True)
class Forgetting:
    """How what was counted loses weight: half-lives in slots, of one expert or several, and the
    experts' first weights. See `rmab.learning.forgetting`."""

    half_lives: tuple[float, ...]
    first: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class AgeRule:
    """Arms that were never observed are played, then those that were observed longest ago.

    stays: before them an arm that was observed one slot ago in the state that pays most, so that
    an arm is left only when it is no longer good. Nothing is learnt, and no dynamics are known.
    """

    stays: bool


@dataclass(frozen=True)
class TrueStateRule:
    """The K arms whose true states pay most are played."""


@dataclass(frozen=True, eq=False)
class OutsideRule:
    """The engine is told what its trials paid.

    play: (an `rmab.engine.montecarlo.Trials`, numbers of trials) -> what all agents were paid in
    each slot of each, (T, trials).
    """

    play: Callable[[Any, Any], Any]


Rule = (
    IndexRule
    | LookaheadRule
    | TurnsRule
    | OptimumRule
    | JointRule
    | RandomRule
    | OwnIndexRule
    | AgeRule
    | TrueStateRule
    | OutsideRule
)


@dataclass(frozen=True, eq=False, init=False)
class Policy:
    """How agents choose arms.

    name          what tables and figures call it
    rule          how arms are chosen
    learner       evidence and draws -> Moves, or (p01, p11); None: the dynamics are known
    own           a learner with a state of its own, in place of `learner`; None: counts are its
                  state
    gaps          G > 0: pairs of observations of an arm observed when played are counted by the
                  slots between them, 1 to G and all further ones together (an action-dependent
                  arm's waits one by one, those that are too long not at all); 0: see count_kinds
    own_visits    whether, under the schedule "paper", an episode ends when an agent's own visits
                  of a state of an arm have more than doubled: plays, and of an arm that is always
                  observed also slots without one. False: eq. (22), plays and a factor of 2^M
    own_pairs     whether, under all schedules, an episode ends when pairs of some arm, first state
                  and gap were seen in it as often as the learner had seen them before; needs gaps
    explores      (evidence, what the learner made of it) -> whether the next episode explores,
                  (trials,): plays of such episodes alone are counted as visits; None: all are
    reads_visits  whether the learner reads evidence.visits; False spares counting them
    randomised    whether the learner draws; if not, agents with the same evidence play by one
                  result
    aggregation   what agents share, by name or as an object of rmab.policies.aggregation; None:
                  as the study says
    draws         of the dynamics, "shared" or "per-agent"; None: as the study says
    longest       no episode has more slots; None: as the schedule says
    lengths       the policy's own, from the evidence at the start of an episode; None: as the
                  schedule says
    forget        how counts lose weight; None: never
    ties          whether the learner reads what an arm's rows have in common
    prior         the learner's, where more than the learner reads it: a number, Beta's two, or
                  POPULATION, which is learnt and given to the learner as evidence.prior

    The rule may be given as such, or by what it is made of: a planner or a table (an index), or a
    depth (a lookahead).
    """

    name: str
    rule: Rule
    learner: Learner | None
    own: Any
    gaps: int
    own_visits: bool
    own_pairs: bool
    explores: Callable[[Any, Any], Array] | None
    reads_visits: bool
    randomised: bool
    aggregation: str | Aggregation | None
    draws: str | None
    longest: int | None
    lengths: Lengths | None
    forget: Forgetting | None
    ties: bool
    prior: float | tuple[float, float] | str

    def __init__(
        self,
        name: str,
        planner: Callable[[Any, Any], Any] | None = None,
        learner: Learner | None = None,
        *,
        rule: Rule | None = None,
        table: Callable[[Any, int], Any] | None = None,
        statewise: bool = False,
        max_age: int = 64,
        depth: int = 0,
        own: Any = None,
        gaps: int = 0,
        own_visits: bool = False,
        own_pairs: bool = False,
        explores: Callable[[Any, Any], Array] | None = None,
        reads_visits: bool = True,
        randomised: bool = True,
        aggregation: str | Aggregation | None = None,
        draws: str | None = None,
        longest: int | None = None,
        lengths: Lengths | None = None,
        forget: Forgetting | None = None,
        ties: bool = False,
        prior: float | tuple[float, float] | str = 1.0,
    ) -> None:
        for key, value, least in (
            ("depth", depth, 0),
            ("gaps", gaps, 0),
            ("max_age", max_age, 1),
            ("longest", 1 if longest is None else longest, 1),
        ):
            if not is_whole(value) or value < least:
                raise ModelError(
                    f"policy {name}: {key} must be a whole number from {least} on, "
                    f"got {shown(value)}"
                )
        if rule is None:
            if depth:
                rule = LookaheadRule(depth)
            elif planner is None and table is None:
                raise ModelError(
                    f"policy {name}: a planner, a table, a depth or a rule must say how arms are "
                    "chosen, got none"
                )
            else:
                rule = IndexRule(planner, table, None, statewise, max_age)
        elif planner is not None or table is not None or depth:
            raise ModelError(f"policy {name}: a rule must come without planner, table and depth")
        if learner is not None and own is not None:
            raise ModelError(f"policy {name}: learner and own must not both be given")
        if lengths is not None and learner is None:
            raise ModelError(
                f"policy {name}: lengths must come with a learner, whose evidence they read"
            )
        fields = {
            "name": name,
            "rule": rule,
            "learner": learner,
            "own": rule.own if isinstance(rule, OwnIndexRule) else own,
            "gaps": gaps,
            "own_visits": own_visits,
            "own_pairs": own_pairs,
            "explores": explores,
            "reads_visits": reads_visits,
            "randomised": randomised,
            "aggregation": aggregation,
            "draws": draws,
            "longest": longest,
            "lengths": lengths,
            "forget": forget,
            "ties": ties,
            "prior": prior,
        }
        for key, given in fields.items():
            object.__setattr__(self, key, given)

    @property
    def learns(self) -> bool:
        """Whether it has episodes, in each of which a learner gives new dynamics."""
        return self.learner is not None or hasattr(self.own, "dynamics")

    @property
    def estimates(self) -> bool:
        """Whether what its learner gives are estimates of the dynamics, to be kept by episode.

        They are not where there may be as many episodes as slots.
        """
        countless = self.lengths is not None and self.lengths.least == 1
        planned = isinstance(self.rule, JointRule) and self.rule.intervals
        others = countless or planned or isinstance(self.rule, TurnsRule)
        return self.learns and not others

    @property
    def fixes_plays(self) -> bool:
        """Whether K is part of its program, as the sets of K arms are."""
        return isinstance(self.rule, LookaheadRule | JointRule)
