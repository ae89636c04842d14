//! Who started this process, and whether that launcher and the MPI library understand each other.
//!
//! A launcher of another MPI family starts N processes, and each finds itself alone: N jobs of one rank that
//! would all write the same results. MPI reports no error, so we compare its size with what the launcher
//! left in the environment. Open MPI 4 does worse under srun without PMIx: MPI_Init ends the process, and each
//! prints a page about how to build Open MPI; there we speak first.

use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Duration;

use super::library::{Family, MpiLibrary};
use super::world::LAST_WORDS;
use crate::error::{Error, Result};
use crate::host;

/// Which launcher left its marks in the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Launcher {
    /// Open MPI's mpirun (also PRRTE's prterun).
    OpenMpi,
    /// An mpiexec that speaks PMI: MPICH's Hydra, Intel's, Cray's.
    Pmi,
    Slurm,
    /// torchrun and those that set its variables (DeepSpeed's, Accelerate's): no MPI knows of them.
    PyTorch,
}

/// The step in which Slurm runs the shell that `salloc` opens on a node, where a site has it do so.
const INTERACTIVE_STEP: &str = "4294967290";

/// What the environment says about the job before MPI is started.
#[derive(Debug, Default)]
pub(super) struct Launch {
    /// Each launcher that left its marks and the size of the job it speaks of, the innermost first.
    claims: Vec<(Launcher, usize)>,
    /// This process's rank, 0 without a launcher.
    rank: usize,
    /// srun offers PMIx. What another launcher starts inside of that step only inherits the variable.
    pmix: bool,
    /// Flux started this process; its own plugin of Open MPI 4 serves there.
    flux: bool,
    /// The tasks of the Slurm allocation in whose shell this process was started without a launcher.
    idle_tasks: Option<usize>,
    /// Within a job of Slurm's.
    slurm: bool,
    /// The cores that Slurm was asked for a task, where it was.
    cpus_per_task: Option<usize>,
}

