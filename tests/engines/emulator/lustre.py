"""FSx for Lustre: the sizes it comes in, the servers it brings, the network it wants.

Sources: FSx for Lustre User Guide (deployment options, "Working with EFA-enabled file systems", "Managing
metadata performance") and the FSx API reference. Written apart from the product's planner, to check it.
"""

from __future__ import annotations

import math
from typing import Any

from . import security_groups
from .kinds import Properties, Refused

EFA_STEPS = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
"""GiB of each EFA-enabled storage server, by MB/s per TiB."""

TIERS = {"PERSISTENT_1": (50, 100, 200), "PERSISTENT_2": (125, 250, 500, 1000)}
METADATA_IOPS = (1500, 3000, 6000, *range(12000, 192001, 12000))
IOPS_PER_METADATA_SERVER = 12000
TIERING_MBPS_PER_SERVER = 4000


def refuse(message: str, code: str = "BadRequest") -> Refused:
    """FSx says no."""
    return Refused(message, service="AmazonFSx", code=code)


def configuration(properties: Properties) -> dict[str, Any]:
    """The Lustre part, with the API's defaults where a rule depends on them."""
    return {"DeploymentType": "SCRATCH_1", "EfaEnabled": False, **properties.get("LustreConfiguration", {})}


def is_efa(properties: Properties) -> bool:
    """Whether clients may reach it over EFA."""
    return str(configuration(properties)["EfaEnabled"]).lower() == "true"


def version(properties: Properties) -> str:
    """The Lustre version FSx picks when the template does not say."""
    lustre = configuration(properties)
    newest = "2.15" if "MetadataConfiguration" in lustre else "2.12"
    default = newest if lustre["DeploymentType"] == "PERSISTENT_2" else "2.10"
    return str(properties.get("FileSystemTypeVersion", default))


def servers(properties: Properties) -> int:
    """Storage and metadata servers: each takes one address of the subnet."""
    lustre = configuration(properties)
    if properties.get("StorageType") == "INTELLIGENT_TIERING":
        storage = math.ceil(lustre.get("ThroughputCapacity", 0) / TIERING_MBPS_PER_SERVER)
    else:
        storage = math.ceil(properties["StorageCapacity"] / _server_gib(properties))
    return storage + math.ceil(_metadata_iops(properties) / IOPS_PER_METADATA_SERVER)


def _server_gib(properties: Properties) -> int:
    lustre = configuration(properties)
    if is_efa(properties):
        return EFA_STEPS[lustre["PerUnitStorageThroughput"]]
    if properties.get("StorageType") == "HDD":
        return {12: 6000, 40: 1800}[lustre["PerUnitStorageThroughput"]]
    return 3600 if lustre["DeploymentType"] == "SCRATCH_1" else 2400


def _metadata_iops(properties: Properties) -> int:
    metadata = configuration(properties).get("MetadataConfiguration", {})
    if "Iops" in metadata:
        return int(metadata["Iops"])
    if not metadata:
        return IOPS_PER_METADATA_SERVER
    gib = properties["StorageCapacity"]
    steps = ((1200, 1500), (2400, 3000), (9600, 6000), (45600, 12000))
    return next((iops for most, iops in steps if gib <= most), 12000 * math.ceil(gib / 24000))


def check(properties: Properties) -> None:
    """Refuse what CreateFileSystem refuses."""
    lustre = configuration(properties)
    kind, efa = lustre["DeploymentType"], is_efa(properties)
    if len(properties["SubnetIds"]) != 1:
        raise refuse("Exactly one subnet must be provided for Lustre file systems.", "InvalidNetworkSettings")
    if efa and not (kind == "PERSISTENT_2" and "MetadataConfiguration" in lustre):
        raise refuse("EFA requires deployment type PERSISTENT_2 with a metadata configuration.")
    if "MetadataConfiguration" in lustre and (kind != "PERSISTENT_2" or version(properties) != "2.15"):
        raise refuse("MetadataConfiguration is supported only for PERSISTENT_2 with Lustre version 2.15.")
    if kind == "PERSISTENT_2" and version(properties) == "2.10":
        raise refuse("PERSISTENT_2 does not support Lustre version 2.10.")
    if kind.startswith("SCRATCH") and lustre.get("AutomaticBackupRetentionDays"):
        raise refuse("Backups are not supported on scratch file systems.")
    _check_metadata(properties)
    _check_size(properties)


