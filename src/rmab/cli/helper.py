"""Commands around a helper: helper, helper-enroll, helper-revoke, helper-agents."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rmab.cli.console import DONE, columns
from rmab.errors import FederationError

if TYPE_CHECKING:
    from rmab.service.helper.store import HelperStore

__all__ = ["helper", "helper_agents", "helper_enroll", "helper_revoke", "when"]


def helper(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it can reload
    from rmab.protocol.config import load_federation

    federation = load_federation(options.federation)
    if not federation.masks:
        raise FederationError(
            f"{options.federation}: a helper needs a [privacy] table with the helper's address"
        )
    from rmab.service.helper.process import Helper, HelperSettings
    from rmab.service.http.listener import run_process
    from rmab.service.terms import terms_of

    settings = HelperSettings(
        terms=terms_of(federation),
        database=_database(options),
        host=options.host,
        port=options.port,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        open=options.open,
        trusted_proxies=options.trusted_proxy,
        verbose=options.verbose,
    )

    def ready(url: str) -> None:
        if options.json:
            table = {"url": url, "federation": federation.name, "pid": os.getpid()}
            print(json.dumps(table), flush=True)
        else:
            print(f"rmab helper: federation {federation.name} at {url}", flush=True)

    run_process(Helper(settings), ready)
    return DONE


def _database(options: argparse.Namespace) -> str:
    if options.database is not None:
        return str(options.database)
    from rmab.service.helper.store import default_database

    return default_database(Path(options.federation))


@contextmanager
def _store(options: argparse.Namespace) -> Iterator[HelperStore]:
    from rmab.protocol.config import load_federation
    from rmab.service.helper.store import open_helper_store
    from rmab.service.terms import terms_of

    store = open_helper_store(_database(options), terms_of(load_federation(options.federation)))
    try:
        yield store
    finally:
        store.close()


def _named(options: argparse.Namespace) -> str | None:
    """The agent that is meant; None: the server."""
    from rmab.service.admin import check_name

    if options.server == (options.name is not None):
        raise FederationError("give either NAME, of an agent, or --server")
    return None if options.server else check_name(options.name)


def helper_enroll(options: argparse.Namespace) -> int:
    name, group = _named(options), options.group
    if name is None:
        if group is not None:
            raise FederationError("--group goes with an agent's NAME, not with --server")
        with _store(options) as store:
            token = store.enroll_server(time.time())
        print(json.dumps({"role": "server", "token": token}) if options.json else token, flush=True)
        return DONE
    with _store(options) as store:
        key, group = store.enroll(name, group, time.time())
    table = {"name": name, "group": group, "mask_key": key}
    print(json.dumps(table) if options.json else key, flush=True)
    return DONE


def helper_revoke(options: argparse.Namespace) -> int:
    name = _named(options)
    with _store(options) as store:
        if name is None:
            store.revoke_server(time.time())
        else:
            store.revoke(name, time.time())
    if options.json:
        who = {"role": "server"} if name is None else {"name": name}
        print(json.dumps({**who, "revoked": True}))
    else:
        print(f"{name or 'the server'} is revoked")
    return DONE


def helper_agents(options: argparse.Namespace) -> int:
    with _store(options) as store:
        found = store.agents()
        last, _ = store.last()
    if options.json:
        print(json.dumps({"agents": [row._asdict() for row in found], "last_opening": last}))
        return DONE
    rows = [["name", "group", "enrolled", "incarnations", "revoked"]]
    rows += [
        [row.name, str(row.group), when(row.enrolled), str(row.incarnations), when(row.revoked)]
        for row in found
    ]
    print(columns(rows))
    return DONE


def when(seconds: float | None) -> str:
    """A time as people read it."""
    if seconds is None:
        return "-"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
