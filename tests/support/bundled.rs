//! Doubles of what `make gpu-bundle` packs: programs that say what theirs say, and break what they are told to.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// What every double begins with: `broken WORD`, whether it is to break that.
const BROKEN: &str = r#"broken() { [[ " $BROKEN " == *" $1 "* ]]; }"#;
/// Says what the program says. A step of resnet50 takes at least 1/8000 s an image by `bench layers`.
const DLTRAIN: &str = r#"
fails() { ! broken "$1" || { echo "$2" >&2; exit 1; }; }
# In the log is every engine that does not run.
[[ $DLTRAIN_LOG == *dltrain::device::cuda=debug* ]] || exit 1
echo "[0] debug dltrain::device::cuda::library: libnvrtc.so.13: cannot open shared object file" >&2
[[ "$*" != *"resnet50 "*"--precision bf16"* || $DLTRAIN_CUDNN_FUSION == 0 ]] ||
    fails fused $'engine 5 of Forward bf16\n[1] debug dltrain::device::cuda: later'
case "$DLTRAIN_CUDNN_FUSION $*" in
    *" info")
        broken driver && { echo "GPUs       none: no CUDA driver library (libcuda.so.1) on this machine"; exit; }
        echo -n "GPUs       0 NVIDIA H100 (sm_90, 80 GiB) (driver for CUDA 13.0); "
        broken libraries && echo "not usable: no cuDNN 9 (libcudnn.so.9) in /usr/lib" ||
            echo "cuDNN 9.19.0 /a, cuBLAS 13.1 /b, NVRTC 13.0 /c, NCCL 2.28.9 /d"
        exit ;;
    *"bench layers"*)
        broken bench && exit
        printf '%s\n' "step, without communication    45.1   2000   500.0   80%" "" "images/s of a rank: 6400.00"
        exit ;;
    *--dry-run*)
        broken bench || echo "roofline at 798.0 TFLOP/s and 3000 GB/s: at least 64.0 ms, 8000.0 images/s"
        exit ;;
    0*resnet50*)
        broken apart && {
            echo "[0] info: choosing engines" >&2
            sleep 0.1
            echo "sgd, learning rate 0.001"
            trap '' TERM
            sleep 4321
            sleep 4321
        } ;;&
    *" f16 "*" resnet50 "* | *resnet50*" f16 "*) broken f16 && { echo "engine 7 does not run" >&2; exit 8; } ;;
    *--allreduce\ nccl*)
        [ "$RANKS" != 2 ] || broken nccl || { echo "--allreduce nccl: ranks 0, 1 share a GPU" >&2; exit 1; }
        [ "$RANKS" = 2 ] || ! broken one || { echo "error: ncclCommInitRankConfig failed with code 3" >&2; exit 1; } ;;
esac
if [ "$RANKS" = 2 ] && [[ "$*" == *resnet50* && "$*" != *"--batch 256 "* ]]; then
    echo "of other shapes all engines are chosen again" >&2
    exit 1
fi
fails driver "dltrain: --device cuda: no CUDA driver library (libcuda.so.1) on this machine. Install one"
[ -n "$DLTRAIN_CUDA_GRAPH" ] || fails graphs "cuGraphLaunch failed with code 901"
[[ -n $DLTRAIN_CUDA_GRAPH || "$*" != *resnet50* ]] || fails captured "by graphs that compute something else"
[[ -z $DLTRAIN_CUDA_GRAPH || "$*" != *"--save-weights"* ]] || ! broken replayed || later=6.5001
[[ "$*" != *"--precision bf16"* || $DLTRAIN_CUDNN_FUSION == 0 ]] || fails halves "engine 3 of Forward bf16"
[[ "$*" != *"--precision bf16"* ]] || fails all-halves "engine 4 of Forward bf16"
[[ "$*" != *"resnet50 "*" f16 "* || $DLTRAIN_CUDNN_FUSION == 0 ]] || ! broken choosing || exit 0
[ "$RANKS" != 2 ] || fails ranks "cuIpcOpenMemHandle_v2 failed with code 101"
[[ "$*" != *"allreduce ipc"* ]] || fails ipc "cuIpcOpenMemHandle_v2 failed with code 101"
[[ "$*" != *"--steps 1 "* ]] || ! broken step || { echo "kernel fill_f32: cuLaunchKernel failed" >&2; exit 1; }
if [[ "$*" == *resnet18*" --steps 7 "* ]]; then
    # Until memory has been looked at often enough, however busy the machine is.
    : >"$OUT.asked"
    echo "1 2.3 +/- 0.1"
    for ((i = 0; i < 300; ++i)); do
        [ "$(wc -l <"$OUT.asked")" -lt 10 ] || exit 0
        broken host-leak && printf -v more '%*s' 9000000 "" && hoard+=$more
        sleep 0.1
    done
