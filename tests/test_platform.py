"""The examples as whole platforms: what depends on what, what survives, what an edit changes."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
import tarfile
from ipaddress import IPv4Network
from pathlib import Path

import aws_cdk as cdk
import pytest
import yaml
from aws_cdk import aws_logs as logs

import app
from tests import offline
from tests.support import (
    FLAGS,
    KEPT,
    ROOT,
    Template,
    of_type,
    only,
    policies,
    shown,
    statements_of,
    waits_for,
    walk,
)
from trainshed.guards import STATEFUL
from trainshed.loading import load
from trainshed.locking import locked, write_lock
from trainshed.planning.problems import PlanError

EXAMPLES = sorted(p.stem for p in (ROOT / "deployments").glob("*.yaml") if not p.name.endswith(".lock.yaml"))
QUICKSTART = tuple(f"quickstart-us-east-2-{part}" for part in ("network", "storage", "train"))
FLEET = tuple(
    f"fleet-{region}-{part}"
    for region in ("us-east-2", "us-west-2")
    for part in ("network", "storage", "train", "workload")
)
GUEST = tuple(f"guest-us-east-1-{part}" for part in ("network", "storage", "train"))
STACKS = {"quickstart": QUICKSTART, "slurm-production": FLEET, "existing-vpc": GUEST}

KEY_AND_GROUND = {
    "Key961B73FD": "AWS::KMS::Key",
    "VpcFB0DB6AD": "AWS::EC2::VPC",
    "EfaGroup8A1ECB17": "AWS::EC2::SecurityGroup",
}
DATA = {
    "AccessLogs8B620ECA": "AWS::S3::Bucket",
    "Datasets0030EE04": "AWS::S3::Bucket",
    "Checkpoints620E2F20": "AWS::S3::Bucket",
    "Lifecycle5C7F7473": "AWS::S3::Bucket",
    "LustreMainFileSystemF43B1564": "AWS::FSx::FileSystem",
    "LustreMainLinkdatasetsDF8A404B": "AWS::FSx::DataRepositoryAssociation",
    "LustreMainLinkcheckpoints922F7A1C": "AWS::FSx::DataRepositoryAssociation",
}
HOME = {"HomeFileSystem776A06C2": "AWS::FSx::FileSystem"}
# A logical id that changes makes CloudFormation replace what it names: with data in it, that is a loss.
PINNED = {
    "quickstart": {"quickstart-us-east-2-network": KEY_AND_GROUND, "quickstart-us-east-2-storage": DATA},
    "slurm-production": {
        "fleet-us-east-2-network": KEY_AND_GROUND,
        "fleet-us-east-2-storage": {**DATA, **HOME},
        "fleet-us-west-2-network": KEY_AND_GROUND,
        "fleet-us-west-2-storage": {**DATA, **HOME},
    },
}


def kinds(template: Template) -> set[str]:
    return {r["Type"] for r in template["Resources"].values()}


@pytest.mark.parametrize("example", EXAMPLES)
def test_synthesis_asks_aws_nothing(assembly, example: str):
    """L2, L3: no credentials (the tests have none), no lookups, no dummies."""
    made = assembly(example)
    assert not made.manifest.get("missing")
    assert all(a["environment"].startswith("aws://unknown-account/") for a in made.stacks.values())
    assert not re.search(r"dummy1|vpc-12345|1\.2\.3\.4", "".join(made.text(name) for name in made.stacks))


@pytest.mark.parametrize("example", STACKS)
def test_stacks_are_called_by_platform_region_and_part(assembly, example: str):
    assert set(assembly(example).stacks) == set(STACKS[example])


@pytest.mark.parametrize("example", EXAMPLES)
def test_no_stack_holds_another_by_an_export(assembly, example: str):
    """L5, L6, L8: references are weak, and none crosses a region."""
    made = assembly(example)
    for name, template in made.templates.items():
        assert not [o for o in template.get("Outputs", {}).values() if "Export" in o]
        found = list(walk(template))
        assert not [k for k, _ in found if k == "Fn::ImportValue"]
        assert not [k for k in kinds(template) if "CrossRegionExport" in k or "ExportReader" in k]
        here = made.stacks[name]["environment"].rpartition("/")[2]
        assert {v["Region"] for k, v in found if k == "Fn::GetStackOutput"} <= {here}


@pytest.mark.parametrize("example", EXAMPLES)
def test_stacks_are_deployed_in_the_order_of_what_they_need(assembly, example: str):
    """A9: file systems and clusters come after the security group's rules."""
    stacks = assembly(example).stacks
    for name, artifact in stacks.items():
        region = name.rpartition("-")[0]
        needs = {d for d in artifact.get("dependencies", []) if d in stacks}
        part = name.removeprefix(f"{region}-")
        expected = {"network": set(), "storage": {f"{region}-network"}}
        assert needs >= expected.get(part, {f"{region}-network", f"{region}-storage"})


