"""The OpenZFS home: capacity, throughput ladders and addresses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import resources

import botocore.session
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.planning import openzfs
from trainshed.planning.fsx import MOST_BACKUP_DAYS
from trainshed.planning.storage import OpenZfsPlan, check_openzfs

AT = "storage.home"
HOME = OpenZfsPlan(name="home", zone="use2-az1", capacity_gib=512, throughput_mbps=160)


def check(plan: OpenZfsPlan) -> dict[str, str]:
    problems = check_openzfs(plan, path=AT)
    assert all(part.strip() for p in problems for part in (p.path, p.given, p.allowed, p.fix))
    return {problem.path.removeprefix(f"{AT}."): problem.allowed for problem in problems}


@pytest.mark.parametrize(
    "plan",
    [
        HOME,
        replace(HOME, capacity_gib=64),
        replace(HOME, capacity_gib=524_288, throughput_mbps=10_240),
        replace(HOME, deployment="SINGLE_AZ_1", throughput_mbps=64),
        replace(HOME, deployment="SINGLE_AZ_HA_1", throughput_mbps=4_096),
        replace(HOME, compression="zstd", backup_days=0, maintenance="7:03:00"),
    ],
)
def test_accepted(plan: OpenZfsPlan):
    assert check(plan) == {}


@pytest.mark.parametrize(
    ("plan", "path", "allowed"),
    [
        (replace(HOME, capacity_gib=63), "capacity_gib", "64 to 524288 GiB"),
        (replace(HOME, capacity_gib=524_289), "capacity_gib", "64 to 524288 GiB"),
        (replace(HOME, throughput_mbps=64), "throughput_mbps", "160 MB/s (SINGLE_AZ_HA_2 offers 160, 320,"),
        (replace(HOME, throughput_mbps=1_000), "throughput_mbps", "640 or 1280 MB/s"),
        (replace(HOME, throughput_mbps=20_000), "throughput_mbps", "10240 MB/s"),
        (replace(HOME, deployment="SINGLE_AZ_1"), "throughput_mbps", "128 or 256 MB/s"),
        (replace(HOME, deployment="MULTI_AZ_1"), "deployment", "SINGLE_AZ_HA_2, SINGLE_AZ_HA_1"),
        (replace(HOME, compression="gzip"), "compression", "lz4, zstd or none"),
        (replace(HOME, backup_days=91), "backup_days", "0 (no automatic backups) to 90 days"),
        (replace(HOME, maintenance="7:25:00"), "maintenance", "d:HH:MM"),
    ],
)
def test_refused(plan: OpenZfsPlan, path: str, allowed: str):
    problems = check(plan)
    assert list(problems) == [path]
    assert problems[path].startswith(allowed)


def test_problems_come_together():
    plan = replace(HOME, capacity_gib=1, throughput_mbps=1, compression="x", backup_days=-1, maintenance="x")
    assert list(check(plan)) == [
        "capacity_gib", "throughput_mbps", "compression", "backup_days", "maintenance",
    ]  # fmt: skip


@given(st.sampled_from(sorted(openzfs.THROUGHPUT_MBPS)), st.integers(-5, 12_000))
def test_the_neighbours_are_accepted_and_bracket_the_request(deployment: str, mbps: int):
    plan = replace(HOME, deployment=deployment, throughput_mbps=mbps)
    problems = check_openzfs(plan, path=AT)
    if not problems:
        return
    around = [int(n) for n in re.findall(r"\d+", problems[0].allowed.partition(" MB/s")[0])]
    assert all(check(replace(plan, throughput_mbps=step)) == {} for step in around)
    assert len(around) == 1 or around[0] < mbps < around[1]
    assert int(problems[0].fix.rpartition(" ")[2]) in around


@pytest.mark.parametrize(
    ("deployment", "addresses"),
    [("SINGLE_AZ_HA_2", 3), ("SINGLE_AZ_HA_1", 3), ("SINGLE_AZ_2", 1), ("SINGLE_AZ_1", 1)],
)
def test_addresses(deployment: str, addresses: int):
    assert replace(HOME, deployment=deployment).addresses == addresses


def test_figures_agree_with_the_api_and_cfn_lint():
    fsx = botocore.session.get_session().get_service_model("fsx")
    members = fsx.shape_for("CreateFileSystemOpenZFSConfiguration").members
    text = re.sub("<[^>]+>", "", members["ThroughputCapacity"].documentation)
    ladders = re.findall(r"valid values are(.*?)MBps", text)
    second, first = (tuple(int(n) for n in re.findall(r"\b\d+\b", ladder)) for ladder in ladders)
    assert openzfs.THROUGHPUT_MBPS["SINGLE_AZ_2"] == second
    assert openzfs.THROUGHPUT_MBPS["SINGLE_AZ_1"] == first
    assert set(fsx.shape_for("OpenZFSDeploymentType").enum) - {"MULTI_AZ_1"} == set(openzfs.ADDRESSES)
    kinds = fsx.shape_for("OpenZFSDataCompressionType").enum
    assert {kind.lower() for kind in kinds} == set(openzfs.COMPRESSIONS)
    assert members["AutomaticBackupRetentionDays"].metadata["max"] == MOST_BACKUP_DAYS
    assert "default is <code>30</code>" in members["AutomaticBackupRetentionDays"].documentation
    package = resources.files("cfnlint.data.schemas.extensions.aws_fsx_filesystem")
    rules = json.loads((package / "storage_capacity.json").read_text())["allOf"]
    (rule,) = [r for r in rules if r["if"]["properties"]["FileSystemType"]["enum"] == ["OPENZFS"]]
    bounds = rule["then"]["properties"]["StorageCapacity"]
    assert (bounds["minimum"], bounds["maximum"]) == openzfs.CAPACITY_GIB
