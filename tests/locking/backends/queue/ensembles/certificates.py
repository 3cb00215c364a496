"""Self-made certificates: an authority, what it signed for a server and a client, and an unknown one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on PATH")


class Certificates:
    """A folder of them: `ca`, `stranger` (another authority), and `server` and `client`, each with its key.

    Args:
        folder: where they are made.
        name: what the server's is for, as openssl wants it.
    """

    def __init__(self, folder: Path, name: str = "IP:127.0.0.1") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for authority in ("ca", "stranger"):
            self._authority(authority)
        self._signed("server", f"subjectAltName={name}", "/CN=server")
        # etcd's gateway refuses a client whose certificate has a common name, once there are users.
        self._signed("client", "subjectAltName=DNS:client", "/O=client")
        (folder / "store.pem").write_text(self.key("server").read_text() + self.of("server").read_text())

    def of(self, who: str) -> Path:
        """Return the certificate of `who`."""
        return self.folder / f"{who}.pem"

    def key(self, who: str) -> Path:
        """Return the key of `who`."""
        return self.folder / f"{who}.key"

    def _authority(self, name: str) -> None:
        new = ["-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
        self._openssl("req", "-x509", *new, "-subj", f"/CN={name}", "-days", "2")

    def _signed(self, name: str, extension: str, subject: str) -> None:
        new = ["-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr"]
        self._openssl("req", *new, "-subj", subject)
        (self.folder / f"{name}.ext").write_text(extension)
        by = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.ext"]
        self._openssl("x509", "-req", "-in", f"{name}.csr", *by, "-days", "2", "-out", f"{name}.pem")

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)
