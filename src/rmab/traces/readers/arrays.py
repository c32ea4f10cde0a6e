"""Arrays from untrusted files: .npy, and .npz, a zip file of them.

An array's header is read first. Pickled arrays, arrays of more than 2^31 cells, and headers that
promise more than their file can hold are refused, so a file of a few kilobytes cannot fill the
memory.
"""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from rmab.errors import TraceError, is_lasting, system_reason

__all__ = [
    "MAX_CELLS",
    "ArrayFile",
    "check_cells",
    "chosen",
    "fits_memory",
    "opened",
    "read_npy",
]

MAX_CELLS = 2**31
_SUFFIX = ".npy"
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def check_cells(place: str, shape: tuple[int, ...]) -> None:
    """Refuse more cells than rmab reads."""
    if math.prod(shape) > MAX_CELLS:
        raise TraceError(f"{place}: shape {shape} has more than 2^31 cells")


def chosen(path: str, asked: str | None, names: list[str], fit: list[str]) -> str:
    """Return the array of a file that is asked for, or the only one that may be a recording."""
    if asked is not None:
        if asked not in names:
            raise TraceError(f"{path}: no array {asked!r}; there are {', '.join(names) or 'none'}")
        return asked
    if len(fit) != 1:
        found = f"of {', '.join(fit)}" if fit else "of which there is none"
        raise TraceError(
            f"{path}: --variable must name the array of numbers with two or three axes, {found}"
        )
    return fit[0]


@contextmanager
def fits_memory(path: str | PathLike[str]) -> Iterator[None]:
    """Turn a lack of memory into an error that names the file."""
    try:
        yield
    except MemoryError:
        raise TraceError(f"{path}: does not fit into memory") from None


@contextmanager
def opened(path: str | PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file of bytes; every error of the system names it."""
    try:
        file = Path(path).open("rb")  # noqa: SIM115  # closed below; here only its opening is guarded
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        reason = system_reason(error) if isinstance(error, OSError) else error
        raise TraceError(f"{path}: cannot be read: {reason}") from None
    with file:
        yield file


def read_npy(path: str | PathLike[str]) -> np.ndarray:
    """Return the array of a .npy file."""
    with opened(path) as file, _damage(f"{path}: not a .npy file"):
        return _read(str(path), file, Path(path).stat().st_size)


class ArrayFile:
    """Arrays of a .npz file, each read when it is asked for. Used as a context."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = path
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            file = opening.enter_context(opened(self._path))
            with _damage(f"{self._path}: not a .npz file"):
                self._zip = opening.enter_context(zipfile.ZipFile(file))
            self._open = opening.pop_all()
        members = (name for name in self._zip.namelist() if name.endswith(_SUFFIX))
        self.names = [name.removesuffix(_SUFFIX) for name in members]
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.close()

    def read(self, name: str) -> np.ndarray:
        """Return an array by its name."""
        place = f"{self._path}: {name}"
        info = self._zip.getinfo(name + _SUFFIX)
        with _damage(f"{place}: cannot be read"), self._zip.open(info) as file:
            return _read(place, file, info.file_size)

    def is_numbers(self, name: str, kinds: str = "biuf") -> bool:
        """Return whether an array has numbers and two or three axes, by its header.

        kinds: NumPy's letters of types; "O" stands for pickled objects.
        """
        place = f"{self._path}: {name}: cannot be read"
        with _damage(place), self._zip.open(name + _SUFFIX) as file:
            shape, kind = _header(file)
        check_cells(f"{self._path}: {name}", shape)
        return len(shape) in (2, 3) and kind.kind in kinds


@contextmanager
def _damage(what: str) -> Iterator[None]:
    """Turn errors of NumPy and zipfile at a damaged file into one that names it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that Python 2 wrote
            yield
    except (TraceError, MemoryError):
        raise
    except OSError as error:  # a place outside of the file, say
        if not is_lasting(error):
            raise
        raise TraceError(f"{what}: {system_reason(error)}") from None
    except Exception as error:
        raise TraceError(f"{what}: {error}") from None


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and type of an array's header; the file is then at its data."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the .npy format is not read")
    shape, _, kind = _HEADERS[version](file)
    return shape, kind


def _read(place: str, file: IO[bytes], size: int) -> np.ndarray:
    """Return the array in a file of `size` bytes, if its header promises a permitted one."""
    shape, kind = _header(file)
    if kind.hasobject:
        raise TraceError(f"{place}: pickled arrays are not read; save plain numbers or text")
    check_cells(place, shape)
    if any(n < 0 for n in shape) or math.prod(shape) * kind.itemsize > size:
        raise TraceError(f"{place}: shape {shape} of {kind} does not fit into its {size} bytes")
    file.seek(0)
    array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array