impl Launch {
    /// MPI_Init may itself set such variables: the first call is to come before it.
    pub fn at_start() -> &'static Launch {
        static AT_START: OnceLock<Launch> = OnceLock::new();
        AT_START.get_or_init(|| Launch::read(|name| std::env::var(name).ok()))
    }

    pub(super) fn read(variable: impl Fn(&str) -> Option<String>) -> Launch {
        let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
        let in_slurm_step = variable("SLURM_STEP_ID").is_some() || variable("SLURM_STEPID").is_some();
        let hydra = variable("HYDI_CONTROL_FD").is_some() || variable("MPI_LOCALNRANKS").is_some();
        let mut claims = Vec::new();
        // All three: scripts export some of them for other programs.
        if let (Some(_), Some(_), Some(size)) = (number("RANK"), number("LOCAL_RANK"), number("WORLD_SIZE"))
            && size > 1
        {
            claims.push((Launcher::PyTorch, size));
        }
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
        let in_shell = claims.is_empty()
            || (variable("SLURM_STEP_ID").as_deref() == Some(INTERACTIVE_STEP)
                && claims.iter().all(|&(launcher, _)| launcher == Launcher::Slurm));
        let tasks = number("SLURM_NTASKS").or_else(|| number("SLURM_JOB_NUM_NODES"));
        Launch {
            claims,
            rank: rank_in(&variable),
            pmix: variable("PMIX_NAMESPACE").is_some(),
            flux: variable("FLUX_JOB_ID").is_some(),
            idle_tasks: tasks.filter(|&tasks| in_shell && tasks > 1),
            slurm: variable("SLURM_JOB_ID").is_some(),
            cpus_per_task: number("SLURM_CPUS_PER_TASK"),
        }
    }

    /// Whether there is a Slurm that can be asked for more.
    pub fn in_slurm(&self) -> bool {
        self.slurm
    }

    /// Whether srun started this process itself.
    pub fn is_srun(&self) -> bool {
        self.claims.first().is_some_and(|&(launcher, _)| launcher == Launcher::Slurm)
    }

    /// Whether a rank's logical processors are those that Slurm was told to give it.
    pub fn asked_for(&self, cpus: usize) -> bool {
        self.slurm && self.cpus_per_task.is_some_and(|asked| asked <= cpus)
    }

    /// How ranks get the cores that something else than Slurm keeps them from, of which this is the last.
    pub fn unbinding(&self, last: usize) -> String {
        match self.claims.first() {
            Some((Launcher::OpenMpi, _)) => {
                "mpirun binds one or two ranks to a core each; type `mpirun --bind-to none`".into()
            }
            Some((Launcher::Pmi, _)) => "type `mpiexec -bind-to none`".into(),
            Some((Launcher::Slurm | Launcher::PyTorch, _)) | None => format!(
                "taskset, numactl or the shell binds it; leave that out, or type `taskset --cpu-list 0-{last} \
                 dltrain …`"
            ),
        }
    }

    /// The launcher's name, for the record.
    pub fn describe(&self) -> &'static str {
        match self.claims.first() {
            Some((Launcher::OpenMpi, _)) => "mpirun (Open MPI)",
            Some((Launcher::Pmi, _)) => "mpiexec (PMI)",
            Some((Launcher::Slurm, _)) => "srun",
            Some((Launcher::PyTorch, _)) => "torchrun",
            None => "none",
        }
    }

    /// Before MPI_Init: notices where it would end the process in its own way, and lets one process alone start by
    /// itself, also in a Slurm step (`srun --pty bash`, an allocation's shell), where Open MPI 4 wants PMIx.
    ///
    /// # Errors
    /// `Environment` when this process is one of several that would not find each other.
    pub fn prepare(&self, library: &MpiLibrary) -> Result<()> {
        let of_mpi = self.claims.iter().find(|(launcher, _)| *launcher != Launcher::PyTorch);
        let Some(&(launcher, started)) = of_mpi else {
            if library.family == Family::OpenMpi && !self.pmix && !self.flux {
                alone();
            }
            return Ok(());
        };
        let joins = match launcher {
            Launcher::OpenMpi | Launcher::PyTorch => true,
            Launcher::Slurm => self.pmix || self.flux,
            Launcher::Pmi => self.flux,
        };
        if library.family != Family::OpenMpi || joins {
            return Ok(());
        }
        if self.claims.iter().all(|&(_, claimed)| claimed == 1) {
            // By this variable Open MPI 4 takes a process for one that srun started.
            // SAFETY: MPI, OpenMP and our own threads are not started yet; Rust's own readers take std's lock.
            #[allow(unsafe_code)]
            unsafe {
                std::env::remove_var("SLURM_STEP_ID")
            };
            alone();
            return Ok(());
        }
        if started > 1 && needs_pmix(&library.version, &open_mpi_plugins()) {
            let why = "joins a job through PMIx only, and was offered none";
            return Err(refusal(library, launcher, started, why));
        }
        Ok(())
    }

    /// What to tell the user of a job that runs, but perhaps not as meant: one rank where there is room for more.
    pub fn hint(&self, library: &MpiLibrary, size: usize) -> Option<String> {
        let tasks = self.idle_tasks.filter(|_| size == 1)?;
        let srun = names(library.family).map_or(String::new(), |(_, _, srun)| format!(" --mpi={srun}"));
        Some(format!(
            "one rank, in a Slurm allocation for {tasks}: nothing launched this dltrain; to use them all, type \
             `srun{srun} -n {tasks} dltrain …`"
        ))
    }

    /// Compares what the launcher started with what MPI sees.
    ///
    /// # Errors
    /// `Environment` when this process is one of several that do not see each other.
    pub fn check(&self, library: &MpiLibrary, size: usize) -> Result<()> {
        let Some(&(launcher, started)) = self.claims.first() else {
            return Ok(());
        };
        // What srun started may be the torchrun of a node, alone there.
        let of_torch = launcher == Launcher::PyTorch && size == 1;
        if !of_torch && self.claims.iter().any(|&(_, claimed)| claimed == size) {
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
        let seen = if size == 1 { "only itself".to_string() } else { size.to_string() };
        Err(refusal(library, launcher, started, &format!("sees {seen} in its job")))
    }
}

/// Lets Open MPI 4 start without the daemon (orted) that it starts for a process that no launcher started. Where such a
/// process is killed while it starts, the daemon may hang, and whoever reads the process's output through a pipe waits
/// for the daemon to close it. All such processes would share one session directory, which the first that ends removes.
fn alone() {
    for (name, value) in
        [("OMPI_MCA_ess_singleton_isolated", "1"), ("OMPI_MCA_orte_create_session_dirs", "0")]
    {
        if std::env::var_os(name).is_none() {
            // SAFETY: MPI, OpenMP and our own threads are not started yet; Rust's own readers take std's lock.
            #[allow(unsafe_code)]
            unsafe {
                std::env::set_var(name, value)
            };
        }
    }
}

fn refusal(library: &MpiLibrary, launcher: Launcher, started: usize, why: &str) -> Error {
    let starter = match launcher {
        Launcher::OpenMpi => "Open MPI's mpirun",
        Launcher::Pmi => "an mpiexec of the MPICH family",
        Launcher::Slurm => "srun",
        Launcher::PyTorch => "torchrun, or another launcher that sets RANK, LOCAL_RANK and WORLD_SIZE,",
    };
    Error::environment(format!(
        "{starter} started {started} processes, but this dltrain is linked with {library}, which {why}. {}",
        remedy(library.family, launcher, started)
    ))
}

