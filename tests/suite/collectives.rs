//! What a user relies on when ranks meet: run as real jobs under the launcher of the MPI library in use.
//!
//! - every algorithm of every collective gives what a serial program does, whatever the number of ranks and the length
//! - reduce-scatter, allgather and broadcast (from any rank) are there for other programs
//! - groups of ranks get each other's numbers, one gather after the other
//! - a reduce-scatter and an allgather by any cuts have the bits of a plain sum with these cuts
//! - a world can be split: every collective works in several groups at once, whatever their sizes, and people are told
//!   the job's ranks
//! - nobody waits for a rank that computes, once it has arrived (shm)
//! - under a launcher of another MPI the job stops with one message that says what to type
//! - errors, names and numbers cross ranks; ranks that must agree and do not are named
//! - a rank that fails, panics or dies takes the job with it
//! - without room in /dev/shm everything still works, and says so
//!
//! The launcher is `DLTRAIN_MPIRUN` ("mpirun --oversubscribe"), by default the one of the library linked. Jobs
//! are dltrain itself, or this test program started again for the test `scene`, which does what
//! `DLTRAIN_SCENE` says.

use crate::support::cases::{first, full};
use std::collections::HashSet;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use dltrain::collective::tuning::Tuning;
use dltrain::collective::{AllToAll, Collective, Gather, InGroups, Operation, Route, segment, select, wait};
use dltrain::comm::{Barrier, Family, Mesh, MpiLibrary, NodeShared, Region, World};
use dltrain::config::{AllreduceKind, MeshShape, Wire};
use dltrain::cuts::Cuts;
use dltrain::error::{Error, ErrorKind};

const DLTRAIN: &str = env!("CARGO_BIN_EXE_dltrain");

/// One job at a time: two would fight for the cores and wait for each other's ranks.
static MACHINE: Mutex<()> = Mutex::new(());

fn installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// How jobs of an MPI family are started here, if they can be.
fn launcher_of(family: Family) -> Option<Vec<String>> {
    let candidates: [&[&str]; 2] = match family {
        Family::OpenMpi => {
            [&["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"], &["mpirun", "--oversubscribe"]]
        }
        _ => [&["mpiexec.mpich"], &["mpiexec"]],
    };
    let found = candidates.iter().find(|words| installed(words[0]))?;
    Some(found.iter().map(ToString::to_string).collect())
}

fn launcher() -> Vec<String> {
    match std::env::var("DLTRAIN_MPIRUN") {
        Ok(words) => words.split_whitespace().map(String::from).collect(),
        Err(_) => launcher_of(MpiLibrary::linked().family).expect("no launcher found; set DLTRAIN_MPIRUN"),
    }
}

/// Runs `command` under a limit that no healthy job comes near; a job that hangs fails with code 124.
fn run(command: &[String]) -> Output {
    let _alone = MACHINE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut limited = Command::new("timeout");
    limited.args(["-k", "5", "300"]).args(command).env("RUST_LOG", "warn");
    limited.output().expect("cannot run `timeout`")
}

fn job_under(launcher: &[String], ranks: usize, program: &[&str]) -> Output {
    let ranks = ["-n".to_string(), ranks.to_string()];
    run(&[launcher, &ranks, &program.iter().map(ToString::to_string).collect::<Vec<_>>()].concat())
}

fn job(ranks: usize, program: &[&str]) -> Output {
    job_under(&launcher(), ranks, program)
}

/// A job of this program in which each rank plays the scene.
fn play(scene: &str, ranks: usize) -> Output {
    let this = std::env::current_exe().unwrap();
    let variable = format!("DLTRAIN_SCENE={scene}");
    let this = this.to_str().unwrap();
    let test = ["--ignored", "--exact", "collectives::scene", "--nocapture", "--test-threads=1"];
    let output = job(ranks, &[&["env", &variable, this], &test[..]].concat());
    assert!(text(&output).contains("running 1 test"), "no scenes: {}", text(&output));
    output
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn assert_passes(output: &Output) {
    assert!(output.status.success(), "{}\n{}", output.status, text(output));
}

/// Asserts that the job failed, and by itself.
fn assert_fails(output: &Output) {
    let code = output.status.code();
    assert!(code.is_some_and(|code| code != 0 && code != 124), "{}\n{}", output.status, text(output));
}

/// Checks one collective by all algorithms that can run, in a job; each must have a row without wrong elements.
fn check(bench: &str, ranks: usize, wire: &str, lengths: &[&str], algorithms: &[&str]) {
    let lengths_flag = lengths.join(",");
    let checked = [DLTRAIN, "bench", bench, "--check-only", "--wire", wire, "--lengths", &lengths_flag];
    let output = job(ranks, &checked);
    assert_passes(&output);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains(&format!("{ranks} ranks on 1 node(s)")), "{stdout}");
    for length in lengths {
        for algorithm in algorithms {
            let row = [length, algorithm, "0"];
            let found =
                stdout.lines().any(|line| line.split_whitespace().rev().take(3).eq(row.into_iter().rev()));
            assert!(found, "no row {row:?} of {bench}, {wire}, at {ranks} ranks:\n{stdout}");
        }
    }
}

