"""What a firm has of its own, real and small: a certificate authority, an S3 and secrets server, a Prometheus
behind TLS and a password, and a syslog server behind TLS.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import urllib.parse
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any, Self

import boto3

from tests.engines.node import debian_programs, wait_for
from tests.support import ROOT

NAME = "firm.example"
USER, PASSWORD = "trainshed", "swordfish"
PASSWORD_BCRYPT = "$2b$04$jKd8GL1nIgZ6PRXUbNSwT.Mo3o2/uEXtysCFeXMtRlxH4c/c5d.Bi"


class Authority:
    """A certificate authority and one server certificate for `firm.example`, as files in a folder."""

    def __init__(self, folder: Path, name: str = "Firm Root") -> None:
        self.ca, self.key, self.cert = folder / "ca.pem", folder / "server.key", folder / "server.pem"
        ca_key, request, extensions = folder / "ca.key", folder / "server.csr", folder / "san"
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        uses = "keyUsage=critical,keyCertSign,cRLSign"
        self._openssl("req", "-x509", *curve, "-keyout", ca_key, "-out", self.ca, "-days", "2",
                      "-subj", f"/CN={name}", "-addext", uses)  # fmt: skip
        self._openssl("req", *curve, "-keyout", self.key, "-out", request, "-subj", f"/CN={NAME}")
        extensions.write_text(f"subjectAltName=DNS:{NAME}\nextendedKeyUsage=serverAuth\n")
        self._openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", ca_key, "-CAcreateserial",
                      "-days", "2", "-extfile", extensions, "-out", self.cert)  # fmt: skip

    @staticmethod
    def _openssl(*words: object) -> None:
        done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        return int(probe.getsockname()[1])


class Aws:
    """moto's server: S3 and Secrets Manager, reachable from the machines' networks."""

    def __init__(self) -> None:
        self.port = free_port()
        python = ROOT / ".venv/trainer/bin/python"
        command = [python, "-m", "moto.server", "-H", "0.0.0.0", "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        def up() -> bool:
            assert self._process.poll() is None, "moto ended"
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        wait_for(up, "moto listens")
        return self

    def client(self, service: str) -> Any:
        """A boto3 client of it."""
        return boto3.client(
            service, endpoint_url=f"http://127.0.0.1:{self.port}", region_name="us-east-2",
            aws_access_key_id="x", aws_secret_access_key="x",
        )  # fmt: skip

    def config(self, host: str) -> str:
        """~/.aws/config of a machine that reaches us at `host`."""
        keys = "aws_access_key_id = x\naws_secret_access_key = x\n"
        return f"[default]\nendpoint_url = http://{host}:{self.port}\n{keys}"

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


class Prometheus:
    """A real Prometheus that takes remote writes over TLS, with a password."""

    def __init__(self, authority: Authority, folder: Path) -> None:
        self.port, self.authority = free_port(), authority
        (folder / "web.yml").write_text(json.dumps({
            "tls_server_config": {"cert_file": str(authority.cert), "key_file": str(authority.key)},
            "basic_auth_users": {USER: PASSWORD_BCRYPT},
        }))  # fmt: skip
        (folder / "empty.yml").write_text("{}")
        program = debian_programs("prometheus")["prometheus"]
        command = [program, f"--config.file={folder}/empty.yml", f"--storage.tsdb.path={folder}/tsdb",
                   f"--web.config.file={folder}/web.yml", f"--web.listen-address=0.0.0.0:{self.port}",
                   "--web.enable-remote-write-receiver"]  # fmt: skip
        with (folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def __enter__(self) -> Self:
        wait_for(self._answers, "Prometheus answers")
        return self

    def _answers(self) -> bool:
        assert self._process.poll() is None, "Prometheus ended"
        try:
            return self.query("vector(1)") != []
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Samples of an instant query."""
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        context.check_hostname = False
        url = f"https://127.0.0.1:{self.port}/api/v1/query?query={urllib.parse.quote(expression)}"
        login = b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        request = urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})
        with urllib.request.urlopen(request, context=context, timeout=10) as answer:
            return json.load(answer)["data"]["result"]

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


class Syslog:
    """Takes syslog over TLS (RFC 5425) and keeps the lines."""

    def __init__(self, authority: Authority) -> None:
        self.lines: list[str] = []
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(authority.cert, authority.key)
        self._socket = context.wrap_socket(socket.create_server(("0.0.0.0", 0)), server_side=True)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except ssl.SSLError:
                continue
            except OSError:
                return
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: ssl.SSLSocket) -> None:
        with connection, connection.makefile("rb") as stream:
            self.lines.extend(line.decode(errors="replace") for line in stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
