"""The platform: for each region its network, its storage and its clusters."""

from __future__ import annotations

from aws_cdk import Annotations, Tags
from constructs import Construct

from trainshed.guards import Guards
from trainshed.planning.model import PlatformPlan

from .acknowledgements import acknowledge
from .cluster import ClusterStack
from .network import NetworkStack
from .storage import StorageStack
from .workload import WorkloadStack


class Platform(Construct):
    """Every stack of a plan, guarded and tagged. Regions share nothing, so each deploys by itself."""

    def __init__(self, scope: Construct, construct_id: str, *, plan: PlatformPlan) -> None:
        super().__init__(scope, construct_id)
        self.networks: dict[str, NetworkStack] = {}
        for region in plan.regions:
            prefix = f"{plan.name}-{region.region}"
            network = NetworkStack(scope, f"{prefix}-network", platform=plan, plan=region)
            self.networks[region.region] = network
            for warning in (*region.warnings, *region.addresses.warnings):
                Annotations.of(network).add_warning_v2("trainshed:plan", warning)
            storage = StorageStack(scope, f"{prefix}-storage", platform=plan, plan=region, network=network)
            workload = region.workload and WorkloadStack(
                scope, f"{prefix}-workload", platform=plan, plan=region, workload=region.workload,
                network=network, storage=storage,
            )  # fmt: skip
            for cluster in region.clusters:
                ClusterStack(
                    scope, f"{prefix}-{cluster.name}", platform=plan, plan=region, cluster=cluster,
                    network=network, storage=storage, pulls_from=workload and workload.image.repository_arn,
                )  # fmt: skip
        scope.node.add_validation(Guards(scope))
        for key, value in plan.all_tags.items():
            Tags.of(scope).add(key, value)
        acknowledge(scope)
