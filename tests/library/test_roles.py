"""What nodes may do, by what their policies say together, wherever those are written."""

from __future__ import annotations

import json

import pytest

from tests.support import (
    actions_of,
    allowed,
    listed,
    of_type,
    resources_for,
    shown,
    stack_outputs,
    statements_of,
)

EXAMPLES = {"quickstart": "quickstart-us-east-2", "slurm-production": "fleet-us-west-2"}
ROLES = ("controller", "login", "worker")
SECRET = "arn:aws:secretsmanager:us-east-2:111122223333:secret:slurm-AbCdEf"
ACCOUNTING = json.dumps({"endpoint": "db.example.com", "secret_arn": SECRET})
BUCKETS = ("Datasets", "Checkpoints", "Lifecycle")


def node_roles(template) -> dict[str, str]:
    """Logical ids of the roles that instance groups run under, by node role."""
    (cluster,) = of_type(template, "AWS::SageMaker::Cluster").values()
    kinds = {"Controller": "controller", "Login": "login", "Compute": "worker"}
    return {
        kinds[g["SlurmConfig"]["NodeType"]]: g["ExecutionRole"]["Fn::GetAtt"][0]
        for g in cluster["Properties"]["InstanceGroups"]
    }


@pytest.fixture(scope="module", params=EXAMPLES)
def template(request, templates):
    return templates(request.param)[f"{EXAMPLES[request.param]}-train"]


@pytest.fixture(scope="module")
def accounted(templates):
    overrides = f"clusters.train.orchestrator={{kind: slurm, accounting: {ACCOUNTING}}}"
    return templates("quickstart", set=overrides)["quickstart-us-east-2-train"]


@pytest.fixture(params=ROLES)
def statements(request, template):
    return statements_of(template, node_roles(template)[request.param])


def buckets_in(resources) -> set[str]:
    """Which of the storage stack's buckets an ARN names."""
    outputs = {output for _, output in stack_outputs(resources)}
    return {name for name in BUCKETS for output in outputs if f"GetAtt{name}" in output}


def test_every_node_role_is_its_own(template):
    roles = node_roles(template)
    assert set(roles) == set(ROLES)
    assert len(set(roles.values())) == 3


def test_only_sagemaker_may_run_under_them(template):
    for name in node_roles(template).values():
        trust = template["Resources"][name]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        assert [(s["Effect"], s["Action"], s["Principal"]) for s in trust] == [
            ("Allow", "sts:AssumeRole", {"Service": "sagemaker.amazonaws.com"})
        ]


def test_no_policy_of_aws_is_attached(template):
    """What AWS adds to a managed policy one day, nodes would get unseen."""
    for name in node_roles(template).values():
        assert ":iam::aws:policy/" not in shown(
            template["Resources"][name]["Properties"].get("ManagedPolicyArns", [])
        )


def test_nodes_can_join_the_network(statements):
    """F5: without these HyperPod says "Unable to retrieve subnets"."""
    describe = {
        "DescribeDhcpOptions",
        "DescribeNetworkInterfaces",
        "DescribeSecurityGroups",
        "DescribeSubnets",
        "DescribeVpcs",
    }
    change = {"CreateNetworkInterface", "CreateNetworkInterfacePermission", "DeleteNetworkInterface",
              "DeleteNetworkInterfacePermission", "DetachNetworkInterface"}  # fmt: skip
    assert {f"ec2:{verb}" for verb in describe | change | {"CreateTags"}} <= actions_of(statements)
    assert all("*" in resources_for(statements, f"ec2:{verb}") for verb in describe)
    for verb in change:
        kinds = shown(resources_for(statements, f"ec2:{verb}"))
        assert all(f":{kind}/" in kinds for kind in ("network-interface", "subnet", "security-group"))
    tagged = resources_for(statements, "ec2:CreateTags")
    assert all(":network-interface/*" in shown(r) for r in tagged)


def test_nodes_see_that_a_file_system_speaks_efa(statements):
    """B2."""
    assert resources_for(statements, "fsx:DescribeFileSystems") == ["*"]
    assert {a for a in actions_of(statements) if a.startswith("fsx:")} == {"fsx:DescribeFileSystems"}


