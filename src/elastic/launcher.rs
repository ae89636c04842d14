//! The launchers: how each is told the ranks and the hosts, and whom to tell that its job is to stop. Words in, words
//! out.

use std::path::Path;

use super::hosts::{Host, listed, ranks};
use crate::error::{Error, Result};

/// Whom a signal goes to that is to reach the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ear {
    /// The launcher, which passes it on.
    Launcher,
    /// A rank on this host: one is enough, and the launcher would lose the job's code. The launcher where none is here.
    Rank,
}

/// What tells launchers apart.
#[derive(Debug)]
pub struct LauncherKind {
    /// As users know it.
    pub name: &'static str,
    /// What `--version` prints of it; for srun its name is enough.
    marks: &'static [&'static str],
    /// Flags with the number of ranks.
    ranks: &'static [&'static str],
    /// Flags with a list of hosts.
    hosts: &'static [&'static str],
    /// Flags with the file of such a list.
    files: &'static [&'static str],
    /// Flags that would contradict hosts with their slots.
    layout: &'static [&'static str],
    /// Whether a flag of one letter may have its value in the same word.
    attached: bool,
    /// How hosts are said.
    place: fn(&[Host]) -> Vec<String>,
    /// Said unless one of the names is there: why is in `LAUNCHERS`.
    also: &'static [(&'static str, &'static [&'static str])],
    /// Variables that it is given unless they are set: why is in `LAUNCHERS`.
    pub variables: &'static [(&'static str, &'static str)],
    /// What names the program that starts others on a host: words before it, and variables.
    agents: (&'static [&'static str], &'static [&'static str]),
    /// Whom SIGUSR1 goes to.
    pub ear: Ear,
    /// Failures after which a host is left out: asking costs Slurm's controller more than ssh.
    pub most_failures: usize,
}

/// All of them.
static LAUNCHERS: [LauncherKind; 3] = [
    LauncherKind {
        name: "mpirun of Open MPI",
        marks: &["Open MPI", "OpenRTE", "PRRTE"],
        ranks: &["-n", "-np", "--n", "--np"],
        hosts: &["-H", "-host", "--host"],
        files: &["-hostfile", "--hostfile", "-machinefile", "--machinefile"],
        layout: &["-npernode", "--npernode"],
        attached: false,
        place: |hosts| vec!["--host".into(), listed(hosts)],
        also: &[],
        // When a rank was lost the others wait for it, and no signal but SIGKILL ends that: two seconds are lost.
        variables: &[
            ("OMPI_MCA_odls_base_sigkill_timeout", "0"),
            ("PRTE_MCA_odls_base_sigkill_timeout", "0"),
        ],
        agents: (
            &["plm_rsh_agent", "plm_ssh_agent"],
            &["OMPI_MCA_plm_rsh_agent", "OMPI_MCA_plm_ssh_agent", "PRTE_MCA_plm_ssh_agent"],
        ),
        ear: Ear::Launcher,
        most_failures: 2,
    },
    LauncherKind {
        name: "mpiexec of MPICH",
        marks: &["HYDRA", "MPICH", "Intel(R) MPI"],
        ranks: &["-n", "-np"],
        hosts: &["-hosts", "--hosts", "-host", "--host"],
        files: &["-f", "-hostfile", "--hostfile", "-machinefile", "--machinefile"],
        layout: &["-ppn", "-perhost"],
        attached: false,
        place: |hosts| vec!["-hosts".into(), listed(hosts)],
        also: &[],
        variables: &[],
        agents: (
            &["-launcher-exec", "-bootstrap-exec"],
            &["HYDRA_LAUNCHER_EXEC", "I_MPI_HYDRA_BOOTSTRAP_EXEC"],
        ),
        ear: Ear::Rank,
        most_failures: 2,
    },
    LauncherKind {
        name: "srun",
        marks: &[],
        ranks: &["-n", "--ntasks"],
        hosts: &["-w", "--nodelist"],
        files: &[],
        layout: &["-N", "--nodes", "--ntasks-per-node"],
        attached: true,
        place: |hosts| {
            let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
            vec![format!("--nodes={}", hosts.len()), format!("--nodelist={}", names.join(","))]
        },
        // What is left of a step on a node that failed must not keep the others. Of a rank that was killed the others
        // need not hear; with --kill-on-bad-exit the code would be Slurm's, 143, and not 75.
        also: &[("--overlap", &["--overlap", "-s"]), ("--wait=60", &["--wait", "-W"])],
        variables: &[],
        agents: (&[], &[]),
        ear: Ear::Launcher,
        most_failures: 1,
    },
];

