"""All pages whose numbers come from records."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.documents import (
    arena,
    lookahead,
    observations,
    privacy,
    reproduced,
    security,
    traces,
)
from benchmarks.documents.blocks import Measurement, Page

__all__ = ["MEASUREMENTS", "PAGES"]

PAGES: tuple[Page, ...] = (
    lookahead.PAGE,
    observations.PAGE,
    reproduced.DEVIATIONS,
    arena.PAGE,
    traces.PAGE,
    privacy.PAGE,
    security.PAGE,
)


def _all() -> dict[str, Measurement]:
    found: dict[str, Measurement] = {}
    for page in PAGES:
        twice = set(found) & set(page.measurements)
        assert not twice, f"{page.name}: {', '.join(twice)} is measured for another page, too"
        found.update(page.measurements)
    return found


MEASUREMENTS: Mapping[str, Measurement] = _all()
