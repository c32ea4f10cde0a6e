"""Persistent cache of compiled programs, shared by processes.

JAX keeps the programs in RMAB_CACHE, else in the user's cache folder ($XDG_CACHE_HOME/rmab or
~/.cache/rmab). RMAB_CACHE set to nothing or to `off` switches the cache off. Where it is not set, a
folder that JAX was given in its own way (JAX_COMPILATION_CACHE_DIR) stays in use.

Processes may share the folder. An entry is named by everything that its program depends on, and
written once. JAX writes it in place, though: a process that is killed leaves a torn entry, which no
other process would replace. So torn entries are removed before the cache is used, each checked
once. A process that reads an entry while it is being written compiles for itself.

A program is for the kind of processor it was compiled on. A folder may be shared by several
machines, so each kind, and each version of JAX, has a folder of its own in it.

Agents never import this: they load no JAX.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import time
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["cache_folder", "drop_traces", "keep_compiled", "kept_compiled"]

VARIABLE = "RMAB_CACHE"
MOST_BYTES = 2**30  # size of all entries, beyond which the oldest are removed
_ENTRIES = "*-cache"
_MENDED = "mended"  # a file as old as the last check of the entries
_SLACK_SECONDS = 60.0  # largest difference of the clocks of a file system and a process
# All programs are kept: many small programs together take as long to compile as some large ones.
_OPTIONS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
_FOLDER = "jax_compilation_cache_dir"  # option of JAX
_PROCESSOR = ("vendor_id", "cpu family", "model", "flags", "Features")  # lines of /proc/cpuinfo


def cache_folder() -> Path | None:
    """Return the folder of compiled programs, None where the cache is off."""
    name = os.environ.get(VARIABLE)
    if name is not None:
        return None if name.strip().lower() in ("", "off") else Path(name).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME", "")
    if Path(home).is_absolute():
        return Path(home) / "rmab"
    try:
        return Path.home() / ".cache" / "rmab"
    except RuntimeError:  # a user without a home
        return None


def drop_traces() -> None:
    """Free the memory that compilation has left: gigabytes after hundreds of programs.

    Programs that are referenced stay; others are traced again, and read from the folder.
    """
    import jax

    jax.clear_caches()  # type: ignore[no-untyped-call]  # untyped in JAX
    with contextlib.suppress(OSError, AttributeError):  # of other C libraries than glibc
        ctypes.CDLL(None).malloc_trim(0)  # which keeps what threads have freed


@contextmanager
def kept_compiled() -> Iterator[None]:
    """Keep compiled programs within the block; afterwards JAX has its earlier settings."""
    import jax

    before = {name: jax.config.values[name] for name in (_FOLDER, *_OPTIONS)}
    keep_compiled()
    changed = jax.config.values[_FOLDER] != before[_FOLDER]
    try:
        yield
    finally:
        if changed:
            _configure(before)


def keep_compiled() -> Path | None:
    """Have JAX keep compiled programs from now on and return the folder, None without a cache.

    A folder that cannot be written is no error: programs are then compiled each time.
    """
    import jax

    folder = cache_folder()
    if folder is None:
        return None
    of_jax = jax.config.values[_FOLDER]
    if of_jax and VARIABLE not in os.environ:
        return Path(of_jax)
    place = folder / "compiled" / _kind()
    if of_jax == str(place):
        return place
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Its programs will be run, so it must belong to this user.
        if place.stat().st_uid != os.geteuid() or not os.access(place, os.W_OK | os.X_OK):
            return None
        _mend(place)
        _limit(folder / "compiled")
    except OSError:
        return None
    # A program that cannot be read or kept is compiled, which needs no warning.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation")
    _configure({_FOLDER: str(place), **_OPTIONS})
    return place


def _configure(options: dict[str, Any]) -> None:
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    for name, value in options.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]  # JAX has no types there
    compilation_cache.reset_cache()  # something may have been compiled with others before


def _kind() -> str:
    """Return a name for the machines and versions that can use the same entries."""
    known = [platform.machine(), *(version(name) for name in ("jax", "jaxlib"))]
    known += [name for name in ("compression.zstd", "zstandard") if _is_there(name)]
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if not key.strip():
                break  # the next processor
            if key.strip() in _PROCESSOR:
                known.append(" ".join(sorted(value.split())))
    else:
        known.append(platform.processor())
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]


def _is_there(module: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        return find_spec(module) is not None
    return False


def _mend(place: Path) -> None:
    """Remove torn entries among those written since the last check."""
    mended, begun, since = place / _MENDED, time.time() - _SLACK_SECONDS, 0.0
    with contextlib.suppress(FileNotFoundError):
        since = mended.stat().st_mtime
    for entry in place.glob(_ENTRIES):
        with contextlib.suppress(FileNotFoundError):  # another process may do the same
            if entry.stat().st_mtime >= since and not _is_whole(entry.read_bytes()):
                entry.unlink()
    mended.touch()
    os.utime(mended, (begun, begun))


def _is_whole(entry: bytes) -> bool:
    """Whether an entry compressed by JAX can be read to its end."""
    if not _is_there("compression.zstd") and not _is_there("zstandard"):
        try:
            zlib.decompress(entry)
        except zlib.error:
            return False
        return True
    from jax._src.compilation_cache import decompress_executable  # as the installed JAX reads it

    try:
        decompress_executable(entry)
    except Exception:
        return False
    return True


def _limit(folder: Path) -> None:
    """Remove the oldest entries, of all kinds, beyond the total size."""
    entries = []
    for entry in folder.rglob(_ENTRIES):
        with contextlib.suppress(FileNotFoundError):
            known = entry.stat()
            entries.append((known.st_mtime, known.st_size, entry))
    total = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries):
        if total <= MOST_BYTES:
            return
        total -= size
        entry.unlink(missing_ok=True)
