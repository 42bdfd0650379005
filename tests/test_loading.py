"""Deployment and lock files as people write them: every mistake is told by path, value, rule and way out."""

# Tables are read across.
# ruff: noqa: E501

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml

from trainshed.deployment import update_policies
from trainshed.loading import assign, load, require_locked, split_overrides
from trainshed.locking import locked, read_lock, write_lock
from trainshed.planning.problems import PlanError

HERE = Path(__file__).parent
EXAMPLES = sorted(
    p for p in (HERE.parent / "deployments").glob("*.yaml") if not p.name.endswith(".lock.yaml")
)
PLAN = "arn:aws:sagemaker:us-east-2:123456789012:training-plan/p5"
LINKS = [{"path": "/datasets", "bucket": "datasets"}, {"path": "/out", "bucket": "checkpoints"}]
BASE = {
    "name": "demo",
    "regions": {"us-east-2": {"zones": ["use2-az1", "use2-az2"]}},
    "storage": {"lustre": {"main": {"capacity_tib": 4.8, "throughput_per_tib": 250, "associations": LINKS}}},
    "clusters": {
        "train": {
            "groups": {
                "controller": {"role": "controller", "type": "ml.m5.4xlarge", "count": 1},
                "p5": {"type": "ml.p5.48xlarge", "count": 2, "partition": "p5"},
            }
        }
    },
}
VPC = {
    "id": "vpc-0123456789abcdef0",
    "cidrs": ["10.200.0.0/16"],
    "subnets": [
        {"id": "subnet-0123456789abcdef0", "zone": "use2-az1", "cidr": "10.200.0.0/22"},
        {
            "id": "subnet-0123456789abcdef1",
            "zone": "use2-az1",
            "cidr": "10.200.4.0/24",
            "purposes": ["storage"],
        },
    ],
}
SECRET = "arn:aws:secretsmanager:us-east-2:123456789012:secret:db"
# Every field of the schema, so that each can be misspelt and given nonsense.
FULL = {
    "version": 1,
    "name": "full",
    "account": "123456789012",
    "protect": True,
    "tags": {"owner": "research"},
    "regions": {
        "us-east-2": {
            "zones": ["use2-az1"],
            "pool": ["10.64.0.0/16"],
            "vpc": {**VPC, "subnets": [{**VPC["subnets"][0], "free": 900, "purposes": ["nodes", "storage"]}]},
            "set": {"clusters.train.groups.p5.count": 4},
        }
    },
    "network": {
        "egress": "closed",
        "egress_ports": [443],
        "endpoints": ["sqs"],
        "flow_log_retention_days": 30,
        "block_quota": 10,
    },
    "storage": {
        "buckets": {
            "dataset_infrequent_after_days": 90,
            "noncurrent_expire_after_days": 30,
            "access_log_expire_after_days": 365,
        },
        "lustre": {
            "main": {
                "zone": "use2-az1",
                "storage_class": "ssd",
                "capacity_tib": 4.8,
                "grow_to_tib": 9.6,
                "throughput_per_tib": 250,
                "throughput_mbps": 4000,
                "read_cache": {"mode": "user", "size_gib": 32},
                "efa": False,
                "metadata_iops": 6000,
                "compression": "none",
                "backup_days": 7,
                "root_squash": {"user": "65534:65534", "no_squash_nids": ["10.0.1.6@tcp"]},
                "maintenance": "7:03:00",
                "associations": [
                    {
                        "path": "/datasets",
                        "bucket": "datasets",
                        "prefix": "text",
                        "import_events": ["NEW"],
                        "export_events": [],
                        "batch_import": False,
                        "chunk_mib": 512,
                    }
                ],
            }
        },
        "home": {"zone": "use2-az1", "capacity_gib": 2048, "throughput_mbps": 320, "backup_days": 7},
    },
    "clusters": {
        "train": {
            "orchestrator": {
                "kind": "slurm",
                "accounting": {
                    "endpoint": "db.example.org",
                    "secret_arn": SECRET,
                    "port": 3306,
                    "database": "slurm",
                },
            },
            "lustre": "main",
            "home": True,
            "node_recovery": True,
            "continuous_provisioning": True,
            "log_retention_days": 30,
            "nodes": {
                "site": "site",
                "certificates_secret_arn": SECRET,
                "ldap": {
                    "uri": "ldaps://ldap.example.org",
                    "base": "dc=example,dc=org",
                    "bind_dn": "cn=nodes,dc=example,dc=org",
                    "bind_secret_arn": SECRET,
                },
                "metrics": {
                    "url": "https://metrics.example.org/write",
                    "auth": "basic",
                    "secret_arn": SECRET,
                },
                "logs": {"to": "syslog", "host": "logs.example.org", "port": 6514, "tls": True},
                "containers": False,
                "clock": ["time.example.org"],
                "xids": {"63": "drain"},
            },
            "groups": {
                "p5": {
                    "role": "worker",
                    "type": "ml.p5.48xlarge",
                    "count": 2,
                    "grow_to": 4,
                    "minimum": 1,
                    "zone": "use2-az1",
                    "partition": "p5",
                    "interface": "efa",
                    "capacity": "on-demand",
                    "training_plan": {"arn": PLAN, "zone": "use2-az1"},
                    "threads_per_core": 1,
                    "scratch_gb": 500,
                    "deep_health_checks": ["InstanceStress"],
                    "patching": {
                        "schedule": "cron(0 3 ? * SUN *)",
                        "strategy": "WhenIdle",
                        "rolling": {
                            "batch": 1,
                            "percent": False,
                            "wait_seconds": 60,
                            "rollback_alarms": ["hot"],
                        },
                    },
                    "image_id": "ami-0123456789abcdef0",
                }
            },
        }
    },
    "workload": {
        "image": "build",
        "base_image": "public.ecr.aws/deep-learning-containers/pytorch:2.13-cu133-amzn2023",
        "architecture": "x86_64",
        "evaluation": {
            "instance_type": "ml.g6.12xlarge",
            "zone": "use2-az1",
            "at_once": 2,
            "max_hours": 3,
            "volume_gb": 100,
            "data": "driving/val",
            "tokenizer": "models/tokenizer",
        },
    },
}
DROP = object()
GROUP, FS, REGION = "clusters.train.groups.p5", "storage.lustre.main", "regions.us-east-2"
JOBS, ECR = "workload.evaluation", "123456789012.dkr.ecr.us-east-2.amazonaws.com/team/trainer:1"
MUTE = {f"{FS}.associations.1.import_events": []}
SCORED = {JOBS: {}, **MUTE}


