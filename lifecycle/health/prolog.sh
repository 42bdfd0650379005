#!/usr/bin/env bash
# Slurm's Prolog, as root: a cache folder for the job's user, and which job has which GPU. Any other end than 0 would
# drain the node and hold the job, so what cannot be done is left.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
exec </dev/null >/dev/null 2>&1

scratch=$(timeout 5 python3 -c 'import json; print(json.load(open("/opt/trainshed/node.json")).get("scratch") or "")')
if [ "$scratch" ] && timeout 5 mountpoint -q "$scratch"; then
  # Everybody may write there: what is there already is left, and a link is not followed.
  cache=$scratch/cache/$SLURM_JOB_USER
  timeout 5 mkdir -m 700 "$cache" && chown -h "$SLURM_JOB_UID:$SLURM_JOB_GID" "$cache"
fi
# DCGM exporter's --hpc-job-mapping-dir: a file for each GPU, with the job in it.
if [ -d /var/lib/trainshed/metrics ] && [ "${SLURM_JOB_GPUS:-}" ] && mkdir -p /run/trainshed/gpu-jobs; then
  for gpu in ${SLURM_JOB_GPUS//,/ }; do
    echo "$SLURM_JOB_ID" >"/run/trainshed/gpu-jobs/$gpu"
  done
fi
exit 0
