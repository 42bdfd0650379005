#!/usr/bin/env bash
# The shared file system is proven by a write that is read back, and EFA by Lustre's own counters. HyperPod mounts it;
# where it has not, this does. A mount that fell back to TCP works, slowly: it is told loudly, and the node goes on.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
[ "$settings_lustre" ] || exit 0

path=$settings_lustre_mount_path
source=$settings_lustre_dns_name@tcp:/$settings_lustre_mount_name
efa_up() { lnetctl net show --net efa 2>/dev/null | grep -q '@efa'; }
efa_wanted() { [ "$settings_lustre_efa" ] && [ "${node_efa_interfaces:-0}" -gt 0 ]; }

mounted() { [ "$(stat -f -c %T "$path" 2>/dev/null)" = lustre ] || mountpoint -q "$path"; }
mount_it() {
  getent ahostsv4 "$settings_lustre_dns_name" >/dev/null || {
    say "$settings_lustre_dns_name has no address: is DNS on in the VPC?"
    return 1
  }
  mkdir -p "$path" && mount -t lustre -o relatime,flock "$source" "$path"
}
folder=$path/.trainshed
# With root squash root is nobody: what it may not write, it can still list.
squashed() {
  [[ $({ mkdir -p "$folder" && : >"$folder/.root"; } 2>&1) == *'Permission denied'* ]] && ls "$path" >/dev/null
}
# 8 MiB: several bulk transfers, which is what EFA carries.
probe() {
  local sum
  mkdir -p "$folder" && sum=$(head -c 8388608 /dev/urandom | tee "$1" | sha256sum) || return
  sync "$1" && { dd if="$1" iflag=direct bs=4M status=none 2>/dev/null || cat "$1"; } | sha256sum | grep -q "^${sum%% *}"
}
sent() { lnetctl net show --net efa -v 2>/dev/null | awk '/send_count/ { n += $2 } END { print n + 0 }'; }

# AWS's own set-up of Lustre over EFA, from the mirror; it has to come before the mount.
efa_client=$(ls "$home"/programs/*/configure-efa-fsx-lustre-client/setup.sh 2>/dev/null || true)
if efa_wanted && ! efa_up && [ "$efa_client" ]; then
  ! mounted || umount "$path" || say "$path is busy and stays on TCP"
  bash "$efa_client" || say "Lustre could not be set up for EFA"
fi
if ! mounted; then
  retry mount_it || stop "$source is not mounted at $path: see docs/runbooks/lustre.md"
  grep -q "^$source " /etc/fstab ||
    echo "$source $path lustre relatime,flock,_netdev,x-systemd.automount,x-systemd.requires=network.target 0 0" >>/etc/fstab
fi
if squashed; then
  say "$path: listed; root may not write there (root squash), so nothing more is proven"
  exit 0
fi
file=$folder/probe-$(hostname)
before=$(sent)
retry probe "$file" || stop "$path is mounted but a file written there cannot be read back: see docs/runbooks/lustre.md"
after=$(sent)
rm -f "$file"
tcp=0
if efa_wanted && { ! efa_up || [ "$after" -le "$before" ]; }; then
  tcp=1
  say "WARNING: $path goes over TCP although the file system serves EFA: see docs/runbooks/lustre.md"
fi
gauge trainshed_lustre_on_tcp "$tcp"
say "$path: written and read back$([ "$tcp" = 1 ] || ! efa_wanted || echo " over EFA")"
