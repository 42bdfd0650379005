"""Buckets and log groups: two refusals that ministack leaves out."""

from __future__ import annotations

from ministack.services import cloudwatch_logs, s3

from .kinds import Change, Kind, Properties, Refused


class Bucket(Kind):
    """AWS::S3::Bucket."""

    type = "AWS::S3::Bucket"

    def apply(self, physical_id: str, properties: Properties) -> None:
        """ministack forgets a template's tags."""
        if "Tags" in properties:
            s3._bucket_tags[physical_id] = {t["Key"]: t["Value"] for t in properties["Tags"]}

    def release(self, change: Change) -> None:
        """An object version or a delete marker holds the bucket."""
        name = str(change.physical_id)
        versions = (v for (bucket, _), found in s3._object_versions.items() if bucket == name for v in found)
        if s3._buckets.get(name, {}).get("objects") or any(versions):
            message = (
                "The bucket you tried to delete is not empty. You must delete all versions in the bucket."
            )
            raise Refused(message, service="S3", code="BucketNotEmpty")


class LogGroup(Kind):
    """AWS::Logs::LogGroup."""

    type = "AWS::Logs::LogGroup"

    def check(self, change: Change) -> None:
        """A name is taken once, also by a group that an earlier stack retained."""
        name = change.properties.get("LogGroupName")
        if change.creates and name in cloudwatch_logs._log_groups:
            message = f"The specified log group already exists: {name}"
            raise Refused(message, service="CloudWatchLogs", code="ResourceAlreadyExistsException")
