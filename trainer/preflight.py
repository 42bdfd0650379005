"""Before the first step: does every rank reach every other, is each node fit? One line per check and node.

A failed check that would fail the run for certain stops it with one line (exit 2); the rest is a warning.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.compatibility import Fabric, findings, plugin_loaded, read
from trainer.errors import TrainerError
from trainer.folders import Folder
from trainer.state import cause
from trainer.tracking import emit, fatal

CLOCK_LIMIT_S = 5.0  # S3 refuses signatures at 15 minutes; logs of nodes are unreadable long before
DISK_LIMIT_BYTES = 1 << 30  # less free than this is told
VOLATILE = ("tmpfs", "overlay")  # file systems that a cache should not lie on by accident


@dataclass(frozen=True)
class Node:
    """What one node says about itself. Sizes in bytes, `clock` in seconds since 1970."""

    host: str
    torch: str
    python: str
    devices: int
    clock: float
    cache: str
    cache_type: str
    cache_free: int
    shm_free: int
    fabric: Fabric = field(default_factory=Fabric)
    plugin_loaded: bool = False


def describe(cache: str) -> Node:
    """This node; `cache` is where shards are kept."""
    place = _existing(Path(cache))
    return Node(
        host=socket.gethostname(),
        torch=torch.__version__,
        python=platform.python_version(),
        devices=torch.cuda.device_count(),
        clock=time.time(),
        cache=str(cache),
        cache_type=file_system(place),
        cache_free=shutil.disk_usage(place).free,
        shm_free=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0,  # noqa: S108
        fabric=read(),
    )


def file_system(path: Path) -> str:
    """Type of the file system that a path lies on, as /proc/mounts names it; `?` elsewhere than Linux."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "?"
    entries = [entry.split()[1:3] for entry in mounts.read_text().splitlines()]
    resolved = path.resolve()
    under = [(point, kind) for point, kind in entries if resolved.is_relative_to(point)]
    return max(under, key=lambda entry: len(entry[0]), default=("", "?"))[1]


def compare(nodes: list[Node], ranks_per_node: int) -> list[tuple[str, bool]]:
    """Findings over all nodes: a text, and whether it must stop the run."""
    found: list[tuple[str, bool]] = []
    for what in ("torch", "python"):
        versions = {getattr(node, what): node.host for node in nodes}
        if len(versions) > 1:
            found.append((f"{what} differs between nodes: {versions}", True))
    for what in ("nccl", "libfabric", "ofi_nccl", "efa"):
        values = {str(getattr(node.fabric, what)): node.host for node in nodes}
        if len(values) > 1:
            found.append((f"{what} differs between nodes: {values}", what == "nccl"))
    spread = max(node.clock for node in nodes) - min(node.clock for node in nodes)
    if spread > CLOCK_LIMIT_S:
        found.append((f"clocks differ by {spread:.0f} s: check chrony on the nodes", False))
    for node in nodes:
        if node.devices and node.devices < ranks_per_node:
            found.append((f"{node.host} has {node.devices} devices for {ranks_per_node} ranks", True))
        if node.cache_free < DISK_LIMIT_BYTES:
            found.append((f"{node.host} has {node.cache_free >> 20} MiB free at {node.cache}", False))
        if node.devices and node.cache_type in VOLATILE:
            found.append((f"{node.host}: cache {node.cache} lies on {node.cache_type}, not on NVMe", False))
        parts = findings(node.fabric, nodes=len(nodes), devices=node.devices, loaded=node.plugin_loaded)
        found += [(f"{node.host}: {text}", stops) for text, stops in parts]
    return found


def check_all_reduce(device: torch.device, megabytes: int = 4) -> float:
    """Sum ranks over all ranks and compare; returns GB/s of a ring all-reduce of `megabytes`. Collective."""
    rank, world = dist.get_rank(), dist.get_world_size()
    data = torch.full((megabytes << 18,), float(rank + 1), device=device)
    small = data[:1].clone()
    dist.all_reduce(small)  # connects
    if small.item() != world * (world + 1) / 2:
        raise TrainerError(
            "preflight",
            f"all-reduce of {world} ranks gave {small.item()}",
            f"{world * (world + 1) / 2}",
            "replace the node: run preflight on halves of the nodes to find it",
        )
    started = time.perf_counter()
    dist.all_reduce(data)
    float(data[0])  # wait for the device
    return 2 * (world - 1) / world * data.nbytes / (time.perf_counter() - started) / 1e9


def check_folder(folder: Folder) -> str | None:
    """Whether checkpoints can be written: what is wrong, in a few words."""
    try:
        folder.put("preflight/probe", b"")
        folder.remove("preflight", ["probe"])
    except Exception as failure:
        return f"checkpoints cannot be written to {folder.url}: {cause(failure)}"
    return None


def preflight(device: torch.device, cache: str, checkpoints: Folder, *, strict: bool = True) -> None:
    """All checks; lines from rank 0. Not `strict`: what would stop the run is a warning, too. Collective."""
    dist.barrier()  # clocks are read at one moment
    mine = describe(cache) if int(os.environ.get("LOCAL_RANK", "0")) == 0 else None
    speed = check_all_reduce(device)
    if mine is not None:
        mine = replace(mine, plugin_loaded=plugin_loaded())  # by the collective
    rows: list[Node | None] = [None] * dist.get_world_size()
    dist.all_gather_object(rows, mine)
    nodes = [node for node in rows if node is not None]
    found = compare(nodes, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if dist.get_rank() == 0:
        for node in nodes:
            emit(
                "preflight",
                node=node.host,
                torch=node.torch,
                python=node.python,
                devices=node.devices,
                cache=node.cache_type,
                cache_free_gib=node.cache_free >> 30,
                shm_free_gib=node.shm_free >> 30,
                efa=f"{node.fabric.given}/{node.fabric.efa}",
                libfabric=node.fabric.libfabric,
                nccl=node.fabric.nccl,
                ofi_nccl=node.fabric.ofi_nccl,
                installer=node.fabric.installer,
                driver=node.fabric.driver,
            )
        emit("preflight", all_reduce="ok", ranks=dist.get_world_size(), gb_per_s=round(speed, 2))
        if (text := check_folder(checkpoints)) is not None:  # it may be back when the first save comes
            found.append((text, False))
        for text, stops in found:
            if strict and stops:
                fatal("preflight", text, step=0)
            else:
                emit("preflight_warning", text=text)
    if strict and (reasons := [text for text, stops in found if stops]):
        fix = "replace or repair the node, then start again; resilience.preflight: warn goes on all the same"
        raise TrainerError("preflight", reasons[0], "nodes that fit and agree", fix)


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