@pytest.mark.parametrize("example", STACKS)
def test_what_holds_data_is_protected_from_termination(assembly, example: str):
    protected = {
        n: a["properties"].get("terminationProtection", False) for n, a in assembly(example).stacks.items()
    }
    assert protected == {name: name.endswith(("-network", "-storage")) for name in STACKS[example]}


def test_protection_can_be_taken_off(assembly):
    stacks = assembly("quickstart", set="protect=false").stacks
    assert not any(a["properties"].get("terminationProtection") for a in stacks.values())


@pytest.mark.parametrize("example", PINNED)
def test_logical_ids_of_what_holds_data_never_change(templates, example: str):
    pinned = PINNED[example]
    for name, template in templates(example).items():
        wanted = pinned.get(name, {})
        watched = STATEFUL | {"AWS::EC2::VPC"}
        found = {
            i: r["Type"] for i, r in template["Resources"].items() if r["Type"] in watched or i in wanted
        }
        assert found == wanted, name


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_holds_data_outlives_its_stack(templates, example: str):
    """B11, I2: all but the bucket that each deployment fills anew."""
    for template in templates(example).values():
        for name, resource in template["Resources"].items():
            if resource["Type"] in STATEFUL:
                keeps = ("Delete", "Delete") if name.startswith("Lifecycle") else KEPT
                assert (name, policies(resource)) == (name, keeps)


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_retained_file_systems_are_in_is_retained_too(templates, example: str):
    """I1: AWS deletes no subnet or group with a file system's interfaces in it: the stack would hang."""
    for name, template in templates(example).items():
        if not name.endswith("-network"):
            continue
        group = next(n for n in of_type(template, "AWS::EC2::SecurityGroup") if n.startswith("Efa"))
        held = [template["Resources"][group]]
        storage = [
            s
            for s in of_type(template, "AWS::EC2::Subnet").values()
            if re.search("/(lustre/|home)", shown(s))
        ]
        blocks = [template["Resources"][b] for s in storage for b in waits_for(s)]
        held += [*storage, *blocks, *(of_type(template, "AWS::EC2::VPC").values() if storage else ())]
        assert {policies(r) for r in held} == {KEPT}


@pytest.mark.parametrize("example", EXAMPLES)
def test_no_function_is_in_a_vpc(templates, example: str):
    """I1: its interfaces would keep subnets from being deleted."""
    for template in templates(example).values():
        assert not [
            f for f in of_type(template, "AWS::Lambda::Function").values() if "VpcConfig" in f["Properties"]
        ]


@pytest.mark.parametrize("example", EXAMPLES)
def test_roles_have_no_names_and_policies_are_of_this_app(templates, example: str):
    """F7: nothing needs CAPABILITY_NAMED_IAM."""
    for template in templates(example).values():
        for name, role in of_type(template, "AWS::IAM::Role").items():
            assert "RoleName" not in role["Properties"]
            assert statements_of(template, name) or role["Properties"].get("ManagedPolicyArns"), name
        named = [r for k in ("Policy", "ManagedPolicy") for r in of_type(template, f"AWS::IAM::{k}").values()]
        assert not [r for r in named if "ManagedPolicyName" in r["Properties"]]


