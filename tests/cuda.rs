//! `--device cuda` on any machine: whole runs on doubles of CUDA's libraries (tests/fake_cuda), which compute on the host
//! and notice what a GPU would not forgive.
//!
//! - what a GPU trains is what the CPU trains (but for rounding), and a repeat gives the same bits, also when nothing is
//!   done before somebody waits for it;
//! - ranks that share a GPU, or have one each, train as one rank does;
//! - GPUs that add up by themselves (NCCL), and an MPI that does so in their memory, give the same bits; what that lacks is said, and a rank that is lost, too;
//! - mixed images and compressed gradients, too;
//! - images that come as pixels are those that come as numbers, to the bit, in training and evaluation;
//! - a run stops and goes on, on the GPU and from one device to the other;
//! - no CUDA, a library that is missing or too old, no such GPU, a batch that does not fit: one message, before anything
//!   is done;
//! - what the GPU's meter shows is in the record; without it nothing is missed;
//! - every call of every library that fails ends the job with its name.
//!
//! Every op by itself: tests/ops.rs.

#[path = "support/fake_cuda.rs"]
mod fake_cuda;
#[path = "support/job.rs"]
mod job;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use job::{DLTRAIN, Finished, finish, series};

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits");

struct Results {
    directory: tempfile::TempDir,
    runs: usize,
}

impl Results {
    fn new() -> Results {
        Results { directory: tempfile::tempdir().unwrap(), runs: 0 }
    }

    fn path(&mut self) -> PathBuf {
        self.runs += 1;
        self.directory.path().join(format!("run{}.h5", self.runs))
    }

    /// The loss of every step, and the finished job.
    fn train_with(&mut self, ranks: usize, flags: &str, variables: &[(&str, &str)]) -> (Vec<f64>, Finished) {
        let path = self.path();
        let flags = format!("{flags} --warmup 0 --results {}", path.display());
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let done = finish(with_cuda(job::job(&[(ranks, &flags)]), variables, self.directory.path()));
        assert!(done.success, "{flags:?}\n{}\n{}", done.stdout, done.stderr);
        (series(&path, "steps/loss"), done)
    }

    fn losses(&mut self, ranks: usize, flags: &str) -> Vec<f64> {
        self.train_with(ranks, flags, &[]).0
    }
}

/// Where a command finds the doubles.
fn with_cuda(mut command: Command, variables: &[(&str, &str)], directory: &Path) -> Command {
    command.env_remove("CUDA_VISIBLE_DEVICES").env("DLTRAIN_CUDA_PATH", fake_cuda::libraries());
    command.env("DLTRAIN_CUDNN_CACHE", directory.join("cudnn.json")).envs(variables.iter().copied());
    command
}

/// A directory of the doubles without those of this name.
fn all_but(name: &str) -> tempfile::TempDir {
    let without = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(fake_cuda::libraries()).unwrap().map(|file| file.unwrap()) {
        if !file.file_name().to_str().unwrap().starts_with(name) {
            std::os::unix::fs::symlink(file.path(), without.path().join(file.file_name())).unwrap();
        }
    }
    without
}

/// A job that must fail; its message.
fn refused(ranks: usize, flags: &str, variables: &[(&str, &str)]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let done = finish(with_cuda(job::job(&[(ranks, &flags)]), variables, directory.path()));
    assert!(!done.success, "{flags:?} succeeded: {}", done.stdout);
    let mut messages = done.stderr.lines().filter(|line| line.contains("error: "));
    let message = messages.next().unwrap_or_else(|| panic!("no message: {}", done.stderr)).to_string();
    assert_eq!(messages.next(), None, "more than one message: {}", done.stderr);
    message
}

/// Losses of size 2 to 3 are means whose logits carry the rounding of sums in another order; a few steps of SGD carry it
/// on. Far below this, and far above what any wrong kernel would give.
fn close(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (step, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() < 5e-4 * b.abs().max(1.0), "{what}, step {step}: {a} and {b}");
    }
}

