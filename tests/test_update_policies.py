"""What a change of a deployment file does: the policy of each field, and two files against each other."""

# Tables are read across.
# ruff: noqa: E501

from __future__ import annotations

import copy
import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from trainshed.cli import main
from trainshed.comparing import against
from trainshed.consequences import ENTRIES, MEANINGS, RULES, policies_page
from trainshed.deployment import json_schema, update_policies
from trainshed.loading import load

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(p for p in (ROOT / "deployments").glob("*.yaml") if not p.name.endswith(".lock.yaml"))
FS, GROUP = "storage.lustre.main", "clusters.train.groups.p5"
DROP = object()
BASE = {
    "name": "demo",
    "account": "123456789012",
    "regions": {"us-east-2": {"zones": ["use2-az1"]}},
    "storage": {
        "home": {"capacity_gib": 1024},
        "lustre": {
            "main": {
                "capacity_tib": 4.8,
                "throughput_per_tib": 250,
                "associations": [
                    {"path": "/datasets", "bucket": "datasets"},
                    {"path": "/out", "bucket": "checkpoints", "prefix": "a"},
                ],
            }
        },
    },
    "clusters": {
        "train": {
            "groups": {
                "controller": {"role": "controller", "type": "ml.m5.4xlarge", "count": 1},
                "p5": {"type": "ml.p5.48xlarge", "count": 2, "partition": "p5"},
            }
        }
    },
}
SSD = {"capacity_tib": 4.8, "throughput_per_tib": 250}
EFA = {f"{FS}.efa": True, f"{FS}.throughput_per_tib": 1000}
TIERED = {
    FS: {
        "storage_class": "intelligent-tiering",
        "throughput_mbps": 8000,
        "metadata_iops": 6000,
        "read_cache": {},
    }
}
PLAN = {"arn": "arn:aws:sagemaker:us-east-2:123456789012:training-plan/a", "zone": "use2-az1"}
SECOND = {"type": "ml.p5.48xlarge", "count": 60, "partition": "x"}


def changed(changes: dict, base: dict = BASE) -> dict:
    doc = copy.deepcopy(base)
    for path, value in changes.items():
        *parents, last = path.split(".")
        at = doc
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
        key = int(last) if isinstance(at, list) else last
        if value is DROP:
            del at[key]
        else:
            at[key] = value
    return doc


@pytest.fixture
def compared(tmp_path):
    def changes(edits: dict, before: dict | None = None, *, lock: bool = True) -> dict[str, str]:
        """What differs after edits: path → policy. The old file is locked, as what is deployed should be."""
        old = changed(before or {})
        paths = [tmp_path / "old.yaml", tmp_path / "new.yaml"]
        for path, doc in zip(paths, (old, changed(edits, old)), strict=True):
            path.write_text(yaml.safe_dump(doc, sort_keys=False))
        if lock:
            assert main(["plan", str(paths[0]), "--lock"]) == 0
            (tmp_path / "new.lock.yaml").write_text((tmp_path / "old.lock.yaml").read_text())
        found = against(paths[0], load(paths[1]))
        assert main(["plan", str(paths[1]), "--against", str(paths[0])]) == (
            3 if any(c.policy == "never" for c in found) else 0
        )
        assert [list(MEANINGS).index(c.policy) for c in found] == sorted(
            list(MEANINGS).index(c.policy) for c in found
        )
        return {c.path + (f" in {','.join(c.regions)}" if c.regions else ""): c.policy for c in found}

    return changes


def test_every_field_has_a_policy_and_a_description():
    for path, (policy, description) in update_policies().items():
        assert policy in MEANINGS, path
        assert description.endswith("."), path


def test_rules_and_entries_speak_of_what_the_schema_has():
    known = update_policies()
    for rule in RULES:
        assert rule.path in known
    for path in ENTRIES:
        assert path in known or path.removesuffix(".*") in known


def test_the_page_is_current(capsys):
    assert (ROOT / "docs/update-policies.md").read_text() == policies_page()
    assert main(["policies", "--check", str(ROOT / "docs/update-policies.md")]) == 0
    assert capsys.readouterr().out == ""


def test_the_exported_schema_is_current(capsys):
    at = ROOT / "deployments/schema.json"
    assert json.loads(at.read_text()) == json_schema()
    assert main(["schema", "--check", str(at)]) == 0
    assert main(["schema"]) == 0
    assert capsys.readouterr().out == at.read_text()


