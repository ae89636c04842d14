//! What a GPU's backward pass hides of the sums, and how often a step calls the driver: on doubles of CUDA's libraries
//! with their virtual clock (tests/fake_cuda/README.md).
//!
//! - the communication that is exposed, on every way through the host and between GPUs, with `--no-overlap` and
//!   without, is what a schedule made by hand from the durations of kernels, copies and messages exposes: within 5 %;
//! - a steady step enqueues two things a stretch and a few a step, that of a rank by itself three in all; it waits for
//!   no stream, and copies nothing that the driver would copy before it returns; the losses come while the backward
//!   pass goes on;
//! - in halves it casts no weight: the update has written them; resnet50's step has so many nodes and no more.

use crate::support::cases::first;
use crate::support::fake_cuda;
use crate::support::gpu_job;
use crate::support::job::{self, finish};

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use gpu_job::with_cuda;

const FLAGS: &str = "--model cifar_net --batch 2 --warmup 0 --fusion-threshold-mb 0.01 --device cuda";
/// GB/s of memory, TFLOP/s, GB/s between host and GPU, GB/s of messages: the sums of this small model take about as
/// long as its kernels.
const RATES: &str = "40,1,4,3";
/// The same for messages that are encoded, a thirtieth as long.
const SLOW: &str = "40,1,4,0.2";
/// What a message takes on its way, in ns.
const LATENCY: i64 = 5000;

/// A line of FAKE_CUDA_TRACE.
struct Work {
    stream: i64,
    what: String,
    from: i64,
    to: i64,
    bytes: i64,
}

fn traced(path: &Path) -> Vec<Work> {
    let text = std::fs::read_to_string(path).unwrap();
    let work = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse().unwrap();
        Work { stream: number(0), what: words[1].into(), from: number(2), to: number(3), bytes: number(4) }
    };
    text.lines().map(work).collect()
}

/// Trains with a clock that all ranks share; what rank 0 did from the first launch on, in the order in which it was
/// enqueued.
fn run(ranks: usize, flags: &str, rates: &str) -> Vec<Work> {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let flags = format!("{FLAGS} --steps 6 --results {} {flags}", path("results.h5").display());
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let [clock, trace] = ["clock", "trace"].map(|name| path(name).display().to_string());
    let preload = fake_cuda::libraries().join("libclock.so").display().to_string();
    let variables = [
        ("LD_PRELOAD", preload.as_str()),
        ("FAKE_CUDA_CLOCK", &clock),
        ("FAKE_CUDA_TRACE", &trace),
        ("FAKE_CUDA_RATES", rates),
    ];
    let done = finish(with_cuda(job::job(&[(ranks, &flags)]), &variables, directory.path()));
    assert!(done.success, "{flags:?}\n{}\n{}", done.stdout, done.stderr);
    let work = traced(&path("trace.0"));
    let first = work.iter().position(|work| work.what == "launch").unwrap();
    work.into_iter().skip(first).collect()
}

/// The last but one step: its length, and its work.
fn steady(work: &[Work]) -> (i64, &[Work]) {
    let launches: Vec<usize> = (0..work.len()).filter(|&at| work[at].what == "launch").collect();
    let begins: Vec<usize> = {
        let of_step = |pair: &&[usize]| work[pair[0]].from != work[pair[1]].from;
        launches.windows(2).filter(of_step).map(|pair| pair[1]).collect()
    };
    let [.., first, second] = begins[..] else { panic!("{} steps", begins.len()) };
    let step = &work[first..second];
    // The driver copies what is not pinned before the call returns, whatever the call is named.
    let waiting = step.iter().find(|work| work.what == "pageable");
    assert!(
        waiting.is_none(),
        "a steady step copies {:?} bytes that are not pinned",
        waiting.map(|work| work.bytes)
    );
    (work[second].from - work[first].from, step)
}

/// How a bucket travels.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Copied to the host, where adding up, and what encodes on the host, takes no time.
    Shared,
    /// Between the hosts, round a ring.
    Ring,
    /// Between the hosts, halves of what is left there and back.
    Halving,
    /// Between the hosts, all of it with one rank after the other.
    Doubling,
    /// By the MPI library, in one call.
    Library,
    /// Added up by a kernel.
    Peers,
    /// Encoded; messages go round a ring.
    Coded,
}

