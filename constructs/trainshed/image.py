"""The trainer's image: built from the repository when it is deployed, or one that is in ECR already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_ecr_assets as assets
from constructs import Construct

from .planning.instances import Architecture
from .planning.workload import repository_of

DOCKERFILE = "trainer/Dockerfile"
_PLATFORMS = {"x86_64": assets.Platform.LINUX_AMD64, "arm64": assets.Platform.LINUX_ARM64}
PULL = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")


class TrainerImage(Construct):
    """Its `uri` and the `repository_arn` to be let pull from.

    A built image is a CDK asset: `cdk deploy` builds and pushes it, synthesis needs no Docker. Its tag is the
    hash of what the Dockerfile copies and of the arguments, so that nothing else makes a new one.

    Args:
        repository: root of a checkout with `trainer/Dockerfile`; for a built image.
        base_image: what it stands on; None: the Dockerfile's default.
        architecture: of the machines that run it.
        uri: an image in ECR, instead of a built one.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        repository: str,
        base_image: str | None = None,
        architecture: Architecture = "x86_64",
        uri: str | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        if uri is not None:
            account, region, name = repository_of(uri)
            partition = cdk.Stack.of(self).partition
            self.uri, self.repository_arn = uri, f"arn:{partition}:ecr:{region}:{account}:repository/{name}"
            return
        left_out = _left_out(Path(repository) / f"{DOCKERFILE}.dockerignore")
        copied = cdk.FileSystem.fingerprint(
            repository, exclude=[*left_out], ignore_mode=cdk.IgnoreMode.DOCKER
        )  # fmt: skip
        # A commit's name would make another image of the same files.
        arguments = {"REVISION": copied, **({"BASE_IMAGE": base_image} if base_image else {})}
        asset = assets.DockerImageAsset(
            self,
            "Asset",
            directory=repository,
            file=DOCKERFILE,
            exclude=[*left_out],
            ignore_mode=cdk.IgnoreMode.DOCKER,
            build_args=arguments,
            platform=_PLATFORMS[architecture],
            asset_name="trainshed-trainer",
        )
        self.uri = asset.image_uri
        stored: ecr.IRepository = asset.repository
        self.repository_arn = stored.repository_arn


def _left_out(ignore: Path) -> list[str]:
    """What Docker would not read, from the file that tells Docker; CDK itself knows `.dockerignore` alone."""
    lines = (line.strip() for line in ignore.read_text(encoding="utf-8").splitlines())
    return [*(line for line in lines if line and not line.startswith("#")), f"!{DOCKERFILE}"]


def pull_from(repository_arn: str) -> Sequence[dict[str, object]]:
    """Statements that let a role pull from one repository; the token alone knows no resource."""
    return (
        {"Effect": "Allow", "Action": ["ecr:GetAuthorizationToken"], "Resource": ["*"]},
        {"Effect": "Allow", "Action": [*PULL], "Resource": [repository_arn]},
    )