impl LauncherKind {
    /// The launcher of a command, by its name or by what it prints when asked for its version.
    pub fn find(command: &str, version: impl FnOnce() -> String) -> Option<&'static LauncherKind> {
        let [.., srun] = &LAUNCHERS;
        if file_name(command) == "srun" {
            return Some(srun);
        }
        let version = version();
        LAUNCHERS.iter().find(|launcher| launcher.marks.iter().any(|mark| version.contains(mark)))
    }

    /// Whether it is Slurm's.
    pub fn is_srun(&self) -> bool {
        self.name == "srun"
    }

    /// The first of these flags: its place, how many words it has, and its value.
    fn flag<'a>(&self, words: &'a [String], names: &[&str]) -> Option<(usize, usize, &'a str)> {
        words.iter().enumerate().find_map(|(at, word)| {
            names.iter().find_map(|name| {
                let rest = word.strip_prefix(name)?;
                match rest.strip_prefix('=') {
                    Some(value) => Some((at, 1, value)),
                    None if rest.is_empty() => Some((at, 2, words.get(at + 1)?)),
                    None if self.attached && name.len() == 2 => Some((at, 1, rest)),
                    None => None,
                }
            })
        })
    }
}

/// A job as it was typed: a launcher, its flags, dltrain and its flags.
#[derive(Debug)]
pub struct CommandLine {
    /// Who starts it.
    pub launcher: &'static LauncherKind,
    words: Vec<String>,
    /// The place of dltrain among the words.
    program: usize,
}

impl CommandLine {
    /// # Errors
    /// `Usage` where it cannot be started again and go on: no launcher that is known, no dltrain, several programs, no
    /// --checkpoint, another --resume than auto.
    pub fn read(words: &[String], version: impl FnOnce() -> String) -> Result<CommandLine> {
        let example = "dltrain elastic --min-ranks 2 -- mpirun -n 4 dltrain --checkpoint DIR …";
        let program = words.iter().position(|word| file_name(word) == "dltrain");
        let program = program.filter(|&at| at > 0).ok_or_else(|| {
            Error::usage(format!("no launcher with dltrain follows the --; it is typed as `{example}`"))
        })?;
        let launcher = LauncherKind::find(&words[0], version).ok_or_else(|| {
            Error::usage(format!(
                "{} is neither mpirun (Open MPI), mpiexec (MPICH) nor srun; type `{example}`",
                words[0]
            ))
        })?;
        let mut job = CommandLine { launcher, words: words.to_vec(), program };
        let own = &job.words[program + 1..];
        if own.iter().any(|word| word == ":") {
            return Err(Error::usage("a job of several programs (\":\") cannot be started on other ranks"));
        }
        if value(own, "--checkpoint").is_none() {
            return Err(Error::usage(
                "the job has no --checkpoint DIR, without which it would begin anew at every restart; add it to the \
                 flags of dltrain",
            ));
        }
        match value(own, "--resume") {
            None => job.words.extend(["--resume".into(), "auto".into()]),
            Some("auto") => {}
            Some(file) => {
                return Err(Error::usage(format!(
                    "--resume {file} would go back to that file at every restart; put it into the directory of \
                     --checkpoint, and leave --resume out"
                )));
            }
        }
        Ok(job)
    }

    /// The launcher's own words, without its name.
    fn own(&self) -> &[String] {
        &self.words[1..self.program]
    }

    /// The directory of --checkpoint.
    pub fn checkpoint(&self) -> &Path {
        Path::new(value(&self.words[self.program + 1..], "--checkpoint").unwrap_or_default())
    }

    /// How many ranks its launcher was told to start.
    pub fn ranks(&self) -> Option<usize> {
        self.number(self.launcher.ranks)
    }

    /// The number of one of these flags of the launcher.
    pub fn number(&self, names: &[&str]) -> Option<usize> {
        self.launcher.flag(self.own(), names)?.2.parse().ok()
    }

