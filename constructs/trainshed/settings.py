"""settings.json, from this side: what the node's steps are told. `lifecycle/settings.py` reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .hyperpod import Mount
from .planning.instances import INSTANCE_TYPES
from .planning.model import ClusterPlan, InstanceGroupPlan


def settings_of(
    *, platform: str, region: str, cluster: ClusterPlan, mounts: Sequence[Mount], lustre_efa: bool,
    buckets: Mapping[str, str],
) -> dict[str, object]:  # fmt: skip
    """The settings of one cluster's nodes; the version is added by `LifecycleScripts`."""
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
        "groups": {group.name: _group(cluster, group) for group in cluster.groups},
    }  # fmt: skip


def _group(cluster: ClusterPlan, group: InstanceGroupPlan) -> dict[str, object]:
    kind = INSTANCE_TYPES[group.instance_type]
    return {
        "role": group.role,
        "instance_type": group.instance_type,
        "partition": group.partition,
        "efa_interfaces": kind.efa_interfaces,
        "accelerators": kind.accelerators,
        "scratch": kind.nvme_mount(cluster.orchestrator) or ("/opt/sagemaker" if group.scratch_gb else None),
    }
