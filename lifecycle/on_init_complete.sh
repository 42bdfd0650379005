#!/usr/bin/env bash
# Entry point on every node: HyperPod runs it after its own Slurm set-up, at creation and at replacement.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
log=${TRAINSHED_LOG:-/var/log/provision/provisioning.log}
mkdir -p "$(dirname "$log")"
exec > >(tee -a "$log") 2>&1

say() { printf '%s trainshed: %s\n' "$(date -u +%FT%TZ)" "$*"; }

resource_config=${SAGEMAKER_RESOURCE_CONFIG_PATH:-/opt/ml/config/resource_config.json}
if ! facts=$(python3 "$here/settings.py" "$here/settings.json" "$resource_config"); then
  say "FAILED: settings could not be read; this node stops here"
  exit 1
fi
say "node settings: $facts"
say "done"