def test_an_outdated_export_is_named_with_the_command_that_renews_it(tmp_path, capsys):
    (tmp_path / "schema.json").write_text("{}")
    assert main(["schema", "--check", str(tmp_path / "schema.json")]) == 2
    assert "trainshed schema >" in capsys.readouterr().err


@pytest.fixture(scope="module")
def validator():
    schema = json.loads((ROOT / "deployments/schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_exported_schema_accepts_the_examples(path, validator):
    validator.validate(yaml.safe_load(path.read_text()))
    assert "schema.json" in path.read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("edits", "valid"),
    [
        ({}, True),
        ({"regions.us-east-2": None}, True),
        ({f"{GROUP}.cuont": 2}, False),
        ({"storge": {}}, False),
        ({"regions.us-east-2.zone": "use2-az1"}, False),
        ({f"{GROUP}.role": "boss"}, False),
        ({f"{GROUP}.count": DROP}, False),
        ({f"{GROUP}.count": "2"}, False),
        ({"clusters.Train": {}}, False),
    ],
)
def test_the_exported_schema_refuses_what_an_editor_should_underline(edits, valid, validator):
    assert validator.is_valid(changed(edits)) == valid


# What CloudFormation replaces a resource for → the fields that end up in it.
CREATE_ONLY = {
    "AWS::SageMaker::Cluster": {
        "ClusterName": ["name"],
        "VpcConfig": ["clusters.*.groups.*.zone", "regions.*.vpc"],
        "Orchestrator/Eks": ["clusters.*.orchestrator.kind"],
    },
    "AWS::FSx::FileSystem": {
        "SubnetIds": ["storage.lustre.*.zone", "storage.home.zone"],
        "KmsKeyId": [],
        "SecurityGroupIds": [],
        "FileSystemType": [],
        "BackupId": [],
    },
    "AWS::FSx::DataRepositoryAssociation": {
        "FileSystemId": [],
        "FileSystemPath": ["storage.lustre.*.associations.*.path"],
        "DataRepositoryPath": [
            "storage.lustre.*.associations.*.bucket",
            "storage.lustre.*.associations.*.prefix",
        ],
        "BatchImportMetaDataOnCreate": ["storage.lustre.*.associations.*.batch_import"],
    },
}


@pytest.mark.parametrize("resource", CREATE_ONLY)
def test_what_cloudformation_would_replace_is_never(resource):
    """Drift in AWS's own list fails here, before a deployment does."""
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", resource).schema
    listed = {path.removeprefix("/properties/") for path in schema["createOnlyProperties"]}
    assert listed == set(CREATE_ONLY[resource])
    policies = update_policies()
    for field in (f for fields in CREATE_ONLY[resource].values() for f in fields):
        assert policies[field][0] == "never", field


# What AWS's pages say of HyperPod beyond that list.
DOCUMENTED = {
    "clusters.*.groups.*.role": "never",  # SlurmConfig.NodeType
    "clusters.*.groups.*.type": "never",
    "clusters.*.groups.*.zone": "never",  # OverrideVpcConfig
    "clusters.*.continuous_provisioning": "never",  # no migration between the two models
    "clusters.*.lustre": "replaces nodes",  # FSx configuration is read when a node is provisioned
    "clusters.*.home": "replaces nodes",
    "clusters.*.groups.*.scratch_gb": "replaces nodes",
    "clusters.*.groups.*.training_plan": "replaces nodes",
    "clusters.*.groups.*.image_id": "rolling",
    "clusters.*.groups.*.count": "live",
    "clusters.*.groups.*.patching": "live",
    "clusters.*.orchestrator.accounting": "live",
    "storage.lustre.*.efa": "never",
    "storage.lustre.*.storage_class": "never",
    "storage.lustre.*.capacity_tib": "live",
    "storage.lustre.*.root_squash": "live",
}


def test_policies_follow_aws():
    policies = update_policies()
    assert {path: policies[path][0] for path in DOCUMENTED} == DOCUMENTED


CASES = {
    "nothing": ({}, {}),
    "defaults written out": (
        {f"{GROUP}.zone": "use2-az1", f"{FS}.zone": "use2-az1", "clusters.train.lustre": "main", f"{GROUP}.role": "worker",
         "network": {"egress": "nat"}, f"{GROUP}.type": ["ml.p5.48xlarge"], f"{FS}.efa": False, "version": 1, "tags": {}},
        {}),
    "order of keys and of associations": ({f"{FS}.associations": BASE["storage"]["lustre"]["main"]["associations"][::-1]}, {}),
    "count": ({f"{GROUP}.count": 3}, {f"{GROUP}.count": "live"}),
    "type": ({f"{GROUP}.type": "ml.p5e.48xlarge"}, {f"{GROUP}.type": "never"}),
    "interface": ({f"{GROUP}.interface": "efa-only"}, {f"{GROUP}.interface": "never"}),
    "spot": ({f"{GROUP}.capacity": "spot"}, {f"{GROUP}.capacity": "never"}),
    "plan": ({f"{GROUP}.training_plan": PLAN}, {f"{GROUP}.training_plan": "replaces nodes"}),
    "image": ({f"{GROUP}.image_id": "ami-01234567"}, {f"{GROUP}.image_id": "rolling"}),
    "patching": ({f"{GROUP}.patching": {"strategy": "WhenIdle"}}, {f"{GROUP}.patching": "live"}),
    "threads and scratch": ({f"{GROUP}.threads_per_core": 1, f"{GROUP}.scratch_gb": 9},
                            {f"{GROUP}.threads_per_core": "replaces nodes", f"{GROUP}.scratch_gb": "replaces nodes"}),
    "partition": ({f"{GROUP}.partition": "x"}, {f"{GROUP}.partition": "live"}),
    "zones appended": ({"regions.us-east-2.zones": ["use2-az1", "use2-az2"]}, {"regions.us-east-2.zones": "live"}),
    "lustre grows": ({f"{FS}.capacity_tib": 7.2}, {f"{FS}.capacity_tib": "live"}),
    "lustre shrinks": ({f"{FS}.capacity_tib": 2.4}, {f"{FS}.capacity_tib": "never"}),
    "tier": ({f"{FS}.throughput_per_tib": 500}, {f"{FS}.throughput_per_tib": "live"}),
    "compression": ({f"{FS}.compression": "none"}, {f"{FS}.compression": "live"}),
    "root squash": ({f"{FS}.root_squash": {}}, {f"{FS}.root_squash": "live"}),
    "metadata rises": ({f"{FS}.metadata_iops": 12000}, {f"{FS}.metadata_iops": "live"}),
    "home grows": ({"storage.home.capacity_gib": 2048}, {"storage.home.capacity_gib": "live"}),
    "home shrinks": ({"storage.home.capacity_gib": 64}, {"storage.home.capacity_gib": "never"}),
    "home goes": ({"storage.home": None}, {"storage.home": "retained", "clusters.train.home": "replaces nodes"}),
    "second lustre": ({"storage.lustre.scratch": SSD, "clusters.train.lustre": "main"}, {"storage.lustre.scratch": "added"}),
    "lustre renamed": ({"storage.lustre": {"fast": SSD}},
                       {FS: "retained", "storage.lustre.fast": "added", "clusters.train.lustre": "replaces nodes"}),
    "events": ({f"{FS}.associations.0.export_events": ["NEW"]}, {f"{FS}.associations./datasets.export_events": "live"}),
    "bucket": ({f"{FS}.associations.0.bucket": "others"}, {f"{FS}.associations./datasets.bucket": "never"}),
    "prefix": ({f"{FS}.associations.1.prefix": "b"}, {f"{FS}.associations./out.prefix": "never"}),
    "batch import": ({f"{FS}.associations.1.batch_import": False}, {f"{FS}.associations./out.batch_import": "never"}),
    "unlinked": ({f"{FS}.associations.1": DROP}, {f"{FS}.associations./out": "removed"}),
    "linked": ({f"{FS}.associations": [*BASE["storage"]["lustre"]["main"]["associations"], {"path": "/x", "bucket": "third"}]},
               {f"{FS}.associations./x": "added"}),
    "link moved": ({f"{FS}.associations.1.path": "/results"}, {f"{FS}.associations./out": "removed", f"{FS}.associations./results": "never"}),
    "link swapped for another": ({f"{FS}.associations.1": {"path": "/x", "bucket": "third"}},
                                 {f"{FS}.associations./out": "removed", f"{FS}.associations./x": "added"}),
    "group added": ({"clusters.train.groups.second": SECOND}, {"clusters.train.groups.second": "added"}),
    "group removed": ({GROUP: DROP}, {GROUP: "removed"}),
    "group renamed": ({GROUP: DROP, "clusters.train.groups.h100": SECOND}, {GROUP: "removed", "clusters.train.groups.h100": "added"}),
    "controller renamed": (
        {"clusters.train.groups.controller": DROP, "clusters.train.groups.head": BASE["clusters"]["train"]["groups"]["controller"]},
        {"clusters.train.groups.controller": "never", "clusters.train.groups.head": "added"}),
    "cluster added": ({"clusters.eval": BASE["clusters"]["train"]}, {"clusters.eval": "added"}),
    "cluster removed": ({"clusters": {}}, {"clusters.train": "removed"}),
    "accounting": (
        {"clusters.train.orchestrator": {"accounting": {"endpoint": "db", "secret_arn": "arn:aws:secretsmanager:us-east-2:1:secret:x"}}},
        {"clusters.train.orchestrator.accounting": "live"}),
    "continuous": ({"clusters.train.continuous_provisioning": False}, {"clusters.train.continuous_provisioning": "never"}),
    "recovery": ({"clusters.train.node_recovery": False}, {"clusters.train.node_recovery": "live"}),
    "home unmounted": ({"clusters.train.home": False}, {"clusters.train.home": "replaces nodes"}),
    "region added": ({"regions.us-west-2": {"zones": ["usw2-az1"]}}, {"regions.us-west-2": "added"}),
    "region swapped": ({"regions": {"us-west-2": {"zones": ["usw2-az1"]}}}, {"regions.us-west-2": "added", "regions.us-east-2": "retained"}),
    "set by region": ({"regions.us-east-2.set": {f"{GROUP}.count": 3}}, {f"{GROUP}.count": "live"}),
    "set to what it is": ({"regions.us-east-2.set": {f"{GROUP}.count": 2}}, {}),
    "tags": ({"tags": {"a.b": "c"}}, {"tags.a.b": "live"}),
    "name": ({"name": "other"}, {"name": "never"}),
    "account": ({"account": "210987654321"}, {"account": "never"}),
    "egress": ({"network.egress": "closed"}, {"network.egress": "live"}),
    "pool of a locked region": ({"regions.us-east-2.pool": ["10.64.0.0/16"]}, {"regions.us-east-2.pool": "live"}),
}  # fmt: skip


@pytest.mark.parametrize(("edits", "wanted"), CASES.values(), ids=list(CASES))
def test_two_files_against_each_other(edits, wanted, compared):
    assert compared(edits) == wanted


BEFORE = {
    "account given at last": ({"account": None}, {"account": "123456789012"}, {"account": "live"}),
    "tier with efa": (EFA, {f"{FS}.throughput_per_tib": 500, f"{FS}.capacity_tib": 9.6}, {f"{FS}.throughput_per_tib": "never", f"{FS}.capacity_tib": "live"}),
    "efa": (EFA, {f"{FS}.efa": False}, {f"{FS}.efa": "never"}),
    "metadata shrinks": ({f"{FS}.metadata_iops": 24000}, {f"{FS}.metadata_iops": 12000}, {f"{FS}.metadata_iops": "never"}),
    "metadata to automatic": ({f"{FS}.metadata_iops": 24000}, {f"{FS}.metadata_iops": DROP}, {f"{FS}.metadata_iops": "never"}),
    "metadata to what automatic gives": ({f"{FS}.metadata_iops": 6000}, {f"{FS}.metadata_iops": DROP}, {f"{FS}.metadata_iops": "live"}),
    "tiering grows": (TIERED, {f"{FS}.throughput_mbps": 12000}, {f"{FS}.throughput_mbps": "live"}),
    "tiering shrinks": (TIERED, {f"{FS}.throughput_mbps": 4000}, {f"{FS}.throughput_mbps": "never"}),
    "plan changed": ({f"{GROUP}.training_plan": PLAN}, {f"{GROUP}.training_plan.arn": PLAN["arn"] + "b"}, {f"{GROUP}.training_plan.arn": "replaces nodes"}),
    "plan dropped": ({f"{GROUP}.training_plan": PLAN}, {f"{GROUP}.training_plan": DROP}, {f"{GROUP}.training_plan": "replaces nodes"}),
    "home comes": ({"storage.home": None}, {"storage.home": {}}, {"storage.home": "added", "clusters.train.home": "replaces nodes"}),
    "one region of two": (
        {"regions.us-west-2": {"zones": ["usw2-az1"]}}, {"regions.us-west-2.set": {f"{GROUP}.count": 3}}, {f"{GROUP}.count in us-west-2": "live"}),
    "both regions": ({"regions.us-west-2": {"zones": ["usw2-az1"]}}, {f"{GROUP}.count": 3}, {f"{GROUP}.count": "live"}),
}  # fmt: skip


@pytest.mark.parametrize(("before", "edits", "wanted"), BEFORE.values(), ids=list(BEFORE))
def test_changes_that_depend_on_what_was_there(before, edits, wanted, compared):
    assert compared(edits, before) == wanted


def test_a_first_zone_that_changes_moves_all_that_names_none(compared):
    zones = {"regions.us-east-2.zones": ["use2-az2", "use2-az1"]}
    assert compared({**zones, f"{GROUP}.zone": "use2-az1"}, lock=False) == {
        "clusters.train.groups.controller.zone": "never",
        f"{FS}.zone": "never",
        "storage.home.zone": "never",
        "regions.us-east-2.zones": "live",
        **{p: c for p, c in compared(zones, {f"{GROUP}.zone": "use2-az1"}, lock=False).items() if "(" in p},
    }


def test_without_a_lock_growth_that_moves_subnets_is_told(compared):
    edits = {"clusters.train.groups.big": SECOND}
    moved = compared(edits, lock=False)
    assert moved.pop("clusters.train.groups.big") == "added"
    assert "regions.us-east-2 (VPC blocks)" in moved
    assert "regions.us-east-2 (subnet of group/train/p5)" in moved
    assert set(moved.values()) == {"never"}
    assert compared(edits) == {"clusters.train.groups.big": "added"}


VPC = {
    "id": "vpc-01234567",
    "cidrs": ["10.200.0.0/16"],
    "subnets": [
        {"id": "subnet-01234567", "zone": "use2-az1", "cidr": "10.200.0.0/22"},
        {"id": "subnet-12345678", "zone": "use2-az1", "cidr": "10.200.8.0/21"},
    ],
}


def test_somebody_elses_vpc(compared):
    given, at = {"regions.us-east-2.vpc": VPC}, "regions.us-east-2"
    assert compared({f"{at}.vpc.subnets": VPC["subnets"][::-1]}, given, lock=False) == {}
    assert compared({f"{at}.vpc.subnets.1.purposes": ["nodes"]}, given, lock=False) == {
        f"{at}.vpc.subnets.subnet-12345678.purposes": "live"
    }
    # A seat is the smallest that fits: more nodes sit elsewhere, which neither HyperPod nor FSx can do.
    found = compared({f"{GROUP}.count": 40}, given, lock=False)
    assert found[f"{at} (subnet of group/train/p5)"] == "never"
    assert compared({f"{at}.vpc": DROP}, given, lock=False)[f"{at}.vpc"] == "never"


def test_an_old_file_that_cannot_be_planned_is_named(tmp_path, capsys):
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(changed({f"{GROUP}.count": "two"})))
    (tmp_path / "new.yaml").write_text(yaml.safe_dump(BASE))
    assert main(["plan", str(tmp_path / "new.yaml"), "--against", str(tmp_path / "old.yaml")]) == 2
    assert f"error: {tmp_path / 'old.yaml'}: {GROUP}.count: given two" in capsys.readouterr().err


def test_a_workload_comes_goes_and_changes_in_place(compared):
    links = [{"path": "/out", "bucket": "checkpoints", "import_events": []}]
    before = {"workload": {"evaluation": {}}, "storage.lustre.main.associations": links}
    assert compared({"workload": DROP}, before) == {"workload": "retained"}
    assert compared({"workload.evaluation": None}, before) == {"workload.evaluation": "removed"}
    assert compared({"workload": {"evaluation": {}}}, {"storage.lustre.main.associations": links}) == {
        "workload": "added"
    }
    jobs = {"workload.evaluation.max_hours": 3, "workload.evaluation.instance_type": "ml.g5.xlarge"}
    assert compared(jobs, before) == dict.fromkeys(jobs, "live")
    # The region's first zone, which is what leaving it out means.
    assert compared({"workload.evaluation.zone": "use2-az1"}, before) == {}
