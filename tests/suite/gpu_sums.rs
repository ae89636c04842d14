//! Gradients that are added up where the GPUs have them, on doubles of CUDA's libraries (tests/fake_cuda): what comes
//! of it is what comes of the way through the host.
//!
//! - GPUs of a node in each other's memory (CUDA IPC), to the bit, and what happens where they do not reach it;
//! - NCCL, and what it lacks;
//! - an MPI that reaches the GPUs' memory, one that says so and does not, one that says no;
//! - a rank that fails, or never comes to a sum, ends the job;
//! - every call of NCCL that fails ends the job with its name.
//!
//! Between several nodes: tests/hosts.rs.

use crate::support::cases::{each, first};
use crate::support::fake_cuda;
use crate::support::gpu_job;
use crate::support::job;
use crate::support::residual::residual;

use gpu_job::{Results, SHAPES, all_but, close, each_failing, refused, with_cuda};
use job::{DLTRAIN, finish};

/// The host adds in the order of ranks too: the same bits, on a GPU that all share or one each, however late work is
/// done, and repeated. `auto` goes that way.
#[test]
fn gpus_of_a_node_add_up_in_each_others_memory() {
    let mut results = Results::new();
    let flags = format!(
        "--model mnist_net --data {SHAPES} --steps 4 --optimizer sgd --lr 0.01 --fusion-threshold-mb 0.1 --device cuda"
    );
    let all = [(2, "2", " --accumulation 2 --clip-norm 0.5"), (4, "2", ""), (2, "1", ""), (3, "3", "")];
    for (ranks, gpus, more) in first(2, all) {
        let flags = format!("{flags} --batch {}{more}", 12 / ranks);
        let gpus = ("FAKE_CUDA_DEVICES", gpus);
        let (staged, done) = results.train_with(ranks, &format!("{flags} --allreduce shm"), &[gpus]);
        assert!(!ipc(&done.stdout), "{}", done.stdout);
        let (reached, done) = results.train_with(ranks, &flags, &[gpus]);
        assert_eq!(reached, staged, "{ranks} ranks{more}");
        assert!(ipc(&done.stdout), "{}", done.stdout);
        let late = [gpus, ("FAKE_CUDA_DELAYED", "1"), ("FAKE_CUDA_DESCENDING", "1")];
        let (late, _) = results.train_with(ranks, &format!("{flags} --allreduce ipc --no-overlap"), &late);
        assert_eq!(late, staged, "{ranks} ranks{more}, late");
    }
    let alone = format!("{flags} --batch 12");
    assert_eq!(results.losses(1, &format!("{alone} --allreduce ipc")), results.losses(1, &alone));
    // Halves and a loss scale.
    let half = format!("{flags} --batch 6 --precision f16");
    let (reached, shm) = (results.losses(2, &half), results.losses(2, &format!("{half} --allreduce shm")));
    assert_eq!(reached, shm, "f16");
    let dry = ["--dry-run", "--model", "mnist_net", "--device", "cuda"];
    let dry = finish(with_cuda(job::job(&[(2, &dry)]), &[], results.directory.path())).stdout;
    assert!(dry.lines().any(|line| line.contains(" ipc ")), "{dry}");
}

/// Whether the closing lines say that GPUs added up in each other's memory.
fn ipc(stdout: &str) -> bool {
    stdout.lines().any(|line| line.starts_with("allreduce ") && line.contains(" ipc,"))
}

/// Where GPUs do not reach each other `auto` goes through the host, and says so once; asked for, it is an error.
#[test]
fn gpus_that_do_not_reach_each_other_go_through_the_host() {
    let mut results = Results::new();
    let flags = "--model mnist_small --batch 4 --steps 2 --device cuda";
    let two = ("FAKE_CUDA_DEVICES", "2");
    let staged = results.train_with(2, &format!("{flags} --allreduce shm"), &[two]).0;
    for fails in ["cuIpcOpenMemHandle_v2:1:217", "cuIpcGetMemHandle:1:801"] {
        let variables = [two, ("FAKE_CUDA_FAIL", fails)];
        let (losses, done) = results.train_with(2, flags, &variables);
        assert_eq!(losses, staged, "{fails}");
        let call = fails.split(':').next().unwrap();
        let said =
            |line: &&str| line.contains("gradients go through the host's memory") && line.contains(call);
        assert_eq!(done.stderr.lines().filter(said).count(), 1, "{}", done.stderr);
        assert!(!ipc(&done.stdout), "{}", done.stdout);
        let message = refused(2, &format!("{flags} --allreduce ipc"), &variables);
        let words = [
            "--allreduce ipc: the GPUs of a node do not reach each other's memory",
            call,
            "--allreduce auto",
        ];
        words.iter().for_each(|word| assert!(message.contains(word), "{message}"));
    }
    let compressed = results.train_with(2, &format!("{flags} --compress 1bit"), &[two]).1;
    assert!(!compressed.stderr.contains("gradients go through"), "{}", compressed.stderr);
    for (flags, words) in [
        ("--allreduce ipc --device cpu", ["computes on the CPU", "--device cuda"]),
        ("--allreduce ipc --device cuda --compress 1bit", ["--compress 1bit", "--allreduce ipc"]),
    ] {
        let message = refused(2, &format!("--model mnist_small --steps 1 {flags}"), &[two]);
        words.iter().for_each(|word| assert!(message.contains(word), "{message}"));
    }
    // More than a kernel takes.
    let nine = refused(9, &format!("{flags} --allreduce ipc"), &[]);
    assert!(nine.contains("9 ranks on a node, and a GPU reaches at most 8"), "{nine}");
}

