"""The gate lets growth through and stops what would lose data, as CDK's own CLI tells them apart."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest

from stacks import cluster
from tests import gate, verdicts
from tests.support import Assembly, Resource, Template, of_type, only, platform_assembly
from tests.verdicts import Change, compare
from trainshed import settings_function

NETWORK, STORAGE, TRAIN = (f"quickstart-us-east-2-{part}" for part in ("network", "storage", "train"))
FILE_SYSTEM, BUCKET, CLUSTER = "AWS::FSx::FileSystem", "AWS::S3::Bucket", "AWS::SageMaker::Cluster"
needs_cli = pytest.mark.skipif(not verdicts.CDK.exists(), reason="the CDK CLI is not installed: `npm ci`")

Templates = dict[str, Template]


def find(changes: list[Change], kind: str, resource: str = "") -> Change:
    (found,) = [c for c in changes if c.kind == kind and resource in c.resource]
    return found


def group(hyperpod: Resource, name: str) -> Resource:
    (found,) = [g for g in hyperpod["Properties"]["InstanceGroups"] if g["InstanceGroupName"] == name]
    return found


@pytest.fixture(scope="module")
def today(assembly: Callable[..., Assembly]) -> Assembly:
    return assembly("quickstart")


@pytest.fixture
def deployed(today: Assembly) -> Templates:
    """What was deployed before: today's templates, for a test to alter."""
    return deepcopy(today.templates)


def test_unchanged_passes_even_strictly(today, deployed, capsys):
    changes = gate.changes_of({"quickstart": today}, {"quickstart": deployed})
    assert gate.judge(changes, set(), strict=True) == 0
    assert capsys.readouterr().out == "gate: 0 changes, 0 must not happen\n"


@needs_cli
def test_growth_and_new_code_pass(assembly, today, deployed):
    grown = assembly("quickstart", set="clusters.train.groups.p5.count=4")
    assert grown.templates[NETWORK] == today.templates[NETWORK], "growth within grow_to moves no address"
    _, lustre = only(deployed[STORAGE], FILE_SYSTEM)
    lustre["Properties"]["StorageCapacity"] -= 2400
    functions = of_type(deployed[TRAIN], "AWS::Lambda::Function")
    for function in functions.values():
        function["Properties"]["Code"]["S3Key"] = f"{'0' * 64}.zip"
    changes = compare(grown.templates, deployed)
    assert find(changes, CLUSTER).details == ("InstanceGroups.2.InstanceCount 2 → 4",)
    assert find(changes, FILE_SYSTEM).details == ("StorageCapacity 2400 → 4800",)
    assert len([c for c in changes if c.kind == "AWS::Lambda::Function"]) == len(functions) > 0
    assert gate.judge(changes, set(), strict=False) == 0
    assert gate.judge(changes, set(), strict=True) == 1


@pytest.fixture(scope="module")
def harmed(today: Assembly) -> list[Change]:
    """One comparison with many harmful changes, for the CLI takes seconds a stack."""
    was = deepcopy(today.templates)
    _, lustre = only(was[STORAGE], FILE_SYSTEM)
    was[STORAGE]["Resources"]["Former"] = deepcopy(lustre)
    lustre["Properties"]["KmsKeyId"] = "arn:aws:kms:us-east-2:111122223333:key/another"
    lustre["Properties"]["SubnetIds"] = ["subnet-0123456789abcdef0"]
    buckets = of_type(was[STORAGE], BUCKET)
    datasets = next(n for n in buckets if n.startswith("Datasets"))
    was[STORAGE]["Resources"]["FormerBucket"] = deepcopy(buckets[datasets])
    was[STORAGE]["Resources"]["Fleeting"] = {**deepcopy(buckets[datasets]), "DeletionPolicy": "Delete"}
    only(was[TRAIN], CLUSTER)[1]["Properties"]["ClusterName"] = "another"
    subnets = of_type(was[NETWORK], "AWS::EC2::Subnet")
    p5 = next(n for n in subnets if "P5" in n)
    was[NETWORK]["Resources"]["MovedP5"] = was[NETWORK]["Resources"].pop(p5)
    return compare(today.templates, was)