const SUMS: [&str; 7] =
    ["mpi", "ring", "halving-doubling", "recursive-doubling", "torus", "hierarchical", "shm"];
const SIBLINGS: [(&str, &[&str]); 3] = [
    ("reducescatter", &["ring", "hierarchical", "shm"]),
    ("allgather", &["ring", "hierarchical", "shm"]),
    ("broadcast", &["chain", "tree", "shm"]),
];
const LENGTHS: [&str; 7] = ["0", "1", "2", "7", "1009", "100003", "1000001"];

/// How many cases `make test` has. A rank that waits in MPICH takes its core from the others, which costs the time of
/// three: half as many there.
fn quick(cases: usize) -> usize {
    if MpiLibrary::linked().family == Family::Mpich { cases / 2 } else { cases }
}

#[test]
fn every_algorithm_gives_the_serial_sum() {
    // The longest, which is cut into most pieces, is summed by up to three ranks: by more than there are cores it takes
    // seconds.
    let lengths = |ranks| if full() || ranks < 4 { &LENGTHS[..] } else { &LENGTHS[..6] };
    for ranks in first(quick(4), [1, 3, 4, 7, 2, 5, 8]) {
        check("allreduce", ranks, "f32", lengths(ranks), &SUMS);
    }
    for (ranks, wire) in [(2, "bf16"), (3, "f16")] {
        check("allreduce", ranks, wire, lengths(ranks), &SUMS);
    }
}

#[test]
fn every_part_and_copy_is_where_it_belongs() {
    for (bench, algorithms) in SIBLINGS {
        for (ranks, wire) in first(quick(2), [(3, "bf16"), (5, "f32"), (1, "f32"), (2, "f32"), (7, "f16")]) {
            check(bench, ranks, wire, &LENGTHS[..6], algorithms);
        }
    }
    // With a power of two of ranks alone.
    check("reducescatter", 4, "bf16", &LENGTHS[..5], &["ring", "halving"]);
}

/// `make test-full`: minutes on a machine with few cores.
mod full {
    #[test]
    #[ignore = "128 ranks"]
    fn far_more_ranks_than_cores_still_give_the_serial_sum() {
        super::check("allreduce", 128, "f32", &["1", "1009", "20011"], &super::SUMS);
        for (bench, algorithms) in super::SIBLINGS {
            super::check(bench, 128, "f32", &["1", "1009"], algorithms);
        }
    }
}

#[test]
fn a_launcher_of_another_mpi_is_refused_with_one_message() {
    let (other, program) = match MpiLibrary::linked().family {
        Family::OpenMpi => (Family::Mpich, "mpiexec.mpich"),
        _ => (Family::OpenMpi, "mpirun.openmpi"),
    };
    if !installed(program) {
        println!("SKIPPED: {program} is not installed");
        return;
    }
    let begin = Instant::now();
    let output = job_under(&launcher_of(other).unwrap(), 3, &[DLTRAIN, "bench", "allreduce", "--check-only"]);
    assert_fails(&output);
    assert!(begin.elapsed() < crate::support::job::SECONDS);
    let text = text(&output);
    assert_eq!(text.matches("started 3 processes").count(), 1, "{text}");
    let linked = MpiLibrary::linked();
    assert!(text.contains(&linked.to_string()), "{text}");
    let remedy = if linked.family == Family::OpenMpi { "mpirun.openmpi" } else { "mpiexec.mpich" };
    assert!(text.contains(remedy), "{text}");
}

#[test]
fn without_a_launcher_one_rank_works_the_same_way() {
    let output =
        run(&[DLTRAIN, "bench", "allreduce", "--check-only", "--lengths", "0,1000"].map(String::from));
    assert_passes(&output);
    assert!(text(&output).contains("1 ranks on 1 node(s)"));
}

