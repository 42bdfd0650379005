"""AWS::FSx::DataRepositoryAssociation: a directory of a Lustre file system linked to a prefix of a bucket.

Source: FSx for Lustre User Guide, "Linking your file system to an Amazon S3 bucket".
"""

from __future__ import annotations

import secrets
from typing import Any

from ministack.core.responses import get_account_id
from ministack.services import s3

from . import lustre, shapes
from .inventory import Inventory
from .kinds import Change, Properties, Provided

MOST_ASSOCIATIONS = 8


class DataRepositoryAssociation(Provided):
    """One link."""

    type = "AWS::FSx::DataRepositoryAssociation"

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    def check(self, change: Change) -> None:
        """File system, bucket, and no overlap on either side."""
        p = change.properties
        shapes.check("fsx", "CreateDataRepositoryAssociation", p, lustre.refuse)
        self._check_file_system(change)
        bucket = p["DataRepositoryPath"].removeprefix("s3://").split("/")[0]
        if bucket not in s3._buckets:
            raise lustre.refuse(f"The S3 bucket {bucket} does not exist.", "InvalidDataRepository")
        home = s3._buckets[bucket].get("region") or change.region
        if p.get("S3", {}).get("AutoImportPolicy") and home != change.region:
            raise lustre.refuse(
                f"AutoImportPolicy needs the bucket in {change.region}: {bucket} is in {home}."
            )
        if not change.creates:
            return
        others = [
            r.properties
            for r in self._inventory.records(change.region, self.type)
            if r.properties["FileSystemId"] == p["FileSystemId"]
        ]
        if len(others) >= MOST_ASSOCIATIONS:
            message = f"A file system can have at most {MOST_ASSOCIATIONS} data repository associations."
            raise lustre.refuse(message, "ServiceLimitExceeded")
        for name in ("FileSystemPath", "DataRepositoryPath"):
            clash = next((o[name] for o in others if _overlap(o[name], p[name])), None)
            if clash:
                raise lustre.refuse(f"{name} {p[name]} overlaps with {clash} of another association.")

    def _check_file_system(self, change: Change) -> None:
        fs_id = change.properties["FileSystemId"]
        record = self._inventory.get(change.region, "AWS::FSx::FileSystem", fs_id)
        if record is None:
            raise lustre.refuse(f"File system '{fs_id}' does not exist.", "FileSystemNotFound")
        configuration = lustre.configuration(record.properties)
        tiering = record.properties.get("StorageType") == "INTELLIGENT_TIERING"
        unlinkable = configuration["DeploymentType"] == "SCRATCH_1" or tiering
        if unlinkable or lustre.version(record.properties) == "2.10":
            message = f"Data repository associations are not supported on {fs_id} (SCRATCH_1, 2.10, tiering)."
            raise lustre.refuse(message, "UnsupportedOperation")
        if configuration.get("AutomaticBackupRetentionDays"):
            message = f"{fs_id} has automatic backups, which file systems linked to S3 do not support."
            raise lustre.refuse(message)

    def create(self, change: Change) -> str:
        """The association's id."""
        return f"dra-{secrets.token_hex(9)[:17]}"

    def attributes(self, physical_id: str, properties: Properties, region: str) -> dict[str, Any]:
        """Read-only properties."""
        arn = (
            f"arn:aws:fsx:{region}:{get_account_id()}:association/{properties['FileSystemId']}/{physical_id}"
        )
        return {"AssociationId": physical_id, "ResourceARN": arn}


def _overlap(one: str, other: str) -> bool:
    a, b = (f"{path.rstrip('/')}/" for path in (one, other))
    return a.startswith(b) or b.startswith(a)
