"""File systems and buckets: the template says what the plan says, and nothing is lost with a stack."""

from __future__ import annotations

from dataclasses import replace

import aws_cdk as cdk
import pytest
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms

from tests.support import (
    KEPT,
    actions_of,
    listed,
    of_type,
    only,
    policies,
    resources_for,
    shown,
    statements_of,
    waits_for,
)
from trainshed.buckets import AccessLogBucket, DatasetBucket, LifecycleBucket
from trainshed.encryption import DataKey
from trainshed.home import OpenZfsHome
from trainshed.planning.regions import REGIONS
from trainshed.planning.storage import (
    AssociationPlan,
    LustrePlan,
    OpenZfsPlan,
    ReadCache,
    check_associations,
    check_lustre,
    check_openzfs,
)
from trainshed.security import EfaSecurityGroup
from trainshed.storage import LustreFileSystem

SUBNET = "subnet-0a1b2c3d4e5f67890"
ZONE = "use2-az1"
SSD = LustrePlan(
    name="main",
    zone=ZONE,
    capacity_gib=4800,
    throughput_mbps_per_tib=250,
    maintenance="7:03:00",
    backup_days=7,
)
EFA = replace(SSD, capacity_gib=38_400, efa=True, metadata_iops=24_000, compression="none", backup_days=0)
TIERED = LustrePlan(
    name="cold", zone=ZONE, storage_class="intelligent-tiering", throughput_mbps=4000, metadata_iops=6000,
    read_cache=ReadCache(mode="user", size_gib=64), efa=True,
)  # fmt: skip
LINKED = replace(
    EFA,
    root_squash="65534:65534",
    no_squash_nids=("10.8.0.5@tcp",),
    associations=(
        AssociationPlan(
            file_system_path="/datasets", bucket="datasets", prefix="curated/", batch_import=True,
            import_events=("NEW", "CHANGED", "DELETED"),
        ),
        AssociationPlan(
            file_system_path="/checkpoints", bucket="a-bucket-of-theirs", export_events=("NEW",), chunk_mib=4
        ),
    ),
)  # fmt: skip


def storage(plan: LustrePlan, *more: LustrePlan):
    def build(stack: cdk.Stack) -> None:
        key = kms.Key(stack, "Key")
        vpc = ec2.Vpc.from_vpc_attributes(stack, "Vpc", vpc_id="vpc-0a1b2c3d", availability_zones=[ZONE])
        efa = EfaSecurityGroup(stack, "Efa", vpc=vpc, egress_ports=(443,), retained=True)
        logs = AccessLogBucket(stack, "Logs", expire_after_days=365)
        datasets = DatasetBucket(
            stack, "Datasets", key=key, access_logs=logs, noncurrent_expire_after_days=30
        )
        for one in (plan, *more):
            LustreFileSystem(
                stack, one.name, plan=one, platform="fleet", subnet_id=SUBNET, key=key,
                security_group=efa.security_group, rules=efa.rules, buckets={"datasets": datasets},
            )  # fmt: skip

    return build


@pytest.fixture(scope="module")
def linked(stack_template):
    return stack_template(storage(LINKED))


@pytest.mark.parametrize(
    "plan", [SSD, EFA, TIERED, LINKED], ids=["ssd", "efa", "intelligent-tiering", "linked"]
)
def test_plans_used_here_are_legal(plan: LustrePlan):
    assert not check_lustre(plan, path="storage.lustre.main")
    assert not check_associations(plan.associations, path="storage.lustre.main", region="us-east-2")