#[test]
fn texts_and_numbers_cross_ranks() {
    assert_passes(&play("texts", 3));
}

#[test]
fn ranks_agree_on_an_error() {
    assert_passes(&play("agree", 4));
}

#[test]
fn ranks_that_differ_are_named() {
    assert_passes(&play("same", 3));
}

#[test]
fn groups_gather_their_numbers() {
    for ranks in first(quick(5), [3, 6, 1, 2, 8]) {
        assert_passes(&play("gathers", ranks));
    }
}

#[test]
fn other_programs_can_use_the_siblings_of_the_sum() {
    for ranks in [1, 3] {
        assert_passes(&play("siblings", ranks));
    }
}

#[test]
fn sums_to_owners_and_from_there_to_all_have_the_bits_of_a_plain_sum() {
    for ranks in first(quick(2), [3, 4, 1, 2, 7]) {
        assert_passes(&play("cuts", ranks));
    }
}

#[test]
fn every_collective_works_in_groups_side_by_side() {
    for ranks in first(1, [3, 5, 1]) {
        assert_passes(&play("groups", ranks));
    }
}

#[test]
fn a_mesh_has_a_group_for_each_axis() {
    assert_passes(&play("mesh", 8));
}

#[test]
fn a_rank_of_a_group_that_fails_stops_or_dies_is_named_by_its_number_in_the_job() {
    assert_passes(&play("group_agrees", 4));
    let stopped = play("group_stops", 4);
    assert_fails(&stopped);
    let said = text(&stopped);
    assert!(said.contains(" s for rank 3 on ") && !said.contains("for rank 1 on"), "{said}");
    let died = play("group_dies", 4);
    assert_fails(&died);
    if MpiLibrary::linked().family == Family::OpenMpi {
        assert!(text(&died).contains("rank 3 with PID"), "{}", text(&died));
    }
}

#[test]
fn nobody_waits_for_a_rank_that_computes_once_it_has_arrived() {
    assert_passes(&play("busy", 3));
}

#[test]
fn a_rank_that_fails_alone_leaves_without_waiting_and_ends_the_job() {
    assert_fails(&play("leaves", 3));
}

#[test]
fn a_rank_that_panics_ends_the_job() {
    assert_fails(&play("panics", 3));
}

#[test]
fn a_rank_that_dies_ends_the_job() {
    assert_fails(&play("dies", 3));
}

#[test]
fn without_room_in_dev_shm_gradients_are_private_and_one_warning_says_so() {
    // A /dev/shm of 24 MB in a mount namespace of its own; two ranks want 16 MB each.
    let small = "mount -t tmpfs -o size=24m tmpfs /dev/shm && exec \"$@\"";
    let small: Vec<String> =
        ["unshare", "--mount", "sh", "-c", small, "sh"].iter().map(ToString::to_string).collect();
    if !run(&[small.as_slice(), &["true".to_string()]].concat()).status.success() {
        println!("SKIPPED: a mount namespace needs root");
        return;
    }
    let bench = [DLTRAIN, "bench", "allreduce", "--check-only", "--lengths", "4000000"];
    let output = job_under(&[small.clone(), launcher()].concat(), 2, &bench);
    assert_passes(&output);
    let said = text(&output);
    assert!(said.contains("private memory") && said.contains(" ring ") && !said.contains(" shm "), "{said}");
    assert_eq!(said.matches("Enlarge /dev/shm").count(), 1, "{said}");

    // A run does the same: its 16 MB of gradients a rank travel in messages.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.h5");
    let train = [DLTRAIN, "--model", "mnist_large", "--steps", "1", "--warmup", "0"];
    let train =
        [&train[..], &["--batch", "1", "--threads", "1", "--results", path.to_str().unwrap()]].concat();
    let output = job_under(&[small.clone(), launcher()].concat(), 2, &train);
    assert_passes(&output);
    for what in
        ["warn: gradients are not shared", "warn: parameters and the optimizer's state are not shared"]
    {
        assert_eq!(text(&output).matches(what).count(), 1, "{}", text(&output));
    }
    let used = hdf5::File::open(&path).and_then(|file| file.group("config")?.attr("allreduce_used"));
    let used = used.and_then(|used| used.read_scalar::<hdf5::types::VarLenUnicode>()).unwrap();
    assert!(["shm", "hierarchical"].iter().all(|near| !used.contains(near)), "{}", used.as_str());

    // Asked for by name, it is an error: nobody should measure one algorithm and get another.
    let asked = [&bench[..], &["--algorithm", "shm"]].concat();
    let output = job_under(&[small, launcher()].concat(), 2, &asked);
    assert_fails(&output);
    assert_eq!(text(&output).matches("--allreduce shm needs shared memory").count(), 1, "{}", text(&output));
}

