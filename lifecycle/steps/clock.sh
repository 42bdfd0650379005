#!/usr/bin/env bash
# The node knows its own name, and the time: jobs, TLS and munge all fail on a wrong clock.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

name=$(hostname)
if ! getent ahostsv4 "$name" >/dev/null; then
  echo "$(ip -4 route get 169.254.169.254 | sed -n 's/.* src \([0-9.]*\).*/\1/p') $name" >>/etc/hosts
fi
if [ -d /etc/chrony ]; then
  printf 'server %s prefer iburst minpoll 4 maxpoll 4\n' "${settings_nodes_clock[@]}" |
    place 644 /etc/chrony/sources.d/trainshed.sources
  run_unit chrony
elif [ -e /lib/systemd/system/systemd-timesyncd.service ]; then
  printf '[Time]\nNTP=%s\n' "${settings_nodes_clock[*]}" | place 644 /etc/systemd/timesyncd.conf.d/trainshed.conf
  run_unit systemd-timesyncd
else
  stop "neither chrony nor systemd-timesyncd is there: put one of them into the image"
fi
