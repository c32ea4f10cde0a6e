"""How lines are drawn: a policy has one label, colour, dash and marker in every drawing.

The colours (Okabe and Ito, Tol) can be told apart by the colour-blind. Learners have solid lines
with markers, policies that know the dynamics have dashes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rmab.policies.settings import KNOWN, LEARNERS

__all__ = ["STYLE", "LineStyle", "label", "line_styles", "spare_style"]

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
class LineStyle:
    """How a line is named and drawn."""

    label: str
    colour: str
    dash: Dash = "-"
    marker: str = ""


_LABELS_AND_COLOURS = {
    "fedtswi": ("FedTSWI", "#d55e00"),
    "fedts-myopic": ("FedTS-Myopic", "#0072b2"),
    "feducb-wi": ("FedUCB-WI", "#e69f00"),
    "feducb-myopic": ("FedUCB-Myopic", "#56b4e9"),
    "fed1-ucb": ("Fed1-UCB", "#cc79a7"),
    "fedtswi-gap": ("FedTSWI-gap", "#117733"),
    "fedts-myopic-gap": ("FedTS-Myopic-gap", "#004488"),
    "feducb-wi-gap": ("FedUCB-WI-gap", "#aa4499"),
    "fedts-lookahead-gap": ("FedTS-Lookahead-gap", "#661100"),
    "optimal": ("Optimal", "#000000"),
    "whittle": ("WI policy", "#009e73"),
    "myopic": ("Myopic policy", "#332288"),
    "lookahead": ("Lookahead policy", "#44aa99"),
    "fixed": ("Fixed selection", "#7f7f7f"),
    "fixed-best": ("Fixed selection, best pay", "#882255"),
    "random": ("Random selection", "#999933"),
}
_MARKERS = ("o", "s", "^", "D", "P", "X", "<", "*", "v", "h", ">", "d")  # of learners in order
_DASHES: tuple[Dash, ...] = (  # of policies that know the dynamics, in order
    "--",
    ":",
    (0, (5, 1)),
    "-.",
    (0, (6, 2, 1, 2, 1, 2)),
    (0, (3, 1, 1, 1)),
    (0, (1, 2)),
)
# For lines that are no built-in policy: variants, arms, a user's policies.
_SPARE = (
    ("#aa3377", "P"),
    ("#4477aa", "s"),
    ("#228833", "^"),
    ("#997700", "D"),
    ("#ee6677", "v"),
    ("#66ccee", "X"),
)


def _described(name: str) -> tuple[str, str] | None:
    """The label and the colour of a built-in policy; None for any other name."""
    return _LABELS_AND_COLOURS.get(name)


def label(name: str) -> str:
    """What the paper calls a policy; a user's keeps its name."""
    described = _described(name)
    return name if described is None else described[0]


def _line_style(name: str) -> LineStyle | None:
    """How a built-in policy is drawn; None for any other name."""
    described = _described(name)
    if described is None:
        return None
    if name in LEARNERS:
        return LineStyle(*described, marker=_MARKERS[LEARNERS.index(name) % len(_MARKERS)])
    return LineStyle(*described, dash=_DASHES[KNOWN.index(name) % len(_DASHES)])


def spare_style(text: str, place: int) -> LineStyle:
    """The style of a line that is no built-in policy, by its place among such lines."""
    colour, marker = _SPARE[place % len(_SPARE)]
    return LineStyle(text, colour, marker=marker)


def line_styles(names: Iterable[str]) -> dict[str, LineStyle]:
    """The style of each of these policies."""
    listed = list(names)
    own = [name for name in listed if _described(name) is None]
    return {name: _line_style(name) or spare_style(name, own.index(name)) for name in listed}