/// What each rank of a job started by `play` does.
#[test]
#[ignore = "a rank of a job that another test starts"]
fn scene() {
    let world = World::start("").unwrap();
    match std::env::var("DLTRAIN_SCENE").as_deref() {
        Ok("texts") => texts(&world),
        Ok("agree") => agree(&world),
        Ok("same") => same(&world),
        Ok("gathers") => gathers(&world),
        Ok("siblings") => siblings(&world),
        Ok("cuts") => cuts(&world),
        Ok("groups") => groups(&world),
        Ok("mesh") => mesh(&world),
        Ok("group_agrees") => group_agrees(&world),
        Ok("group_stops") => group_stops(&world),
        Ok("group_dies") => {
            let group = world.split(world.rank() / 2, 0).unwrap();
            if world.rank() == 3 {
                std::process::abort();
            }
            group.barrier().unwrap();
            world.barrier().unwrap();
        }
        Ok("busy") => busy(&world),
        Ok("leaves") => leaves(&world),
        Ok("panics") => {
            assert_ne!(world.rank(), 1, "rank 1 panics");
            world.barrier().unwrap();
        }
        Ok("dies") => {
            if world.rank() == 1 {
                std::process::abort();
            }
            world.barrier().unwrap();
        }
        other => panic!("DLTRAIN_SCENE is {other:?}"),
    }
}

fn texts(world: &World) {
    let rank = world.rank();
    // Texts of unlike length, one empty, one not ASCII.
    let own = ["", "rank eins: ä", "two"][rank];
    assert_eq!(world.gather_text(own).unwrap(), ["", "rank eins: ä", "two"]);
    assert_eq!(world.broadcast_text(if rank == 0 { "von 0" } else { "ignored" }).unwrap(), "von 0");
    assert_eq!(world.broadcast_text("").unwrap(), "");
    assert_eq!(world.gather_text("").unwrap(), ["", "", ""]);
    let numbers = || [rank as f64, -1.5];
    let (mut sum, mut min, mut max) = (numbers(), numbers(), numbers());
    world.sum_f64(&mut sum).unwrap();
    world.min_f64(&mut min).unwrap();
    world.max_f64(&mut max).unwrap();
    assert_eq!((sum, min, max), ([3.0, -4.5], [0.0, -1.5], [2.0, -1.5]));
    world.sum_f64(&mut []).unwrap();
    assert_eq!((world.local_rank(), world.local_size(), world.node(), world.nodes()), (rank, 3, 0, 1));
    assert_eq!(world.host_of(2), world.host());
    assert!(World::start("").is_err());
}

fn agree(world: &World) {
    let rank = world.rank();
    assert_eq!(world.agree(Ok(rank)), Ok(rank));
    // Two ranks fail, each with its own story.
    let local = if rank == 1 || rank == 3 { Err(Error::usage(format!("story {rank}"))) } else { Ok(()) };
    let error = world.agree(local).unwrap_err();
    assert_eq!(error, Error::usage(format!("story 1 (rank 1 on {})", world.host_of(1))));
    assert!(world.is_agreed(&error));
    assert!(!world.is_agreed(&Error::usage("story 1")));
    let alike: Result<(), _> = Err(Error::new(ErrorKind::Data, "no such file"));
    assert_eq!(world.agree(alike), Err(Error::new(ErrorKind::Data, "no such file")));
}

fn same(world: &World) {
    let items = |batch: &str| -> Vec<(String, String)> {
        [("model", "mnist_small"), ("batch", batch), ("seed", "1")]
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .to_vec()
    };
    world.check_same(&items("32")).unwrap();
    let error = world.check_same(&items(if world.rank() == 2 { "64" } else { "32" })).unwrap_err();
    let host = world.host();
    assert_eq!(error.kind, ErrorKind::Mismatch);
    let expected = format!("ranks differ in batch: 32 (rank 0 on {host}), 64 (rank 2 on {host})");
    assert!(error.message.starts_with(&expected), "{error}");
    assert!(world.is_agreed(&error));
}

