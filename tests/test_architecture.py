"""The architecture page: short, and every path in it exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
USES_GENERATOR = re.compile(r"^from .* import .*\bthreefry\b|\bdef threefry", re.MULTILINE)
PATHS = sorted(set(re.findall(r"`([\w./]+\.\w+)`", TEXT)))


def places(path: str) -> list[Path]:
    """The path below the package and below the repository; a new file by its folder."""
    known = path if "NAME" not in path else path.partition("NAME")[0]
    return [ROOT / "src/rmab" / known, ROOT / known]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_exists(path):
    assert any(place.exists() for place in places(path))


def test_the_page_is_short():
    assert TEXT.count("\n") <= 120


def test_fifteen_changes_are_numbered():
    assert re.findall(r"^\| (\d+)\. ", TEXT, re.MULTILINE) == [str(n) for n in range(1, 16)]


def test_whoever_uses_the_generator_is_in_its_row():
    (row,) = re.findall(r"^\| 10\. .*$", TEXT, re.MULTILINE)
    users = {
        path.relative_to(ROOT / "src/rmab").as_posix()
        for path in (ROOT / "src/rmab").rglob("*.py")
        if re.search(
            r"^from .* import .*\bthreefry\b|\bdef threefry", path.read_text("utf-8"), re.M
        )
    }
    assert users
    assert users <= set(re.findall(r"`([\w./]+)`", row))
