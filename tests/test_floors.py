"""The lowest versions of dependencies that are allowed are those that `make test-floors` tries."""

import re
import tomllib
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parent.parent


def test_the_lowest_versions_allowed_are_those_that_are_tried():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *(n for e, ns in extras.items() if e != "dev" for n in ns)]
    allowed: dict[str, str] = {}
    for requirement in named:
        if not requirement.startswith("rmab["):
            found = re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", requirement)
            assert found, requirement
            assert allowed.setdefault(found[1], found[2]) == found[2], requirement
    locked = (ROOT / "requirements" / "floors.txt").read_text(encoding="utf-8")
    tried: dict[str, Version] = {}
    for name, text in re.findall(r"^([\w-]+)==([\w.]+)", locked, re.MULTILINE):
        version = Version(text)  # newer Pythons may need a higher one
        tried[name] = min(version, tried.get(name, version))
    assert len(allowed) > 15
    for name, floor in allowed.items():
        # A floor such as 2.2 may have no release of its own: the first one above is tried.
        assert tried[name].release[:2] == Version(floor).release[:2], name
