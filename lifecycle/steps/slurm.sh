#!/usr/bin/env bash
# What this platform adds to HyperPod's slurm.conf: a health check, prolog and epilog, and state that outlives the
# controller's root volume, which an AMI update empties.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

# shellcheck disable=SC2016 # for the shells that read it
echo 'export PATH=$PATH:/opt/trainshed/lifecycle/bin' | place 644 /etc/profile.d/trainshed.sh
changed=
# A controller's daemon started by mistake on a worker overwrites what slurmd fetched, and the reverse.
wrong=slurmctld
[ "$node_role" != controller ] || wrong=slurmd
[ "$(systemctl is-enabled "$wrong" 2>/dev/null || true)" = masked ] || systemctl --quiet mask --now "$wrong"
# A login node takes no jobs, from now on and not after the first interval.
[ "$node_role" != login ] || "$home/lifecycle/health/check.py"
[ "$node_role" = controller ] || exit 0

conf=/opt/slurm/etc
[ -d "$conf" ] || conf=/etc/slurm
answers() { scontrol ping | grep -q UP; }
retry answers || stop "slurmctld does not answer: see /var/log/slurm/slurmctld.log"
config() { scontrol show config | awk -v name="$1" '$1 == name { print $3 }'; }

state=${settings_lustre_mount_path:-${settings_home_mount_path:-}}/.trainshed/slurm-$settings_cluster
user=$(config SlurmUser)
user=${user%(*}
owned() { [ "$(stat -c %U "$state")" = "$user" ] || { mkdir -p "$state" && chown "$user" "$state" && chmod 700 "$state"; }; }
if [[ $state == /.trainshed/* ]] || ! owned 2>/dev/null; then
  say "WARNING: $state cannot be made for $user: the queue is lost with the controller's root volume (docs/runbooks/update-software.md)"
  state=
fi

# Globs: a node that has not come this far yet has no such file, and takes jobs all the same.
printf '%s\n' "Prolog=$home/lifecycle/health/prolog*.sh" "Epilog=$home/lifecycle/health/epilog*.sh" \
  "HealthCheckProgram=$home/lifecycle/health/check.py" HealthCheckInterval=60 HealthCheckNodeState=ANY,CYCLE \
  ${state:+"StateSaveLocation=$state"} | place 644 "$conf/trainshed.conf"
if ! grep -q '^include .*trainshed.conf' "$conf/slurm.conf"; then
  [ -z "$(tail -c 1 "$conf/slurm.conf")" ] || echo >>"$conf/slurm.conf"
  echo "include trainshed.conf" >>"$conf/slurm.conf"
  changed=yes
fi
if [ "$changed" ]; then
  old=$(config StateSaveLocation)
  systemctl stop slurmctld
  if [ "$state" ]; then
    [ "$(ls -A "$state")" ] || cp -a "$old/." "$state/"
    printf '[Unit]\nRequiresMountsFor=%s\n' "${state%/.trainshed/*}" |
      place 644 /etc/systemd/system/slurmctld.service.d/trainshed.conf
    systemctl daemon-reload
  fi
  systemctl start slurmctld
  retry answers || stop "slurmctld does not come back: see /var/log/slurm/slurmctld.log"
  scontrol reconfigure
fi
# HyperPod writes slurm.conf anew when groups change.
printf '[Path]\nPathChanged=%s/slurm.conf\n[Install]\nWantedBy=multi-user.target\n' "$conf" |
  place 644 /etc/systemd/system/trainshed-slurm.path
printf '[Service]\nType=oneshot\nExecStart=/bin/bash %s/lifecycle/steps/slurm.sh\n' "$home" |
  place 644 /etc/systemd/system/trainshed-slurm.service
run_unit trainshed-slurm.path
