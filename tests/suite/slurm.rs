//! Under a real Slurm: eight nodes on this machine, made by tests/support/slurm.sh (root, Slurm and munge).
//!
//! - srun with this MPI's plugin makes one job of its tasks; with another's, one message
//! - every script in jobs/ is accepted and runs to its end, given a small model, on all cores of its nodes
//! - so does every line of README.md, docs/GUIDE.md and docs/coming-from.md that starts something by srun or sbatch, as
//!   it stands there
//! - told to stop, jobs/requeue.sbatch goes back into the queue and on to the same bits; it survives the loss of a node
//! - threads follow what srun binds a rank to
//! - components of a heterogeneous job are one job's ranks; each rank has a GPU of its own, however Slurm binds them
//! - in module `full`: a job that a more urgent one displaces, signals by which Slurm itself tells of a job's limit, a
//!   node that boots anew, and `bench site` of two nodes; 128 nodes plan, 32 train

use crate::support::gpu_job::with_cuda;
use crate::support::job;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use dltrain::comm::{Family, MpiLibrary};
use dltrain::error::ErrorKind;
use job::{DLTRAIN, series};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/slurm.sh");
const JOBS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/jobs");
const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits");
/// What no part of a job takes longer than, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// A network that every script can be given in place of its own.
const SMALL: &str = "--model mnist_small --batch 16 --steps 3 --warmup 1";

/// Cores of this machine, and of each node of the shared Slurm: there ranks are bound.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How srun starts ranks of the MPI that this dltrain is linked with, and how it does not.
fn plugins() -> (&'static str, [&'static str; 2]) {
    match MpiLibrary::linked().family {
        Family::OpenMpi => ("pmix", ["pmi2", "none"]),
        _ => ("pmi2", ["pmix", "none"]),
    }
}

/// A Slurm, which goes when its standard input ends: at the latest with this process.
struct Slurm {
    process: Child,
    _stdin: ChildStdin,
}

impl Slurm {
    /// `None`, and said so, where there can be none.
    fn up(nodes: usize, cpus: usize) -> Option<Slurm> {
        Slurm::start(nodes, cpus).inspect_err(|why| println!("SKIPPED: {why}")).ok()
    }

    /// Or why there can be none.
    fn start(nodes: usize, cpus: usize) -> Result<Slurm, String> {
        let mut command = Command::new(SCRIPT);
        command.args([&nodes.to_string(), &cpus.to_string(), "sh", "-c", "echo up; exec cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the script starts");
        let stdin = process.stdin.take().unwrap();
        let mut said = String::new();
        let _ = BufReader::new(process.stdout.take().unwrap()).read_line(&mut said);
        if said.trim() != "up" {
            drop(stdin);
            let why = process.wait_with_output().unwrap();
            return Err(format!("no Slurm here: {}", String::from_utf8_lossy(&why.stderr)));
        }
        let slurm = Slurm { process, _stdin: stdin };
        let plugins = slurm.run(Path::new("."), "srun --mpi=list");
        if !plugins.contains(self::plugins().0) {
            return Err(format!("this Slurm cannot start ranks of this MPI: {plugins}"));
        }
        Ok(slurm)
    }

    /// The one that most tests share.
    fn shared() -> Option<&'static Slurm> {
        static SLURM: OnceLock<Result<Slurm, String>> = OnceLock::new();
        let shared = SLURM.get_or_init(|| Slurm::start(8, cores())).as_ref();
        shared.inspect_err(|why| println!("SKIPPED: {why}")).ok()
    }

