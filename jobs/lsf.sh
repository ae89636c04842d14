#!/bin/bash
# CPU nodes under LSF, a rank for each node. Flags of dltrain follow the script:
#     bsub -n 256 -R "span[ptile=64]" -x -W 60 jobs/lsf.sh --data $SCRATCH/imagenet
set -euo pipefail
if type module >&/dev/null; then module load openmpi; fi
# LSF tells no program when its job ends: a run that keeps checkpoints is to stop in time. It says "1:30 L", in hours
# and minutes; where a node has no bjobs, nothing is known.
left=$({ bjobs -noheader -o time_left "$LSB_JOBID" || true; } | sed -n 's/^ *\([0-9]*:[0-9]*\).*/\1:00/p')
hosts=$(mktemp)
trap 'rm -f "$hosts"' EXIT
sort -u "$LSB_DJOB_HOSTFILE" >"$hosts" # a line for each host, however many of its cores are in the job

# shellcheck disable=SC2086
${MPIRUN:-mpirun} -n "$(wc -l <"$hosts")" --hostfile "$hosts" --bind-to none "${DLTRAIN:-dltrain}" \
    --model resnet50 --results "${SCRATCH:-.}" ${left:+--time-limit "$left"} "$@"