/// Ranks come to each gather at other times than the others, and lengths change from one to the next.
fn gathers(world: &World) {
    let number = |rank: usize, round: usize, index: usize| (rank * 1_000_000 + round * 10_000 + index) as f32;
    for size in (1..=world.size()).filter(|size| world.size().is_multiple_of(*size)) {
        let mut gather = Gather::new(world, size, 5000).unwrap();
        for (round, length) in [1, 5000, 0, 2, 1024].into_iter().enumerate() {
            let own: Vec<f32> = (0..length).map(|index| number(world.rank(), round, index)).collect();
            std::thread::sleep(Duration::from_millis(((world.rank() + round) % 3) as u64));
            gather.start(&own).unwrap();
            while !gather.is_done() {
                if !gather.poll().unwrap() {
                    std::thread::yield_now();
                }
            }
            let mut all = vec![-1.0; size * length];
            gather.read(&mut all);
            let first = world.rank() / size * size;
            let expected = (first..first + size)
                .flat_map(|rank| (0..length).map(move |index| number(rank, round, index)));
            assert!(all.into_iter().eq(expected), "groups of {size}, round {round}");
        }
        let mut transposed = AllToAll::new(world, size, size * 1024).unwrap();
        for (round, part) in [1, 1024, 0, 3].into_iter().enumerate() {
            let for_each = |rank: usize| {
                move |to: usize| (0..part).map(move |index| number(rank, round, to * 1024 + index))
            };
            let own: Vec<f32> = (0..size).flat_map(for_each(world.rank())).collect();
            transposed.start(&own).unwrap();
            while !transposed.is_done() {
                transposed.poll().unwrap();
                std::thread::yield_now();
            }
            let mut all = vec![-1.0; size * part];
            transposed.read(&mut all);
            let (first, place) = (world.rank() / size * size, world.rank() % size);
            let expected = (first..first + size).flat_map(|rank| for_each(rank)(place));
            assert!(all.into_iter().eq(expected), "all to all of {size}, round {round}");
        }
    }
    assert_eq!(Gather::new(world, world.size() + 1, 1).err().unwrap().kind, ErrorKind::Internal);
}

/// Random cuts, the same on every rank: parts may be empty, and lie in any order.
fn cuts(world: &World) {
    let (rank, ranks) = (world.rank(), world.size());
    let mut seed = 1u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    // The last one is more than a piece of `hierarchical`.
    for length in [0, 1, 5, 1009, 100_003, 2_300_000] {
        let start = random(9);
        let mut ends: Vec<usize> = (1..ranks).map(|_| start + random(length + 1)).collect();
        ends.push(start + length);
        ends.sort_unstable();
        let (first, mut next) = (random(ranks), start);
        let mut parts = vec![0..0; ranks];
        for (index, end) in ends.into_iter().enumerate() {
            parts[(first + index) % ranks] = std::mem::replace(&mut next, end)..end;
        }
        let cuts = Cuts::new(start..next, parts);
        let region = Region::allocate(world, 4 * (next + 5), true).unwrap();
        let values: Vec<f32> =
            (0..next + 5).map(|i| ((rank + 1) as f32).powi(i as i32 % 7 - 3) / 3.0).collect();
        let prepare = |mut collective: Box<dyn Collective>| {
            let slot = collective.prepare_cut(&cuts).unwrap();
            (collective, slot)
        };
        let run = |(collective, slot): &mut (Box<dyn Collective>, usize)| -> Vec<u32> {
            world.barrier().unwrap();
            collective.start(*slot).unwrap();
            wait(&mut **collective, *slot).unwrap();
            let mut all = vec![0.0; next + 5];
            region.read(0, &mut all);
            world.barrier().unwrap();
            all.into_iter().map(f32::to_bits).collect()
        };
        let near = [(Route::Shm, AllreduceKind::Shm), (Route::Hierarchical, AllreduceKind::HIERARCHICAL)];
        let messages =
            [(Route::Ring, AllreduceKind::RING), (Route::Halving, AllreduceKind::HALVING_DOUBLING)];
        for (route, kind) in messages.into_iter().chain(near) {
            let [scatter, gather] = [Operation::ReduceScatter, Operation::Allgather];
            if !scatter.routes(world, &region).contains(&route) {
                continue;
            }
            let back = if route == Route::Halving { Route::Ring } else { route };
            let tuning = Tuning::built_in();
            let mut sum = prepare(select(kind, Wire::F32, &tuning, world, &region).unwrap());
            let mut halves = [(scatter, route), (gather, back)]
                .map(|(half, by)| prepare(half.make(by, Wire::F32, world, &region).unwrap()));
            // Twice: nothing of the first round is left behind.
            for _ in 0..2 {
                region.write(0, &values);
                let whole = run(&mut sum);
                region.write(0, &values);
                let scattered = run(&mut halves[0]);
                let own = cuts.part(rank);
                assert_eq!(scattered[own.clone()], whole[own.clone()], "{route:?}, {length}, {cuts:?}");
                // What is not this rank's is lost.
                region.write(start, &vec![f32::NAN; length]);
                region.write(
                    own.start,
                    &scattered[own.clone()].iter().map(|&b| f32::from_bits(b)).collect::<Vec<_>>(),
                );
                let gathered = run(&mut halves[1]);
                assert!(gathered == whole, "{route:?}, {length}, {cuts:?}");
                assert!(
                    whole[next..].iter().zip(&values[next..]).all(|(a, b)| *a == b.to_bits()),
                    "{route:?}"
                );
            }
        }
    }
}

