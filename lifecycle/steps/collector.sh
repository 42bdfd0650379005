#!/usr/bin/env bash
# One collector a node, which writes to AMP or to the firm's own Prometheus: no server on the controller to outgrow.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
[ "$settings_nodes_metrics" ] || exit 0

etc=/etc/trainshed/metrics
user=trainshed-metrics
program=$(command -v prometheus) || stop "prometheus is not there: run \`trainshed mirror\`"
install -d -m 750 -g "$user" "$etc"
install -d -m 750 -o "$user" /var/lib/trainshed/collector
exec {help}< <("$program" --help 2>&1) # meanwhile
secret='' auth=''
[ -z "$settings_nodes_metrics_secret_arn" ] || secret=$(read_secret "$settings_nodes_metrics_secret_arn")
pick() {
  python3 "$lifecycle/render.py" pick "$1" <<<"$secret" || stop "$settings_nodes_metrics_secret_arn must be JSON with $1"
}
keep() {
  local text
  text=$(pick "$1")
  place 640 "$etc/$1" <<<"$text"
  chgrp "$user" "$etc/$1"
}
case $settings_nodes_metrics_auth in
sigv4) auth="sigv4: {region: $settings_nodes_metrics_region}" ;;
basic)
  keep password
  name=$(pick username)
  auth="basic_auth: {username: '$name', password_file: $etc/password}"
  ;;
mtls)
  keep certificate
  keep key
  auth="tls_config: {cert_file: $etc/certificate, key_file: $etc/key}"
  ;;
esac
{
  echo "global: {scrape_interval: 15s, external_labels: {platform: $settings_platform, cluster: $settings_cluster, group: $node_group, instance_type: $node_instance_type, node: $(hostname)}}"
  echo "scrape_configs:"
  echo "- {job_name: node, static_configs: [{targets: ['127.0.0.1:9100']}]}"
  [[ $node_gres != gpu:* ]] || echo "- {job_name: gpu, static_configs: [{targets: ['127.0.0.1:9400']}]}"
  # trainshed-run's port, on the node of rank 0 while a job runs.
  [ "$node_role" != worker ] || echo "- {job_name: trainer, static_configs: [{targets: ['127.0.0.1:9464']}]}"
  echo "remote_write:"
  echo "- url: $settings_nodes_metrics_url"
  [ -z "$auth" ] || echo "  $auth"
} | place 640 "$etc/prometheus.yml"
chgrp "$user" "$etc/prometheus.yml"
promtool check config --agent "$etc/prometheus.yml" >/dev/null || stop "the collector's settings are wrong, see above"
# Prometheus 3 has a flag for what was a feature before.
agent=--agent
grep -q -- ' --agent ' <&"$help" || agent=--enable-feature=agent
service collector "$program $agent --config.file=$etc/prometheus.yml \
--storage.agent.path=/var/lib/trainshed/collector --web.listen-address=127.0.0.1:9090" "$user"
