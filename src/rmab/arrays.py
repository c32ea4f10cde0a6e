"""Array types for annotations: element types for mypy, shapes for readers and tests.

    def limit(P: Float[FloatArray, "S S"]) -> Float[FloatArray, "S S"]: ...

The string names the axes, as jaxtyping reads it: a letter has one size throughout a call, "*B" is
any number of axes, "_" any size, "#N" N or 1; a string that is also an expression begins with a
space, " N". The usual letters:

    S states   N arms   M agents   R trials   I information states   C kinds of pairs

`Array` is an array of NumPy or JAX; modules that need JAX annotate with `jax.Array`. Outside tests
a shape is only a note (`typing.Annotated`), nothing is checked and jaxtyping is not imported. Tests
import jaxtyping first, so that beartype checks the shapes (`tests/shapes.py`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if not TYPE_CHECKING and "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Real, Shaped, UInt32
    from jaxtyping import Integer as Int
else:
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Int
    from typing import Annotated as Real
    from typing import Annotated as Shaped
    from typing import Annotated as UInt32

__all__ = [
    "Array",
    "Bool",
    "BoolArray",
    "Float",
    "FloatArray",
    "Int",
    "IntArray",
    "Real",
    "Shaped",
    "SingleArray",
    "UInt32",
    "WordArray",
]

Array = Any  # of NumPy or JAX: both follow the array API and share no static type
FloatArray = npt.NDArray[np.float64]
SingleArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
WordArray = npt.NDArray[np.uint32]
