"""Arrays of MATLAB's files up to version 7, read by SciPy.

SciPy takes the type of an array's numbers as it finds it, and where that is damaged the process
ends. So the types are looked at first. A file of version 5 to 7 is a header of 128 bytes and
elements, each with a tag of its type and size; an array is an element that holds those of its
flags, its dimensions, its name and its numbers, and it may be packed.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator
from typing import IO, NamedTuple

import numpy as np

from rmab.errors import TraceError
from rmab.traces.readers.arrays import check_cells, chosen, opened

__all__ = ["read_mat"]

_HDF5 = b"\x89HDF\r\n\x1a\n"  # what version 7.3 is
_KINDS = frozenset(
    ["double", "single", "logical", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))]
)
_HEADER = 128
_ORDERS = {b"IM": "<", b"MI": ">"}  # of bytes, by the end of the header
_MATRIX, _PACKED = 14, 15  # types of elements
_NUMBERS = frozenset([1, 2, 3, 4, 5, 6, 7, 9, 12, 13])
_COMPLEX = 0x0800  # of an array's flags
_HEAD = 4096  # bytes of an array in which the type of its numbers is found


class _Content(NamedTuple):
    """Type of an array's numbers."""

    type: int
    is_complex: bool


def read_mat(path: str, asked: str | None) -> tuple[str, np.ndarray]:
    """Return name and array: the one asked for, or the only one that may be a recording."""
    with opened(path) as file:
        start = file.read(520)
        if b"MATLAB 7.3" in start[:_HEADER] or _HDF5 in (start[:8], start[512:520]):
            raise TraceError(f"{path}: MATLAB 7.3 is not read; save it with save(..., '-v7')")
        version_4 = 0 in start[:4]  # which has no such types
        contents = {} if version_4 else dict(_contents(file))
    from scipy.io import loadmat, whosmat

    try:  # a damaged file makes SciPy raise errors of many kinds
        held = {name: (shape, kind) for name, shape, kind in whosmat(path)}
    except Exception as error:
        raise TraceError(f"{path}: not a .mat file up to version 7: {error}") from None
    fit = [name for name, (shape, kind) in held.items() if kind in _KINDS and _fits(shape)]
    name = chosen(path, asked, list(held), fit)
    place = f"{path}: {name}"
    shape, kind = held[name]
    if kind not in _KINDS:
        raise TraceError(f"{place}: must be a full array of numbers, and is {kind}")
    check_cells(place, shape)
    if not version_4:
        content = contents.get(name, _Content(0, False))
        if content.is_complex:
            raise TraceError(f"{place}: IQ samples, complex numbers, are not read")
        if content.type not in _NUMBERS:
            raise TraceError(f"{place}: cannot be read: its numbers have no known type")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # SciPy warns of arrays that it could not read
            return name, np.asarray(loadmat(path, variable_names=[name])[name])
    except Exception as error:
        raise TraceError(f"{place}: cannot be read: {error}") from None


def _fits(shape: tuple[int, ...]) -> bool:
    """Return whether an array may be a recording; MATLAB's numbers have two axes, too."""
    return len(shape) in (2, 3) and shape[-2] > 1


def _contents(file: IO[bytes]) -> Iterator[tuple[str, _Content]]:
    """Yield the arrays of a file of version 5 to 7, by name, as far as it is sound."""
    file.seek(_HEADER - 2)
    order = _ORDERS.get(file.read(2), "<")
    while len(tag := file.read(8)) == 8:
        kind, size = struct.unpack(f"{order}II", tag)
        end = file.tell() + size
        head = file.read(min(size, _HEAD))
        try:
            if kind == _PACKED:
                head = zlib.decompressobj().decompress(head, _HEAD)
                (kind,) = struct.unpack_from(f"{order}I", head)
                head = head[8:]
            if kind == _MATRIX:
                yield _content(head, order)
        except (struct.error, zlib.error):
            return
        file.seek(end)


def _content(head: bytes, order: str) -> tuple[str, _Content]:
    """Return the name of an array and the type of its numbers from its first bytes."""
    (flags,) = struct.unpack_from(f"{order}I", head, 8)
    place = 16
    for _ in ("dimensions", "name"):
        kind, size = struct.unpack_from(f"{order}II", head, place)
        if kind >> 16:  # a small element: its size in the upper half, and its data in the tag
            data, place = head[place + 4 : place + 4 + (kind >> 16)], place + 8
        else:
            data, place = head[place + 8 : place + 8 + size], place + 8 + -(-size // 8) * 8
    (kind,) = struct.unpack_from(f"{order}I", head, place)
    small = kind >> 16
    return data.decode("latin-1"), _Content(
        kind & 0xFFFF if small else kind, bool(flags & _COMPLEX)
    )
