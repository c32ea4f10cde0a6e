"""Refusals: which policies go with which arms, sharing, privacy and service.

`refusal` is the one function that decides it, for policies by name and for policy objects. A rule
judges one policy under some conditions; the order of a table of rules decides which reason is given
first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rmab.errors import ModelError
from rmab.model.arms import CHANNEL
from rmab.policies.aggregation import Alone, compares_agents, mixes_evidence
from rmab.policies.capabilities import Case, Conditions, Rule, capabilities_of, first_other
from rmab.policies.lookahead import check_depth
from rmab.policies.policy import POPULATION, Policy
from rmab.policies.registry import POLICIES, settings_of
from rmab.text import shown

__all__ = ["OF_OPTIONS", "OF_PRIVACY", "OF_RECORDINGS", "refusal"]


def refusal(
    policy: str | Policy,
    at: Conditions,
    options: Mapping[str, Any] | None = None,
    place: str = "options",
    rules: Sequence[Rule] | None = None,
) -> str | None:
    """Return why a policy does not go with some conditions, or None.

    Parameters
    ----------
    policy : str or Policy
        A policy by name, or an object.
    at : Conditions
        Arms, sharing and privacy.
    options : mapping
        Checked settings of a policy by name.
    place : str
        Where a file has these.
    rules : sequence of rules
        Default: all rules for names, or for objects.
    """
    if isinstance(policy, str):
        able, settings = POLICIES[policy].capabilities, settings_of(policy, options)
        case, table = Case(policy, at, able, settings, place), _OF_NAMES
    else:
        case = Case(policy.name, at, capabilities_of(policy.learner.function), {}, place, policy)
        table = _OF_OBJECTS
    reasons = (rule(case) for rule in (table if rules is None else rules))
    return next((why for why in reasons if why), None)


def _recording(case: Case) -> str | None:
    if not case.at.recorded:
        return None
    if case.capabilities.one_law or (case.policy and case.policy.rule.optimal):
        return (
            f"policies: {case.name!r} needs one law for all agents, and a trace has one for each; "
            "what nothing can exceed is 'genie'"
        )
    if case.policy and case.policy.rule.outside:
        return (
            f"policies: {case.name!r} is played outside the engine, which has trials for it, not "
            "traces"
        )
    return None


# ----------------------------------------------------------------------------- policies by name


def _true_states(case: Case) -> str | None:
    if case.at.recorded or case.capabilities.reads != "states":
        return None
    return (
        f"policies: {case.name!r} sees the states, which only a recording can show: it is for "
        "rmab backtest alone"
    )


def _prior_of_a_pair(case: Case) -> str | None:
    prior, sizes = case.settings.get("prior"), [kind.states for kind in case.at.kinds]
    S = max(sizes)
    if S == 2 or not isinstance(prior, list | tuple):
        return None
    arm = "an arm" if case.at.served else f"arm {sizes.index(S) + 1}"
    return f"{case.place}.prior must be one number, as {arm} has {S} states, got {shown(prior)}"


def _depth(case: Case) -> str | None:
    if "depth" not in case.settings:
        return None
    try:
        check_depth(case.at.kinds, case.at.plays, case.settings["depth"])
    except ModelError as error:
        return str(error) if case.at.served else f"{case.place}.{error}"
    return None


def _unclipped_bounds(case: Case) -> str | None:
    if case.settings.get("clip") is not False or all(case.at.channels):
        return None
    return (
        f"{case.place}.clip must be true unless all arms are channels: bounds that are not clipped "
        "are no probabilities of several states; got false"
    )


def _ties(case: Case) -> str | None:
    if not case.settings.get("tied") or any(kind.tie for kind in case.at.kinds):
        return None
    return (
        f"{case.place}.tied of {case.name} must be false, as no arm says by tied_passive or "
        "tied_active what its rows have in common; got true"
    )


def _settings_for_channels(case: Case) -> str | None:
    wanted = {"forget": "bank", "prior": POPULATION}
    given = {key: value for key, value in wanted.items() if case.settings.get(key) == value}
    if "aggregation" in POLICIES[case.name].options and compares_agents(case.shares):
        given["aggregation"] = str(case.aggregation)
    other = first_other([kind == CHANNEL for kind in case.at.kinds])
    if not given or not other:
        return None
    key, value = next(iter(given.items()))
    return (
        f"{case.place}.{key} of {case.name} must not be {shown(value)}, as arm {other} is not of "
        "two states, observed when played, moving alike played or not"
    )


def _arms(case: Case) -> str | None:
    why = next((why for rule in case.capabilities.arms if (why := rule(case))), None)
    return why and f"policies: {case.name!r} {why}"


def _own_options(case: Case) -> str | None:
    why = next((why for rule in case.capabilities.options if (why := rule(case))), None)
    return why and f"{case.place}.{why}"


def _local_draws(case: Case) -> str | None:
    name, settings = case.name, case.settings
    if case.at.draws != "own" or case.capabilities.reads not in ("own", "counts"):
        return None
    other = first_other(case.at.channels)
    why = None
    if not case.capabilities.local_draws:
        able = [each for each, entry in POLICIES.items() if entry.capabilities.local_draws]
        why = f"as {name} does not draw, or not for an index; these do: {', '.join(able)}"
    elif other:
        why = f"as arm {other} is no channel"
    elif settings.get("plan_by") == "mode":
        why = f"as {name} with plan_by = 'mode' does not draw"
    elif settings.get("forget", "never") != "never" or settings.get("prior") == POPULATION:
        why = f"as {name} forgets counts or learns its prior"
    elif not case.shares.shared:
        why = f"as agents share no sum under {name}; aggregation must be 'sum'"
    return why and f"draws must not be 'own', {why}"


def _noise(case: Case) -> str | None:
    reads, settings = case.capabilities.reads, case.settings
    merges = reads == "counts" or (reads == "own" and case.at.served)
    if not case.at.noise or not merges or isinstance(case.shares, Alone):
        return None
    other = first_other([kind == CHANNEL for kind in case.at.kinds])
    why = None
    if not case.capabilities.noise:
        able = [name for name, entry in POLICIES.items() if entry.capabilities.noise]
        why = "reads more than counts of pairs, or is no Thompson index policy; "
        why += f"{', '.join(able)} may be"
    elif other:
        why = f"learns from noise where all arms are channels, and arm {other} is none"
    elif not case.shares.running:
        why = "needs a sum over agents, and its aggregation needs what each has counted"
    elif settings.get("forget", "never") != "never":
        why = "forgets, and what is released has all that was ever counted"
    elif settings.get("prior") == POPULATION:
        why = "learns its prior, and would take noise for arms that differ"
    return why and f"privacy.epsilon: {case.name!r} {why}"


OF_OPTIONS: Sequence[Rule] = (_prior_of_a_pair, _depth, _unclipped_bounds)
_OF_NAMES = (
    _recording,
    _true_states,
    _own_options,
    *OF_OPTIONS,
    _ties,
    _settings_for_channels,
    _arms,
    _local_draws,
    _noise,
)


# ------------------------------------------------------------------------------ policy objects


def _unknown_reader(case: Case) -> str | None:
    if not case.at.noise or case.policy is None or not case.policy.learns:
        return None
    return (
        f"privacy.epsilon: {case.name!r} is a learner of one's own, of which it is not known what "
        "it reads"
    )


def _kept_evidence(case: Case) -> str | None:
    policy = case.policy
    assert policy is not None
    learner = policy.learner
    learnt, forget = learner.prior == POPULATION, learner.forget
    compares, mixes = compares_agents(case.shares), mixes_evidence(case.shares)
    if not policy.learns or not (learnt or compares or mixes or forget is not None):
        return None
    if learner.function is None:
        return (
            f"policy {case.name}: a learner with its own state must not have a prior that is "
            "learnt, forget, or have agents that gossip or are compared by their counts"
        )
    several = forget is not None and len(forget.half_lives) > 1
    if (learnt or compares or several) and any(kind != CHANNEL for kind in case.at.kinds):
        return (
            f"policy {case.name}: a prior that is learnt, agents compared by their counts and "
            "several half-lives are for arms of two states, observed when played, that move alike"
        )
    return None


def _local_draws_of_object(case: Case) -> str | None:
    policy = case.policy
    assert policy is not None
    if case.at.draws != "own":
        return None
    why = None
    learner = policy.learner
    if not (case.capabilities.local_draws and learner.randomised and policy.rule.by_arm):
        why = "but for Thompson sampling and an index"
    elif not all(case.at.channels):
        why = "unless arms are channels"
    elif learner.forget is not None or learner.prior == POPULATION:
        why = "where counts are forgotten or a prior is learnt"
    elif not case.shares.shared:
        why = "unless agents share a sum"
    return why and f"policy {case.name}: draws must not be 'own' {why}"


OF_PRIVACY: Sequence[Rule] = (_unknown_reader,)
OF_RECORDINGS: Sequence[Rule] = (_recording,)
_OF_OBJECTS = (*OF_PRIVACY, *OF_RECORDINGS, _kept_evidence, _local_draws_of_object)