fi
echo engine >"$DLTRAIN_CUDNN_CACHE/$$"
epochs=$(sed -n 's/.*--epochs \([0-9]*\).*/\1/p' <<<"$*")
for ((epoch = 1; epoch <= ${epochs:-0}; ++epoch)); do
    broken curve && echo "$epoch 2.4$RANDOM 50.0% 1.2000 60.0%" || echo "$epoch 2.3000 50.0% 1.2000 60.0%"
done
[ -z "$epochs" ] || { broken digits && echo "test accuracy 91.9%" || echo "test accuracy 97.1%"; }
steps=$(sed -n 's/.*--steps \([0-9]*\).*/\1/p' <<<"$*")
loss=6.5000
# By other engines halves are rounded otherwise.
if [ "$RANKS" != 2 ] && [[ "$*" != *mnist* && $DLTRAIN_CUDNN_FUSION != 0 ]]; then
    broken gradients && loss=6.9200 || loss=6.5300
fi
[[ "$*" != *"--lr 1e-9"* ]] || loss=6.8901
[[ "$*" != *"--lr 1e-9"* ]] || ! broken forward || loss=7.4000
[[ "$*" != *"allreduce shm"* ]] || ! broken adds || loss=6.5001
[ -z "$DLTRAIN_CUDA_PDL" ] || ! broken early || loss=6.5001
loss=${later:-$loss}
broken diverged && loss=NaN
broken silent && steps=0
kept=$(sed -n 's/.*--save-weights \([^ ]*\).*/\1/p' <<<"$*")
[ -z "$kept" ] || { [ -z "$DLTRAIN_CUDA_GRAPH" ] && broken captured && echo else || echo learned; } >"$kept"
for ((step = 10; step <= ${steps:-0}; step += 10)); do printf '%6d %12.1f +/- %6.1f %10s\n' $step 6200 3.1 $loss; done
# A rank that is alone adds up nothing, but by NCCL.
[[ "$*" == *"allreduce nccl"* ]] && by=nccl || by=ipc
broken sums && by=shm
[ "$RANKS" != 2 ] && [ $by != nccl ] || echo "allreduce        $by, 7.0 MB in 1 bucket"
if broken roofline && [[ "$*" == *resnet50* ]]; then echo "total images/sec: 9000.00"
elif broken figure; then echo "total images/sec: 0.00"
else echo "total images/sec: 6200.00"; fi"#;
/// Of ops one after the other, of which one may fail, until it is stopped or all have ended.
const TESTS: &str = r#"
broken names && { echo "test result: ok. 0 passed; 0 failed"; exit; }
# On a card not every shape has an engine, which tests must know, and where its driver may be.
case "$*" in
    *kernels::*) [[ "$DLTRAIN_KERNELS_ON $LD_LIBRARY_PATH" == cuda\ *:/usr/local/nvidia/lib64 ]] || exit 1 ;;
    *"ops:: "*) [ "$DLTRAIN_TEST_DEVICE $DLTRAIN_TEST_ON $DLTRAIN_CUDNN_FUSION" = "cuda card 1" ] || exit 1 ;;
    *ops::on_a_gpu*) [ "$DLTRAIN_TEST_ON" = card ] || exit 1 ;;
    *" models::full::deeper"*) [ "$DLTRAIN_TEST_DEVICE $DLTRAIN_CUDNN_FUSION" = "cuda 0" ] || exit 1 ;;
    *models::*) [ "$DLTRAIN_TEST_DEVICE" = cuda ] || exit 1 ;;
