//! Deflates the GPU's kernels, and assembles them where a CUDA toolkit is there; without one the GPU's driver does.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;

/// Where the kernels lie, from this crate.
const KERNELS: &str = "../../kernels";

fn main() {
    deflate_kernels();
    assemble_kernels();
}

/// Writes kernels/*.ptx to OUT_DIR, compressed.
fn deflate_kernels() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for name in ["dltrain.ptx", "dltrain.sm_80.ptx"] {
        let source = format!("{KERNELS}/{name}");
        println!("cargo:rerun-if-changed={source}");
        let text = std::fs::read(&source).unwrap_or_else(|e| panic!("{source}: {e}"));
        let mut deflated = GzEncoder::new(Vec::new(), Compression::best());
        let deflated = deflated.write_all(&text).and_then(|()| deflated.finish()).expect("memory takes it");
        let file = out.join(format!("{name}.gz"));
        std::fs::write(&file, deflated).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
}

/// GPUs for which the kernels are assembled ahead: each serves those of its generation.
const GPUS: [&str; 4] = ["80", "90", "100", "120"];

/// Assembles kernels/dltrain.sm_80.ptx into OUT_DIR/kernels.fatbin, so that no job waits for the driver to do so. The
/// file is empty where no toolkit is found, or where it does not do: then the driver compiles the PTX, once a machine.
fn assemble_kernels() {
    let source = format!("{KERNELS}/dltrain.sm_80.ptx");
    println!("cargo:rerun-if-changed={source}");
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let Some(out) = std::env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    let file = out.join("kernels.fatbin");
    let made = toolkit().and_then(|tools| fatbin(&tools, Path::new(&source), &out, &file));
    if made.is_none() && std::fs::write(&file, []).is_err() {
        println!("cargo:warning={} cannot be written", file.display());
    }
}

/// The directory of ptxas and fatbinary.
fn toolkit() -> Option<PathBuf> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
    let homes = homes.map(|home| PathBuf::from(home).join("bin")).chain(["/usr/local/cuda/bin".into()]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = homes.chain(std::env::split_paths(&path));
    all.into_iter().find(|at| ["ptxas", "fatbinary"].iter().all(|tool| at.join(tool).is_file()))
}

fn fatbin(tools: &Path, source: &Path, out: &Path, file: &Path) -> Option<()> {
    let succeeds = |tool: &str, arguments: &[String]| {
        let output = Command::new(tools.join(tool)).args(arguments).output();
        output.is_ok_and(|output| output.status.success())
    };
    // An older toolkit does not know the newest GPUs.
    let assembled = GPUS.iter().filter_map(|gpu| {
        let cubin = out.join(format!("kernels.sm_{gpu}.cubin")).display().to_string();
        let arguments = [format!("-arch=sm_{gpu}"), source.display().to_string(), "-o".into(), cubin.clone()];
        succeeds("ptxas", &arguments).then(|| format!("--image3=kind=elf,sm={gpu},file={cubin}"))
    });
    let mut arguments = vec!["-64".into(), "--compress-all".into(), format!("--create={}", file.display())];
    arguments.extend(assembled);
    (arguments.len() > 3 && succeeds("fatbinary", &arguments)).then_some(())
}
