"""What users of a cluster start from: recipes, job templates, the image's address; in the dataset bucket."""

from __future__ import annotations

import json
from pathlib import Path

from aws_cdk import IgnoreMode
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_deployment as deployment
from constructs import Construct

from .function_role import FunctionRole
from .planning.workload import PUBLISHED_TO

FOLDERS = ("trainer/recipes", "lifecycle/jobs")


class WorkloadFiles(Construct):
    """`recipes`, `jobs` and `image.json` under one prefix, whence FSx's link brings them to the nodes.

    What else lies under the prefix is removed at each deployment, and nothing when the stack goes: the
    bucket outlives it, and so does what runs with these files.

    Args:
        bucket: the dataset bucket.
        repository: root of a checkout; a folder that it lacks is left out.
        image_uri: told in `image.json`.
        key: encrypts the upload's logs.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, bucket: s3.IBucket, repository: str, image_uri: str,
        key: kms.IKey,
    ) -> None:  # fmt: skip
        super().__init__(scope, construct_id)
        identity = FunctionRole(self, "Identity", key=key)
        # CDK grants the whole bucket, and pruning deletes: other data is out of its reach all the same.
        identity.policy.add_statements(iam.PolicyStatement(
            effect=iam.Effect.DENY, actions=["s3:DeleteObject*", "s3:PutObject*"],
            not_resources=[bucket.arn_for_objects(f"{PUBLISHED_TO}/*")],
        ))  # fmt: skip
        folders = [folder for folder in map(Path(repository).joinpath, FOLDERS) if folder.is_dir()]
        sources = [
            deployment.Source.data("image.json", json.dumps({"uri": image_uri})),
            # The parent without the rest, because what is unpacked has the asset's root for its own.
            *(
                deployment.Source.asset(
                    str(folder.parent),
                    ignore_mode=IgnoreMode.DOCKER,
                    exclude=["*", f"!{folder.name}", "**/__pycache__"],
                )
                for folder in folders
            ),
        ]
        deployment.BucketDeployment(
            self,
            "Upload",
            sources=sources,
            destination_bucket=bucket,
            destination_key_prefix=f"{PUBLISHED_TO}/",
            prune=True,
            retain_on_delete=True,
            memory_limit=512,
            role=identity.role,
            log_group=identity.log_group,
        )
