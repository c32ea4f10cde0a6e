"""What `rmab reproduce` wrote: verdicts on claims, and regrets beyond the paper."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.documents.blocks import Asked, Block, Measurement, NotFound, Page
from benchmarks.documents.kept import Record
from benchmarks.documents.words import bare, compared, listed, rounded, table

from rmab.experiments.registry import figures

__all__ = ["DEVIATIONS", "PAPER_RUN", "claims_table", "taken"]

PAPER_RUN = "paper"  # the record
_KEPT = ("claim", "measured", "verdict")  # of a claim
_PLAYS = ("K = 1", "K = 2")
_MARKS = {
    "held": "held",
    "exceeded": "exceeded",
    "contradicted": "**contradicted**",
    "undecided": "undecided",
    "noted": "",
}


def taken(folder: Path, names: Sequence[str], command: str) -> Record:
    """A record of what `rmab reproduce` wrote into a folder."""
    path = folder / "claims.json"
    if not path.exists():
        raise NotFound(f"{path} is not there: `{command}` writes it")
    written = json.loads(path.read_text(encoding="utf-8"))
    missing = [name for name in names if name not in written]
    if missing:
        raise NotFound(f"{path} has no {', '.join(missing)}: `{command}` runs all that is needed")
    kept = {name: written[name] for name in names}
    made = [each["made"] for each in kept.values() if each.get("made")]
    if not made:
        raise NotFound(f"{path} is of an earlier version: `{command}` writes it anew")
    trials = sorted({run["trials"] for each in kept.values() for run in each["variants"].values()})
    return Record(
        command=command,
        version=made[0]["versions"]["rmab"],
        date=made[0]["time"]["begun"][:10],
        device=made[0]["device"],
        seed=kept[names[0]]["seed"],
        trials=trials[0] if len(trials) == 1 else f"{trials[0]:,} to {trials[-1]:,} trials",
        seconds=sum(each["seconds"] for each in kept.values()),
        data={
            "figures": {
                name: {
                    "claims": [{key: claim[key] for key in _KEPT} for claim in each["claims"]],
                    **{key: each[key] for key in ("exact", "fits", "variants")},
                }
                for name, each in kept.items()
            },
            "series": {name: _series(folder / f"{name}-series.csv") for name in names},
        },
    )


def _series(path: Path) -> dict[str, list[float]]:
    """The columns of a figure's computed curves; none where it has none."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = rows[0] if rows else {}
    return {name: [float(row[name] or "nan") for row in rows] for name in columns}


def _paper(asked: Asked) -> Record:
    assert asked.folder is not None
    found = taken(asked.folder, [each.name for each in figures()], "make reproduce")
    asked.say(f"{len(found.data['figures'])} figures")
    for each in found.data["figures"]:
        if not each.startswith("regret-"):
            found.data["series"].pop(each)
    return found


# ------------------------------------------------------------------------------------------- blocks


def claims_table(found: Mapping[str, Any], names: Sequence[str]) -> str:
    """Claims of figures, what was measured, and the verdicts."""
    labels = {each.name: each.label for each in figures(names)}
    rows = [
        [labels[name], claim["claim"], bare(claim["measured"]), _MARKS[claim["verdict"]]]
        for name in names
        for claim in found["figures"][name]["claims"]
    ]
    return table(["figure", "claim", "measured", "verdict"], rows)


def _counted(found: Mapping[str, Any], names: Sequence[str]) -> str:
    verdicts = [c["verdict"] for name in names for c in found["figures"][name]["claims"]]
    counts = Counter(verdicts)
    words = [f"{counts[word]} {word}" for word in _MARKS if counts[word]]
    return f"{len(verdicts)} claims: {listed(words)}"


def _of_section(paper: bool) -> list[str]:
    return [each.name for each in figures() if (each.section == "paper") == paper]


def claims_of_paper(record: Record) -> str:
    """The paper's claims with their verdicts."""
    names = _of_section(True)
    return f"{_counted(record.data, names)}.\n\n{claims_table(record.data, names)}"


def claims_beyond(record: Record) -> str:
    """Claims beyond the paper."""
    names = _of_section(False)
    return f"{_counted(record.data, names)}.\n\n{claims_table(record.data, names)}"


def further_claims(record: Record) -> str:
    """Claims that are no figure's, by the regrets beyond the paper."""
    series, figures_ = record.data["series"], record.data["figures"]
    agents = series["regret-agents"]
    four = agents["M"].index(4)
    shares = []
    for k in _PLAYS:
        name = f"share of fedtswi-gap, {k}"
        shares.append(f"{rounded((agents[name][four], agents[f'{name}, se'][four]))} ({k})")
    horizon = series["regret-horizon"]
    first = min(range(len(horizon["T"])), key=lambda i: abs(horizon["T"][i] - 1000))
    slots = horizon["T"][first]
    falls = []
    for k in _PLAYS:
        name = f"regret of fedtswi, {k}"
        early = horizon[name][first] / slots, horizon[f"{name}, se"][first] / slots
        run = figures_["regret-horizon"]["variants"][k]["policies"]
        known, learnt = run["whittle"], run["fedtswi"]
        late = (
            known["final"] - learnt["final"],
            (known["final_se"] ** 2 + learnt["final_se"] ** 2) ** 0.5,
        )
        word = compared(*late)
        clear = "is clearly above 0" if word == "more" else "is not told apart from 0"
        falls.append(
            f"{k}: from {rounded(early)} over the first {slots:,.0f} slots to {rounded(late)} over "
            "the "
            f"last tenth of {max(horizon['T']):,.0f}, which {clear}"
        )
    rows = [
        [
            "Sections I and IV-B",
            "samples are valid only when an arm is selected twice consecutively, a constant factor "
            "of the "
            "regret",
            "with observations at any gap the regret at T = 1,000, M = 4 is this share of "
            "FedTSWI's: "
            f"{listed(shares)}",
        ],
        ["Remark 1", "regret per slot goes to 0", f"FedTSWI's, {'; '.join(falls)}"],
    ]
    return table(["in the paper", "claim", "measured"], rows)


def known_dynamics(record: Record) -> str:
    """Where others beat Whittle with known dynamics, exactly."""
    ahead: dict[str, list[str]] = {"myopic": [], "depth 2": []}
    for label, values in record.data.items():
        for name, places in ahead.items():
            if label.startswith("the paper's") and values[name] > values["whittle"]:
                places.append(label.removeprefix("the paper's, "))
    return (
        f"With known dynamics, by exact values on the paper's arms, myopic earns more than Whittle "
        f"at {listed(ahead['myopic'])}, and a lookahead of two slots at "
        f"{listed(ahead['depth 2'])} ([lookahead.md](lookahead.md) has the values). So regret "
        "against Whittle may be negative."
    )


DEVIATIONS = Page(
    "deviations.md",
    blocks={
        "claims-paper": Block(claims_of_paper, (PAPER_RUN,)),
        "claims-beyond": Block(claims_beyond, (PAPER_RUN,)),
        "claims-further": Block(further_claims, (PAPER_RUN,)),
        "known-dynamics": Block(known_dynamics, ("lookahead-exact",)),
    },
    measurements={PAPER_RUN: Measurement(_paper, minutes=0, folder="results/paper")},
)