    /// A command on the login node.
    fn command(&self, directory: &Path, words: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "150", SCRIPT, "enter", &self.process.id().to_string()]);
        command.args(words.split_whitespace()).current_dir(directory).stdin(Stdio::null());
        let path = std::env::var("PATH").unwrap_or_default();
        let own = Path::new(DLTRAIN).parent().expect("a directory").display();
        command.env("PATH", format!("{own}:{path}"));
        command.env("SLURM_MPI_TYPE", plugins().0).env("DLTRAIN", DLTRAIN).env("SCRATCH", directory);
        command
    }

    /// Under Open MPI a rank that srun starts sometimes ends within MPI_Init, before it has said a word: a peer's
    /// message comes before the library is ready for it (one start of some 150 here; open-mpi/ompi, issue 12495). That
    /// is no fault of the program, and the start is repeated.
    fn output(&self, directory: &Path, words: &str) -> Output {
        for _ in 0..3 {
            let output = self.command(directory, words).output().expect("nsenter starts");
            let died = String::from_utf8_lossy(&output.stderr).contains(": Segmentation fault");
            let in_init = died && output.stdout.is_empty() && MpiLibrary::linked().family == Family::OpenMpi;
            if !in_init {
                return output;
            }
            println!("{words}: a rank ended in MPI_Init: {}", text(&output));
        }
        panic!("{words}: three starts ended in MPI_Init");
    }

    /// What a command prints that must succeed.
    fn run(&self, directory: &Path, words: &str) -> String {
        let output = self.output(directory, words);
        let text = text(&output);
        assert!(output.status.success(), "{words}\n{text}");
        text
    }

    /// Submits one of jobs/, with options of sbatch and flags of dltrain. Its results go to a directory of its own:
    /// names made of the time are the same for runs of one second.
    fn submit(&self, directory: &Path, script: &str, options: &str, flags: &str) -> Job<'_> {
        let directory = directory.join(script);
        std::fs::create_dir(&directory).unwrap();
        let log = directory.join("log");
        let options = format!("--parsable --output={} {options}", log.display());
        let printed = self.run(&directory, &format!("sbatch {options} {JOBS}/{script} {flags}"));
        Job { slurm: self, number: printed.trim().to_string(), log, directory }
    }
}

struct Job<'a> {
    slurm: &'a Slurm,
    number: String,
    log: PathBuf,
    directory: PathBuf,
}

