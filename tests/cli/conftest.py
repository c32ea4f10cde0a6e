"""Fixtures: run a command in this process, write a study file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rmab.cli import main
from tests.cli.commands import Ran


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command in this process."""

    def run(*arguments: str | Path) -> Ran:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:  # argparse ends so
            code = ended.code if isinstance(ended.code, int) else 1
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def study(tmp_path: Path) -> Callable[[str], Path]:
    """Write a study file."""

    def write(text: str) -> Path:
        path = tmp_path / "study.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
