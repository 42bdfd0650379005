"""Slurm as HyperPod's own API configures it: no provisioning_parameters.json, no hand-made slurm.conf."""

from __future__ import annotations

from aws_cdk import aws_sagemaker as sagemaker

from .planning.model import AccountingDatabase, InstanceGroupPlan

_NODE_TYPES = {"controller": "Controller", "login": "Login", "worker": "Compute"}


class SlurmOrchestrator:
    """Renders the Slurm parts of a cluster.

    Args:
        accounting: an external database for slurmdbd; without it HyperPod runs its own on the
            controller, which an update of the AMI wipes.
    """

    # HyperPod starts Slurm itself and runs our script afterwards; `OnCreate` would make us start it.
    lifecycle_hook = "on_init_complete"

    def __init__(self, *, accounting: AccountingDatabase | None = None) -> None:
        self._accounting = accounting

    def orchestrator(self) -> sagemaker.CfnCluster.OrchestratorProperty:
        """The cluster's orchestrator. No config strategy: continuous provisioning refuses any."""
        prop = sagemaker.CfnCluster
        accounting = self._accounting
        return prop.OrchestratorProperty(
            slurm=prop.ClusterOrchestratorSlurmConfigProperty(
                accounting_database=accounting and prop.ClusterAccountingDatabaseProperty(
                    endpoint=accounting.endpoint, secret_arn=accounting.secret_arn, port=accounting.port,
                    name=accounting.database,
                )
            )
        )  # fmt: skip

    def group(self, plan: InstanceGroupPlan) -> sagemaker.CfnCluster.ClusterSlurmConfigProperty:
        """A group's part in Slurm; every node also joins the partition `dev`, HyperPod's own."""
        return sagemaker.CfnCluster.ClusterSlurmConfigProperty(
            node_type=_NODE_TYPES[plan.role], partition_names=[plan.partition] if plan.partition else None
        )
