"""The deployment file's schema: what an operator may write, and what a change of each field does.

The update policies and the JSON Schema both derive from the fields below; `asking` turns a valid file
into what the planner is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeGuard, cast

from pydantic import BaseModel, ConfigDict, Field

from .planning.nodes import TIME_SERVICE, XidAction

Update = Literal["live", "rolling", "replaces nodes", "never"]

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$", min_length=1, max_length=20)]
GroupName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9](-*[a-zA-Z0-9])*$", min_length=1, max_length=63)]
# Without strict, YAML's `yes` would count as one node and "no" in quotes as false.
Whole = Annotated[int, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
# Generous: the planner knows the exact steps and names the nearest; this keeps arithmetic finite.
Amount = Annotated[int, Field(strict=True, ge=0, le=1_000_000_000)]
Tib = Annotated[Decimal, Field(ge=Decimal("0.001"), le=1_000_000)]
Days = Annotated[int, Field(strict=True, ge=1, le=3650)]
# AWS's own rule, less the letters that only some services take.
TagKey = Annotated[str, Field(pattern=r"^[\w .:/=+@-]+$", max_length=128)]
TagValue = Annotated[str, Field(pattern=r"^[\w .:/=+@-]*$", max_length=256)]
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
_SECRET_ARN = r"^arn:aws[a-z-]*:secretsmanager:\S+$"  # noqa: S105 (a pattern)
Event = Literal["NEW", "CHANGED", "DELETED"]
Retention = Literal[
    1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653
]


def _field(update: Update, description: str, default: Any = ..., **limits: Any) -> Any:  # noqa: ANN401
    extra: dict[str, Any] = {"x-update": update}
    if default in (dict, list, tuple) or (isinstance(default, type) and issubclass(default, BaseModel)):
        limits["default_factory"] = default
    else:
        limits["default"] = default
    field = cast("Callable[..., Any]", Field)
    return field(description=description, json_schema_extra=extra, **limits)


class Section(BaseModel):
    """A part of the file: frozen, and unknown keys are refused."""

    # Only the whole file is validated: a validator for each section would be built for nothing.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class GivenSubnetEntry(Section):
    """A subnet of an existing VPC."""

    id: str = _field("never", "Subnet id.", pattern=r"^subnet-[0-9a-f]{8,17}$")
    zone: str = _field("never", "Zone id, such as use2-az1.")
    cidr: str = _field("never", "Its CIDR.")
    free: Whole | None = _field(
        "live", "Free addresses in it; default: all that the CIDR holds.", None, ge=0, le=65536
    )
    purposes: tuple[Literal["nodes", "storage", "endpoints", "public"], ...] = _field(
        "live", "What may be put there.", ("nodes", "storage")
    )


class ExistingVpc(Section):
    """A VPC that somebody else owns: addresses are verified, not allocated."""

    id: str = _field("never", "VPC id.", pattern=r"^vpc-[0-9a-f]{8,17}$")
    cidrs: tuple[str, ...] = _field("live", "The VPC's IPv4 blocks, the primary one first.", min_length=1)
    subnets: tuple[GivenSubnetEntry, ...] = _field("live", "Private subnets that may be used.", min_length=1)


class RegionEntry(Section):
    """One region, and what differs there."""

    zones: tuple[str, ...] = _field(
        "live",
        "Zone ids; the first is where groups and file systems go that name none. "
        "Default: the region's first zone, with a warning, because capacity is sold by zone.",
        (),
    )
    pool: tuple[str, ...] = _field(
        "live", "Private networks to draw new subnets from; default: the region's own /13.", ()
    )
    vpc: ExistingVpc | None = _field("never", "Use this VPC instead of making one.", None)
    set: dict[str, Any] = _field("live", "Dotted paths and the values they take in this region alone.", dict)


class Network(Section):
    """How nodes reach the world."""

    egress: Literal["nat", "closed"] = _field(
        "live", "`nat`: a NAT gateway per zone; `closed`: no way out but VPC endpoints.", "nat"
    )
    egress_ports: tuple[Annotated[int, Field(strict=True, ge=1, le=65535)], ...] = _field(
        "live", "TCP ports nodes may reach outside their own security group.", (443,), min_length=1
    )
    endpoints: tuple[str, ...] = _field("live", "Interface endpoints beyond those the egress mode needs.", ())
    flow_log_retention_days: Retention = _field("live", "How long VPC flow logs are kept, in days.", 90)
    block_quota: Whole = _field(
        "live", "Your quota 'IPv4 CIDR blocks per VPC' (AWS's default is 5).", 5, ge=1, le=50
    )


class Buckets(Section):
    """Ages after which objects are thinned out, in days."""

    dataset_infrequent_after_days: Days = _field("live", "Datasets move to infrequent access.", 90, ge=30)
    noncurrent_expire_after_days: Days = _field("live", "Overwritten and deleted versions go.", 30)
    access_log_expire_after_days: Days = _field("live", "Access logs go.", 365)


class ReadCache(Section):
    """The SSD read cache of an Intelligent-Tiering file system."""

    mode: Literal["no-cache", "proportional", "user"] = _field("live", "How it is sized.", "proportional")
    size_gib: Amount | None = _field("live", "Its size in GiB, for mode `user`.", None)


class RootSquash(Section):
    """Who root becomes on the file system."""

    user: str = _field("live", "uid:gid that root becomes.", "65534:65534")
    no_squash_nids: tuple[str, ...] = _field("live", "Clients whose root stays root (at most 64).", ())


class Association(Section):
    """A path of the file system tied to a prefix of a bucket."""

    path: str = _field("never", "Path on the file system, with a leading slash.")
    bucket: str = _field(
        "never",
        "`datasets`, `checkpoints`, or the name of a bucket of your own.",
        pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$",
    )
    prefix: str = _field("never", "Prefix in the bucket.", "")
    import_events: tuple[Event, ...] = _field(
        "live", "S3 events that show up on the file system.", ("NEW", "CHANGED", "DELETED")
    )
    export_events: tuple[Event, ...] = _field("live", "File events written back to S3.", ())
    batch_import: Flag = _field("never", "Import metadata of what is there already.", True)
    chunk_mib: Amount = _field("live", "Largest stripe of an imported file, in MiB.", 1024)


class Lustre(Section):
    """An FSx for Lustre file system (PERSISTENT_2, Lustre 2.15)."""

    zone: str | None = _field("never", "Zone id; default: the region's first zone.", None)
    storage_class: Literal["ssd", "intelligent-tiering"] = _field("never", "What holds the data.", "ssd")
    capacity_tib: Tib | None = _field(
        "live", "Size in FSx TiB (1.2 is 1200 GiB); only grows. Not for intelligent-tiering.", None
    )
    grow_to_tib: Tib | None = _field(
        "live", "Size that addresses are kept for; default: one and a half times the capacity.", None
    )
    throughput_per_tib: Amount | None = _field(
        "live", "MB/s per TiB: 125, 250, 500 or 1000; fixed with efa.", None
    )
    throughput_mbps: Amount | None = _field(
        "live", "MB/s in all, for intelligent-tiering: multiples of 4000; only grows.", None
    )
    read_cache: ReadCache | None = _field("live", "Read cache, for intelligent-tiering.", None)
    efa: Flag = _field("never", "Serve clients over EFA.", False)
    metadata_iops: Amount | None = _field("live", "Metadata IOPS; only grow; default: automatic.", None)
    compression: Literal["lz4", "none"] = _field("live", "Data compression.", "lz4")
    backup_days: Amount = _field(
        "live", "Days that daily backups are kept; 0: none. Not beside associations.", 0
    )
    root_squash: RootSquash | None = _field("live", "Turn root into somebody else.", None)
    maintenance: str | None = _field("live", "Weekly window, d:HH:MM in UTC.", None)
    associations: tuple[Association, ...] = _field("live", "Ties to S3, at most 8.", ())


class Home(Section):
    """An FSx for OpenZFS file system at /home."""

    zone: str | None = _field("never", "Zone id; default: the region's first zone.", None)
    capacity_gib: Amount = _field("live", "Size in GiB; only grows.", 1024)
    throughput_mbps: Amount | None = _field(
        "live", "Throughput in MB/s; default: the least step of 128 or more that the region has.", None
    )
    backup_days: Amount = _field("live", "Days that daily backups are kept.", 7)


class Storage(Section):
    """What outlives every cluster."""

    buckets: Buckets = _field("live", "Lifecycle of the dataset and checkpoint buckets.", Buckets)
    lustre: dict[Name, Lustre] = _field("live", "File systems by name.", dict)
    home: Home | None = _field("live", "Shared home directories.", None)


class Accounting(Section):
    """An external MySQL-compatible database for slurmdbd."""

    endpoint: str = _field("live", "Host name.", max_length=255, pattern=rf"^{_LABEL}(\.{_LABEL})*$")
    secret_arn: str = _field("live", "Secrets Manager secret with the credentials.", pattern=_SECRET_ARN)
    port: Whole = _field("live", "TCP port.", 3306, ge=1, le=65535)
    database: str = _field("live", "Schema name.", "slurm_acct_db", pattern=r"^[a-zA-Z0-9$_]{1,64}$")


class Slurm(Section):
    """Slurm, configured through the HyperPod API."""

    kind: Literal["slurm"] = _field("never", "The orchestrator.", "slurm")
    accounting: Accounting | None = _field(
        "live", "External accounting; default: HyperPod's own on the controller.", None
    )


class TrainingPlan(Section):
    """Reserved capacity. AWS ties a plan to one zone, which its ARN does not tell."""

    arn: str = _field(
        "replaces nodes",
        "ARN of the plan.",
        pattern=r"^arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:[0-9]{12}:training-plan/\S+$",
    )
    zone: str = _field("never", "The plan's zone id.")


class Rolling(Section):
    """How an AMI update rolls through a group."""

    batch: Whole = _field("live", "Nodes at a time.", 1, ge=1, le=6758)
    percent: Flag = _field("live", "Read `batch` as percent of the group.", False)
    wait_seconds: Whole = _field("live", "Pause between batches, in seconds.", 300, ge=0, le=3600)
    rollback_alarms: tuple[str, ...] = _field(
        "live", "CloudWatch alarms that roll the update back.", (), max_length=10
    )


class PatchingEntry(Section):
    """When the AMI of a group is updated: on a schedule, or when nodes are idle."""

    schedule: str | None = _field("live", "cron(…) expression, UTC.", None)
    strategy: Literal["WhenIdle", "WhenAllIdle"] | None = _field("live", "Patch idle nodes by itself.", None)
    rolling: Rolling | None = _field("live", "Batches and rollback.", None)


class Group(Section):
    """A HyperPod instance group."""

    role: Literal["controller", "login", "worker"] = _field("never", "What its nodes do.", "worker")
    type: str | Annotated[tuple[str, ...], Field(min_length=1, max_length=20)] = _field(
        "never", "Instance type, or for EKS an ordered list of choices."
    )
    count: Whole = _field("live", "Nodes.", ge=0, le=6758)
    grow_to: Whole | None = _field(
        "live",
        "Nodes that addresses are kept for; default: one and a half times the count, no growth for one.",
        None,
        ge=0,
        le=6758,
    )
    minimum: Whole | None = _field(
        "live", "Nodes without which the group is rolled back after three hours.", None, ge=0, le=6758
    )
    zone: str | None = _field("never", "Zone id; default: the region's first zone.", None)
    partition: str | None = _field(
        "live", "Slurm partition; workers only.", None, pattern=r"^[a-zA-Z0-9](-*[a-zA-Z0-9])*$"
    )
    interface: Literal["efa", "efa-only"] = _field(
        "never", "`efa`: each network card takes an address; `efa-only`: one address a node.", "efa"
    )
    capacity: Literal["on-demand", "spot"] = _field("never", "How capacity is bought.", "on-demand")
    training_plan: TrainingPlan | None = _field("replaces nodes", "Reserved capacity to use.", None)
    threads_per_core: Literal[1, 2] | None = _field("replaces nodes", "1 turns hyper-threads off.", None)
    scratch_gb: Whole | None = _field(
        "replaces nodes", "Secondary EBS volume at /opt/sagemaker, in GB.", None, ge=1, le=16384
    )
    deep_health_checks: tuple[Literal["InstanceStress", "InstanceConnectivity"], ...] = _field(
        "live", "Checks new nodes must pass.", ()
    )
    patching: PatchingEntry | None = _field("live", "AMI updates.", None)
    image_id: str | None = _field(
        "rolling", "Own AMI; root volumes start afresh.", None, pattern=r"^ami-[0-9a-fA-F]{8,17}$"
    )


class Ldap(Section):
    """A directory that nodes take their users from, through sssd."""

    uri: str = _field("live", "Its address.", max_length=255, pattern=r"^ldaps?://[\w.:-]+/?$")
    base: str = _field("live", "Search base.", max_length=255, pattern=r"^[\w .=,-]+$")
    bind_dn: str | None = _field("live", "Who asks; default: anybody.", None, pattern=r"^[\w .=,-]+$")
    bind_secret_arn: str | None = _field(
        "live", "Secret with that one's password as text.", None, pattern=_SECRET_ARN
    )


class Metrics(Section):
    """Where each node's collector writes its metrics."""

    url: str = _field("live", "Remote-write URL.", max_length=500, pattern=r"^https?://[^\s'\"]+$")
    auth: Literal["sigv4", "basic", "mtls", "none"] = _field(
        "live", "How it proves itself; sigv4: AMP.", "sigv4"
    )
    secret_arn: str | None = _field(
        "live",
        "Secret with JSON: username and password for basic, certificate and key for mtls.",
        None,
        pattern=_SECRET_ARN,
    )