/// Two groups, three of unequal sizes, groups of one, and all ranks in reverse order: side by side, nested and again.
fn groups(world: &World) {
    let (rank, size) = (world.rank(), world.size());
    let split = |color: usize, key: usize| world.split(color, key).unwrap();
    for group in [split(rank % 2, rank), split(rank.min(2), 0), split(rank, 0), split(0, size - rank)] {
        in_group(world, &group);
    }
    let reversed = split(0, size - rank);
    assert_eq!((reversed.rank(), reversed.job_rank(0)), (size - 1 - rank, size - 1));
    let nested = split(rank % 2, rank).split(rank / 4, rank).unwrap();
    in_group(world, &nested);
    world.barrier().unwrap();
}

/// What there is in a world is there in a group, with numbers of the group's ranks alone.
fn in_group(world: &World, group: &World) {
    let (rank, size) = (group.rank(), group.size());
    assert_eq!(group.job_rank(rank), world.rank());
    let nodes = (0..size).map(|rank| world.host_of(group.job_rank(rank))).collect::<HashSet<_>>().len();
    assert_eq!(group.nodes(), nodes);
    assert_eq!(group.ranks_of(group.node())[group.local_rank()], rank);
    let length = 10_007;
    let range = 3..3 + length;
    let value = |rank: usize, index: usize| ((group.job_rank(rank) * 31 + index * 17) % 101) as f32;
    let region = Region::allocate(group, 4 * (length + 6), true).unwrap();
    assert!(region.is_shared());
    let run = |mut collective: Box<dyn Collective>| -> Vec<f32> {
        let slot = collective.prepare(range.clone()).unwrap();
        region.write(3, &(0..length).map(|index| value(rank, index)).collect::<Vec<_>>());
        group.barrier().unwrap();
        collective.start(slot).unwrap();
        wait(&mut *collective, slot).unwrap();
        let mut all = vec![0.0; length];
        region.read(3, &mut all);
        group.barrier().unwrap();
        all
    };
    let sum = |index: usize| (0..size).map(|rank| value(rank, index)).sum::<f32>();
    for &kind in AllreduceKind::value_variants().iter().filter(|kind| !kind.is_between_gpus()) {
        if kind == AllreduceKind::Shm && nodes > 1 || kind == AllreduceKind::HIERARCHICAL && !group.is_even()
        {
            continue;
        }
        let sums = run(select(kind, Wire::F32, &Tuning::built_in(), group, &region).unwrap());
        assert!(sums.into_iter().eq((0..length).map(sum)), "{kind:?} in a group of {size}");
    }
    let owner = |index: usize| (0..size).find(|&r| segment(&(0..length), size, r).contains(&index)).unwrap();
    for operation in [Operation::ReduceScatter, Operation::Allgather, Operation::Broadcast { root: size - 1 }]
    {
        for route in operation.routes(group, &region) {
            let found = run(operation.make(route, Wire::F32, group, &region).unwrap());
            for (index, found) in found.into_iter().enumerate() {
                let expected = match operation {
                    Operation::ReduceScatter if owner(index) != rank => continue,
                    Operation::ReduceScatter => sum(index),
                    Operation::Allgather => value(owner(index), index),
                    Operation::Broadcast { root } => value(root, index),
                };
                assert_eq!(
                    found, expected,
                    "{operation:?} by {route:?} in a group of {size}, element {index}"
                );
            }
        }
    }
    small_talk(group);
    waits_for(world, group, &region);
}

