"""Packages that add policies, recordings and environments: docs/extending.md's, and bad ones."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.commands import PROGRAM, Ran

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
MODULES = ("steady", "recordings", "beams")
STUDY = """\
horizon = 50
trials = 32
policies = ["steady", "random"]
options.steady.bonus = 0.5
[[arm]]
p01 = 0.2
p11 = 0.8
reward = 1.0
[[arm]]
p01 = 0.05
p11 = 0.1
reward = 1.0
"""
# A backend that zips the package: what pip needs to install it without a network.
BACKEND = """
import pathlib, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "acme_bandits-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as wheel:
        for path in [*pathlib.Path("acme_bandits").glob("*.py"), *pathlib.Path(".").glob("*.dist-info/*")]:
            wheel.write(path, path.as_posix())
    return name
"""  # noqa: E501


def points() -> str:
    """The entry points of the page's package, as they are installed."""
    (table,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    groups = tomllib.loads(table)["project"]["entry-points"]
    return "".join(
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in each.items())
        for group, each in groups.items()
    )


def package(folder: Path, entry_points: str, name: str = "acme-bandits") -> Path:
    """A folder as pip leaves it, with the page's modules."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    modules = folder / "acme_bandits"
    modules.mkdir(exist_ok=True, parents=True)
    (modules / "__init__.py").touch()
    for module, block in zip(MODULES, blocks, strict=True):
        (modules / f"{module}.py").write_text(block)
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entry_points)
    return folder


def called(site: Path, *command: object) -> Ran:
    """A process that sees the packages of a folder."""
    known = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(site), *([known] if known else [])])
    ran = subprocess.run(
        [*map(str, command)],
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def check_all_three(site: Path, folder: Path) -> None:
    """A study with its policy, a trace of its form, an environment of its class."""
    (folder / "study.toml").write_text(STUDY)
    ran = called(site, *PROGRAM, "run", folder / "study.toml", "--json")
    assert ran.code == 0, ran.err
    means = {name: each["mean"] for name, each in ran.json["policies"].items()}
    assert means["steady"] > means["random"]
    listed = called(site, *PROGRAM, "run", "--help").out
    assert "arms that stay good longest; options bonus" in " ".join(listed.split())
    (folder / "night.acme").write_text("1 0\n1 1\nnan 1\n")
    ran = called(site, *PROGRAM, "trace", folder / "night.acme")
    assert (ran.code, ran.err) == (0, "")
    assert "3 slots, 2 arms" in ran.out
    made = "import gymnasium, rmab.envs; print(gymnasium.make('acme/Beams-v0').reset(seed=1)[0])"
    ran = called(site, sys.executable, "-c", made)
    assert ran.code == 0, ran.err
    assert "last_seen" in ran.out


def test_the_package_of_the_page_is_used_by_name(tmp_path):
    check_all_three(package(tmp_path / "site", points()), tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("pip") is None, reason="needs pip")
def test_the_package_of_the_page_is_installed_by_pip(tmp_path):
    source, site = package(tmp_path / "source", points()), tmp_path / "site"
    (about,) = source.glob("*.dist-info")
    (about / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    (about / "RECORD").touch()
    (source / "backend.py").write_text(BACKEND)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "acme-bandits"\nversion = "1.0"\n'
    )
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", *offline)
    ran = called(tmp_path, *pip, "--target", site, source)
    assert ran.code == 0, ran.err
    check_all_three(site, tmp_path)


@pytest.mark.parametrize(
    ("point", "why"),
    [
        ("steady = acme_bandits.none:ENTRY", "cannot be loaded: ModuleNotFoundError: No module"),
        ("steady = acme_bandits.steady:NONE", "cannot be loaded: AttributeError: "),
        ("steady = acme_bandits.steady:steady", "must be an rmab.policies.entry.Entry of a group"),
        ("fedtswi = acme_bandits.steady:ENTRY", "the name is taken by rmab"),
        ("steady = acme_bandits.broken:ENTRY", "cannot be loaded: ZeroDivisionError: division"),
        ("steady = acme_bandits.lost:ENTRY", "ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_a_bad_policy_of_a_package_is_one_line_that_names_it(tmp_path, point, why):
    site = package(tmp_path / "site", f"[rmab.policies]\n{point}\n")
    modules = site / "acme_bandits"
    (modules / "broken.py").write_text("ENTRY = 1 / 0\n")
    lost = (modules / "steady.py").read_text().replace("acme_bandits.steady:", "nowhere:")
    (modules / "lost.py").write_text(lost)
    (tmp_path / "study.toml").write_text(STUDY)
    ran = called(site, *PROGRAM, "run", tmp_path / "study.toml")
    name = point.partition(" ")[0]
    ran.assert_refused(f"package acme-bandits: entry point '{name}' of rmab.policies: {why}")


def test_two_packages_cannot_have_one_name(tmp_path):
    site = package(tmp_path / "site", points())
    package(site, points(), "other-bandits")
    (tmp_path / "study.toml").write_text(STUDY)
    ran = called(site, *PROGRAM, "value", tmp_path / "study.toml")
    ran.assert_refused("entry point 'steady' of rmab.policies: the name is taken by ")


def test_a_reader_that_fails_is_one_line_that_names_its_package(tmp_path):
    site = package(tmp_path / "site", points())
    (tmp_path / "night.acme").write_text("1 x\n")
    ran = called(site, *PROGRAM, "trace", tmp_path / "night.acme")
    ran.assert_refused("package acme-bandits: entry point 'acme' of rmab.recordings: ValueError: ")
    taken = package(tmp_path / "taken", "[rmab.recordings]\ncsv = acme_bandits.recordings:read\n")
    ran = called(taken, *PROGRAM, "trace", tmp_path / "night.acme")
    ran.assert_refused("entry point 'csv' of rmab.recordings: the name is taken by rmab")


def test_reading_the_registry_loads_no_solver():
    loaded = (
        "import sys, rmab.policies.refusal\n"
        "heavy = ('jax', 'scipy', 'importlib.metadata', 'rmab.learning.', 'rmab.planning.')\n"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    assert called(Path(), sys.executable, "-c", loaded).out == "[]\n"
