"""What a survey costs: loss of agents that draw for themselves, by the engine.

Arms and learner are those of the figure `privacy` (`rmab.experiments.privacy`); loss is reward per
agent and slot less than Whittle indices with known dynamics earn on the same trials.

    python -m benchmarks.survey_loss             # about six minutes on two cores
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import rmab
from rmab.studies.study import Study

__all__ = ["measure", "table"]

LEARNER, KNOWN = "fedtswi-gap", "whittle"
EPSILON = 1.0
TRIALS: Mapping[int, int] = {16: 64, 64: 16}  # by M
ALONE: Mapping[str, Any] = {"draws": "shared", "aggregation": "none"}
CASES: Mapping[str, Mapping[str, Any]] = {
    "each alone": ALONE,
    "all slots, no noise": {},
    "all slots, among logs with the same plays": {"privacy": {"epsilon": EPSILON}},
    "`survey = 8`": {"privacy": {"epsilon": EPSILON, "survey": 8}},
    "`survey = 16`": {"privacy": {"epsilon": EPSILON, "survey": 16}},
    "`survey = 32`": {"privacy": {"epsilon": EPSILON, "survey": 32}},
}


def study(agents: int, trials: int, seed: int = 0, horizon: int = 1000) -> Study:
    """The study that all cases change; without noise."""
    return Study(
        arms=rmab.channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6]),
        agents=agents,
        plays=2,
        horizon=horizon,
        trials=trials,
        seed=seed,
        schedule="linear",
        draws="own",
        policies=[LEARNER, KNOWN],
        options={LEARNER: {"gaps": 8}},
    )


def measure(
    trials: Mapping[int, int] = TRIALS, seed: int = 0, horizon: int = 1000
) -> dict[str, Any]:
    """Loss and its standard error of each case, by the number of agents; trials: by M."""
    rows = []
    for name, changes in CASES.items():
        row: dict[str, Any] = {"case": name}
        for agents, often in trials.items():
            results = rmab.run(replace(study(agents, often, seed, horizon), **changes))
            row[str(agents)] = [float(x) for x in results.difference(KNOWN, LEARNER)]
        rows.append(row)
    by_agents = {str(agents): number for agents, number in trials.items()}
    return {"epsilon": EPSILON, "horizon": horizon, "trials": by_agents, "seed": seed, "rows": rows}


def table(measured: Mapping[str, Any]) -> str:
    """The rows as a table of a document."""
    agents = list(measured["trials"])
    lines = [
        f"| counted for others | {' | '.join(f'M = {number}' for number in agents)} |",
        f"|---|{'---|' * len(agents)}",
    ]
    for row in measured["rows"]:
        cells = [f"{mean:.4f} ± {se:.4f}" for mean, se in (row[number] for number in agents)]
        lines.append(f"| {row['case']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--agents", type=int, nargs="*", help="numbers of agents; default: all")
    given = parser.parse_args().agents or list(TRIALS)
    print(json.dumps(measure({agents: TRIALS[agents] for agents in given}), indent=1))


if __name__ == "__main__":
    main()
