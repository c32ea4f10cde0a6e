"""`rmab server` with a planner that needs no JAX, and so starts at once: for what concerns counts.

python tests/service/support/flat_server.py server FEDERATION.toml ...
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # not where this file is only read
    sys.path.insert(0, str(Path(__file__).parents[3]))
    from rmab.cli import main
    from rmab.service.server import process
    from tests.service.support.serving import Flat

    made = process.Server
    process.Server = lambda settings: made(  # type: ignore[assignment,misc]
        settings, planner=Flat(settings.federation)
    )
    sys.exit(main())
