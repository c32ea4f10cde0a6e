"""Objects by name, of this project and of other packages.

Other packages add theirs through entry points (`importlib.metadata`) of a group; an entry point's
name is the object's name. An object is imported when it is asked for. docs/extending.md has an
example for each group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from rmab.errors import RmabError, StudyError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Catalogue", "load"]

T = TypeVar("T")


def load(place: str) -> Any:
    """Return the object at "module:name"."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


class Catalogue(Mapping[str, T]):
    """Objects by name; names of other packages come last, in alphabetical order.

    Parameters
    ----------
    own : mapping
        The project's objects, or their places as "module:name".
    group : str
        Group of entry points; "": none.
    rule : str
        Description of an object, for those that `allowed` refuses.
    allowed : callable
        Predicate of another package's object.
    error : type
        Raised for faults of other packages, in one line that names the package.
    """

    def __init__(
        self,
        own: Mapping[str, T | str],
        group: str = "",
        rule: str = "callable",
        allowed: Callable[[Any], bool] = callable,
        error: type[RmabError] = StudyError,
    ) -> None:
        self._own, self._group, self._error = dict(own), group, error
        self._rule, self._allowed = rule, allowed
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._loaded:
            if name in self._own:
                own = self._own[name]
                self._loaded[name] = load(own) if isinstance(own, str) else own
            else:
                self._loaded[name] = self._foreign(self._points[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from self._points

    def __len__(self) -> int:
        return len(self._own) + len(self._points)

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._points

    @contextmanager
    def used(self, name: str) -> Iterator[None]:
        """Name the package of an object in whose code an error arises."""
        try:
            yield
        except RmabError:
            raise
        except Exception as error:
            if name in self._own:
                raise
            raise self._fault(self._points[name], _told(error)) from None

    @cached_property
    def _points(self) -> Mapping[str, EntryPoint]:
        """Entry points of other packages by name."""
        if not self._group:
            return {}
        from importlib.metadata import entry_points  # which takes a tenth of a second

        points: dict[str, EntryPoint] = {}
        for point in sorted(entry_points(group=self._group), key=lambda each: each.name):
            if point.name in self._own or point.name in points:
                owner = _package(points[point.name]) if point.name in points else "rmab"
                raise self._fault(point, f"the name is taken by {owner}")
            points[point.name] = point
        return points

    def _foreign(self, point: EntryPoint) -> T:
        try:
            loaded: T = point.load()
        except Exception as error:  # another package's code may raise anything
            raise self._fault(point, f"cannot be loaded: {_told(error)}") from None
        if not self._allowed(loaded):
            raise self._fault(point, f"must be {self._rule}, got {type(loaded).__name__}")
        return loaded

    def _fault(self, point: EntryPoint, why: str) -> RmabError:
        return self._error(
            f"package {_package(point)}: entry point {point.name!r} of {self._group}: {why}"
        )


def _package(point: EntryPoint) -> str:
    return "of unknown name" if point.dist is None else point.dist.name


def _told(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