def changed(changes: dict, base: dict = BASE) -> dict:
    """A copy with dotted paths set, made or dropped."""
    doc = copy.deepcopy(base)
    for path, value in changes.items():
        *parents, last = path.split(".")
        at = doc
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
        if value is DROP:
            del at[last]
        else:
            at[int(last) if isinstance(at, list) else last] = copy.deepcopy(value)
    return doc


@pytest.fixture
def write(tmp_path):
    def file(doc: object, name: str = "demo.yaml") -> Path:
        path = tmp_path / name
        path.write_text(doc if isinstance(doc, str) else yaml.safe_dump(doc, sort_keys=False))
        return path

    return file


@pytest.fixture
def refused(write):
    def problems(doc: object, **flags) -> list:
        with pytest.raises(PlanError) as error:
            load(write(doc), **flags)
        for problem in error.value.problems:
            assert all((problem.path, problem.given, problem.allowed, problem.fix)), problem
        return list(error.value.problems)

    return problems


def expect(problems: list, wanted: list[tuple[str, ...]]) -> None:
    """Exactly these paths, in any order, each with these words in its message."""
    assert sorted(p.path for p in problems) == sorted(path for path, *_ in wanted), problems
    left = list(problems)
    for path, *words in wanted:
        found = next(p for p in left if (p.path == path and all(w in str(p) for w in words)) or p is left[-1])
        assert found.path == path, (path, str(found))
        assert all(w in str(found) for w in words), (words, str(found))
        left.remove(found)


def test_a_workload_is_planned_by_region(write):
    """An image lies in one region, and what a file leaves out is said."""
    west = ECR.replace("us-east-2", "us-west-2")
    doc = changed({
        **SCORED, "workload.image": ECR,
        "regions.us-west-2": {"zones": ["usw2-az1"], "set": {"workload.image": west, f"{JOBS}.at_once": 8}},
    })  # fmt: skip
    here, there = load(write(doc)).plan.regions
    assert (here.workload.image, there.workload.image) == (ECR, west)
    assert (here.workload.evaluation.zone, there.workload.evaluation.zone) == ("use2-az1", "usw2-az1")
    # Two addresses for each instance of a job (AWS).
    assert [r.addresses.subnet(r.workload.evaluation.claim).reserved for r in (here, there)] == [8, 16]
    assert load(write(BASE)).plan.regions[0].workload is None


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_plans(path):
    assert load(path).plan.regions


def test_the_base_of_these_tests_is_valid(write):
    loaded = load(write(BASE))
    assert loaded.plan.warnings == ()
    assert loaded.lock_path.name == "demo.lock.yaml"


def concrete(pattern: str) -> str:
    """A field's path in FULL: names and indices put in for `*`."""
    at, parts = FULL, []
    for part in pattern.split("."):
        if part == "*":
            key = 0 if isinstance(at, list) else "p5" if parts[-1] == "groups" else next(iter(at))
            parts.append(str(key))
            at = at[key]
        else:
            parts.append(part)
            at = at[part]
    return ".".join(parts)


FIELDS = [concrete(pattern) for pattern in update_policies()]


def test_full_has_every_field_and_each_would_be_accepted(refused):
    assert len(FIELDS) == len(set(FIELDS)) > 90
    # What is wrong with it is for the planner to say: no field is unknown, none has a wrong type.
    assert not [p for p in refused(FULL) if "one of" in p.allowed and p.given.startswith("`")]


def misspelt(word: str) -> str:
    return word[:-2] + word[-1] + word[-2] if len(word) > 2 and word[-1] != word[-2] else word + "x"


@pytest.mark.parametrize("path", FIELDS)
def test_a_misspelt_key_at_any_depth_is_named_and_corrected(path, refused):
    parent, _, key = path.rpartition(".")
    wrong = f"{parent}.{misspelt(key)}" if parent else misspelt(key)
    doc = changed({path: DROP, wrong: 1}, FULL)
    [problem] = [p for p in refused(doc) if p.path == wrong]
    assert problem.given == f"`{misspelt(key)}`"
    assert problem.fix == f"did you mean {key}?"
    assert key in problem.allowed.removeprefix("one of ").split(", ")


NONSENSE = {
    "section": {"non sense": [1]}, "lists": [[1]], "list of sections": [{}], "huge": 1e300,
    "control characters": "\x85\u2028 ", "numbered": {1: 2},
}  # fmt: skip


@pytest.mark.parametrize("path", FIELDS)
@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=list(NONSENSE))
def test_nonsense_at_any_field_is_refused_there(path, nonsense, refused):
    problems = refused(changed({path: nonsense}, FULL))
    assert any(p.path.startswith(path) or path.startswith(p.path) for p in problems), problems


