"""Commands around a server: server, enroll, revoke, agents, backup, demo."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmab.cli.console import DONE, INTERRUPTED, columns, say
from rmab.cli.helper import when
from rmab.errors import FederationError

if TYPE_CHECKING:
    from rmab.protocol.config import Federation
    from rmab.service.admin import Admin
    from rmab.service.demo import Progress
    from rmab.service.server.unmasking import HelperAccess

__all__ = ["agents", "backup", "demo", "enroll", "revoke", "server"]


def server(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it can reload: it must not end a server
    from rmab.protocol.config import load_federation

    federation = load_federation(options.federation)
    from rmab.service.server.process import Settings, serve

    settings = Settings(
        federation=federation,
        database=_database(options),
        file=options.federation,
        host=options.host,
        port=options.port,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        open=options.open,
        trusted_proxies=options.trusted_proxy,
        verbose=options.verbose,
        helper=_helper_access(options, federation),
    )

    def ready(url: str) -> None:
        if options.json:
            table = {"url": url, "federation": federation.name, "pid": os.getpid()}
            print(json.dumps(table), flush=True)
        else:
            print(f"rmab server: federation {federation.name} at {url}", flush=True)

    if not serve(settings, ready):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(DONE)
    return DONE


def _helper_access(options: argparse.Namespace, federation: Federation) -> HelperAccess | None:
    """Return token and certificates for the helper; None if the federation has none."""
    from rmab.service.admin import read_token
    from rmab.service.server.unmasking import HelperAccess

    file = options.helper_token_file
    if not federation.masks:
        if file is not None or options.helper_ca is not None:
            raise FederationError(
                "--helper-token-file and --helper-ca go with a federation that has [privacy] with "
                "a helper"
            )
        return None
    if file is None:
        raise FederationError(
            "a federation with a helper under [privacy] needs --helper-token-file, with what "
            "`rmab helper-enroll FEDERATION.toml --server` printed"
        )
    return HelperAccess(read_token(file, "--helper-token-file"), options.helper_ca)


def _database(options: argparse.Namespace) -> str:
    if options.database is not None:
        return str(options.database)
    from rmab.service.store.store import default_database

    return default_database(Path(options.federation))


def _admin(options: argparse.Namespace) -> Admin:
    from rmab.service.admin import DatabaseAdmin, HttpAdmin, is_url, read_token

    if is_url(options.federation):
        if options.token_file is None:
            raise FederationError("a URL needs --token-file with an admin's credential")
        if options.database is not None:
            raise FederationError("--database goes with a federation's file, not with a URL")
        return HttpAdmin(options.federation, read_token(options.token_file), options.ca)
    for name in ("token_file", "ca"):
        if getattr(options, name) is not None:
            raise FederationError(f"--{name.replace('_', '-')} goes with a URL, not with a file")
    from rmab.protocol.config import load_federation

    return DatabaseAdmin(load_federation(options.federation), _database(options))


def enroll(options: argparse.Namespace) -> int:
    from rmab.service.admin import check_name

    name = check_name(options.name)
    role = "admin" if options.admin else "viewer" if options.viewer else "agent"
    owner = options.owner
    if owner is not None:
        check_name(owner, "--owner")
        if role != "agent":
            raise FederationError(f"--owner goes with an agent, not with --{role}")
    with _admin(options) as admin:
        token = admin.enroll(name, role, owner)
    told = {} if owner is None else {"owner": owner}
    table = {"name": name, "role": role, **told, "token": token}
    print(json.dumps(table) if options.json else token, flush=True)
    return DONE


def revoke(options: argparse.Namespace) -> int:
    from rmab.service.admin import check_name

    name = check_name(options.name)
    given = None
    with _admin(options) as admin:
        # Whose credential is revoked already may still be forgotten.
        if not (options.forget and _is_revoked(admin, name)):
            admin.revoke(name)
        if options.forget:
            try:
                given = admin.forget(name)
            except FederationError as error:
                raise FederationError(f"{name} is revoked, but {error}") from None
    if options.json:
        forgotten = {} if given is None else {"forgotten": True, **given}
        print(json.dumps({"name": name, "revoked": True, **forgotten}))
    else:
        print(f"{name} is revoked" if given is None else f"{name} is revoked and {_told(given)}")
    return DONE


def _is_revoked(admin: Admin, name: str) -> bool:
    """Return whether an agent is revoked; refuse admins and viewers, who have no counts."""
    for row in admin.agents():
        if row["name"] == name:
            if row["role"] != "agent":
                raise FederationError(f"{name} is no agent: there is nothing to forget")
            return row["revoked"] is not None
    return False


def _told(given: dict[str, Any]) -> str:
    """Return in words how much was forgotten."""
    if not given["incarnations"]:
        return "forgotten; it had given nothing"
    return f"forgotten (uploads: {given['uploads']}, slots: {given['slots']})"


def _forget(options: argparse.Namespace) -> int:
    from rmab.service.admin import check_name

    name = check_name(options.forget)
    with _admin(options) as admin:
        given = admin.forget(name)
    if options.json:
        print(json.dumps({"name": name, "forgotten": True, **given}))
    else:
        print(f"{name} is {_told(given)}")
    return DONE


def backup(options: argparse.Namespace) -> int:
    from rmab.protocol.config import load_federation
    from rmab.service.store.store import back_up

    back_up(_database(options), load_federation(options.federation), Path(options.file))
    size = Path(options.file).stat().st_size
    if options.json:
        print(json.dumps({"file": options.file, "bytes": size}))
    else:
        print(f"{options.file}: {size} bytes")
    return DONE


def agents(options: argparse.Namespace) -> int:
    if options.forget is not None:
        return _forget(options)
    with _admin(options) as admin:
        found = admin.agents()
    if options.json:
        print(json.dumps({"agents": found}))
    else:
        print(_agents_table(found))
    return DONE


def _agents_table(found: list[dict[str, Any]]) -> str:
    rows = [["name", "role", "enrolled", "last seen", "live", "uploads", "outlier", "revoked"]]
    for agent in found:
        times = [when(agent[key]) for key in ("enrolled", "last_seen", "revoked")]
        of_agent = ["", "", ""]
        if agent["role"] == "agent":
            score = agent.get("outlier")  # an older server has none
            outlier = "-" if score is None else f"{score:.1f}"
            of_agent = ["yes" if agent["live"] else "no", str(agent["uploads"]), outlier]
        rows.append([agent["name"], agent["role"], *times[:2], *of_agent, times[2]])
    weights = [agent.get("weight") for agent in found]  # an older server has none
    if any(weight not in (None, 1) for weight in weights):
        shown = ["weight", *("" if weight is None else f"{weight:g}" for weight in weights)]
        rows = [[*row[:-1], weight, row[-1]] for row, weight in zip(rows, shown, strict=True)]
    if any("owner" in agent for agent in found):
        whose = ["owner", *(agent.get("owner", agent["name"]) for agent in found)]
        rows = [[row[0], owner, *row[1:]] for row, owner in zip(rows, whose, strict=True)]
    return columns(rows)


def demo(options: argparse.Namespace) -> int:
    slots: int = options.slots
    # A demo that is told to end takes its temporary folder with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    from rmab.service.demo import Demo, Progress

    reached = Progress(0, 0, 0.0, 0.0)
    interrupted = False
    say("starting a server and four agents; this takes some seconds")
    with Demo(options.port) as running:
        _show_page(running.url, options)
        shown = 0.0
        try:
            for reached in running.play(slots):
                if time.monotonic() >= shown + 1 or reached.slot == slots:
                    shown = time.monotonic()
                    if not options.json:
                        _show_progress(reached, slots, running.reference)
        except KeyboardInterrupt:
            interrupted = True
    if sys.stdout.isatty() and not options.json:
        print()
    table = {
        "url": running.url,
        "slots": reached.slot,
        "round": reached.round,
        "reward": reached.reward,
        "recent": reached.recent,
        "reference": running.reference,
    }
    if options.json:
        print(json.dumps(table))
    else:
        print(
            f"{reached.slot} slots, round {reached.round}: reward {reached.reward:.4f} per agent "
            f"and slot, {reached.recent:.4f} lately; {running.reference:.4f} with known dynamics"
        )
    return INTERRUPTED if interrupted else DONE


def _show_page(url: str, options: argparse.Namespace) -> None:
    if options.json:
        say(f"the page: {url}/")
        return
    print(f"the page: {url}/", flush=True)
    has_display = any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if not options.no_browser and sys.stdout.isatty() and has_display:
        import webbrowser

        webbrowser.open(f"{url}/")


def _show_progress(reached: Progress, slots: int, reference: float) -> None:
    text = (
        f"slot {reached.slot} of {slots}, round {reached.round}: reward {reached.recent:.4f} "
        f"lately, {reference:.4f} with known dynamics"
    )
    if sys.stdout.isatty():
        print(f"\r{text}\x1b[K", end="", flush=True)
    else:
        print(text, flush=True)
