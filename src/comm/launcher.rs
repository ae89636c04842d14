//! Who started this process, and whether that launcher and the MPI library understand each other.
//!
//! A launcher of another MPI family starts N processes, and each finds itself alone: N jobs of one rank that
//! would all write the same results. MPI reports no error, so we compare its size with what the launcher
//! left in the environment.

use super::library::{Family, Library};
use crate::error::{Error, Result};

/// Which launcher left its marks in the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Launcher {
    /// Open MPI's mpirun (also PRRTE's prterun).
    OpenMpi,
    /// An mpiexec that speaks PMI: MPICH's Hydra, Intel's, Cray's.
    Pmi,
    Slurm,
}

/// What the environment says about the job before MPI is started (MPI_Init may itself set such variables).
#[derive(Debug, Default)]
pub(super) struct Launch {
    /// Each launcher that left its marks and the size of the job it speaks of, the innermost first.
    claims: Vec<(Launcher, usize)>,
}

impl Launch {
    pub fn from_environment() -> Launch {
        Launch::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Launch {
        let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
        let in_slurm_step = variable("SLURM_STEP_ID").is_some() || variable("SLURM_STEPID").is_some();
        let hydra = variable("HYDI_CONTROL_FD").is_some() || variable("MPI_LOCALNRANKS").is_some();
        let mut claims = Vec::new();
        if let Some(size) = number("OMPI_COMM_WORLD_SIZE") {
            claims.push((Launcher::OpenMpi, size));
        }
        if let Some(size) = number("PMI_SIZE") {
            // srun --mpi=pmi2 speaks PMI too.
            let launcher = if in_slurm_step && !hydra { Launcher::Slurm } else { Launcher::Pmi };
            claims.push((launcher, size));
        }
        // Not SLURM_NTASKS: that is the allocation's, also in a shell where nothing was launched yet.
        if let Some(size) = number("SLURM_STEP_NUM_TASKS") {
            claims.push((Launcher::Slurm, size));
        }
        Launch { claims }
    }

    /// The launcher's name, for the record.
    pub fn describe(&self) -> &'static str {
        match self.claims.first() {
            Some((Launcher::OpenMpi, _)) => "mpirun (Open MPI)",
            Some((Launcher::Pmi, _)) => "mpiexec (PMI)",
            Some((Launcher::Slurm, _)) => "srun",
            None => "none",
        }
    }

    /// Compares what the launcher started with what MPI sees.
    ///
    /// # Errors
    /// `Environment` when this process is one of several that do not see each other.
    pub fn check(&self, library: &Library, size: usize) -> Result<()> {
        let Some(&(launcher, started)) = self.claims.first() else {
            return Ok(());
        };
        if self.claims.iter().any(|&(_, claimed)| claimed == size) {
            return Ok(());
        }
        // A launcher that we know nothing of may sit inside the one we know (mpirun inside srun); it did its
        // work if the library sees several ranks. Only the library's own launcher must agree exactly.
        let own = matches!(
            (library.family, launcher),
            (Family::OpenMpi, Launcher::OpenMpi) | (Family::Mpich, Launcher::Pmi)
        );
        if size > 1 && !own {
            return Ok(());
        }
        let starter = match launcher {
            Launcher::OpenMpi => "Open MPI's mpirun",
            Launcher::Pmi => "an mpiexec of the MPICH family",
            Launcher::Slurm => "srun",
        };
        Err(Error::environment(format!(
            "{starter} started {started} processes, but this dltrain is linked with {library}, which sees {} in its \
             job. {}",
            if size == 1 { "only itself".to_string() } else { format!("{size}") },
            remedy(library.family, launcher, started)
        )))
    }
}

