"""Docstrings are in the field's words: no banned words, and a first line that begins with one.

`tests/data/prose.txt` has the exceptions that are left, a count for each module and rule. They only
shrink: a module that has fewer must have its line lowered, as `python -m tests.test_prose` does.
"""

import ast
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
ALLOWED = ROOT / "tests/data/prose.txt"
OPENINGS = ("What", "Who", "Of", "As", "By", "Those", "Likewise")
BANNED = (
    "what|nobody|no more|at all|so many|but for|the way|of one's own|likewise|told|those that|"
    "laws?|yardsticks?|entrants?|twins?|flickers?|portraits?|strangers?"
)
KINDS = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
RULES = {
    "opening": re.compile(rf"\A(?:{'|'.join(OPENINGS)})\b"),
    "word": re.compile(rf"\b(?:{BANNED})\b", re.IGNORECASE),
    "alone": re.compile(r"\b(?!leave|left|leaves|leaving|learns?|learned|learning)\w+ alone\b"),
}


def violations() -> Counter[tuple[str, str]]:
    """Count what each rule finds in the docstrings of each module."""
    found: Counter[tuple[str, str]] = Counter()
    for path in sorted((ROOT / "src").rglob("*.py")):
        name = path.relative_to(ROOT / "src").as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = (ast.get_docstring(node) or "") if isinstance(node, KINDS) else ""
            text = re.sub(r"`[^`]*`", "", text)
            for rule, pattern in RULES.items():
                found[name, rule] += len(pattern.findall(text))
    return +found


def allowed() -> Counter[tuple[str, str]]:
    """Read the exceptions: lines of module, rule and count."""
    lines = (line.split() for line in ALLOWED.read_text(encoding="utf-8").splitlines())
    return Counter({(name, rule): int(count) for name, rule, count in lines})


def test_docstrings_are_in_the_words_of_the_field():
    more = violations() - allowed()
    assert not more, "banned words or openings, see CONTRIBUTING.md: " + ", ".join(
        f"{name} ({rule}: {count} too many)" for (name, rule), count in sorted(more.items())
    )


def test_exceptions_only_shrink():
    fewer = allowed() - violations()
    assert not fewer, f"run python -m tests.test_prose, which lowers {sorted(fewer)}"


def test_each_rule_finds_its_fault():
    assert RULES["opening"].search("What a slot does.")
    assert RULES["word"].search("It says what is so.")
    assert RULES["alone"].search("of those alone")
    assert not RULES["alone"].search("an arm left alone")


if __name__ == "__main__":
    now = violations() if "--new" in sys.argv else violations() & allowed()
    rows = [f"{name} {rule} {count}\n" for (name, rule), count in sorted(now.items())]
    ALLOWED.write_text("".join(rows), encoding="utf-8")