class Logs(Section):
    """Where nodes ship Slurm's logs and their own."""

    to: Literal["cloudwatch", "syslog"] = _field("live", "CloudWatch, or a syslog server of the firm's.")
    host: str | None = _field(
        "live", "The syslog server.", None, max_length=255, pattern=rf"^{_LABEL}(\.{_LABEL})*$"
    )
    port: Whole = _field("live", "Its TCP port.", 6514, ge=1, le=65535)
    tls: Flag = _field("live", "Encrypt, and check its certificate.", True)


class Nodes(Section):
    """What the lifecycle steps set up on every node. Changes reach new nodes, and old ones by a re-run."""

    site: str | None = _field(
        "live",
        "Folder beside this file with certificates/, packages/, pre.d/, post.d/ and users.csv of your own.",
        None,
        max_length=255,
        pattern=r"^[\w ./-]+$",
    )
    certificates_secret_arn: str | None = _field(
        "live", "Secret with PEM certificate authorities that nodes trust.", None, pattern=_SECRET_ARN
    )
    ldap: Ldap | None = _field("live", "Directory of users; default: users.csv of the site folder.", None)
    metrics: Metrics | None = _field("live", "Metrics; default: none are collected.", None)
    logs: Logs | None = _field("live", "Log shipping beyond HyperPod's own log of provisioning.", None)
    containers: Flag = _field("live", "Put Docker's and Enroot's layers on the local disks.", True)
    clock: tuple[Annotated[str, Field(pattern=r"^[\w.:-]+$")], ...] = _field(
        "live", "Time servers.", (TIME_SERVICE,), min_length=1
    )
    xids: dict[Annotated[str, Field(pattern=r"^[1-9][0-9]{0,3}$")], XidAction] = _field(
        "live", "What an XID of an NVIDIA GPU leads to, where it is not docs/xids.md's default.", dict
    )