/// The launcher of a family, its name in Debian, and the plugin by which srun starts that family's jobs.
fn names(family: Family) -> Option<(&'static str, &'static str, &'static str)> {
    match family {
        Family::OpenMpi => Some(("mpirun", "mpirun.openmpi", "pmix")),
        Family::Mpich => Some(("mpiexec", "mpiexec.mpich", "pmi2")),
        Family::Other => None,
    }
}

/// What to type instead.
fn remedy(family: Family, launcher: Launcher, started: usize) -> String {
    let Some((name, debian, srun)) = names(family) else {
        return "Start it with the launcher that comes with this library".to_string();
    };
    match launcher {
        Launcher::Slurm => format!(
            "Type `srun --mpi={srun} -n {started} dltrain …` (`srun --mpi=list` shows what this site has), or \
             inside an allocation `{name} -n {started} dltrain …`"
        ),
        Launcher::PyTorch => format!(
            "Type `{name} -n {started} dltrain …` in its place (under Slurm: `srun --mpi={srun} -n {started} \
             dltrain …`)"
        ),
        _ => format!(
            "Type `{name} -n {started} dltrain …` with the {name} of that library (Debian and Ubuntu: \
             `{debian}`; under Slurm: `srun --mpi={srun}`), or build for the other: `make build MPI={}`",
            if family == Family::OpenMpi { "mpich" } else { "openmpi" }
        ),
    }
}

/// Whether an Open MPI can find its job through PMIx only: since version 5 always, before if it was not built with
/// Slurm's or Cray's PMI. `plugins` as of `open_mpi_plugins`.
fn needs_pmix(version: &str, plugins: &[String]) -> bool {
    let major = version.split('.').next().and_then(|major| major.parse::<usize>().ok());
    let speaks_pmi = |plugin: &String| ["s1", "s2", "cray"].contains(&plugin.as_str());
    major.is_some_and(|major| major >= 5) || (!plugins.is_empty() && !plugins.iter().any(speaks_pmi))
}

/// The ways to a job that the Open MPI in this process was built with: "ext3x" for the file `mca_pmix_ext3x.so`.
/// Empty where they are not files beside the library: then nothing is known, and MPI_Init must be tried.
fn open_mpi_plugins() -> Vec<String> {
    let Some(library) = host::library("libmpi.so") else { return Vec::new() };
    // Where Open MPI puts them, and where Debian and Ubuntu do.
    let places = ["openmpi", "openmpi/lib/openmpi3"].map(|place| library.with_file_name(place));
    let files = places.iter().filter_map(|place| std::fs::read_dir(place).ok()).flatten().flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    names.filter_map(|name| Some(name.strip_prefix("mca_pmix_")?.strip_suffix(".so")?.to_string())).collect()
}

/// How many processes the launcher started for this job, as far as it says; 1 without a launcher.
pub fn launched() -> usize {
    Launch::at_start().claims.first().map_or(1, |&(_, size)| size)
}

/// How long a process that is not the first waits with its message: most likely all fail alike, and then the first
/// speaks and ends the job meanwhile.
const TURN: Duration = Duration::from_secs(3);

/// What a process does that cannot join the others of its job: `speak`, and end the job with this exit code. The others
/// may be waiting for it inside MPI_Init, without end. Comes back where the process is to end by itself.
pub fn leave(code: i32, speak: impl FnOnce()) {
    let launch = Launch::at_start();
    let launcher = launch.claims.first().map(|&(launcher, _)| launcher);
    if launch.rank > 0 {
        std::thread::sleep(TURN);
    }
    // srun ends the others only if told so (--kill-on-bad-exit): they would all say the same. It says whose exit code
    // was bad.
    if launch.rank == 0 || launcher != Some(Launcher::Slurm) {
        speak();
    }
    // Open MPI's mpirun ends a job in which any process ends with an error.
    if let (Some(Launcher::Pmi), Some(pmi)) = (launcher, pmi())
        && abort_by_pmi(&pmi, code).is_ok()
    {
        // Until the end comes.
        std::thread::sleep(TURN);
    }
}

/// The connection to a launcher that speaks PMI.
fn pmi() -> Option<ManuallyDrop<UnixStream>> {
    let descriptor = std::env::var("PMI_FD").ok()?.parse::<RawFd>().ok()?;
    // SAFETY: the launcher opened it for this process's MPI library, which could not use it, and nothing closes it
    // here.
    Some(ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(descriptor) }))
}