TYPES = [
    (f"{GROUP}.count", "2", "a whole number", "without quotes"),
    (f"{GROUP}.count", True, "given true", "a whole number"),
    (f"{GROUP}.count", 2.0, "a whole number"),
    (f"{GROUP}.count", -1, "greater than or equal to 0"),
    (f"{GROUP}.count", 10**100, "less than or equal to 6758"),
    (f"{GROUP}.count", None, "given nothing", "a whole number"),
    (f"{GROUP}.type", 5, "given 5", "text"),
    (f"{GROUP}.type", [], "1 or more"),
    (f"{GROUP}.role", "workre", "'worker'", "did you mean worker?"),
    (f"{GROUP}.training_plan", "plan", "a section", "indent"),
    (f"{FS}.efa", "no", "given no", "true or false"),
    (f"{FS}.capacity_tib", float("nan"), "finite"),
    (f"{FS}.capacity_tib", "1e999999999", "less than or equal to 1000000"),
    (f"{FS}.capacity_tib", 4.80001, "three decimals"),
    (f"{FS}.throughput_per_tib", 10**300, "more than 80 digits"),
    (f"{FS}.associations", {"path": "/x"}, "a list"),
    ("account", 123456789012, "text", "in quotes"),
    ("account", "12", "[0-9]{12}"),
    ("name", "Demo", "a-z"),
    ("name", "", "given nothing"),
    ("name", "x" * 21, "at most 20"),
    ("regions", {}, "1 or more"),
    ("regions", "us-east-2", "a section"),
    ("clusters", ["train"], "a section"),
    ("tags.owner", 7, "text", "in quotes"),
    ("network.flow_log_retention_days", 8, "given 8", "7, 14"),
    ("network.egress_ports", [0], "greater than or equal to 1"),
    ("version", 2, "given 2", "1"),
    ("workload", "build", "a section"),
    ("workload.image", 5, "text"),
    ("workload.architecture", "amd64", "'x86_64' or 'arm64'"),
    ("workload.evaluation.at_once", 0, "greater than or equal to 1"),
    ("workload.evaluation.at_once", 101, "less than or equal to 100"),
    ("workload.evaluation.max_hours", 0, "greater than or equal to 1"),
    ("workload.evaluation.max_hours", 121, "less than or equal to 120"),
    ("workload.evaluation.max_hours", 1.5, "a whole number"),
    ("workload.evaluation.volume_gb", 29, "greater than or equal to 30"),
    ("workload.evaluation.volume_gb", 16385, "less than or equal to 16384"),
    ("workload.evaluation.data", "s3://bucket/val", "given s3://bucket/val"),
    ("workload.evaluation.data", "/fsx/val", "given /fsx/val"),
    ("workload.evaluation.tokenizer", "", "given nothing"),
    ("workload.evaluation.tokenizer", "x" * 151, "at most 150"),
]


@pytest.mark.parametrize(
    ("path", "value", "words"), [(p, v, w) for p, v, *w in TYPES], ids=lambda v: str(v)[:40]
)
def test_wrong_types_and_limits(path, value, words, refused):
    problems = [p for p in refused(changed({path: value})) if p.path.startswith(path)]
    assert problems
    for word in words:
        assert any(word in str(p) for p in problems), (word, problems)


