"""AWS::FSx::FileSystem, for Lustre and OpenZFS."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from ministack.core.responses import get_account_id

from . import lustre, shapes
from .addresses import Occupancy, subnet
from .inventory import Inventory
from .kinds import Change, Properties, Provided

_ZFS_TIERS = {
    "SINGLE_AZ_1": (64, 128, 256, 512, 1024, 2048, 3072, 4096),
    "SINGLE_AZ_2": (160, 320, 640, 1280, 2560, 3840, 5120, 7680, 10240),
}
"""MB/s by deployment type. Source: FSx API, CreateFileSystemOpenZFSConfiguration."""


class FileSystem(Provided):
    """A file system, its servers' addresses and the groups on their interfaces."""

    type = "AWS::FSx::FileSystem"

    def __init__(self, inventory: Inventory, occupancy: Occupancy) -> None:
        self._inventory = inventory
        self._occupancy = occupancy

    def check(self, change: Change) -> None:
        """Shape first, then network, then room in the subnet."""
        p = change.properties
        shapes.check("fsx", "CreateFileSystem", p, lustre.refuse)
        (_check_zfs if _is_zfs(p) else lustre.check)(p)
        if change.previous and not _is_zfs(p):
            lustre.check_update(change.previous, p)
        record = subnet(p["SubnetIds"][0], service="AmazonFSx")
        if not _is_zfs(p):
            lustre.check_network(p, record)
        self._occupancy.demand(dict(self.addresses(p)), besides=change.physical_id, service="AmazonFSx")

    def create(self, change: Change) -> str:
        """The file system's id."""
        return f"fs-{secrets.token_hex(9)[:17]}"

    def attributes(self, physical_id: str, properties: Properties, region: str) -> dict[str, Any]:
        """What a mount command is made of; the mount name is derived, so that updates answer the same."""
        account = get_account_id()
        found = {
            "Id": physical_id,
            "DNSName": f"{physical_id}.fsx.{region}.amazonaws.com",
            "ResourceARN": f"arn:aws:fsx:{region}:{account}:file-system/{physical_id}",
        }
        if _is_zfs(properties):
            return {**found, "RootVolumeId": f"fsvol-{physical_id[3:]}"}
        return {**found, "LustreMountName": physical_id[3:11]}

    def addresses(self, properties: Properties) -> Iterable[tuple[str, int]]:
        """One for each Lustre server; two where a pair of OpenZFS servers shares a floating one."""
        if not _is_zfs(properties):
            return [(properties["SubnetIds"][0], lustre.servers(properties))]
        single = properties["OpenZFSConfiguration"]["DeploymentType"] in ("SINGLE_AZ_1", "SINGLE_AZ_2")
        return [(s, 1 if single else 2) for s in properties["SubnetIds"]]

    def security_groups(self, properties: Properties) -> Iterable[str]:
        """Those of the servers' interfaces."""
        return properties.get("SecurityGroupIds", [])

    def release(self, change: Change) -> None:
        """Links to S3 go first."""
        for record in self._inventory.records(change.region, "AWS::FSx::DataRepositoryAssociation"):
            if record.properties["FileSystemId"] == change.physical_id:
                message = f"Cannot delete {change.physical_id}: association {record.physical_id} exists."
                raise lustre.refuse(message)


def _is_zfs(properties: Properties) -> bool:
    return properties["FileSystemType"] == "OPENZFS"


def _check_zfs(properties: Properties) -> None:
    zfs = properties.get("OpenZFSConfiguration", {})
    kind = zfs.get("DeploymentType")
    if kind is None or not 64 <= properties.get("StorageCapacity", 0) <= 524288:
        raise lustre.refuse("OpenZFS needs a DeploymentType and a StorageCapacity from 64 to 524288 GiB.")
    subnets = 2 if kind == "MULTI_AZ_1" else 1
    if len(properties["SubnetIds"]) != subnets:
        message = f"Exactly {subnets} subnet IDs must be provided for {kind}."
        raise lustre.refuse(message, "InvalidNetworkSettings")
    tiers = _ZFS_TIERS["SINGLE_AZ_1" if kind in ("SINGLE_AZ_1", "SINGLE_AZ_HA_1") else "SINGLE_AZ_2"]
    if zfs.get("ThroughputCapacity") not in tiers:
        raise lustre.refuse(
            f"ThroughputCapacity {zfs.get('ThroughputCapacity')} is invalid. Valid values are {tiers}."
        )
