"""Check the shapes of arrays that annotations of rmab declare, with jaxtyping and beartype.

`check` is the type checker of jaxtyping's import hook (`pytest_configure` in conftest.py). It looks
at arrays only: other annotations are mypy's, and tests pass wrong values to read the errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from beartype import beartype
from jaxtyping import AbstractArray, install_import_hook

PACKAGES = tuple(
    f"rmab.{name}" for name in ("learning", "linalg", "markov", "model", "planning", "rng")
)


def install() -> None:
    """Check the packages that are imported from now on."""
    install_import_hook(PACKAGES, "tests.shapes.check")


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its annotated arrays checked, itself if it has none."""
    hints = function.__annotations__
    function.__annotations__ = {name: hint for name, hint in hints.items() if _has_shape(hint)}
    return beartype(function) if function.__annotations__ else function


def _has_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(_has_shape(part) for part in get_args(hint))
