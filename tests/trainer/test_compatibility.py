"""Versions under NCCL: read from a tree of files as nodes have it, and judged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.trainer.ranks import run_ranks
from trainer import preflight
from trainer.compatibility import Fabric, findings, plugin_loaded, read
from trainer.errors import TrainerError
from trainer.folders import open_folder

GOOD = Fabric(
    efa=2,
    given=2,
    installer="1.49.0",
    libfabric="2.4.0amzn5.0",
    ofi_nccl="1.20.0",
    plugin="/opt/amazon/ofi-nccl/lib64/libnccl-net-ofi.so",
    nccl="2.30.7",
    driver="580.95.05",
)


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture
def node(tmp_path) -> Path:
    """Files of a p5 node as kernel and image have them: two EFA devices, one device of another maker."""
    for name, vendor in {"rdmap79s0": "0x1d0f", "rdmap80s0": "0x1d0f", "mlx5_0": "0x15b3"}.items():
        write(tmp_path / "sys/class/infiniband" / name / "device/vendor", f"{vendor}\n")
    for number in range(2):
        write(tmp_path / f"dev/infiniband/uverbs{number}", "")
    write(
        tmp_path / "opt/amazon/efa_installed_packages",
        "# EFA installer version: 1.49.0\n# Debug packages installed: no\n# Packages installed:\nefa-config",
    )
    tool = write(
        tmp_path / "opt/amazon/efa/bin/fi_info",
        "#!/bin/sh\nprintf 'fi_info: 2.4.0amzn5.0\nlibfabric: 2.4.0amzn5.0\nlibfabric api: 2.4\n'\n",
    )
    tool.chmod(0o755)
    plugin(tmp_path / "opt/amazon/ofi-nccl/lib64/libnccl-net-ofi.so", "1.20.0")
    write(
        tmp_path / "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@ip)  Tue\n"
        "GCC version:  gcc version 11.4.0\n",
    )
    return tmp_path


def plugin(path: Path, version: str) -> None:
    write(path, b"\x7fELF\0NET/OFI Initializing aws-ofi-nccl " + version.encode() + b"\0\0more")


# ------------------------------------------------------------------------------------ reading


def test_a_node_with_efa_is_read_as_it_is(node):
    found = read(node, {})
    assert found.nccl == ".".join(map(str, torch.cuda.nccl.version()))
    assert found == Fabric(**vars(GOOD) | {"nccl": found.nccl, "plugin": str(node) + str(GOOD.plugin)})


def test_a_machine_without_any_of_it(tmp_path):
    found = read(tmp_path, {})
    assert found == Fabric(nccl=found.nccl)


def test_the_driver_of_a_closed_kernel_module_is_read_too(tmp_path):
    write(
        tmp_path / "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n",
    )
    assert read(tmp_path, {}).driver == "535.183.01"
    assert read(tmp_path, {"CUDA_VISIBLE_DEVICES": ""}).driver is None, "this run wants no GPU"


def test_the_plugin_that_the_path_finds_first_is_the_one_that_counts(node):
    plugin(node / "usr/local/lib/libnccl-net.so", "1.9.1-aws")
    assert read(node, {"LD_LIBRARY_PATH": "/nowhere:/usr/local/lib"}).ofi_nccl == "1.9.1-aws"
    assert read(node, {"NCCL_NET_PLUGIN": "ofi"}).ofi_nccl == "1.20.0"
    assert read(node, {"NCCL_NET_PLUGIN": "/usr/local/lib/libnccl-net.so"}).ofi_nccl == "1.9.1-aws"
    assert read(node, {"NCCL_NET_PLUGIN": "none"}).plugin is None


def test_a_tool_that_fails_leaves_the_version_open(node):
    (node / "opt/amazon/efa/bin/fi_info").write_text("#!/bin/sh\nexit 3\n")
    assert read(node, {}).libfabric is None


def test_the_plugin_in_memory_is_seen(tmp_path):
    line = "7f0000-7f1000 r-xp 0 103:01 9 /opt/amazon/ofi-nccl/lib64/{}\n"
    assert plugin_loaded(write(tmp_path / "a", line.format("libnccl-net-ofi.so"))) is True
    assert plugin_loaded(write(tmp_path / "b", line.format("libfabric.so.1"))) is False
    assert plugin_loaded() is False


# ------------------------------------------------------------------------------------- judging


def judged(*, nodes: int = 2, devices: int = 8, loaded: bool = True, cuda: str = "13.0", **changed):
    return findings(Fabric(**vars(GOOD) | changed), nodes=nodes, devices=devices, loaded=loaded, cuda=cuda)


def test_what_the_default_image_brings_goes_together():
    assert judged() == []


@pytest.mark.parametrize(
    ("changed", "text", "stops"),
    [
        ({"loaded": False}, "NCCL did not load /opt/amazon/ofi-nccl", True),
        (
            {"plugin": None, "ofi_nccl": None, "loaded": False},
            "EFA without aws-ofi-nccl: NCCL uses TCP",
            True,
        ),
        ({"given": 0}, "2 EFA devices, none of them in this container: ask for vpc.amazonaws.com/efa", True),
        ({"libfabric": "1.21.0amzn4.0", "installer": None}, "aws-ofi-nccl needs 1.22 or newer", True),
        ({"nccl": "2.16.5"}, "NCCL 2.16.5: aws-ofi-nccl needs 2.17", True),
        ({"nccl": "2.31.0"}, "newer than 2.30, the last that aws-ofi-nccl 1.20.0 was tested with", False),
        ({"ofi_nccl": "1.9.1-aws", "installer": None}, "aws-ofi-nccl 1.9.1-aws: older than 1.14", False),
        ({"libfabric": "2.1.0amzn5.0"}, "EFA installer 1.49.0 came with 2.4.0amzn5.0", False),
    ],
)
def test_what_does_not_go_together_is_one_line(changed, text, stops):
    ((told, stop),) = judged(**changed)
    assert text in told
    assert stop is stops
    assert not any(stop for _, stop in judged(nodes=1, **changed)), "one node alone does not use the network"
    assert judged(**changed | {"efa": 0}) == [], "no EFA, no demands"


@pytest.mark.parametrize(
    ("driver", "text"), [("570.10", "CUDA 13.0 needs driver 580"), ("580.95.05", "given none")]
)
def test_a_driver_without_gpus_stops_even_one_node(driver, text):
    ((told, stops),) = judged(devices=0, nodes=1, driver=driver)
    assert f"driver {driver}, but torch sees no GPU" in told
    assert text in told
    assert stops
    assert judged(devices=0, driver=None) == []


# ------------------------------------------------------------------------------------ preflight


def _node(rank: int, strict: bool, folder: str) -> str:
    os.environ["LOCAL_RANK"] = "0"  # each rank is a node
    preflight.read = lambda: Fabric(**vars(GOOD) | ({"libfabric": "1.20.0"} if rank else {}))
    real = preflight.describe
    preflight.describe = lambda cache: preflight.replace(real(cache), devices=8, cache_type="xfs")
    preflight.plugin_loaded = lambda: True
    try:
        preflight.preflight(torch.device("cpu"), folder, open_folder(folder), strict=strict)
    except TrainerError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("strict", [True, False])
def test_preflight_says_it_and_stops_where_the_recipe_wants_it(strict, tmp_path, capfd):
    errors = run_ranks(2, _node, strict, str(tmp_path))
    said = [entry for entry in capfd.readouterr().out.splitlines() if entry.startswith("[trainer]")]
    nodes = [entry for entry in said if " node=" in entry]
    assert len(nodes) == 2
    assert (
        "efa=2/2 libfabric=2.4.0amzn5.0 nccl=2.30.7 ofi_nccl=1.20.0 installer=1.49.0 driver=580.95.05"
        in nodes[0]
    )
    assert "libfabric=1.20.0" in nodes[1]
    fatal = [entry for entry in said if entry.startswith("[trainer] FATAL reason=preflight")]
    assert any("libfabric differs between nodes" in entry for entry in said)
    if strict:
        assert len(fatal) == 1
        assert "for EFA, aws-ofi-nccl needs 1.22 or newer" in fatal[0]
        assert all("allowed nodes that fit and agree; " in error for error in errors)
    else:
        assert errors == ["", ""]
        assert fatal == []
