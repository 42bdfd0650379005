#!/usr/bin/env bash
# Entry point on every node: HyperPod runs it after its own Slurm set-up, at creation, at replacement and after an
# AMI update, in an environment that may be empty.
set -euo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TZ=UTC
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
log=${TRAINSHED_LOG:-/var/log/provision/provisioning.log}
home=/opt/trainshed
mkdir -p "$(dirname "$log")" "$home" /var/lib/trainshed/metrics
exec > >(tee -a "$log") 2>&1

say() { printf '%(%FT%TZ)T trainshed: %s\n' -1 "$*"; }
stop() {
  say "FAILED: $*; this node stops here"
  exit 1
}

told=$(python3 "$here/settings.py" "$here/settings.json" \
  "${SAGEMAKER_RESOURCE_CONFIG_PATH:-/opt/ml/config/resource_config.json}" 2>&1) ||
  stop "settings could not be read: $told"
say "node settings: ${told%%$'\n'*}"

# /tmp, where HyperPod puts the scripts, is emptied at reboot, and S3 keeps no modes.
if [ "$here" != "$home/lifecycle" ]; then
  rm -rf "$home/lifecycle.new"
  cp -r "$here" "$home/lifecycle.new"
  find "$home/lifecycle.new" -type f \( -name '*.sh' -o -path '*/bin/*' -o -path '*/health/*.py' \) -exec chmod 755 {} +
  rm -rf "$home/lifecycle"
  mv "$home/lifecycle.new" "$home/lifecycle"
fi
install -m 644 "$here/settings.json" "$home/settings.json"
printf '%s\n' "${told%%$'\n'*}" >"$home/node.json"
printf '%s\n' "${told#*$'\n'}" >"$home/settings.sh"
# shellcheck source=/dev/null
. "$home/settings.sh"

hooks() {
  local hook
  for hook in "$home/lifecycle/site/$1"/*.sh; do
    [ -e "$hook" ] || continue
    say "$1/${hook##*/}"
    bash "$hook" || stop "$1/${hook##*/} ended with $?: mend it in the site folder, or let it end with 0"
  done
}

hooks pre.d
# shellcheck source=lifecycle/secrets.sh
. "$home/lifecycle/secrets.sh"
# A node goes on without an optional step, and says so in a metric.
failed='' states=''
for step in clock:optional scratch:optional home:required certificates:required packages:optional \
  lustre:required users:required containers:optional slurm:required metrics:optional collector:optional \
  logs:optional; do
  name=${step%:*} began=$SECONDS state=0
  [ ! "${asked[$name]:-}" ] || wait "${asked[$name]}" || true
  if TRAINSHED_SECRET=$secrets/$name bash "$home/lifecycle/steps/$name.sh"; then
    say "$name: done, $((SECONDS - began)) s"
  elif [ "${step#*:}" = required ]; then
    stop "$name is required, see the lines above"
  else
    say "$name: FAILED, and the node goes on without it"
    failed+=" $name" state=1
  fi
  states+="trainshed_step_failed{step=\"$name\"} $state"$'\n'
done
hooks post.d
printf '# TYPE trainshed_step_failed gauge\n%s' "$states" >/var/lib/trainshed/metrics/steps.new
mv /var/lib/trainshed/metrics/steps.new /var/lib/trainshed/metrics/steps.prom
say "done in $SECONDS s${failed:+, without:$failed}"
