"""A node for the lifecycle steps: a Debian tree booted by a real systemd in namespaces of its own.

Stand-ins are only for hardware and AWS's file system: `mount.lustre` notes its arguments and binds a local
folder, `lnetctl` prints counters that a test sets. All else is real: network, packages, users, TLS,
Slurm and services.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.engines.machine import ROOTS, debian, need, one_at_a_time
from tests.support import ROOT

PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "iproute2", "procps", "ca-certificates", "openssl", "python3",
    "chrony", "rsyslog", "rsyslog-gnutls", "slurmctld", "slurmd", "slurm-client", "munge", "curl",
    "slapd", "sssd-ldap", "libnss-sss", "libpam-sss",
)  # fmt: skip
LOG = "/var/log/provision/provisioning.log"
UPLOADED = "/tmp/sagemaker-fleet/train"
_NUMBERS = itertools.count(1)

MOUNT_LUSTRE = """#!/bin/sh
echo "$@" >> /var/lib/lustre-mounts
[ ! -e /etc/no-lustre ] || { echo "mount.lustre: $1: No such file or directory" >&2; exit 2; }
mkdir -p /var/lib/lustre && mount --bind /var/lib/lustre "$2"
"""
LNETCTL = """#!/bin/sh
[ -e /etc/efa ] || exit 0
count=$(cat /etc/efa); [ -e /etc/efa-idle ] || echo $((count + 7)) > /etc/efa
printf 'net:\\n  - net type: efa\\n    local NI(s):\\n      - nid: 10.0.0.9@efa\\n        statistics:\\n'
printf '          send_count: %s\\n' "$count"
"""


class Node:
    """One machine: a context manager that makes it; `boot` starts it, `run` runs a command in it."""

    def __init__(self) -> None:
        need(**{"systemd-nspawn": "systemd-container", "nsenter": "util-linux", "ip": "iproute2"})
        self.number = next(_NUMBERS)
        self.name = f"tn{os.getpid() % 100000}-{self.number}"
        lower = debian("bookworm", *PACKAGES)
        # Addresses come from the process's own range, since test processes run side by side.
        net = f"10.{64 + os.getpid() % 64}.{self.number}"
        self.host, self.address = f"{net}.1", f"{net}.2"
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=ROOTS))
        self.folder.chmod(0o755)
        self.root = self.folder / "root"
        for name in ("root", "upper", "work"):
            (self.folder / name).mkdir()
        self._options = f"lowerdir={lower},upperdir={self.folder}/upper,workdir={self.folder}/work"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        _run("mount", "-t", "overlay", "overlay", "-o", self._options, str(self.root))
        self.write("/etc/hostname", f"{self.name}\n")
        self.write(
            "/etc/hosts", f"127.0.0.1 localhost\n{self.address} {self.name}\n{self.host} firm.example\n"
        )
        self.write("/etc/resolv.conf", "nameserver 127.0.0.1\n")
        self.write("/usr/sbin/mount.lustre", MOUNT_LUSTRE, 0o755)
        self.write("/usr/sbin/lnetctl", LNETCTL, 0o755)
        self.write(
            "/etc/systemd/system/slurmd.service.d/x.conf",
            "[Unit]\nConditionPathExists=/etc/slurm/slurm.conf\n",
        )
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _run("ip", "addr", "add", f"{self.host}/30", "dev", self._link)
        _run("ip", "link", "set", self._link, "up")
        for words in (
            f"addr add {self.address}/30 dev eth0", "link set eth0 up", "link set lo up",
            f"route add default via {self.host}",
        ):  # fmt: skip
            _run("ip", "-n", self.name, *words.split())
        return self

    def boot(self) -> None:
        """Start systemd and wait until it has booted."""
        base = Path(sys.base_prefix)
        binds = [f"--bind-ro={place}" for place in (ROOT / ".venv", base)]
        command = ["systemd-nspawn", "--quiet", "--directory", str(self.root), "--machine", self.name,
                   "--register=no", "--keep-unit", "--resolv-conf=off", "--capability=all",
                   f"--network-namespace-path=/run/netns/{self.name}", *binds, "--boot"]  # fmt: skip
        with (self.folder / "console").open("wb") as console:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT
            )
        wait_for(lambda: self._leader() is not None, "systemd-nspawn starts")
        wait_for(lambda: self.run("systemctl is-system-running --wait", check=False).stdout.strip()
                 in ("running", "degraded"), "systemd boots")  # fmt: skip

    def _leader(self) -> str | None:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "console").read_text(errors="replace")
        found = subprocess.run(
            ["pgrep", "-P", str(self._process.pid)], capture_output=True, text=True, check=False
        ).stdout.split()
        return found[0] if found else None

    @property
    def _link(self) -> str:
        return f"v{self.name}"[:15]

    def run(
        self, command: str, *, check: bool = True, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command as root, with an empty environment but for PATH."""
        done = subprocess.run(
            ["nsenter", "-t", str(self._leader()), "-a", "/usr/bin/env", "-i",
             "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "bash", "-c", command],
            capture_output=True, text=True, check=False, timeout=timeout,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done

    def write(self, path: str, text: str | bytes, mode: int = 0o644) -> None:
        """Put a file into the machine."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode() if isinstance(text, str) else text)
        place.chmod(mode)

    def read(self, path: str) -> str:
        """A file of the machine."""
        return (self.root / path.lstrip("/")).read_text(encoding="utf-8")

    def upload(self, settings: Mapping[str, object], site: Mapping[str, bytes], groups: object) -> None:
        """What HyperPod lays down before it calls the entry; S3 keeps no modes."""
        place = self.root / "var/uploaded"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(ROOT / "lifecycle", place, ignore=shutil.ignore_patterns("__pycache__"))
        for file in place.rglob("*"):
            if file.is_file():
                file.chmod(0o644)
        for name, content in site.items():
            (place / "site" / name).parent.mkdir(parents=True, exist_ok=True)
            (place / "site" / name).write_bytes(content)
        (place / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        self.write("/opt/ml/config/resource_config.json", json.dumps({"InstanceGroups": groups}))
        # The machine's /tmp is its own.
        self.run(f"rm -rf {UPLOADED} && mkdir -p {UPLOADED} && cp -r /var/uploaded/. {UPLOADED}")

    def provision(self, *, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run the entry as HyperPod does, with an empty environment."""
        leader = str(self._leader())
        command = [
            "nsenter",
            "-t",
            leader,
            "-a",
            "/usr/bin/env",
            "-i",
            "/bin/bash",
            f"{UPLOADED}/on_init_complete.sh",
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)

    def lines(self) -> list[str]:
        """The provisioning log."""
        return self.read(LOG).splitlines()

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            leader = self._leader() if self._process.poll() is None else None
            if leader:
                os.kill(int(leader), signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        for command in (["umount", "-l", str(self.root)], ["ip", "netns", "del", self.name],
                        ["ip", "link", "del", self._link]):  # fmt: skip
            subprocess.run(command, capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def debian_programs(*packages: str) -> dict[str, Path]:
    """Programs of Debian packages by name, unpacked and not installed."""
    folder = ROOTS / "programs"
    with one_at_a_time("programs"):
        folder.mkdir(exist_ok=True)
        missing = [package for package in packages if not list(folder.glob(f"{package}_*.deb"))]
        if missing:
            with one_at_a_time("apt"):
                _run("apt-get", "-qq", "update")  # a fresh machine has no lists
        for package in missing:
            _run("apt-get", "-qq", "download", package, cwd=folder)
            _run("dpkg-deb", "-x", str(next(folder.glob(f"{package}_*.deb"))), str(folder))
    return {path.name: path for path in (folder / "usr/bin").iterdir()}


def wait_for(condition, what: str, seconds: float = 60) -> None:
    """Poll until a condition holds; fails with what was waited for."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"in vain: {what}"
        time.sleep(0.1)


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