impl Job<'_> {
    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until something is so.
    fn wait(&self, what: &str, so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !so() {
            let states = || self.slurm.run(&self.directory, "squeue --states=all");
            assert!(begun.elapsed() < PATIENCE, "never {what}\n{}\n{}", self.log(), states());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The states of its tasks, one unless it is an array.
    fn states(&self) -> String {
        let words = format!("squeue --noheader --states=all --format=%T --jobs={}", self.number);
        self.slurm.run(&self.directory, &words)
    }

    /// Slurm leaves a requeued job alone for two minutes, so that nothing of it is left when it starts again. Here it is
    /// told when that is so; credentials are told apart by the second.
    fn begin_again(&self) {
        let daemons = format!("pgrep --full slurmstepd:.*{}\\.", self.number);
        self.wait("cleared away", || !self.slurm.output(&self.directory, &daemons).status.success());
        std::thread::sleep(Duration::from_secs(1));
        self.slurm.run(&self.directory, &format!("scontrol update JobId={} StartTime=now", self.number));
    }

    fn wait_until_completed(&self) {
        self.wait("ended", || {
            !["PENDING", "RUNNING", "COMPLETING"].iter().any(|state| self.states().contains(state))
        });
        assert!(self.states().lines().all(|state| state == "COMPLETED"), "{}\n{}", self.states(), self.log());
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn srun_with_the_right_plugin_starts_one_job_and_with_another_says_which() {
    let Some(slurm) = Slurm::shared() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (right, wrong) = plugins();
    let said =
        slurm.run(directory.path(), &format!("srun --mpi={right} -N 2 -n 4 --overcommit {DLTRAIN} info"));
    assert_eq!(said.matches("4 on 2 nodes, 2 on this one").count(), 1, "{said}");
    for plugin in wrong {
        let srun = format!("srun --mpi={plugin} -N 2 -n 4 --overcommit {DLTRAIN} --steps 1 --results run.h5");
        let refused = slurm.output(directory.path(), &srun);
        let said = text(&refused);
        assert_eq!(refused.status.code(), Some(ErrorKind::Environment as i32), "{plugin}: {said}");
        assert_eq!(said.matches("dltrain: ").count(), 1, "{plugin}: {said}");
        assert!(said.contains(&format!("srun --mpi={right} -n 4 dltrain")), "{plugin}: {said}");
        assert!(!directory.path().join("run.h5").exists(), "{plugin}");
    }
}

#[test]
fn every_job_script_runs_to_its_end() {
    let Some(slurm) = Slurm::shared() else { return };
    let directory = tempfile::tempdir().unwrap();
    let scripts = std::fs::read_dir(JOBS).unwrap().map(|entry| entry.unwrap().file_name());
    let mut scripts: Vec<String> = scripts.map(|name| name.into_string().unwrap()).collect();
    scripts.retain(|name| name.ends_with(".sbatch"));
    assert!(scripts.len() >= 6, "{scripts:?}");
    let submit = |script: &String| {
        let array = if script == "array.sbatch" { "--array=0-1" } else { "" };
        // Machines whose nodes are known say so; those of the bed are smaller.
        let known = match script.as_str() {
            "alps.sbatch" | "daint.sbatch" => format!("--ntasks-per-node=1 --cpus-per-task={}", cores()),
            _ => String::new(),
        };
        let gpus = if ["alps.sbatch", "cluster.sbatch"].contains(&script.as_str()) {
            "--gpus-per-node=1"
        } else {
            ""
        };
        let ranks = if script == "cluster.sbatch" { "--ntasks-per-node=1" } else { "" };
        let options = format!("--nodes=2 {known} {gpus} {ranks} {array}");
        slurm.submit(directory.path(), script, &options, SMALL)
    };
    let mut array = None;
    for script in &scripts {
        // One after the other: many jobs of ranks that poll have brought a kernel to a standstill (docs/testing.md).
        let job = submit(script);
        job.wait_until_completed();
        // An array's tasks share the log here, and the last opens it anew.
        assert_all_cores(script, &job.log());
        if script == "array.sbatch" {
            array = Some(job);
        }
    }
    let array = array.expect("jobs/array.sbatch");
    for nodes in [1, 2] {
        let record = array.directory.join(format!("scaling-{}/nodes-{nodes}.h5", array.number));
        assert_eq!(series(&record, "steps/loss").len(), 4);
    }
    let left = std::fs::read_dir(&array.directory).unwrap();
    let left = left.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("resize"));
    assert_eq!(left.count(), 0, "scripts of resized jobs are left");
}

/// What a run says of its ranks: that they and their threads are as many as the cores of its nodes.
fn assert_all_cores(what: &str, said: &str) {
    let line = said.lines().find(|line| line.starts_with("ranks x threads"));
    let line = line.unwrap_or_else(|| panic!("{what}: {said}"));
    let numbers: Vec<usize> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let nodes = line.matches('(').count();
    assert_eq!(numbers[0] * numbers[1], nodes * cores(), "{what}: {said}");
    assert!(!said.contains("may use"), "{what}: {said}");
}

/// Lines of a document that start something by srun or sbatch: those of a block together, and what stands in backticks.
fn lines_of(document: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(format!("{}/{document}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let whole = text.replace("\\\n", " ");
    let (mut groups, mut in_block) = (Vec::new(), false);
    for line in whole.lines() {
        if line.starts_with("```") {
            in_block = !in_block;
            groups.push(Vec::new());
        } else if in_block {
            let line = line.split(" # ").next().unwrap_or(line).trim();
            groups.last_mut().expect("a block").push(line.to_string());
        } else {
            groups.extend(line.split('`').skip(1).step_by(2).map(|line| vec![line.to_string()]));
        }
    }
    // What has "…" in it, or a flag alone, is no line to type.
    let starts = |line: &String| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let of_srun = words.first() == Some(&"srun") && words.contains(&"dltrain");
        let of_sbatch =
            words.first() == Some(&"sbatch") && words.iter().any(|word| word.starts_with("jobs/"));
        of_srun || of_sbatch || words.first() == Some(&"mkdir")
    };
    groups.iter_mut().for_each(|group| group.retain(|line| starts(line) && !line.contains('…')));
    groups.into_iter().filter(|group| !group.is_empty()).collect()
}

/// A set of photographs of ten classes.
fn write_photographs(directory: &Path) {
    for (part, images) in [("train", 8), ("val", 1)] {
        for class in 0..10u8 {
            let place = directory.join(part).join(format!("class{class}"));
            std::fs::create_dir_all(&place).unwrap();
            for image in 0..images {
                let pixels: Vec<u8> =
                    (0..40 * 40 * 3).map(|at| (at % 251) as u8 ^ (class * 20 + image)).collect();
                let file = jpeg_encoder::Encoder::new_file(place.join(format!("{image}.jpg")), 90).unwrap();
                file.encode(&pixels, 40, 40, jpeg_encoder::ColorType::Rgb).unwrap();
            }
        }
    }
}

/// The same for the bed: on two of its nodes, with a small network on the digits, by flags that come later and count
/// more.
fn shortened(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    if words[0] == "mkdir" {
        return line.into();
    }
    let is_program = |word: &&str| *word == "dltrain" || word.starts_with("jobs/");
    let at = words.iter().position(is_program).expect("a program");
    let (before, program, after) = (words[..at].join(" "), words[at], words[at + 1..].join(" "));
    let few = if words[0] == "srun" { "-N 2" } else { "--wait --output=log --nodes=2" };
    // Who says the cores of a rank has other nodes in mind.
    let few = match (before.contains("--cpus-per-task"), before.contains("--ntasks-per-node")) {
        (true, _) => format!("{few} --ntasks-per-node=1 --cpus-per-task={}", cores()),
        (_, true) => format!("{few} --ntasks-per-node=1"),
        _ => few.into(),
    };
    let array = if program == "jobs/array.sbatch" { "--array=1" } else { "" };
    let less = match words.get(at + 1..).unwrap_or_default() {
        ["info", ..] => "",
        ["bench", "autotune", ..] => "--sizes 4K",
        ["bench", ..] => "--sizes 4K",
        ["pack", ..] => "--file-mb 1",
        _ if line.contains("/imagenet") => "--model cifar_net --batch 16 --steps 3 --epochs 1 --lr-warmup 0",
        _ if after.contains("--data") => "--model mnist_small --batch 16 --steps 3 --epochs 1",
        _ => SMALL,
    };
    let program = match program {
        "dltrain" => program.to_string(),
        script => format!("{}/{script}", env!("CARGO_MANIFEST_DIR")),
    };
    format!("{before} {few} {array} {program} {after} {less}")
}

/// Nothing is given that says how many cores a rank has.
#[test]
fn every_line_of_the_documents_uses_all_cores_of_its_nodes() {
    if MpiLibrary::linked().family != Family::OpenMpi {
        return println!("SKIPPED: the lines have --mpi=pmix, which is Open MPI's");
    }
    let Some(slurm) = Slurm::shared() else { return };
    let groups: Vec<Vec<String>> =
        ["README.md", "docs/GUIDE.md", "docs/coming-from.md"].into_iter().flat_map(lines_of).collect();
    assert!(groups.iter().flatten().count() >= 12, "{groups:#?}");
    let root = tempfile::tempdir().unwrap();
    write_photographs(&root.path().join("photographs"));
    for (number, group) in groups.iter().enumerate() {
        let directory = root.path().join(number.to_string());
        std::fs::create_dir(&directory).unwrap();
        std::os::unix::fs::symlink("../photographs", directory.join("imagenet")).unwrap();
        std::os::unix::fs::symlink(DIGITS, directory.join("mnist")).unwrap();
        for line in group {
            run_line(slurm, &directory, line);
        }
    }
}

fn run_line(slurm: &Slurm, directory: &Path, line: &str) {
    let (script, log) = (directory.join("line.sh"), directory.join("log"));
    std::fs::write(&script, format!("export HOME=$PWD TMPDIR=$PWD/local\n{}\n", shortened(line))).unwrap();
    let _ = std::fs::remove_file(&log);
    let said = slurm.run(directory, &format!("bash {}", script.display()));
    let said = said + &std::fs::read_to_string(&log).unwrap_or_default();
    assert!(!said.contains("may use"), "{line}: {said}");
    match line {
        line if line.contains("dltrain info") => {
            assert!(said.contains(&format!("{} core", cores())), "{line}: {said}");
        }
        line if ["--dry-run", " bench ", " pack ", "mkdir"].iter().any(|word| line.contains(word)) => {}
        line => assert_all_cores(line, &said),
    }
    if line.contains("STAGE=") {
        // The images are those of the node's own disk.
        assert!(said.contains("local/imagenet.h5: 80 images to train, 10 to test"), "{said}");
    }
}

/// The warning, for a line that leaves out what they have.
#[test]
fn a_rank_with_one_core_of_its_node_says_so_and_what_to_type() {
    if cores() == 1 {
        return println!("SKIPPED: one core");
    }
    let Some(slurm) = Slurm::shared() else { return };
    let directory = tempfile::tempdir().unwrap();
    let run = |options: &str, more: &str| {
        slurm.run(directory.path(), &format!("srun {options} -N 2 dltrain {SMALL} {more}"))
    };
    let said = run("", "");
    // On whichever nodes there was room.
    let what = format!("this rank may use 1 of {} cores of n", cores());
    let remedy = format!(
        ": ask for more: `srun --exclusive --cpus-per-task={}` (--threads says that it is meant); it is alike on another \
         node",
        cores()
    );
    assert_eq!(said.matches("may use").count(), 1, "{said}");
    assert!(said.contains(&what) && said.contains(&remedy), "{said}");
    // Who asks for one core, or for one thread, means it.
    assert!(!run("--cpus-per-task=1", "").contains("may use"));
    assert!(!run("", "--threads 1").contains("may use"));
}

/// On a node of its own, so that all of its cores could be had.
#[test]
fn threads_follow_what_srun_binds_a_rank_to() {
    if cores() == 1 {
        return println!("SKIPPED: one core");
    }
    let Some(slurm) = Slurm::shared() else { return };
    let directory = tempfile::tempdir().unwrap();
    let all = format!("--cpu-bind=cores --cpus-per-task={}", cores());
    for (binding, ranks, threads) in [
        ("--cpu-bind=none", 1, cores()),
        (&all, 1, cores()),
        ("--cpu-bind=mask_cpu:0x2", 1, 1),
        ("-n 2 --cpu-bind=map_cpu:1,0", 2, 1),
    ] {
        let srun = format!("srun --exclusive -N 1 {binding} dltrain {SMALL}");
        let said = slurm.run(directory.path(), &srun);
        assert!(said.contains(&format!("ranks x threads  {ranks} x {threads} on")), "{binding}: {said}");
        // One message, where cores are left over.
        assert_eq!(
            said.matches("may use").count(),
            usize::from(ranks * threads < cores()),
            "{binding}: {said}"
        );
    }
}

/// As srun with a colon, and as `#SBATCH hetjob`.
#[test]
fn components_of_a_heterogeneous_job_are_one_jobs_ranks() {
    if MpiLibrary::linked().family != Family::OpenMpi {
        return println!("SKIPPED: Slurm joins components by PMIx only, which is Open MPI's");
    }
    let Some(slurm) = Slurm::shared() else { return };
    let directory = tempfile::tempdir().unwrap();
    let program = format!("{DLTRAIN} {SMALL} --threads 1 --results");
    let said =
        slurm.run(directory.path(), &format!("srun -N 1 -n 1 {program} a.h5 : -N 2 -n 2 {program} a.h5"));
    assert!(said.contains("ranks x threads  3 x 1 on n"), "{said}");
    let script = directory.path().join("het.sbatch");
    let lines = format!(
        "#!/bin/sh\n#SBATCH --nodes=1 --ntasks=1\n#SBATCH hetjob\n#SBATCH --nodes=2 --ntasks-per-node=1\n\
         exec srun --het-group=0,1 {program} b.h5\n"
    );
    std::fs::write(&script, lines).unwrap();
    let log = directory.path().join("log");
    slurm.run(directory.path(), &format!("sbatch --wait --output={} {}", log.display(), script.display()));
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("ranks x threads  3 x 1 on n"), "{said}");
    let [one, other] = ["a.h5", "b.h5"].map(|name| series(&directory.path().join(name), "steps/loss"));
    assert_eq!(one, other);
}

/// On doubles of CUDA's libraries, which keep to CUDA_VISIBLE_DEVICES as Slurm sets it.
#[test]
fn each_rank_has_a_gpu_of_its_own_however_slurm_binds_them() {
    let Some(slurm) = Slurm::shared() else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut losses = Vec::new();
    for binding in ["--gpus-per-task=1", "--gpus-per-node=2", "--gpus-per-node=2 --gpu-bind=single:1"] {
        let results = directory.path().join(format!("{}.h5", losses.len()));
        let flags = format!("--device cuda {SMALL} --threads 1 --results {}", results.display());
        let srun = format!("srun -N 2 --ntasks-per-node=2 --overcommit {binding} {DLTRAIN} {flags}");
        let command = slurm.command(directory.path(), &srun);
        let mut command = with_cuda(command, &[("FAKE_CUDA_DEVICES", "4")], directory.path());
        let output = command.output().unwrap();
        let said = text(&output);
        assert!(output.status.success() && said.contains("ranks x threads  4 x 1"), "{binding}: {said}");
        assert!(!said.contains("ranks share GPU"), "{binding}: {said}");
        losses.push(series(&results, "steps/loss"));
    }
    assert!(losses.iter().all(|other| *other == losses[0]), "{losses:?}");
}

#[test]
fn a_job_that_is_told_to_stop_goes_back_into_the_queue_and_on_to_the_same_bits() {
    let Some(slurm) = Slurm::shared() else { return };
    let directory = tempfile::tempdir().unwrap();
    let flags = format!(
        "--model mnist_small --data {DIGITS} --epochs 60 --steps 600 --threads 1 --checkpoint-every 20steps"
    );
    let options = "--nodes=2";
    let job = slurm.submit(directory.path(), "requeue.sbatch", options, &flags);
    let run = job.directory.join(format!("dltrain-{}", job.number));
    job.wait("checkpointed", || run.join("step-00000020.h5").exists());
    slurm.run(directory.path(), &format!("scancel --signal=USR1 {}", job.number));
    job.wait("requeued", || job.states().contains("PENDING"));
    let said = job.log();
    assert!(
        said.contains("stopped by SIGUSR1 after ") && !said.contains("stopped by SIGUSR1 after 600"),
        "{said}"
    );
    job.begin_again();
    job.wait_until_completed();
    assert!(job.log().contains("going on after step "), "{}", job.log());
    let whole = directory.path().join("whole.h5");
    let srun = format!("srun --exclusive -N 2 {DLTRAIN} {flags} --results {}", whole.display());
    slurm.run(directory.path(), &srun);
    for name in ["steps/step", "steps/loss", "epochs/test_loss"] {
        assert_eq!(series(&run.with_extension("h5"), name), series(&whole, name), "{name}");
    }
}

/// With a Slurm of its own: a node is gone for good.
#[test]
fn a_job_that_loses_a_node_goes_on_with_the_others() {
    let Some(slurm) = Slurm::up(3, 4) else { return };
    let directory = tempfile::tempdir().unwrap();
    // MPI may wait for the lost ranks for ever, and Slurm takes minutes to notice.
    let flags = "--threads 1 --checkpoint-every 20steps --stall-warn 1 --stall-abort 4";
    let flags = format!("--model mnist_small --data {DIGITS} --steps 300 {flags}");
    let job = slurm.submit(directory.path(), "requeue.sbatch", "--nodes=3", &flags);
    let run = job.directory.join(format!("dltrain-{}", job.number));
    job.wait("checkpointed", || run.join("step-00000020.h5").exists());
    slurm.run(directory.path(), &format!("{SCRIPT} crash n2"));
    // Slurm waits for the lost node before it calls the job completed.
    job.wait("ended", || job.log().contains("total images/sec"));
    // The record is closed after the last line is said.
    std::thread::sleep(Duration::from_secs(2));
    assert!(job.log().contains("3 ranks then, 2 now"), "{}", job.log());
    let last = *series(&run.with_extension("h5"), "steps/step").last().unwrap();
    assert!(last >= 299.0, "{last}");
}

/// What takes minutes: `make test-full`.
mod full {
    use super::*;

    use std::sync::{Mutex, PoisonError};

    /// 128 nodes leave nothing of the machine to a job that must go on within its time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    /// Slurm tells it by SIGTERM, and after GraceTime would end it: it writes a checkpoint, and goes back into the queue.
    #[test]
    #[ignore = "minutes"]
    fn a_job_that_a_more_urgent_one_displaces_goes_on_after_it() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slurm) = Slurm::up(2, cores()) else { return };
        let directory = tempfile::tempdir().unwrap();
        let flags = "--batch 4 --threads 1 --checkpoint-every 20steps";
        let flags = format!("--model mnist_small --data {DIGITS} --steps 900 {flags}");
        let job = slurm.submit(directory.path(), "requeue.sbatch", "--nodes=2", &flags);
        let run = job.directory.join(format!("dltrain-{}", job.number));
        job.wait("checkpointed", || run.join("step-00000020.h5").exists());
        slurm.run(directory.path(), "srun --partition=urgent -N 2 --exclusive hostname");
        let log = job.log();
        assert!(log.contains("stopped by SIGTERM after ") && !log.contains("after 900"), "{log}");
        job.begin_again();
        job.wait_until_completed();
        assert!(job.log().contains("going on after step "), "{}", job.log());
        let steps = series(&run.with_extension("h5"), "steps/step");
        assert!(steps.len() == 900 && steps.iter().enumerate().all(|(row, &step)| step == row as f64));
    }

    /// A slurmd that begins anew takes the machine's place (tests/support/slurm.sh): what Slurm does about the job that
    /// its node has is real.
    #[test]
    #[ignore = "minutes"]
    fn a_node_boots_anew_when_its_job_has_ended_and_takes_the_next() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slurm) = Slurm::up(2, cores()) else { return };
        let directory = tempfile::tempdir().unwrap();
        let flags = "--batch 4 --threads 1 --checkpoint-every 20steps";
        let flags = format!("--model mnist_small --data {DIGITS} --steps 300 {flags}");
        let job = slurm.submit(directory.path(), "requeue.sbatch", "--nodes=2", &flags);
        let run = job.directory.join(format!("dltrain-{}", job.number));
        job.wait("checkpointed", || run.join("step-00000020.h5").exists());
        let booted = || {
            let node = slurm.run(directory.path(), "scontrol show node n1");
            node.split_whitespace().find(|word| word.starts_with("BootTime=")).expect("a time").to_string()
        };
        let before = booted();
        slurm.run(directory.path(), "scontrol reboot ASAP nextstate=RESUME reason=tests n1");
        let next = slurm.submit(directory.path(), "cpu.sbatch", "--nodes=2", SMALL);
        assert!(job.states().contains("RUNNING") && next.states().contains("PENDING"), "{}", job.log());
        job.wait_until_completed();
        assert!(!job.log().contains("stopped by") && !job.log().contains("restart 1"), "{}", job.log());
        next.wait_until_completed();
        assert_ne!(booted(), before);
    }

    /// `--signal=USR1@SECONDS` tells the ranks, and `--signal=B:` the script alone, which tells srun.
    #[test]
    #[ignore = "minutes"]
    fn slurm_tells_of_a_jobs_limit_and_a_checkpoint_is_written() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slurm) = Slurm::up(2, cores()) else { return };
        let directory = tempfile::tempdir().unwrap();
        let flags = format!("--model mnist_small --data {DIGITS} --batch 4 --steps 90000000 --threads 1");
        let options = "--nodes=1 --time=2 --signal=USR1@80";
        let job = slurm.submit(directory.path(), "requeue.sbatch", options, &flags);
        let guide = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/GUIDE.md")).unwrap();
        let lines = guide.split("```").find(|block| block.contains("\ntrap ")).expect("a block with a trap");
        let lines = lines.replace('…', &format!("{flags} --results run.h5"));
        let head = "#!/bin/bash\n#SBATCH --nodes=1 --exclusive --time=2 --signal=B:USR1@80";
        let script = directory.path().join("job.sbatch");
        std::fs::write(&script, format!("{head}\n{lines}\necho code $?\n")).unwrap();
        let log = directory.path().join("log");
        let submitted = format!("sbatch --wait --output={} {}", log.display(), script.display());
        let output = slurm.output(directory.path(), &submitted);
        let said = text(&output) + &std::fs::read_to_string(&log).unwrap();
        assert!(said.contains("stopped by SIGUSR1 after ") && said.contains("code 75"), "{said}");
        job.wait("requeued", || job.states().contains("PENDING"));
        let told = job.log();
        assert!(told.contains("stopped by SIGUSR1 after ") && !told.contains("restart 1"), "{told}");
        slurm.run(directory.path(), &format!("scancel {}", job.number));
    }

    /// Of two nodes, whose ranks have a core each of this machine. What else works there is not of the job.
    #[test]
    #[ignore = "minutes"]
    fn a_rank_whose_core_others_use_is_slow_and_named_with_its_node() {
        if cores() == 1 {
            return println!("SKIPPED: one core");
        }
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slurm) = Slurm::up(2, cores()) else { return };
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("rank.sh");
        let lines = format!(
            "if [ $SLURM_PROCID = 1 ]; then for each in 1 2 3; do\n\
             taskset -c 1 timeout 60 sh -c 'while :; do :; done' & done; fi\n\
             taskset -c $SLURM_PROCID {DLTRAIN} bench site --seconds 0.1 --threads 1 --directory .; code=$?\n\
             kill $(jobs -p) 2>/dev/null; exit $code\n"
        );
        std::fs::write(&script, lines).unwrap();
        let srun = format!("srun -N 2 -n 2 --cpu-bind=none --overcommit bash {}", script.display());
        let said = slurm.run(directory.path(), &srun);
        let slow: Vec<&str> = said.lines().filter(|line| line.starts_with("SLOW: ")).collect();
        for (what, against) in [
            ("time left to the rank", "a core that nobody else uses"),
            ("products", "the median of all ranks"),
        ] {
            let found = |line: &&str| {
                line.starts_with(&format!("SLOW: {what}, rank 1 on n")) && line.ends_with(against)
            };
            assert!(slow.iter().any(found), "{what}: {said}");
        }
        let between = said.lines().find_map(|line| line.strip_prefix("messages between nodes GB/s "));
        let rates = between.unwrap_or_else(|| panic!("{said}")).split_whitespace();
        let rates: Vec<f64> = rates.take(2).filter_map(|rate| rate.parse().ok()).collect();
        assert!(rates.len() == 2 && rates.iter().all(|&rate| rate > 0.0), "{said}");
    }

    /// Eight nodes, of which two crash one after the other.
    #[test]
    #[ignore = "minutes"]
    fn a_job_that_loses_one_node_after_the_other_goes_on() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slurm) = Slurm::up(8, 1) else { return };
        let directory = tempfile::tempdir().unwrap();
        let flags = "--threads 1 --checkpoint-every 20steps --commit 5 --stall-warn 1 --stall-abort 4";
        let flags = format!("--model mnist_small --data {DIGITS} --batch 4 --steps 600 {flags}");
        let job = slurm.submit(directory.path(), "requeue.sbatch", "--nodes=8", &flags);
        let run = job.directory.join(format!("dltrain-{}", job.number));
        for (step, node) in [(20, "n3"), (300, "n6")] {
            job.wait("got further", || {
                let names = std::fs::read_dir(&run).into_iter().flatten().flatten();
                let names = names.filter_map(|entry| entry.file_name().into_string().ok());
                let steps =
                    names.filter_map(|name| name.strip_prefix("step-")?.strip_suffix(".h5")?.parse().ok());
                steps.max() >= Some(step)
            });
            slurm.run(directory.path(), &format!("{SCRIPT} crash {node}"));
        }
        job.wait("ended", || job.log().contains("total images/sec"));
        std::thread::sleep(Duration::from_secs(2));
        let log = job.log();
        assert!(log.contains("8 ranks then, 7 now") && log.contains("7 ranks then, 6 now"), "{log}");
        let steps = series(&run.with_extension("h5"), "steps/step");
        assert!(steps.iter().enumerate().all(|(row, &step)| step == row as f64), "{steps:?}");
    }

    #[test]
    #[ignore = "minutes"]
    fn hundred_and_twenty_eight_nodes_plan_and_thirty_two_train() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slurm) = Slurm::up(128, 1) else { return };
        let directory = tempfile::tempdir().unwrap();
        let said =
            slurm.run(directory.path(), &format!("srun -N 128 {DLTRAIN} --model inception_v3 --dry-run"));
        assert_eq!(said.matches("inception_v3, 128 ranks × ").count(), 1, "{said}");
        let flags =
            format!("--model mnist_small --data {DIGITS} --batch 4 --steps 20 --threads 1 --results run.h5");
        slurm.run(directory.path(), &format!("srun -N 32 {DLTRAIN} {flags}"));
        let losses = series(&directory.path().join("run.h5"), "steps/loss");
        assert!(losses.len() == 20 && losses[19] < losses[0], "{losses:?}");
    }
}