impl Way {
    /// The messages, one after the other, that a rank sends of so many bytes.
    fn messages(self, bytes: f64, ranks: usize) -> Vec<f64> {
        let rounds = ranks.ilog2();
        match self {
            Way::Shared | Way::Peers => Vec::new(),
            Way::Ring => vec![bytes / ranks as f64; 2 * (ranks - 1)],
            Way::Halving => {
                let halves = (1..=rounds).chain((1..=rounds).rev());
                halves.map(|round| bytes / f64::from(1 << round)).collect()
            }
            Way::Doubling => vec![bytes; rounds as usize],
            // As many bytes as a ring sends.
            Way::Library => vec![2.0 * bytes * (ranks - 1) as f64 / ranks as f64],
            Way::Coded => vec![bytes; ranks - 1],
        }
    }
}

/// When each bucket's messages have all come: a rank sends one as soon as the one before it has come, of whichever
/// bucket is first, over one link.
fn arrivals(left: &[i64], messages: impl Fn(usize) -> Vec<f64>, rate: f64) -> Vec<i64> {
    let mut come = left.to_vec();
    let mut waiting: Vec<(i64, usize, usize)> =
        (0..left.len()).map(|bucket| (left[bucket], bucket, 0)).collect();
    let mut link = 0;
    while let Some(&first) = waiting.iter().min() {
        waiting.retain(|of| *of != first);
        let (time, bucket, sent) = first;
        come[bucket] = time;
        if let Some(bytes) = messages(bucket).get(sent) {
            link = link.max(time) + (bytes / rate) as i64;
            waiting.push((link + LATENCY, bucket, sent + 1));
        }
    }
    come
}

/// When each is done, one after the other.
fn in_turn(ready: &[i64], takes: &[i64]) -> Vec<i64> {
    let mut done = 0;
    let each = ready.iter().zip(takes).map(|(ready, takes)| {
        done = done.max(*ready) + takes;
        done
    });
    each.collect()
}

/// What a step takes and what of it is exposed, if every stream does its work as soon as it can.
fn by_hand(step: &[Work], way: Way, overlap: bool, ranks: i64, rate: f64) -> (i64, i64) {
    let main = step[0].stream;
    let takes = |work: &Work| work.to - work.from;
    let is_update = |work: &&Work| work.what.starts_with("update");
    let updates: Vec<i64> = step.iter().filter(is_update).map(takes).collect();
    let buckets = updates.len();
    let launches = step.iter().filter(|work| work.what == "launch").count();
    // Copies of buckets: the losses are the first to the host, and the tail is small.
    let losses = step.iter().position(|work| work.stream != main && work.what == "download").unwrap();
    let copies = |what: &str| -> Vec<usize> {
        let of = |at: &usize| step[*at].stream != main && step[*at].what == what && step[*at].bytes > 64;
        (0..step.len()).filter(of).filter(|&at| at != losses).collect()
    };
    let (down, up) = (copies("download"), copies("upload"));
    let of = |copies: &[usize], bucket: usize| -> i64 {
        let each = copies.len() / buckets;
        copies.iter().skip(each * bucket).take(each).map(|&at| takes(&step[at])).sum()
    };
    let first_of_a_bucket = |copies: &[usize], at: usize| {
        let place = copies.iter().position(|&copy| copy == at);
        place.is_some_and(|place| place % (copies.len() / buckets) == 0)
    };
    // The numbers of a step come before it; here the next one's are the last.
    let numbers = (0..step.len()).rfind(|&at| step[at].stream == main && step[at].what == "upload").unwrap();
    // When each bucket's gradients are there, and when all is computed: the time of the stream that computes, if it
    // never waits.
    let (mut time, mut launched) = (takes(&step[numbers]), 0);
    let (mut ready, mut decoding) = (Vec::new(), Vec::new());
    for (at, work) in step.iter().enumerate() {
        if work.what == "launch" {
            launched += 1;
            // Peers add up a bucket where it lies.
            if way == Way::Peers && overlap && launched > launches - buckets + 1 {
                ready.push(time);
            }
        } else if first_of_a_bucket(&down, at) {
            let behind = if overlap { launches - buckets + ready.len() + 1 } else { launches };
            assert_eq!(launched, behind, "a bucket leaves right behind the stretch that completes it");
            ready.push(time);
        } else if first_of_a_bucket(&up, at) {
            decoding.push(0);
        } else if work.stream == main && !is_update(&work) && at != numbers {
            match decoding.last_mut() {
                Some(decoding) => *decoding += takes(work),
                None => time += takes(work),
            }
        }
    }
    let end = time;
    if way == Way::Peers {
        ready.push(end);
    }
    // Encoding begins when all is computed, one bucket behind the other.
    if !overlap && way != Way::Coded {
        ready = vec![end; buckets];
    }
    decoding.resize(buckets, 0);
    // Nothing starts in the backward pass without overlap, so that it is one launch.
    assert_eq!((ready.len(), launches), (buckets, 1 + if overlap { buckets } else { 1 }));
    let sums: Vec<i64> = step.iter().filter(|work| work.what == "add_parts").map(takes).collect();
    let takes_down: Vec<i64> = (0..buckets).map(|bucket| of(&down, bucket)).collect();
    let left = in_turn(&ready, &takes_down);
    let bytes = |bucket: usize| step[down[down.len() / buckets * bucket]].bytes as f64;
    let come = match way {
        Way::Peers => in_turn(&left, &sums),
        _ => arrivals(&left, |bucket| way.messages(bytes(bucket), ranks as usize), rate),
    };
    let [mut back, mut done] = [0, end];
    for bucket in 0..buckets {
        back = back.max(come[bucket]) + of(&up, bucket);
        done = done.max(back) + decoding[bucket] + updates[bucket];
    }
    (done, done - end - updates.iter().chain(&decoding).sum::<i64>())
}