class Cluster(Section):
    """A HyperPod cluster."""

    orchestrator: Slurm = _field("never", "Who schedules.", Slurm)
    lustre: str | None = _field("replaces nodes", "File system mounted at /fsx; default: the only one.", None)
    home: Flag = _field("replaces nodes", "Mount the shared home.", True)
    node_recovery: Flag = _field("live", "Let HyperPod replace faulty nodes.", True)
    continuous_provisioning: Flag = _field("never", "Start with the nodes that are there.", True)
    log_retention_days: Retention = _field("live", "How long the nodes' logs are kept, in days.", 90)
    nodes: Nodes = _field("live", "What runs on nodes besides Slurm.", Nodes)
    groups: dict[GroupName, Group] = _field("live", "Instance groups by name.", min_length=1, max_length=100)


_PREFIX = r"^[a-zA-Z0-9_.=-]+(/[a-zA-Z0-9_.=-]+)*$"


class Evaluation(Section):
    """Jobs off the clusters that score each published checkpoint once."""

    instance_type: str = _field("live", "Type of SageMaker Processing.", "ml.g6.12xlarge")
    zone: str | None = _field("live", "Zone id; default: the region's first zone.", None)
    at_once: Whole = _field("live", "Jobs at a time; addresses are kept for them.", 4, ge=1, le=100)
    max_hours: Whole = _field("live", "Hours after which a job is stopped.", 2, ge=1, le=120)
    volume_gb: Whole = _field("live", "Disk of a job, in GB.", 200, ge=30, le=16384)
    data: str | None = _field(
        "live",
        "Held-out data: a prefix of the dataset bucket, such as driving/val; default: the recipe's own "
        "`evaluation.url`, which must then be an s3:// address in that bucket.",
        None, max_length=150, pattern=_PREFIX,
    )  # fmt: skip
    tokenizer: str | None = _field(
        "live",
        "Folder of the tokenizer: a prefix of the dataset bucket; default: the recipe's own, "
        "which a job finds only if the image holds it.",
        None, max_length=150, pattern=_PREFIX,
    )  # fmt: skip


