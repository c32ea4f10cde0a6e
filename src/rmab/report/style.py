"""How lines look: a policy has one name, colour, dash and marker wherever it is drawn.

The colours (Okabe and Ito, Tol) are told apart by the colour-blind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["LOOKS", "STYLE", "Look", "label", "looks_of", "spare"]

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the layout is the same everywhere
    "font.size": 11,
    "axes.labelsize": 11,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.fonttype": "none",  # text stays text: it can be selected and read aloud
    "text.parse_math": False,  # a policy's name may hold a dollar sign
}

Dash = str | tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Look:
    """How a line is named and drawn."""

    label: str
    colour: str
    dash: Dash = "-"
    marker: str = ""


# Learners have whole lines with markers, policies that know the dynamics have dashes.
LOOKS = {
    "fedtswi": Look("FedTSWI", "#d55e00", "-", "o"),
    "fedts-myopic": Look("FedTS-Myopic", "#0072b2", "-", "s"),
    "feducb-wi": Look("FedUCB-WI", "#e69f00", "-", "^"),
    "feducb-myopic": Look("FedUCB-Myopic", "#56b4e9", "-", "D"),
    "fed1-ucb": Look("Fed1-UCB", "#cc79a7", "-", "v"),
    "fedtswi-gap": Look("FedTSWI-gap", "#117733", "-", "P"),
    "fedts-myopic-gap": Look("FedTS-Myopic-gap", "#004488", "-", "X"),
    "feducb-wi-gap": Look("FedUCB-WI-gap", "#aa4499", "-", "<"),
    "fedts-lookahead-gap": Look("FedTS-Lookahead-gap", "#661100", "-", "*"),
    "optimal": Look("Optimal", "#000000", "-."),
    "whittle": Look("WI policy", "#009e73", "--"),
    "myopic": Look("Myopic policy", "#332288", ":"),
    "lookahead": Look("Lookahead policy", "#44aa99", (0, (5, 1))),
    "fixed": Look("Fixed selection", "#7f7f7f", (0, (6, 2, 1, 2, 1, 2))),
    "fixed-best": Look("Fixed selection, best pay", "#882255", (0, (3, 1, 1, 1))),
    "random": Look("Random selection", "#999933", (0, (1, 2))),
}
# For lines without a look of their own: variants, arms, a user's policies.
SPARE = (
    ("#aa3377", "P"),
    ("#4477aa", "s"),
    ("#228833", "^"),
    ("#997700", "D"),
    ("#ee6677", "v"),
    ("#66ccee", "X"),
)


def label(name: str) -> str:
    """What the paper calls a policy; a user's keeps its name."""
    return LOOKS[name].label if name in LOOKS else name


def spare(text: str, place: int) -> Look:
    """The look of a line that has none of its own, by its place among such lines."""
    colour, marker = SPARE[place % len(SPARE)]
    return Look(text, colour, "-", marker)


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """The look of each of these policies."""
    listed = list(names)
    own = [name for name in listed if name not in LOOKS]
    return {name: LOOKS.get(name) or spare(name, own.index(name)) for name in listed}