/// Gathers, memory that a node's ranks have in common, barriers, and what ranks agree on.
fn small_talk(group: &World) {
    let (rank, size) = (group.rank(), group.size());
    let (local, here) = (group.local_rank(), group.ranks_of(group.node()));
    let mut gather = Gather::new(group, size, 1).unwrap();
    gather.start(&[group.job_rank(rank) as f32]).unwrap();
    while !gather.is_done() {
        gather.poll().unwrap();
    }
    let mut all = vec![0.0; size];
    gather.read(&mut all);
    assert!(all.into_iter().eq((0..size).map(|rank| group.job_rank(rank) as f32)));

    let shared = NodeShared::allocate(group, 4096).unwrap().expect("room for a page");
    let mut barrier = Barrier::new(group).unwrap();
    // SAFETY: each rank writes a byte of its own, and reads those of others when all have written.
    let written = unsafe {
        shared.address().add(local).write_volatile(group.job_rank(rank) as u8 + 1);
        barrier.arrive();
        while !barrier.missing().is_empty() {
            std::thread::yield_now();
        }
        (0..here.len()).map(|local| shared.address().add(local).read_volatile()).collect::<Vec<_>>()
    };
    assert!(written.into_iter().eq(here.iter().map(|&rank| group.job_rank(rank) as u8 + 1)));
    let mut numbers = [group.job_rank(rank) as f64];
    group.max_f64(&mut numbers).unwrap();
    assert_eq!(numbers[0], (0..size).map(|rank| group.job_rank(rank)).max().unwrap() as f64);
    group.check_same(&[("the size".to_string(), size.to_string())]).unwrap();
}

/// A message that has not come is missed of its sender by its number in the job.
fn waits_for(world: &World, group: &World, region: &std::rc::Rc<Region>) {
    let mut ring = select(AllreduceKind::RING, Wire::F32, &Tuning::built_in(), group, region).unwrap();
    let slot = ring.prepare(0..100).unwrap();
    let first = group.rank() == 0 && group.size() > 1;
    if first {
        ring.start(slot).unwrap();
        assert_eq!(ring.waiting_for(slot)[0], group.job_rank(group.size() - 1));
    }
    world.barrier().unwrap();
    if !first {
        ring.start(slot).unwrap();
    }
    wait(&mut *ring, slot).unwrap();
}

fn mesh(world: &World) {
    let shape = MeshShape { data: 2, pipeline: 2, tensor: 2 };
    let groups = Mesh::new(world, shape).unwrap();
    let members = |group: &World| (0..group.size()).map(|rank| group.job_rank(rank)).collect::<Vec<_>>();
    let [d, p, t] = shape.coordinates(world.rank());
    assert_eq!(world.rank(), (p * 2 + d) * 2 + t);
    assert_eq!(members(&groups.data), [0, 1].map(|d| (p * 2 + d) * 2 + t));
    assert_eq!(members(&groups.pipeline), [0, 1].map(|p| (p * 2 + d) * 2 + t));
    assert_eq!(members(&groups.tensor), [0, 1].map(|t| (p * 2 + d) * 2 + t));
    assert_eq!([groups.data.rank(), groups.pipeline.rank(), groups.tensor.rank()], [d, p, t]);
    for group in [&groups.data, &groups.pipeline, &groups.tensor] {
        in_group(world, group);
    }
    let alone = Mesh::new(world, MeshShape::of_data(8)).unwrap();
    assert_eq!((alone.data.size(), alone.tensor.size(), alone.pipeline.rank()), (8, 1, 0));
    let error = Mesh::new(world, MeshShape { data: 3, pipeline: 1, tensor: 2 }).err().unwrap();
    assert!(error.kind == ErrorKind::Usage && error.message.contains("has 6 ranks"), "{error}");
    assert!(world.is_agreed(&error));
}

/// The lowest rank of the group that failed is named as the job knows it; the other group knows nothing of it.
fn group_agrees(world: &World) {
    let group = world.split(world.rank() / 2, 0).unwrap();
    let failed = if world.rank() == 3 { Err(Error::usage("story")) } else { Ok(()) };
    let outcome = group.agree(failed);
    if world.rank() < 2 {
        assert_eq!(outcome, Ok(()));
    } else {
        let error = outcome.unwrap_err();
        assert_eq!(error, Error::usage(format!("story (rank 3 on {})", world.host())));
        assert!(group.is_agreed(&error) && !world.is_agreed(&error));
        let differs = group.check_same(&[("number".to_string(), world.rank().to_string())]).unwrap_err();
        assert!(
            differs.message.contains("2 (rank 2 on ") && differs.message.contains("3 (rank 3 on "),
            "{differs}"
        );
    }
    // Of a group of all ranks the job knows what they have agreed on.
    let all = world.split(0, world.size() - world.rank()).unwrap();
    let error = all.agree::<()>(Err(Error::usage("alike"))).unwrap_err();
    assert!(world.is_agreed(&error));
}

