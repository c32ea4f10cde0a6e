"""Results of a study: means with standard errors, by policy, slot and episode."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from rmab.errors import StudyError
from rmab.files import replaced
from rmab.studies.provenance import Provenance
from rmab.studies.study import Study
from rmab.studies.sweep import Point, Sweep

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Curve",
    "PolicyResult",
    "Results",
    "SweepResults",
    "without_nan",
    "write_csv",
    "write_json",
]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """Mean and standard error, along slots or episodes."""

    mean: Floats
    se: Floats


@dataclass(frozen=True, eq=False)
class PolicyResult:
    """Results of one policy; rewards are averages per agent and slot."""

    mean: float  # over the horizon
    se: float
    final: float  # over the last tenth of the slots
    final_se: float
    episodes: float  # mean number of episodes
    behind: float  # average reward of `whittle` with known dynamics, less this policy's
    behind_se: float  # standard error of `behind`, paired by trial
    slots: Curve  # (T,) reward
    regret: Curve  # (T,) cumulative, against `whittle`
    episode_trials: Floats  # (L,) trials that reached each episode
    episode_length: Curve  # (L,)
    episode_reward: Curve  # (L,)
    episode_regret: Curve  # (L,) per slot
    episode_error: Curve | None  # (L, N) squared error of the dynamics; None if none are learnt
    failed: float | None = None  # share of failed trials, see run_watched; None: not counted

    @property
    def full_episodes(self) -> int:
        """Number of episodes, from the first on, that at least half of the trials completed.

        Figures, tables and judges count only these; the first counts always. Later episodes are of
        a few unusual trials, or cut short by the horizon.
        """
        went_on = np.append(self.episode_trials[1:], 0)
        return max(1, int(np.count_nonzero(went_on >= self.episode_trials[0] / 2)))

    def by_episode(self, key: Literal["length", "reward", "regret", "error"]) -> Curve:
        """Curve over the full episodes, (L,); (L, N) for the error, of a policy that learns."""
        curve: Curve | None = getattr(self, f"episode_{key}")
        if curve is None:
            raise ValueError(f"a policy without learnt dynamics has no {key} by episode")
        count = self.full_episodes
        return Curve(curve.mean[:count], curve.se[:count])

    def summary(self) -> dict[str, float]:
        """Numbers of the policy for `rmab run --json`."""
        return {
            "mean": self.mean,
            "se": self.se,
            "final": self.final,
            "final_se": self.final_se,
            "episodes": self.episodes,
            "behind_whittle": self.behind,
            "behind_whittle_se": self.behind_se,
        }


@dataclass(frozen=True, eq=False)
class Results(Mapping[str, PolicyResult]):
    """Results by policy name: `results["fedtswi"].mean`; `.mean` and `.se` have all of them."""

    study: Study
    trials: int  # trials done; fewer than asked when interrupted
    interrupted: bool
    policies: dict[str, PolicyResult]
    covariance: Floats  # (P, P) of the policies' mean rewards
    provenance: Provenance | None = None  # None: they were not run

    def __getitem__(self, name: str) -> PolicyResult:
        return self.policies[name]

    def __iter__(self) -> Any:
        return iter(self.policies)

    def __len__(self) -> int:
        return len(self.policies)

    @property
    def mean(self) -> dict[str, float]:
        """Average reward per agent and slot over the horizon, by policy."""
        return {name: result.mean for name, result in self.policies.items()}

    @property
    def se(self) -> dict[str, float]:
        """Standard errors of `mean`."""
        return {name: result.se for name, result in self.policies.items()}

    def difference(self, first: str, second: str) -> tuple[float, float]:
        """Mean of first less second, and its standard error, paired trial by trial."""
        names = list(self.policies)
        i, j = names.index(first), names.index(second)
        spread = self.covariance[i, i] + self.covariance[j, j] - 2 * self.covariance[i, j]
        return self[first].mean - self[second].mean, float(np.sqrt(max(spread, 0.0)))

    def to_json(self) -> dict[str, Any]:
        """Table for JSON: summary, study and provenance.

        The study is null if it has a user's policy.
        """
        made = {} if self.provenance is None else self.provenance.to_json()
        study = _table_or_none(self.study)
        return {**self.summary(), "study": study, "seed": self.study.seed, **made}

    def summary(self) -> dict[str, Any]:
        """Numbers of each policy; an unknown one (the error of one trial) is null."""
        policies = {name: without_nan(result.summary()) for name, result in self.policies.items()}
        return {"trials": self.trials, "interrupted": self.interrupted, "policies": policies}

    def to_pandas(self, by: str = "policy") -> pd.DataFrame:
        """Make a data frame by "policy", "slot" or "episode"."""
        import pandas as pd

        tables: dict[str, Callable[[], list[dict[str, Any]]]] = {
            "policy": lambda: [{"policy": n, **r.summary()} for n, r in self.policies.items()],
            "slot": self.slot_rows,
            "episode": self.episode_rows,
        }
        if by not in tables:
            raise ValueError(f"by must be one of {', '.join(tables)}, got {by!r}")
        frame = pd.DataFrame(tables[by]())
        return frame.set_index("policy") if by == "policy" else frame

    def slot_rows(self) -> list[dict[str, Any]]:
        """Rows by policy and slot."""
        return [
            {
                "policy": name,
                "slot": slot + 1,
                "reward": float(r.slots.mean[slot]),
                "reward_se": float(r.slots.se[slot]),
                "regret": float(r.regret.mean[slot]),
                "regret_se": float(r.regret.se[slot]),
            }
            for name, r in self.policies.items()
            for slot in range(len(r.slots.mean))
        ]

    def episode_rows(self) -> list[dict[str, Any]]:
        """Rows by policy and episode."""
        rows = []
        for name, r in self.policies.items():
            for episode in range(len(r.episode_trials)):
                row: dict[str, Any] = {
                    "policy": name,
                    "episode": episode + 1,
                    "trials": int(r.episode_trials[episode]),
                }
                for key in ("length", "reward", "regret"):
                    curve = getattr(r, f"episode_{key}")
                    row[key] = float(curve.mean[episode])
                    row[f"{key}_se"] = float(curve.se[episode])
                for arm in range(len(self.study.arms)):
                    curve = r.episode_error
                    for suffix in ("mean", "se"):
                        column = f"error_arm{arm + 1}" + ("_se" if suffix == "se" else "")
                        value = np.nan if curve is None else getattr(curve, suffix)[episode, arm]
                        row[column] = float(value)
                rows.append(row)
        return rows

    def write(self, folder: Path) -> None:
        """Write results.json, slots.csv and episodes.csv."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "results.json", self.to_json())
        write_csv(folder / "slots.csv", self.slot_rows())
        write_csv(folder / "episodes.csv", self.episode_rows())


