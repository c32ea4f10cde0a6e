"""The shape of the source as numbers: walks, closures, parameters, names, words.

    make shape                    prints the table
    make shape ARGS=--json        the same as JSON
    make shape ARGS=--keep        keeps the walks' counts in tests/data/shape.json

A *walk* is the set of functions that one task enters (`benchmarks.walks`). A *closure* is every
module that can be reached by imports, those inside functions included; imports for types are not.
`tests/test_shape.py` holds the walks within 10 % of the kept counts.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["KEPT", "Module", "closure", "main", "modules", "shape", "walks"]

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
KEPT = ROOT / "tests/data/shape.json"
ARCHITECTURE = ROOT / "docs/architecture.md"
# Functions that read files may have more parameters: each is a key of the file.
READERS = ("rmab.traces.",)
# Where a combination of policy, arms, sharing and service may be refused.
REFUSES = re.compile(r"\brefus(al|es)\b|^check_(kinds|arms|noise|noisy_means|own_draws)$")
_RULE = re.compile(r"isinstance\([^()]*\b\w*Rule\b")


@dataclass(frozen=True)
class Module:
    """A module of the package: its name, text and syntax tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """Lines of the file."""
        return self.text.count("\n")

    @property
    def has_code(self) -> bool:
        """True unless it is an `__init__` with a docstring only."""
        body = self.tree.body
        return self.path.name != "__init__.py" or any(not isinstance(n, ast.Expr) for n in body)

    def imports(self) -> Iterator[str]:
        """Names of modules that it imports anywhere, except for types."""
        for node in _live(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _live(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes below this one, without blocks under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _live(child)


@cache
def modules() -> Mapping[str, Module]:
    """All modules of the package by name."""
    found = {}
    for path in sorted((SOURCE / "rmab").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found[name] = Module(name, path, text, ast.parse(text))
    return found


def closure(*starts: str) -> list[Module]:
    """Modules with code that are reached from these; packages stand for their `__init__`.

    `rmab/__init__.py` loads its names when they are asked for, so it leads nowhere.
    """
    known, reached, left = modules(), set[str](), list(starts)
    while left:
        name = left.pop()
        if name in reached or name not in known:
            continue
        reached.add(name)
        if name != "rmab":
            left += known[name].imports()
            left.append(name.rpartition(".")[0])
    return [known[name] for name in sorted(reached) if known[name].has_code and name != "rmab"]


def _package(name: str) -> list[str]:
    return [each for each in modules() if each == name or each.startswith(f"{name}.")]


def _functions() -> Iterator[tuple[Module, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield module, node


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(each.arg not in ("self", "cls") for each in names)


def _docstring_words() -> list[str]:
    words: list[str] = []
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, kinds):
                words += re.findall(r"[A-Za-z']+", ast.get_docstring(node) or "")
    return words


def _changes() -> int:
    """Source files that the fifteen ordinary changes take, by docs/architecture.md."""
    rows = re.findall(r"^\| \d+\. .*\| (.*) \|$", ARCHITECTURE.read_text("utf-8"), re.MULTILINE)
    return sum(len(re.findall(r"`[\w/]+\.\w+`", row)) for row in rows)


def shape() -> dict[str, float | str]:
    """All measures that need no run, by name."""
    functions = list(_functions())
    rules = sum(
        len(_RULE.findall(module.text))
        for name, module in modules().items()
        if not name.startswith("rmab.policies.rules")
    )
    classes = defaultdict(set)
    for name, module in modules().items():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(name)
    policy = next(
        node
        for node in ast.walk(modules()["rmab.policies.policy"].tree)
        if isinstance(node, ast.ClassDef) and node.name == "Policy"
    )
    fields = [node for node in policy.body if isinstance(node, ast.AnnAssign)]
    refusing = {
        f"{module.name}.{function.name}"
        for module, function in functions
        if REFUSES.search(function.name)
    }
    helper = closure(*_package("rmab.service.helper"))
    agent = closure(*_package("rmab.service.agent"))
    words = _docstring_words()
    library = [(m, f) for m, f in functions if not m.name.startswith(READERS)]
    widest = max(library, key=lambda pair: _parameters(pair[1]))
    return {
        "isinstance(..., ...Rule) outside the rules": rules,
        "fields of Policy": len(fields),
        "functions that refuse a combination": len(refusing),
        "helper: modules": len(helper),
        "helper: lines": sum(module.lines for module in helper),
        "agent: modules": len(agent),
        "agent: lines": sum(module.lines for module in agent),
        "most parameters of a function": _parameters(widest[1]),
        "... which is": f"{widest[0].name}.{widest[1].name}",
        "class names in several modules": sum(len(where) > 1 for where in classes.values()),
        "files that the fifteen changes take": _changes(),
        "lines of source": sum(module.lines for module in modules().values()),
        "modules": sum(module.has_code for module in modules().values()),
        '"what" per 1,000 words of docstrings': round(
            1000 * sum(word.lower() == "what" for word in words) / len(words), 1
        ),
    }


def walks() -> dict[str, int]:
    """Counts of modules and functions that the two walks enter, each in a process of its own."""
    import subprocess

    counts: dict[str, int] = {}
    for name in ("run", "service"):
        command = [sys.executable, "-m", "benchmarks.walks", name]
        ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        found = json.loads(ended.stdout.splitlines()[-1])
        counts[f"walk {name}: modules"] = len(found["modules"])
        counts[f"walk {name}: functions"] = len(found["functions"])
    return counts


def main(words: list[str] | None = None) -> int:
    """Print every measure."""
    head, _, examples = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shape",
        description=head,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--keep", action="store_true", help="keep the walks' counts")
    options = parser.parse_args(words)
    walked = walks()
    if options.keep:
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(walked, indent=2) + "\n", encoding="utf-8")
    found = {**walked, **shape()}
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        width = max(map(len, found))
        for name, value in found.items():
            print(
                f"{name:{width}}  {value:,}"
                if isinstance(value, int)
                else f"{name:{width}}  {value}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