#[test]
fn a_gpu_trains_what_the_cpu_trains() {
    let mut results = Results::new();
    let digits = format!("--data {DIGITS} --batch 8 --steps 6 --optimizer sgd --lr 0.01");
    for flags in [
        format!("--model mnist_small {digits}"),
        format!("--model mnist_net {digits} --clip-norm 0.5 --ema 0.9"),
        format!("--model mnist_small {digits} --accumulation 2 --optimizer adamw --lr 0.001"),
        "--model resnet18 --image-size 32 --classes 10 --batch 4 --steps 2 --optimizer sgd --lr 0.001".into(),
        "--model googlenet --image-size 32 --classes 10 --batch 2 --steps 1 --optimizer sgd --lr 0.001"
            .into(),
    ] {
        let cpu = results.losses(1, &format!("{flags} --device cpu"));
        let gpu = results.losses(1, &format!("{flags} --device cuda"));
        close(&gpu, &cpu, &flags);
    }
}

/// f16 against its definition (the reference device in f16): what differs are roundings of 11 bits. The second run begins
/// with a loss scale at which every gradient overflows: steps are skipped on all ranks alike until it fits, and counted.
#[test]
fn half_precision_scales_its_loss_and_skips_what_overflows() {
    let mut results = Results::new();
    let flags =
        format!("--model mnist_small --data {DIGITS} --batch 4 --optimizer sgd --lr 0.01 --precision f16");
    let reference = results.losses(1, &format!("{flags} --steps 2 --device reference"));
    let (gpu, done) = results.train_with(1, &format!("{flags} --steps 2 --device cuda"), &[]);
    gpu.iter().zip(&reference).for_each(|(a, b)| assert!((a - b).abs() < 0.01, "{gpu:?} and {reference:?}"));
    assert!(done.stdout.contains("loss scale 65536 at the end; 0 of 2 steps"), "{}", done.stdout);

    let flags = format!("{flags} --loss-scale 1e30 --loss-scale-hysteresis 1 --steps 4 --device cuda");
    let (skipping, done) = results.train_with(2, &flags, &[]);
    assert!(done.stdout.contains("4 of 4 steps were skipped"), "{}", done.stdout);
    assert!(skipping.iter().all(|loss| loss.is_finite()));
    let stuck = format!("{flags} --loss-scale-min 1e30");
    assert!(refused(2, &stuck, &[]).contains("the loss scale is at its minimum of"), "{stuck}");
}

#[test]
fn recomputing_and_shared_statistics_change_nothing_on_a_gpu() {
    let mut results = Results::new();
    let flags =
        "--model resnet18 --image-size 32 --classes 10 --steps 2 --optimizer sgd --lr 0.001 --device cuda";
    let whole = results.losses(1, &format!("{flags} --batch 4"));
    assert_eq!(results.losses(1, &format!("{flags} --batch 4 --recompute")), whole);
    close(&results.losses(2, &format!("{flags} --batch 2 --sync-bn")), &whole, "--sync-bn");
}