TEXTS = {
    "duplicate key": ("name: a\nname: b\n", "`name` is written twice", "line 2"),
    "duplicate key deep": ("name: a\nregions:\n  us-east-2: {zones: [], zones: []}\n", "`zones` is written twice", "line 3"),
    "anchor in itself": ("name: &a {b: *a}\n", "recursive"),
    "list in itself": ("name: &a [*a]\n", "recursive"),
    "merge key": ("a: &a {b: 1}\nc: {<<: *a}\n", "merge keys"),
    "set": ("regions: !!set {us-east-2}\n", "sets have no order"),
    "two documents": ("name: a\n---\nname: b\n", "another document"),
    "tab": ("name:\n\t- a\n", "cannot start any token"),
    "unclosed": ("regions: {us-east-2: {\n", "did not find expected"),
    "key of a list": ("[a]: 1\n", "plain word"),
    "object": ("name: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
    "tag and value disagree": ("name: !!bool perhaps\n", "cannot be read"),
    "tag without value": ("name: !!int ''\n", "cannot be read"),
    "no such day": ("name: 2024-13-45\n", "cannot be read"),
    "deep": (f"name: {'[' * 500}{']' * 500}\n", "cannot be read"),
    "very deep": (f"name: {'{a: ' * 30000}\n", "nesting"),
    "long number": (f"name: {'9' * 6000}\n", "digits"),
    "empty": ("", "given NoneType", "begin with `name:`"),
    "list at top": ("- name: a\n", "given list", "begin with `name:`"),
    "text at top": ("name\n", "given str", "begin with `name:`"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), [(t, w) for t, *w in TEXTS.values()], ids=list(TEXTS))
def test_files_that_are_not_a_mapping_in_yaml(text, words, refused):
    [problem] = refused(text)
    assert problem.path.endswith("demo.yaml")
    for word in words:
        assert word in str(problem)


def test_files_that_cannot_be_read(tmp_path, write, refused):
    def only(path):
        with pytest.raises(PlanError) as error:
            load(path)
        [problem] = error.value.problems
        return str(problem)

    assert "no such file" in only(tmp_path / "none" / "x.yaml")
    write(BASE, "quickstart.yaml")
    assert "did you mean quickstart.yaml?" in only(tmp_path / "quikstart.yaml")
    assert "Is a directory" in only(tmp_path)
    (tmp_path / "latin.yaml").write_bytes("name: caf\xe9\n".encode("latin-1"))
    assert "utf-8" in only(tmp_path / "latin.yaml")
    assert "null byte" in only(tmp_path / "a\0b.yaml")
    assert "too long" in only(tmp_path / f"{'x' * 300}.yaml")


def test_hexadecimal_beyond_what_python_prints_is_refused_without_printing_it(refused):
    text = yaml.safe_dump(BASE).replace("count: 2", f"count: 0x{'F' * 6000}")
    expect(refused(text), [(f"{GROUP}.count", "more than 80 digits")])


def test_aliases_that_multiply_are_refused_at_once(refused):
    lines = ["name: demo", "regions: {us-east-2: }", "b0: &b0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 9)}]" for i in range(1, 12)]
    lines += ["network: {egress: *b11, egress_ports: *b11}", "tags: {a: *b11}"]
    paths = [p.path for p in refused("\n".join(lines))]
    assert {"network.egress", "tags.a", "b3"} <= set(paths)


SEMANTIC = {
    "unknown region": ({"regions": {"us-east-9": {"zones": ["use2-az1"]}}}, [("regions", "us-east-9", "did you mean us-east-")]),
    "zone of another region": ({f"{REGION}.zones": ["use2-az1", "usw2-az1"]}, [(f"{REGION}.zones", "usw2-az1", "use2-az2", "did you mean")]),
    "zone name": ({f"{REGION}.zones": ["us-east-2a", "use2-az1"], f"{FS}.zone": "use2-az1", f"{GROUP}.zone": "use2-az1", "clusters.train.groups.controller.zone": "use2-az1"},
                  [(f"{REGION}.zones", "us-east-2a", "use2-az1")]),
    "zone not listed": ({f"{GROUP}.zone": "use2-az3"}, [(f"{GROUP}.zone", "use2-az3", "use2-az1, use2-az2", "did you mean")]),
    "lustre zone not listed": ({f"{FS}.zone": "use2-az3"}, [(f"{FS}.zone", "use2-az3", f"{REGION}.zones")]),
    "home zone not listed": ({"storage.home": {"zone": "use2-az3"}}, [("storage.home.zone", "use2-az3")]),
    "public pool": ({f"{REGION}.pool": ["8.8.8.0/24"]}, [(f"{REGION}.pool", "8.8.8.0/24", "10.0.0.0/8")]),
    "pool with host bits": ({f"{REGION}.pool": ["10.64.0.1/16"]}, [(f"{REGION}.pool", "10.64.0.1/16", "host bits")]),
    "pool of words": ({f"{REGION}.pool": ["mine"]}, [(f"{REGION}.pool", "mine", "a CIDR")]),
    "docker's pool": ({f"{REGION}.pool": ["172.17.0.0/16"]}, [(f"{REGION}.pool", "172.17.0.0/16", "container bridge")]),
    "pool too small": ({f"{REGION}.pool": ["10.64.0.0/26"]}, [(GROUP, "short by", "a larger `pool`")]),
    "unknown endpoint": ({"network.endpoints": ["sagemaker"]}, [("network.endpoints", "sagemaker", "did you mean sagemaker.api?")]),
    "efa across zones": ({f"{FS}.efa": True, f"{FS}.capacity_tib": 19.2, f"{GROUP}.zone": "use2-az2"},
                         [(f"{GROUP}.zone", "use2-az2, while main serves EFA in use2-az1", "does not cross zones")]),
    "plan of another region": ({f"{GROUP}.training_plan": {"arn": PLAN.replace("us-east-2", "us-west-2"), "zone": "use2-az1"}},
                               [(f"{GROUP}.training_plan.arn", "us-west-2", f"{REGION}.set")]),
    "plan in another zone": ({f"{GROUP}.training_plan": {"arn": PLAN, "zone": "use2-az2"}},
                             [(f"{GROUP}.training_plan.zone", "use2-az2", "use2-az1")]),
    "plan of no form": ({f"{GROUP}.training_plan": {"arn": "arn:aws:sagemaker", "zone": "use2-az1"}}, [(f"{GROUP}.training_plan.arn", "training-plan")]),
    "spot and plan": ({f"{GROUP}.training_plan": {"arn": PLAN, "zone": "use2-az1"}, f"{GROUP}.capacity": "spot"},
                      [(f"{GROUP}.capacity", "spot beside a training plan", "one of the two")]),
    "spot controller": ({"clusters.train.groups.controller.capacity": "spot"}, [("clusters.train.groups.controller.capacity", "workers only")]),
    "two controllers": ({"clusters.train.groups.second": {"role": "controller", "type": "ml.m5.4xlarge", "count": 1}},
                        [("clusters.train.groups", "2 controller groups", "exactly one")]),
    "no controller": ({"clusters.train.groups.controller": DROP}, [("clusters.train.groups", "0 controller groups", "role: controller")]),
    "two controller nodes": ({"clusters.train.groups.controller.count": 2}, [("clusters.train.groups.controller.count", "given 2", "allowed 1")]),
    "two logins": ({f"clusters.train.groups.login{i}": {"role": "login", "type": "ml.m5.large", "count": 1} for i in (1, 2)},
                   [("clusters.train.groups", "login1, login2", "at most one")]),
    "worker without partition": ({f"{GROUP}.partition": DROP}, [(f"{GROUP}.partition", "a Slurm partition", "partition: p5")]),
    "controller with partition": ({"clusters.train.groups.controller.partition": "x"}, [("clusters.train.groups.controller.partition", "workers only")]),
    "ssd step": ({f"{FS}.capacity_tib": 5}, [(f"{FS}.capacity_tib", "given 5", "4.8 or 7.2", "set capacity_tib to 7.2")]),
    "ssd below the smallest": ({f"{FS}.capacity_tib": 0.5}, [(f"{FS}.capacity_tib", "0.5", "1.2 or more")]),
    "efa step at 125": ({f"{FS}.efa": True, f"{FS}.throughput_per_tib": 125, f"{FS}.capacity_tib": 40}, [(f"{FS}.capacity_tib", "38.4 or 76.8")]),
    "efa step at 250": ({f"{FS}.efa": True}, [(f"{FS}.capacity_tib", "4.8", "19.2 or more", "efa to false")]),
    "efa step at 500": ({f"{FS}.efa": True, f"{FS}.throughput_per_tib": 500, f"{FS}.capacity_tib": 10}, [(f"{FS}.capacity_tib", "9.6 or 19.2")]),
    "efa step at 1000": ({f"{FS}.efa": True, f"{FS}.throughput_per_tib": 1000, f"{FS}.capacity_tib": 5}, [(f"{FS}.capacity_tib", "4.8 or 9.6")]),
    "no tier": ({f"{FS}.throughput_per_tib": DROP}, [(f"{FS}.throughput_per_tib", "125, 250, 500 or 1000", "set throughput_per_tib to 125")]),
    "wrong tier": ({f"{FS}.throughput_per_tib": 300}, [(f"{FS}.throughput_per_tib", "300 MB/s/TiB", "set throughput_per_tib to 500")]),
    "no capacity": ({f"{FS}.capacity_tib": DROP}, [(f"{FS}.capacity_tib", "given nothing", "1.2")]),
    "size on intelligent-tiering": (
        {FS: {"storage_class": "intelligent-tiering", "throughput_mbps": 4000, "metadata_iops": 6000, "read_cache": {}, "grow_to_tib": 9}},
        [(f"{FS}.grow_to_tib", "9 TiB", "has no size")]),
    "backups beside associations": ({f"{FS}.backup_days": 7}, [(f"{FS}.backup_days", "7 days", "linked to S3")]),
    "root squash": ({f"{FS}.root_squash": {"user": "nobody"}}, [(f"{FS}.root_squash.user", "'nobody'", "set root_squash.user to")]),
    "nine associations": ({f"{FS}.associations": [{"path": f"/d{i}", "bucket": "datasets", "prefix": f"d{i}"} for i in range(9)]},
                          [(f"{FS}.associations", "9 associations", "at most 8")]),
    "nested paths": ({f"{FS}.associations": [{"path": "/a", "bucket": "datasets"}, {"path": "/a/b", "bucket": "checkpoints"}]},
                     [(f"{FS}.associations.1.path", "/a/b", "apart from /a")]),
    "nested prefixes": ({f"{FS}.associations": [{"path": "/a", "bucket": "datasets"}, {"path": "/b", "bucket": "datasets", "prefix": "x"}]},
                        [(f"{FS}.associations.1.prefix", "s3://datasets/x", "apart from")]),
    "relative path": ({f"{FS}.associations": [{"path": "a", "bucket": "datasets"}]}, [(f"{FS}.associations.0.path", "'a'", "write /a")]),
    "misspelt type": ({f"{GROUP}.type": "ml.p5.48xlrge"}, [(f"{GROUP}.type", "ml.p5.48xlrge", "trainshed instances", "did you mean ml.p5.48xlarge?")]),
    "excluded type": ({f"{GROUP}.type": "ml.p6e-gb200.72xlarge"}, [(f"{GROUP}.type", "UltraServer", "ml.p6e-gb200.36xlarge")]),
    "type of another region": ({"regions": {"eu-west-1": {"zones": ["euw1-az1"]}}, f"{GROUP}.type": "ml.p6-b300.48xlarge"},
                               [(f"{GROUP}.type", "ml.p6-b300.48xlarge in eu-west-1", "for this type")]),
    "efa-only on cpu": ({f"{GROUP}.type": "ml.m5.4xlarge", f"{GROUP}.interface": "efa-only"}, [(f"{GROUP}.interface", "efa-only on ml.m5.4xlarge")]),
    "minimum without continuous": ({f"{GROUP}.minimum": 1, "clusters.train.continuous_provisioning": False},
                                   [(f"{GROUP}.minimum", "nothing without continuous", "continuous_provisioning to true")]),
    "minimum above count": ({f"{GROUP}.minimum": 3}, [(f"{GROUP}.minimum", "0 to 2")]),
    "accounting without continuous": (
        {"clusters.train.continuous_provisioning": False,
         "clusters.train.orchestrator": {"accounting": {"endpoint": "db", "secret_arn": "arn:aws:secretsmanager:us-east-2:1:secret:x"}}},
        [("clusters.train.orchestrator.accounting", "without continuous provisioning", "both together")]),
    "flexible list": ({f"{GROUP}.type": ["ml.p5.48xlarge", "ml.p5e.48xlarge"]}, [(f"{GROUP}.type", "one type", "EKS only")]),
    "grow_to below count": ({f"{GROUP}.grow_to": 1}, [(f"{GROUP}.grow_to", "given 1", "2 (the count) or more")]),
    "patching twice": ({f"{GROUP}.patching": {"schedule": "cron(0 3 ? * SUN *)", "strategy": "WhenIdle"}}, [(f"{GROUP}.patching", "both")]),
    "no cron": ({f"{GROUP}.patching": {"schedule": "sundays"}}, [(f"{GROUP}.patching.schedule", "sundays", "cron(")]),
    "health checks on cpu": ({f"{GROUP}.type": "ml.m5.4xlarge", f"{GROUP}.deep_health_checks": ["InstanceStress"]}, [(f"{GROUP}.deep_health_checks", "GPU")]),
    "unknown lustre": ({"clusters.train.lustre": "man"}, [("clusters.train.lustre", "given man", "did you mean main?")]),
    "two lustres, none chosen": ({"storage.lustre.scratch": {"capacity_tib": 1.2, "throughput_per_tib": 125}}, [("clusters.train.lustre", "main, scratch")]),
    "home too small": ({"storage.home": {"capacity_gib": 1}}, [("storage.home.capacity_gib", "1 GiB", "64")]),
    "too many nodes": ({f"{GROUP}.count": 3000}, [(GROUP, "short by", "efa-only", "fewer nodes")]),
    "image elsewhere": ({"workload.image": "docker.io/team/trainer:1"}, [("workload.image", "docker.io", "ACCOUNT.dkr.ecr.us-east-2.amazonaws.com/NAME:TAG")]),
    "image without a tag": ({"workload.image": ECR.removesuffix(":1")}, [("workload.image", ECR.removesuffix(":1"), "NAME:TAG")]),
    "image of another region": ({"workload.image": ECR.replace("us-east-2", "us-west-2")}, [("workload.image", "us-west-2", "an image in us-east-2", f"{REGION}.set")]),
    "base of a finished image": ({"workload.image": ECR, "workload.base_image": "a/b:1"}, [("workload.base_image", "a/b:1", "one of the two")]),
    "no type of processing": ({**SCORED, f"{JOBS}.instance_type": "ml.p5.48xlarge"}, [(f"{JOBS}.instance_type", "ml.p5.48xlarge", "ml.g6", "did you mean")]),
    "misspelt type of processing": ({**SCORED, f"{JOBS}.instance_type": "ml.g6.12xlrage"}, [(f"{JOBS}.instance_type", "did you mean ml.g6.12xlarge?")]),
    "image and jobs of two architectures": ({**SCORED, "workload.architecture": "arm64"}, [(f"{JOBS}.instance_type", "ml.g6.12xlarge, which is x86_64", "arm64")]),
    "jobs in a zone not listed": ({**SCORED, f"{JOBS}.zone": "use2-az3"}, [(f"{JOBS}.zone", "use2-az3", f"{REGION}.zones")]),
    "jobs in a local zone": ({"regions": {"us-east-1": {"zones": ["use1-az6", "use1-dfw2-az1"]}}, **SCORED, f"{JOBS}.zone": "use1-dfw2-az1"}, [(f"{JOBS}.zone", "use1-dfw2-az1", "Local Zones")]),
    "two that set the bucket's notifications": ({JOBS: {}}, [(f"{FS}.associations.1.import_events", "NEW, CHANGED, DELETED", "[] beside workload.evaluation", "write import_events: []")]),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "wanted"), SEMANTIC.values(), ids=list(SEMANTIC))
