#!/usr/bin/env bash
# What every step begins with: its settings, the log, and calls that wait and try again.
# Nothing is taken from the caller's environment: HyperPod, systemd and an engineer's shell each have another.
set -euo pipefail
shopt -s lastpipe # `… | place` must be able to set `changed`
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin
export HOME=/root LC_ALL=C.UTF-8 TZ=UTC DEBIAN_FRONTEND=noninteractive
lifecycle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=/opt/trainshed
metrics=/var/lib/trainshed/metrics
changed=

# On standard error: what a command substitution catches is a value.
say() { printf '%(%FT%TZ)T trainshed: %s\n' -1 "$*" >&2; }

# `stop WHY WHAT_TO_DO`: one line, and the step is over.
stop() {
  say "FAILED: $*"
  exit 1
}

# What nobody foresaw is named, too.
trap 'say "FAILED: ${BASH_SOURCE[0]##*/} line $LINENO: $BASH_COMMAND"' ERR

# Five tries, 2, 4, 8 and 16 seconds apart.
retry() {
  local wait
  for wait in 2 4 8 16; do
    "$@" && return
    say "failed, again in $wait s: $*"
    sleep "$wait"
  done
  "$@"
}

# Boot-time services hold dpkg's lock for minutes; what an administrator holds back stays back.
locked_apt() { retry apt-get -y -qq -o DPkg::Lock::Timeout=600 "$@"; }

# `read_secret ARN`: its text, once from the file into which the entry has fetched it.
read_secret() {
  [ ! -s "${TRAINSHED_SECRET:-}" ] || { cat "$TRAINSHED_SECRET" && rm "$TRAINSHED_SECRET" && return; }
  retry aws secretsmanager get-secret-value --region "$settings_region" --secret-id "$1" --output text \
    --query SecretString || stop "secret $1 cannot be read: it needs the node role's permission and a way out"
}

# `place MODE FILE < text`: the file whole or not at all; `changed` is set when it was not so before.
place() {
  local text old=
  IFS= read -rd '' text || true
  [ ! -e "$2" ] || IFS= read -rd '' old <"$2" || true
  [ "$text" != "$old" ] || return 0
  # One name, so that what was interrupted is overwritten and not left.
  printf '%s' "$text" | install -D -m "$1" /dev/stdin "$2.new"
  mv "$2.new" "$2"
  changed=yes
}

# A unit that runs what it is told now: restarted only where its files are new or it does not run.
run_unit() {
  [ "$changed" ] || [ "$(systemctl show --value -p UnitFileState -p ActiveState "$1")" != $'active\nenabled' ] || return 0
  [ -z "$changed" ] || systemctl daemon-reload
  systemctl --quiet is-enabled "$1" || systemctl --quiet enable "$1"
  if [ "$changed" ]; then systemctl restart "$1"; else systemctl start "$1"; fi
}

# `service NAME COMMAND USER`: a daemon of this platform.
service() {
  printf '[Unit]\nAfter=network-online.target\n[Service]\nUser=%s\nRestart=always\nRestartSec=10\nExecStart=%s\n%s\n' \
    "$3" "$2" $'[Install]\nWantedBy=multi-user.target' | place 644 "/etc/systemd/system/trainshed-$1.service"
  run_unit "trainshed-$1"
}

# `gauge NAME VALUE [LABELS]`: one value for node exporter's textfile collector.
gauge() { printf '# TYPE %s gauge\n%s%s %s\n' "$1" "$1" "${3:+{$3\}}" "$2" | place 644 "$metrics/$1.prom"; }

# $settings_… and $node_…: docs/contracts.md. What is null is empty; a section that is there is `yes`.
[ -r "$home/settings.sh" ] || stop "$home/settings.sh is not there: run $lifecycle/on_init_complete.sh"
# shellcheck source=/dev/null
. "$home/settings.sh"
