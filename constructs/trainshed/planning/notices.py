"""What is legal but will surprise somebody: quotas, zones, types that fall back.

Sources: Service Quotas (network interfaces per Region, Elastic IPs), the HyperPod pages on clusters.
"""

from __future__ import annotations

from collections.abc import Iterator

from .instances import INSTANCE_TYPES
from .model import RegionPlan
from .regions import offering
from .workload import PUBLISHED_TO

SAFE_GROUP_COUNT = 20
DEFAULT_INTERFACE_QUOTA = 5000
DEFAULT_ELASTIC_IP_QUOTA = 5


def warnings_of(region: RegionPlan) -> Iterator[str]:
    """What is legal but will surprise somebody."""
    interfaces = 0
    for cluster in region.clusters:
        if len(cluster.groups) > SAFE_GROUP_COUNT:
            count = len(cluster.groups)
            yield f"{cluster.name} has {count} groups: AWS's pages promise {SAFE_GROUP_COUNT}, its API 100"
        lustre = next((f for f in region.lustre if f.name == cluster.lustre), None)
        away = [g.name for g in cluster.groups if lustre and g.zone != lustre.zone]
        if lustre and away:
            yield f"{', '.join(away)} mount {lustre.name} from {lustre.zone}: traffic between zones costs"
        for group in cluster.groups:
            kind = INSTANCE_TYPES.get(group.instance_type)
            if kind is None:
                continue
            interfaces += kind.network_cards * (group.grow_to + group.surge_nodes)
            if offering(region.region, group.instance_type) == "training-plan-only":
                yield f"{group.name}: {group.instance_type} is sold by training plan only; no region lists it"
            if group.interface == "efa-only":
                yield (
                    f"{group.name}: `efa-only` addresses are derived from EC2's documentation; "
                    "AWS publishes none for HyperPod, so watch the subnet's free addresses at first"
                )
            if lustre and lustre.efa and kind.efa_interfaces and not kind.efa_lustre_client:
                yield (
                    f"{group.name}: {group.instance_type} cannot use {lustre.name} over EFA "
                    "and will mount it over TCP"
                )
            if (group.capacity, group.role) == ("spot", "worker") and not cluster.node_recovery:
                yield f"{group.name}: Spot nodes leave at any time, and node recovery is off"
    yield from _unseen(region)
    if interfaces > DEFAULT_INTERFACE_QUOTA:
        yield (
            f"{interfaces} network interfaces at the declared growth: AWS's default quota "
            f"'Network interfaces per Region' is {DEFAULT_INTERFACE_QUOTA}"
        )
    zones = {s.zone for s in region.addresses.subnets if s.purpose == "public"}
    if len(zones) > DEFAULT_ELASTIC_IP_QUOTA:
        yield f"{len(zones)} NAT gateways: AWS's default quota of Elastic IPs is {DEFAULT_ELASTIC_IP_QUOTA}"


def _unseen(region: RegionPlan) -> Iterator[str]:
    if not region.workload or not region.clusters:
        return
    links = [link for fs in region.lustre for link in fs.associations if link.bucket == "datasets"]
    if not any(PUBLISHED_TO.startswith(link.prefix) and "NEW" in link.import_events for link in links):
        yield (
            f"no association brings new objects under {PUBLISHED_TO}/ of the dataset bucket to a file "
            "system: recipes and job templates stay in S3"
        )
