#!/usr/bin/env bash
# Sourced by the entry: the AWS CLI takes a second to start, so it fetches secrets while other steps run. Each lies in
# memory until its step has read it, or the entry ends. When the CLI fails, the step asks again and says why.
set -euo pipefail

secrets=/run/trainshed/secrets
trap 'rm -rf "$secrets"' EXIT
rm -rf "$secrets" && install -d -m 700 "$secrets"
declare -A asked
for wanted in "certificates $settings_nodes_certificates_secret_arn" \
  "users ${settings_nodes_ldap_bind_secret_arn:-}" "collector ${settings_nodes_metrics_secret_arn:-}"; do
  [ "${wanted#* }" ] || continue
  {
    text=$(HOME=/root aws secretsmanager get-secret-value --region "$settings_region" --secret-id "${wanted#* }" \
      --output text --query SecretString) && umask 077 && printf '%s\n' "$text" >"$secrets/${wanted% *}"
  } >/dev/null 2>&1 &
  # shellcheck disable=SC2034 # the entry waits for it
  asked[${wanted% *}]=$!
done