@pytest.mark.parametrize("plan", [SSD, EFA, TIERED], ids=["ssd", "efa", "intelligent-tiering"])
def test_a_file_system_is_what_was_planned(stack_template, plan: LustrePlan):
    """B7: EFA and metadata configuration, which the L2 does not know."""
    template = stack_template(storage(plan))
    name, system = only(template, "AWS::FSx::FileSystem")
    properties = system["Properties"]
    lustre = properties["LustreConfiguration"]
    ssd = plan.storage_class == "ssd"
    group, _ = only(template, "AWS::EC2::SecurityGroup")
    key, _ = only(template, "AWS::KMS::Key")
    assert properties["FileSystemType"] == "LUSTRE"
    assert properties["FileSystemTypeVersion"] == "2.15"
    assert properties["StorageType"] == ("SSD" if ssd else "INTELLIGENT_TIERING")
    assert properties.get("StorageCapacity") == plan.capacity_gib
    assert properties["SubnetIds"] == [SUBNET]
    assert properties["SecurityGroupIds"] == [{"Fn::GetAtt": [group, "GroupId"]}]
    assert properties["KmsKeyId"] == {"Fn::GetAtt": [key, "Arn"]}
    assert lustre["DeploymentType"] == "PERSISTENT_2"
    assert lustre["EfaEnabled"] is plan.efa
    assert lustre["DataCompressionType"] == plan.compression.upper()
    assert lustre["AutomaticBackupRetentionDays"] == plan.backup_days
    assert lustre.get("WeeklyMaintenanceStartTime") == plan.maintenance
    assert lustre.get("PerUnitStorageThroughput") == plan.throughput_mbps_per_tib
    assert lustre.get("ThroughputCapacity") == plan.throughput_mbps
    assert lustre["MetadataConfiguration"] == (
        {"Mode": "AUTOMATIC"}
        if plan.metadata_iops is None
        else {"Mode": "USER_PROVISIONED", "Iops": plan.metadata_iops}
    )
    expected = None if ssd else {"SizingMode": "USER_PROVISIONED", "SizeGiB": 64}
    assert lustre.get("DataReadCacheConfiguration") == expected
    assert policies(system) == KEPT, name


@pytest.mark.parametrize(
    ("cache", "rendered"),
    [
        (None, None),
        (ReadCache(mode="no-cache"), {"SizingMode": "NO_CACHE"}),
        (ReadCache(mode="proportional"), {"SizingMode": "PROPORTIONAL_TO_THROUGHPUT_CAPACITY"}),
    ],
)
def test_read_cache_modes(stack_template, cache, rendered):
    template = stack_template(storage(replace(TIERED, read_cache=cache)))
    lustre = only(template, "AWS::FSx::FileSystem")[1]["Properties"]["LustreConfiguration"]
    assert lustre.get("DataReadCacheConfiguration") == rendered


def test_a_file_system_waits_for_both_rules(linked):
    """A9: FSx looks for the rules at creation."""
    rules = [
        *of_type(linked, "AWS::EC2::SecurityGroupIngress"),
        *of_type(linked, "AWS::EC2::SecurityGroupEgress"),
    ]
    assert len(rules) == 2
    assert set(rules) <= set(waits_for(only(linked, "AWS::FSx::FileSystem")[1]))


def test_a_file_system_logs_encrypted_where_fsx_may_write(linked):
    name, group = next(
        (n, r) for n, r in of_type(linked, "AWS::Logs::LogGroup").items() if "main" in shown(r["Properties"])
    )
    assert group["Properties"]["LogGroupName"] == "/aws/fsx/fleet/main"
    assert group["Properties"]["RetentionInDays"] > 0
    assert group["Properties"]["KmsKeyId"] == {"Fn::GetAtt": [only(linked, "AWS::KMS::Key")[0], "Arn"]}
    lustre = only(linked, "AWS::FSx::FileSystem")[1]["Properties"]["LustreConfiguration"]
    assert lustre["LogConfiguration"] == {"Level": "WARN_ERROR", "Destination": {"Fn::GetAtt": [name, "Arn"]}}