class Workload(Section):
    """The trainer: its image, and its recipes and job templates on the clusters' file systems."""

    image: str = _field(
        "live", "`build`: from trainer/Dockerfile at deployment; or the address of an image in ECR.", "build"
    )
    base_image: str | None = _field(
        "live", "What a built image stands on; default: the Dockerfile's.", None,
        max_length=255, pattern=r"^[a-z0-9][a-zA-Z0-9_./:@-]+$",
    )  # fmt: skip
    architecture: Literal["x86_64", "arm64"] = _field("live", "What a built image is for.", "x86_64")
    evaluation: Evaluation | None = _field("live", "Score each published checkpoint.", None)


class Deployment(Section):
    """A whole deployment file."""

    version: Literal[1] = _field("live", "Version of this format.", 1)
    name: Name = _field("never", "Prefix of every stack and resource name.")
    account: str | None = _field(
        "never", "AWS account; default: that of the credentials.", None, pattern=r"^[0-9]{12}$"
    )
    protect: Flag = _field("live", "Termination protection on the network and storage stacks.", True)
    tags: dict[TagKey, TagValue] = _field("live", "Tags on every resource.", dict)
    regions: dict[str, RegionEntry] = _field("live", "Regions by name.", min_length=1)
    network: Network = _field("live", "Network.", Network)
    storage: Storage = _field("live", "Storage.", Storage)
    clusters: dict[Name, Cluster] = _field("live", "Clusters by name.", dict)
    workload: Workload | None = _field("live", "What is trained with; default: bring your own.", None)


