"""When and how the AMI of an instance group is updated, as CloudFormation says it."""

from __future__ import annotations

from aws_cdk import aws_sagemaker as sagemaker

from .planning.model import Patching, RollingUpdate

_cfn = sagemaker.CfnCluster


def scheduled_update(plan: Patching | None) -> sagemaker.CfnCluster.ScheduledUpdateConfigProperty | None:
    """Updates at times that somebody chose."""
    if plan is None or plan.schedule is None:
        return None
    return _cfn.ScheduledUpdateConfigProperty(
        schedule_expression=plan.schedule, deployment_config=_deployment(plan.rolling)
    )


def auto_patch(plan: Patching | None) -> sagemaker.CfnCluster.AutoPatchConfigProperty | None:
    """Updates when nodes are idle."""
    if plan is None or plan.schedule is not None:
        return None
    return _cfn.AutoPatchConfigProperty(
        patching_strategy=plan.strategy or "WhenIdle", deployment_config=_deployment(plan.rolling)
    )


def _deployment(plan: RollingUpdate | None) -> sagemaker.CfnCluster.DeploymentConfigProperty | None:
    if plan is None:
        return None
    size = _cfn.CapacitySizeConfigProperty(
        type="CAPACITY_PERCENTAGE" if plan.batch_is_percent else "INSTANCE_COUNT", value=plan.batch
    )
    return _cfn.DeploymentConfigProperty(
        rolling_update_policy=_cfn.RollingUpdatePolicyProperty(maximum_batch_size=size),
        wait_interval_in_seconds=plan.wait_seconds,
        auto_rollback_configuration=[_cfn.AlarmDetailsProperty(alarm_name=a) for a in plan.rollback_alarms]
        or None,
    )