/// Mixed images have two labels each; compressed gradients are those of the CPU but for the order in which a layout has them,
/// which a codec with a threshold for pieces notices: only the course is the same.
#[test]
fn mixed_images_and_compressed_gradients_go_with_a_gpu() {
    let mut results = Results::new();
    let flags = format!("--model mnist_small --data {DIGITS} --batch 8 --steps 5 --optimizer sgd --lr 0.01");
    let mixed = format!("{flags} --augment mixup=0.4,cutmix");
    close(
        &results.losses(1, &format!("{mixed} --device cuda")),
        &results.losses(1, &format!("{mixed} --device cpu")),
        "mixed images",
    );
    for scheme in ["1bit", "powersgd:2"] {
        let flags = format!("{flags} --compress {scheme} --fusion-threshold-mb 0.1");
        for ranks in [1, 2] {
            let cpu = results.losses(ranks, &format!("{flags} --device cpu"));
            let gpu = results.losses(ranks, &format!("{flags} --device cuda"));
            let largest = cpu.iter().zip(&gpu).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(largest < 0.1, "{scheme}, {ranks} ranks: {gpu:?} and {cpu:?}");
        }
    }
    // What is still to be sent goes into checkpoints, and on from there.
    let flags = format!("{flags} --compress topk:0.05 --device cuda");
    let whole = results.losses(2, &flags.replace("--steps 5", "--steps 4"));
    let kept = results.path().with_extension("checkpoints");
    let path = results.path();
    for steps in [2, 4] {
        let flags = flags.replace("--steps 5", &format!("--steps {steps}"));
        let flags = format!(
            "{flags} --warmup 0 --checkpoint {} --resume auto --results {}",
            kept.display(),
            path.display()
        );
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let done = finish(with_cuda(job::job(&[(2, &flags)]), &[], results.directory.path()));
        assert!(done.success, "{}{}", done.stdout, done.stderr);
    }
    assert_eq!(series(&path, "steps/loss"), whole, "another course after a checkpoint");
}

/// A quarter of the bytes and the same bits, also where work is done as late as it may be, and of places without an image. What
/// pixels cannot say comes as numbers.
#[test]
fn pixels_are_normalised_on_a_gpu_to_the_bits_of_the_host() {
    let mut results = Results::new();
    let digits = "--data synthetic:shapes:24 --batch 3 --steps 2 --accumulation 2";
    let digits = format!("--model mnist_small {digits} --optimizer sgd --lr 0.01 --device cuda");
    let shapes = "--model resnet18 --image-size 32 --classes 10 --data synthetic:shapes:8 --batch 3 --optimizer sgd \
                  --lr 0.001 --device cuda --epochs 1";
    let late = [("FAKE_CUDA_DELAYED", "1")];
    for (ranks, flags, variables) in [
        (2, digits, &late[..]),
        (1, shapes.into(), &[]),
        (1, format!("{shapes} --precision bf16 --steps 1"), &[]),
    ] {
        let mut losses = |variables: &[(&str, &str)]| {
            let (steps, _) = results.train_with(ranks, &flags, variables);
            let path = results.directory.path().join(format!("run{}.h5", results.runs));
            (steps, series(&path, "epochs/test_loss"), series(&path, "epochs/test_accuracy"))
        };
        let numbers = losses(&[("DLTRAIN_CUDA_PIXELS", "0")]);
        assert!(numbers.1[0].is_finite());
        assert_eq!(losses(variables), numbers, "{flags}");
    }
    let input = |flags: &str| {
        let flags = format!("{shapes} --dry-run {flags}");
        let flags: Vec<&str> = flags.split_whitespace().collect();
        finish(with_cuda(job::job(&[(1, &flags)]), &[], results.directory.path())).stdout
    };
    for (flags, pixels) in [("", true), ("--augment cifar", true), ("--augment lighting", false)] {
        assert_eq!(input(flags).contains("own:images"), pixels, "{flags}: {}", input(flags));
    }
    for flags in ["--augment cutout", "--augment mixup", "--device cpu"] {
        assert!(!input(flags).contains("normalise"), "{flags}");
    }
}

/// Also where work is done as late as it may be: a wait that is missing would show.
#[test]
fn ranks_that_share_a_gpu_train_as_one_and_repeat_their_bits() {
    let mut results = Results::new();
    let flags = format!(
        "--model mnist_net --data {DIGITS} --steps 5 --optimizer sgd --lr 0.01 --fusion-threshold-mb 0.1"
    );
    let whole = results.losses(1, &format!("{flags} --batch 16 --device cuda"));
    for ranks in [2, 4] {
        let flags = format!("{flags} --batch {} --device auto", 16 / ranks);
        let (first, done) = results.train_with(ranks, &flags, &[]);
        close(&first, &whole, &format!("{ranks} ranks"));
        assert!(done.stdout.contains("Fake GPU 0"), "auto is not the GPU: {}", done.stdout);
        assert!(done.stderr.contains(&format!("{ranks} ranks share GPU 0")), "{}", done.stderr);
        let (again, _) = results.train_with(ranks, &flags, &[("FAKE_CUDA_DELAYED", "1")]);
        assert_eq!(again, first, "{ranks} ranks: a repeat differs");
        let (ring, _) = results.train_with(ranks, &format!("{flags} --allreduce ring --no-overlap"), &[]);
        close(&ring, &whole, "ring");
    }
    let (apart, done) =
        results.train_with(2, &format!("{flags} --batch 8 --device cuda"), &[("FAKE_CUDA_DEVICES", "2")]);
    close(&apart, &whole, "a GPU each");
    assert!(!done.stderr.contains("share GPU"), "{}", done.stderr);
}

