"""Versions under NCCL on a node with EFA: what is there, and whether it goes together.

Where the plugin between NCCL and libfabric is missing or refuses to work, NCCL goes on over TCP, several
times slower and without an error; that is what these checks are for. Files are read, nothing is assumed.
"""

from __future__ import annotations

import mmap
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

# The plugin refuses EFA on an older libfabric: aws-ofi-nccl, src/nccl_ofi_net.cpp.
LIBFABRIC_AT_LEAST = (1, 22)
# "backward compatibility with … NCCL v2.17.1 and later": release notes of aws-ofi-nccl since 1.14.
NCCL_AT_LEAST = (2, 17)
# Newest NCCL that each series of aws-ofi-nccl was tested with: its RELEASENOTES.md.
NCCL_TESTED = {
    (1, 14): (2, 26),
    (1, 15): (2, 26),
    (1, 16): (2, 27),
    (1, 17): (2, 28),
    (1, 18): (2, 29),
    (1, 19): (2, 29),
    (1, 20): (2, 30),
    (1, 21): (2, 31),
}
# Plugin and libfabric that an EFA installer brings: EC2 User Guide, "Elastic Fabric Adapter release notes".
INSTALLERS = {
    "1.42.0": ("1.15.0", "2.1.0amzn3.0"),
    "1.43.0": ("1.16.1", "2.1.0amzn4.0"),
    "1.43.1": ("1.16.2", "2.1.0amzn5.0"),
    "1.43.2": ("1.16.3", "2.1.0amzn5.0"),
    "1.49.0": ("1.20.0", "2.4.0amzn5.0"),
    "1.50.0": ("1.21.1", "2.6.0amzn1.0"),
    "1.51.0": ("1.22.0", "2.7.0amzn2.0"),
}
# Oldest driver by major version of CUDA: NVIDIA, "CUDA Compatibility", minor version compatibility.
DRIVER_AT_LEAST = {12: (525,), 13: (580,)}

AMAZON = "0x1d0f"  # PCI vendor
PLUGIN_FOLDERS = (  # as EFA installers (>= 1.44 on RPM and on DEB, older) and builds by hand lay them out
    "opt/amazon/ofi-nccl/lib64",
    "opt/amazon/ofi-nccl/lib",
    "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "opt/amazon/ofi-nccl/lib/aarch64-linux-gnu",
    "opt/aws-ofi-nccl/lib",
    "opt/aws-ofi-nccl/install/lib",
)
PLUGIN_NAMES = ("libnccl-net-ofi.so", "libnccl-net.so", "libnccl-net-aws-ofi.so")


@dataclass(frozen=True)
class Fabric:
    """What one node has between NCCL and the wire; None: not found. `efa`: devices of the node;
    `given`: devices ready for use in this container; `driver`: NVIDIA's, None where GPUs are hidden."""

    efa: int = 0
    given: int = 0
    installer: str | None = None
    libfabric: str | None = None
    ofi_nccl: str | None = None
    plugin: str | None = None
    nccl: str | None = None
    driver: str | None = None


