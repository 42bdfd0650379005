#!/usr/bin/env bash
# Programs the AMI lacks, from the platform's own bucket by digest (`trainshed mirror` puts them there), and the
# site's own packages. Nothing comes from the internet.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

programs=$home/programs
mkdir -p "$programs"
# name file sha256, one a line, of this machine's architecture
manifest=$lifecycle/mirror.json
[ ! -e "$lifecycle/site/mirror.json" ] || manifest=$lifecycle/site/mirror.json
list=$(python3 "$lifecycle/render.py" packages "$manifest" "$home/node.json" "$(uname -m)") ||
  stop "what to install is unknown, see above"
missing=0
while read -r name file sha256; do
  [ "$name" ] || continue
  here=$programs/$sha256
  if [ ! -e "$here/.done" ]; then
    rm -rf "$here" && mkdir "$here"
    key=mirror/$sha256/$file
    if ! retry aws s3 cp --only-show-errors --region "$settings_region" \
      "s3://$settings_buckets_lifecycle/$key" "$here/$file"; then
      say "$name is not in s3://$settings_buckets_lifecycle/$key: run \`trainshed mirror\`"
      missing=1
      continue
    fi
    echo "$sha256  $here/$file" | sha256sum --check --status || stop "$name: $file is not what was pinned"
    case $file in
    *.deb) locked_apt install "$here/$file" ;;
    *.zip) python3 -m zipfile -e "$here/$file" "$here" ;;
    *) tar -xf "$here/$file" -C "$here" --strip-components 1 && rm "$here/$file" ;;
    esac
    touch "$here/.done"
  fi
  find "$here" -maxdepth 1 -type f -perm /1 -exec ln -sfn -t /usr/local/bin {} +
done <<<"$list"
shopt -s nullglob
debs=("$lifecycle"/site/packages/*.deb)
if [ ${#debs[@]} -gt 0 ]; then
  sums=$(cat "${debs[@]}" | sha256sum)
  if [ "$sums" != "$(cat "$programs/site.sum" 2>/dev/null)" ]; then
    locked_apt install "${debs[@]}"
    place 644 "$programs/site.sum" <<<"$sums"
  fi
fi
exit "$missing"
