# shellcheck shell=bash
# One rank: Slurm's numbers under torchrun's names. Its exit code goes where the job finds it, as srun's is mixed
# with the signals that ended its peers. Of the step, not of the job: auto-resume exchanges nodes.
exits=$1
shift
first=${SLURM_STEP_NODELIST%%,*} # of ip-10-0-0-[3-5,9]
if [[ $first == *\[* ]]; then
  number=${first#*\[}
  first=${first%%\[*}${number%%[]-]*}
fi
export MASTER_ADDR=$first RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_STEP_NUM_TASKS
export LOCAL_WORLD_SIZE=$((SLURM_STEP_NUM_TASKS / SLURM_STEP_NUM_NODES))
trap : TERM USR1 # the trainer has them, too, and its exit code counts
"$@"
code=$?
((code == 0)) || echo "$code" >"$exits/$RANK"
exit "$code"
