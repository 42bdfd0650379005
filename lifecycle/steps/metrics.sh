#!/usr/bin/env bash
# Exporters on localhost: the machine with this platform's own figures, and its GPUs.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
[ "$settings_nodes_metrics" ] || exit 0

user=trainshed-metrics
id "$user" >/dev/null 2>&1 || useradd --system --no-create-home --shell /usr/sbin/nologin "$user"
printf '[Service]\nType=oneshot\nExecStart=%s/lifecycle/health/metrics.py\n' "$home" |
  place 644 /etc/systemd/system/trainshed-textfile.service
printf '[Timer]\nOnBootSec=5\nOnUnitActiveSec=15\nAccuracySec=1\n[Install]\nWantedBy=timers.target\n' |
  place 644 /etc/systemd/system/trainshed-textfile.timer
run_unit trainshed-textfile.timer
changed=
program=$(command -v node_exporter) || stop "node_exporter is not there: run \`trainshed mirror\`"
service node-exporter "$program --web.listen-address=127.0.0.1:9100 --collector.textfile.directory=$metrics \
--collector.filesystem.mount-points-exclude=^/(dev|proc|sys|run)($|/)" "$user"
[[ $node_gres == gpu:* ]] || exit 0
changed=
program=$(command -v dcgm-exporter) || stop "dcgm-exporter is not there: run \`trainshed mirror\`, or use an AMI that has it"
echo 'd /run/trainshed/gpu-jobs 755 root root' | place 644 /etc/tmpfiles.d/trainshed-gpu-jobs.conf
systemd-tmpfiles --create /etc/tmpfiles.d/trainshed-gpu-jobs.conf
# DCGM gives profiling fields to root alone. The prolog writes which job has which GPU.
service gpu-exporter "$program --address 127.0.0.1:9400 --hpc-job-mapping-dir /run/trainshed/gpu-jobs" root
