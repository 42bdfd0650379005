"""What runs on a cluster's nodes besides Slurm: certificates, users, metrics, logs, containers, health.

Sources: HyperPod's page on lifecycle scripts; Amazon Managed Service for Prometheus, remote write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from .instances import InstanceType
from .problems import Problem, either

XidAction = Literal["replace", "reboot", "drain", "none"]
MIRROR = "mirror"
"""Prefix of the lifecycle bucket under which `trainshed mirror` puts programs, for all clusters."""
TIME_SERVICE = "169.254.169.123"  # Amazon Time Sync Service, EC2 User Guide
_AMP = re.compile(r"https://aps-workspaces\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?/workspaces/(ws-[\w-]+)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """An LDAP directory that nodes take their users from, through sssd. `base` is its search base."""

    uri: str
    base: str
    bind_dn: str | None = None
    bind_secret_arn: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsDestination:
    """Where each node's collector writes: AMP (`sigv4`) or any Prometheus remote-write endpoint."""

    url: str
    auth: Literal["sigv4", "basic", "mtls", "none"] = "sigv4"
    secret_arn: str | None = None

    @property
    def workspace(self) -> tuple[str, str] | None:
        """Region and id of the AMP workspace; None for an endpoint of somebody else's."""
        found = _AMP.match(self.url)
        return (found[1], found[3]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDestination:
    """Where nodes ship Slurm's and their own logs: CloudWatch, or a syslog server."""

    to: Literal["cloudwatch", "syslog"]
    host: str | None = None
    port: int = 6514
    tls: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeServices:
    """What the lifecycle steps set up.

    `site` is a folder of the operator's own files (docs/nodes.md), `certificates` the names of those in it.
    """

    site: str | None = None
    certificates: tuple[str, ...] = ()
    certificates_secret_arn: str | None = None
    ldap: Directory | None = None
    metrics: MetricsDestination | None = None
    logs: LogDestination | None = None
    containers: bool = True
    clock: tuple[str, ...] = (TIME_SERVICE,)
    xids: Mapping[str, XidAction] = field(default_factory=dict[str, XidAction])

    @property
    def secrets(self) -> tuple[str, ...]:
        """Secrets that every node reads."""
        found = (
            self.certificates_secret_arn,
            self.ldap and self.ldap.bind_secret_arn,
            self.metrics and self.metrics.secret_arn,
        )
        return tuple(arn for arn in found if arn)


def lifecycle_bucket_name(platform: str, account: str, region: str) -> str:
    """Where scripts and programs for nodes lie; AWS's managed node policy demands the prefix."""
    return f"sagemaker-{platform}-{account}-{region}"


def programs_for(nodes: NodeServices, kind: InstanceType, *, lustre_efa: bool) -> tuple[str, ...]:
    """Which of the mirror's programs a node of a type wants, by what they are for (lifecycle/mirror.json)."""
    wanted = {
        "metrics": nodes.metrics is not None,
        "gpu-metrics": nodes.metrics is not None and kind.is_gpu,
        "cloudwatch": nodes.logs is not None and nodes.logs.to == "cloudwatch",
        "lustre-efa": lustre_efa and kind.efa_interfaces > 0,
    }
    return tuple(use for use, on in wanted.items() if on)


def check_nodes(nodes: NodeServices, *, path: str) -> Iterator[Problem]:
    """What AWS or the steps would refuse, of values that are each well formed."""
    if nodes.metrics:
        yield from _check_metrics(nodes.metrics, f"{path}.metrics")
    if nodes.logs and nodes.logs.to == "syslog" and not nodes.logs.host:
        yield Problem(f"{path}.logs.host", "nothing", "a host name", "name the syslog server")
    if nodes.logs and nodes.logs.to == "cloudwatch" and nodes.logs.host:
        yield Problem(f"{path}.logs.host", nodes.logs.host, "nothing with to: cloudwatch", "leave it out")
    if nodes.ldap and bool(nodes.ldap.bind_dn) != bool(nodes.ldap.bind_secret_arn):
        missing = "bind_secret_arn" if nodes.ldap.bind_dn else "bind_dn"
        yield Problem(
            f"{path}.ldap.{missing}", "nothing", "both bind_dn and bind_secret_arn, or neither", "add it"
        )


def _check_metrics(metrics: MetricsDestination, path: str) -> Iterator[Problem]:
    workspace = metrics.workspace
    if metrics.auth == "sigv4" and workspace is None:
        allowed = (
            "https://aps-workspaces.REGION.amazonaws.com/workspaces/ws-…/api/v1/remote_write with auth: sigv4"
        )
        yield Problem(f"{path}.url", metrics.url, allowed, "write the workspace's URL, or set auth")
    if metrics.auth != "sigv4" and workspace is not None:
        yield Problem(f"{path}.auth", metrics.auth, "sigv4 for AMP", "write sigv4")
    needs = {"basic": "username and password", "mtls": "certificate and key"}.get(metrics.auth)
    if needs and not metrics.secret_arn:
        yield Problem(f"{path}.secret_arn", "nothing", f"a secret with {needs} as JSON", "add it")
    if not needs and metrics.secret_arn:
        allowed = f"nothing with auth: {metrics.auth}"
        yield Problem(f"{path}.secret_arn", metrics.secret_arn, allowed, "leave it out, or set auth")


_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_PARTS: Mapping[str, tuple[str, ...]] = {
    "certificates": (".pem", ".crt"),
    "packages": (".deb",),
    "pre.d": (".sh",),
    "post.d": (".sh",),
}
_FILES = ("users.csv", "mirror.json")


def check_site(files: Mapping[str, str | None], *, path: str) -> Iterator[Problem]:
    """Files of a site folder by relative path; with text where it is read, users.csv and certificates."""
    for name, text in files.items():
        folder, _, base = name.rpartition("/")
        if folder in _PARTS and base.endswith(_PARTS[folder]):
            if folder == "certificates" and not _is_pem(text or ""):
                yield Problem(path, name, "PEM certificates", "convert it: openssl x509 -inform der -in FILE")
        elif name == "users.csv":
            yield from _check_users(text or "", path)
        elif name not in _FILES:
            known = [*(f"{part}/*{either(ends)}" for part, ends in _PARTS.items()), *_FILES]
            yield Problem(path, name, either(known), "move it out of the folder")


def _is_pem(text: str) -> bool:
    begins, ends = text.count("-----BEGIN CERTIFICATE-----"), text.count("-----END CERTIFICATE-----")
    return begins == ends > 0 and "PRIVATE KEY" not in text


def _check_users(text: str, path: str) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        name, *rest = (part.strip() for part in line.split(",", 2))
        if not name or name.startswith("#") or name == "name":
            continue
        at, uid = f"users.csv line {number}", rest[0] if rest else ""
        if not _USER.fullmatch(name):
            yield Problem(path, f"{at}: {name}", f"a POSIX name: {_USER.pattern}", "rename the user")
        elif not uid.isascii() or not uid.isdigit() or not 1000 <= int(uid) <= 60000:
            yield Problem(path, f"{at}: uid {uid or 'missing'}", "1000 to 60000", "write name,uid")
        else:
            yield from _once(seen, (name, uid), at, path)


def _once(seen: dict[str, str], values: Sequence[str], at: str, path: str) -> Iterator[Problem]:
    for value in values:
        if value in seen:
            yield Problem(path, f"{at}: {value}", f"each once, {seen[value]} has it", "drop one of the two")
        seen[value] = at