/// Two addends have one sum; four are added by another tree of sums than the host's. Late work shows a wait that is missing.
#[test]
fn gpus_that_add_up_by_themselves_train_the_same() {
    let mut results = Results::new();
    let flags =
        "--model mnist_small --steps 4 --optimizer sgd --lr 0.01 --fusion-threshold-mb 0.1 --device cuda";
    for (ranks, more) in [(1, ""), (2, ""), (2, " --accumulation 2 --clip-norm 0.5"), (4, "")] {
        let flags = format!("{flags} --batch {}{more}", 16 / ranks);
        let count = ranks.to_string();
        let devices = ("FAKE_CUDA_DEVICES", count.as_str());
        let (staged, _) = results.train_with(ranks, &flags, &[devices]);
        let flags = format!("{flags} --allreduce nccl");
        let (first, done) = results.train_with(ranks, &flags, &[devices]);
        match ranks {
            4 => close(&first, &staged, "4 ranks"),
            _ => assert_eq!(first, staged, "{ranks} ranks {more}"),
        }
        // A rank alone has nothing to be said of it.
        let named = done.stdout.lines().any(|line| line.starts_with("allreduce ") && line.contains(" nccl,"));
        assert!(named || ranks == 1, "{}", done.stdout);
        if ranks == 2 {
            let (late, _) = results.train_with(ranks, &flags, &[devices, ("FAKE_CUDA_DELAYED", "1")]);
            assert_eq!(late, first, "a repeat differs");
        }
    }
    let flags = "--model resnet18 --image-size 32 --classes 10 --batch 2 --steps 2 --lr 0.001 --sync-bn --device cuda";
    let devices = [("FAKE_CUDA_DEVICES", "2")];
    let (staged, _) = results.train_with(2, flags, &devices);
    let (first, _) = results.train_with(2, &format!("{flags} --allreduce nccl --no-overlap"), &devices);
    assert_eq!(first, staged, "--sync-bn");
    let dry = ["--dry-run", "--model", "mnist_net", "--device", "cuda", "--allreduce", "nccl"];
    let dry = finish(with_cuda(job::job(&[(2, &dry)]), &devices, results.directory.path()));
    let table: Vec<&str> =
        dry.stdout.lines().skip_while(|line| !line.starts_with("bucket ")).skip(1).collect();
    let buckets = table.iter().take_while(|line| !line.starts_with("plan hash"));
    assert!(table.len() > 1 && buckets.clone().all(|line| line.contains(" nccl ")), "{}", dry.stdout);
}