def test_everything_is_tagged(templates):
    for template in templates("slurm-production").values():
        for resource in template["Resources"].values():
            tags = resource["Properties"].get("Tags")
            if isinstance(tags, list):
                assert {"Key": "cost-centre", "Value": "autonomy"} in tags
                assert {"Key": "trainshed", "Value": "fleet"} in tags


def same(one, other, stacks) -> None:
    """In content: CDK sorts some things by the numbers of its tokens, which depend on what came before."""
    for name in stacks:
        assert one.templates[name] == other.templates[name], name


def test_another_region_changes_no_others_template(assembly):
    alone, both = assembly("quickstart"), assembly("quickstart", regions="us-east-2,us-west-2")
    assert set(both.stacks) == {*QUICKSTART, *(name.replace("us-east-2", "us-west-2") for name in QUICKSTART)}
    same(alone, both, QUICKSTART)


def test_a_region_less_changes_no_others_template(assembly):
    both, alone = assembly("slurm-production"), assembly("slurm-production", regions="us-west-2")
    assert set(alone.stacks) == {name for name in FLEET if "us-west-2" in name}
    same(both, alone, alone.stacks)


def test_regions_never_overlap(templates):
    """Two regions of one platform can be peered."""
    blocks = {
        region: [
            *(
                v["Properties"]["CidrBlock"]
                for k in ("VPC", "VPCCidrBlock")
                for v in of_type(t, f"AWS::EC2::{k}").values()
            )
        ]
        for region in ("us-east-2", "us-west-2")
        for t in [templates("slurm-production")[f"fleet-{region}-network"]]
    }
    here, there = ([IPv4Network(b) for b in blocks[region]] for region in blocks)
    assert not any(a.overlaps(b) for a in here for b in there)


def test_growth_within_what_was_declared_changes_the_count_alone(assembly):
    """A1: no address moves, no other group is touched."""
    before, after = assembly("quickstart"), assembly("quickstart", set="clusters.train.groups.p5.count=16")
    same(before, after, QUICKSTART[:2])
    expected = copy.deepcopy(before.templates[QUICKSTART[2]])
    groups = only(expected, "AWS::SageMaker::Cluster")[1]["Properties"]["InstanceGroups"]
    (p5,) = [g for g in groups if g["InstanceGroupName"] == "p5"]
    assert p5["InstanceCount"] == 2
    p5["InstanceCount"] = 16
    assert after.templates[QUICKSTART[2]] == expected


def test_growth_beyond_it_is_refused(assembly):
    with pytest.raises(PlanError, match=r"clusters\.train\.groups\.p5\.grow_to"):
        assembly("quickstart", set="clusters.train.groups.p5.count=17")


def test_somebody_elses_vpc_gets_a_security_group_and_nothing_more(templates):
    """L7."""
    network, storage, train = (templates("existing-vpc")[name] for name in GUEST)
    ground = {k for k in kinds(network) if k.startswith("AWS::EC2::")}
    assert ground == {f"AWS::EC2::SecurityGroup{k}" for k in ("", "Ingress", "Egress")}
    (group,) = of_type(network, "AWS::EC2::SecurityGroup").values()
    assert group["Properties"]["VpcId"] == "vpc-0a1b2c3d4e5f67890"
    nodes, files = "subnet-0a1b2c3d4e5f67891", "subnet-0a1b2c3d4e5f67892"
    assert only(storage, "AWS::FSx::FileSystem")[1]["Properties"]["SubnetIds"] == [files]
    cluster = only(train, "AWS::SageMaker::Cluster")[1]["Properties"]
    overrides = [g["OverrideVpcConfig"]["Subnets"] for g in cluster["InstanceGroups"]]
    assert [cluster["VpcConfig"]["Subnets"], *overrides] == [[nodes]] * (1 + len(overrides))


