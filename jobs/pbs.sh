#!/bin/bash
# CPU nodes under PBS (OpenPBS, PBS Professional, Torque), a rank for each node. Flags of dltrain are given as ARGS:
#     qsub -l select=4:ncpus=64 -l place=scatter:excl -v ARGS="--data $SCRATCH/imagenet" jobs/pbs.sh
#PBS -N dltrain
#PBS -l walltime=01:00:00
set -euo pipefail
cd "${PBS_O_WORKDIR:-.}"
if type module >&/dev/null; then module load openmpi; fi
# PBS tells no program when its job ends: a run that keeps checkpoints is to stop in time. What was
# asked for is H:M:S; where a node has no qstat, nothing is known.
walltime=$({ qstat -f "$PBS_JOBID" || true; } | sed -n 's/^ *Resource_List.walltime = //p')
hosts=$(mktemp)
trap 'rm -f "$hosts"' EXIT
sort -u "$PBS_NODEFILE" >"$hosts" # a line for each host, however many of its cores are in the job

# shellcheck disable=SC2086
${MPIRUN:-mpirun} -n "$(wc -l <"$hosts")" --hostfile "$hosts" --bind-to none "${DLTRAIN:-dltrain}" \
    --model resnet50 --results "${SCRATCH:-.}" ${walltime:+--time-limit "$walltime"} ${ARGS:-} "$@"