/// Two addends have one sum, whoever adds.
#[test]
fn an_mpi_that_is_cuda_aware_adds_up_in_the_gpus_memory() {
    let mut results = Results::new();
    let flags = format!(
        "--model mnist_net --data {DIGITS} --batch 8 --steps 4 --optimizer sgd --lr 0.01 --fusion-threshold-mb 0.1 \
         --device cuda --allreduce vendor --verbose"
    );
    let preload = fake_cuda::libraries().join("libaware.so");
    let mpi = |aware, readable| {
        [
            ("LD_PRELOAD", preload.to_str().unwrap()),
            ("FAKE_MPI_CUDA", aware),
            ("FAKE_CUDA_READABLE", readable),
        ]
    };
    let (staged, _) = results.train_with(2, &format!("{flags} --cuda-aware off"), &mpi("1", "0"));
    let direct = "MPI adds up gradients in the GPUs' memory";
    for (setting, late) in [("auto", "0"), ("on", "1")] {
        let variables = [&mpi("1", "1")[..], &[("FAKE_CUDA_DELAYED", late)]].concat();
        let (losses, done) = results.train_with(2, &format!("{flags} --cuda-aware {setting}"), &variables);
        assert_eq!(losses, staged, "--cuda-aware {setting}");
        assert!(done.stderr.contains(direct), "{}", done.stderr);
    }
    // An MPI that says no, and one that says yes and does not reach the GPU's memory.
    let (no, wrong) =
        ("says that it is not CUDA-aware (rank 0 on ", "added up numbers in a GPU's memory wrongly");
    for (variables, word) in [(mpi("0", "0"), no), (mpi("1", "2"), wrong)] {
        let (losses, done) = results.train_with(2, &flags, &variables);
        assert_eq!(losses, staged, "{word}");
        let said =
            |line: &str| line.contains("gradients go through the host's memory") && line.contains(word);
        assert!(done.stderr.lines().any(said) && !done.stderr.contains(direct), "{}", done.stderr);
        let message = refused(2, &format!("{flags} --cuda-aware on"), &variables);
        assert!(
            message.contains("--cuda-aware on: the MPI library, ") && message.contains(word),
            "{message}"
        );
    }
    for flags in ["--device cuda", "--device cpu --allreduce vendor"] {
        let message = refused(2, &format!("--model mnist_small --steps 1 --cuda-aware on {flags}"), &[]);
        assert!(
            message.contains("--cuda-aware on is for --device cuda with --allreduce vendor"),
            "{message}"
        );
    }
}

#[test]
fn what_nccl_lacks_is_said_before_anything_is_done() {
    let flags = "--model mnist_small --steps 1 --allreduce nccl";
    let cuda = format!("{flags} --device cuda");
    let apart = ("FAKE_CUDA_DEVICES", "2");
    for (flags, variables, words) in [
        (&cuda, vec![], ["ranks 0, 1 share a GPU of ", "as many ranks as there are GPUs"]),
        (&format!("{flags} --device cpu"), vec![], ["computes on the CPU", "--device cuda"]),
        (&format!("{flags} --device reference"), vec![], ["computes on reference", "--device cuda"]),
        (&cuda, vec![apart, ("FAKE_NCCL_VERSION", "2708")], ["code 2708", "2.14 or newer"]),
        (&format!("{cuda} --wire bf16"), vec![apart], ["--wire bf16", "in f32"]),
        (&format!("{cuda} --compress 1bit"), vec![apart], ["--compress 1bit", "--allreduce nccl"]),
    ] {
        let message = refused(2, flags, &variables);
        words.iter().for_each(|word| assert!(message.contains(word), "{flags} {variables:?}: {message}"));
    }
    let without = all_but("libnccl");
    let path = [("DLTRAIN_CUDA_PATH", without.path().to_str().unwrap())];
    let info = finish(with_cuda(job::job(&[(1, &["info"])]), &path, without.path())).stdout;
    // Unless this machine has one of its own.
    if info.contains("no NCCL") {
        let message = refused(2, &cuda, &[apart, path[0]]);
        let words = ["no NCCL (libnccl.so.2) in ", "pip install", "--allreduce auto runs without"];
        words.iter().for_each(|word| assert!(message.contains(word), "{message}"));
    }
}