def test_buckets_are_linked_by_associations_alone(linked):
    """B4: ImportPath and ExportPath do not exist on PERSISTENT_2."""
    old = {"ImportPath", "ExportPath", "AutoImportPolicy"}
    assert not old & set(only(linked, "AWS::FSx::FileSystem")[1]["Properties"]["LustreConfiguration"])
    found = {
        r["Properties"]["FileSystemPath"]: r
        for r in of_type(linked, "AWS::FSx::DataRepositoryAssociation").values()
    }
    assert set(found) == {"/datasets", "/checkpoints"}
    system, _ = only(linked, "AWS::FSx::FileSystem")
    for association in found.values():
        assert association["Properties"]["FileSystemId"] == {"Ref": system}
        assert policies(association) == KEPT
    datasets = found["/datasets"]["Properties"]
    bucket = next(n for n in of_type(linked, "AWS::S3::Bucket") if n.startswith("Datasets"))
    assert datasets["DataRepositoryPath"] == {"Fn::Join": ["", ["s3://", {"Ref": bucket}, "/curated/"]]}
    assert datasets["BatchImportMetaDataOnCreate"] is True
    assert datasets["S3"]["AutoImportPolicy"]["Events"] == ["NEW", "CHANGED", "DELETED"]
    assert datasets["S3"]["AutoExportPolicy"]["Events"] == []
    checkpoints = found["/checkpoints"]["Properties"]
    assert checkpoints["DataRepositoryPath"] == "s3://a-bucket-of-theirs/"
    assert checkpoints["BatchImportMetaDataOnCreate"] is False
    assert checkpoints["ImportedFileChunkSize"] == 4
    assert checkpoints["S3"]["AutoExportPolicy"]["Events"] == ["NEW"]
    assert checkpoints["S3"]["AutoImportPolicy"]["Events"] == []


def test_paths_that_differ_by_case_or_slash_alone_can_be_linked(stack_template):
    """Lustre's paths tell `/Data` from `/data`, and `/a/1b` from `/a1/b`."""
    paths = ("/Data", "/data", "/a1/b", "/a/1b", "/c-d", "/c/d")
    links = tuple(
        AssociationPlan(file_system_path=p, bucket="b", prefix=f"p{i}/") for i, p in enumerate(paths)
    )
    template = stack_template(storage(replace(EFA, associations=links)))
    made = [
        r["Properties"]["FileSystemPath"]
        for r in of_type(template, "AWS::FSx::DataRepositoryAssociation").values()
    ]
    assert sorted(made) == sorted(paths)


def test_root_is_squashed_after_the_links_are_made(linked):
    """FSx takes one change at a time."""
    squash = only(linked, "Custom::LustreRootSquash")[1]
    system, _ = only(linked, "AWS::FSx::FileSystem")
    assert squash["Properties"]["FileSystemId"] == {"Ref": system}
    assert squash["Properties"]["RootSquash"] == "65534:65534"
    assert squash["Properties"]["NoSquashNids"] == ["10.8.0.5@tcp"]
    assert set(of_type(linked, "AWS::FSx::DataRepositoryAssociation")) <= set(waits_for(squash))


def test_the_function_may_change_these_file_systems_and_no_others(stack_template):
    squashed = replace(SSD, root_squash="65534:65534")
    template = stack_template(storage(squashed, replace(squashed, name="second")))
    squashes = of_type(template, "Custom::LustreRootSquash").values()
    (token,) = {shown(s["Properties"]["ServiceToken"]) for s in squashes}
    function = next(n for n in of_type(template, "AWS::Lambda::Function") if n in token)
    role = template["Resources"][function]["Properties"]["Role"]["Fn::GetAtt"][0]
    statements = statements_of(template, role)
    assert {a for a in actions_of(statements) if a.startswith("fsx:")} == {
        "fsx:UpdateFileSystem",
        "fsx:DescribeFileSystems",
    }
    on = shown(resources_for(statements, "fsx:UpdateFileSystem"))
    assert all(name in on for name in of_type(template, "AWS::FSx::FileSystem"))
    assert "*" not in on


