"""The CDK app: context → deployment file → plan → platform. The only reader of context."""

from __future__ import annotations

import sys
from pathlib import Path

import aws_cdk as cdk

from stacks.platform import Platform
from trainshed.loading import load, require_locked
from trainshed.planning.problems import PlanError

ROOT = Path(__file__).parent
DEFAULT = "deployments/quickstart.yaml"


def build(app: cdk.App) -> Platform:
    """Read context, plan, and fill the app.

    Raises:
        PlanError: the deployment file, or a context flag, is wrong.
    """
    given = {key: app.node.try_get_context(key) for key in ("deployment", "regions", "set")}
    path = Path(given["deployment"] or DEFAULT)
    loaded = load(
        path if path.exists() or path.is_absolute() else ROOT / path,
        regions=given["regions"],
        overrides=[given["set"]] if given["set"] else [],
    )
    unlocked = require_locked(loaded)
    platform = Platform(app, "Platform", plan=loaded.plan)
    for region in unlocked:
        # On a stack, because CDK looks for the stack of each annotation and reports when there is none.
        cdk.Annotations.of(platform.networks[region]).add_warning_v2(
            "trainshed:unlocked",
            f"addresses of {region} are not locked: run `trainshed plan --lock` before the first deploy",
        )
    return platform


if __name__ == "__main__":
    app = cdk.App()
    try:
        build(app)
    except PlanError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    try:
        app.synth()
    except RuntimeError as error:
        # CDK has printed each finding by then; what it raises is its own stack trace.
        if "ValidationFailed" not in str(error):
            raise
        sys.exit(1)
