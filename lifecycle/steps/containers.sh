#!/usr/bin/env bash
# Docker, Enroot and Pyxis come with HyperPod's own set-up: here their layers move to the local disks, and the
# packages on which containers and GPUs depend together are held at the versions the AMI was tested with.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
[ "$settings_nodes_containers" ] || exit 0

held=$(dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' 'nvidia-container-toolkit*' 'libnvidia-container*' \
  'containerd*' 'docker-ce*' 'enroot*' 2>/dev/null | sed -n 's/^.i //p')
# shellcheck disable=SC2086 # one word a package
[ -z "$held" ] || retry apt-mark hold $held >/dev/null
place_of=${node_scratch:-}
if [ "$place_of" ] && mountpoint -q "$place_of"; then
  if command -v dockerd >/dev/null; then
    python3 "$lifecycle/render.py" merge /etc/docker/daemon.json "{\"data-root\": \"$place_of/docker\"}" |
      place 644 /etc/docker/daemon.json
    run_unit docker
  fi
  if command -v enroot >/dev/null; then
    # Each user's own folders, as one user's images are no other's.
    printf '%s\n' "ENROOT_RUNTIME_PATH /run/enroot/user-\$(id -u)" "ENROOT_CACHE_PATH $place_of/enroot/cache-\$(id -u)" \
      "ENROOT_DATA_PATH $place_of/enroot/data-\$(id -u)" "ENROOT_TEMP_PATH $place_of/enroot" |
      place 644 /etc/enroot/enroot.conf
    install -d -m 1777 "$place_of/enroot" /run/enroot
    echo 'd /run/enroot 1777 root root' | place 644 /etc/tmpfiles.d/trainshed-enroot.conf
  fi
fi
command -v dockerd >/dev/null || command -v enroot >/dev/null ||
  stop "neither docker nor enroot is there: set nodes.containers to false, or use an AMI that has them"
