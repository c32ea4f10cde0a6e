"""What users may rely on: the public names, what importing them loads, the examples in the docs."""

import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

import rmab
from rmab.studies.study import from_table
from rmab.studies.sweep import sweep_of

ROOT = Path(__file__).parent.parent

NAMES = [
    "Agent",
    "Arm",
    "Arms",
    "ConvergenceError",
    "Draws",
    "Dynamics",
    "Evidence",
    "FederationError",
    "Indices",
    "InformationStates",
    "ModelError",
    "Moves",
    "Policy",
    "ProtocolError",
    "Results",
    "RmabError",
    "StorageError",
    "Study",
    "StudyError",
    "Sweep",
    "SweepResults",
    "TooLargeError",
    "Trace",
    "TraceError",
    "UnavailableError",
    "UnreachableError",
    "__version__",
    "backtest",
    "belief_after",
    "catalogue",
    "channels",
    "episode_bound",
    "fit_trace",
    "gittins_indices",
    "index_table",
    "information_states",
    "load",
    "load_sweep",
    "load_trace",
    "optimal",
    "read_recording",
    "regret_bound",
    "run",
    "run_sweep",
    "save_trace",
    "slots_to_cross",
    "stationary_belief",
    "update_belief",
    "upper_bound",
    "value",
    "whittle_index",
    "whittle_indices",
]


def test_the_public_names_are_these():
    assert rmab.__all__ == NAMES
    assert dir(rmab) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_resolves(name):
    assert getattr(rmab, name) is not None


def test_a_star_import_gives_the_public_names():
    space: dict[str, object] = {}
    exec("from rmab import *", space)
    assert {name for name in space if name != "__builtins__"} == set(NAMES)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'rmab' has no attribute 'nothing'"):
        _ = rmab.nothing


def test_every_error_is_an_rmab_error():
    for name in ("ConvergenceError", "ModelError", "StudyError", "TooLargeError", "TraceError"):
        assert issubclass(getattr(rmab, name), rmab.RmabError)
    assert issubclass(rmab.ModelError, ValueError)
    assert issubclass(rmab.StudyError, ValueError)


def test_the_package_has_types_and_the_version_of_the_project():
    assert (Path(rmab.__file__).parent / "py.typed").exists()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert rmab.__version__ == project["version"]


HEAVY = ("jax", "jaxlib", "scipy", "matplotlib", "pandas")


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("rmab", ("numpy", *HEAVY)),
        ("rmab.errors", ("numpy", *HEAVY)),
        ("rmab.cli", ("numpy", *HEAVY)),
        ("rmab.model.arms", HEAVY),
        ("rmab.planning.channel.whittle", HEAVY),
        ("rmab.planning.tables", HEAVY),
        ("rmab.policies.episodes", HEAVY),
        ("rmab.studies.study", HEAVY),
        ("rmab.studies.sweep", HEAVY),
        ("rmab.traces.trace", HEAVY),
        ("rmab.traces.recordings", HEAVY),
        (
            "rmab.service.agent.agent",
            (*HEAVY, "starlette", "uvicorn", "prometheus_client", "psycopg"),
        ),
        ("rmab.model.realisation", (*HEAVY, "starlette", "uvicorn")),
        ("rmab.envs", HEAVY),
    ],
)
def test_what_needs_little_loads_little(module, absent):
    """An agent, and a command line that only answers, load none of what the simulation needs."""
    script = (
        f"import sys, {module}; print(*(name for name in {absent} if name in sys.modules), sep=',')"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("\n", "", 0)


def test_indices_and_studies_need_no_jax():
    script = (
        "import sys, rmab\n"
        "arms = rmab.channels(0.2, 0.8, [0.4, 0.9])\n"
        "rmab.whittle_index(arms, 0.5)\n"
        "rmab.Study(arms=arms)\n"
        f"sys.exit(any(name in sys.modules for name in {HEAVY}))"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_environments_need_no_jax_and_no_scipy():
    script = (
        "import sys, gymnasium, rmab\n"
        "rmab.envs.parallel_env().reset(seed=1)\n"
        "env = gymnasium.make('rmab/Arms-v0')\n"
        "env.reset(seed=1)\n"
        "env.step(0)\n"
        f"sys.exit(any(name in sys.modules for name in {HEAVY}))"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


# ------------------------------------------------------------------------- the examples in the docs


def blocks(file: str) -> list[str]:
    """The Python blocks of a page."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


PAGES = ["README.md", "docs/own-policy.md", "docs/any-arms.md", "docs/traces.md", "docs/envs.md"]
QUICK = {"docs/own-policy.md": 2}  # of a page with many examples that compile
EXAMPLES = [
    pytest.param(
        file, place, marks=[pytest.mark.slow] if place >= QUICK.get(file, len(blocks(file))) else []
    )
    for file in PAGES
    for place in range(len(blocks(file)))
]


@pytest.mark.parametrize(("file", "place"), EXAMPLES)
def test_the_examples_of_a_page_run(file, place, capsys):
    space = {"__name__": "example"}
    exec(compile(blocks(file)[place], file, "exec"), space)
    assert "nan" not in capsys.readouterr().out


def test_a_policy_of_ones_own_takes_some_fifteen_lines():
    example = blocks("docs/own-policy.md")[0]
    lines = [line for line in example.splitlines() if line.strip()]
    assert len(lines) <= 20
    assert "rmab.Policy(" in example


def test_the_study_file_of_the_readme_is_one():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    indented = re.findall(r"(?:^(?: {4}.*)?\n)+", text, flags=re.MULTILINE)
    (study,) = (block for block in indented if "[[arm]]" in block)
    made = from_table(tomllib.loads(study))
    assert len(made.arms) > 1


def test_the_sweep_of_the_readme_is_one():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    study = next(x for x in re.findall(r"(?:^(?: {4}.*)?\n)+", text, re.M) if "[[arm]]" in x)
    (sweep,) = re.findall(r"^```toml\n(\[sweep\]\n.*?)^```", text, re.DOTALL | re.MULTILINE)
    points = sweep_of(tomllib.loads(textwrap.dedent(study) + sweep)).points
    assert len(points) == 12
    assert points[-1].label == "M = 4, K = 2, fedtswi-gap.gaps = 32"


def test_the_example_of_the_package_runs(capsys):
    assert rmab.__doc__ is not None
    lines = [line[4:] for line in rmab.__doc__.splitlines() if line.startswith("    ")]
    example = "\n".join(lines)
    assert "rmab.Study(" in example
    small = example.replace("rmab.Study(", "rmab.Study(horizon=60, trials=32, ")
    exec(small, {})
    assert "fedtswi" in capsys.readouterr().out
