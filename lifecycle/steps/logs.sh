#!/usr/bin/env bash
# Slurm's and this platform's logs to CloudWatch, or to the firm's own syslog over TLS. HyperPod itself ships the log
# of provisioning.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
[ "$settings_nodes_logs" ] || exit 0

logs='/var/log/slurm/*.log /var/log/trainshed/*.log /var/log/provision/provisioning.log'
mkdir -p /var/log/trainshed
case $settings_nodes_logs_to in
cloudwatch)
  control=/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl
  [ -x "$control" ] || stop "the CloudWatch agent is not there: run \`trainshed mirror\`, or use an AMI that has it"
  config=/etc/trainshed/cloudwatch.json
  python3 "$lifecycle/render.py" cloudwatch "$settings_nodes_logs_group" "$(hostname)" "$logs" | place 644 "$config"
  [ -z "$changed" ] || "$control" -a fetch-config -m auto -s -c "file:$config"
  ;;
syslog)
  command -v rsyslogd >/dev/null || stop "rsyslog is not there: put its packages into the site folder's packages/"
  {
    echo 'module(load="imfile")'
    echo 'global(defaultNetstreamDriverCAFile="/etc/ssl/certs/ca-certificates.crt")'
    for file in $logs; do
      tag=${file#/var/log/}
      echo "input(type=\"imfile\" File=\"$file\" Tag=\"${tag%%/*}:\" ruleset=\"trainshed\" addMetadata=\"on\")"
    done
    echo 'ruleset(name="trainshed" queue.type="LinkedList" queue.filename="trainshed" queue.maxDiskSpace="1g" queue.saveOnShutdown="on") {'
    echo "  action(type=\"omfwd\" target=\"$settings_nodes_logs_host\" port=\"$settings_nodes_logs_port\" protocol=\"tcp\""
    [ -z "$settings_nodes_logs_tls" ] || echo '    StreamDriver="gtls" StreamDriverMode="1" StreamDriverAuthMode="x509/name"'
    echo '    template="RSYSLOG_SyslogProtocol23Format" action.resumeRetryCount="-1") }'
  } | place 644 /etc/rsyslog.d/60-trainshed.conf
  rsyslogd -N1 2>&1 | grep -i error && stop "rsyslog refuses /etc/rsyslog.d/60-trainshed.conf, see above"
  run_unit rsyslog
  ;;
esac