/// Asks Hydra to end the job, as MPI_Abort would. It takes no notice of the exit code of a process that never spoke to
/// it.
fn abort_by_pmi(mut pmi: &UnixStream, code: i32) -> std::io::Result<()> {
    pmi.set_read_timeout(Some(Duration::from_secs(1)))?;
    pmi.write_all(b"cmd=init pmi_version=1 pmi_subversion=1\n")?;
    let _ = pmi.read(&mut [0; 1024])?;
    std::thread::sleep(LAST_WORDS);
    pmi.write_all(format!("cmd=abort exitcode={code}\n").as_bytes())
}

fn rank_in(variable: impl Fn(&str) -> Option<String>) -> usize {
    ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "RANK", "SLURM_PROCID"]
        .iter()
        .find_map(|name| variable(name)?.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(family: Family) -> MpiLibrary {
        let name = if family == Family::OpenMpi { "Open MPI" } else { "MPICH" };
        MpiLibrary {
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

    /// Each process would train for itself.
    #[test]
    fn torchrun_is_told_from_an_mpi() {
        let torchrun = [("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "4")];
        let text = message(&torchrun, Family::OpenMpi, 1).unwrap();
        assert!(
            text.contains("torchrun") && text.contains("Type `mpirun -n 4 dltrain …` in its place"),
            "{text}"
        );
        let on_a_node = [&torchrun[..], &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]].concat();
        assert!(message(&on_a_node, Family::Mpich, 1).unwrap().contains("mpiexec -n 4"));
        // What a script exports for others does no harm.
        assert_eq!(message(&torchrun[2..], Family::OpenMpi, 1), None);
        assert_eq!(
            message(&[&torchrun[..], &[("OMPI_COMM_WORLD_SIZE", "4")]].concat(), Family::OpenMpi, 4),
            None
        );
        assert_eq!(message(&[torchrun[0], torchrun[1], ("WORLD_SIZE", "1")], Family::OpenMpi, 1), None);
    }

    /// The words are those of MPICH's own PMI_Init and PMI_Abort.
    #[test]
    fn hydra_is_told_to_end_the_job() {
        let (own, mut launcher) = UnixStream::pair().unwrap();
        launcher.write_all(b"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n").unwrap();
        abort_by_pmi(&own, 4).unwrap();
        drop(own);
        let mut said = String::new();
        launcher.read_to_string(&mut said).unwrap();
        assert_eq!(said, "cmd=init pmi_version=1 pmi_subversion=1\ncmd=abort exitcode=4\n");
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
    fn open_mpi_is_known_to_need_pmix_only_by_its_version_or_its_plugins() {
        let list = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(needs_pmix("5.0.11", &[]));
        assert!(needs_pmix("4.1.4", &list(&["ext3x", "flux", "isolated"])));
        assert!(!needs_pmix("4.1.4", &list(&["pmix3x", "s1", "s2"])));
        assert!(!needs_pmix("4.1.4", &[]));
    }

    #[test]
    fn what_mpi_init_can_join_is_left_to_it() {
        let open_mpi = MpiLibrary { version: "5.0.11".into(), ..library(Family::OpenMpi) };
        let refused = |pairs: &[(&str, &str)]| Launch::read(environment(pairs)).prepare(&open_mpi).is_err();
        let srun = ("SLURM_STEP_NUM_TASKS", "4");
        assert!(refused(&[srun]));
        assert!(!refused(&[srun, ("PMIX_NAMESPACE", "slurm.pmix.1.0")]));
        assert!(!refused(&[srun, ("OMPI_COMM_WORLD_SIZE", "8")]));
        // `flux run` in a Flux that srun started.
        assert!(!refused(&[srun, ("PMI_SIZE", "8"), ("FLUX_JOB_ID", "f2")]));
        // mpiexec's own daemons are a step that srun started with PMIx; the ranks are not.
        let daemons = [("PMIX_NAMESPACE", "slurm.pmix.1.0"), ("SLURM_STEP_NUM_TASKS", "2")];
        assert!(refused(&[daemons[0], daemons[1], ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2")]));
    }

    #[test]
    fn one_rank_in_an_allocations_shell_is_told_how_to_use_all_of_it() {
        let hint =
            |pairs: &[(&str, &str)]| Launch::read(environment(pairs)).hint(&library(Family::OpenMpi), 1);
        let shell = ("SLURM_NTASKS", "4");
        assert!(hint(&[shell]).unwrap().contains("srun --mpi=pmix -n 4 dltrain"));
        assert!(hint(&[("SLURM_JOB_NUM_NODES", "4")]).is_some());
        assert!(hint(&[shell, ("SLURM_STEP_ID", INTERACTIVE_STEP), ("SLURM_STEP_NUM_TASKS", "1")]).is_some());
        // Who launched one rank wants one rank.
        assert_eq!(hint(&[shell, ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]), None);
        assert_eq!(hint(&[shell, ("OMPI_COMM_WORLD_SIZE", "1")]), None);
        assert_eq!(hint(&[]), None);
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
