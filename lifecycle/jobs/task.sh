# shellcheck shell=bash
# One rank: Slurm's numbers under torchrun's names. Its exit code goes where the job finds it, as srun's is
# mixed with the signals that ended its peers.
exits=$1
shift
ranks=$((SLURM_STEP_NUM_TASKS / SLURM_STEP_NUM_NODES)) number=$SLURM_PROCID
first=${SLURM_STEP_NODELIST%%,*} # of ip-10-0-0-[3-5,9]
if [[ $first == *\[* ]]; then
  rest=${first#*\[}
  first=${first%%\[*}${rest%%[]-]*}
fi
# The job's order holds while the step has the job's hosts: auto-resume exchanges some of them.
if [[ $SLURM_STEP_NODELIST == "$TRAINSHED_NODELIST" ]]; then
  mapfile -t hosts <<<"$TRAINSHED_HOSTS"
  first=${hosts[0]}
  for node in "${!hosts[@]}"; do
    [[ ${hosts[node]} != "$SLURMD_NODENAME" ]] || number=$((node * ranks + SLURM_LOCALID))
  done
fi
export MASTER_ADDR=$first RANK=$number WORLD_SIZE=$SLURM_STEP_NUM_TASKS
export LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$ranks
trap : TERM USR1 # the trainer has them, too, and its exit code counts
"$@"
code=$?
((code == 0)) || echo "$code" >"$exits/$RANK"
if [[ $code == 2 || $code == 70 ]]; then # rank 0 says why, and the first rank that ends takes it along
  for ((wait = 0; wait < 60; wait++)); do
    [[ ! -e $exits/0 ]] || break
    sleep 1
  done
fi
exit "$code"