/// One of two ranks fails, or never comes to a sum: the other one does not wait for ever.
#[test]
fn a_rank_that_is_lost_to_the_others_gpus_ends_the_job() {
    let directory = tempfile::tempdir().unwrap();
    for (variable, words) in [
        ("FAKE_CUDA_FAIL=ncclCommInitRankConfig:1", vec!["rank 1 on ", "ncclCommInitRankConfig", "code 3"]),
        ("FAKE_CUDA_FAIL=ncclCommGetAsyncError:1", vec!["rank 1 on ", "ncclCommGetAsyncError", "code 3"]),
        ("FAKE_CUDA_FAIL=ncclAllReduce:3", vec!["rank 1 on ", "ncclAllReduce", "code 3 (internal error)"]),
        ("FAKE_NCCL_HANG=1", vec!["the first sum (nccl)", "waiting for", "--stall-abort ends the job"]),
        ("FAKE_NCCL_HANG=3", vec!["(nccl allreduce)", "waiting for", "--stall-abort ends the job"]),
    ] {
        let results = directory.path().join(variable).with_extension("h5");
        let script = format!(
            "[ ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} = 1 ] && export {variable}; exec '{DLTRAIN}' --model mnist_small \
             --batch 4 --steps 5 --device cuda --allreduce nccl --stall-abort 3 --results '{}'",
            results.display()
        );
        let command = job::start(2, &["sh", "-c", &script]);
        let done = finish(with_cuda(command, &[("FAKE_CUDA_DEVICES", "2")], directory.path()));
        assert!(!done.success && done.took < job::SECONDS, "{variable}: {:?} {}", done.took, done.stdout);
        let said = |line: &str| line.contains("error: ") && words.iter().all(|word| line.contains(word));
        assert!(done.stderr.lines().any(said), "{variable}: {}", done.stderr);
    }
}

#[test]
fn a_run_goes_on_where_it_stopped_also_on_another_device() {
    let mut results = Results::new();
    let flags = format!("--model mnist_small --data {DIGITS} --batch 8 --optimizer adam --lr 0.001");
    let whole = results.losses(1, &format!("{flags} --device cuda --steps 6"));
    let cpu = results.losses(1, &format!("{flags} --device cpu --steps 6"));
    for (first, second, expected) in
        [("cuda", "cuda", &whole), ("cuda", "cpu", &cpu), ("cpu", "cuda", &whole)]
    {
        let kept = results.path().with_extension("checkpoints");
        let flags = format!("{flags} --checkpoint {} --resume auto", kept.display());
        let begun = results.losses(1, &format!("{flags} --device {first} --steps 3"));
        // The record of the first part goes on: all steps are in it.
        let path = results.directory.path().join(format!("run{}.h5", results.runs));
        let flags = format!("{flags} --device {second} --steps 6 --warmup 0 --results {}", path.display());
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let done = finish(with_cuda(job::job(&[(1, &flags)]), &[], results.directory.path()));
        assert!(done.success, "{}{}", done.stdout, done.stderr);
        let all = series(&path, "steps/loss");
        assert_eq!(all[..3], begun);
        match first == second {
            true => assert_eq!(all, **expected, "another course on the GPU"),
            false => close(&all, expected, &format!("{first}, then {second}")),
        }
    }
}