def test_what_aws_would_refuse(changes, wanted, refused):
    expect(refused(changed(changes)), wanted)


def test_several_errors_come_together(refused):
    problems = refused(changed({
        f"{REGION}.pool": ["8.8.8.0/24", "10.64.0.1/16"], f"{FS}.capacity_tib": 5, f"{GROUP}.type": "ml.p5.48xlrge",
        "network.endpoints": ["sagemaker"], "clusters.train.groups.controller.count": 3,
    }))  # fmt: skip
    expect(problems, [
        (f"{REGION}.pool", "8.8.8.0/24"), (f"{REGION}.pool", "10.64.0.1/16"), (f"{FS}.capacity_tib",),
        (f"{GROUP}.type",), ("network.endpoints",), ("clusters.train.groups.controller.count",),
    ])  # fmt: skip


def test_the_same_mistake_in_two_regions_is_told_once(refused):
    both = {"us-east-2": {"zones": ["use2-az1"]}, "us-west-2": {"zones": ["usw2-az1"]}}
    expect(
        refused(changed({"regions": both, f"{FS}.capacity_tib": 5})), [(f"{FS}.capacity_tib", "4.8 or 7.2")]
    )


def test_somebody_elses_vpc_is_accepted_and_seats_are_named(write):
    [region] = load(write(changed({f"{REGION}.vpc": VPC}))).plan.regions
    assert region.network.vpc_id == VPC["id"]
    assert region.given == {
        "group/train/p5": "subnet-0123456789abcdef0",
        "group/train/controller": "subnet-0123456789abcdef0",
        "lustre/main": "subnet-0123456789abcdef1",
    }
    assert region.addresses.unlocked == ()