@needs_cli
@pytest.mark.parametrize(
    ("kind", "resource", "impact", "details"),
    [
        (FILE_SYSTEM, "LustreMain", "will be replaced", ("KmsKeyId", "SubnetIds")),
        ("AWS::FSx::DataRepositoryAssociation", "atasets", "will be replaced", ("FileSystemId refers to",)),
        (FILE_SYSTEM, "Former", "will be orphaned", ("known to no stack",)),
        (BUCKET, "FormerBucket", "will be orphaned", ("known to no stack",)),
        (BUCKET, "Fleeting", "will be destroyed", ()),
        (CLUSTER, "HyperPod", "will be replaced", ("ClusterName another → quickstart-train",)),
        ("AWS::EC2::Subnet", "MovedP5", "would move", ("another subnet of the same tenant",)),
    ],
)
def test_harm_is_named_with_a_way_out(harmed, kind, resource, impact, details):
    change = find(harmed, kind, resource)
    assert change.impact == impact
    assert change.instead
    assert all(any(wanted in detail for detail in change.details) for wanted in details), change.details


@needs_cli
def test_a_replacement_reaches_the_stacks_that_refer_to_it(today, deployed, capsys):
    name = next(n for n in of_type(deployed[NETWORK], "AWS::EC2::SecurityGroup") if n.startswith("EfaGroup"))
    properties = deployed[NETWORK]["Resources"][name]["Properties"]
    properties["GroupDescription"] = "before somebody corrected the spelling"
    changes = compare(today.templates, deployed)
    # Neither template differs, so CDK by itself sees nothing in these two stacks.
    told = f"refers to {NETWORK}/{name}, which will be replaced"
    assert find(changes, FILE_SYSTEM).details == (f"SecurityGroupIds {told}",)
    assert find(changes, CLUSTER).details == (f"VpcConfig {told}",)
    assert gate.judge(changes, set(), strict=False) == 1
    assert f"SecurityGroupIds {told}; instead: add a second file system" in capsys.readouterr().out


@pytest.fixture
def verdict(monkeypatch, today):
    """The gate's own rules alone, without the seconds of the CLI."""
    monkeypatch.setattr(verdicts, "cdk_diff", lambda *_: {})
    return lambda was: compare(today.templates, was)


def test_what_aws_would_refuse_fails(verdict, deployed):
    _, hyperpod = only(deployed[TRAIN], CLUSTER)
    group(hyperpod, "p5")["InstanceType"] = "ml.p5en.48xlarge"
    group(hyperpod, "login")["OverrideVpcConfig"]["Subnets"] = ["subnet-0123456789abcdef0"]
    _, lustre = only(deployed[STORAGE], FILE_SYSTEM)
    lustre["Properties"]["StorageCapacity"] += 2400
    lustre["Properties"]["LustreConfiguration"]["EfaEnabled"] = True
    changes = verdict(deployed)
    assert all(c.impact == "would be refused by AWS" and c.instead for c in changes)
    said = [c.details[0] for c in changes]
    assert "StorageCapacity 7200 → 4800, and FSx only grows" in said
    assert "LustreConfiguration.EfaEnabled true → false, and it is fixed for life" in said
    assert "group p5: InstanceType ml.p5en.48xlarge → ml.p5.48xlarge" in said
    assert any(s.startswith("group login: OverrideVpcConfig.Subnets.0 subnet-0123") for s in said)


def test_a_cluster_keeps_its_controller_group_but_may_lose_others(verdict, deployed):
    _, hyperpod = only(deployed[TRAIN], CLUSTER)
    worker = deepcopy(group(hyperpod, "p5"))
    groups = hyperpod["Properties"]["InstanceGroups"]
    groups.append({**worker, "InstanceGroupName": "former"})
    assert not [c for c in verdict(deployed) if c.instead]
    head = {**worker, "InstanceGroupName": "head", "SlurmConfig": {"NodeType": "Controller"}}
    groups.append(head)
    assert find(verdict(deployed), CLUSTER).details == ("controller group head removed",)


def test_a_pruned_subnet_passes(verdict, deployed):
    subnets = of_type(deployed[NETWORK], "AWS::EC2::Subnet")
    former = deepcopy(next(iter(subnets.values())))
    former["Properties"]["Tags"] = [{"Key": "Name", "Value": "group/train/former"}]
    deployed[NETWORK]["Resources"]["Former"] = former
    assert find(verdict(deployed), "AWS::EC2::Subnet").instead is None


