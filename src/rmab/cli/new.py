"""Command `new`: write a file to begin with, as in `rmab new federation NAME`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rmab.cli.console import DONE
from rmab.errors import FederationError, StorageError, is_lasting, system_reason

__all__ = ["new"]

_TEMPLATES = Path(__file__).parent / "templates"


def new(options: argparse.Namespace) -> int:
    """Write the file of the kind and name that were given."""
    from rmab.protocol.shape import NAME_RULE, is_name
    from rmab.text import shown

    name = options.name
    if not is_name(name):
        raise FederationError(f"NAME must have {NAME_RULE}, got {shown(name)}")
    file = Path(f"{name}.toml")
    text = (_TEMPLATES / f"{options.kind}.toml").read_text(encoding="utf-8")
    _write(file, text.replace('"NAME"', f'"{name}"'))
    if options.json:
        print(json.dumps({"kind": options.kind, "name": name, "file": str(file)}))
    else:
        print(f"{file} is written: change it to your needs, then run rmab server {file}")
    return DONE


def _write(file: Path, text: str) -> None:
    """Write a new file, all of it or none."""
    try:
        with file.open("x", encoding="utf-8") as made:
            try:
                made.write(text)
                made.flush()
            except BaseException:
                file.unlink()
                raise
    except FileExistsError:
        raise FederationError(f"{file} is there already, and is not overwritten") from None
    except OSError as error:
        raise StorageError(
            f"{file} cannot be written: {system_reason(error)}", lasting=is_lasting(error)
        ) from None