SUBNET = f"{REGION}.vpc.subnets.0"
GIVEN = {
    "no room": ({f"{SUBNET}.free": 100}, [(GROUP, "needs 128 free addresses in use2-az1", "short by 28", "efa-only")]),
    "no storage": ({f"{REGION}.vpc.subnets.1.zone": "use2-az2", f"{SUBNET}.purposes": ["nodes"]}, [(FS, "0 storage subnets", "add a storage subnet")]),
    "not in the vpc": ({f"{SUBNET}.cidr": "10.201.0.0/22"}, [(f"{SUBNET}.cidr", "10.201.0.0/22", "10.200.0.0/16")]),
    "overlap": ({f"{SUBNET}.cidr": "10.200.0.0/20"}, [(f"{REGION}.vpc.subnets.1", "apart from subnet-0123456789abcdef0")]),
    "twice": ({f"{REGION}.vpc.subnets.1.id": "subnet-0123456789abcdef0"}, [(f"{REGION}.vpc.subnets.1", "drop one")]),
    "more free than there are": ({f"{SUBNET}.free": 2000}, [(f"{SUBNET}.free", "2000", "0 to 1019")]),
    "zone name": ({f"{SUBNET}.zone": "us-east-2a"}, [(f"{SUBNET}.zone", "us-east-2a", "use2-az1")]),
    "no cidr": ({f"{SUBNET}.cidr": "10.200.0.1/22"}, [(f"{SUBNET}.cidr", "host bits")]),
    "a block that AWS has not": ({f"{REGION}.vpc.cidrs": ["10.0.0.0/8"]}, [(f"{REGION}.vpc.cidrs", "/16 to /28")]),
    "no vpc id": ({f"{REGION}.vpc.id": "vpc"}, [(f"{REGION}.vpc.id", "vpc-")]),
    "no subnets": ({f"{REGION}.vpc.subnets": []}, [(f"{REGION}.vpc.subnets", "1 or more")]),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "wanted"), GIVEN.values(), ids=list(GIVEN))
def test_somebody_elses_vpc_is_refused_with_the_shortfall(changes, wanted, refused):
    expect(refused(changed({f"{REGION}.vpc": copy.deepcopy(VPC), **changes})), wanted)