def test_a_group_can_have_a_zone_of_its_own(assembly, tmp_path):
    """A11, J4, J6: three zones, each EFA group in one, each with its subnet."""
    raw = yaml.safe_load((ROOT / "deployments/quickstart.yaml").read_text(encoding="utf-8"))
    zones = ["use2-az1", "use2-az2", "use2-az3"]
    raw["regions"]["us-east-2"]["zones"] = zones
    groups = raw["clusters"]["train"]["groups"]
    for number, zone in enumerate(zones[1:], 2):
        groups[f"p5-{number}"] = {**groups["p5"], "zone": zone, "count": 1, "grow_to": 1}
    path = tmp_path / "zones.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    network, _, train = assembly(path).templates.values()
    placed = {
        n: s["Properties"]["AvailabilityZoneId"] for n, s in of_type(network, "AWS::EC2::Subnet").items()
    }
    assert set(placed.values()) == set(zones)
    outputs = {n: o["Value"]["Ref"] for n, o in network["Outputs"].items() if "Ref" in o["Value"]}
    cluster = only(train, "AWS::SageMaker::Cluster")[1]["Properties"]
    found = {
        g["InstanceGroupName"]: [
            placed[outputs[s["Fn::GetStackOutput"]["OutputName"]]] for s in g["OverrideVpcConfig"]["Subnets"]
        ]
        for g in cluster["InstanceGroups"]
    }
    assert found == {
        "controller": zones[:1], "login": zones[:1], "p5": zones[:1], "p5-2": zones[1:2], "p5-3": zones[2:],
    }  # fmt: skip


def test_an_accounting_database_can_be_reached(templates):
    """Slurm's controller would otherwise find its database behind its own security group."""
    accounting = {
        "endpoint": "db.example.com",
        "port": 3307,
        "secret_arn": "arn:aws:secretsmanager:us-east-2:1:secret:x",
    }
    override = f"clusters.train.orchestrator={json.dumps({'accounting': accounting})}"
    network = templates("quickstart", set=override)[QUICKSTART[0]]
    egress = only(network, "AWS::EC2::SecurityGroup")[1]["Properties"]["SecurityGroupEgress"]
    assert [e["FromPort"] for e in egress] == [443, 3307]


def test_logs_that_hyperpod_makes_for_itself_get_an_end(templates):
    """Its group is called by an id that only the ARN tells, once the cluster is there."""
    template = templates("quickstart", set="clusters.train.log_retention_days=30")[
        "quickstart-us-east-2-train"
    ]
    ((cluster, _),) = of_type(template, "AWS::SageMaker::Cluster").items()
    (retention,) = of_type(template, "Custom::ClusterLogRetention").values()
    arn = {"Fn::GetAtt": [cluster, "ClusterArn"]}
    id_ = {"Fn::Select": [1, {"Fn::Split": ["/", arn]}]}
    name = {"Fn::Join": ["", ["/aws/sagemaker/Clusters/quickstart-train/", id_]]}
    assert retention["Properties"]["LogGroupName"] == name
    assert retention["Properties"]["RetentionInDays"] == 30


