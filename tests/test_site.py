"""The operator's own files for nodes, from the deployment file to the bucket and the role."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support import ROOT, actions_of, of_type, only, resources_for, shown, statements_of
from trainshed.loading import load
from trainshed.planning.problems import PlanError

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
SECRET = "arn:aws:secretsmanager:us-east-2:123456789012:secret:ca"
URL = "https://aps-workspaces.us-east-2.amazonaws.com/workspaces/ws-1a2b/api/v1/remote_write"
NODES = {
    "site": "site",
    "certificates_secret_arn": SECRET,
    "metrics": {"url": URL},
    "logs": {"to": "cloudwatch"},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A deployment file with a site folder beside it."""
    folder = tmp_path_factory.mktemp("deployments")
    for name, text in {"certificates/corp.pem": PEM, "users.csv": "ada,2001\n"}.items():
        (folder / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "site" / name).write_text(text)
    document = yaml.safe_load((ROOT / "deployments/quickstart.yaml").read_text())
    document["clusters"]["train"]["nodes"] = NODES
    (folder / "demo.yaml").write_text(yaml.safe_dump(document))
    return folder / "demo.yaml"


@pytest.fixture(scope="module")
def template(assembly, place):
    return assembly(place).templates["quickstart-us-east-2-train"]


def test_the_folder_is_found_beside_the_file(place):
    (cluster,) = load(place).plan.regions[0].clusters
    assert cluster.nodes.site == str(place.parent / "site")
    assert cluster.nodes.certificates == ("corp.pem",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda site: site.rename(site.parent / "elsewhere"), ("given site", "make it, or correct the path")),
        (lambda site: (site / "notes.txt").write_text("x"), ("notes.txt", "users.csv")),
        (lambda site: (site / "users.csv").write_bytes(b"\xff\xfe"), ("users.csv line 1",)),
        (lambda site: (site / "certificates/corp.pem").write_text("x"), ("corp.pem", "openssl x509")),
    ],
)
def test_what_is_wrong_with_it_is_said_at_once(place, tmp_path, change, words):
    site = tmp_path / "site"
    (site / "certificates").mkdir(parents=True)
    (site / "certificates/corp.pem").write_text(PEM)
    (tmp_path / "demo.yaml").write_text(place.read_text())
    change(site)
    with pytest.raises(PlanError) as caught:
        load(tmp_path / "demo.yaml")
    (problem,) = caught.value.problems
    assert problem.path == "clusters.train.nodes.site"
    assert all(word in str(problem) for word in words), str(problem)


def test_it_is_uploaded_below_the_scripts_which_leave_it_alone(template):
    uploads = of_type(template, "Custom::CDKBucketDeployment")
    by_prefix = {u["Properties"]["DestinationBucketKeyPrefix"]: (n, u) for n, u in uploads.items()}
    (_, scripts), (site_name, _) = by_prefix["train/"], by_prefix["train/site/"]
    assert scripts["Properties"]["Exclude"] == ["site/*"]
    assert site_name in shown(scripts["DependsOn"]), "nodes wait for the scripts, and those for this"


def test_without_one_nothing_is_excluded(templates):
    template = templates("quickstart")["quickstart-us-east-2-train"]
    (_, upload) = only(template, "Custom::CDKBucketDeployment")
    assert "Exclude" not in upload["Properties"]


def test_nodes_may_read_their_secrets_and_write_their_metrics_and_no_others(template):
    (_, cluster) = only(template, "AWS::SageMaker::Cluster")
    for group in cluster["Properties"]["InstanceGroups"]:
        statements = statements_of(template, group["ExecutionRole"]["Fn::GetAtt"][0])
        assert resources_for(statements, "secretsmanager:GetSecretValue") == [SECRET]
        (workspace,) = resources_for(statements, "aps:RemoteWrite")
        assert shown(workspace).endswith(":workspace/ws-1a2b") or "workspace/ws-1a2b" in shown(workspace)
        assert not {a for a in actions_of(statements) if a.startswith("aps:")} - {"aps:RemoteWrite"}


def test_logs_go_to_a_group_that_ends(template):
    """Below the one prefix that nodes may write to, encrypted, and not kept for ever."""
    groups = of_type(template, "AWS::Logs::LogGroup").values()
    (own,) = [
        g
        for g in groups
        if g["Properties"].get("LogGroupName") == "/aws/sagemaker/Clusters/quickstart-train/nodes"
    ]
    assert own["Properties"]["RetentionInDays"] == 90
    assert own["Properties"]["KmsKeyId"]


@pytest.mark.parametrize(
    ("nodes", "port"),
    [
        ({"logs": {"to": "syslog", "host": "logs.example.org", "port": 6515}}, 6515),
        ({"metrics": {"url": "https://p.example.org:9091/write", "auth": "none"}}, 9091),
        ({"ldap": {"uri": "ldaps://d.example.org", "base": "dc=x"}}, 636),
        ({"ldap": {"uri": "ldap://d.example.org", "base": "dc=x"}}, 389),
    ],
)
def test_nodes_get_out_to_what_they_are_told_to_talk_to(place, tmp_path, nodes, port):
    document = yaml.safe_load(place.read_text())
    document["clusters"]["train"]["nodes"] = nodes
    (tmp_path / "demo.yaml").write_text(yaml.safe_dump(document))
    assert load(tmp_path / "demo.yaml").plan.regions[0].network.egress_ports == (443, port)