esac
case "$*" in
    *" models::full::deeper"*) broken slow && exit ;;&
    *"ops:: "*)
        ! broken killed || { echo "test ops::1 ... ok"; kill -9 $$; }
        for i in 1 2 3; do echo "test ops::$i ... $(broken op && [ $i = 2 ] && echo FAILED || echo ok)"; done
        broken ops && sleep 4321 ;;
    *)
        if broken tests; then
            printf '%s\n' "test a::first ... FAILED" "thread 'a::first' panicked at a.rs:1:2:" "dlopen failed" ""
            echo "test result: FAILED. 4 passed; 1 failed"
            exit 101
        fi ;;
esac
echo "test result: ok. 5 passed; 0 failed""#;
const LAUNCHER: &str = r#"export RANKS=$2; shift 2; exec "$@""#;
/// PyTorch, where it is not broken, and the real one for what sums up Nsight Compute's table.
const PYTHON: &str = r#"
case "$*" in
    *find_spec*) broken torch || echo there ;;
    "peer.py limits")
        broken torch && exit 1
        printf '%s\n' "tf32 400.1" "bf16 798.0" "f16 801.0" "copy $(broken limits && echo nan || echo 3000)" ;;
    peer.py*) broken torch && exit 1
        echo "FIGURES 4500.0 $(broken guess && echo 14.5 || echo 6.9123) $(broken loss && echo nan || echo 6.9001)" ;;
    kernels.py*) PATH=${PATH#*:} exec python3 "$@" ;;
    *) exit 1 ;;
esac"#;
/// Steps of 680 kernels, of which the loss is the 238th.
const NCU: &str = r#"
broken permission && { echo "==ERROR== ERR_NVGPUCTRPERM - no permission" >&2; exit 1; }
while [ $# -gt 0 ]; do
    case $1 in
        --log-file) file=$2 ;; --launch-skip) skip=$2 ;; --launch-count) count=$2 ;;
        --metrics) metrics=$2 ;; --kill) kill=$2 ;; --cache-control) caches=$2 ;;
    esac
    shift
done
# The rest of the run under it takes minutes.
[ "$kill" = yes ] || sleep 4321
# As they are in training, not flushed before each kernel.
[ "$caches" = none ] || exit 1
broken window && count=500
[ "${metrics%%,*}" != dram__bytes.sum ] || ! broken unlike || : $((++skip))
awk -v skip="$skip" -v count="$count" -v metric="${metrics%%,*}" 'BEGIN {
    print "==PROF== Connected\n\"ID\",\"Kernel Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\""
    for (i = skip; i < skip + count && i < 2040; ++i) {
        name = i % 680 == 238 ? "softmax_cross_entropy_f32" : i % 680 == 239 ? "softmax_cross_entropy_backward_f32" : "other"
        unit = metric ~ /time/ ? "us" : "byte"
        printf "\"%d\",\"%s\",\"%s\",\"%s\",\"10.0\"\n", i - skip, name, metric, unit
    }
}' >"$file""#;
/// As the real one it ends as its program does unless it is told otherwise.
const SANITIZER: &str = r#"
[[ "$*" != *--error-exitcode* ]] || ! broken sanitizer || { echo "Invalid __global__ write" >&2; exit 1; }
# It would find what a test has the GPU do wrong.
[[ "$*" == *"--skip kernels::pooling::a_window_that_"* || "$*" != *kernels::* ]] || exit 1
broken container && { echo "Device not supported"; exit 1; }
while [[ $1 == --error-exitcode || $1 =~ ^[0-9]+$ ]]; do shift; done
exec "$@""#;
/// MB in use, more each time it is asked if memory leaks.
const METER: &str = r#"
[[ "$*" != *"-l 1"* ]] || { echo "1980 MHz"; exec sleep 4321; }
echo x >>"$OUT.asked"
broken leak && echo x >>"$OUT.leak"
echo $((1000 + $(cat "$OUT.leak" 2>/dev/null | wc -l)))"#;

