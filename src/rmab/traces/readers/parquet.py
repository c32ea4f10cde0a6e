"""Parquet files, which are tables like CSV files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from rmab.errors import TraceError
from rmab.traces.readers.arrays import opened
from rmab.traces.readers.options import RecordingOptions
from rmab.traces.readers.tables import find_columns, read_rows
from rmab.traces.samples import Samples

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["read_parquet"]


def read_parquet(path: str, options: RecordingOptions) -> Samples:
    """Return the samples of a .parquet file, a table like a CSV file, if pandas can read it."""
    import pandas as pd

    with opened(path):
        pass
    try:
        table = pd.read_parquet(path)
    except ImportError:
        raise TraceError(
            f"{path}: pandas reads .parquet with pyarrow or fastparquet, and neither is installed; "
            "install one, or save as .csv"
        ) from None
    except Exception as error:  # whatever its engine raises at a file that is none
        raise TraceError(f"{path}: not a .parquet file that pandas reads: {error}") from None
    if table.index.name is not None:  # often the times
        table = table.reset_index()
    columns = find_columns(f"{path}: line 1", map(str, table.columns), options)
    texts = {i: list(_as_text(table.iloc[:, i])) for i in range(table.shape[1])}
    lines = np.arange(len(table)) + 2
    return read_rows(path, columns, [(lines, pd.DataFrame(texts, dtype=object))], options)


def _as_text(column: pd.Series[Any]) -> Iterator[str]:
    """Yield the cells of a column as a CSV file would have them."""
    # NaN stays, to be counted with those of other files; what has no value is empty.
    keeps_nan = isinstance(column.dtype, np.dtype) and column.dtype.kind == "f"
    # NumPy writes single precision with the digits it has.
    cells = column.to_numpy() if keeps_nan else column.astype(object)
    for cell, missing in zip(cells, column.isna(), strict=True):
        if missing and not keeps_nan:
            yield ""
        elif isinstance(cell, bool | np.bool_):
            yield str(int(cell))
        elif hasattr(cell, "total_seconds"):
            yield repr(cell.total_seconds())
        else:
            yield cell.isoformat() if hasattr(cell, "isoformat") else str(cell)
