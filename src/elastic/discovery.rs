//! Finding out which hosts there are: by the user's command, by the launcher's own words, by Slurm; and which of them
//! start a program.

use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use super::hosts::{self, Host, HostsSeen};
use super::launcher::CommandLine;
use crate::error::{Error, Result};
use crate::{files, host};

/// Seconds that a command may take that prints hosts.
const COMMAND_LIMIT: &str = "60";

/// Where hosts are named.
#[derive(Debug)]
enum HostSource {
    /// The user's command prints them, now these and then others.
    Command(String),
    /// They were named once.
    List(Vec<Host>),
    /// This one alone, which the launcher need not be told.
    Here(Vec<Host>),
}

/// The hosts of a job: where they are named, and how one is asked whether it starts a program.
#[derive(Debug)]
pub struct Discovery {
    source: HostSource,
    /// Words in which {} stands for the host.
    probe: Vec<String>,
    /// Ranks that there are at most; none where the hosts decide.
    pub ranks: Option<usize>,
}

/// A look at the hosts that is under way: a command or a host may take its time.
pub type Look = JoinHandle<Result<HostsSeen>>;

impl Discovery {
    /// # Errors
    /// `Usage` where a list of hosts cannot be read, or nobody says how many ranks there are to be.
    pub fn new(job: &CommandLine, command: Option<&str>, max_ranks: Option<usize>) -> Result<Discovery> {
        let given = job.ranks();
        let probe = probe(job, |name| std::env::var(name).ok());
        let nodes = if command.is_none() && job.launcher.is_srun() { slurm_nodes(job)? } else { None };
        // Outside of a job of its own srun asks for one, and Slurm chooses the nodes.
        let (list, file) = if job.launcher.is_srun() { (None, None) } else { job.hosts() };
        let (source, ranks) = match (command, nodes, list, file) {
            (Some(command), ..) => (HostSource::Command(command.to_string()), None),
            (None, Some((nodes, ranks)), ..) => (HostSource::List(nodes), Some(ranks)),
            (None, None, Some(list), _) => from_list(list.split(','), given, list)?,
            (None, None, None, Some(file)) => {
                let text = files::read(file.as_ref())
                    .map_err(|error| Error::usage(format!("{file}: cannot be read: {error}")))?;
                from_list(String::from_utf8_lossy(&text).lines(), given, file)?
            }
            (None, None, None, None) => {
                let slots = max_ranks.max(given).ok_or_else(|| {
                    Error::usage(
                        "nobody says how many ranks there are to be: add -n N to the launcher's flags",
                    )
                })?;
                let own = host::name().filter(|_| !job.launcher.is_srun());
                let name = own.unwrap_or_else(|| job.launcher.name.into());
                (HostSource::Here(vec![Host { name, slots }]), given)
            }
        };
        Ok(Discovery { source, probe, ranks: max_ranks.or(ranks) })
    }

    /// Whether hosts come from a list, of which the launcher is told.
    pub fn has_list(&self) -> bool {
        !matches!(self.source, HostSource::Here(_))
    }

    /// Whether other hosts may be named later.
    pub fn may_change(&self) -> bool {
        matches!(self.source, HostSource::Command(_))
    }

    /// Begins to look. `unasked` are not asked whether they start a program, nor is this host; with `None` nobody is.
    pub fn look(self: &Arc<Discovery>, unasked: Option<BTreeSet<String>>) -> Look {
        let discovery = self.clone();
        std::thread::spawn(move || {
            let named = discovery.named()?;
            let is_asked = |host: &&Host| {
                host.slots > 0
                    && discovery.has_list()
                    && unasked.as_ref().is_some_and(|unasked| !unasked.contains(&host.name))
                    && !is_here(&host.name)
            };
            let asked: Vec<String> = named.iter().filter(is_asked).map(|host| host.name.clone()).collect();
            Ok(HostsSeen { answers: discovery.ask(asked), named })
        })
    }

    /// All hosts that there are now.
    fn named(&self) -> Result<Vec<Host>> {
        match &self.source {
            HostSource::Command(command) => {
                let printed = printed(&["sh", "-c", command], &format!("--hosts {command}"))?;
                hosts::read(printed.lines(), 1, &format!("--hosts {command}"))
            }
            HostSource::List(hosts) | HostSource::Here(hosts) => Ok(hosts.clone()),
        }
    }