#[test]
fn what_a_gpu_run_lacks_is_said_before_anything_is_done() {
    let cuda = "--model mnist_small --steps 1 --device cuda";
    let path = fake_cuda::libraries().to_str().unwrap();
    for (flags, variables, words) in [
        (cuda.to_string(), vec![("FAKE_CUDA_DEVICES", "0")], vec!["sees no GPU", "--device cpu"]),
        (cuda.into(), vec![("FAKE_CUDNN_VERSION", "8907")], vec!["cuDNN 8.9.7", "needs 9"]),
        (cuda.into(), vec![("FAKE_CUDA_DRIVER", "11080")], vec!["CUDA 11.8", "CUDA 12.0 or newer"]),
        (format!("{cuda}:1"), vec![], vec!["--device cuda:1", "one GPU, number 0"]),
        (format!("{cuda}:7"), vec![("FAKE_CUDA_DEVICES", "2")], vec!["2 GPUs, 0 to 1"]),
        (
            format!("{cuda} --precision bf16"),
            vec![("FAKE_CUDA_CAPABILITY", "60")],
            vec!["sm_80 or newer", "sm_60"],
        ),
        (
            "--model vgg16 --classes 10 --steps 1 --device cuda --image-size 32 --batch 512".into(),
            vec![("FAKE_CUDA_MEMORY", "5000000000")],
            vec!["--batch 512 needs", "free on the rank's GPU", "the largest --batch that fits is"],
        ),
    ] {
        let message = refused(2, &flags, &variables);
        words.iter().for_each(|word| assert!(message.contains(word), "{flags} {variables:?}: {message}"));
    }
    // Without any of it, and with a driver but none of the rest.
    let nothing = tempfile::tempdir().unwrap();
    let none = refused(1, cuda, &[("DLTRAIN_CUDA_PATH", nothing.path().to_str().unwrap())]);
    if dltrain::device::cuda::probe().is_err() {
        assert!(none.contains("no CUDA driver library"), "{none}");
        std::os::unix::fs::symlink(Path::new(path).join("libcuda.so.1"), nothing.path().join("libcuda.so.1"))
            .unwrap();
        let driver_only = refused(1, cuda, &[("DLTRAIN_CUDA_PATH", nothing.path().to_str().unwrap())]);
        let words = ["no cuDNN 9 (libcudnn.so.9)", "DLTRAIN_CUDA_PATH", "--device cpu runs without"];
        words.iter().for_each(|word| assert!(driver_only.contains(word), "{driver_only}"));
    }
    for (flags, word) in [
        ("--device gpu", "cuda:N"),
        ("--device cuda:x", "cuda:N"),
        ("--device cpu --precision tf32", "--device cuda"),
    ] {
        let message = refused(1, flags, &[]);
        assert!(message.contains(word), "{message}");
    }
}

/// The double of NVML shows a GPU that is half busy, with 2 GiB in use and 123 W.
#[test]
fn the_gpus_meter_is_in_the_record_or_its_absence_is_said() {
    let mut results = Results::new();
    let flags =
        format!("--model mnist_small --data {DIGITS} --batch 256 --epochs 1 --device cuda --tensorboard");
    let events = results.directory.path().join("events");
    let (_, done) = results.train_with(2, &format!("{flags} {}", events.display()), &[]);
    for line in ["GPU busy  GPU memory  power", "     50.0%     2147 MB  123 W", "50.0% busy, 2147 MB in use"]
    {
        assert!(done.stdout.contains(line), "{line} is missing in\n{}", done.stdout);
    }
    let path = results.directory.path().join("run1.h5");
    for (name, value) in [("busy", 0.5), ("memory", 2147483648.0), ("power", 123.0)] {
        for group in ["steps", "epochs"] {
            let shown = series(&path, &format!("{group}/gpu_{name}"));
            // A mean over an epoch's time is exact but for the rounding of its sums.
            let close = |shown: &f64| (shown - value).abs() <= 1e-12 * value;
            assert!(!shown.is_empty() && shown.iter().all(close), "{group}, {name}: {shown:?}");
        }
    }
    let events = std::fs::read_dir(events).unwrap().next().unwrap().unwrap().path();
    let events = String::from_utf8_lossy(&std::fs::read(events).unwrap()).into_owned();
    assert!(["gpu/busy", "gpu/memory", "gpu/power"].iter().all(|tag| events.contains(tag)));

    let without = all_but("libnvidia-ml");
    let variables = [("DLTRAIN_CUDA_PATH", without.path().to_str().unwrap())];
    let info = |variables| finish(with_cuda(job::job(&[(1, &["info"])]), variables, without.path())).stdout;
    assert!(info(&[]).contains("NVML /"), "{}", info(&[]));
    let said = info(&variables);
    if said.contains("no figures of utilisation, memory and power: no libnvidia-ml.so.1") {
        let (_, done) =
            results.train_with(1, "--model mnist_small --batch 4 --steps 1 --device cuda", &variables);
        assert!(!done.stdout.contains("busy"), "{}", done.stdout);
        assert!(!done.stderr.contains("NVML"), "said once, by info: {}", done.stderr);
    } else {
        // This machine has NVML of its own.
        assert!(said.contains("NVML"), "{said}");
    }
}