/// What to type instead.
fn remedy(family: Family, launcher: Launcher, started: usize) -> String {
    let (name, debian, srun) = match family {
        Family::OpenMpi => ("mpirun", "mpirun.openmpi", "pmix"),
        Family::Mpich => ("mpiexec", "mpiexec.mpich", "pmi2"),
        Family::Other => {
            return "Start it with the launcher that comes with this library".to_string();
        }
    };
    match launcher {
        Launcher::Slurm => format!(
            "Type `srun --mpi={srun} -n {started} dltrain …` (`srun --mpi=list` shows what this site has), or \
             inside an allocation `{name} -n {started} dltrain …`"
        ),
        _ => format!(
            "Type `{name} -n {started} dltrain …` with the {name} of that library (Debian and Ubuntu: \
             `{debian}`; under Slurm: `srun --mpi={srun}`), or build for the other: `make build MPI={}`",
            if family == Family::OpenMpi { "mpich" } else { "openmpi" }
        ),
    }
}

/// The rank that the launcher gave this process, 0 without a launcher. For deciding who prints an error while
/// there is no `World` to ask.
pub fn launcher_rank() -> usize {
    rank_in(|name| std::env::var(name).ok())
}

fn rank_in(variable: impl Fn(&str) -> Option<String>) -> usize {
    ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"]
        .iter()
        .find_map(|name| variable(name)?.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(family: Family) -> Library {
        let name = if family == Family::OpenMpi { "Open MPI" } else { "MPICH" };
        Library {
            family,
            name: name.into(),
            version: "4".into(),
            thread_level: "none",
            launcher: "none".into(),
        }
    }

    fn environment<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
    }

    fn message(pairs: &[(&str, &str)], family: Family, size: usize) -> Option<String> {
        Launch::read(environment(pairs)).check(&library(family), size).err().map(|error| error.message)
    }

    #[test]
    fn a_launcher_of_the_other_family_is_named_with_the_right_one() {
        let openmpi = [("OMPI_COMM_WORLD_SIZE", "4")];
        let text = message(&openmpi, Family::Mpich, 1).unwrap();
        assert!(text.contains("Open MPI's mpirun started 4 processes"), "{text}");
        assert!(text.contains("MPICH 4") && text.contains("mpiexec.mpich"), "{text}");

        let hydra = [("PMI_SIZE", "4"), ("HYDI_CONTROL_FD", "7")];
        let text = message(&hydra, Family::OpenMpi, 1).unwrap();
        assert!(text.contains("MPICH family started 4") && text.contains("mpirun.openmpi"), "{text}");
    }

    #[test]
    fn srun_without_the_right_plugin_is_named_with_it() {
        let srun = [("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_NTASKS", "8")];
        assert!(message(&srun, Family::OpenMpi, 1).unwrap().contains("srun --mpi=pmix -n 8"));
        assert!(message(&srun, Family::Mpich, 1).unwrap().contains("srun --mpi=pmi2 -n 8"));
        let pmi2 = [("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "8"), ("PMI_SIZE", "8")];
        assert!(message(&pmi2, Family::OpenMpi, 1).unwrap().starts_with("srun started 8"));
        assert_eq!(message(&pmi2, Family::Mpich, 8), None);
    }

    #[test]
    fn what_works_is_left_alone() {
        assert_eq!(message(&[], Family::Mpich, 1), None);
        // Inside an allocation, nothing launched yet.
        assert_eq!(message(&[("SLURM_NTASKS", "16")], Family::OpenMpi, 1), None);
        // mpirun inside a Slurm job: its daemons are a step of their own, one task a node.
        let nested = [("OMPI_COMM_WORLD_SIZE", "8"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")];
        assert_eq!(message(&nested, Family::OpenMpi, 8), None);
        // A launcher unknown to us inside srun.
        assert_eq!(message(&[("SLURM_STEP_NUM_TASKS", "2")], Family::Other, 8), None);
    }

    #[test]
    fn ranks_that_the_library_lost_are_noticed() {
        assert!(message(&[("OMPI_COMM_WORLD_SIZE", "8")], Family::OpenMpi, 4).unwrap().contains("sees 4 in"));
    }

    #[test]
    fn the_launchers_rank_is_read() {
        assert_eq!(rank_in(environment(&[("PMI_RANK", "3"), ("SLURM_PROCID", "0")])), 3);
        assert_eq!(rank_in(environment(&[])), 0);
    }
}
