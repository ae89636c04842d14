#!/usr/bin/env bash
# jobs/pbs.sh and jobs/lsf.sh, with doubles of qstat and bjobs and of a job's variables, since neither system can be
# had: a rank for each host of the job's list, and the time that is left as --time-limit, by which the run ends in time.
# shellcheck source=tests/site/common.sh
source "$(dirname "$0")/common.sh"

dltrain=${DLTRAIN:-$SITE/software/software/dltrain/$VERSION-openmpi/bin/dltrain}
[ -x "$dltrain" ] || skip "no dltrain: run the part easybuild first, or set DLTRAIN"
eval "$("$ROOT/.ci/env" openmpi)"
work=$SITE/batch
rm -rf "$work" && mkdir -p "$work/bin"
hostname=$(hostname)
printf '%s\n' "$hostname" "$hostname" >"$work/nodes" # two cores of one host: one rank
cat >"$work/bin/qstat" <<'END'
#!/bin/sh
[ "$*" = "-f 7.double" ] && printf 'Job Id: 7.double\n    Job_Name = x\n    Resource_List.walltime = 00:00:12\n'
END
cat >"$work/bin/bjobs" <<'END'
#!/bin/sh
[ "$*" = "-noheader -o time_left 7" ] && echo "0:01 L"
END
chmod +x "$work"/bin/*
export PATH=$work/bin:$PATH DLTRAIN=$dltrain SCRATCH=$work MPIRUN=$DLTRAIN_MPIRUN OMP_NUM_THREADS=1
export PBS_JOBID=7.double PBS_NODEFILE=$work/nodes PBS_O_WORKDIR=$work LSB_JOBID=7 LSB_DJOB_HOSTFILE=$work/nodes
for system in pbs lsf; do
    code=0
    said=$("$ROOT/jobs/$system.sh" --model mnist_small --data "$ROOT/data/digits" --batch 16 --epochs 100000 \
        --checkpoint "$work/$system" 2>&1) || code=$?
    grep -q "stopped by the time limit" <<<"$said" && [ $code = 75 ] &&
        compgen -G "$work/$system/step-*.h5" >/dev/null || {
        echo "$said"
        say "jobs/$system.sh ended with $code"
        exit 1
    }
    say "jobs/$system.sh, with a double of its command:" \
        "$(grep -o 'stopped by the time limit[^;]*' <<<"$said" | head -n 1)"
done