    /// Asks hosts, all at once, whether they start a program.
    fn ask(&self, names: Vec<String>) -> Vec<(String, bool)> {
        let asked: Vec<_> = names
            .into_iter()
            .map(|name| {
                let words: Vec<String> = self.probe.iter().map(|word| word.replace("{}", &name)).collect();
                let mut command = Command::new("timeout");
                command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                (name, command.spawn())
            })
            .collect();
        let answer = |started: std::io::Result<std::process::Child>| {
            started.and_then(|mut child| child.wait()).is_ok_and(|status| status.success())
        };
        asked.into_iter().map(|(name, started)| (name, answer(started))).collect()
    }
}

/// How a host is asked: the arguments of timeout, with {} for the host. As the launcher would start its ranks.
fn probe(job: &CommandLine, variable: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let agent = job.agent(&variable);
    // In a job of Slurm mpirun and mpiexec go by srun too, and nodes may know no ssh.
    let words = match agent {
        None if job.launcher.is_srun() || variable("SLURM_JOB_ID").is_some() => {
            "60 srun --overlap --mpi=none --nodes=1 --ntasks=1 --nodelist={} true".to_string()
        }
        None => "15 ssh -oBatchMode=yes -oConnectTimeout=10 {} true".to_string(),
        // Open MPI takes several, of which the first is tried first.
        Some(agent) => format!("15 {} {{}} true", agent.split(" : ").next().unwrap_or_default().trim()),
    };
    words.split_whitespace().map(String::from).collect()
}

/// Hosts of the launcher's own list, with the ranks it was given shared among those without slots.
fn from_list<'a>(
    entries: impl Iterator<Item = &'a str> + Clone,
    given: Option<usize>,
    from: &str,
) -> Result<(HostSource, Option<usize>)> {
    let count = hosts::read(entries.clone(), 0, from)?.len().max(1);
    let hosts = hosts::read(entries, given.unwrap_or(1).div_ceil(count), from)?;
    let ranks = given.unwrap_or(hosts::ranks(&hosts));
    Ok((HostSource::List(hosts), Some(ranks)))
}

/// The nodes of the Slurm job with an equal share of the ranks, and how many ranks there are; none outside of a job.
fn slurm_nodes(job: &CommandLine) -> Result<Option<(Vec<Host>, usize)>> {
    let number = |name: &str| std::env::var(name).ok()?.trim().parse::<usize>().ok();
    let Ok(list) = std::env::var("SLURM_JOB_NODELIST") else { return Ok(None) };
    let list = job.hosts().0.map_or(list, String::from);
    let what = format!("scontrol show hostnames {list}");
    let names = printed(&["scontrol", "show", "hostnames", &list], &what)?;
    let all = names.lines().count().max(1);
    let nodes = job.number(&["-N", "--nodes"]).unwrap_or(all).clamp(1, all);
    let of_job = || Some((number("SLURM_NTASKS")? / number("SLURM_JOB_NUM_NODES")?.max(1)).max(1));
    let a_node = job.number(&["--ntasks-per-node"]).or_else(of_job).unwrap_or(1);
    let ranks = job.ranks().unwrap_or(a_node * nodes);
    Ok(Some((hosts::read(names.lines(), ranks.div_ceil(nodes), &what)?, ranks)))
}

/// What a command prints that must succeed.
fn printed(words: &[&str], what: &str) -> Result<String> {
    let mut command = Command::new("timeout");
    command.arg(COMMAND_LIMIT).args(words).stdin(Stdio::null()).stderr(Stdio::inherit());
    let Output { status, stdout, .. } = command
        .output()
        .map_err(|error| Error::environment(format!("{what}: cannot be started: {error}")))?;
    match status.code() {
        Some(0) => Ok(String::from_utf8_lossy(&stdout).into_owned()),
        Some(124) => Err(Error::environment(format!("{what}: has not ended after {COMMAND_LIMIT} s"))),
        Some(code) => Err(Error::environment(format!("{what}: failed with code {code}"))),
        None => Err(Error::environment(format!("{what}: was ended by a signal"))),
    }
}

