"""settings.json from both sides: the node reads what CDK uploads, and refuses what it does not know."""

from __future__ import annotations

import ast
import copy
import json
import re
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from tests.engines.machine import need
from tests.support import ROOT, only
from trainshed.hyperpod import Mount
from trainshed.lifecycle import SETTINGS_VERSION
from trainshed.planning.model import ClusterPlan, InstanceGroupPlan
from trainshed.planning.nodes import Directory, LogDestination, MetricsDestination, NodeServices
from trainshed.settings import settings_of

LIFECYCLE = ROOT / "lifecycle"
STDLIB = sys.stdlib_module_names


@pytest.fixture(scope="module")
def node():
    """`lifecycle/settings.py` as the node loads it."""
    spec = util.spec_from_file_location("node_settings", LIFECYCLE / "settings.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files(folder: Path) -> set[str]:
    """What lies in a folder, but for Python's own leavings."""
    found = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    return {p.as_posix() for p in found if "__pycache__" not in p.parts}


def uploaded(assembly, stack: str, folder: Path) -> Path:
    """What the upload leaves in the bucket's folder, deploy-time values filled in."""
    properties = only(assembly.templates[stack], "Custom::CDKBucketDeployment")[1]["Properties"]
    for key, markers in zip(properties["SourceObjectKeys"], properties["SourceMarkers"], strict=True):
        shutil.copytree(assembly.asset(key), folder, dirs_exist_ok=True)
        for path in (p for p in folder.rglob("*") if p.is_file()):
            text = path.read_text(encoding="utf-8")
            for number, marker in enumerate(markers):
                text = text.replace(marker, f"value-{number}")
            path.write_text(text, encoding="utf-8")
    return folder


EXAMPLES = {
    "quickstart": "quickstart-us-east-2-train",
    "slurm-production": "fleet-us-west-2-train",
    "existing-vpc": "guest-us-east-1-train",
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_cdk_uploads_the_node_reads(node, assembly, tmp_path, example: str):
    made = assembly(example)
    stack = EXAMPLES[example]
    folder = uploaded(made, stack, tmp_path / "train")
    assert files(LIFECYCLE) | {"settings.json"} == files(folder)
    text = (folder / "settings.json").read_text(encoding="utf-8")
    assert "Token[" not in text
    assert "<<marker" not in text
    settings = node.load(folder / "settings.json")
    cluster = only(made.templates[stack], "AWS::SageMaker::Cluster")[1]["Properties"]
    types = {g["InstanceGroupName"]: g["InstanceType"] for g in cluster["InstanceGroups"]}
    assert {name: group["instance_type"] for name, group in settings["groups"].items()} == types
    mounts = {
        config["MountPath"]
        for g in cluster["InstanceGroups"]
        for c in g["InstanceStorageConfigs"]
        for config in c.values()
        if "MountPath" in config
    }
    told = {s["mount_path"] for s in (settings["lustre"], settings["home"]) if s}
    assert told == mounts


def test_both_sides_are_at_one_version(node):
    assert node.VERSION == SETTINGS_VERSION


GROUP = InstanceGroupPlan(
    name="cpu", role="worker", instance_types=("ml.m5.4xlarge",), count=1, grow_to=1, zone="use2-az1",
    claim="c", path="p", partition="cpu", scratch_gb=100,
)  # fmt: skip
SERVICES = NodeServices(
    ldap=Directory(uri="ldaps://directory", base="dc=example"),
    metrics=MetricsDestination(url="https://metrics/write", auth="none"),
    logs=LogDestination(to="syslog", host="logs"),
)
LUSTRE = Mount(dns_name="fs-1.fsx", mount_name="abcdefgh", mount_path="/fsx")
HOME = Mount(dns_name="fs-2.fsx", mount_path="/home")


def written(mounts=(LUSTRE, HOME), **more: object) -> dict[str, object]:
    cluster = ClusterPlan(
        name="train", orchestrator="slurm", groups=(GROUP,), path="clusters.train", nodes=SERVICES
    )
    buckets = {"datasets": "d", "checkpoints": "c", "lifecycle": "l"}
    settings = settings_of(
        platform="fleet", region="us-east-2", cluster=cluster, mounts=mounts, lustre_efa=True, buckets=buckets
    )
    return {"version": SETTINGS_VERSION, **settings, **more}


def save(path: Path, settings: object) -> Path:
    path.write_text(json.dumps(settings), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "mounts", [(), (LUSTRE,), (HOME,), (HOME, LUSTRE)], ids=["none", "lustre", "home", "both"]
)
def test_whatever_is_mounted_can_be_read(node, tmp_path, mounts):
    settings = node.load(save(tmp_path / "settings.json", written(mounts)))
    assert (settings["lustre"] is not None) == (LUSTRE in mounts)
    assert (settings["home"] is not None) == (HOME in mounts)
    assert settings["groups"]["cpu"]["scratch"] == "/opt/sagemaker"


def without(path: str) -> dict[str, object]:
    return changed(path, ...)


def changed(path: str, value: object) -> dict[str, object]:
    settings = copy.deepcopy(written())
    *parents, last = path.split(".")
    at: dict[str, object] = settings
    for part in parents:
        at = at[part]  # type: ignore[assignment]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return settings


TOP = (
    "version", "platform", "cluster", "region", "orchestrator", "lustre", "home", "buckets", "groups",
    "nodes",
)  # fmt: skip
INSIDE = (
    "lustre.efa",
    "home.dns_name",
    "buckets.datasets",
    "groups.cpu.role",
    "groups.cpu.scratch",
    "groups.cpu.partition",
    "groups.cpu.environment",
    "nodes.ldap",
    "nodes.certificates.files",
    "nodes.metrics.auth",
    "nodes.logs.tls",
    "nodes.health.xids",
)


@pytest.mark.parametrize(
    "settings",
    [
        *(pytest.param(without(path), id=f"without {path}") for path in (*TOP, *INSIDE)),
        *(
            pytest.param(changed(path, 1), id=f"unknown {path}")
            for path in (
                "new",
                "lustre.new",
                "home.new",
                "buckets.new",
                "groups.cpu.new",
                "nodes.new",
                "nodes.logs.new",
            )
        ),
        *(
            pytest.param(changed("version", v), id=f"version {v}")
            for v in (0, SETTINGS_VERSION + 1, "1", None)
        ),
        *(
            pytest.param(changed(path, []), id=f"{path} a list")
            for path in ("buckets", "groups", "groups.cpu", "lustre", "nodes", "nodes.metrics")
        ),
        *(
            pytest.param(changed(path, None), id=f"{path} null")
            for path in ("buckets", "groups", "groups.cpu", "nodes", "nodes.health")
        ),
        pytest.param([], id="a list"),
        pytest.param("text", id="a text"),
        pytest.param(None, id="null"),
    ],
)
def test_what_it_does_not_know_is_refused_in_one_line(node, tmp_path, settings, capsys):
    path = save(tmp_path / "settings.json", settings)
    with pytest.raises(node.SettingsError) as caught:
        node.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "deploy" in str(caught.value), "what to do"
    assert node.main(path, save(tmp_path / "resource_config.json", {})) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [str(caught.value)]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", None], ids=["empty", "cut off", "not UTF-8", "absent"]
)
def test_a_damaged_file_is_refused_in_one_line(node, tmp_path, content):
    path = tmp_path / "settings.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(node.SettingsError, match="cannot be read") as caught:
        node.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "group"),
    [
        ({"InstanceGroups": [{"Name": "p5", "Instances": [{"CustomerIpAddress": "10.16.0.9"}]}]}, "p5"),
        ({"InstanceGroups": [{"Name": "p5", "Instances": [{"AgentIpAddress": "10.16.0.9"}]}]}, "p5"),
        ({"InstanceGroups": [{"Name": "a", "Instances": []}, {"Name": "b"}]}, None),
        ({"InstanceGroups": [{"Name": "c", "Instances": None}]}, None),
        ({"InstanceGroups": [{"Name": "p5", "Instances": [{"CustomerIpAddress": "10.16.0.8"}]}]}, None),
        ({"InstanceGroups": None}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_a_node_finds_its_group(node, config, group):
    """Groups scaled to nothing are normal."""
    assert node.own_group(config, {"10.16.0.9", "172.17.0.1"}) == group


FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.16.0.0/22 2 0 2
        +-- 10.16.0.0/28 2 0 2
           |-- 10.16.0.0
              /22 link UNICAST
           |-- 10.16.0.9
              /32 host LOCAL
        |-- 10.16.3.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
Local:
     |-- 10.16.0.9
        /32 host LOCAL
     |-- 172.17.0.1
        /32 host LOCAL
"""


def test_a_node_knows_its_own_addresses(node, tmp_path, monkeypatch):
    """A14: not by asking the network, which may not be up; and never 127.0.0.1."""
    table = tmp_path / "fib_trie"
    table.write_text(FIB_TRIE, encoding="ascii")
    monkeypatch.setattr(node, "Path", lambda _: table)
    assert node.node_addresses() == {"10.16.0.9", "172.17.0.1"}


@pytest.mark.parametrize("path", sorted(LIFECYCLE.glob("**/*.py")), ids=lambda p: p.name)
def test_steps_need_the_standard_library_alone(path: Path):
    """C7: nothing is installed with pip at boot; the AMI's Python must do, so 3.10's grammar."""
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    siblings = {p.stem for p in LIFECYCLE.glob("**/*.py")}
    assert {name.partition(".")[0] for name in names} <= STDLIB | siblings


# Prolog and epilog go on past a failure by design, and jobs speak to git.
AT_BOOT = sorted([*LIFECYCLE.glob("*.sh"), *LIFECYCLE.glob("steps/*.sh")])
FETCHES = re.compile(r"\b(curl|wget|git|pip3?|npm|go)\b +\S|https?://")
APT = re.compile(r"\b(apt|apt-get|dpkg)\b +\S")


def faults(script: str) -> list[str]:
    """Lines that fetch from the network, or call apt without waiting for its lock."""
    code = [line for line in script.splitlines() if not line.lstrip().startswith("#")]
    fetching = [line for line in code if FETCHES.search(line)]
    return fetching + [line for line in code if APT.search(line) and "DPkg::Lock::Timeout" not in line]


@pytest.mark.parametrize("path", AT_BOOT, ids=lambda p: p.name)
def test_nothing_is_fetched_at_boot_and_apt_waits_for_its_lock(path: Path):
    """C1, C3, C4, C5."""
    assert faults(path.read_text(encoding="utf-8")) == []


def test_the_lint_would_notice():
    """C1, C3."""
    bad = [
        "curl -sf x",
        "git clone x",
        "pip install x",
        "open https://example.com",
        "apt-get install -y x",
        "apt update",
    ]
    assert faults("\n".join(bad)) == bad
    assert faults("# curl x\napt-get -o DPkg::Lock::Timeout=300 install x\nmkdir -p /opt/sagemaker") == []


@pytest.mark.parametrize("path", AT_BOOT, ids=lambda p: p.name)
def test_scripts_stop_at_the_first_error(path: Path):
    """C13: run, not sourced: nothing returns from outside a function."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text or '. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"\n' in text
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0


SCRIPTS = sorted(p for p in LIFECYCLE.rglob("*") if p.suffix in (".sh", ".sbatch"))


def test_shellcheck_and_shfmt_find_nothing():
    need(shellcheck="shellcheck", shfmt="shfmt")
    for command in (["shellcheck"], ["shfmt", "-i", "2", "-d"]):
        done = subprocess.run([*command, *SCRIPTS], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
