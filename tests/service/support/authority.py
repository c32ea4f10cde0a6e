"""A certificate authority of one's own, as openssl makes it, and certificates by it."""

from __future__ import annotations

import subprocess
from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_DAYS = ("-days", "2")


class Authority:
    """Files in a folder: `ca`, whom to trust; `cert` and `key` for 127.0.0.1; `locked`, that key
    with a password; `other_cert` and `other_key` for another name.

    FileNotFoundError where there is no openssl.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ca = folder / "ca.pem"
        self._openssl(
            *("req", "-x509", *_NEW_KEY, "-keyout", "ca.key", "-out", "ca.pem", *_DAYS),
            *("-subj", "/CN=a CA of our own", "-addext", "basicConstraints=critical,CA:TRUE"),
            *("-addext", "keyUsage=critical,keyCertSign"),
        )
        self.cert, self.key = self._certified("server", "IP:127.0.0.1,DNS:localhost")
        self.other_cert, self.other_key = self._certified("other", "DNS:other.example")
        self.locked = folder / "locked.key"
        self._openssl(
            *("ec", "-in", "server.key", "-aes256", "-passout", "pass:secret"),
            *("-out", "locked.key"),
        )

    def _certified(self, name: str, subject: str) -> tuple[Path, Path]:
        """A certificate and its key."""
        (self._folder / f"{name}.ext").write_text(f"subjectAltName={subject}\n")
        self._openssl(
            *("req", *_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=s")
        )
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-out", f"{name}.pem", *_DAYS, "-extfile", f"{name}.ext", "-CAcreateserial"),
        )
        return self._folder / f"{name}.pem", self._folder / f"{name}.key"

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self._folder, check=True, capture_output=True)
