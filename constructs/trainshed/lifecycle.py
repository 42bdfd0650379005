"""What nodes run at boot: the scripts of `lifecycle/` and the settings they read, in S3."""

from __future__ import annotations

import json
from collections.abc import Mapping

from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_deployment as deployment
from constructs import Construct

from .function_role import FunctionRole

SETTINGS_VERSION = 2


class LifecycleScripts(Construct):
    """A folder of scripts and `settings.json`, uploaded to a bucket's prefix.

    Args:
        bucket: its name must begin with `sagemaker-`, which AWS's managed node policy demands.
        prefix: the cluster's folder; what else lies there is removed.
        folder: the scripts.
        entry: the file HyperPod runs.
        settings: the contract with the node (docs/contracts.md); may hold deploy-time values.
        site: a folder of the operator's own files, uploaded as `site/`.
        key: encrypts the upload's logs.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        bucket: s3.IBucket,
        prefix: str,
        folder: str,
        entry: str,
        settings: Mapping[str, object],
        key: kms.IKey,
        site: str | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        self.entry = entry
        self.source_s3_uri = f"s3://{bucket.bucket_name}/{prefix}/"
        # Not json_data: it drops what is null, and the node refuses settings that lack a key.
        text = json.dumps({"version": SETTINGS_VERSION, **settings})
        identity = FunctionRole(self, "Identity", key=key)
        self.upload = deployment.BucketDeployment(
            self,
            "Upload",
            sources=[
                deployment.Source.asset(folder, exclude=["__pycache__", "*.pyc"]),
                deployment.Source.data("settings.json", text),
            ],
            destination_bucket=bucket,
            destination_key_prefix=f"{prefix}/",
            memory_limit=512,
            role=identity.role,
            log_group=identity.log_group,
            exclude=["site/*"] if site else None,
        )
        if site:
            # The other upload must not take it for something left over, and nodes wait for both.
            own = deployment.BucketDeployment(
                self,
                "Site",
                sources=[deployment.Source.asset(site)],
                destination_bucket=bucket,
                destination_key_prefix=f"{prefix}/site/",
                memory_limit=512,
                role=identity.role,
                log_group=identity.log_group,
            )
            self.upload.node.add_dependency(own)
