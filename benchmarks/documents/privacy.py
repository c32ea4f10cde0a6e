"""docs/privacy.md: what noise, liars and strangers cost; what noise is asked for is exact."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from benchmarks.documents.blocks import Asked, Block, Measurement, Page
from benchmarks.documents.kept import Json, Record, number
from benchmarks.documents.reproduced import claims_table, taken
from benchmarks.documents.simulated import mean, numbers, paper
from benchmarks.documents.words import (
    Estimate,
    compared,
    fixed,
    listed,
    plus,
    rounded,
    short_numbers,
    table,
)

import rmab
from benchmarks import feedback_audit, private_units, survey_loss
from rmab.experiments.privacy import claims as study
from rmab.experiments.registry import SECTIONS
from rmab.learning.channel.local_posterior import VAGUE_WEIGHT, PosteriorSummaries
from rmab.model.arms import Dynamics
from rmab.model.information import information_states
from rmab.planning.channel.whittle import whittle_at
from rmab.policies.plans import IndexPlan
from rmab.privacy.accounting import Budget, noise_multiplier
from rmab.privacy.advice import enough_agents
from rmab.privacy.prior_summaries import SummariesMessage
from rmab.protocol.messages import RoundMessage
from rmab.protocol.shape import Shape
from rmab.service.agent.local_plan import own_plan

__all__ = ["PAGE"]

PRIVACY = "privacy"
_EPSILONS = (0.5, 1.0, 2.0, 8.0)
_AGENTS = (4, 16, 64)
_AGES = 8  # of the plan that an agent has before it makes its own
_COMMAND = "rmab reproduce privacy privacy-arms --out results/privacy"


# ------------------------------------------------------------------------------------- measurements


def _taken(asked: Asked) -> Record:
    """What `rmab reproduce` wrote of both figures."""
    assert asked.folder is not None
    found = taken(asked.folder, SECTIONS["privacy"], _COMMAND)
    asked.say("read")
    runs = found.data["figures"][PRIVACY]["variants"]
    found.data["losses"] = {label: _loss(label, run) for label, run in runs.items()}
    found.data["gains"] = found.data["series"].pop("privacy-arms")
    for each in found.data["figures"].values():
        each.pop("variants")
    found.data.pop("series")
    drawn = asked.folder / "privacy.svg"
    if drawn.exists():
        (asked.docs / "pictures" / "privacy.svg").write_bytes(drawn.read_bytes())
    return found


def _loss(label: str, run: Mapping[str, Any]) -> list[float]:
    """Of those whose rewards count, against Whittle with known dynamics; and its error."""
    first = next(iter(run["policies"].values()))
    share = study._share(label)
    return [first["behind_whittle"] / share, first["behind_whittle_se"] / share]


def _audit(asked: Asked) -> Json:
    """An agent replayed in two worlds, with at most so many trials of each case."""
    most = asked.often
    cases = [replace(case, trials=min(case.trials, most)) for case in feedback_audit.CASES]
    return feedback_audit.measure(cases, asked.seed or 0)


def _survey(asked: Asked) -> Json:
    """As many trials with 16 agents, and as many agents in all with more of them."""
    fewest = min(survey_loss.TRIALS)
    often = {agents: max(2, asked.often * fewest // agents) for agents in survey_loss.TRIALS}
    return survey_loss.measure(often, asked.seed or 0)


def _units(asked: Asked) -> Json:
    return private_units.measure(asked.often, asked.seed or 0)


def _sums(asked: Asked) -> Json:
    """One draw for all from sums with noise, by the number of agents; and alone, without noise."""
    found: Json = {}
    names = ("fedtswi", "whittle")
    for agents in _AGENTS:
        noisy = paper(asked, names, agents=agents, schedule="linear", privacy={"epsilon": 1.0})
        found[f"M = {agents}"] = numbers(rmab.run(noisy))
        asked.say(f"M = {agents}")
    plain = paper(asked, names, agents=16, schedule="linear")
    found["M = 16, no noise"] = numbers(rmab.run(plain))
    alone = paper(asked, names, agents=4, schedule="linear", aggregation="none")
    found["alone"] = numbers(rmab.run(alone))
    asked.say("no noise, alone")
    return found


def _own_cost(asked: Asked) -> Json:
    """Milliseconds of processor time of a plan that an agent makes for itself."""
    found: Json = {}
    rng = np.random.default_rng(asked.seed)
    for n_arms, gaps in ((4, 8), (100, 32)):
        shape = Shape(2, (2,) * n_arms, gaps)
        odds, spread = np.zeros((1, 2, n_arms, 1)), np.full((1, 3, n_arms, 1), 0.25)
        spread[:, 1] = 0
        told = SummariesMessage(
            "x",
            1,
            "whittle",
            gaps,
            (1.0, 1.0),
            VAGUE_WEIGHT,
            ("all",),
            PosteriorSummaries(odds, spread),
        )
        law = Dynamics(*np.array([[0.3], [0.7], [1.0]])[:, :, None].repeat(n_arms, 1))
        index = np.asarray(whittle_at(law, information_states(_AGES)), np.float32)
        plan = IndexPlan(_AGES, 2, index, shape.states)
        rewards = ((0.0, 1.0),) * n_arms
        message = RoundMessage("x", "agent", 1, 10, None, shape, rewards, plan)
        counts = rng.integers(0, 9, (gaps + 1, 2, 2, n_arms))
        spent = []
        for _ in range(asked.often):
            begun = time.process_time()
            own_plan(told, message, counts, rng)
            spent.append(1000 * (time.process_time() - begun))
        found[f"{n_arms} arms, {gaps} gaps"] = min(spent)
        asked.say(f"{n_arms} arms")
    return found


# ------------------------------------------------------------------------------------------- blocks


def _multipliers() -> str:
    cells = [
        f"{noise_multiplier(one.epsilon, one.delta):.2f}".removeprefix("0") for one in _budgets()
    ]
    return table(_head(), [["z(ε, δ)", *cells]])


def _budgets() -> list[Budget]:
    return [Budget(epsilon) for epsilon in _EPSILONS]


def _head() -> list[str]:
    return ["ε at δ = 10⁻⁶", *(f"{epsilon:g}".removeprefix("0") for epsilon in _EPSILONS)]


def _enough() -> str:
    rows = [
        [label, *(str(enough_agents(one, draws)) for one in _budgets())]
        for draws, label in (
            ("own", 'agents enough with `draws = "own"`'),
            ("shared", 'with `"shared"` or `"per-agent"`'),
        )
    ]
    return table(_head(), rows)


def _table_of(module: Any, name: str) -> Block:
    """The table that a module of benchmarks makes of what it measured."""
    return Block(lambda record: short_numbers(module.table(record.data)), (name,))


def _sums_table(record: Record) -> str:
    found = record.data
    heads = [f"M = {agents}" for agents in _AGENTS]
    rows = [
        ["reward per agent and slot", *(rounded(mean(found[h], "fedtswi")) for h in heads)],
        ["Whittle, known dynamics", *(rounded(mean(found[h], "whittle")) for h in heads)],
    ]
    alone = mean(found["alone"], "fedtswi")
    worse = []
    for head in heads:
        word = compared(*_less(mean(found[head], "fedtswi"), alone))
        kind = {"more": "better than", "less": "worse than", "undecided": "undecided against"}[word]
        worse.append(f"{kind} none at {head}")
    return table(["ε = 1", *heads], rows) + (
        f"\n\nAn agent alone, without noise, earns {rounded(alone)}: by this noise a federation "
        "with one draw "
        f"for all is {listed(worse)}. Without noise 16 agents earn "
        f"{rounded(mean(found['M = 16, no noise'], 'fedtswi'))}."
    )


def _less(one: Estimate, other: Estimate) -> Estimate:
    return one[0] - other[0], float(np.hypot(one[1], other[1]))


def _losses(record: Record) -> str:
    losses = {label: _pair(each) for label, each in record.data["losses"].items()}
    alone = rounded(losses[study._ALONE])
    rows = [["no noise", *(rounded(losses[study._at(m)]) for m in _AGENTS)]]
    for epsilon in (8.0, 1.0):
        cells = [rounded(losses[study._at(m, epsilon)]) for m in _AGENTS]
        rows.append([f"ε = {epsilon:g}", *cells])
    rows.append(["each alone", *[alone] * len(_AGENTS)])
    few = study._at(4, 1.0)
    shared, own, by_self = (
        losses[label] for label in (f"{few}, {study._SHARED}", few, study._ALONE)
    )
    word = compared(*_less(by_self, own))
    gain = {
        "more": "they gain by the sums",
        "less": "they lose by the sums",
        "undecided": "whether they gain by the sums is undecided",
    }[word]
    return table(["loss with `own`", *(f"M = {m}" for m in _AGENTS)], rows) + (
        f"\n\nBy one draw for all from the same sums four agents lose {rounded(shared)} at ε = 1, "
        "beside "
        f"{rounded(by_self)} that each loses alone. With `own` {gain}: the loss is {rounded(own)}."
    )


def _pair(values: Any) -> Estimate:
    return number(values[0]), number(values[1])


def _adversaries(record: Record) -> str:
    losses = {label: _pair(each) for label, each in record.data["losses"].items()}

    def cell(label: str) -> str:
        return rounded(losses[label]) if label in losses else ""

    alone = cell(study._ALONE)
    shared = f", {study._SHARED}"
    rows = [
        [
            "honest agents among 3 liars, who claim p01 = p11 = "
            f"{fixed(study._CLAIMED, 2)} of arms 2 and 3 in every slot",
            *(cell(study._LYING), cell(study._LYING + shared), alone),
        ],
        [
            "4 strangers, whose arms move as 2 1 4 3",
            *(cell(study._STRANGE_ONES), cell(study._STRANGE_ONES + shared)),
            cell(f"{study._STRANGE_ONES}, {study._ALONE}"),
        ],
        ["the other 12, among 4 strangers", cell(study._OTHERS), "", alone],
        ["5 groups, nobody lies", cell(study._GROUPED), "", alone],
        [
            "one of 5 groups' sums is a lie as a whole",
            *(cell(study._GROUP_REPLACED), "", alone),
        ],
        [
            "the whole sum is a lie",
            *(cell(study._REPLACED), cell(study._REPLACED + shared), alone),
        ],
        [
            f"the same, `doubt = {study._MORE_DOUBT:g}`",
            *(cell(f"{study._REPLACED}, doubt {study._MORE_DOUBT:g}"), "", alone),
        ],
    ]
    return table(["loss, M = 16, no noise", "`own`", "`shared`", "alone"], rows)


def _claims(record: Record) -> str:
    return claims_table(record.data, SECTIONS["privacy"])


def _random(record: Record) -> str:
    if "gain" not in record.data["gains"]:  # the run was interrupted before
        return "This record has no random channels: `rmab reproduce privacy-arms` measures them."
    gain = np.array([number(x) for x in record.data["gains"]["gain"]])
    error = np.array([number(x) for x in record.data["gains"]["gain, se"]])
    kinds = [compared(*each) for each in zip(gain, error, strict=True)]
    return (
        f"On {len(gain)} draws of channels four agents at ε = 1 earn {plus(float(gain.mean()), 4)} "
        "beside "
        f"learning alone in the mean, {plus(float(gain.max()), 4)} at best and "
        f"{plus(float(gain.min()), 4)} at worst; the standard error of one draw is "
        f"{fixed(float(np.median(error)), 4)} in the median. They earn more on "
        f"{kinds.count('more')}, less on "
        f"{kinds.count('less')}, and on {kinds.count('undecided')} the difference is undecided."
    )


def _own_cost_line(record: Record) -> str:
    cells = [f"{fixed(ms, 1)} ms with {label}" for label, ms in record.data.items()]
    return (
        f"A plan of its own takes an agent {listed(cells)} of processor time; it needs NumPy only."
    )


PAGE = Page(
    "privacy.md",
    blocks={
        "noise-multiplier": Block(_multipliers),
        "enough-agents": Block(_enough),
        "feedback-audit": _table_of(feedback_audit, "feedback-audit"),
        "survey-loss": _table_of(survey_loss, "survey-loss"),
        "private-units": _table_of(private_units, "private-units"),
        "privacy-sums": Block(_sums_table, ("privacy-sums",)),
        "own-plan-cost": Block(_own_cost_line, ("own-plan-cost",)),
        "privacy-losses": Block(_losses, (PRIVACY,)),
        "privacy-adversaries": Block(_adversaries, (PRIVACY,)),
        "privacy-random": Block(_random, (PRIVACY,)),
        "privacy-claims": Block(_claims, (PRIVACY,)),
    },
    measurements={
        PRIVACY: Measurement(_taken, minutes=0, folder="results/privacy"),
        "feedback-audit": Measurement(_audit, minutes=2, trials=100),
        "survey-loss": Measurement(_survey, minutes=3, trials=32),
        "private-units": Measurement(_units, minutes=2, trials=64),
        "privacy-sums": Measurement(_sums, minutes=1, trials=256),
        "own-plan-cost": Measurement(_own_cost, minutes=0.1, trials=20),
    },
)
