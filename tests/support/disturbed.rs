//! Jobs of which a rank is killed or stopped at some moment.

use super::job::{self, Finished};

use std::time::Duration;

use dltrain::comm::{Family, MpiLibrary};
use dltrain::random::Stream;

/// What ranks wait for of each other whatever is cut: sums, and the parts of an update.
const OF_ALL: [&str; 5] =
    ["bucket", "the step's sums", "the norms of gradients", "the end of the backward pass", "new parameters"];

/// A job of which one rank gets a signal (KILL or STOP) so many seconds after steps have begun. It ends by itself
/// within seconds; of a killed rank the launcher speaks (Open MPI says in nearly all cases which it was), and of a
/// stopped one another rank does, with what is waited for: one of `waits`, or what ranks wait for in any run.
pub fn disturbed(ranks: usize, flags: &str, victim: usize, signal: &str, seconds: f32, waits: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().join("run.h5");
    let flags = format!("{flags} --steps 1000000 --threads 1 --stall-warn 0.3 --stall-abort 1.5");
    // When the record is there steps begin.
    let (program, results) = (job::DLTRAIN, results.display());
    let is_it = format!("[ ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} = {victim} ]");
    let later = format!("(until [ -e {results} ]; do sleep 0.1; done; sleep {seconds}; kill -{signal} $$)");
    let script = format!("{is_it} && {later} & exec {program} {flags} --results {results}");
    let Finished { success, stdout, stderr, .. } =
        job::finish_within(job::start(ranks, &["sh", "-c", &script]), Duration::from_secs(120));
    let what = format!("{flags}: rank {victim}, {signal} after {seconds} s:\n{stdout}{stderr}");
    assert!(!success, "{what}");
    if signal == "KILL" {
        // Hydra prints it on standard output. Open MPI counts it as one that returned where it hears of its end first.
        let words = match MpiLibrary::linked().family {
            Family::OpenMpi => [&format!("rank {victim} with PID"), "1 process returned"],
            _ => ["BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", "BAD TERMINATION"],
        };
        assert!(words.iter().any(|said| stdout.contains(said) || stderr.contains(said)), "{what}");
        return;
    }
    let messages: Vec<&str> = stderr.lines().filter(|line| line.contains("error: ")).collect();
    let names = |message: &str| {
        let (place, ranks) = message.split_once(": waiting for ").unwrap_or_default();
        let known = waits.iter().chain(&OF_ALL).any(|wait| place.contains(wait));
        known && ranks.contains(&format!("rank {victim} on ")) && ranks.contains("--stall-abort ends the job")
    };
    assert!(matches!(messages[..], [message] if names(message)), "{what}");
}

/// The same at so many moments, of any rank of any of these jobs.
pub fn disturbed_often(seed: u32, times: usize, jobs: &[(usize, &str)], waits: &[&str]) {
    let mut stream = Stream::new([seed, 0]);
    for turn in 0..times {
        let (ranks, flags) = jobs[turn / 2 % jobs.len()];
        let victim = stream.below(ranks as u32) as usize;
        disturbed(ranks, flags, victim, ["KILL", "STOP"][turn % 2], 0.2 + stream.uniform(), waits);
    }
}
