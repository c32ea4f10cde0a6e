"""The server with a bug planted: it acknowledges before it commits. For test_crash alone.

python tests/service/support/early_server.py server FEDERATION.toml ...
"""

import sys
import time

from rmab.cli import main
from rmab.errors import ProtocolError
from rmab.service.store.writer import Writer

PAUSE = 0.2  # seconds between the acknowledgement and the commit: time enough for a kill


def finish_early(self, batch):
    """In place of `Writer._finish`."""
    with self._store.transaction():
        for entry in batch:
            try:
                entry.future.set_result(entry.job(self._store))
            except ProtocolError as error:
                entry.future.set_exception(error)
        time.sleep(PAUSE)


if __name__ == "__main__":  # not where this file is only read
    assert callable(Writer._finish)  # what is replaced must be what acknowledges
    Writer._finish = finish_early  # type: ignore[method-assign]  # the bug
    sys.exit(main())
