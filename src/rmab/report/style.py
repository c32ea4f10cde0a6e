"""Line styles: a policy has one label, colour, dash and marker in every drawing.

Built-in policies have theirs in the registry; all others take one of a few spare styles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rmab.policies.registry import POLICIES, Entry

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
    """Label and style of a line."""

    label: str
    colour: str
    dash: Dash = "-"
    marker: str = ""


# For lines that are no built-in policy: variants, arms, a user's policies.
_SPARE = (
    ("#aa3377", "P"),
    ("#4477aa", "s"),
    ("#228833", "^"),
    ("#997700", "D"),
    ("#ee6677", "v"),
    ("#66ccee", "X"),
)


def label(name: str) -> str:
    """Label of a policy, the paper's if it has one; a user's keeps its name."""
    return POLICIES[name].label if name in POLICIES else name


def spare_style(text: str, place: int) -> LineStyle:
    """The style of a line that is no built-in policy, by its place among such lines."""
    colour, marker = _SPARE[place % len(_SPARE)]
    return LineStyle(text, colour, marker=marker)


def line_styles(names: Iterable[str]) -> dict[str, LineStyle]:
    """The style of each of these policies, from the registry where it is a built-in one."""
    listed = list(names)
    own = [name for name in listed if name not in POLICIES]
    return {
        name: spare_style(name, own.index(name)) if name in own else _built_in(POLICIES[name])
        for name in listed
    }


def _built_in(entry: Entry) -> LineStyle:
    return LineStyle(entry.label, entry.colour, entry.dash, entry.marker)