def read(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Fabric:
    """This node's, or that of a tree of files below `root`."""
    plugin = _plugin(root, environment)
    hidden = environment.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1")  # a run that wants none
    efa = [device for device in _children(root / "sys/class/infiniband") if _vendor(device) == AMAZON]
    return Fabric(
        efa=len(efa),
        given=sum(1 for device in _children(root / "dev/infiniband") if device.name.startswith("uverbs")),
        installer=_search(root / "opt/amazon/efa_installed_packages", rb"EFA installer version: (\S+)"),
        libfabric=_libfabric(root),
        # The plugin's own greeting: a package data base says what was installed, not what is found first.
        ofi_nccl=plugin and _search(plugin, rb"Initializing aws-ofi-nccl (\d[\w.-]*)"),
        plugin=plugin and str(plugin),
        nccl=".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None,
        driver=None
        if hidden
        else _search(root / "proc/driver/nvidia/version", rb"Kernel Module[^\n]*?\s(\d+\.[\d.]+)"),
    )


def plugin_loaded(maps: Path = Path("/proc/self/maps")) -> bool:
    """Whether this process has the plugin in memory; NCCL loads it with its first communicator."""
    return maps.exists() and any(name in maps.read_text() for name in PLUGIN_NAMES)


def findings(
    fabric: Fabric, *, nodes: int, devices: int, loaded: bool, cuda: str | None = torch.version.cuda
) -> list[tuple[str, bool]]:
    """What does not go together on a node, and whether it is a reason to stop.

    `devices`: GPUs that torch sees; `loaded`: the plugin is in memory after a collective over them. On a
    node alone, whose GPUs talk over NVLink, nothing about the network is a reason.
    """
    found = [*_driver(fabric, devices, cuda)]
    if fabric.efa and devices:
        network = [*_network(fabric, loaded), *_versions(fabric)]
        found += [(text, stops and nodes > 1) for text, stops in network]
    return found


def _driver(fabric: Fabric, devices: int, cuda: str | None) -> Iterator[tuple[str, bool]]:
    if fabric.driver is None or cuda is None or devices:
        return
    needed = DRIVER_AT_LEAST.get(int(cuda.partition(".")[0]), (0,))
    why = "the container was given none, or the driver is broken"
    if _numbers(fabric.driver) < needed:
        why = f"CUDA {cuda} needs driver {_text(needed)} or newer"
    yield f"driver {fabric.driver}, but torch sees no GPU: {why}", True


def _network(fabric: Fabric, loaded: bool) -> Iterator[tuple[str, bool]]:
    if not fabric.given:
        fix = "ask for vpc.amazonaws.com/efa, or mount /dev/infiniband"
        yield f"{fabric.efa} EFA devices, none of them in this container: {fix}", True
    if fabric.plugin is None:
        yield "EFA without aws-ofi-nccl: NCCL uses TCP; take an image with the EFA installer", True
    elif not loaded:
        fix = "put its folder and libfabric's on LD_LIBRARY_PATH; NCCL_DEBUG=INFO says more"
        yield f"EFA, but NCCL did not load {fabric.plugin} and uses TCP: {fix}", True


def _versions(fabric: Fabric) -> Iterator[tuple[str, bool]]:
    if fabric.libfabric and _numbers(fabric.libfabric) < LIBFABRIC_AT_LEAST:
        needed = f"{_text(LIBFABRIC_AT_LEAST)} or newer: take a newer EFA installer"
        yield f"libfabric {fabric.libfabric}: for EFA, aws-ofi-nccl needs {needed}", True
    nccl = _numbers(fabric.nccl or "")
    if nccl and nccl < NCCL_AT_LEAST:
        yield f"NCCL {fabric.nccl}: aws-ofi-nccl needs {_text(NCCL_AT_LEAST)} or newer", True
    series = _numbers(fabric.ofi_nccl or "")[:2]
    oldest, tested = min(NCCL_TESTED), NCCL_TESTED.get(series)
    if series and series < oldest:
        yield f"aws-ofi-nccl {fabric.ofi_nccl}: older than {_text(oldest)}; take a newer EFA installer", False
    if tested and nccl[:2] > tested:
        last = f"the last that aws-ofi-nccl {fabric.ofi_nccl} was tested with"
        yield f"NCCL {fabric.nccl} is newer than {_text(tested)}, {last}", False
    brought = INSTALLERS.get(fabric.installer or "", (None, None))
    used = {"aws-ofi-nccl": fabric.ofi_nccl, "libfabric": fabric.libfabric}
    for (name, version), came in zip(used.items(), brought, strict=True):
        if version and came and version != came:
            yield f"{name} {version} is in use, EFA installer {fabric.installer} came with {came}", False


def _plugin(root: Path, environment: Mapping[str, str]) -> Path | None:
    """The file that NCCL would take: by name or path from NCCL_NET_PLUGIN, else the first that is there."""
    asked = environment.get("NCCL_NET_PLUGIN", "")
    if "/" in asked:
        given = root / asked.lstrip("/")
        return given if given.exists() else None
    names = (f"libnccl-net-{asked}.so", asked) if asked else PLUGIN_NAMES
    listed = [entry.lstrip("/") for entry in environment.get("LD_LIBRARY_PATH", "").split(":") if entry]
    places = (root / folder / name for folder in (*listed, *PLUGIN_FOLDERS) for name in names)
    return next((place for place in places if place.exists()), None)


def _libfabric(root: Path) -> str | None:
    """As the library's own tool says: `libfabric: 2.4.0amzn5.0`."""
    tool = root / "opt/amazon/efa/bin/fi_info"
    try:
        said = subprocess.run([tool, "--version"], capture_output=True, timeout=20, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(rb"^libfabric: (\S+)", said, re.MULTILINE)
    return match[1].decode() if match else None


def _search(file: Path, pattern: bytes) -> str | None:
    """First group of the first match in a file; None where there is neither."""
    try:
        with file.open("rb") as content:
            try:
                data: bytes | mmap.mmap = mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError):  # files of /proc have no size
                data = content.read()
            match = re.search(pattern, data)
            return match[1].decode() if match else None
    except OSError:
        return None


def _vendor(device: Path) -> str:
    try:
        return (device / "device/vendor").read_text().strip()
    except OSError:
        return ""


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _numbers(version: str) -> tuple[int, ...]:
    """`2.4.0amzn5.0` → (2, 4, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
