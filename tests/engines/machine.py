"""What engine tests need of the machine: system packages, Debian trees, and whether namespaces may be made.

Trees land in `build/roots`, are built once and shared by test processes.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import ROOT

ROOTS = ROOT / "build/roots"
APT = ("apt-get", "-y", "-qq", "-o", "DPkg::Lock::Timeout=300", "--no-install-recommends")


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Hold a lock between test processes."""
    ROOTS.mkdir(parents=True, exist_ok=True)
    with (ROOTS / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@functools.cache
def privileges() -> str | None:
    """Why hosts cannot be made here; None when they can."""
    if os.geteuid() != 0:
        return "engine tests make hosts of namespaces, which needs root"
    tried = subprocess.run(
        ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "true"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return tried.stderr.strip() or None if tried.returncode else None


def need(**programs: str) -> None:
    """Install the packages of missing programs (`need(mmdebstrap="mmdebstrap")`); skip with the reason."""
    reason = privileges() or _install(
        {package for name, package in programs.items() if not shutil.which(name)}
    )
    if reason:
        pytest.skip(reason)


def _install(packages: set[str]) -> str | None:
    if not packages:
        return None
    with one_at_a_time("apt"):
        for command in (["update"], ["install", *sorted(packages)]):
            done = subprocess.run(
                [*APT, *command], capture_output=True, text=True, check=False, timeout=600,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            )  # fmt: skip
    return f"apt-get install {' '.join(sorted(packages))}: {done.stderr[-500:]}" if done.returncode else None


def debian(suite: str, *packages: str) -> Path:
    """A minimal Debian tree with packages, as the lower layer of hosts; skips with the reason."""
    need(mmdebstrap="mmdebstrap")
    wanted = sorted(packages)
    digest = hashlib.sha256(" ".join((suite, *wanted)).encode()).hexdigest()[:12]
    place = ROOTS / f"{suite}-{digest}"
    with one_at_a_time(place.name):
        if place.exists():
            return place
        # Hosts reach the tree as other users than root; temporary folders are closed to them.
        building = Path(tempfile.mkdtemp(dir=ROOTS))
        done = subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(wanted)}", suite, building],
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        if done.returncode:
            shutil.rmtree(building, ignore_errors=True)
            pytest.skip(f"mmdebstrap {suite}: {done.stderr[-500:]}")
        building.chmod(0o755)
        building.rename(place)
    return place
