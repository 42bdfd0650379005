#!/usr/bin/env bash
# Shared homes over NFS. HyperPod mounts them; where it has not, this does.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
[ "$settings_home" ] || exit 0

mount_it() {
  mkdir -p "$settings_home_mount_path"
  mount -t nfs -o nfsvers=4.2,rsize=1048576,wsize=1048576,hard,timeo=600,nconnect=16 \
    "$settings_home_dns_name:/fsx" "$settings_home_mount_path"
}
if ! mountpoint -q "$settings_home_mount_path"; then
  retry mount_it || stop "$settings_home_dns_name is not mounted at $settings_home_mount_path"
fi
file=$settings_home_mount_path/.trainshed-$(hostname)
{ echo "$$" >"$file" && grep -qx "$$" "$file"; } || stop "$settings_home_mount_path cannot be written"
rm -f "$file"
