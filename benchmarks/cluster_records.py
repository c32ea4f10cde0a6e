"""The records of a Ray cluster, from what `benchmarks.cluster` measures."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from benchmarks.records import NotHere, Part, Row

__all__ = ["measure", "part_of"]

PACKAGES = ("numpy", "jax", "jaxlib", "ray")


def measure(quick: bool, say: Callable[[str], None]) -> Part:
    """Workers beside threads, and the cost of a block."""
    load = os.getloadavg()[0]
    if find_spec("ray") is None:  # imported later: Ray reads once whether there is a token
        raise NotHere("ray is not installed")
    module: Any = importlib.import_module("benchmarks.cluster")
    return part_of(module.measured(quick, say), load)


def part_of(found: Mapping[str, Any], load: float) -> Part:
    """The same as rows, and what follows for many workers as notes."""
    rounds, more = int(found["rounds"]), {"trials": found["trials"]}

    def row(case: str, value: float) -> Row:
        return Row(case, value, value, value, rounds, sense="least", more=more)

    beside = {int(count): value for count, value in found["against_threads"].items()}
    rows = [
        row("2 threads over 2 times one", found["efficiency_threads"]),
        row("2 workers over 2 times one", found["efficiency_workers"]),
        *(row(f"workers over threads, {count} of each", beside[count]) for count in sorted(beside)),
    ]
    many = found["many"]
    return Part.now(
        {"cluster": rows},
        PACKAGES,
        load,
        workers=many["workers"],
        block_seconds=many["seconds_per_block"],
        merge_seconds=found["merge_seconds_per_block"],
        block_bytes=found["bytes_per_block"],
    )