def test_nodes_log_measure_and_open_shells_as_awss_own_policy_lets_them(statements):
    logs = resources_for(statements, "logs:PutLogEvents")
    assert logs
    assert all(":log-group:/aws/sagemaker/Clusters/" in shown(r) for r in logs)
    (metrics,) = allowed(statements, "cloudwatch:PutMetricData")
    assert metrics["Condition"] == {"StringEquals": {"cloudwatch:namespace": "/aws/sagemaker/Clusters"}}
    assert {
        f"ssmmessages:{verb}{side}Channel" for verb in ("Create", "Open") for side in ("Control", "Data")
    } <= actions_of(statements)


def test_no_action_is_a_wildcard(statements):
    assert not [action for action in actions_of(statements) if "*" in action]
    assert all("NotAction" not in s and "NotResource" not in s for s in statements)


def test_only_what_cannot_be_narrowed_is_allowed_on_everything(statements):
    everywhere = {a for s in statements for a in listed(s["Action"]) if "*" in listed(s["Resource"])}
    everywhere -= {"ecr:GetAuthorizationToken"}
    assert {a.partition(":")[0] for a in everywhere} <= {"ec2", "fsx", "ssmmessages", "cloudwatch"}
    assert all(
        a.startswith(("ec2:Describe", "fsx:Describe", "ssmmessages:", "cloudwatch:")) for a in everywhere
    )


def test_s3_is_our_buckets_alone(statements):
    """F8."""
    for statement in statements:
        if any(a.startswith("s3:") for a in listed(statement["Action"])):
            for resource in listed(statement["Resource"]):
                assert buckets_in([resource]), resource


def test_scripts_and_the_mirror_can_be_read_and_no_other_folder(statements):
    """C10."""
    lifecycle = [r for r in resources_for(statements, "s3:GetObject") if "Lifecycle" in buckets_in([r])]
    assert lifecycle
    assert all("/train/*" in shown(r) or "/mirror/*" in shown(r) for r in lifecycle)
    listing = [
        s for s in allowed(statements, "s3:ListBucket") if "Lifecycle" in buckets_in(listed(s["Resource"]))
    ]
    assert [s["Condition"] for s in listing] == [{"StringLike": {"s3:prefix": ["train/*", "train"]}}]
    assert "Lifecycle" not in buckets_in(resources_for(statements, "s3:PutObject"))


@pytest.mark.parametrize(
    ("role", "readable", "writable"),
    [
        ("controller", {"Lifecycle"}, set()),
        ("login", {"Lifecycle", "Datasets", "Checkpoints"}, set()),
        ("worker", {"Lifecycle", "Datasets", "Checkpoints"}, {"Checkpoints"}),
    ],
)
def test_who_reads_and_writes_what(template, role: str, readable: set[str], writable: set[str]):
    statements = statements_of(template, node_roles(template)[role])
    assert buckets_in(resources_for(statements, "s3:GetObject")) == readable
    assert buckets_in(resources_for(statements, "s3:ListBucket")) == readable
    for action in ("s3:PutObject", "s3:DeleteObject"):
        assert buckets_in(resources_for(statements, action)) == writable
    others = {"s3:GetObject", "s3:ListBucket", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"}
    assert {a for a in actions_of(statements) if a.startswith("s3:")} <= others
    keys = {a for a in actions_of(statements) if a.startswith("kms:")}
    assert keys == {"kms:Decrypt", "kms:DescribeKey"} | ({"kms:GenerateDataKey"} if writable else set())


def test_only_the_key_of_the_region_is_used(statements):
    for resource in resources_for(statements, "kms:Decrypt"):
        ((stack, output),) = stack_outputs([resource])
        assert stack.endswith("-network")
        assert "Key" in output


def test_only_the_controller_knows_the_accounting_secret(accounted):
    for role, name in node_roles(accounted).items():
        secrets = resources_for(statements_of(accounted, name), "secretsmanager:GetSecretValue")
        assert secrets == ([SECRET] if role == "controller" else [])


def test_alarms_are_read_where_updates_roll_back_on_them(templates):
    for example, readers in (("quickstart", set()), ("slurm-production", {"worker"})):
        template = templates(example)[f"{EXAMPLES[example]}-train"]
        found = {
            role
            for role, name in node_roles(template).items()
            if resources_for(statements_of(template, name), "cloudwatch:DescribeAlarms")
        }
        assert found == readers


def test_no_template_allows_all_of_s3(templates):
    for example in EXAMPLES:
        for template in templates(example).values():
            for name in of_type(template, "AWS::IAM::Role"):
                assert not {"*", "s3:*"} & actions_of(statements_of(template, name)), name
