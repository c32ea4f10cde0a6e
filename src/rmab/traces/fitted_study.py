"""The fitted arms as a study, so that policies can be simulated on what a recording is like.

A study has one law for an arm and all agents: that of all agents' pairs, counted together. An arm
that nobody measured is left out.
"""

from __future__ import annotations

import json

from rmab.traces.fit import Fit
from rmab.traces.stretches import Floats
from rmab.traces.twin import fitted_chains
from rmab.traces.verdicts import CORRELATED

__all__ = ["study_text"]

_POLICIES = ("stay", "fedtswi-gap", "myopic", "whittle", "fixed-best")
_MAX_HORIZON = 2000
_TRIALS = 200


def study_text(fit: Fit) -> str:
    """A study file; `rmab run` takes it as it is."""
    trace = fit.trace
    correlated = fit.verdicts[-1].answer
    lines = [
        f"# Arms fitted to {json.dumps(trace.source)}, all agents counted together.",
        f"agents = {len(trace.agents)}",
        "plays = 1",
        f"horizon = {min(len(trace.segment), _MAX_HORIZON)}",
        f"trials = {_TRIALS}",
        "seed = 0",
    ]
    if correlated == CORRELATED:
        lines += [
            'realisations = "shared"  # agents are correlated',
            'draws = "per-agent"',
        ]
    lines.append(f"policies = {json.dumps(_POLICIES)}")
    counts = fit.counts.sum(2)  # (S, S, arms)
    chains = fitted_chains(counts)
    for arm in sorted({each.arm for each in fit.series}):
        lines += ["", f"[[arm]]  # {json.dumps(trace.arms[arm])}", *_law(chains[:, :, arm])]
    return "\n".join(lines) + "\n"


def _law(chain: Floats) -> list[str]:
    """The lines of an arm: a channel, or with more states its matrix; the highest state pays 1."""
    if len(chain) == 2:
        p01, p11 = (round(float(p), 9) for p in chain[:, 1])
        return [f"p01 = {p01!r}", f"p11 = {p11!r}", "reward = 1.0"]
    rows = ", ".join(f"[{', '.join(map(repr, row))}]" for row in chain.tolist())
    pays = [0.0] * (len(chain) - 1) + [1.0]
    return [f"passive = [{rows}]", f"reward = {pays}"]