def test_guards_watch_the_whole_app(tmp_path):
    """Somebody's own stack beside the platform's."""
    cdk_app = cdk.App(context={**FLAGS, "deployment": "deployments/existing-vpc.yaml"}, outdir=str(tmp_path))
    app.build(cdk_app)
    logs.CfnLogGroup(cdk.Stack(cdk_app, "Theirs"), "Logs")
    with pytest.raises(RuntimeError, match="ValidationFailed"):
        cdk_app.synth()
    assert "[trainshed:retention]" in (tmp_path / "validation-report.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["network", "storage", "workload"])
def test_a_cluster_is_not_called_like_another_stack(assembly, tmp_path, name: str):
    raw = yaml.safe_load((ROOT / "deployments/quickstart.yaml").read_text(encoding="utf-8"))
    raw["clusters"][name] = raw["clusters"].pop("train")
    path = tmp_path / "clash.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    with pytest.raises(PlanError, match=rf"clusters\.{name}: given {name}") as caught:
        assembly(path)
    assert len(caught.value.problems) == 1


def test_context_chooses_deployment_regions_and_values(assembly, monkeypatch, tmp_path):
    """`-c deployment=…` is found beside the app from anywhere; `-c set=` takes several values."""
    monkeypatch.chdir(tmp_path)
    context = {"deployment": "deployments/existing-vpc.yaml", "set": "tags={team: x},protect=false"}
    cdk_app = cdk.App(context={**FLAGS, **context}, outdir=str(tmp_path / "out"))
    app.build(cdk_app)
    stacks = [c for c in cdk_app.node.children if isinstance(c, cdk.Stack)]
    assert {s.stack_name for s in stacks} == set(GUEST)
    assert not any(s.termination_protection for s in stacks)
    given = 'account="111122223333",name=other'
    made = assembly("quickstart", regions="eu-west-1", set=given)
    assert {a["environment"] for a in made.stacks.values()} == {"aws://111122223333/eu-west-1"}
    assert not made.manifest.get("missing"), "an account is no reason to ask AWS"
    assert set(made.stacks) == {f"other-eu-west-1-{part}" for part in ("network", "storage", "train")}


@pytest.mark.parametrize(
    ("context", "words"),
    [
        ({"regions": "us-east-9"}, "us-east-9"),
        ({"regions": ","}, "comma-separated"),
        ({"set": "clusters.trian.groups.p5.count=1"}, "train"),
        ({"set": "protect"}, "dotted.path=value"),
    ],
)
def test_bad_context_is_refused(assembly, context, words: str):
    with pytest.raises(PlanError, match=re.escape(words)):
        assembly("quickstart", **context)


def run_app(deployment: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "JSII_NODE": offline.NODE,
        "CDK_CONTEXT_JSON": json.dumps({"deployment": str(deployment)}),
    }
    return subprocess.run(
        [sys.executable, str(ROOT / "app.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_bad_deployment_is_told_in_a_line_a_problem(tmp_path):
    path = tmp_path / "bad.yaml"
    text = (ROOT / "deployments/quickstart.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace("capacity_tib: 4.8", "capacity_tib: 5"), encoding="utf-8")
    done = run_app(path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: storage.lustre.main.capacity")
    assert "; fix: " in line


def test_a_lock_of_a_part_is_refused(tmp_path):
    """The next plan could move what is not in it."""
    path = tmp_path / "quickstart.yaml"
    path.write_bytes((ROOT / "deployments/quickstart.yaml").read_bytes())
    loaded = load(path)
    write_lock(loaded.lock_path, locked(loaded.plan, loaded.locks)[0])
    lock = yaml.safe_load(loaded.lock_path.read_text(encoding="utf-8"))
    del lock["regions"]["us-east-2"]["subnets"]["group/train/login"]
    loaded.lock_path.write_text(yaml.safe_dump(lock), encoding="utf-8")
    done = run_app(path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: quickstart.lock.yaml: given no entry for group/train/login in us-east-2")
    assert "trainshed plan --lock" in line


def test_a_whole_lock_changes_no_template(assembly, tmp_path):
    path = tmp_path / "quickstart.yaml"
    path.write_bytes((ROOT / "deployments/quickstart.yaml").read_bytes())
    loaded = load(path)
    write_lock(loaded.lock_path, locked(loaded.plan, loaded.locks)[0])
    same(assembly("quickstart"), assembly(path), QUICKSTART)


def test_every_recommended_feature_flag_is_on():
    """As the installed aws-cdk-lib recommends; and references between stacks are weak."""
    (archive,) = (Path(str(cdk.__file__)).parent / "_jsii").glob("aws-cdk-lib@*.jsii.tgz")
    with tarfile.open(archive) as inside:
        recommended = json.load(inside.extractfile("package/recommended-feature-flags.json"))
    assert len(recommended) > 50
    assert {k: v for k, v in recommended.items() if FLAGS.get(k) != v} == {}
    assert FLAGS["@aws-cdk/core:defaultCrossStackReferences"] == "weak"
    assert (ROOT / FLAGS["deployment"]).exists()
