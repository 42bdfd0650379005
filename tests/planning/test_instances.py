"""The instance table against AWS's sentences and tables, EC2's DescribeInstanceTypes and the API's enum."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import botocore.session
import moto
import pytest

from trainshed.planning.instances import (
    EXCLUDED,
    INSTANCE_TYPES,
    SOURCES,
    InstanceType,
    UnknownInstanceType,
    lookup,
)

# "Getting started with Amazon EKS support in SageMaker HyperPod", table of max pods, as AWS prints it.
AWS_MAX_PODS = {
    3: "c6g.medium c7g.medium c8g.medium m6g.medium m7g.medium m8g.medium",
    5: "t3.medium",
    9: """c5.large c5n.large m5.large g4dn.xlarge g4dn.2xlarge g4dn.4xlarge c6g.large c7g.large c8g.large
          c6a.large m6a.large m6g.large m7g.large m8g.large""",
    11: "t3.large",
    14: """g5.xlarge g5.2xlarge c5.xlarge c5.2xlarge c5n.2xlarge m5.xlarge m5.2xlarge t3.xlarge t3.2xlarge
          g6.xlarge g6.2xlarge g6e.xlarge g6e.2xlarge g4dn.8xlarge g4dn.16xlarge c6g.xlarge c6g.2xlarge
          c7g.xlarge c7g.2xlarge c8g.xlarge c8g.2xlarge c6a.xlarge c6a.2xlarge m6a.xlarge m6a.2xlarge
          m6g.xlarge m6g.2xlarge m7g.xlarge m7g.2xlarge m8g.xlarge m8g.2xlarge""",
    29: """g5.4xlarge g5.8xlarge g5.16xlarge c5.4xlarge c5.9xlarge c5.12xlarge c5n.4xlarge c5n.9xlarge
          m5.4xlarge m5.8xlarge m5.12xlarge g6.4xlarge g6.8xlarge g6.12xlarge gr6.4xlarge gr6.8xlarge
          g6e.4xlarge g6e.8xlarge g6e.12xlarge g4dn.12xlarge c6g.4xlarge c6g.8xlarge c6g.12xlarge
          c7g.4xlarge c7g.8xlarge c7g.12xlarge c8g.4xlarge c8g.8xlarge c8g.12xlarge c6a.4xlarge
          c6a.8xlarge c6a.12xlarge m6a.4xlarge m6a.8xlarge m6a.12xlarge m6g.4xlarge m6g.8xlarge
          m6g.12xlarge m7g.4xlarge m7g.8xlarge m7g.12xlarge m8g.4xlarge m8g.8xlarge m8g.12xlarge""",
    49: """p4d.24xlarge p4de.24xlarge p5.48xlarge trn1.32xlarge trn1n.32xlarge g5.12xlarge g5.24xlarge
          g5.48xlarge c5.18xlarge c5.24xlarge c5n.18xlarge m5.16xlarge m5.24xlarge g6.16xlarge g6.24xlarge
          g6.48xlarge g6e.16xlarge g6e.24xlarge g6e.48xlarge p5e.48xlarge p6-b300.48xlarge r5d.16xlarge
          g7e.2xlarge g7e.4xlarge g7e.8xlarge g7e.12xlarge g7e.24xlarge g7e.48xlarge c6g.16xlarge
          c7g.16xlarge c8g.16xlarge c8g.24xlarge c8g.48xlarge c6a.16xlarge c6a.24xlarge c6a.32xlarge
          c6a.48xlarge m6a.16xlarge m6a.24xlarge m6a.32xlarge m6a.48xlarge m6g.16xlarge m7g.16xlarge
          m8g.16xlarge m8g.24xlarge m8g.48xlarge""",
}

# "Elastic Fabric Adapter", Supported instance types, reduced to what HyperPod accepts: Nitro tab → types.
AWS_EFA_BY_NITRO = {
    6: """g7.8xlarge g7.12xlarge g7.24xlarge g7.48xlarge g7e.8xlarge g7e.12xlarge g7e.24xlarge g7e.48xlarge
          p6-b200.48xlarge p6-b300.48xlarge""",
    5: """m8g.24xlarge m8g.48xlarge c8g.24xlarge c8g.48xlarge p5en.48xlarge p6e-gb200.36xlarge trn2.3xlarge
          trn2.48xlarge""",
    4: """m6a.48xlarge m6i.32xlarge m7g.16xlarge m7i.48xlarge c6a.48xlarge c6i.32xlarge c7g.16xlarge
          r6i.32xlarge r7i.48xlarge g6.8xlarge g6.12xlarge g6.16xlarge g6.24xlarge g6.48xlarge g6e.8xlarge
          g6e.12xlarge g6e.16xlarge g6e.24xlarge g6e.48xlarge gr6.8xlarge p5.4xlarge p5.48xlarge
          p5e.48xlarge trn1.32xlarge trn1n.32xlarge""",
    3: """c5n.9xlarge c5n.18xlarge i3en.12xlarge i3en.24xlarge g4dn.8xlarge g4dn.12xlarge g4dn.16xlarge
          g5.8xlarge g5.12xlarge g5.16xlarge g5.24xlarge g5.48xlarge p4d.24xlarge p4de.24xlarge""",
}

# Where this table does not follow DescribeInstanceTypes: (type, field) → (what EC2 says, why not).
HONEST_DISAGREEMENTS = {
    ("ml.c5n.large", "memory_gib"): (5.25, "whole GiB, rounded down"),
    ("ml.trn2.3xlarge", "accelerator_memory_gib"): (512, "Neuron documentation: 96 GiB of HBM per chip"),
    ("ml.trn2.48xlarge", "accelerator_memory_gib"): (512, "Neuron documentation: 96 GiB of HBM per chip"),
}
NOT_IN_EC2_DUMP = {"ml.p6e-gb200.36xlarge"}


def ml(names: str) -> set[str]:
    return {f"ml.{name}" for name in names.split()}


@pytest.fixture(scope="module")
def ec2() -> dict[str, Any]:
    dump = Path(moto.__file__).parent / "ec2/resources/instance_types.json.gz"
    return json.loads(gzip.decompress(dump.read_bytes()))


@pytest.fixture(scope="module")
def api_enum() -> set[str]:
    model = botocore.session.get_session().get_service_model("sagemaker")
    return set(model.shape_for("ClusterInstanceType").enum)


def sustained_gbps(network: dict[str, Any]) -> float:
    """EC2 words it "Up to 25 Gigabit", "4x 100 Gigabit" or "3200 Gigabit"."""
    words = network["NetworkPerformance"]
    if words.startswith("Up to"):
        (card,) = network["NetworkCards"]
        return card["BaselineBandwidthInGbps"]
    cards, _, rate = words.removesuffix(" Gigabit").rpartition("x ")
    return float(rate) * int(cards or 1)


def as_ec2_says(described: dict[str, Any]) -> dict[str, Any]:
    network = described["NetworkInfo"]
    gpus = described.get("GpuInfo", {}).get("Gpus", [])
    chips = described.get("NeuronInfo", {}).get("NeuronDevices", [])
    disks = described.get("InstanceStorageInfo", {}).get("Disks", [])
    memory_gib = described["MemoryInfo"]["SizeInMiB"] / 1024
    return {
        "vcpus": described["VCpuInfo"]["DefaultVCpus"],
        "memory_gib": int(memory_gib) if memory_gib.is_integer() else memory_gib,
        "architecture": described["ProcessorInfo"]["SupportedArchitectures"][0],
        "accelerator": next((each["Name"] for each in (*gpus, *chips)), None),
        "accelerators": sum(each["Count"] for each in (*gpus, *chips)),
        "accelerator_memory_gib": next(
            (each["MemoryInfo"]["SizeInMiB"] // 1024 for each in (*gpus, *chips)), 0
        ),
        "network_cards": network["MaximumNetworkCards"],
        "efa_interfaces": network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        "ipv4_per_interface": network["Ipv4AddressesPerInterface"],
        "bandwidth_gbps": sustained_gbps(network),
        "nvme_disks": sum(disk["Count"] for disk in disks),
        "nvme_gb_each": next((disk["SizeInGB"] for disk in disks), 0),
        "is_gpu": bool(gpus),
        "is_trainium": bool(chips),
    }


def test_every_type_the_api_accepts_is_in_the_table_or_excluded_with_a_reason(api_enum: set[str]) -> None:
    table, excluded = set(INSTANCE_TYPES), set(EXCLUDED)
    assert not table & excluded
    assert not api_enum - table - excluded, "new in the API: add a row, or exclude it with a reason"
    assert not table - api_enum, "the API no longer accepts these"
    assert not excluded & api_enum, "excluded but accepted by the API: is the reason still true?"
    assert len(table) == 209


def test_every_row_is_what_ec2_describes(ec2: dict[str, Any]) -> None:
    found = {
        (name, field): value
        for name, row in INSTANCE_TYPES.items()
        if name not in NOT_IN_EC2_DUMP
        for field, value in as_ec2_says(ec2[name.removeprefix("ml.")]).items()
        if getattr(row, field) != value
    }
    assert found == {key: said for key, (said, _) in HONEST_DISAGREEMENTS.items()}


def test_only_the_ultraserver_type_lacks_a_description_to_compare_with(ec2: dict[str, Any]) -> None:
    assert {name for name in INSTANCE_TYPES if name.removeprefix("ml.") not in ec2} == NOT_IN_EC2_DUMP


def test_the_ultraserver_type_is_what_the_ec2_page_prints() -> None:
    """EC2: 144 vCPUs, 960 GiB, 4 x NVIDIA B200 with 740 GiB (4 x 185 GiB), 17 cards, 50 addresses per
    interface, 3200 Gigabit, 3 x 7500 GB. SageMaker AI: an UltraServer has up to 18 instances and 72 GPUs."""
    row = lookup("ml.p6e-gb200.36xlarge")
    assert (row.vcpus, row.memory_gib, row.architecture) == (144, 960, "arm64")
    assert (row.accelerator, row.accelerators, row.accelerators * row.accelerator_memory_gib) == (
        "B200",
        4,
        740,
    )
    assert (row.network_cards, row.ipv4_per_interface, row.bandwidth_gbps) == (17, 50, 3200)
    assert (row.nvme_disks, row.nvme_gb_each) == (3, 7500)
    assert row.ultraserver_accelerators == 18 * row.accelerators
    assert {each.name for each in INSTANCE_TYPES.values() if each.ultraserver_accelerators} == {row.name}


def test_p5_addresses_are_the_two_numbers_aws_publishes() -> None:
    p5 = lookup("ml.p5.48xlarge")
    assert p5.addresses_per_node("slurm", "efa") == 32
    assert p5.addresses_per_node("eks", "efa") == 81


def test_no_other_addresses_are_called_published() -> None:
    published = {
        (row.name, orchestrator, interface)
        for row in INSTANCE_TYPES.values()
        for orchestrator in ("slurm", "eks")
        for interface in ("efa", "efa-only")
        if row.addresses_are_published(orchestrator, interface)
    }
    assert published == {("ml.p5.48xlarge", "slurm", "efa"), ("ml.p5.48xlarge", "eks", "efa")}


@pytest.mark.parametrize(
    ("name", "slurm", "eks"),
    [
        ("ml.p4d.24xlarge", 4, 50 + 3),
        ("ml.p5.4xlarge", 1, 30),
        ("ml.p5en.48xlarge", 16, 50 + 15),
        ("ml.p6-b200.48xlarge", 8, 50 + 7),
        ("ml.p6-b300.48xlarge", 17, 50 + 16),
        ("ml.p6e-gb200.36xlarge", 17, 50 + 16),
        ("ml.trn1n.32xlarge", 16, 50 + 15),
        ("ml.g7e.48xlarge", 4, 64 + 3),
        ("ml.g5.xlarge", 1, 15),
        ("ml.c5.large", 1, 10),
    ],
)
def test_addresses_of_other_types_follow_the_published_formula(name: str, slurm: int, eks: int) -> None:
    row = lookup(name)
    assert row.addresses_per_node("slurm", "efa") == slurm
    assert row.addresses_per_node("eks", "efa") == eks


def test_efa_only_interfaces_take_no_address() -> None:
    p5 = lookup("ml.p5.48xlarge")
    assert p5.addresses_per_node("slurm", "efa-only") == 1
    assert p5.addresses_per_node("eks", "efa-only") == 50


@pytest.mark.parametrize("orchestrator", ["slurm", "eks"])
def test_efa_only_of_a_type_without_efa_is_refused(orchestrator: Any) -> None:
    with pytest.raises(
        ValueError, match=r"ml\.g5\.xlarge has no EFA.*'efa-only'.*Allowed.*'efa'.*Use 'efa', or"
    ):
        lookup("ml.g5.xlarge").addresses_per_node(orchestrator, "efa-only")


def test_max_pods_are_what_aws_prints() -> None:
    printed = {name: pods for pods, names in AWS_MAX_PODS.items() for name in ml(names)}
    assert {name: lookup(name).max_pods for name in printed} == printed
    assert {row.name for row in INSTANCE_TYPES.values() if "max-pods" in row.published} == set(printed)


def test_max_pods_leave_the_node_its_own_address_and_stay_under_hyperpods_ceiling() -> None:
    """Also where AWS lists no figure: no type may promise more pods than AWS lists for any type."""
    for row in INSTANCE_TYPES.values():
        assert 0 < row.max_pods < row.ipv4_per_interface
        assert row.max_pods <= max(AWS_MAX_PODS)


def test_efa_nitro_and_rdma_read_are_what_the_efa_page_lists() -> None:
    listed = {name: nitro for nitro, names in AWS_EFA_BY_NITRO.items() for name in ml(names)}
    assert {row.name: row.nitro for row in INSTANCE_TYPES.values() if row.efa_interfaces} == listed
    without_rdma_read = ml(AWS_EFA_BY_NITRO[3]) - ml("p4d.24xlarge p4de.24xlarge")
    assert {row.name for row in INSTANCE_TYPES.values() if row.rdma_read} == set(listed) - without_rdma_read


def test_efa_lustre_clients_are_nitro_4_and_later_but_trn2() -> None:
    clients = {row.name for row in INSTANCE_TYPES.values() if row.efa_lustre_client}
    assert clients == set().union(*(ml(AWS_EFA_BY_NITRO[n]) for n in (4, 5, 6))) - ml(
        "trn2.3xlarge trn2.48xlarge"
    )


def test_gpudirect_storage_is_for_p5_and_p6_alone() -> None:
    """FSx: "Use an Amazon EC2 P5, P5e, P5en, P6-B200, or P6-B300 client instance"."""
    with_gds = {row.name for row in INSTANCE_TYPES.values() if row.gds}
    assert with_gds == ml(
        "p5.4xlarge p5.48xlarge p5e.48xlarge p5en.48xlarge p6-b200.48xlarge p6-b300.48xlarge"
    )
    assert all(lookup(name).efa_lustre_client for name in with_gds)


@pytest.mark.parametrize(
    ("name", "on_eks", "on_slurm"),
    [
        ("ml.g5.8xlarge", True, True),
        ("ml.p4d.24xlarge", True, True),
        ("ml.p5.48xlarge", True, True),
        ("ml.trn1.32xlarge", True, False),
        ("ml.m5.xlarge", False, False),
    ],
)
def test_deep_health_checks_cover_gpus_and_on_eks_trainium(name: str, on_eks: bool, on_slurm: bool) -> None:
    assert lookup(name).runs_deep_health_checks("eks") is on_eks
    assert lookup(name).runs_deep_health_checks("slurm") is on_slurm


@pytest.mark.parametrize(
    ("name", "slurm", "eks"),
    [("ml.p5.48xlarge", "/opt/dlami/nvme", "/opt/sagemaker"), ("ml.c5.large", None, None)],
)
def test_nvme_mount_depends_on_the_image(name: str, slurm: str | None, eks: str | None) -> None:
    assert lookup(name).nvme_mount("slurm") == slurm
    assert lookup(name).nvme_mount("eks") == eks


def test_every_type_with_efa_has_no_more_interfaces_than_cards() -> None:
    """EC2: types with several cards "can be configured with one EFA per network card", others with one."""
    assert all(row.efa_interfaces <= row.network_cards for row in INSTANCE_TYPES.values())


def test_every_row_names_sources_that_exist() -> None:
    for row in INSTANCE_TYPES.values():
        assert row.sources
        assert set(row.sources) <= set(SOURCES)
        assert ("EC2-API" in row.sources) == (row.name not in NOT_IN_EC2_DUMP)


def test_lookup_returns_the_row() -> None:
    row = lookup("ml.p5.48xlarge")
    assert isinstance(row, InstanceType)
    assert (row.name, row.family, row.is_accelerated) == ("ml.p5.48xlarge", "p5", True)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("p5.48xlarge", r"ml\.p5\.48xlarge"),
        ("ml.p5.48xlrge", r"ml\.p5\.48xlarge"),
        ("ml.p6-b20.48xlarge", r"ml\.p6-b200\.48xlarge"),
    ],
)
def test_lookup_suggests_what_was_probably_meant(written: str, meant: str) -> None:
    with pytest.raises(UnknownInstanceType, match=rf"Did you mean {meant}"):
        lookup(written)


def test_lookup_of_nonsense_shows_a_valid_name() -> None:
    with pytest.raises(UnknownInstanceType, match=r"'gpu please'.*looks like ml\.p5\.48xlarge"):
        lookup("gpu please")


def test_lookup_of_an_excluded_type_gives_the_reason() -> None:
    with pytest.raises(UnknownInstanceType, match=r"UltraServer, whose nodes are ml\.p6e-gb200\.36xlarge"):
        lookup("ml.p6e-gb200.72xlarge")
