"""The twin of a trace: first-order chains with the fitted dynamics, the same segments and holes.

A twin is what the trace would be if the model were true. Where trace and twins differ, in a picture
or in what a policy earns, the model misses something that matters there. Arms of a twin are
independent, begin every segment at their stationary law, and move in holes too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rmab.traces.rules import by_segment, fitted_dynamics
from rmab.traces.trace import Trace

__all__ = ["N_TWINS", "twins_of"]

N_TWINS = 20
_MAX_CELLS = 1 << 26  # of twins that are made together