@pytest.fixture(scope="module")
def buckets(stack_template):
    def build(stack: cdk.Stack) -> None:
        key = DataKey(stack, "Key")
        logs = AccessLogBucket(stack, "AccessLogs", expire_after_days=200)
        DatasetBucket(
            stack, "Datasets", key=key, access_logs=logs, noncurrent_expire_after_days=20,
            infrequent_access_after_days=60,
        )  # fmt: skip
        DatasetBucket(stack, "Checkpoints", key=key, access_logs=logs, noncurrent_expire_after_days=20)
        LifecycleBucket(stack, "Lifecycle", platform="fleet", key=key, access_logs=logs)

    return stack_template(build)


def bucket(template, prefix: str):
    ((name, found),) = [
        (n, r) for n, r in of_type(template, "AWS::S3::Bucket").items() if n.startswith(prefix)
    ]
    return name, found


ALL = ("AccessLogs", "Datasets", "Checkpoints", "Lifecycle")


@pytest.mark.parametrize("which", ALL)
def test_buckets_are_private_versioned_encrypted_and_tls_only(buckets, which: str):
    name, found = bucket(buckets, which)
    properties = found["Properties"]
    assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(properties["PublicAccessBlockConfiguration"]) == 4
    assert properties["VersioningConfiguration"] == {"Status": "Enabled"}
    (rule,) = properties["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    by_default = rule["ServerSideEncryptionByDefault"]
    if which == "AccessLogs":
        assert by_default == {"SSEAlgorithm": "AES256"}
    else:
        key, _ = only(buckets, "AWS::KMS::Key")
        assert by_default == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": {"Fn::GetAtt": [key, "Arn"]}}
        assert rule["BucketKeyEnabled"] is True
    (policy,) = [
        p["Properties"]["PolicyDocument"]
        for p in of_type(buckets, "AWS::S3::BucketPolicy").values()
        if p["Properties"]["Bucket"] == {"Ref": name}
    ]
    denials = [s for s in policy["Statement"] if s["Effect"] == "Deny"]
    insecure = [s for s in denials if s["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}]
    assert [(s["Action"], s["Principal"]) for s in insecure] == [("s3:*", {"AWS": "*"})]
    assert len(listed(insecure[0]["Resource"])) == 2
    assert any(s["Condition"] == {"NumericLessThan": {"s3:TlsVersion": 1.2}} for s in denials)


@pytest.mark.parametrize("which", ["Datasets", "Checkpoints", "Lifecycle"])
def test_access_is_logged_under_the_buckets_own_name(buckets, which: str):
    logging = bucket(buckets, which)[1]["Properties"]["LoggingConfiguration"]
    assert logging["DestinationBucketName"] == {"Ref": bucket(buckets, "AccessLogs")[0]}
    assert logging["LogFilePrefix"] == f"{which.lower()}/"


@pytest.mark.parametrize("which", ["AccessLogs", "Datasets", "Checkpoints"])
def test_data_outlives_its_stack(buckets, which: str):
    """B11, I2."""
    found = bucket(buckets, which)[1]
    assert policies(found) == KEPT
    assert "aws-cdk:auto-delete-objects" not in shown(found)


def test_ages(buckets):
    rules = {w: bucket(buckets, w)[1]["Properties"]["LifecycleConfiguration"]["Rules"] for w in ALL}
    assert all(
        r["Status"] == "Enabled" and r["AbortIncompleteMultipartUpload"] for w in ALL for r in rules[w]
    )
    assert [r["ExpirationInDays"] for r in rules["AccessLogs"]] == [200]
    for which in ("Datasets", "Checkpoints"):
        (rule,) = rules[which]
        assert rule["NoncurrentVersionExpiration"] == {"NoncurrentDays": 20}
        assert "ExpirationInDays" not in rule, "current data never expires by itself"
    assert rules["Datasets"][0]["Transitions"] == [{"StorageClass": "STANDARD_IA", "TransitionInDays": 60}]
    assert "Transitions" not in rules["Checkpoints"][0]


def test_the_lifecycle_bucket_alone_empties_itself(buckets):
    """I2."""
    name, found = bucket(buckets, "Lifecycle")
    assert found["DeletionPolicy"] == "Delete"
    emptied = [
        r["Properties"]["BucketName"] for r in of_type(buckets, "Custom::S3AutoDeleteObjects").values()
    ]
    assert emptied == [{"Ref": name}]


@pytest.mark.parametrize("region", REGIONS)
def test_the_lifecycle_bucket_has_a_name_that_nodes_may_read(region: str):
    """C10: `sagemaker-…` for AWS's managed node policy, and no longer than S3 allows."""
    stack = cdk.Stack(env=cdk.Environment(account="111122223333", region=region))
    key = kms.Key.from_key_arn(stack, "Key", f"arn:aws:kms:{region}:111122223333:key/12345678-1234")
    logs = AccessLogBucket(stack, "Logs", expire_after_days=365)
    longest = LifecycleBucket(stack, "Lifecycle", platform="a" * 20, key=key, access_logs=logs)
    name = stack.resolve(longest.node.default_child.bucket_name)
    assert name.startswith("sagemaker-")
    assert len(name) <= 63


def test_the_key_lets_in_fsx_and_cloudwatch_logs(buckets):
    """F8: FSx reads a linked bucket through its service-linked role, which the bucket grants nothing."""
    key = only(buckets, "AWS::KMS::Key")[1]
    assert policies(key) == KEPT
    assert key["Properties"]["EnableKeyRotation"] is True
    statements = {s.get("Sid"): s for s in key["Properties"]["KeyPolicy"]["Statement"]}
    fsx, logs = statements["FSxDataRepositories"], statements["CloudWatchLogs"]
    for statement in (fsx, logs):
        assert {"kms:Decrypt", "kms:GenerateDataKey*", "kms:Encrypt"} <= set(statement["Action"])
    role = "role/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_fs-*"
    assert role in shown(fsx["Condition"]["ArnLike"]["aws:PrincipalArn"])
    assert logs["Principal"] == {"Service": "logs.us-east-2.amazonaws.com"}
    assert ":logs:us-east-2:" in shown(logs["Condition"]["ArnLike"]["kms:EncryptionContext:aws:logs:arn"])


def test_home_is_what_was_planned(stack_template):
    plan = OpenZfsPlan(name="home", zone=ZONE, capacity_gib=1024, throughput_mbps=320, backup_days=7)
    assert not check_openzfs(plan, path="storage.home")

    def build(stack: cdk.Stack) -> None:
        vpc = ec2.Vpc.from_vpc_attributes(stack, "Vpc", vpc_id="vpc-0a1b2c3d", availability_zones=[ZONE])
        group = ec2.SecurityGroup(stack, "Group", vpc=vpc)
        OpenZfsHome(
            stack, "Home", plan=plan, subnet_id=SUBNET, security_group=group, key=kms.Key(stack, "Key")
        )

    system = only(stack_template(build), "AWS::FSx::FileSystem")[1]
    properties = system["Properties"]
    zfs = properties["OpenZFSConfiguration"]
    assert (properties["FileSystemType"], properties["StorageCapacity"]) == ("OPENZFS", 1024)
    assert properties["SubnetIds"] == [SUBNET]
    assert "KmsKeyId" in properties
    assert zfs["DeploymentType"] == "SINGLE_AZ_HA_2"
    assert zfs["ThroughputCapacity"] == 320
    assert zfs["AutomaticBackupRetentionDays"] == 7
    root = zfs["RootVolumeConfiguration"]
    assert root["DataCompressionType"] == "LZ4"
    (exports,) = root["NfsExports"]
    assert "no_root_squash" not in shown(exports)
    assert policies(system) == KEPT