fn group_stops(world: &World) {
    world.limit_stalls(0.0, 1.0);
    let attempt = || -> Result<(), Error> {
        let group = world.split(world.rank() / 2, 0)?;
        let region = Region::allocate(&group, 4000, true)?;
        let mut ring = select(AllreduceKind::RING, Wire::F32, &Tuning::built_in(), &group, &region)?;
        let slot = ring.prepare(0..1000)?;
        if world.rank() == 3 {
            let pid = std::process::id().to_string();
            Command::new("kill").args(["-STOP", &pid]).status().unwrap();
            // Another of the process's threads may take the signal, and on a busy machine late.
            std::thread::sleep(std::time::Duration::from_secs(3));
        }
        ring.start(slot)?;
        wait(&mut *ring, slot)?;
        world.barrier()
    };
    let error = attempt().unwrap_err();
    eprintln!("{error}");
    world.abort(error.exit_code());
}

fn siblings(world: &World) {
    let (rank, ranks, length) = (world.rank(), world.size(), 10_007);
    let range = 5..5 + length;
    let root = ranks - 1;
    for shared in [true, false] {
        let region = Region::allocate(world, 4 * (length + 10), shared).unwrap();
        let run = |operation: Operation, wire| -> Vec<f32> {
            let mut collective = operation.make(Route::Auto, wire, world, &region).unwrap();
            assert_eq!(collective.name() == "shm", shared);
            let slot = collective.prepare(range.clone()).unwrap();
            region.write(0, &vec![(1 + rank) as f32; length + 10]);
            world.barrier().unwrap();
            collective.start(slot).unwrap();
            wait(&mut *collective, slot).unwrap();
            let mut all = vec![0.0; length];
            region.read(range.start, &mut all);
            all
        };
        let sum = (1..=ranks).sum::<usize>() as f32;
        let own = segment(&range, ranks, rank);
        let scattered = run(Operation::ReduceScatter, Wire::F32);
        assert!(scattered[own.start - 5..own.end - 5].iter().all(|&value| value == sum));
        let gathered = run(Operation::Allgather, Wire::Bf16);
        for rank in 0..ranks {
            let part = segment(&range, ranks, rank);
            assert!(gathered[part.start - 5..part.end - 5].iter().all(|&value| value == (1 + rank) as f32));
        }
        let copied = run(Operation::Broadcast { root }, Wire::F32);
        assert!(copied.iter().all(|&value| value == (1 + root) as f32));
        let refused = Operation::Allgather.make(Route::Tree, Wire::F32, world, &region);
        assert!(world.is_agreed(&refused.err().unwrap()));
    }
}

fn busy(world: &World) {
    let length = 1_000_000;
    let region = Region::allocate(world, 4 * length, true).unwrap();
    assert!(region.is_shared());
    let mut shm = select(AllreduceKind::Shm, Wire::F32, &Tuning::built_in(), world, &region).unwrap();
    assert_eq!(shm.name(), "shm");
    let slot = shm.prepare(0..length).unwrap();
    region.write(0, &vec![1.0; length]);
    shm.start(slot).unwrap();
    if world.rank() > 0 {
        wait(&mut *shm, slot).unwrap();
    }
    // Rank 0 has not polled once when the others are through.
    world.barrier().unwrap();
    let mut sums = vec![0.0; length];
    region.read(0, &mut sums);
    assert!(sums.iter().all(|&sum| sum == 3.0));
    wait(&mut *shm, slot).unwrap();
}

fn leaves(world: &World) {
    let attempt = || -> Result<(), Error> {
        let region = Region::allocate(world, 1 << 20, true)?;
        let mut ring = select(AllreduceKind::RING, Wire::F32, &Tuning::built_in(), world, &region)?;
        let slot = ring.prepare(0..1000)?;
        if world.rank() == 1 {
            return Err(Error::usage("alone"));
        }
        ring.start(slot)?;
        wait(&mut *ring, slot)
    };
    let error = attempt().unwrap_err();
    assert!(!world.is_agreed(&error));
    world.abort(error.exit_code());
}
