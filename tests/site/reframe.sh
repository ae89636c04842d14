#!/usr/bin/env bash
# The checks of jobs/site/reframe, by ReFrame, on a Slurm of four nodes of this machine (tests/support/slurm.sh), of the
# dltrain that EasyBuild installed, or of DLTRAIN: all pass, they measure, and a reference that is too high fails.
# FAST=1: the check of one node alone (make test).
# shellcheck source=tests/site/common.sh
source "$(dirname "$0")/common.sh"

from_pypi reframe-hpc || skip "ReFrame: pip install reframe-hpc failed"
command -v slurmctld munged >/dev/null || skip "Slurm: .ci/deps slurm installs it"
[ "$(id -u)" = 0 ] || skip "the Slurm of this machine needs root"
dltrain=${DLTRAIN:-$SITE/software/software/dltrain/$VERSION-openmpi/bin/dltrain}
[ -x "$dltrain" ] || skip "no dltrain: run the part easybuild first, or set DLTRAIN"
eval "$("$ROOT/.ci/env" openmpi)"
work=$SITE/reframe
rm -rf "$work" && mkdir -p "$work"
nodes=4 chosen=(--exclude=%many=8) cases=5
[ -z "${FAST:-}" ] || nodes=1 chosen=(-n OneNode) cases=1
# Nodes are one machine: a small model, and a core for each.
checks() {
    (cd "$work" && OMP_NUM_THREADS=1 "$ROOT/tests/support/slurm.sh" "$nodes" 1 "$SITE/reframe-hpc/bin/reframe" \
        -C "$ROOT/jobs/site/reframe/settings.py" -c "$ROOT/jobs/site/reframe/checks.py" \
        --prefix="$work" --report-file="$work/report.json" -S dltrain="$dltrain" -S model=mnist_small -S batch=32 "$@")
}
checks -r --performance-report "${chosen[@]}"
grep -q "\"num_cases\": $cases" "$work/report.json" && grep -q '"num_failures": 0' "$work/report.json" || {
    say "a check failed, or was not run"
    exit 1
}
count=$(grep -o '"num_cases": [0-9]*' "$work/report.json" | head -n 1)
say "ReFrame $("$SITE/reframe-hpc/bin/reframe" --version) under $(slurmctld -V):" \
    "${count//\"/} passed;" \
    "$(python3 -c '
import json, sys
runs = json.load(open(sys.argv[1]))["runs"]
for case in runs[-1]["testcases"]:
    for name, value in (case.get("perfvalues") or {}).items():
        print(case["name"], value[0], value[-1], end="; ")' "$work/report.json")"
if checks -r -n OneNode -S reference_images=1e9; then say "a reference of 1e9 images/s passed"; exit 1; fi
say "a reference that is too high fails"
