#!/usr/bin/env bash
# dltrain and PyTorch's modes on one GPU, one after the other: SGD with momentum 0.9 on one random batch. Beside images
# a second stand the share of what the card's own rates allow (every kernel of the plan at the measured rate of a large
# product or of a copy, whichever takes longer), how much of the time the GPU was busy (NVML), and the most memory in
# use on the card.
#
# Usage: gpu-bundle/bench [PART...]    (made by make gpu-bundle); needs a python3 with PyTorch and torchvision for its
#        GPU
#        PART: a model, or sharing: two ranks on the one card (with the model SHARED). All of them unless named.
#        PRECISIONS="bf16" MODES="eager compile" BATCH=256 STEPS=60 RESULTS=DIRECTORY gpu-bundle/bench resnet50
#        STEPS must be a multiple of 10: as often dltrain says its loss.
#
# Row `apart`: dltrain without what cuDNN does along with convolutions (DLTRAIN_CUDNN_FUSION=0).
#
# Expected times on an H200: a model and a precision 3 minutes, with MODES' compile (max-autotune) 3 to 8 more; sharing
# 1 minute. What is kept (each output, the card's rates) goes to RESULTS, else gpu-bundle/results.
# A loss that is not that of guessing at the start, or not finite at the end, or a figure above the roofline: no answer,
# no numbers. Ends with 1 if any is missing.
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
results=${RESULTS:-$here/results}
mkdir -p "$results" || exit 1
results=$(readlink -f "$results")
cd "$here" || exit 1
# What make gpu-bundle has packed; the last in there says that all of it is here.
[ revision -nt programs.txz ] || LD_LIBRARY_PATH=unpack unpack/xz -dc programs.txz | tar xmf - || exit 1
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$here/bin:$PATH
export DLTRAIN_CUDNN_CACHE=$results/cudnn TORCHINDUCTOR_CACHE_DIR=$results/inductor
# In the output is every engine of cuDNN's that did not run.
export DLTRAIN_LOG=${DLTRAIN_LOG:-info,dltrain::device::cuda=debug}
# PyTorch's own libraries, wherever its Python has them.
DLTRAIN_CUDA_PATH=${DLTRAIN_CUDA_PATH:-$(python3 -c 'import glob, sysconfig
print(":".join(glob.glob(sysconfig.get_path("purelib") + "/nvidia/*/lib")))' 2>/dev/null)}
export DLTRAIN_CUDA_PATH
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(mnist_small alexnet vgg16 resnet50 resnet101 resnet152 inception_v3 sharing)
modes=${MODES:-eager channels_last compile}
missing=0

# $1: name of the output; then a command. Sets `peak`, the most MB in use on the card above what was in use before.
watched() {
    local output=$1 watcher before outcome=0
    shift
    before=$(nvidia-smi -i 0 --query-gpu=memory.used --format=csv,noheader,nounits) || before=0
    nvidia-smi -i 0 --query-gpu=memory.used --format=csv,noheader,nounits -lms 200 >"$output.mb" 2>/dev/null &
    watcher=$!
    "$@" >"$output.txt" 2>"$output.err" || outcome=$?
    kill $watcher 2>/dev/null
    wait $watcher 2>/dev/null
    peak=$(awk -v before="$before" '$1 > peak { peak = $1 } END { print (peak > before ? peak - before : 0) }' "$output.mb")
    return $outcome
}

# A run of dltrain with these ranks and flags. Sets images/s, the share of time that the GPU was busy and that ranks
# waited for each other (percent), and the last loss.
dltrain_run() {
    local output=$results/$1 ranks=$2
    shift 2
    rm -f "$output.h5"
    watched "$output" mpiexec.hydra -n "$ranks" dltrain --device cuda --optimizer sgd --momentum 0.9 --lr 0.001 \
        --results "$output.h5" "$@" || return 1
    read -r rate busy waiting last < <(awk '
        /^total images\/sec: / { rate = $NF }
        /^GPU / && match($0, /[0-9.]+% busy/) { busy = substr($0, RSTART, RLENGTH) + 0 }
        /^share of time/ && match($0, /communication [0-9.]+%/) { waiting = substr($0, RSTART + 14, RLENGTH - 15) }
        / \+\/- / { last = $NF }
        END { print rate, busy == "" ? "-" : busy, waiting == "" ? "-" : waiting, last }' "$output.txt")
    [ -n "$last" ]
}

# PyTorch in a mode.
peer_run() {
    local output=$results/$1 figures
    watched "$output" python3 peer.py train "$model" "$batch" "$precision" "$2" --steps "$steps" || return 1
    figures=$(sed -n 's/^FIGURES //p' "$output.txt") busy=-
    read -r rate first last <<<"$figures"
    awk -v f="$first" 'BEGIN { exit !(f > 1.5 && f < 14) }'
}

rates_of_the_card() {
    if [ ! -s "$results/limits.txt" ]; then
        python3 peer.py limits >"$results/limits.new" && mv "$results/limits.new" "$results/limits.txt" || return 1
    fi
    cat "$results/limits.txt"
}

limit() { awk -v name="$1" '$1 == name { print $2 }' "$results/limits.txt"; }

finite() { [[ $1 =~ ^[0-9.]+$ ]]; }

# Images a second: above 0, and not above the roofline where that is known.
possible() { # rate, roofline
    finite "$1" && awk -v rate="$1" -v roof="$2" 'BEGIN { exit !(rate > 0 && (roof == "" || rate <= roof)) }'
}

no_answer() {
    echo "$1: no answer; see $results/$2.txt and .err"
    missing=$((missing + 1))
}

compare() {
    local who name rate busy peak first last roof ours='' memory='' output=$results/$model-$precision-plan.txt
    dltrain --device cuda --model "$model" --batch "$batch" --precision "$precision" --dry-run \
        --roofline "$(limit "$precision"),$(limit copy)" >"$output" 2>&1
    roof=$(sed -n 's/^roofline at .*, \([0-9.]*\) images\/s$/\1/p' "$output")
    printf '\n%s %s, batch %s; at %s TFLOP/s and %s GB/s at most %s images/s\n' "$model" "$precision" "$batch" \
        "$(limit "$precision")" "$(limit copy)" "${roof:-?}"
    [ -n "$roof" ] || no_answer roofline "$model-$precision-plan"
    printf '%-16s%12s%14s%12s%12s%14s%14s\n' '' images/s '% of roofline' 'busy %' 'GPU MB' 'dltrain is' 'its memory is'
    for who in dltrain apart $modes; do
        name=$model-$precision-$who
        case $who in
            dltrain) dltrain_run "$name" 1 --model "$model" --batch "$batch" --precision "$precision" --steps "$steps" --warmup 15 ;;
            apart)
                DLTRAIN_CUDNN_FUSION=0 \
                    dltrain_run "$name" 1 --model "$model" --batch "$batch" --precision "$precision" --steps "$steps" --warmup 15
                ;;
            *) peer_run "$name" "$who" ;;
        esac || { no_answer "$who" "$name"; continue; }
        finite "$last" || { no_answer "$who (loss $last)" "$name"; continue; }
        possible "$rate" "$roof" || { no_answer "$who ($rate images/s)" "$name"; continue; }
        if [ "$who" = dltrain ]; then ours=$rate memory=$peak; fi
        awk -v who="$who" -v rate="$rate" -v busy="$busy" -v peak="$peak" -v ours="$ours" -v memory="$memory" -v roof="$roof" '
            function times(a, b) { return who == "dltrain" || a == "" || b == 0 ? "" : sprintf("%.2fx", a / b) }
            BEGIN { printf "%-16s%12.1f%14s%12s%12d%14s%14s\n", who, rate, roof == "" ? "?" : sprintf("%.1f", 100 * rate / roof),
                    busy, peak, times(ours, rate), times(memory, peak) }'
    done
}