def json_schema() -> dict[str, Any]:
    """JSON Schema of the file, for editors."""
    schema = Deployment.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        for field in section["properties"].values():
            if "patternProperties" in field:
                field["additionalProperties"] = False
    # `us-east-2:` with nothing behind it is a region with all defaults.
    regions = schema["properties"]["regions"]
    regions["additionalProperties"] = {"anyOf": [regions["additionalProperties"], {"type": "null"}]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def update_policies(model: type[BaseModel] = Deployment, prefix: str = "") -> dict[str, tuple[Update, str]]:
    """What changing each field does: dotted path, `*` for a name or an index → policy, description."""
    found: dict[str, tuple[Update, str]] = {}
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        extra = cast("dict[str, Update]", info.json_schema_extra)
        found[path] = (extra["x-update"], info.description or "")
        for nested, mapped in sections_in(info.annotation):
            found |= update_policies(nested, f"{path}.*." if mapped else f"{path}.")
    return found


def _is_section(annotation: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def sections_in(annotation: object, mapped: bool = False) -> list[tuple[type[BaseModel], bool]]:
    """The sections a field may hold, each with whether it stands under a name or an index."""
    if _is_section(annotation):
        return [(annotation, mapped)]
    inside = cast("tuple[object, ...]", getattr(annotation, "__args__", ()))
    is_container = getattr(annotation, "__origin__", None) in (dict, tuple)
    return [found for part in inside for found in sections_in(part, mapped or is_container)]
