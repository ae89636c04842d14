//! Which MPI library this program is linked with.

use std::ffi::c_int;
use std::fmt;

use mpi::ffi;

use super::request;

/// Libraries that share a launcher: what one family's launcher starts, another family's library does not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Open MPI and what is made from it.
    OpenMpi,
    /// MPICH and what is made from it (Intel MPI, Cray MPICH, MVAPICH).
    Mpich,
    /// Neither of the two.
    Other,
}

/// The MPI library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpiLibrary {
    /// Which of the two families it belongs to.
    pub family: Family,
    /// "Open MPI", "MPICH", "Intel MPI", "Cray MPICH", "MVAPICH".
    pub name: String,
    /// "4.1.4".
    pub version: String,
    /// The level of thread support granted, "funneled" or higher; "none" before MPI is started.
    pub thread_level: &'static str,
    /// Who started this process: "mpirun (Open MPI)", "mpiexec (Hydra)", "srun", "none".
    pub launcher: String,
}

/// The MPI compiler wrapper this program was built with (MPICC).
pub fn mpicc() -> &'static str {
    env!("DLTRAIN_MPICC")
}

impl MpiLibrary {
    /// Asks the library who it is. May be called at any time, also before `World::start`.
    pub fn linked() -> MpiLibrary {
        let mut text = [0u8; 16384];
        let mut length: c_int = 0;
        // SAFETY: the buffer is larger than MPI_MAX_LIBRARY_VERSION_STRING of any library (8192 in MPICH); the
        // call is allowed before MPI_Init.
        unsafe { ffi::MPI_Get_library_version(text.as_mut_ptr().cast(), &mut length) };
        MpiLibrary::parse(&request::text_of(&text, length))
    }

    fn parse(text: &str) -> MpiLibrary {
        let known = [
            ("Open MPI", "Open MPI", Family::OpenMpi),
            ("Intel(R) MPI", "Intel MPI", Family::Mpich),
            ("CRAY MPICH", "Cray MPICH", Family::Mpich),
            ("MVAPICH", "MVAPICH", Family::Mpich),
            ("MPICH", "MPICH", Family::Mpich),
        ];
        let first_line = text.lines().next().unwrap_or_default();
        let (name, family, after) = known
            .iter()
            .find_map(|&(mark, name, family)| {
                text.find(mark).map(|at| (name, family, &text[at + mark.len()..]))
            })
            .unwrap_or((first_line, Family::Other, first_line));
        // The version is the first word with a dot between digits: "v4.1.4,", "4.0.2", "2021.10".
        let version = after
            .split(|c: char| c.is_whitespace() || c == ',')
            .map(|word| word.trim_start_matches('v'))
            .find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))
            .unwrap_or("unknown");
        MpiLibrary {
            family,
            name: name.to_string(),
            version: version.to_string(),
            thread_level: "none",
            launcher: "none".to_string(),
        }
    }
}

/// Whether the MPI library says that it sends and receives a GPU's memory by itself (`MPIX_Query_cuda_support`); `None`
/// where it does not say.
pub fn is_cuda_aware() -> Option<bool> {
    type CudaSupportQuery = unsafe extern "C" fn() -> c_int;
    let this = libloading::os::unix::Library::this();
    // SAFETY: the signature is that of Open MPI's and MPICH's headers; it takes nothing and asks the library only.
    unsafe { this.get::<CudaSupportQuery>(b"MPIX_Query_cuda_support\0").ok().map(|query| query() == 1) }
}

impl fmt::Display for MpiLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

/// The name of a thread level that MPI_Init_thread granted.
pub(super) fn thread_level(level: c_int) -> &'static str {
    // SAFETY: constants of the MPI library.
    let levels = unsafe {
        [
            (ffi::RSMPI_THREAD_SINGLE, "single"),
            (ffi::RSMPI_THREAD_FUNNELED, "funneled"),
            (ffi::RSMPI_THREAD_SERIALIZED, "serialized"),
            (ffi::RSMPI_THREAD_MULTIPLE, "multiple"),
        ]
    };
    levels.iter().find(|(value, _)| *value == level).map_or("unknown", |(_, name)| name)
}

/// Takes SIGUSR1 from MPI, for whoever handles it next. MPICH takes it for news of dead processes and asks the launcher
/// for them in its next call; without a launcher it starts one then, and waits for it, in vain where that is slow.
pub fn release_user_signal() {
    // SAFETY: ignoring a signal runs no code of ours; the number is valid.
    unsafe { libc::signal(libc::SIGUSR1, libc::SIG_IGN) };
}

/// What holds for the whole process, before it has a second thread. A file that would be longer than allowed (ulimit
/// -f) is an error of whoever writes it, as on a full disk, and not the end of the process. HDF5 takes no locks, which
/// some file systems have not (unless the user wants them): who writes which file is `files`' business.
pub fn prepare_process() {
    const LOCKS: &str = "HDF5_USE_FILE_LOCKING";
    // SAFETY: ignoring a signal runs no code of ours, and the number is valid; no other thread reads the environment.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        if std::env::var_os(LOCKS).is_none() {
            std::env::set_var(LOCKS, "FALSE");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_of_the_libraries_are_understood() {
        let cases = [
            ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4", "Open MPI 4.1.4"),
            ("Open MPI v5.0.11, package: Open MPI x@y Distribution, ident: 5.0.11", "Open MPI 5.0.11"),
            (
                "MPICH Version:    4.0.2\nMPICH Release date: Thu Apr  7 2022\nMPICH ABI: 14:2:2",
                "MPICH 4.0.2",
            ),
            ("Intel(R) MPI Library 2021.10 for Linux* OS\n", "Intel MPI 2021.10"),
            (
                "MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)\nMPI BUILD INFO",
                "Cray MPICH 8.1.25.17",
            ),
            ("MVAPICH2 Version      :\t2.3.7\nMVAPICH2 Release date", "MVAPICH 2.3.7"),
            ("Something new 1.0", "Something new 1.0 1.0"),
        ];
        for (text, expected) in cases {
            assert_eq!(MpiLibrary::parse(text).to_string(), expected, "{text}");
        }
    }
}