#[test]
fn the_backward_pass_hides_what_a_schedule_by_hand_hides() {
    let ways = [
        (4, "--allreduce shm", Way::Shared),
        (2, "--allreduce ipc", Way::Peers),
        (4, "--allreduce ring", Way::Ring),
        (2, "--allreduce halving-doubling", Way::Halving),
        (2, "--allreduce mpi", Way::Library),
        (4, "--compress 1bit", Way::Coded),
        (2, "--compress 1bit", Way::Coded),
        (2, "--allreduce shm", Way::Shared),
        (4, "--allreduce ipc", Way::Peers),
        (2, "--allreduce ring", Way::Ring),
        (2, "--allreduce hierarchical", Way::Shared),
        (4, "--allreduce hierarchical", Way::Shared),
        (4, "--allreduce halving-doubling", Way::Halving),
        (2, "--allreduce recursive-doubling", Way::Doubling),
        (4, "--allreduce recursive-doubling", Way::Doubling),
        (4, "--allreduce mpi", Way::Library),
        // Its factors are added up in the memory that the node shares.
        (2, "--compress powersgd", Way::Shared),
    ];
    for (ranks, flags, way) in first(6, ways) {
        let rates = if way == Way::Coded { SLOW } else { RATES };
        let rate: f64 = rates.rsplit(',').next().unwrap().parse().unwrap();
        let exposed = ["", " --no-overlap"].map(|more| {
            let work = run(ranks, &format!("{flags}{more}"), rates);
            let (took, step) = steady(&work);
            let (expected, exposed) = by_hand(step, way, more.is_empty(), ranks as i64, rate);
            let found = exposed + took - expected;
            println!(
                "{ranks} ranks {flags}{more}: {took} ns, {found} exposed; by hand {expected}, {exposed}"
            );
            let close = (found - exposed).abs() as f64 <= 0.05 * exposed as f64;
            assert!(close, "{ranks} ranks {flags}{more}: {found} ns exposed and {exposed} by hand");
            found
        });
        assert!(exposed[0] < exposed[1], "{ranks} ranks {flags}: {exposed:?}");
    }
}

/// Behind the forward pass, of which they are the last, and long before the update that waits for them.
#[test]
fn losses_come_while_the_backward_pass_goes_on() {
    let ways = [(1, ""), (2, "--allreduce shm"), (1, "--precision f16"), (2, "--allreduce ipc")];
    for (ranks, flags) in first(2, ways) {
        let work = run(ranks, flags, RATES);
        let (_, step) = steady(&work);
        let main = step[0].stream;
        let scores = step.iter().find(|work| work.what == "softmax_cross_entropy_f32").unwrap();
        let losses = step.iter().find(|work| work.stream != main && work.what == "download").unwrap();
        let computes = |work: &&Work| work.stream == main && !work.what.starts_with("update");
        let backward = step.iter().filter(computes).filter(|work| work.from > losses.from).count();
        assert_eq!(losses.from, scores.to, "{ranks} ranks {flags}");
        assert!(backward > 10, "{ranks} ranks {flags}: {backward} kernels begin later");
    }
}

