#!/usr/bin/env bash
# The firm's own certificate authorities, trusted by the system, Python, conda, git, the AWS CLI and containers.
# From the site folder and a secret; a certificate that is no longer in either is dropped, so rotation is a re-run.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

trusted=/usr/local/share/ca-certificates/trainshed
bundle=/etc/ssl/certs/ca-certificates.crt
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT

# update-ca-certificates takes one certificate a file.
split() { awk -v into="$new/$1" '{ sub(/\r$/, "") } /BEGIN CERT/ { n++ } n { print > (into "-" n ".crt") }'; }

for name in "${settings_nodes_certificates_files[@]}"; do
  file=$lifecycle/site/certificates/$name
  [ -s "$file" ] || stop "certificate $name is not in the site folder on this node; deploy the cluster stack again"
  split "${name%.*}" <"$file"
done
if [ "$settings_nodes_certificates_secret_arn" ]; then
  secret=$(read_secret "$settings_nodes_certificates_secret_arn") || exit 1
  split secret <<<"$secret"
fi
for file in "$new"/*.crt; do
  [ -e "$file" ] || break
  told=$(openssl x509 -noout -checkend 0 -in "$file" 2>/dev/null) || [ "$told" ] || stop "certificate ${file##*/} is not PEM"
  [[ $told != *'will expire'* ]] || say "certificate ${file##*/} has expired"
done
mkdir -p "$trusted"
if ! diff -rq "$new" "$trusted" >/dev/null; then
  rm -rf "$trusted" && cp -r "$new" "$trusted" && chmod 755 "$trusted"
  update-ca-certificates --fresh >/dev/null
  changed=yes
fi
[ -n "$(ls "$new")" ] || exit 0

variables='SSL_CERT_FILE REQUESTS_CA_BUNDLE CURL_CA_BUNDLE AWS_CA_BUNDLE PIP_CERT GIT_SSL_CAINFO NODE_EXTRA_CA_CERTS'
for name in $variables CONDA_SSL_VERIFY; do echo "export $name=$bundle"; done | place 644 /etc/profile.d/trainshed-ca.sh
if [ -d /etc/enroot ]; then
  echo "$bundle $bundle none x-create=file,bind,ro,nofail" | place 644 /etc/enroot/mounts.d/60-trainshed-ca.fstab
  for name in $variables; do echo "$name=$bundle"; done | place 644 /etc/enroot/environ.d/60-trainshed-ca.env
fi
if [ "$changed" ] && systemctl --quiet is-active docker; then systemctl restart docker; fi
say "trusted: $(find "$trusted" -name '*.crt' | wc -l) certificates of the firm's own"
