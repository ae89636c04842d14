#!/bin/bash
# One machine without Slurm: a rank for each GPU, or for each socket.
#     jobs/workstation.sh --model resnet50 --data flowers --classes 5
#     RANKS=2 MPIRUN=mpiexec.mpich jobs/workstation.sh …
set -euo pipefail
gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l) || true
sockets=$(lscpu --parse=SOCKET | grep -v '^#' | sort -u | wc -l)
ranks=${RANKS:-$((gpus > 0 ? gpus : sockets))}
# Open MPI (4, and from 5 on) would bind each of two ranks to one core, and so leave it one thread.
export OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none
read -ra mpirun <<<"${MPIRUN:-mpirun}"

exec "${mpirun[@]}" -n "$ranks" "${DLTRAIN:-dltrain}" --device auto --results . "$@"
