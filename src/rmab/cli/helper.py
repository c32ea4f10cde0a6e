"""The commands around a helper: helper, helper-enroll, helper-revoke, helper-agents."""

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

from rmab.cli.console import DONE, Commands, columns, whole
from rmab.errors import FederationError

if TYPE_CHECKING:
    from rmab.service.helper.store import HelperStore

__all__ = ["COMMANDS", "add_commands", "add_listening", "when"]

COMMANDS = ("helper", "helper-enroll", "helper-revoke", "helper-agents")


def add_commands(command: Commands) -> None:
    """Add them to the program."""
    helper = command(
        "helper",
        _helper,
        "open sums for a federation whose server learns sums alone",
        "  rmab helper spectrum.toml --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem\n\n"
        "the federation's file has a table [privacy] with the helper's address:\n"
        "  [privacy]\n"
        '  helper = "https://helper.example:9443"\n'
        "  least = 3          (agents in a sum that is opened, 3 or more)\n"
        "  groups = 1         (sums are opened by group)\n"
        "  epsilon = 1.0      (sums have noise, which the helper draws; default: none)\n"
        "  delta = 1e-6       (of one slot of an agent's log, among logs with the same plays)\n"
        "  survey = 16        (counts slots of a schedule only: hidden however it plays)\n"
        "\n"
        "whoever runs the helper must be somebody else than whoever runs the server. Its database\n"
        "must never be restored from a backup: one that is lost is begun anew, with new keys\n",
        _exits,
    )
    helper.add_argument("federation", metavar="FEDERATION.toml", help="the federation's file")
    add_listening(helper, "9080, with TLS 9443")
    helper.add_argument(
        "--open",
        action="store_true",
        help="anybody who reaches the helper may read the metrics; without it the server alone",
    )
    enroll = command(
        "helper-enroll",
        _enroll,
        "make the mask key of an agent, or the server's token, and print it, once",
        "  rmab helper-enroll spectrum.toml radio-1 > radio-1.key\n"
        "  rmab helper-enroll spectrum.toml radio-2 --group 2 > radio-2.key\n"
        "  rmab helper-enroll spectrum.toml --server > helper.token\n",
        _exits,
    )
    enroll.add_argument(
        "--group",
        metavar="G",
        help="the group that the agent is summed with, from 1 (default: the smallest one)",
    )
    revoke = command(
        "helper-revoke",
        _revoke,
        "take an agent's mask key back, or the server's token: nothing more is opened with it",
        "  rmab helper-revoke spectrum.toml radio-1\n",
        _exits,
    )
    for each, what in ((enroll, "print"), (revoke, "revoke")):
        each.add_argument("federation", metavar="FEDERATION.toml", help="the federation's file")
        each.add_argument("name", metavar="NAME", nargs="?", help="the agent, as the server has it")
        each.add_argument("--server", action="store_true", help=f"{what} the server's token")
    agents = command(
        "helper-agents",
        _agents,
        "list the agents that a helper has, or had, mask keys for",
        "  rmab helper-agents spectrum.toml\n",
        _exits,
    )
    agents.add_argument("federation", metavar="FEDERATION.toml", help="the federation's file")
    for each in (helper, enroll, revoke, agents):
        each.add_argument(
            "--database",
            metavar="URL",
            help="a path, sqlite:///PATH or postgresql://... (default: beside the file, "
            ".helper.db)",
        )
        each.add_argument("--json", action="store_true", help="one JSON object on standard output")


def add_listening(command: argparse.ArgumentParser, ports: str) -> None:
    """Options of a process that listens."""
    command.add_argument(
        "--host",
        metavar="H",
        default="127.0.0.1",
        help="address to listen on (default 127.0.0.1); others need TLS",
    )
    command.add_argument("--port", metavar="P", help=f"port (default {ports}); 0: any that is free")
    command.add_argument("--tls-cert", metavar="F", help="certificate chain, PEM")
    command.add_argument("--tls-key", metavar="F", help="its key, PEM, not encrypted")
    command.add_argument(
        "--trusted-proxy",
        metavar="A",
        action="append",
        default=[],
        help="believe X-Forwarded-For, -Proto and -Host from this address or network; repeatable",
    )
    command.add_argument("--verbose", action="store_true", help="log every request")


def _exits() -> str:
    return (
        "\nexit codes: 0 done; 1 what may pass (a database that is not up, a port in use, a full\n"
        "disk); 2 what will never work (bad input, another federation's database); 130 interrupted"
    )


def _helper(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it can reload
    from rmab.protocol.config import load_federation

    federation = load_federation(options.federation)
    if not federation.masks:
        raise FederationError(
            f"{options.federation}: a helper needs a [privacy] table with the helper's address"
        )
    port = whole("--port", options.port, 0, 65_535)
    from rmab.service.helper.process import Helper, HelperSettings
    from rmab.service.http.listener import run_process
    from rmab.service.terms import terms_of

    settings = HelperSettings(
        terms=terms_of(federation),
        database=_database(options),
        host=options.host,
        port=port,
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


def _enroll(options: argparse.Namespace) -> int:
    name = _named(options)
    group = whole("--group", options.group, 1, 1_000_000)
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


def _revoke(options: argparse.Namespace) -> int:
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


def _agents(options: argparse.Namespace) -> int:
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
