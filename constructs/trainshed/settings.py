"""settings.json, from this side: what the node's steps are told. `lifecycle/settings.py` reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from .hyperpod import Mount
from .planning.instances import INSTANCE_TYPES
from .planning.job_environment import gres, job_environment
from .planning.model import ClusterPlan, InstanceGroupPlan
from .planning.nodes import NodeServices, programs_for


def settings_of(
    *, platform: str, region: str, cluster: ClusterPlan, mounts: Sequence[Mount], lustre_efa: bool,
    buckets: Mapping[str, str], log_group: str | None = None,
) -> dict[str, object]:  # fmt: skip
    """The settings of one cluster's nodes; the version is added by `LifecycleScripts`.

    `log_group` is the CloudWatch log group that nodes ship to, where they do.
    """
    lustre = next((m for m in mounts if m.mount_name), None)
    home = next((m for m in mounts if not m.mount_name), None)
    return {
        "platform": platform,
        "cluster": cluster.name,
        "region": region,
        "orchestrator": cluster.orchestrator,
        "lustre": lustre and {
            "dns_name": lustre.dns_name,
            "mount_name": lustre.mount_name,
            "mount_path": lustre.mount_path,
            "efa": lustre_efa,
        },
        "home": home and {"dns_name": home.dns_name, "mount_path": home.mount_path},
        "buckets": dict(buckets),
        "groups": {group.name: _group(cluster, group, lustre_efa=lustre_efa) for group in cluster.groups},
        "nodes": _nodes(cluster.nodes, log_group=log_group),
    }  # fmt: skip


def _group(cluster: ClusterPlan, group: InstanceGroupPlan, *, lustre_efa: bool) -> dict[str, object]:
    kind = INSTANCE_TYPES[group.instance_type]
    return {
        "role": group.role,
        "instance_type": group.instance_type,
        "partition": group.partition,
        "efa_interfaces": kind.efa_interfaces,
        "accelerators": kind.accelerators,
        "scratch": kind.nvme_mount(cluster.orchestrator) or ("/opt/sagemaker" if group.scratch_gb else None),
        "vcpus": kind.vcpus // (2 if group.threads_per_core == 1 else 1),
        "gres": gres(kind),
        "environment": job_environment(kind),
        "programs": list(programs_for(cluster.nodes, kind, lustre_efa=lustre_efa)),
    }


def _nodes(nodes: NodeServices, *, log_group: str | None) -> dict[str, object]:
    metrics = nodes.metrics
    return {
        "certificates": {"files": list(nodes.certificates), "secret_arn": nodes.certificates_secret_arn},
        "ldap": asdict(nodes.ldap) if nodes.ldap else None,
        "metrics": metrics and {
            "url": metrics.url,
            "region": metrics.workspace[0] if metrics.workspace else None,
            "auth": metrics.auth,
            "secret_arn": metrics.secret_arn,
        },
        "logs": {**asdict(nodes.logs), "group": log_group} if nodes.logs else None,
        "containers": nodes.containers,
        "health": {"xids": dict(nodes.xids)},
        "clock": list(nodes.clock),
    }  # fmt: skip
