"""What runs on nodes: combinations that AWS or the steps would refuse, and the operator's own files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainshed.planning.instances import INSTANCE_TYPES
from trainshed.planning.job_environment import gres, job_environment
from trainshed.planning.nodes import (
    Directory,
    LogDestination,
    MetricsDestination,
    NodeServices,
    check_nodes,
    check_site,
)

AT = "clusters.train.nodes"
SECRET = "arn:aws:secretsmanager:us-east-2:123456789012:secret:x"
AMP = MetricsDestination(
    url="https://aps-workspaces.us-east-2.amazonaws.com/workspaces/ws-1a2b/api/v1/remote_write"
)
OWN = MetricsDestination(url="https://prometheus.firm.example/api/v1/write", auth="none")
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def refused(nodes: NodeServices) -> dict[str, str]:
    problems = list(check_nodes(nodes, path=AT))
    assert all(part.strip() for p in problems for part in (p.path, p.given, p.allowed, p.fix))
    return {p.path.removeprefix(f"{AT}."): p.allowed for p in problems}


@pytest.mark.parametrize(
    "nodes",
    [
        NodeServices(),
        NodeServices(metrics=AMP),
        NodeServices(metrics=OWN),
        NodeServices(metrics=replace(OWN, auth="basic", secret_arn=SECRET)),
        NodeServices(metrics=replace(OWN, auth="mtls", secret_arn=SECRET)),
        NodeServices(logs=LogDestination(to="cloudwatch")),
        NodeServices(logs=LogDestination(to="syslog", host="logs")),
        NodeServices(ldap=Directory(uri="ldaps://d", base="dc=x")),
        NodeServices(ldap=Directory(uri="ldaps://d", base="dc=x", bind_dn="cn=a", bind_secret_arn=SECRET)),
    ],
)
def test_accepted(nodes):
    assert refused(nodes) == {}


@pytest.mark.parametrize(
    ("nodes", "path", "allowed"),
    [
        (NodeServices(metrics=replace(OWN, auth="sigv4")), "metrics.url", "aps-workspaces"),
        (NodeServices(metrics=replace(AMP, auth="none")), "metrics.auth", "sigv4"),
        (NodeServices(metrics=replace(AMP, secret_arn=SECRET)), "metrics.secret_arn", "nothing"),
        (NodeServices(metrics=replace(OWN, auth="basic")), "metrics.secret_arn", "username and password"),
        (NodeServices(metrics=replace(OWN, auth="mtls")), "metrics.secret_arn", "certificate and key"),
        (NodeServices(logs=LogDestination(to="syslog")), "logs.host", "a host name"),
        (NodeServices(logs=LogDestination(to="cloudwatch", host="x")), "logs.host", "nothing"),
        (
            NodeServices(ldap=Directory(uri="ldap://d", base="x", bind_dn="cn=a")),
            "ldap.bind_secret_arn",
            "both",
        ),
        (
            NodeServices(ldap=Directory(uri="ldap://d", base="x", bind_secret_arn=SECRET)),
            "ldap.bind_dn",
            "both",
        ),
    ],
)
def test_refused(nodes, path, allowed):
    problems = refused(nodes)
    assert list(problems) == [path]
    assert allowed in problems[path]


def test_an_amp_url_names_its_workspace():
    assert AMP.workspace == ("us-east-2", "ws-1a2b")
    assert OWN.workspace is None


def site(**files: str | None) -> list[str]:
    return [problem.given for problem in check_site(files, path=f"{AT}.site")]


def test_a_site_folder_may_hold_what_the_steps_know():
    files = {
        "certificates/corp.pem": PEM * 2,
        "certificates/old.crt": PEM,
        "packages/sssd.deb": None,
        "pre.d/10-x.sh": None,
        "post.d/x.sh": None,
        "users.csv": "\ufeffname,uid,key\r\n# team\r\n\r\nada,2001,ssh-rsa A, a comma\r\ngrace,2002\r\n",
        "mirror.json": None,
    }
    assert site(**files) == []


@pytest.mark.parametrize(
    ("name", "text", "given"),
    [
        ("readme.md", None, "readme.md"),
        ("certificates/corp.der", None, "certificates/corp.der"),
        ("certificates/a/b.pem", PEM, "certificates/a/b.pem"),
        ("pre.d/x.py", None, "pre.d/x.py"),
        ("certificates/corp.pem", "nonsense", "certificates/corp.pem"),
        ("certificates/corp.pem", "", "certificates/corp.pem"),
        ("certificates/corp.pem", PEM.replace("-----END CERTIFICATE-----", ""), "certificates/corp.pem"),
        ("certificates/corp.pem", f"{PEM}-----BEGIN PRIVATE KEY-----\n", "certificates/corp.pem"),
        ("users.csv", "Ada,2001\n", "users.csv line 1: Ada"),
        ("users.csv", "name,uid\nada\n", "users.csv line 2: uid missing"),
        ("users.csv", "ada,root\n", "users.csv line 1: uid root"),
        ("users.csv", "ada,0\n", "users.csv line 1: uid 0"),
        ("users.csv", "ada,60001\n", "users.csv line 1: uid 60001"),
        ("users.csv", "ada,2001\nada,2002\n", "users.csv line 2: ada"),
        ("users.csv", "ada,2001\ngrace,2001\n", "users.csv line 2: 2001"),
        ("users.csv", "a" * 33 + ",2001\n", "users.csv line 1: " + "a" * 33),
    ],
)
def test_what_a_site_folder_may_not_hold(name, text, given):
    assert site(**{name: text}) == [given]


def test_every_type_has_its_generic_resource():
    """AWS's own figures: eight GPUs on P5, sixteen chips on trn2 and none on M5."""
    assert gres(INSTANCE_TYPES["ml.p5.48xlarge"]) == "gpu:8"
    assert gres(INSTANCE_TYPES["ml.trn2.48xlarge"]) == "neuron:16"
    assert gres(INSTANCE_TYPES["ml.m5.4xlarge"]) is None


def test_jobs_speak_efa_where_the_type_has_it():
    p5 = job_environment(INSTANCE_TYPES["ml.p5.48xlarge"])
    assert (p5["FI_PROVIDER"], p5["FI_EFA_USE_HUGE_PAGE"]) == ("efa", "0")
    assert "FI_EFA_USE_DEVICE_RDMA" not in p5, "on by itself since P5"
    assert job_environment(INSTANCE_TYPES["ml.p4d.24xlarge"])["FI_EFA_USE_DEVICE_RDMA"] == "1"
    assert "NCCL_SOCKET_IFNAME" not in job_environment(INSTANCE_TYPES["ml.trn2.48xlarge"])
    assert job_environment(INSTANCE_TYPES["ml.m5.4xlarge"]) == {}
    for kind in INSTANCE_TYPES.values():
        assert ("FI_PROVIDER" in job_environment(kind)) == (kind.efa_interfaces > 0), kind.name
