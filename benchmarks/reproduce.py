"""How long all of `make reproduce` takes, by the clock, with nothing kept from before."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.engine import PACKAGES, command_seconds
from benchmarks.records import Part, Row

__all__ = ["measure"]

MOST_SECONDS = 360.0


def measure(quick: bool, say: Callable[[str], None]) -> Part:
    """Once; quick: with a hundredth of the trials."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="rmab-bench-") as folder:
        out = Path(folder) / "paper"
        arguments = ["reproduce", "--out", str(out), *(("--trials", "100") if quick else ())]
        took = command_seconds(arguments, Path(folder) / "cache")
    row = Row.of("all of `make reproduce`", [took], unit="s", limit=MOST_SECONDS)
    say(f"{row.case}: {took:.0f} s")
    return Part.now({"reproduce": [row]}, PACKAGES, load)