/// Of every name the first call, the last and one in between fail in turn; what only frees is the exception, since nobody could
/// be told.
#[test]
fn a_call_that_fails_ends_the_job_with_its_name() {
    assert!(each_failing("", |_| true) > 30);
    assert!(each_failing("--allreduce nccl", |name| name.starts_with("nccl")) > 5);
}

/// Lets each of these calls fail in a run of its own; returns how many there were.
fn each_failing(flags: &str, of: impl Fn(&str) -> bool) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let flags = format!(
        "--model mnist_small --data {DIGITS} --batch 32 --steps 2 --device cuda --threads 1 --loader-threads 0 {flags}"
    );
    let run = |number: usize, variables: &[(&str, &str)]| {
        let mut command = Command::new(DLTRAIN);
        let results = directory.path().join(format!("{number}.h5"));
        command.args(flags.split_whitespace()).arg("--results").arg(results);
        // The choice of algorithms is a call of its own only where none is kept.
        let cache = directory.path().join(number.to_string());
        finish(with_cuda(command, variables, &cache))
    };
    let log = directory.path().join("calls");
    let done = run(0, &[("FAKE_CUDA_LOG", log.to_str().unwrap())]);
    assert!(done.success, "{}{}", done.stdout, done.stderr);
    let mut calls = calls_of(directory.path());
    calls.retain(|(name, _)| of(name));
    let number = AtomicUsize::new(0);
    let work = || {
        while let Some((name, count)) = calls.get(number.fetch_add(1, Ordering::Relaxed)) {
            let failing = format!("{name}:{count}");
            let own = number.load(Ordering::Relaxed) * calls.len() + count;
            let done = run(own, &[("FAKE_CUDA_FAIL", &failing)]);
            assert!(!done.success, "{failing} failed, and nobody noticed: {}", done.stdout);
            let said =
                done.stderr.lines().any(|line| line.contains("error: ") && line.contains(name.as_str()));
            assert!(said, "{failing}: {}", done.stderr);
        }
    };
    std::thread::scope(|scope| {
        (0..std::thread::available_parallelism().map_or(1, usize::from)).for_each(|_| {
            scope.spawn(work);
        });
    });
    calls.len()
}

/// Which calls are to fail, by name and number, of those in the log of a run.
fn calls_of(directory: &Path) -> Vec<(String, usize)> {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let file =
        files.into_iter().find(|file| file.file_name().to_str().unwrap().starts_with("calls.")).unwrap();
    let mut last: BTreeMap<String, usize> = BTreeMap::new();
    for line in std::fs::read_to_string(file.path()).unwrap().lines() {
        if let [_, name, count] = line.split_whitespace().collect::<Vec<_>>()[..]
            && let Ok(count) = count.parse()
        {
            last.insert(name.into(), count);
        }
    }
    let frees = ["Destroy", "Free", "Release", "Unload", "Unregister"];
    // A double may count a call as one of another name too: only ours are meant. Without the meter's figures a run goes on.
    let ours: Vec<&str> = include_str!("../src/device/cuda/README.md").split_whitespace().collect();
    let ours = |name: &str| ours.contains(&name) && !name.starts_with("nvml");
    last.retain(|name, _| ours(name) && !frees.iter().any(|word| name.contains(word)));
    // Slower copies, or a GPU without a place on its bus, are no failure.
    last.remove("cuMemHostRegister_v2");
    let numbers = |(name, last): (String, usize)| {
        let middle = if name == "cuDeviceGetAttribute" { last } else { last.div_ceil(2) };
        let mut numbers = vec![1, middle, last];
        numbers.dedup();
        numbers.into_iter().map(move |number| (name.clone(), number))
    };
    last.into_iter().flat_map(numbers).collect()
}
