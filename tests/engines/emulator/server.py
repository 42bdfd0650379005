"""Runs ministack with our handlers: `python -m tests.engines.emulator.server --port N --state DIR`.

Started by `client`, in the environment of `requirements/emulator.txt`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from importlib import metadata
from pathlib import Path

PINNED = "1.5.33"
"""The version of ministack whose private functions the emulator replaces."""

_TABLE = Path(__file__).parents[3] / "constructs/trainshed/planning/instances.py"


def main() -> None:
    """Check, patch, serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--state", type=Path, required=True, help="folder of inventory.json and faults.json")
    parser.add_argument("--region", default="us-east-1", help="region of requests that name none")
    parser.add_argument("--tables", type=Path, default=_TABLE, help="the product's instance table")
    parser.add_argument(
        "--order", type=int, help="create resources in a random legal order drawn from this seed"
    )
    options = parser.parse_args()
    os.environ |= {
        "GATEWAY_PORT": str(options.port),
        "BIND_HOST": "127.0.0.1",
        "MINISTACK_REGION": options.region,
        "AWS_ENDPOINT_URL": f"http://localhost:{options.port}",
    }
    _check_version()
    # ministack reads the environment when it is imported, so none of it may be imported earlier.
    registry = importlib.import_module(f"{__package__}.registry")
    registry.install(options.state, options.tables, options.order)
    sys.argv = sys.argv[:1]
    importlib.import_module("ministack.app").main()


def _check_version() -> None:
    found = metadata.version("ministack")
    if found != PINNED:
        sys.exit(
            f"emulator: ministack {found} is installed, {PINNED} is required (requirements/emulator.txt)"
        )
    provisioners = importlib.import_module("ministack.services.cloudformation.provisioners")
    if not hasattr(provisioners, "_RESOURCE_HANDLERS"):
        sys.exit(f"emulator: ministack {found} has no provisioners._RESOURCE_HANDLERS")


if __name__ == "__main__":
    main()
