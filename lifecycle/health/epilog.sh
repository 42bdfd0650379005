#!/usr/bin/env bash
# Slurm's Epilog, as root: what the job has left behind. It asks Slurm nothing, as a thousand nodes would ask at once,
# and ends with 0, as anything else drains the node.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
exec </dev/null >/dev/null 2>&1

grep -lx "$SLURM_JOB_ID" /run/trainshed/gpu-jobs/* | xargs -r rm -f
[ "${SLURM_JOB_UID:-0}" -ge 1000 ] || exit 0
# Tasks are children of their step's slurmstepd. A step that is not plainly this job's counts as another's.
for step in $(pgrep -x slurmstepd); do
  if ! tr '\0' ' ' <"/proc/$step/cmdline" | grep -q "\[$SLURM_JOB_ID\."; then
    ! pgrep -P "$step" -U "$SLURM_JOB_UID" || exit 0
  fi
done
# Processes in containers with their own process ids are somebody else's business.
pkill -KILL -U "$SLURM_JOB_UID" --ns $$ --nslist pid
timeout 30 setpriv --reuid "$SLURM_JOB_UID" --regid "$SLURM_JOB_GID" --clear-groups \
  find /dev/shm -mindepth 1 -maxdepth 1 -user "$SLURM_JOB_UID" -exec rm -rf -- {} +
exit 0
