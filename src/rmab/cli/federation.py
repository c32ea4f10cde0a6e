"""The commands around a server: server, enroll, revoke, agents, backup, demo."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmab.cli.console import DONE, INTERRUPTED, Commands, columns, say, whole
from rmab.cli.helper import add_listening, when
from rmab.errors import FederationError

if TYPE_CHECKING:
    from rmab.protocol.config import Federation
    from rmab.service.admin import Admin
    from rmab.service.demo import Progress
    from rmab.service.server.unmasking import HelperAccess

__all__ = ["COMMANDS", "EXAMPLE_FEDERATION", "add_commands"]

COMMANDS = ("server", "enroll", "revoke", "agents", "backup", "demo")

EXAMPLE_FEDERATION = """\
a federation file (rmab new federation spectrum writes one with comments):
  name = "spectrum"
  plays = 2
  policy = "fedtswi-gap"
  schedule = "linear"
  deadline = 30
  [[arm]]
  reward = 0.4
  [[arm]]
  states = 3
  reward = [0.0, 0.5, 1.0]
  (one [[arm]] table for each arm; the dynamics are learnt)

further keys of an arm: observed = "always" (default "when_played"), action_dependent = true (it
  moves in another way when played), reward_passive = [...] (of a slot without a play)

further keys, above the arms: slot_seconds (the shortest slot; no agent can claim more slots than
  time allows), cap (no owner weighs more than so many times the median one), seed, draws
  ("shared", "per-agent", or "own": by an agent's own observations first), doubt (of "own": the
  chance that an agent's arm is unlike the others'; default 0.1), reference (a reward to compare
  with on the page), live_seconds (since an agent was heard of, up to which it is shown as live;
  default: two deadlines), horizon (fed1-ucb), [options] of the policy, [weights] of owners by
  name, [privacy] (helper: the server learns sums alone, which a helper opens, see
  rmab helper --help; epsilon, delta: sums have noise, made for one slot of an agent's log, its
  plays given: docs/privacy.md)
