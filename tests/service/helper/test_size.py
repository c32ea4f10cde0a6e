"""Size of what a helper loads, which an outsider must be able to read; and of an agent's code."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src"
SOLVERS = {"jax", "jaxlib", "scipy", "pandas", "matplotlib"}


def file_of(module: str) -> Path | None:
    """The file of a module of the package; None of another's."""
    path = SOURCE.joinpath(*module.split("."))
    return next((p for p in (path / "__init__.py", path.with_suffix(".py")) if p.is_file()), None)


def nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes below one, without those that only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield child
            yield from nodes(child)


@cache
def imports(module: str) -> frozenset[str]:
    """Modules that one imports, inside functions too, and the packages that they are in."""
    file = file_of(module)
    assert file is not None
    names = {module}
    for node in nodes(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    packages = {name[:end] for name in names for end, dot in enumerate(name) if dot == "."}
    return frozenset(names | packages)


def closure(module: str) -> tuple[dict[str, int], set[str]]:
    """Lines of all modules with code that are reached from one, and other top-level packages.

    The names of the package itself are imported when they are used: they lead nowhere.
    """
    reached: set[str] = set()
    left, lines, others = {module}, {}, set()
    while left:
        name = left.pop()
        reached.add(name)
        file = file_of(name)
        if file is None:
            others.add(name.partition(".")[0])
            continue
        text = file.read_text()
        if any(not isinstance(node, ast.Expr) for node in ast.parse(text).body):
            lines[name] = text.count("\n")
        left |= imports(name) - reached
    return lines, others


def test_a_helper_is_small_enough_to_be_read():
    lines, others = closure("rmab.service.helper.process")
    assert not [name for name in lines if name.startswith("rmab.service.server")]
    assert not others & SOLVERS
    assert len(lines) <= 25, sorted(lines)
    assert sum(lines.values()) <= 5000, lines


def test_an_agent_stays_small_and_has_no_solver():
    lines, others = closure("rmab.service.agent.agent")
    del lines["rmab"]  # a table of public names
    assert not [name for name in lines if name.startswith(("rmab.service.server", "rmab.engine"))]
    assert others & SOLVERS <= {"jax"}
    # For arrays of JAX only, which an agent has none of.
    assert {name for name in lines if "jax" in imports(name)} <= {"rmab.linalg", "rmab.arrays"}
    assert sum(lines.values()) <= 7500, lines