/// Whether this is the host that a name means.
fn is_here(name: &str) -> bool {
    is_name_of(name, &host::name().unwrap_or_default())
}

fn is_name_of(name: &str, own: &str) -> bool {
    let first = |name: &str| name.split('.').next().unwrap_or_default().to_string();
    let one_is_short = !name.contains('.') || !own.contains('.');
    ["localhost", "127.0.0.1", own].contains(&name) || (one_is_short && first(name) == first(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(words: &str, version: &'static str) -> CommandLine {
        let words = format!("{words} dltrain --checkpoint c");
        let words: Vec<String> = words.split_whitespace().map(String::from).collect();
        CommandLine::read(&words, || version.to_string()).unwrap()
    }

    #[test]
    fn hosts_are_asked_as_the_launcher_starts_them() {
        let ask = |words: &str, set: &str| {
            let variable = |name: &str| (name == set).then(|| "rsh -x".to_string());
            probe(&job(words, "Open MPI"), variable).join(" ")
        };
        assert!(ask("mpirun -n 2", "").ends_with("ssh -oBatchMode=yes -oConnectTimeout=10 {} true"));
        assert_eq!(ask("mpirun -n 2", "OMPI_MCA_plm_rsh_agent"), "15 rsh -x {} true");
        assert_eq!(ask("mpirun --mca plm_rsh_agent /a/b -n 2", "SLURM_JOB_ID"), "15 /a/b {} true");
        for (words, set) in [("mpirun -n 2", "SLURM_JOB_ID"), ("srun -n 2", "")] {
            assert!(ask(words, set).contains("srun --overlap --mpi=none --nodes=1 --ntasks=1 --nodelist={}"));
        }
    }

    #[test]
    fn without_a_command_the_launchers_words_name_the_hosts() {
        let named = |words: &str, most| {
            let discovery = Discovery::new(&job(words, "Open MPI"), None, most)?;
            Ok((hosts::listed(&discovery.named()?), discovery.ranks, discovery.has_list()))
        };
        let is = |listed: &str, ranks, list| Result::Ok((listed.to_string(), ranks, list));
        assert_eq!(named("mpirun -n 5 -H h0,h1", None), is("h0:3,h1:3", Some(5), true));
        assert_eq!(named("mpirun -H h0:2,h1:2", None), is("h0:2,h1:2", Some(4), true));
        assert_eq!(named("mpirun -n 4 -H h0:2,h1:2", Some(3)), is("h0:2,h1:2", Some(3), true));
        let own = host::name().unwrap();
        assert_eq!(named("mpirun -n 2", Some(6)), is(&format!("{own}:6"), Some(6), false));
        assert_eq!(named("srun -n 4 -w n[0-3]", None), is("srun:4", Some(4), false));
        assert!(named("mpirun", None).unwrap_err().message.contains("add -n N"));
        assert!(named("mpirun -H h0:x", None).unwrap_err().message.contains("\"h0:x\" is no host"));
        assert!(named("mpirun --hostfile /no/such", None).unwrap_err().message.starts_with("/no/such:"));
    }

    #[test]
    fn this_host_is_known_by_its_names() {
        for name in ["n1", "n1.site.org", "localhost", "127.0.0.1"] {
            assert!(
                is_name_of(name, "n1") && !is_name_of(name, "n2") || name.starts_with(['l', '1']),
                "{name}"
            );
        }
        assert!(is_name_of("n1", "n1.site.org") && !is_name_of("n1.other.org", "n1.site.org"));
    }

    #[test]
    fn a_command_that_fails_or_prints_nonsense_is_named() {
        let look = |command: &str| {
            let discovery = Discovery::new(&job("mpirun", "Open MPI"), Some(command), None).unwrap();
            Arc::new(discovery).look(None).join().unwrap()
        };
        let seen = look("echo localhost:2; echo; echo far:1").unwrap();
        assert_eq!((hosts::listed(&seen.named), seen.answers.len()), ("localhost:2,far:1".into(), 0));
        assert_eq!(look("exit 3").unwrap_err().message, "--hosts exit 3: failed with code 3");
        assert!(look("echo '{}'").unwrap_err().message.contains("\"{}\" is no host"));
    }
}