#[test]
fn a_steady_step_in_halves_casts_no_weight() {
    for (precision, flags) in
        [("bf16", ""), ("f16", ""), ("bf16", "--freeze conv1"), ("bf16", "--freeze fc1")]
    {
        let work = run(1, &format!("--precision {precision} {flags}"), RATES);
        let (_, step) = steady(&work);
        let count = |name: &str| step.iter().filter(|work| work.what.starts_with(name)).count();
        // That of the scores' gradient.
        assert_eq!(count(&format!("cast_f32_{precision}")), 1, "{precision} {flags}");
        assert!(count("update") > 0, "{precision} {flags}");
    }
}

/// Every call of the driver and of libraries, on any rank.
fn all_calls(ranks: usize, flags: &str) -> Vec<String> {
    all_calls_with(ranks, flags, &[])
}

fn all_calls_with(ranks: usize, flags: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().join("results.h5");
    let flags = format!("{flags} --warmup 0 --device cuda --results {}", results.display());
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let log = directory.path().join("log").display().to_string();
    let variables = [&[("FAKE_CUDA_LOG", log.as_str())], variables].concat();
    let done = finish(with_cuda(job::job(&[(ranks, &flags)]), &variables, directory.path()));
    assert!(done.success, "{flags:?}\n{}\n{}", done.stdout, done.stderr);
    let mut files = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let file = files.find(|file| file.file_name().unwrap().to_str().unwrap().starts_with("log."));
    let text = std::fs::read_to_string(file.unwrap()).unwrap();
    text.lines().filter_map(|line| Some(line.split(' ').nth(1)?.to_string())).collect()
}

/// How often each was made in two steady steps, and how many stretches they have.
fn calls(ranks: usize, flags: &str) -> (BTreeMap<String, usize>, usize) {
    const STEPS: usize = 6;
    let small = "--model cifar_net --batch 2 --fusion-threshold-mb 0.01";
    let calls = all_calls(ranks, &format!("{small} --steps {STEPS} {flags}"));
    let launches: Vec<usize> = (0..calls.len()).filter(|&at| calls[at] == "cuGraphLaunch").collect();
    // From the second step on there are graphs.
    let stretches = launches.len() / (STEPS - 1);
    let mut counts = BTreeMap::new();
    for call in &calls[launches[2 * stretches]..launches[4 * stretches]] {
        *counts.entry(call.to_string()).or_default() += 1;
    }
    (counts, stretches)
}

/// What a step of resnet50 in bf16 has the GPU do: our own launches, products and copies, in one graph, with the
/// updates and what looks at the losses. Of the kernels 53 normalise, which read the sums that a convolution gives
/// along with its result, 53 give the sums that their gradients need, 53 join these and 53 go back. All gradients of
/// weights that come in halves are cast by one; that of the first convolution, which is padded, by another.
#[test]
fn a_step_of_resnet50_has_few_nodes() {
    let calls =
        all_calls(1, "--model resnet50 --image-size 32 --classes 10 --batch 2 --steps 2 --precision bf16");
    let (mut captures, mut launched) = (false, false);
    let [mut own, mut products, mut copies, mut fetched, mut graphs] = [0; 5];
    for call in &calls {
        captures = call == "cuStreamBeginCapture_v2" || captures && call != "cuStreamEndCapture";
        launched |= call == "cuGraphLaunch";
        graphs += usize::from(call == "cuGraphLaunch");
        if captures || launched {
            own += usize::from(call == "cuLaunchKernel");
            products += usize::from(call == "cudnnBackendExecute" || call.starts_with("cublasGemm"));
            copies += usize::from(call.starts_with("cuMemcpyDtoD") || call.starts_with("cuMemset"));
            fetched += usize::from(captures && call.starts_with("cuMemcpyDtoH"));
        }
    }
    assert_eq!([copies, fetched, graphs], [0, 1, 1]);
    the_page_says(&format!(
        "A step of resnet50 in bf16 has {own} launches of our own and {products} products"
    ));
}