    /// The list of hosts that its launcher was given, and the file of one.
    pub fn hosts(&self) -> (Option<&str>, Option<&str>) {
        let value = |names| self.launcher.flag(self.own(), names).map(|(.., value)| value);
        (value(self.launcher.hosts), value(self.launcher.files))
    }

    /// The program that starts others on a host, where the launcher is told one: `variable` reads the environment.
    pub fn agent(&self, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
        let (words, variables) = self.launcher.agents;
        let own = self.own();
        let said = own.iter().position(|word| words.contains(&word.as_str())).and_then(|at| own.get(at + 1));
        said.cloned().or_else(|| variables.iter().find_map(|name| variable(name)))
    }

    /// Its words for ranks at these places. Hosts are said only where there is a list of them.
    pub fn words(&self, places: &[Host], with_hosts: bool) -> Vec<String> {
        let LauncherKind { ranks: numbers, hosts, files, layout, place, also, .. } = self.launcher;
        let mut own = self.own().to_vec();
        if with_hosts {
            for names in [hosts, files, layout] {
                while let Some((at, length, _)) = self.launcher.flag(&own, names) {
                    own.drain(at..at + length);
                }
            }
        }
        let (at, length) = self.launcher.flag(&own, numbers).map_or((0, 0), |(at, length, _)| (at, length));
        own.splice(at..at + length, ["-n".to_string(), ranks(places).to_string()]);
        if with_hosts {
            own.splice(0..0, place(places));
        }
        for (word, names) in *also {
            let is_there = |own: &String| names.iter().any(|name| own.starts_with(name));
            if !own.iter().any(is_there) {
                own.insert(0, word.to_string());
            }
        }
        [&self.words[..1], &own, &self.words[self.program..]].concat()
    }
}

/// The value of a flag of dltrain; the last one counts there.
fn value<'a>(words: &'a [String], name: &str) -> Option<&'a str> {
    (0..words.len()).rev().find_map(|at| match words[at].strip_prefix(name)? {
        "" => words.get(at + 1).map(String::as_str),
        rest => rest.strip_prefix('='),
    })
}