def _check_metadata(properties: Properties) -> None:
    metadata = configuration(properties).get("MetadataConfiguration")
    if metadata is None:
        return
    provisioned = metadata.get("Mode") == "USER_PROVISIONED"
    if provisioned != ("Iops" in metadata):
        raise refuse("Iops must be given with mode USER_PROVISIONED, and only with it.")
    if provisioned and int(metadata["Iops"]) not in METADATA_IOPS:
        raise refuse(f"Invalid Metadata IOPS: {metadata['Iops']}. Valid values are {METADATA_IOPS}.")


def _check_size(properties: Properties) -> None:
    lustre = configuration(properties)
    kind, tier = lustre["DeploymentType"], lustre.get("PerUnitStorageThroughput")
    if properties.get("StorageType") == "INTELLIGENT_TIERING":
        if "StorageCapacity" in properties or lustre.get("ThroughputCapacity", 1) % TIERING_MBPS_PER_SERVER:
            raise refuse(
                "Intelligent-Tiering takes a ThroughputCapacity in multiples of 4000 and no StorageCapacity."
            )
        if "DataReadCacheConfiguration" not in lustre:
            raise refuse("DataReadCacheConfiguration is required for Intelligent-Tiering.")
        return
    tiers = (12, 40) if properties.get("StorageType") == "HDD" else TIERS.get(kind)
    if tier is not None and tiers is None:
        raise refuse(f"PerUnitStorageThroughput is not supported for {kind}.")
    if tiers is not None and tier not in tiers:
        raise refuse(f"PerUnitStorageThroughput {tier} is invalid for {kind}. Valid values are {tiers}.")
    gib = properties.get("StorageCapacity")
    if gib is None or not _is_step(gib, properties):
        raise refuse(f"Invalid storage capacity: {gib}. Valid values are {_steps_text(properties)}.")


def _is_step(gib: int, properties: Properties) -> bool:
    small = _starts_small(properties) and gib in (1200, 2400)
    return small or (gib > 0 and gib % _server_gib(properties) == 0)


def _starts_small(properties: Properties) -> bool:
    return not is_efa(properties) and properties.get("StorageType") != "HDD"


def _steps_text(properties: Properties) -> str:
    step = _server_gib(properties)
    if not _starts_small(properties):
        return f"multiples of {step} GiB"
    return f"1200, 2400 and increments of {step} GiB"


def check_update(old: Properties, new: Properties) -> None:
    """Refuse what UpdateFileSystem cannot do in place."""
    if is_efa(old) != is_efa(new):
        raise refuse("EFA support cannot be changed after a file system is created.")
    was, now = configuration(old), configuration(new)
    if is_efa(old) and was.get("PerUnitStorageThroughput") != now.get("PerUnitStorageThroughput"):
        raise refuse("The throughput capacity of an EFA-enabled file system cannot be changed.")
    if ("MetadataConfiguration" in was) != ("MetadataConfiguration" in now):
        raise refuse("A metadata configuration can only be set when a file system is created.")
    if _metadata_iops(new) < _metadata_iops(old):
        raise refuse("Metadata IOPS can only be increased.")
    before, after = old.get("StorageCapacity", 0), new.get("StorageCapacity", 0)
    if after != before and after < before * 1.1:
        raise refuse(
            f"Storage capacity can only be increased, by at least 10 percent: {before} to {after} GiB."
        )


def check_network(properties: Properties, subnet: Properties) -> None:
    """Refuse groups through which the servers could not reach each other."""
    groups = list(properties.get("SecurityGroupIds", []))
    security_groups.require_groups(groups, subnet["VpcId"], service="AmazonFSx")
    if not security_groups.permits_lustre(groups, subnet["CidrBlock"]):
        message = (
            "The file system cannot be created because the default security group in the subnet provided or "
            "the provided security groups do not permit Lustre LNET network traffic on port 988"
        )
        raise refuse(message, "InvalidNetworkSettings")
    if is_efa(properties) and not security_groups.permits_efa(groups):
        message = (
            "The file system cannot be created because the provided security groups do not permit EFA "
            "traffic: one must allow all traffic to and from itself, by group id"
        )
        raise refuse(message, "InvalidNetworkSettings")
