//! Tells the program what it was built from (the git revision, the MPI compiler) and compiles its one C file.
//!
//! Never fails: without git, or in a tarball, the revision is "unknown".

use std::path::Path;
use std::process::Command;

/// What the revision speaks for. A change in any of these while HEAD stays is a "-dirty" build.
const SOURCES: [&str; 5] = ["src", "kernels", "build.rs", "Cargo.toml", "Cargo.lock"];

fn main() {
    compile_constants();
    println!("cargo:rustc-env=DLTRAIN_REVISION={}", revision().unwrap_or_else(|| "unknown".into()));
    let mpicc = std::env::var("MPICC").ok().filter(|name| !name.is_empty());
    println!("cargo:rustc-env=DLTRAIN_MPICC={}", mpicc.as_deref().unwrap_or("mpicc"));
}

/// HEAD in twelve digits, with "-dirty" where tracked sources differ from it.
fn revision() -> Option<String> {
    // A path that is not there would make cargo run this script every time.
    for source in SOURCES.iter().filter(|source| Path::new(source).exists()) {
        println!("cargo:rerun-if-changed={source}");
    }
    // Unpacked inside some other repository, its revision would say nothing about this program.
    if !git(&["rev-parse", "--show-prefix"])?.is_empty() {
        return None;
    }
    // The reflog grows with every commit and checkout, wherever git keeps the branch itself.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name])?;
        if Path::new(&path).exists() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let head = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&[&["status", "--porcelain", "--untracked-files=no", "--"], &SOURCES[..]].concat())?;
    Some(if changed.is_empty() { head } else { format!("{head}-dirty") })
}

/// What git prints, trimmed; nothing where git is missing or fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).env("GIT_OPTIONAL_LOCKS", "0").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Compiles the one C file: what a C header of MPI defines in a way that no binding generator can read.
fn compile_constants() {
    let source = "src/comm/constants.c";
    println!("cargo:rerun-if-changed={source}");
    for variable in ["MPICC", "MPI_PKG_CONFIG", "CRAY_MPICH_DIR"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    // The same search as crate `mpi` makes, so that both find the same library.
    let library = build_probe_mpi::probe().unwrap_or_else(|errors| {
        let tried: Vec<String> = errors.iter().map(ToString::to_string).collect();
        panic!("no MPI library found; set MPICC to its compiler wrapper. Tried:\n{}", tried.join("\n"))
    });
    let mut build = cc::Build::new();
    build.file(source).includes(&library.include_paths);
    if let Some(mpicc) = library.mpicc {
        build.compiler(mpicc);
    }
    build.compile("dltrain_comm");
}