# One rank, two that add up on the GPU, and two that do so in the host's memory.
sharing() {
    local rate busy waiting last peak ranks way name steps=${STEPS:-60} shared=${SHARED:-resnet50}
    printf '\n%s bf16, global batch %s on one GPU\n%-16s%12s%14s%12s%12s\n' "$shared" "$batch" ranks images/s 'waiting %' 'busy %' 'GPU MB'
    while read -r ranks way; do
        name="$ranks $way"
        if ! dltrain_run "sharing-$ranks-$way" "$ranks" --model "$shared" --batch $((batch / ranks)) --precision bf16 \
            --allreduce "$way" --steps "$steps" --warmup 15 </dev/null || ! finite "$last" || ! possible "$rate" ''; then
            no_answer "$name" "sharing-$ranks-$way"
            continue
        fi
        printf '%-16s%12.1f%14s%12s%12d\n' "$name" "$rate" "$waiting" "$busy" "$peak"
    done < <(printf '%s\n' '1 auto' '2 ipc' '2 shm')
}

nvidia-smi -i 0 --query-gpu=name,driver_version,memory.total --format=csv,noheader
python3 -c 'import torch, torchvision as v; print("PyTorch", torch.__version__, "torchvision", v.__version__, "cuDNN", torch.backends.cudnn.version())'
echo "dltrain $(cat revision)"
dltrain info | sed -n '/^GPUs/,$p'
rates_of_the_card || { echo "bench: PyTorch cannot measure the card"; exit 1; }
for part in "${parts[@]}"; do
    model=$part batch=${BATCH:-256}
    if [ "$part" = sharing ]; then
        sharing
        continue
    fi
    # Long enough for the GPU's own meter, which looks a few times a second.
    steps=${STEPS:-60}
    [ "$model" != mnist_small ] || steps=${STEPS:-3000}
    for precision in ${PRECISIONS:-bf16 f16 tf32}; do compare; done
done
[ $missing = 0 ] || { echo "$missing without an answer"; exit 1; }