def test_a_stack_that_leaves_takes_nothing_stateful_along(today, deployed):
    deployed["quickstart-eu-west-1-storage"] = deepcopy(deployed[STORAGE])
    deployed["quickstart-eu-west-1-empty"] = {"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}
    changes = compare(today.templates, deployed)
    left = [c for c in changes if c.impact == "left behind"]
    protected = [r for r in deployed[STORAGE]["Resources"].values() if r["Type"] in verdicts.PROTECTED]
    assert len(left) == len(protected) > 4
    assert all(c.instead for c in left)
    assert [c.impact for c in changes if c not in left] == ["removed"]


def test_an_example_that_leaves_fails_and_a_new_one_passes(today, deployed):
    assert gate.judge(gate.changes_of({}, {"quickstart": deployed}), set(), strict=False) == 1
    assert gate.judge(gate.changes_of({"quickstart": today}, {}), set(), strict=False) == 0


def test_reviewers_let_a_named_resource_pass(verdict, deployed, tmp_path, capsys):
    name, lustre = only(deployed[STORAGE], FILE_SYSTEM)
    lustre["Properties"]["StorageCapacity"] += 2400
    file = tmp_path / "accepted.txt"
    file.write_text(f"# comment\n{STORAGE} {name} moved to another file system in March\n")
    changes = verdict(deployed)
    assert gate.judge(changes, set(), strict=False) == 1
    assert gate.judge(changes, gate.accepted(file), strict=False) == 0
    assert "accepted" in capsys.readouterr().out
    file.write_text(f"{STORAGE} {name}\n")
    with pytest.raises(RuntimeError, match="REASON"):
        gate.accepted(file)
    assert gate.accepted(tmp_path / "absent.txt") == set()


def test_the_base_is_where_the_branches_parted(tmp_path):
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def commit(**resources: str) -> None:
        path = tmp_path / gate.BASELINES / "quickstart" / f"{STORAGE}.template.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"Resources": resources}))
        git("add", ".")
        git("commit", "-m", "x")

    git("init", "-b", "main")
    commit(A="deployed")
    git("switch", "-c", "change")
    commit(A="hidden by its own baseline")
    git("switch", "main")
    commit(A="merged meanwhile")
    git("switch", "change")
    assert gate.committed("main", tmp_path) == {"quickstart": {STORAGE: {"Resources": {"A": "deployed"}}}}
    with pytest.raises(RuntimeError, match="merge-base nowhere HEAD"):
        gate.committed("nowhere", tmp_path)


def test_baselines_are_the_same_on_every_machine(assembly, monkeypatch, tmp_path):
    """Asset hashes follow what files say: not their age, their mode, or the bytecode beside them."""
    example = "slurm-production"
    sources = {
        "lifecycle": cluster.LIFECYCLE,
        "provider": Path(settings_function.__file__).parent / "provider",
    }
    for name, source in sources.items():
        copy = shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        for file in [path for path in copy.rglob("*") if path.is_file()]:
            file.chmod(0o600)
            os.utime(file, (0, 0))
        (copy / "__pycache__").mkdir()
        (copy / "__pycache__/module.cpython-313.pyc").write_bytes(b"of this machine alone")
    monkeypatch.setattr(cluster, "LIFECYCLE", tmp_path / "lifecycle")
    monkeypatch.setattr(settings_function, "__file__", str(tmp_path / "settings_function.py"))
    elsewhere = platform_assembly(example, {}, tmp_path / "cdk.out")
    assert elsewhere.templates == assembly(example).templates


def test_no_answer_of_the_cli_is_taken_for_yes(monkeypatch, today, deployed):
    def failing(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "Unknown option: --template")

    monkeypatch.setattr(verdicts.subprocess, "run", failing)
    deployed[STORAGE]["Resources"].popitem()
    with pytest.raises(RuntimeError, match="not understood"):
        compare(today.templates, deployed)


def test_values_read_well():
    here = {"Fn::GetStackOutput": {"StackName": "network", "OutputName": "Key", "Region": "us-east-2"}}
    assert verdicts.leaves({"a": [{"b": 1}]}, {"a": [{"b": here}]}) == ["a.0.b 1 → network.Key"]
    assert verdicts.leaves({"a": [1]}, {}) == ["a [1] → nothing"]
    assert verdicts.leaves({"a": {"Ref": "X"}}, {"a": {"Ref": "Y"}}) == ['a {"Ref":"X"} → {"Ref":"Y"}']
