"""Certificates that expire, and what SIGHUP has a server read again."""

import math
import re
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from rmab.service.http.certificate import DAY, expiry
from rmab.service.server.limits import ServerLimits
from tests.service.support.processes import SPECTRUM, Machine, environment
from tests.service.support.serving import PATIENCE, served, spectrum, until

TLS = Path(__file__).parents[1] / "support" / "tls"
CERT, KEY = TLS / "server.pem", TLS / "server.key"


def dated(file):
    """When openssl says that a certificate expires."""
    told = subprocess.run(
        ["openssl", "x509", "-in", file, "-noout", "-enddate"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return ssl.cert_time_to_seconds(told.strip().removeprefix("notAfter="))


def gauge(live):
    text = live.client().get("/metrics").text
    (found,) = re.findall(r"^rmab_certificate_expiry_timestamp_seconds (\S+)$", text, re.M)
    return float(found)


def warnings(live):
    return [
        e for e in live.events() if e["event"].startswith("certificate") and e["level"] != "info"
    ]


# ------------------------------------------------------------------------------------------ expiry


def test_dates_are_those_that_openssl_reads(authority):
    for file in (CERT, authority.cert, authority.ca, TLS / "ca.pem"):
        assert expiry(file.read_text()) == dated(file)
    assert dated(CERT) > 2.6e9 > dated(authority.cert)  # years of four digits, and of two


def test_of_a_chain_the_first_to_expire_counts(authority):
    assert dated(authority.cert) < dated(CERT)
    for chain in ((authority.cert, CERT), (CERT, authority.cert)):
        text = "a comment\n" + "".join(file.read_text() for file in chain)
        assert expiry(text) == dated(authority.cert)


@pytest.mark.parametrize(
    ("left", "event"),
    [
        (100.0, None),
        (30.5, None),
        (29.5, "certificate expires soon"),
        (0.01, "certificate expires soon"),
        (-0.01, "certificate has expired"),
        (-400.0, "certificate has expired"),
    ],
)
def test_a_warning_tells_of_a_certificate_that_expires(tmp_path, left, event):
    expires = dated(CERT)
    clock = lambda: expires - left * DAY  # noqa: E731 - as short as that
    with served(tmp_path, spectrum(), tls_cert=CERT, tls_key=KEY, clock=clock) as live:
        assert gauge(live) == expires
        found = warnings(live)
        assert [e["event"] for e in found] == ([] if event is None else [event])
        for warned in found:
            assert warned["level"] == "warning"
            assert warned["days"] == pytest.approx(left, abs=0.1)
            assert warned["file"] == str(CERT)
            assert warned["expires"] == "2126-10-22T13:08:20Z"


def test_the_warning_comes_again(tmp_path):
    expires, limits = dated(CERT), ServerLimits(certificate_seconds=0.02)
    tls = {"tls_cert": CERT, "tls_key": KEY, "limits": limits}
    with served(tmp_path, spectrum(), clock=lambda: expires - 1, **tls) as live:
        until(lambda: len(warnings(live)) > 3)


def test_without_tls_there_is_nothing_to_expire(live):
    assert math.isnan(gauge(live))
    assert warnings(live) == []


# ------------------------------------------------------------------------------------------ SIGHUP


class Running:
    """A server as a process, with TLS, on files that may be changed."""

    def __init__(self, machine, authority):
        self.machine = machine
        self.cert, self.key = machine.folder / "cert.pem", machine.folder / "key.pem"
        self.put(authority.cert, authority.key)
        words = ("--tls-cert", "cert.pem", "--tls-key", "key.pem", "--open")
        self.server = machine.serve(*words)

    def put(self, cert, key):
        self.cert.write_bytes(cert.read_bytes())
        self.key.write_bytes(key.read_bytes())

    def certificate(self):
        """What it shows to those who connect now, in DER."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", self.server.port), PATIENCE) as plain,
            context.wrap_socket(plain) as peer,
        ):
            return peer.getpeercert(binary_form=True)

    def hang_up(self):
        """Send SIGHUP; what is logged until it has done what it does."""
        before = len(self.machine.events())
        self.server.process.send_signal(signal.SIGHUP)
        last = {"reloaded", "settings not reloaded"}
        until(lambda: last & {e["event"] for e in self.machine.events()[before:]})
        assert self.server.process.poll() is None
        return self.machine.events()[before:]


@pytest.fixture
def running(tmp_path, tmp_path_factory, authority):
    machine = Machine(tmp_path, environment(tmp_path_factory))
    database = str(tmp_path / "spectrum.db")
    with served(tmp_path, spectrum(), database=database):  # so that the process plans nothing
        pass
    made = Running(machine, authority)
    with made.server:
        yield made


def der(file):
    return ssl.PEM_cert_to_DER_cert(file.read_text())


def test_a_hangup_reloads_the_certificate_and_what_can_change(running, authority):
    file = running.machine.folder / "spectrum.toml"
    with httpx.Client(base_url=running.server.url, verify=False, timeout=PATIENCE) as kept:
        assert kept.get("/v1/overview").json()["deadline"] == 3600
        assert running.certificate() == der(authority.cert)

        running.put(authority.other_cert, authority.other_key)
        text = SPECTRUM.replace("deadline = 3600", "deadline = 60\nreference = 1.5")
        file.write_text(text.replace("seed = 7", "seed = 8").replace('"linear"', '"doubling"'))
        warned, told = running.hang_up()  # the new one has two days
        assert (warned["level"], warned["event"]) == ("warning", "certificate expires soon")
        assert running.certificate() == der(authority.other_cert)
        assert set(told) == {"time", "level", "event", "certificate", "changed", "needs_restart"}
        assert told["changed"] == {"schedule": "doubling", "deadline": 60, "reference": 1.5}
        assert told["needs_restart"] == ["seed"]
        # The connection from before goes on, and sees what is new.
        shown = kept.get("/v1/overview").json()
        assert (shown["deadline"], shown["reference"], shown["round"]) == (60, 1.5, 1)

        *_, told = running.hang_up()  # once more: nothing is new
        assert (told["changed"], told["needs_restart"]) == ({}, ["seed"])


def test_a_hangup_with_bad_files_changes_nothing(running, authority):
    file = running.machine.folder / "spectrum.toml"
    good = running.certificate()
    running.cert.write_bytes(authority.other_cert.read_bytes())  # and not its key
    file.write_text(SPECTRUM.replace("deadline = 3600", "deadline = -1"))
    failed = running.hang_up()
    assert [e["event"] for e in failed] == ["certificate not reloaded", "settings not reloaded"]
    assert {e["level"] for e in failed} == {"error"}
    assert "must be a certificate and its key" in failed[0]["error"]
    assert "deadline must be" in failed[1]["error"]
    assert running.certificate() == good
    running.cert.unlink()
    file.unlink()
    assert len(running.hang_up()) == 2
    assert running.certificate() == good
    answer = httpx.get(f"{running.server.url}/v1/overview", verify=False, timeout=PATIENCE)
    assert answer.json()["deadline"] == 3600


def test_a_hangup_while_it_starts_does_not_end_it(tmp_path, tmp_path_factory):
    machine = Machine(tmp_path, environment(tmp_path_factory))
    with served(tmp_path, spectrum(), database=str(tmp_path / "spectrum.db")):
        pass
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = machine.start("server", "spectrum.toml", "--port", "0", **pipes)
    status = Path(f"/proc/{started.pid}/status")

    def heeds() -> bool:  # the signal would not end it any more
        found = re.findall(r"^Sig(?:Ign|Cgt):\s*(\w+)", status.read_text(), re.M)
        return any(int(mask, 16) & 1 << signal.SIGHUP - 1 for mask in found)

    until(heeds)
    for _ in range(40):
        started.send_signal(signal.SIGHUP)
        time.sleep(0.02)
    assert started.stdout is not None
    assert "spectrum at http" in started.stdout.readline()
    started.send_signal(signal.SIGTERM)
    out, err = started.communicate(timeout=PATIENCE)
    assert (started.returncode, out) == (0, "")
    assert "Traceback" not in err
