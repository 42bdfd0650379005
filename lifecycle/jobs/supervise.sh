# shellcheck shell=bash
# Both jobs at each start: record what runs, start the ranks, and decide by how they ended what comes next.
set -uo pipefail
run=$(dirname "$(dirname "${BASH_SOURCE[0]}")") kind=$1 start=${SLURM_RESTART_COUNT:-0}
record=$run/record exits=$record/$kind.exits
command=() container=()
# shellcheck source=/dev/null
source "$record/$kind.env" # sets these two, and variables

say() { printf '%s trainshed: %s\n' "$(date -u +%FT%TZ)" "$*"; }
end() {
  say "$kind ended with $1: $2"
  exit "$1"
}

git -C "$run/src" diff --binary HEAD >"$record/$kind-$start.diff" || say "differences of src are not recorded"
cp "$run/recipe.yaml" "$record/$kind-$start.yaml"
say "$kind, start $start, job $SLURM_JOB_ID on $SLURM_JOB_NODELIST"

# Whoever starts again and again where it was before needs a person, not the next start.
step=$(sed -nE 's/^\[trainer\] (checkpoint|evaluation) step=([0-9]+) .*/\2/p' "$run/$kind.log" |
  sort -n | tail -1)
read -r last count 2>/dev/null <"$record/$kind.progress" || last='' count=0
[[ $last == "${step:-0}" ]] && count=$((count + 1)) || count=0
echo "${step:-0} $count" >"$record/$kind.progress"
((count < 5)) || end 1 "no progress beyond step ${step:-0} in $count starts; it is not requeued"

# Ranks go along the network's tree, so that neighbours share a switch; Slurm itself sorts hosts by name.
declare -A path=()
while read -r _ switch hosts; do
  for host in $(scontrol show hostnames "$hosts"); do path[$host]+=/$switch; done
done < <(scontrol show topology 2>/dev/null | sort -s -t= -k3,3rn | sed -nE \
  's/^(Switch|Block)Name=(\S+) .*(Level|BlockIndex)=[0-9]+ .*Nodes=(\S+).*/\1 \2 \4/p')
TRAINSHED_HOSTS=$(for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
  echo "${path[$host]:-} $host"
done | sort -s -V -t' ' -k1,1 | cut -d' ' -f2)
export TRAINSHED_HOSTS TRAINSHED_NODELIST=$SLURM_JOB_NODELIST

rm -rf "$exits" && mkdir "$exits"
options=(--kill-on-bad-exit=1 --distribution=block --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}")
options+=("${container[@]}")
if srun --help 2>/dev/null | grep -q auto-resume; then options+=(--auto-resume=1); fi # HyperPod's own plugin
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
stopped=''
trap 'stopped=1' TERM # who cancels or requeues the job sends it; ranks save meanwhile
srun "${options[@]}" bash "$record/task.sh" "$exits" "${command[@]}"
code=$?
codes=" $(cat "$exits"/* 2>/dev/null | sort -nu | tr '\n' ' ')"
[[ -z $stopped ]] || end "$code" "stopped from outside"
((code)) || end 0 "over"
case $codes in
*' 2 '*) end 2 "the input does not fit (see the error lines above); it is not requeued" ;;
*' 70 '*) end 70 "FATAL, a person must look (see the line above); it is not requeued" ;;
esac
say "$kind ended with $code (ranks:$codes); the job is requeued"
scontrol requeue "$SLURM_JOB_ID" || end "$code" "it cannot be requeued"