"""


def add_commands(command: Commands) -> None:
    """Add them to the program."""
    server = command(
        "server",
        _server,
        "serve a federation to its agents",
        "  rmab server spectrum.toml\n"
        "  rmab server spectrum.toml --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem\n"
        "  rmab server spectrum.toml --trusted-proxy 127.0.0.1\n\n"
        "SIGTERM and SIGINT end it; SIGHUP has it read its certificate and the federation's\n"
        "schedule, deadline, live_seconds and reference again\n\n" + EXAMPLE_FEDERATION,
        _exits,
    )
    server.add_argument("federation", metavar="FEDERATION.toml", help="the federation's file")
    add_listening(server, "8080, with TLS 8443")
    server.add_argument(
        "--open",
        action="store_true",
        help="anybody who reaches the server may read the page, the status and the metrics; "
        "without it that takes a viewer's credential",
    )
    server.add_argument(
        "--helper-token-file",
        metavar="F",
        help="with privacy.helper: a file with what rmab helper-enroll --server printed",
    )
    server.add_argument("--helper-ca", metavar="F", help="certificates to trust of the helper, PEM")

    enroll = command(
        "enroll",
        _enroll,
        "make the credential of an agent, an admin or a viewer and print it, once",
        "  rmab enroll spectrum.toml radio-1 > radio-1.token\n"
        "  rmab enroll spectrum.toml radio-7 --owner acme > radio-7.token\n"
        "  rmab enroll spectrum.toml boss --admin > admin.token\n"
        "  rmab enroll spectrum.toml prometheus --viewer > viewer.token\n"
        "  rmab enroll https://server:8443 radio-2 --token-file admin.token --ca ca.pem\n",
        _exits,
    )
    revoke = command(
        "revoke",
        _revoke,
        "take an agent's credential back; what it gave stays, unless --forget",
        "  rmab revoke spectrum.toml radio-1\n  rmab revoke spectrum.toml radio-1 --forget\n",
        _exits,
    )
    agents = command(
        "agents",
        _agents,
        "list agents, admins and viewers, or forget what an agent gave",
        "  rmab agents spectrum.toml\n"
        "  rmab agents spectrum.toml --forget radio-1\n"
        "  rmab agents https://server:8443 --token-file admin.token --json\n\n"
        "live are agents that were heard of within two deadlines, or within live_seconds\n",
        _exits,
    )
    for each in (enroll, revoke, agents):
        each.add_argument(
            "federation",
            metavar="FEDERATION.toml|URL",
            help="the federation's file, or its server's address",
        )
        each.add_argument("--token-file", metavar="F", help="with a URL: an admin's credential")
        each.add_argument("--ca", metavar="F", help="with a URL: certificates to trust, PEM")
    for each in (enroll, revoke):
        each.add_argument("name", metavar="NAME", help="the name of the agent, admin or viewer")
    revoke.add_argument(
        "--forget", action="store_true", help="take all that it gave out of the counts, for good"
    )
    agents.add_argument(
        "--forget",
        metavar="NAME",
        help="take all that this agent gave out of the counts, for good, instead of listing",
    )
    enroll.add_argument(
        "--owner",
        metavar="OWNER",
        help="who the agent belongs to: all agents of an owner count as one in weights, cap, "
        "outlier scores and limits (default: the agent's name)",
    )
    role = enroll.add_mutually_exclusive_group()
    role.add_argument(
        "--admin", action="store_true", help="an admin's: enrols, revokes and lists, no more"
    )
    role.add_argument(
        "--viewer",
        action="store_true",
        help="a viewer's: reads the page, the status and the metrics, no more",
    )
    backup = command(
        "backup",
        _backup,
        "copy a federation's SQLite database into a file, while its server runs",
        "  rmab backup spectrum.toml spectrum-backup.db\n\n"
        "the file is replaced if it is there, and only its owner can read it; of a PostgreSQL\n"
        "database pg_dump makes one\n",
        _exits,
    )
    backup.add_argument("federation", metavar="FEDERATION.toml", help="the federation's file")
    backup.add_argument("file", metavar="FILE", help="the backup")
    for each in (server, enroll, revoke, agents, backup):
        each.add_argument(
            "--database",
            metavar="URL",
            help="a path, sqlite:///PATH or postgresql://... (default: beside the file, .db)",
        )
        each.add_argument("--json", action="store_true", help="one JSON object on standard output")

    demo = command(
        "demo",
        _demo,
        "run one server and four simulated agents on this machine, with a page to watch",
        "  rmab demo\n  rmab demo --slots 2000 --no-browser",
    )
    demo.add_argument(
        "--slots", metavar="N", default="1200", help="slots to play (default 1200: a minute)"
    )
    demo.add_argument("--port", metavar="P", default="0", help="port of the page (default: any)")
    demo.add_argument("--no-browser", action="store_true", help="do not open the page")
    demo.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _exits() -> str:
    return (
        "\nexit codes: 0 done; 1 what may pass (a server or database that is not up, a port in\n"
        "use, a name that does not resolve, a full disk); 2 what will never work (bad input, a\n"
        "refused credential, another federation's database); 130 interrupted"
    )


def _server(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it can reload: it must not end a server
    from rmab.protocol.config import load_federation

    federation = load_federation(options.federation)
    port = whole("--port", options.port, 0, 65_535)
    from rmab.service.server.process import Settings, serve

    settings = Settings(
        federation=federation,
        database=_database(options),
        file=options.federation,
        host=options.host,
        port=port,
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
    """How the helper is reached; None where the federation has none."""
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


def _enroll(options: argparse.Namespace) -> int:
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


def _revoke(options: argparse.Namespace) -> int:
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
    """Whether an agent is; who is no agent cannot be forgotten, and so is not revoked either."""
    for row in admin.agents():
        if row["name"] == name:
            if row["role"] != "agent":
                raise FederationError(f"{name} is no agent: there is nothing to forget")
            return row["revoked"] is not None
    return False


def _told(given: dict[str, Any]) -> str:
    """What was forgotten, in words."""
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


def _backup(options: argparse.Namespace) -> int:
    from rmab.protocol.config import load_federation
    from rmab.service.store.store import back_up

    back_up(_database(options), load_federation(options.federation), Path(options.file))
    size = Path(options.file).stat().st_size
    if options.json:
        print(json.dumps({"file": options.file, "bytes": size}))
    else:
        print(f"{options.file}: {size} bytes")
    return DONE


def _agents(options: argparse.Namespace) -> int:
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


def _demo(options: argparse.Namespace) -> int:
    slots = whole("--slots", options.slots, 1)
    port = whole("--port", options.port, 0, 65_535)
    assert slots is not None
    assert port is not None
    # A demo that is told to end takes its temporary folder with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    from rmab.service.demo import Demo, Progress

    reached = Progress(0, 0, 0.0, 0.0)
    interrupted = False
    say("starting a server and four agents; this takes some seconds")
    with Demo(port) as running:
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