/// Two addends have one sum; four are added by another tree of sums than the host's. Late work shows a wait that is
/// missing.
#[test]
fn gpus_that_add_up_by_themselves_train_the_same() {
    let mut results = Results::new();
    let flags =
        "--model mnist_small --steps 4 --optimizer sgd --lr 0.01 --fusion-threshold-mb 0.1 --device cuda";
    for (ranks, more) in first(2, [(2, " --accumulation 2 --clip-norm 0.5"), (4, ""), (1, ""), (2, "")]) {
        let flags = format!("{flags} --batch {}{more}", 16 / ranks);
        let count = ranks.to_string();
        let devices = ("FAKE_CUDA_DEVICES", count.as_str());
        let (staged, _) = results.train_with(ranks, &format!("{flags} --allreduce shm"), &[devices]);
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
    let residual = residual();
    let flags = format!("{residual} --batch 2 --steps 2 --lr 0.001 --sync-bn --device cuda");
    let devices = [("FAKE_CUDA_DEVICES", "2")];
    let (staged, _) = results.train_with(2, &format!("{flags} --allreduce shm"), &devices);
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
        "--model mnist_net --data {SHAPES} --batch 8 --steps 4 --optimizer sgd --lr 0.01 --fusion-threshold-mb 0.1 \
         --device cuda --allreduce mpi --verbose"
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
    for flags in ["--device cuda", "--device cuda --allreduce ipc", "--device cpu --allreduce mpi"] {
        let message = refused(2, &format!("--model mnist_small --steps 1 --cuda-aware on {flags}"), &[]);
        assert!(message.contains("--cuda-aware on is for --device cuda with --allreduce mpi"), "{message}");
    }
}

#[test]
fn what_nccl_lacks_is_said_before_anything_is_done() {
    let flags = "--model mnist_small --steps 1 --allreduce nccl";
    let cuda = format!("{flags} --device cuda");
    let apart = ("FAKE_CUDA_DEVICES", "2");
    let cases = [
        (&cuda, vec![], ["ranks 0, 1 share a GPU of ", "as many ranks as there are GPUs"]),
        (&format!("{flags} --device cpu"), vec![], ["computes on the CPU", "--device cuda"]),
        (&format!("{flags} --device reference"), vec![], ["computes on reference", "--device cuda"]),
        (&cuda, vec![apart, ("FAKE_NCCL_VERSION", "2708")], ["code 2708", "2.14 or newer"]),
        (&format!("{cuda} --wire bf16"), vec![apart], ["--wire bf16", "in f32"]),
        (&format!("{cuda} --compress 1bit"), vec![apart], ["--compress 1bit", "--allreduce nccl"]),
    ];
    each(cases, |(flags, variables, words)| {
        let message = refused(2, flags, &variables);
        words.iter().for_each(|word| assert!(message.contains(word), "{flags} {variables:?}: {message}"));
    });
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
    let cases = [
        (
            "nccl",
            "FAKE_CUDA_FAIL=ncclCommInitRankConfig:1",
            vec!["rank 1 on ", "ncclCommInitRankConfig", "code 3"],
        ),
        (
            "nccl",
            "FAKE_CUDA_FAIL=ncclCommGetAsyncError:1",
            vec!["rank 1 on ", "ncclCommGetAsyncError", "code 3"],
        ),
        (
            "nccl",
            "FAKE_CUDA_FAIL=ncclAllReduce:3",
            vec!["rank 1 on ", "ncclAllReduce", "code 3 (internal error)"],
        ),
        (
            "nccl",
            "FAKE_NCCL_HANG=1",
            vec!["the first sum (nccl)", "waiting for", "--stall-abort ends the job"],
        ),
        ("nccl", "FAKE_NCCL_HANG=3", vec!["(nccl allreduce)", "waiting for", "--stall-abort ends the job"]),
        (
            "ipc",
            "FAKE_CUDA_FAIL=cuIpcGetMemHandle:1",
            vec!["rank 1 on ", "cuIpcGetMemHandle", "--allreduce ipc"],
        ),
        (
            "ipc",
            "FAKE_CUDA_FAIL=cuIpcOpenMemHandle_v2:1",
            vec!["rank 1 on ", "cuIpcOpenMemHandle_v2", "see all GPUs"],
        ),
        ("auto", "FAKE_CUDA_FAIL=cuIpcOpenMemHandle_v2:2", vec!["rank 1 on ", "cuIpcOpenMemHandle_v2"]),
        (
            "auto",
            "FAKE_CUDA_FAIL=cuLaunchKernel:1",
            vec!["rank 1 on ", "cuLaunchKernel", "--allreduce shm goes without"],
        ),
        ("ipc", "FAKE_CUDA_FAIL=cuEventRecord:30", vec!["rank 1 on ", "cuEventRecord"]),
    ];
    each(cases, |(sums, variable, words)| {
        let results = directory.path().join(format!("{sums}-{variable}.h5"));
        let script = format!(
            "[ ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} = 1 ] && export {variable}; exec '{DLTRAIN}' --model mnist_small \
             --batch 4 --steps 5 --device cuda --allreduce {sums} --stall-abort 3 --results '{}'",
            results.display()
        );
        let command = job::start(2, &["sh", "-c", &script]);
        let done = finish(with_cuda(command, &[("FAKE_CUDA_DEVICES", "2")], directory.path()));
        assert!(
            !done.success && done.took < job::SECONDS,
            "{sums} {variable}: {:?} {}",
            done.took,
            done.stdout
        );
        let said = |line: &str| line.contains("error: ") && words.iter().all(|word| line.contains(word));
        assert!(done.stderr.lines().any(said), "{sums} {variable}: {}", done.stderr);
    });
}

#[test]
fn a_call_of_nccl_that_fails_ends_the_job_with_its_name() {
    assert!(each_failing("--allreduce nccl", |name| name.starts_with("nccl")) > 5);
}
