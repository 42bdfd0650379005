"""Lambda functions of custom resources, which ministack runs as local processes.

Three gaps: layers are not at /opt; a function that crashes leaves its stack waiting an hour; the Node
function behind `auto_delete_objects` finds no SDK.
"""

from __future__ import annotations

from typing import Any

import boto3
from ministack.core import lambda_runtime
from ministack.core.responses import get_region
from ministack.services import lambda_svc
from ministack.services.cloudformation import custom_resource

from .kinds import Change, Properties, Provided

# Programs of a layer carry the path of Lambda's own Python in their first line, so they are run by this one.
_LAYERS_AT_OPT = """
def _layers_at_opt():
    import os, subprocess, sys
    layers = [d for d in os.environ.get("_LAMBDA_LAYERS_DIRS", "").split(os.pathsep) if d]
    start = subprocess.Popen.__init__
    def patched(self, args, *rest, **options):
        if isinstance(args, (list, tuple)) and str(args[0]).startswith("/opt/"):
            found = [p for d in layers if os.path.exists(p := os.path.join(d, args[0][len("/opt/"):]))]
            args = [sys.executable, found[0], *args[1:]] if found else args
        start(self, args, *rest, **options)
    subprocess.Popen.__init__ = patched
_layers_at_opt()
"""

CREATED_BY_CDK = "aws-cdk:auto-delete-objects"
"""The tag without which CDK's function leaves a bucket alone."""


def install() -> None:
    """Patch ministack."""
    lambda_runtime._PYTHON_WORKER_SCRIPT = _LAYERS_AT_OPT + lambda_runtime._PYTHON_WORKER_SCRIPT
    execute = lambda_svc._execute_function_with_config_scope

    def reporting(function: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
        result = execute(function, event)
        if isinstance(event, dict) and "ResponseURL" in event and result.get("error"):
            reason = f"Lambda failed before it answered: {result.get('body')}"
            token = event["ResponseURL"].rpartition("/")[2]
            custom_resource.deliver_response(token, {"Status": "FAILED", "Reason": reason})
        return result

    lambda_svc._execute_function_with_config_scope = reporting


class AutoDeleteObjects(Provided):
    """Stands in for CDK's Node function: empties a bucket, versions and markers, before it is deleted."""

    type = "Custom::S3AutoDeleteObjects"

    def create(self, change: Change) -> str:
        """Nothing happens until the delete."""
        return f"{change.stack}-{change.logical_id}"

    def remove(self, physical_id: str, properties: Properties) -> None:
        """Only where the tag permits, as the original does."""
        s3, name = boto3.client("s3", region_name=get_region()), properties["BucketName"]
        tags = s3.get_bucket_tagging(Bucket=name)["TagSet"]
        if {"Key": CREATED_BY_CDK, "Value": "true"} not in tags:
            return
        for page in s3.get_paginator("list_object_versions").paginate(Bucket=name):
            found = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
            keys = [{"Key": o["Key"], "VersionId": o["VersionId"]} for o in found]
            if keys:
                s3.delete_objects(Bucket=name, Delete={"Objects": keys})