/// docs/gpu.md has this, wherever its lines end.
fn the_page_says(sentence: &str) {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/gpu.md")).unwrap();
    assert!(words(&page).contains(&words(sentence)), "docs/gpu.md lacks: {sentence}");
}

/// The tables and figures of docs/gpu.md that the model of a step has made of the plan.
fn predicted(models: &str) {
    let mut predict = Command::new("python3");
    predict.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/benchmarks/gpu/predict.py")).arg(job::DLTRAIN);
    predict.arg("--libraries").arg(fake_cuda::libraries()).args(["--page", "--models", models]);
    let done = finish(predict);
    assert!(done.success, "{}", done.stderr);
    assert!(done.stdout.lines().count() > 9, "{}", done.stdout);
    done.stdout.lines().for_each(the_page_says);
}

#[test]
fn what_is_predicted_of_a_small_network_is_what_the_page_says() {
    predicted("mnist_small");
}

/// Nsight Compute's window in `.ci/gpu-minutes` rests on what a step without graphs has.
fn launches_without_graphs(fusion: &str) -> [usize; 2] {
    let count = |steps: usize| {
        let flags = "--model resnet50 --image-size 32 --classes 10 --batch 2 --precision bf16";
        let variables = [("DLTRAIN_CUDA_GRAPH", "0"), ("DLTRAIN_CUDNN_FUSION", fusion)];
        let calls = all_calls_with(1, &format!("{flags} --steps {steps}"), &variables);
        let of =
            |names: [&str; 2]| calls.iter().filter(|call| names.iter().any(|n| call.starts_with(n))).count();
        [of(["cuLaunchKernel"; 2]), of(["cudnnBackendExecute", "cublasGemm"])]
    };
    let [two, three] = [count(2), count(3)];
    [three[0] - two[0], three[1] - two[1]]
}

mod full {
    /// What is measured of a step by kernel lies in the window, whether cuDNN fuses or not.
    #[test]
    #[ignore = "a minute"]
    fn the_window_of_the_profiler_holds_two_losses() {
        let [fused, apart] = ["1", "0"].map(super::launches_without_graphs);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/.ci/gpu-minutes");
        let script = std::fs::read_to_string(path).unwrap();
        let words: Vec<&str> = script.split_whitespace().filter(|word| *word != "#").collect();
        let [own, products] = fused;
        let said = format!(
            "Without graphs resnet50 has {own} launches of our own a step, {} where cuDNN fuses nothing, and {products} \
             products",
            apart[0]
        );
        assert!(words.join(" ").contains(&said), ".ci/gpu-minutes lacks: {said}");
        assert_eq!(apart[1], products);
    }

    /// Of all networks of the page.
    #[test]
    #[ignore = "minutes"]
    fn what_is_predicted_is_what_the_page_says() {
        super::predicted("resnet50,alexnet,vgg16,inception_v3,mobilenet_v2,densenet121,mnist_small");
    }
}

/// A rank that is alone has nothing to send while it computes: its whole step is one graph.
#[test]
fn a_steady_step_makes_few_calls_and_waits_for_no_stream() {
    let mut buckets = 0;
    for (ranks, flags, [each, once]) in [
        (2, "--allreduce ipc", [5, 9]),
        (2, "--allreduce shm", [8, 11]),
        (2, "--allreduce shm --precision f16", [8, 16]),
        // The numbers of the step, its graph, and a mark behind it.
        (1, "", [0, 3]),
        (1, "--precision f16", [0, 3]),
    ] {
        let (counts, stretches) = calls(ranks, flags);
        match ranks {
            1 => assert_eq!(stretches, 1, "{flags}"),
            _ => buckets = stretches - 1,
        }
        assert!(buckets > 2, "{stretches}");
        for waits in ["cuStreamSynchronize", "cuCtxSynchronize", "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2"] {
            assert_eq!(counts.get(waits), None, "{ranks} ranks {flags}: {waits}");
        }
        // Whoever waits asks again and again.
        let ours = |name: &&String| name.starts_with("cu") && *name != "cuEventQuery";
        let all: usize = counts.keys().filter(ours).map(|name| counts[name]).sum::<usize>() / 2;
        assert!(all <= each * buckets + once, "{ranks} ranks {flags}: {all} calls, {buckets} buckets");
    }
}
