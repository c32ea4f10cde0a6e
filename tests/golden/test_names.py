"""The public names, and of what kind each is."""

import inspect

import rmab
from tests.golden.recording import compare


def _kind(name: str) -> str:
    found = getattr(rmab, name)
    if inspect.isclass(found):
        return "exception" if issubclass(found, Exception) else "class"
    if inspect.isfunction(found) or callable(found):
        return f"function of {', '.join(inspect.signature(found).parameters)}"
    return "module" if inspect.ismodule(found) else type(found).__name__


def test_the_public_names_are_as_recorded():
    compare("names", "rmab", {name: _kind(name) for name in rmab.__all__})


def test_the_catalogue_is_as_recorded():
    made = rmab.catalogue
    shown = {
        name: str(list(inspect.signature(getattr(made, name)).parameters)) for name in made.__all__
    }
    compare("names", "rmab.catalogue", shown)


def test_the_keys_of_a_study_are_as_recorded():
    parameters = inspect.signature(rmab.Study).parameters.values()
    compare(
        "names", "rmab.Study", {p.name: repr(p.default) for p in parameters if p.name != "arms"}
    )
