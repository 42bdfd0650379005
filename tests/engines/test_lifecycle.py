"""The whole lifecycle on booted machines: systemd, apt, TLS, users, Slurm and Prometheus are real."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engines.firm import NAME, PASSWORD, USER, Authority, Aws, Prometheus, Syslog
from tests.engines.machine import need
from tests.engines.node import Node, debian_programs, wait_for
from tests.support import ROOT

METRICS_SECRET, CA_SECRET, BIND_SECRET = "metrics-login", "more-authorities", "directory-login"
USERS = "\ufeffname,uid,key\r\n# the team\r\nada,2001,ssh-ed25519 AAAAC3Nz ada@firm\r\n\r\ngrace, 2002\r\n"
# Looks at the secrets that wait for their steps, while these run.
WATCH = """place=/run/trainshed/secrets
(for i in $(seq 500); do stat -c '%a %n' $place $place/*; sleep .02; done) >/var/lib/seen 2>/dev/null &
"""
BUCKET = "sagemaker-fleet-123456789012-us-east-2"


class Firm:
    """What the machines talk to."""

    def __init__(self, aws: Aws, authority: Authority, other: Authority, folder: Path) -> None:
        self.aws, self.authority, self.other = aws, authority, other
        s3, secrets = aws.client("s3"), aws.client("secretsmanager")
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-east-2"})
        self.mirror = json.dumps({"packages": list(mirrored(s3, folder))})
        login = json.dumps({"username": USER, "password": PASSWORD})
        secrets.create_secret(Name=METRICS_SECRET, SecretString=login)
        secrets.create_secret(Name=CA_SECRET, SecretString=other.ca.read_text())
        secrets.create_secret(Name=BIND_SECRET, SecretString=PASSWORD)
        self.package = package(folder)


@pytest.fixture(scope="module")
def firm(tmp_path_factory) -> Iterator[Firm]:
    need(openssl="openssl")
    first, second = tmp_path_factory.mktemp("ca"), tmp_path_factory.mktemp("ca2")
    with Aws() as aws:
        yield Firm(
            aws, Authority(first), Authority(second, "Firm Second Root"), tmp_path_factory.mktemp("own")
        )


def package(folder: Path) -> bytes:
    """A Debian package of the firm's own."""
    (folder / "root/DEBIAN").mkdir(parents=True)
    control = "Package: own\nVersion: 1\nArchitecture: all\nMaintainer: firm\nDescription: own\n"
    (folder / "root/DEBIAN/control").write_text(control)
    (folder / "root/own").write_text("own\n")
    subprocess.run(["dpkg-deb", "-b", "root", "own.deb"], cwd=folder, check=True, capture_output=True)
    return (folder / "own.deb").read_bytes()


def mirrored(s3, folder: Path) -> Iterator[dict[str, object]]:
    """The collector and the exporter of Debian, laid down as `trainshed mirror` does."""
    programs = debian_programs("prometheus", "prometheus-node-exporter")
    programs["node_exporter"] = programs["prometheus-node-exporter"]
    for name, files in (("prometheus", ("prometheus", "promtool")), ("node_exporter", ("node_exporter",))):
        archive = folder / f"{name}.tar.gz"
        with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
            for file in files:
                tar.add(programs[file], f"{name}-1/{file}")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        s3.upload_file(str(archive), BUCKET, f"mirror/{digest}/{archive.name}")
        for machine in ("x86_64", "aarch64"):
            url = f"https://example.com/{archive.name}"
            yield {"name": name, "version": "1", "machine": machine, "for": "metrics", "url": url,
                   "sums": None, "sha256": digest}  # fmt: skip


def settings(**nodes: object) -> dict[str, object]:
    group = {
        "role": "worker", "instance_type": "ml.p5.48xlarge", "partition": "p5", "efa_interfaces": 32,
        "accelerators": 8, "scratch": "/opt/dlami/nvme", "vcpus": 192, "gres": None, "environment": {},
        "programs": ["metrics"] if nodes.get("metrics") else [],
    }  # fmt: skip
    controller = {**group, "role": "controller", "partition": None, "scratch": None, "efa_interfaces": 0}
    off = {"certificates": {"files": [], "secret_arn": None}, "ldap": None, "metrics": None, "logs": None,
           "containers": False, "health": {"xids": {}}, "clock": ["169.254.169.123"]}  # fmt: skip
    return {
        "version": 2, "platform": "fleet", "cluster": "train", "region": "us-east-2", "orchestrator": "slurm",
        "lustre": {"dns_name": "fs-1.fsx", "mount_name": "abcd", "mount_path": "/fsx", "efa": False},
        "home": None, "buckets": {"datasets": "d", "checkpoints": "c", "lifecycle": BUCKET},
        "groups": {"p5": group, "idle": group, "controller": controller}, "nodes": {**off, **nodes},
    }  # fmt: skip


def groups(node: Node, name: str = "p5") -> list[dict[str, object]]:
    own = [{"InstanceName": f"{name}-1", "CustomerIpAddress": node.address, "InstanceId": "i-1"}]
    return [{"Name": "idle", "Instances": []}, {"Name": name, "Instances": own}]


def prepared(firm: Firm) -> Node:
    """A machine with what an AMI has: the AWS CLI and a mounted local disk."""
    node = Node()
    node.__enter__()
    node.write("root/.aws/config", firm.aws.config(node.host))
    aws = f'#!/bin/sh\necho "$*" >>/var/lib/aws-calls\nexec {ROOT}/.venv/emulator/bin/aws "$@"\n'
    node.write("/usr/local/bin/aws", aws, 0o755)
    node.write("/etc/hosts", node.read("/etc/hosts") + f"{node.host} fs-1.fsx\n")
    node.boot()
    node.run("mkdir -p /opt/dlami/nvme && mount -t tmpfs -o size=100m none /opt/dlami/nvme")
    return node


@pytest.fixture
def node(firm) -> Iterator[Node]:
    made = prepared(firm)
    yield made
    made.__exit__()


def failed(node: Node) -> list[str]:
    return [line for line in node.lines() if "FAILED" in line]


def everything(firm: Firm, prometheus: Prometheus, syslog: Syslog) -> tuple[dict, dict[str, bytes]]:
    """Settings with all services on, and a site folder with all that it may hold."""
    told = settings(
        certificates={"files": ["corp.pem"], "secret_arn": CA_SECRET},
        metrics={"url": f"https://{NAME}:{prometheus.port}/api/v1/write", "region": None, "auth": "basic",
                 "secret_arn": METRICS_SECRET},
        logs={"to": "syslog", "group": None, "host": NAME, "port": syslog.port, "tls": True},
    )  # fmt: skip
    site = {
        "certificates/corp.pem": firm.authority.ca.read_bytes().replace(b"\n", b"\r\n"),
        "users.csv": USERS.encode(),
        "mirror.json": firm.mirror.encode(),
        "packages/own.deb": firm.package,
        "pre.d/10-first.sh": b"date > /var/lib/first\n",
        "post.d/90-last.sh": b"test -e /var/lib/first && id ada > /var/lib/last\n",
    }
    return told, site


def test_a_fresh_node_with_everything_on_and_once_more(firm, node, tmp_path):
    syslog = Syslog(firm.authority)
    with Prometheus(firm.authority, tmp_path) as prometheus, syslog:
        told, site = everything(firm, prometheus, syslog)
        node.upload(told, {**site, "pre.d/20-watch.sh": WATCH.encode()}, groups(node))
        began = time.monotonic()
        done = node.provision()
        first = time.monotonic() - began
        assert done.returncode == 0, done.stdout
        assert failed(node) == []

        assert node.read("/var/lib/lustre-mounts").split()[:2] == ["fs-1.fsx@tcp:/abcd", "/fsx"]
        assert node.read("/var/lib/last").startswith("uid=2001(ada) gid=2001(ada)")
        assert node.run("stat -c %U:%a /fsx/ada /home/grace").stdout.split() == ["ada:750", "grace:750"]
        assert node.read("/home/ada/.ssh/authorized_keys") == "ssh-ed25519 AAAAC3Nz ada@firm\n"
        assert "\r" not in node.run("getent passwd ada grace").stdout
        # A login shell's Python and curl trust the firm's servers; without the bundle they do not.
        ask = f"curl -sS -u {USER}:{PASSWORD} https://{NAME}:{prometheus.port}/-/healthy"
        assert "Healthy" in node.run(f"bash -lc '{ask}'").stdout
        assert node.run(f"CURL_CA_BUNDLE=/dev/null {ask}", check=False).returncode != 0
        bundle = node.read("/etc/ssl/certs/ca-certificates.crt")
        for authority in (firm.authority, firm.other):
            assert "".join(authority.ca.read_text().split()[2:-2]) in "".join(bundle.split())
        assert node.read("/own") == "own\n"
        assert node.run("stat -c %a /opt/dlami/nvme/cache").stdout.strip() == "1777"
        wait_for(lambda: prometheus.query('up{job="node",group="p5",cluster="train"} == 1'), "metrics arrive")
        wait_for(lambda: prometheus.query('trainshed_step_failed{step="metrics"} == 0'), "textfile arrives")
        assert prometheus.query("trainshed_lustre_on_tcp == 0")
        wait_for(lambda: any("done in" in line for line in syslog.lines), "the log arrives")
        # A password lies in no file that others may read, and in no unit.
        held = node.run(
            f"grep -rl {PASSWORD} /etc /opt/trainshed /var/lib/trainshed", check=False
        ).stdout.split()
        assert held == ["/etc/trainshed/metrics/password"]
        assert (
            node.run("stat -c %a:%U:%G /etc/trainshed/metrics/password").stdout
            == "640:root:trainshed-metrics\n"
        )

        seen = set(node.read("/var/lib/seen").splitlines())
        assert "600 /run/trainshed/secrets/collector" in seen
        assert {line.split()[0] for line in seen if line.count("/") == 4} == {"600"}
        assert {line for line in seen if line.count("/") == 3} == {"700 /run/trainshed/secrets"}
        assert not node.run("ls -A /run/trainshed").stdout

        units = "trainshed-collector trainshed-node-exporter rsyslog"
        pids = node.run(f"systemctl show -P MainPID {units}").stdout
        before = node.run("find /etc /usr/local /opt/trainshed/programs -type f -newer /var/lib/last").stdout
        node.write("/var/lib/aws-calls", "")
        began = time.monotonic()
        assert node.provision().returncode == 0
        second = time.monotonic() - began
        print(f"first {first:.1f} s, second {second:.1f} s")
        asked = re.findall(r"--secret-id (\S+)", node.read("/var/lib/aws-calls"))
        assert sorted(asked) == [METRICS_SECRET, CA_SECRET], "each once"
        assert failed(node) == []
        assert node.run(f"systemctl show -P MainPID {units}").stdout == pids, "nothing was restarted"
        assert (
            node.run("find /etc /usr/local /opt/trainshed/programs -type f -newer /var/lib/last").stdout
            == before
        )
        assert node.run("grep -c /fsx /etc/fstab").stdout.strip() == "1"
        assert node.read("/home/ada/.ssh/authorized_keys").count("ada@firm") == 1

        # What was rotated is there after the next run.
        secrets, pid = firm.aws.client("secretsmanager"), pids.split()[0]
        third = Authority(tmp_path, "Firm Third Root").ca.read_text()
        moved = json.dumps({"username": USER, "password": "moved"})
        for name, text in ((CA_SECRET, third), (METRICS_SECRET, moved)):
            secrets.put_secret_value(SecretId=name, SecretString=text)
        assert node.provision().returncode == 0
        trusted = "".join(node.read("/etc/ssl/certs/ca-certificates.crt").split())
        assert "".join(third.split()[2:-2]) in trusted
        assert "".join(firm.other.ca.read_text().split()[2:-2]) not in trusted
        assert node.read("/etc/trainshed/metrics/password") == "moved\n"
        assert node.run("systemctl show -P MainPID trainshed-collector").stdout.strip() != pid

        # Each step runs alone; rotation: what is no longer given is no longer trusted.
        fewer = {**told["nodes"], "certificates": {"files": ["corp.pem"], "secret_arn": None}}
        node.upload({**told, "nodes": fewer}, site, groups(node))
        assert node.provision().returncode == 0
        left = "".join(node.read("/etc/ssl/certs/ca-certificates.crt").split())
        assert "".join(third.split()[2:-2]) not in left
        assert "".join(firm.authority.ca.read_text().split()[2:-2]) in left
        for step in sorted((ROOT / "lifecycle/steps").glob("*.sh")):
            node.run(f"bash /opt/trainshed/lifecycle/steps/{step.name}")


def test_what_stops_a_node_and_what_does_not(firm):
    """Each on a machine of its own, side by side: most wait for five tries."""
    cases = [
        missing_certificate, missing_secret, missing_file_system, unreadable_file_system, apt_is_read_only,
        nothing_is_mirrored, a_hook_fails, unlisted, lustre_falls_back, lustre_over_efa, no_scratch,
        root_is_squashed,
    ]  # fmt: skip
    with ThreadPoolExecutor(4) as pool:
        for case, faults in zip(cases, pool.map(lambda case: tried(firm, case), cases), strict=True):
            assert faults is None, f"{case.__name__}: {faults}"


def tried(firm: Firm, case) -> str | None:
    node = prepared(firm)
    try:
        case(firm, node)
    except AssertionError as error:
        return f"{error}\n" + "\n".join(node.lines()[-15:])
    finally:
        node.__exit__()
    return None


def stops(node: Node, *words: str) -> None:
    done = node.provision()
    assert done.returncode == 1, done.stdout
    why, last = failed(node)
    assert all(word in why for word in words), why
    assert "this node stops here" in last
    assert "Traceback" not in done.stdout


def goes_on(node: Node, step: str, *words: str) -> None:
    done = node.provision()
    assert done.returncode == 0, done.stdout
    assert node.lines()[-1].endswith(f"without: {step}"), node.lines()[-1]
    assert any(all(word in line for word in words) for line in node.lines()), done.stdout
    assert f'trainshed_step_failed{{step="{step}"}} 1' in node.read("/var/lib/trainshed/metrics/steps.prom")
    assert "Traceback" not in done.stdout


def missing_certificate(_firm: Firm, node: Node) -> None:
    told = settings(certificates={"files": ["corp.pem"], "secret_arn": CA_SECRET})
    node.upload(told, {}, groups(node))
    stops(node, "corp.pem", "deploy the cluster stack again")
    assert not node.run("ls -A /run/trainshed").stdout, "a secret that was fetched is gone"


def missing_secret(_firm: Firm, node: Node) -> None:
    node.upload(settings(certificates={"files": [], "secret_arn": "no-such"}), {}, groups(node))
    stops(node, "no-such", "node role's permission")
    assert sum("again in" in line for line in node.lines()) == 4


def missing_file_system(_firm: Firm, node: Node) -> None:
    node.write("/etc/no-lustre", "")
    node.upload(settings(), {}, groups(node))
    stops(node, "fs-1.fsx@tcp:/abcd is not mounted at /fsx", "runbooks/lustre.md")


def unreadable_file_system(_firm: Firm, node: Node) -> None:
    """Mounted, but what is written is lost: a full or read-only system."""
    node.run("mkdir -p /fsx && mount -t tmpfs -o size=1m none /fsx")
    node.upload(settings(), {}, groups(node))
    stops(node, "cannot be read back")


def apt_is_read_only(firm: Firm, node: Node) -> None:
    """Packages of the site cannot be installed: the node works without."""
    node.run("mount -o bind /var/lib/dpkg /var/lib/dpkg && mount -o remount,ro,bind /var/lib/dpkg")
    node.upload(settings(), {"packages/own.deb": firm.package}, groups(node))
    goes_on(node, "packages", "read only")


def nothing_is_mirrored(firm: Firm, node: Node) -> None:
    metrics = {"url": "http://firm.example:1/write", "region": None, "auth": "none", "secret_arn": None}
    empty = firm.mirror.replace("tar.gz", "tar.xz")
    node.upload(settings(metrics=metrics), {"mirror.json": empty.encode()}, groups(node))
    done = node.provision()
    assert done.returncode == 0, done.stdout
    assert any("run `trainshed mirror`" in line for line in node.lines())
    assert node.lines()[-1].endswith("without: packages metrics collector")


def a_hook_fails(_firm: Firm, node: Node) -> None:
    node.upload(settings(), {"post.d/50-own.sh": b"exit 3\n"}, groups(node))
    done = node.provision()
    assert done.returncode == 1
    assert "post.d/50-own.sh ended with 3" in failed(node)[0]


def unlisted(_firm: Firm, node: Node) -> None:
    """A node that HyperPod's list lacks, and groups of nothing: it comes up as a plain node."""
    node.upload(
        settings(), {"users.csv": USERS.encode()}, [{"Name": "p5", "Instances": []}, {"Name": "idle"}]
    )
    done = node.provision()
    assert done.returncode == 0, done.stdout
    assert failed(node) == []
    assert '"group": null' in "\n".join(node.lines())


def lustre_falls_back(_firm: Firm, node: Node) -> None:
    """The file system serves EFA, the counters do not move: loud, and the node goes on."""
    told = settings()
    told["lustre"]["efa"] = True
    manifest = {"mirror.json": b'{"packages": []}'}
    node.upload(told, manifest, groups(node))
    assert node.provision().returncode == 0
    assert any("WARNING: /fsx goes over TCP" in line for line in node.lines())
    assert node.read("/var/lib/trainshed/metrics/trainshed_lustre_on_tcp.prom").endswith(" 1\n")
    node.write("/etc/efa", "5")
    assert node.provision().returncode == 0
    assert node.read("/var/lib/trainshed/metrics/trainshed_lustre_on_tcp.prom").endswith(" 0\n")
    node.write("/etc/efa-idle", "")
    assert node.provision().returncode == 0
    assert node.read("/var/lib/trainshed/metrics/trainshed_lustre_on_tcp.prom").endswith(" 1\n")


def root_is_squashed(_firm: Firm, node: Node) -> None:
    """Root without its privileges over files stands for nobody; what it may list counts as mounted."""
    node.run("install -d -o nobody -m 755 /var/lib/lustre")
    node.upload(settings(), {}, groups(node))
    assert node.provision().returncode == 0
    weak = "setpriv --bounding-set -dac_override,-dac_read_search"
    node.run("chown nobody /var/lib/lustre && rm -rf /var/lib/lustre/.trainshed")
    done = node.run(f"{weak} bash /opt/trainshed/lifecycle/steps/lustre.sh")
    assert "root squash" in done.stderr
    node.run("chmod 700 /var/lib/lustre")
    done = node.run(f"{weak} bash /opt/trainshed/lifecycle/steps/lustre.sh", check=False)
    assert done.returncode == 1
    assert "cannot be read back" in done.stderr


def lustre_over_efa(firm: Firm, node: Node) -> None:
    """The mirror's set-up of Lustre over EFA runs at the first boot already, and before the mount."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        script = "! mountpoint -q /fsx && echo 5 >/etc/efa\n"
        made.writestr("configure-efa-fsx-lustre-client/setup.sh", script)
    digest = hashlib.sha256(archive.getvalue()).hexdigest()
    key = f"mirror/{digest}/client.zip"
    firm.aws.client("s3").put_object(Bucket=BUCKET, Key=key, Body=archive.getvalue())
    entry = {"name": "client", "version": "1", "machine": "any", "for": "lustre-efa",
             "url": "https://example.com/client.zip", "sums": None, "sha256": digest}  # fmt: skip
    told = settings()
    told["lustre"]["efa"], told["groups"]["p5"]["programs"] = True, ["lustre-efa"]
    node.upload(told, {"mirror.json": json.dumps({"packages": [entry]}).encode()}, groups(node))
    assert node.provision().returncode == 0, node.lines()
    assert any("/fsx: written and read back over EFA" in line for line in node.lines())
    assert node.read("/var/lib/trainshed/metrics/trainshed_lustre_on_tcp.prom").endswith(" 0\n")


def no_scratch(_firm: Firm, node: Node) -> None:
    node.run("umount /opt/dlami/nvme")
    node.upload(settings(), {}, groups(node))
    goes_on(node, "scratch", "/opt/dlami/nvme is not mounted")


SLURM = """ClusterName=train
SlurmctldHost={name}
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmctldPidFile=/run/slurmctld.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
NodeName=p5-1 CPUs=1 State=CLOUD
PartitionName=p5 Nodes=ALL Default=YES"""


def test_a_controller_keeps_its_queue_on_the_shared_file_system(firm, node):
    """H3: an AMI update empties the root volume; the queue is there afterwards."""
    node.write("/etc/slurm/slurm.conf", SLURM.format(name=node.name))
    node.run("systemctl restart munge; systemctl unmask slurmctld; systemctl enable --now slurmctld")
    node.upload(settings(), {}, groups(node, "controller"))
    job = node.run("sbatch --parsable --hold -p p5 --wrap true").stdout.strip()
    done = node.provision()
    assert done.returncode == 0, done.stdout
    assert failed(node) == []
    state = "/fsx/.trainshed/slurm-train"
    shown = node.run("scontrol show config").stdout
    assert f"StateSaveLocation       = {state}" in shown
    assert "HealthCheckProgram      = /opt/trainshed/lifecycle/health/check.py" in shown
    assert "Prolog                  = /opt/trainshed/lifecycle/health/prolog*.sh" in shown
    assert node.run("squeue -h -o %i").stdout.split() == [job], "a queue that was there came along"
    assert node.run("systemctl is-enabled slurmd", check=False).stdout.strip() == "masked"
    pid = node.run("systemctl show -P MainPID slurmctld").stdout
    assert node.provision().returncode == 0
    assert node.run("systemctl show -P MainPID slurmctld").stdout == pid, "a second run restarts nothing"

    # HyperPod writes slurm.conf anew when groups change.
    node.write("/etc/slurm/slurm.conf", SLURM.format(name=node.name))
    wait_for(lambda: "include trainshed.conf" in node.read("/etc/slurm/slurm.conf"), "our line is put back")

    # The root volume is new; only the shared file system stayed.
    node.run(
        "systemctl stop trainshed-slurm.path slurmctld; rm -rf /opt/trainshed /etc/slurm/* /var/lib/slurm/*"
    )
    node.run("install -d -o slurm /var/lib/slurm/slurmctld")
    node.write("/etc/slurm/slurm.conf", SLURM.format(name=node.name))
    node.run("systemctl start slurmctld")
    assert node.run("squeue -h -o %i").stdout.split() == []
    assert node.provision().returncode == 0
    assert node.run("squeue -h -o %i").stdout.split() == [job]


SLAPD = """include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
modulepath /usr/lib/ldap
moduleload back_mdb
TLSCertificateFile /etc/ldap/server.pem
TLSCertificateKeyFile /etc/ldap/server.key
database mdb
suffix "dc=firm"
directory /var/lib/directory
access to attrs=userPassword by anonymous auth
access to * by dn.exact="cn=nodes,dc=firm" read by * none
"""
PEOPLE = f"""dn: dc=firm
objectClass: dcObject
objectClass: organization
dc: firm
o: firm

dn: cn=nodes,dc=firm
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: nodes
userPassword: {PASSWORD}

dn: uid=lin,dc=firm
objectClass: account
objectClass: posixAccount
uid: lin
cn: Lin
uidNumber: 3001
gidNumber: 3001
homeDirectory: /ignored/lin
"""


def test_users_come_from_a_directory_that_the_firms_authority_vouches_for(firm, node):
    """A real slapd behind TLS; nodes log in with a secret."""
    for name, path in (("server.pem", firm.authority.cert), ("server.key", firm.authority.key)):
        node.write(f"/etc/ldap/{name}", path.read_bytes())
    node.write("/etc/ldap/slapd.conf", SLAPD)
    node.write("/etc/people.ldif", PEOPLE)
    node.write("/etc/hosts", node.read("/etc/hosts").replace(f"{node.host} {NAME}", f"127.0.0.1 {NAME}"))
    node.run("mkdir /var/lib/directory && slapadd -f /etc/ldap/slapd.conf -l /etc/people.ldif")
    node.run("slapd -f /etc/ldap/slapd.conf -h ldaps:///")
    ldap = {"uri": f"ldaps://{NAME}", "base": "dc=firm", "bind_dn": "cn=nodes,dc=firm",
            "bind_secret_arn": BIND_SECRET}  # fmt: skip
    certificates = {"files": ["corp.pem"], "secret_arn": None}
    site = {"certificates/corp.pem": firm.authority.ca.read_bytes()}
    node.upload(settings(ldap=ldap, certificates=certificates), site, groups(node))
    done = node.provision()
    assert done.returncode == 0, done.stdout
    assert failed(node) == []
    assert node.run("getent passwd lin").stdout == "lin:*:3001:3001:Lin:/home/lin:/bin/bash\n"
    assert node.run("stat -c %a /etc/sssd/sssd.conf").stdout == "600\n"
    pid = node.run("systemctl show -P MainPID sssd").stdout
    assert node.provision().returncode == 0
    assert node.run("systemctl show -P MainPID sssd").stdout == pid

    # Somebody else's authority: nobody is believed, instead of anybody.
    other = {"certificates/corp.pem": firm.other.ca.read_bytes()}
    node.upload(settings(ldap=ldap, certificates=certificates), other, groups(node))
    assert node.provision().returncode == 0
    node.run("systemctl stop sssd; rm -f /var/lib/sss/db/*; systemctl start sssd")
    assert node.run("getent passwd lin", check=False).stdout == ""