def test_a_region_can_differ(write):
    doc = changed({
        "regions": {
            "us-east-2": {"zones": ["use2-az1"]},
            "us-west-2": {"zones": ["usw2-az1"], "set": {f"{GROUP}.count": 8, "storage.home.capacity_gib": 4096, f"{FS}.associations.1.prefix": "west"}},
        }
    })  # fmt: skip
    east, west = load(write(doc)).plan.regions
    assert [r.clusters[0].groups[1].count for r in (east, west)] == [2, 8]
    assert east.home is None
    assert west.home is not None
    assert west.home.capacity_gib == 4096
    assert [r.lustre[0].associations[1].prefix for r in (east, west)] == ["", "west"]


REGIONAL = {
    "nowhere": ("clusters.trian.lustre", "`trian` in clusters", "did you mean train?"),
    "below a value": (f"{GROUP}.count.x", "a path to a field"),
    "beyond a list": (f"{FS}.associations.7.path", "`7`", "nothing there"),
    "what holds for all": ("name", "paths under network, storage, clusters or workload", "every region"),
    "another region": ("regions.us-west-2", "paths under"),
    "empty": ("", "paths under"),
    "unknown field": (f"{GROUP}.cuont", "did you mean count?"),
}


@pytest.mark.parametrize(("path", "words"), [(p, w) for p, *w in REGIONAL.values()], ids=list(REGIONAL))
def test_what_a_region_cannot_set(path, words, refused):
    [problem] = refused(changed({f"{REGION}.set": {path: 1}}))
    for word in words:
        assert word in str(problem)


def test_the_regions_flag_replaces_the_list_and_may_add(write):
    path = write(changed({f"{REGION}.zones": ["use2-az2"]}))
    assert [r.region for r in load(path, regions="us-west-2").plan.regions] == ["us-west-2"]
    loaded = load(path, regions=" us-east-2, us-west-2,us-east-2")
    assert [r.region for r in loaded.plan.regions] == ["us-east-2", "us-west-2"]
    assert [r.zones for r in loaded.plan.regions] == [("use2-az2",), ("usw2-az1",)]
    assert [w for w in loaded.plan.warnings if "us-west-2" in w and "pin" in w]
    for wrong in ("", " , "):
        with pytest.raises(PlanError, match="comma-separated"):
            load(path, regions=wrong)


OVERRIDES = {
    "no value": ("name", "dotted.path=value"),
    "no path": ("=3", "dotted.path=value"),
    "empty part": ("clusters..x=3", "dotted.path=value"),
    "nowhere": ("clusters.trian.groups.p5.count=3", "`trian` in clusters", "did you mean train?"),
    "a new cluster by accident": ("clusters.lustre.x=3", "`lustre` in clusters"),
    "unknown section": ("clutsers.train.lustre=3", "`clutsers` in the file", "did you mean clusters?"),
    "no yaml": (f"{GROUP}.count=[", "a YAML value"),
    "wrong type": (f"{GROUP}.count=many", "a whole number"),
}


@pytest.mark.parametrize(("item", "words"), [(i, w) for i, *w in OVERRIDES.values()], ids=list(OVERRIDES))
def test_overrides_that_lead_nowhere(item, words, refused):
    [problem] = refused(BASE, overrides=[item])
    for word in words:
        assert word in str(problem)


def test_overrides_are_yaml_and_may_be_joined(write):
    joined = f"{GROUP}.count=4,{REGION}.zones=[use2-az2,use2-az1],network.egress=closed,tags.a=b"
    assert split_overrides(joined)[1] == f"{REGION}.zones=[use2-az2,use2-az1]"
    loaded = load(write(BASE), overrides=[joined, "storage.home.capacity_gib=2048"])
    [region] = loaded.plan.regions
    assert region.zones == ("use2-az2", "use2-az1")
    assert region.clusters[0].groups[1].count == 4
    assert region.home is not None
    assert region.home.zone == "use2-az2"
    assert loaded.plan.tags == {"a": "b"}


@pytest.mark.parametrize(
    ("region", "kind", "least"),
    [("us-east-2", "SINGLE_AZ_HA_2", 160), ("ap-southeast-3", "SINGLE_AZ_HA_1", 128)],
)
def test_a_home_without_figures_is_legal_in_every_region(write, region, kind, least):
    """Steps as in the FSx API: 160, 320, … of the newer type, 64, 128, … of the older one."""
    [plan] = load(write(changed({"regions": {region: {}}, "storage.home": {}}))).plan.regions
    assert plan.home is not None
    assert (plan.home.deployment, plan.home.throughput_mbps) == (kind, least)


def test_setting_one_of_two_aliases_leaves_the_other(write):
    text = yaml.safe_dump(BASE).replace(
        "      p5:",
        "      twin: &p5 {type: ml.p5.48xlarge, count: 2, partition: x}\n      third: *p5\n      p5:",
    )
    [region] = load(write(text), overrides=["clusters.train.groups.twin.count=7"]).plan.regions
    assert {g.name: g.count for g in region.clusters[0].groups} == {
        "controller": 1,
        "twin": 7,
        "third": 2,
        "p5": 2,
    }


def test_assign_reaches_into_lists_and_refuses_beyond():
    raw = {"a": [{"b": 1}, 2]}
    assign(raw, "a.0.b", 5, origin="set")
    assign(raw, "a.1", 6, origin="set")
    assert raw == {"a": [{"b": 5}, 6]}
    for path in ("a.2", "a.x", "a.-1", "a.1.b", "a.٣"):
        with pytest.raises(PlanError):
            assign(raw, path, 0, origin="set")


@pytest.fixture
def lock(write):
    path = write(BASE)
    loaded = load(path)
    write_lock(loaded.lock_path, locked(loaded.plan, loaded.locks)[0])
    return path, loaded.lock_path


