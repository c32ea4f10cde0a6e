"""The command that writes files to begin with: `rmab new federation NAME`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rmab.cli.console import DONE, Commands, Parser
from rmab.errors import FederationError, StorageError, is_lasting, system_reason

__all__ = ["add_commands"]

_TEMPLATES = Path(__file__).parent / "templates"


def add_commands(command: Commands) -> None:
    """Add the command, and one below it for each kind of file."""
    new = command(
        "new",
        _new,
        "write a commented file to begin with",
        "  rmab new federation spectrum\n",
    )
    kinds = new.add_subparsers(dest="kind", metavar="KIND", required=True, parser_class=Parser)
    about = "write NAME.toml, a federation with settings that a careful person would choose"
    federation = kinds.add_parser(
        "federation",
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    federation.closing = lambda: (
        "example:\n"
        "  rmab new federation spectrum         writes spectrum.toml\n"
        "  rmab server spectrum.toml            serves it as it is\n\n"
        "the file has four channels as an example, and says what each key is for: change the\n"
        "arms, plays and slot_seconds to yours. A file that is there is never overwritten.\n\n"
        "exit codes: 0 done; 1 what may pass (a full disk); 2 what will never work (a bad name, a\n"
        "file that is there)"
    )
    federation.add_argument(
        "name",
        metavar="NAME",
        help="of the federation and, with .toml, of the file in this folder",
    )
    federation.add_argument(
        "--json", action="store_true", help="one JSON object on standard output"
    )


def _new(options: argparse.Namespace) -> int:
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