@dataclass(frozen=True, eq=False)
class SweepResults(Mapping[str, Results]):
    """Results by the label of a point: `results["M = 4, K = 2"]["fedtswi"].mean`."""

    sweep: Sweep
    points: dict[str, Results]  # fewer than the sweep's when interrupted

    def __getitem__(self, label: str) -> Results:
        return self.points[label]

    def __iter__(self) -> Any:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def trials(self) -> int:
        """Trials done, of all points."""
        return sum(results.trials for results in self.points.values())

    @property
    def interrupted(self) -> bool:
        """Whether some trials were not done."""
        return self.trials < self.sweep.n_trials

    def each(self) -> Iterator[tuple[Point, Results]]:
        """Iterate over the points that were run, with their results."""
        return zip(self.sweep.points, self.points.values(), strict=False)

    def rows(self) -> list[dict[str, Any]]:
        """Rows by point and policy: the point's number, its settings, the policy's numbers.

        A label that was given to the point follows its number.
        """
        given = self.sweep.labels is not None
        rows = []
        for number, (point, results) in enumerate(self.each(), start=1):
            at = {"point": number, **({"label": point.label} if given else {}), **point.settings}
            rows += [{**at, "policy": name, **r.summary()} for name, r in results.items()]
        return rows

    @property
    def provenance(self) -> Provenance | None:
        """Provenance of the sweep, with the seconds of all points."""
        each = [results.provenance for results in self.points.values()]
        made = [one for one in each if one is not None]
        return replace(made[-1], seconds=sum(one.seconds for one in made)) if made else None

    def to_json(self) -> dict[str, Any]:
        """Table for JSON: summaries of all points, sweep, study and provenance.

        The study is null if it has a user's policy.
        """
        points = [
            {"label": point.label, "settings": dict(point.settings), **results.summary()}
            for point, results in self.each()
        ]
        made = {} if self.provenance is None else self.provenance.to_json()
        return {
            "trials": self.trials,
            "interrupted": self.interrupted,
            "points": points,
            "sweep": self.sweep.swept(),
            "study": _table_or_none(self.sweep.study),
            "seed": self.sweep.study.seed,
            **made,
        }

    def to_pandas(self) -> pd.DataFrame:
        """Make a data frame with a row for each point and policy."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def write(self, folder: Path) -> None:
        """Write results.json, the rows as sweep.csv and sweep.json, and a folder for each point."""
        folder.mkdir(parents=True, exist_ok=True)
        rows = self.rows()
        write_json(folder / "results.json", self.to_json())
        write_json(folder / "sweep.json", [without_nan(row) for row in rows])
        write_csv(folder / "sweep.csv", rows)
        for number, results in enumerate(self.points.values(), start=1):
            results.write(folder / "points" / str(number))


def _table_or_none(study: Study) -> dict[str, Any] | None:
    try:
        return study.to_table()
    except StudyError:
        return None


def without_nan(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN, the one value that differs from itself, by None."""
    return {key: None if value != value else value for key, value in numbers.items()}


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, replaced as a whole."""
    text = json.dumps(value, indent=2, allow_nan=False)
    with replaced(path) as file:
        file.write(f"{text}\n".encode())


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file with a row for each mapping, of the first one's keys; NaN is left empty."""
    with replaced(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.DictWriter(lines, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows({k: "" if v != v else v for k, v in row.items()} for row in rows)
        lines.detach()  # flushes
