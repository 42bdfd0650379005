#!/usr/bin/env bash
# Local disks for caches. The AMI mounts them at boot, sometimes after this has begun; it is never assumed.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
[ "$node_scratch" ] || exit 0

mounted() { mountpoint -q "$node_scratch"; }
retry mounted || stop "$node_scratch is not mounted: caches will lie on the root volume"
# As /tmp: everybody makes a folder of their own there (the prolog does it for a job's user).
install -d -m 1777 "$node_scratch/cache"