fn file_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::super::hosts::read;
    use super::*;

    const OPEN_MPI: &str = "mpirun.openmpi (OpenRTE) 4.1.4";
    const HYDRA: &str = "HYDRA build details:\n    Version: 4.0.2";

    fn job(words: &str, version: &str) -> Result<CommandLine> {
        let words: Vec<String> = words.split_whitespace().map(String::from).collect();
        CommandLine::read(&words, || version.to_string())
    }

    fn again(words: &str, version: &str, places: &str) -> String {
        let hosts = read(places.split(','), 1, "places").unwrap();
        let job = job(&format!("{words} dltrain -n 9 --checkpoint=c --resume auto"), version).unwrap();
        let words = job.words(&hosts, places != "local:3").join(" ");
        words.strip_suffix(" dltrain -n 9 --checkpoint=c --resume auto").unwrap().to_string()
    }

    #[test]
    fn open_mpi_is_told_ranks_and_hosts() {
        for (typed, expected) in [
            ("mpirun -n 4", "mpirun -n 3"),
            ("mpirun -np 4 --bind-to none", "mpirun -n 3 --bind-to none"),
            ("mpirun --bind-to none --np=4", "mpirun --bind-to none -n 3"),
            ("mpirun --oversubscribe nice", "mpirun -n 3 --oversubscribe nice"),
            ("mpirun -n 4 nice -n 5", "mpirun -n 3 nice -n 5"),
        ] {
            assert_eq!(again(typed, OPEN_MPI, "local:3"), expected, "{typed}");
        }
        for typed in [
            "mpirun -n 4 --host h0:2,h1:2 -x A",
            "mpirun -np 4 -H h0:2,h1:2 -x A",
            "mpirun --hostfile f --np 4 -x A",
            "mpirun -host h0 -host h1 -npernode 2 -n 4 -x A",
        ] {
            assert_eq!(again(typed, OPEN_MPI, "h0:2,h2"), "mpirun --host h0:2,h2:1 -n 3 -x A", "{typed}");
        }
    }

    #[test]
    fn mpich_is_told_ranks_and_hosts() {
        for typed in [
            "mpiexec -n 4 -hosts h0:2,h1:2 -genv A B",
            "mpiexec -f f -np 4 -genv A B",
            "mpiexec -ppn 2 -hosts=h0,h1 -n 4 -genv A B",
        ] {
            let expected = "mpiexec -hosts h0:2,h2:1 -n 3 -genv A B";
            assert_eq!(again(typed, HYDRA, "h0:2,h2"), expected, "{typed}");
        }
        assert_eq!(again("mpiexec -genv A B -n 4", HYDRA, "local:3"), "mpiexec -genv A B -n 3");
    }

    #[test]
    fn srun_is_told_ranks_and_nodes() {
        for typed in [
            "srun -N 4 -n 8 --mpi=pmix",
            "srun -N4 -n8 --mpi=pmix",
            "srun --nodes=4 --ntasks=8 --mpi=pmix",
            "srun --nodes 4 --ntasks 8 --nodelist=n[0-3] --mpi=pmix",
            "srun -wn0,n1 --ntasks-per-node=2 --mpi=pmix",
        ] {
            let expected = "srun --wait=60 --overlap --nodes=2 --nodelist=n0,n2 -n 4 --mpi=pmix";
            assert_eq!(again(typed, "", "n0:2,n2:2"), expected, "{typed}");
        }
        let typed = "/usr/bin/srun -W 5 --overlap";
        assert_eq!(again(typed, "", "local:3"), "/usr/bin/srun -n 3 -W 5 --overlap");
    }

    #[test]
    fn what_the_launcher_was_told_is_read() {
        let told = |words: &str, version| job(&format!("{words} dltrain --checkpoint c"), version).unwrap();
        let open_mpi = told("mpirun -np 4 -H h0:2,h1 --mca plm_rsh_agent /a/agent", OPEN_MPI);
        assert_eq!((open_mpi.ranks(), open_mpi.hosts()), (Some(4), (Some("h0:2,h1"), None)));
        assert_eq!(open_mpi.agent(|_| None).as_deref(), Some("/a/agent"));
        let variable = |name: &str| (name == "OMPI_MCA_plm_rsh_agent").then(|| "rsh".to_string());
        assert_eq!(told("mpirun -n 2", OPEN_MPI).agent(variable).as_deref(), Some("rsh"));
        let hydra = told("mpiexec -f nodes -launcher-exec blaunch", HYDRA);
        assert_eq!((hydra.ranks(), hydra.hosts()), (None, (None, Some("nodes"))));
        assert_eq!(hydra.agent(|_| None).as_deref(), Some("blaunch"));
        let srun = told("srun -N2 --ntasks-per-node 3", "");
        assert_eq!((srun.number(&["-N"]), srun.number(&["--ntasks-per-node"])), (Some(2), Some(3)));
        assert!(srun.launcher.is_srun() && !hydra.launcher.is_srun());
    }

    #[test]
    fn a_job_that_cannot_go_on_is_refused_and_resumes_otherwise() {
        for (words, version, said) in [
            ("mpirun -n 4", OPEN_MPI, "no launcher with dltrain"),
            ("dltrain --checkpoint c", OPEN_MPI, "no launcher with dltrain"),
            ("aprun -n 4 dltrain --checkpoint c", "aprun 1", "aprun is neither"),
            ("mpirun dltrain --model m", OPEN_MPI, "no --checkpoint DIR"),
            ("mpirun dltrain --checkpoint-every 1steps", OPEN_MPI, "no --checkpoint DIR"),
            ("mpirun dltrain --checkpoint c --resume c/step-1.h5", OPEN_MPI, "--resume c/step-1.h5 would"),
            ("mpirun dltrain --checkpoint c : -n 2 dltrain", OPEN_MPI, "several programs"),
        ] {
            let error = job(words, version).unwrap_err().message;
            assert!(error.contains(said), "{words}: {error}");
        }
        let resumed = |words: &str| {
            let job = job(words, OPEN_MPI).unwrap();
            assert_eq!(job.checkpoint(), Path::new("c"));
            job.words(&[Host { name: "local".into(), slots: 1 }], false).join(" ")
        };
        let expected = "mpirun -n 1 /a/dltrain --checkpoint c --model m --resume auto";
        assert_eq!(resumed("mpirun /a/dltrain --checkpoint c --model m"), expected);
        let expected = "mpirun -n 1 dltrain --resume=auto --checkpoint=c";
        assert_eq!(resumed("mpirun dltrain --resume=auto --checkpoint=c"), expected);
    }
}