def test_a_lock_keeps_every_subnet_and_only_appends(lock, write):
    path, at = lock
    before = read_lock(at)["us-east-2"]
    write(changed({"clusters.train.groups.big": {"type": "ml.p5.48xlarge", "count": 60, "partition": "x"}}))
    loaded = load(path)
    [region] = loaded.plan.regions
    assert {s.claim: s.cidr for s in region.addresses.subnets if s.claim != "group/train/big"} == {
        name: s.cidr for name, s in before.subnets.items()
    }
    assert region.addresses.unlocked == ("group/train/big",)
    assert region.addresses.blocks[: len(before.blocks)] == before.blocks


def test_a_region_locked_in_part_is_refused_and_an_unlocked_one_is_named(lock, write):
    path, _ = lock
    assert require_locked(load(path)) == ()
    assert require_locked(load(path, regions="us-east-2,us-west-2")) == ("us-west-2",)
    write(changed({"storage.home": {}}))
    with pytest.raises(PlanError, match=r"demo\.lock\.yaml: given no entry for home in us-east-2.*--lock"):
        require_locked(load(path))


def test_what_outgrew_its_locked_subnet_or_moved_is_refused(lock, refused):
    [problem] = refused(changed({f"{GROUP}.count": 40}))
    assert (problem.path, "short by" in problem.allowed) == (GROUP, True)
    [problem] = refused(changed({f"{GROUP}.zone": "use2-az2"}))
    assert "where" in problem.allowed
    assert "cannot move" in problem.fix


def damaged(change) -> object:
    def spoil(body: dict) -> dict:
        change(body, body["regions"]["us-east-2"])
        return body

    return spoil


DAMAGE = {
    "no version": damaged(lambda b, _: b.pop("version")),
    "another version": damaged(lambda b, _: b.update(version=2)),
    "no regions": damaged(lambda b, _: b.pop("regions")),
    "regions as a list": damaged(lambda b, _: b.update(regions=[1])),
    "region empty": damaged(lambda b, _: b["regions"].update({"us-east-2": None})),
    "no blocks": damaged(lambda _, r: r.pop("blocks")),
    "blocks a number": damaged(lambda _, r: r.update(blocks=7)),
    "block a word": damaged(lambda _, r: r.update(blocks=["x"])),
    "block too large": damaged(lambda _, r: r.update(blocks=["10.0.0.0/8"])),
    "no subnets": damaged(lambda _, r: r.pop("subnets")),
    "subnet a word": damaged(lambda _, r: r["subnets"].update({"group/train/p5": "10.16.0.0/24"})),
    "subnet without cidr": damaged(lambda _, r: r["subnets"]["group/train/p5"].pop("cidr")),
    "cidr with host bits": damaged(lambda _, r: r["subnets"]["group/train/p5"].update(cidr="10.16.0.1/24")),
    "cidr a number": damaged(lambda _, r: r["subnets"]["group/train/p5"].update(cidr=5)),
    "unknown purpose": damaged(lambda _, r: r["subnets"]["group/train/p5"].update(purpose="x")),
    "purpose a list": damaged(lambda _, r: r["subnets"]["group/train/p5"].update(purpose=["nodes"])),
    "zone a number": damaged(lambda _, r: r["subnets"]["group/train/p5"].update(zone=1)),
    "overlap": damaged(lambda _, r: r["subnets"].update({"x": r["subnets"]["group/train/p5"]})),
    "subnet outside": damaged(lambda _, r: r["subnets"]["group/train/p5"].update(cidr="10.99.0.0/24")),
    "empty": lambda _: "",
    "a list": lambda _: "[1, 2]",
    "half a file": lambda body: yaml.safe_dump(body)[:-20] + "{",
    "merge conflict": lambda body: "<<<<<<< HEAD\n" + yaml.safe_dump(body),
}


@pytest.mark.parametrize("spoil", DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_lock_is_refused_and_points_to_version_control(spoil, lock, write):
    path, at = lock
    write(spoil(yaml.safe_load(at.read_text())), at.name)
    with pytest.raises(PlanError) as error:
        load(path)
    for problem in error.value.problems:
        assert all((problem.path, problem.given, problem.allowed, problem.fix))
        assert "lock" in problem.path
    assert str(error.value).count("version control") + str(error.value).count("YAML") >= 1


def test_a_lock_that_is_a_directory_or_a_dead_link_is_refused(write, tmp_path):
    path = write(BASE)
    (tmp_path / "demo.lock.yaml").mkdir()
    with pytest.raises(PlanError, match="Is a directory"):
        load(path)
    (tmp_path / "demo.lock.yaml").rmdir()
    (tmp_path / "demo.lock.yaml").symlink_to(tmp_path / "gone")
    with pytest.raises(PlanError, match="no such file"):
        load(path)


def test_a_lock_that_cannot_be_written_leaves_nothing_behind(lock, tmp_path):
    locks = read_lock(lock[1])
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    for place in (tmp_path / "folder", tmp_path / "none" / "x.lock.yaml"):
        with pytest.raises(PlanError, match="a file that can be written"):
            write_lock(place, locks)
    assert sorted(tmp_path.iterdir()) == before


def test_a_flag_wins_over_what_the_file_sets_for_one_region(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "name: fleet\n"
        "regions:\n"
        "  us-east-2: {zones: [use2-az1]}\n"
        "  us-west-2: {zones: [usw2-az3], set: {clusters.train.groups.p5.count: 4}}\n"
        "clusters:\n"
        "  train:\n"
        "    groups:\n"
        "      controller: {role: controller, type: ml.m5.xlarge, count: 1}\n"
        "      p5: {type: ml.p5.48xlarge, count: 2, grow_to: 16, partition: p5}\n"
    )
    counts = {
        region.region: region.clusters[0].groups[1].count
        for region in load(path, overrides=["clusters.train.groups.p5.count=9"]).plan.regions
    }
    assert counts == {"us-east-2": 9, "us-west-2": 9}
    assert [r.clusters[0].groups[1].count for r in load(path).plan.regions] == [2, 4]