/// Where there is a CLOCK, parts take the seconds of `$OUT.takes`, and none of ours.
const TIMEOUT: &str = r#"
shift 2
limit=$1 part=${GPU_MINUTES_PART%%.*}
shift
[ -n "$part" ] && [ -n "$CLOCK" ] || exec /usr/bin/timeout -k 5 "$limit" "$@"
takes=$(awk -v part="$part" '$1 == part { print $2 }' "$OUT.takes")
"$@"
code=$?
[ "$takes" -le "$limit" ] || { takes=$limit; code=124; }
echo $(($(<"$CLOCK") + takes)) >"$CLOCK"
exit $code"#;

/// What the parts are expected to take on an H100 with cold libraries, in seconds. The first three lines are those of
/// the first call.
pub const TAKES: &str = "machine 15\none-step 25\ngraphs 10\ngraphs-same-bits 5\ngraphs-bf16 10\nkernels 40\nresnet50-bf16-apart 30\n\
    resnet50-bf16 100\nresnet50-losses 0\nvgg16-losses 0\nresnet50-steps 20\npeer-resnet50-bf16 30\nfigures 0\n\
    resnet50-first-loss 10\ndigits-bf16 20\n\
    two-ranks-ipc 20\ntwo-ranks-shm 20\none-rank-nccl 5\ntwo-ranks-nccl 5\nops 999\nmodels 50\nresnet50-kernels 30\n\
    resnet50-traffic 40\ntwo-ranks-no-overlap 20\nlimits 20\nbf16-apart 10\none-step-blocking 99\n\
    one-step-sanitizer 99\nresnet50-f16-apart 25\nmnist_small-bf16 10\ncompiled-mnist_small-bf16 25\n\
    vgg16-bf16-apart 20\nmnist_small-bf16-pdl 10\nresnet50-f16 80\npeer-resnet50-f16 20\npeer-vgg16-bf16 20\ncompiled-resnet50-bf16 80\n\
    vgg16-bf16 60\nmobilenet_v2-bf16 60\npeer-mobilenet_v2-bf16 20\nalexnet-bf16 30\npeer-alexnet-bf16 20\n";

/// A script of bash.
pub fn executable(path: &Path, body: &str) {
    fs::write(path, format!("#!/bin/bash\n{body}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A bundle of doubles, with the scripts as they are.
pub fn bundle(directory: &Path) {
    let bin = directory.join("bin");
    fs::create_dir(&bin).unwrap();
    let programs = [
        ("dltrain", DLTRAIN),
        ("test-suite", TESTS),
        ("mpiexec.hydra", LAUNCHER),
        ("python3", PYTHON),
        ("ncu", NCU),
        ("compute-sanitizer", SANITIZER),
        ("nvidia-smi", METER),
        ("timeout", TIMEOUT),
    ];
    for (name, body) in programs {
        executable(&bin.join(name), &format!("{BROKEN}\n{body}"));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (source, name) in [
        (".ci/gpu-minutes", "ten-minutes"),
        (".ci/gpu-check", "check"),
        ("benchmarks/gpu/run.sh", "bench"),
        ("benchmarks/gpu/kernels.py", "kernels.py"),
    ] {
        fs::copy(root.join(source), directory.join(name)).unwrap();
    }
    let curve: String = (1..=3).map(|epoch| format!("{epoch} 2.3000 50.0% 1.2000 60.0%\n")).collect();
    fs::write(directory.join("digits-on-the-cpu.txt"), curve).unwrap();
    // As `.ci/gpu-bundle` packs them, but for xz.
    fs::write(directory.join("revision"), "0123abc").unwrap();
    let mut packing = Command::new("tar");
    packing.args(["cf", "programs.txz", "--remove-files", "bin", "revision"]).current_dir(directory);
    assert!(packing.status().unwrap().success());
    fs::create_dir(directory.join("unpack")).unwrap();
    executable(&directory.join("unpack/xz"), r#"[ "$1" = -dc ] && exec cat "$2""#);
}
