#!/usr/bin/env bash
# POSIX users, the same on every node: from site/users.csv, or from a directory through sssd.
# users.csv: name,uid[,SSH public key]; a header, comments, blank lines and Windows line ends are fine.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

if [ "$settings_nodes_ldap" ]; then
  command -v sssd >/dev/null || stop "sssd is not there: put its packages into the site folder's packages/, or into the AMI"
  password=
  [ -z "$settings_nodes_ldap_bind_secret_arn" ] || password=$(read_secret "$settings_nodes_ldap_bind_secret_arn")
  {
    printf '[sssd]\nservices = nss, pam, ssh\ndomains = site\n[domain/site]\nid_provider = ldap\n'
    printf 'ldap_uri = %s\nldap_search_base = %s\n' "$settings_nodes_ldap_uri" "$settings_nodes_ldap_base"
    printf 'ldap_tls_cacert = /etc/ssl/certs/ca-certificates.crt\nldap_tls_reqcert = demand\n'
    printf 'cache_credentials = true\noverride_homedir = %s/%%u\ndefault_shell = /bin/bash\n' "${settings_home_mount_path:-/home}"
    [ -z "$settings_nodes_ldap_bind_dn" ] || printf 'ldap_default_bind_dn = %s\nldap_default_authtok = %s\n' \
      "$settings_nodes_ldap_bind_dn" "$password"
  } | place 600 /etc/sssd/sssd.conf
  # Whoever logs in for the first time gets a home.
  [ -z "$changed" ] || pam-auth-update --enable mkhomedir
  run_unit sssd
fi

file=$lifecycle/site/users.csv
[ -s "$file" ] || exit 0
homes=${settings_home_mount_path:-/home}
while IFS=, read -r name uid key || [ "$name" ]; do
  name=${name// /} uid=${uid// /} key=${key# }
  case $name in '' | '#'* | name) continue ;; esac
  [[ $name =~ ^[a-z_][a-z0-9_-]{0,31}$ && $uid =~ ^[0-9]+$ ]] || stop "users.csv: $name,$uid is not name,uid"
  owner=$(getent passwd "$uid" | cut -d: -f1 || true)
  [ -z "$owner" ] || [ "$owner" = "$name" ] || stop "users.csv: uid $uid of $name belongs to $owner on this node"
  if ! id "$name" >/dev/null 2>&1; then
    groupadd --gid "$uid" "$name"
    useradd --uid "$uid" --gid "$uid" --shell /bin/bash --home-dir "$homes/$name" --no-create-home "$name"
  fi
  [ "$(id -u "$name")" = "$uid" ] || stop "users.csv: $name has uid $(id -u "$name") on this node, not $uid"
  # Root may be nobody on a shared file system: what is not there already, the user makes.
  folder() { [ -d "$1" ] || install -d -m "$2" -o "$uid" -g "$uid" "$1" || say "$1 could not be made: make it once by hand"; }
  folder "$homes/$name" 750
  [ -z "$settings_lustre" ] || folder "$settings_lustre_mount_path/$name" 750
  if [ "$key" ]; then
    folder "$homes/$name/.ssh" 700
    keys=$homes/$name/.ssh/authorized_keys
    grep -qxF "$key" "$keys" 2>/dev/null || setpriv --reuid "$uid" --regid "$uid" --clear-groups tee -a "$keys" <<<"$key" >/dev/null
  fi
done < <(tr -d '\r' <"$file" | sed '1s/^\xef\xbb\xbf//')
