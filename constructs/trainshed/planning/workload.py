"""What runs on the clusters, and the jobs off them that score its checkpoints.

Sources: SageMaker API Reference, CreateProcessingJob (types, limits, local disks); SageMaker AI Developer
Guide, "Give SageMaker AI Processing Jobs Access to Resources in Your Amazon VPC" (addresses); FSx for Lustre
User Guide, "Data repository association lifecycle state" (a bucket's notifications).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .associations import AssociationPlan
from .instances import INSTANCE_TYPES, Architecture
from .problems import Problem
from .suggest import did_you_mean

BUILD = "build"
PROCESSING_FAMILIES = frozenset({"g4dn", "g5", "g6", "g6e", "g7", "g7e", "m6i", "m7i", "r6i", "r7i"})
"""Families of which SageMaker Processing takes every size."""
ADDRESSES_PER_JOB = 2
PUBLISHED_TO = "trainshed"
"""Prefix in the dataset bucket of recipes, job templates and the image's address."""

SCRATCH, TOKENIZER = "/tmp/trainshed", "/opt/ml/processing/tokenizer"  # noqa: S108 (the job's own disk)
"""Where a job keeps what it reads: SageMaker mounts its volume at /tmp and /opt/ml/processing."""

_ECR = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?"
    r"/(?P<repository>[a-z0-9]+([._/-]+[a-z0-9]+)*)(:[\w.-]{1,128}|@sha256:[0-9a-f]{64})"
)
_MOST_CHARACTERS = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """Jobs that score each checkpoint once. `data` and `tokenizer` are prefixes of the dataset bucket."""

    instance_type: str
    zone: str
    at_once: int
    max_hours: int
    volume_gb: int
    data: str | None = None
    tokenizer: str | None = None

    @property
    def claim(self) -> str:
        """Name of its claim of addresses."""
        return f"evaluation/{self.zone}"

    @property
    def processes(self) -> int:
        """One for each GPU."""
        return INSTANCE_TYPES[self.instance_type].accelerators or 1

    @property
    def has_own_disks(self) -> bool:
        """Local disks are encrypted by hardware, and SageMaker refuses a key for them."""
        return INSTANCE_TYPES[self.instance_type].nvme_disks > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlan:
    """The trainer's image: an address in ECR, or None where it is built from the repository."""

    image: str | None = None
    base_image: str | None = None
    architecture: Architecture = "x86_64"
    evaluation: EvaluationPlan | None = None


def repository_of(image: str) -> tuple[str, str, str]:
    """Account, region and repository name of an image in ECR; ValueError for any other address."""
    found = _ECR.fullmatch(image) if len(image) <= _MOST_CHARACTERS else None
    if not found:
        raise ValueError(image)
    return found["account"], found["region"], found["repository"]


def evaluation_arguments(plan: EvaluationPlan, *, data: str) -> list[str]:
    """Of `python -m`: `trainer.evaluate` on every GPU, `{checkpoint}` and `{out}` left to fill in.

    What the recipe says of its cluster's disks and services is set to what a job has. `data` is the address
    of the dataset bucket.
    """
    changes = {
        "data.cache.directory": SCRATCH,
        "data.cache.limit_bytes": str(plan.volume_gb * 10**9 * 8 // 10),
        "tracking.jsonl": "null",
        "tracking.comet": "null",
        **({"data.processor.tokenizer": TOKENIZER} if plan.tokenizer else {}),
    }
    return [
        "torch.distributed.run", "--standalone", "--nproc-per-node", str(plan.processes),
        "-m", "trainer.evaluate", "--checkpoint", "{checkpoint}", "--out", "{out}",
        *(part for path, value in changes.items() for part in ("--set", f"{path}={value}")),
        *(["--data", f"{data}/{plan.data}"] if plan.data else []),
    ]  # fmt: skip


def check_workload(
    plan: WorkloadPlan, *, region: str, local_zones: tuple[str, ...], links: Mapping[str, AssociationPlan]
) -> Iterator[Problem]:
    """What AWS would refuse; `links` are the region's associations by their paths in the file."""
    if plan.image is not None:
        yield from _check_image(plan.image, region)
        if plan.base_image is not None:
            allowed = "nothing beside an image that is built already"
            yield Problem("workload.base_image", plan.base_image, allowed, "leave one of the two out")
    if plan.evaluation is None:
        return
    yield from _check_instance(plan.evaluation.instance_type, plan.architecture)
    zone = plan.evaluation.zone
    if zone in local_zones:
        allowed = f"a zone of {region} itself: SageMaker runs no jobs in Local Zones"
        yield Problem("workload.evaluation.zone", zone, allowed, "name another zone")
    for path, link in links.items():
        if link.bucket == "checkpoints" and link.import_events:
            yield Problem(
                f"{path}.import_events", ", ".join(link.import_events),
                "[] beside workload.evaluation, which sets the bucket's notifications: "
                "FSx keeps its own there, would lose them and stop importing",
                "write import_events: [] there, for the cluster writes checkpoints and reads its own",
            )  # fmt: skip


def _check_image(image: str, region: str) -> Iterator[Problem]:
    try:
        _, its_region, _ = repository_of(image)
    except ValueError:
        allowed = f"`{BUILD}`, or an image in ECR: ACCOUNT.dkr.ecr.{region}.amazonaws.com/NAME:TAG"
        yield Problem("workload.image", image or "nothing", allowed, "push it to ECR and write its address")
        return
    if its_region != region:
        fix = f"replicate it to {region}, and set workload.image under regions.{region}.set"
        yield Problem("workload.image", image, f"an image in {region}, where its jobs run", fix)


def _check_instance(name: str, architecture: Architecture) -> Iterator[Problem]:
    path, kind = "workload.evaluation.instance_type", INSTANCE_TYPES.get(name)
    names = [n for n, k in INSTANCE_TYPES.items() if k.family in PROCESSING_FAMILIES]
    if kind is None or kind.family not in PROCESSING_FAMILIES:
        families = ", ".join(f"ml.{family}" for family in sorted(PROCESSING_FAMILIES))
        fix = did_you_mean(name, names) or "for example ml.g6.12xlarge"
        yield Problem(path, name or "nothing", f"types of SageMaker Processing: {families}", fix)
    elif kind.architecture != architecture:
        allowed = f"{architecture}, as workload.architecture says"
        yield Problem(path, f"{name}, which is {kind.architecture}", allowed, "change one of the two")
