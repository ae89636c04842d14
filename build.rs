//! Tells the program which MPI compiler it was built with, and compiles its one C file. The revision is not told here:
//! see `crates/revision/`.

fn main() {
    compile_constants();
    let mpicc = std::env::var("MPICC").ok().filter(|name| !name.is_empty());
    println!("cargo:rustc-env=DLTRAIN_MPICC={}", mpicc.as_deref().unwrap_or("mpicc"));
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
