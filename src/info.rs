//! `dltrain info`: what this machine and this program offer, also where something is missing.
//!
//! May use: every module. Used by: `main`.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::comm::{World, is_cuda_aware};
use crate::config::{JpegDecoder, environment};
use crate::data::Jpeg;
use crate::device::{cuda, onednn};
use crate::error::Result;
use crate::host;
use crate::record;

/// Prints one table for the whole job; where `verbose`, the switches of the environment too. Collective.
pub fn print(world: &World, verbose: bool) -> Result<()> {
    let hosts = world.gather_text(world.host())?;
    let gpus = world.gather_text(&gpus())?;
    let isas = world.gather_text(&onednn::isa().map_or_else(|_| "unknown".into(), |isa| isa.to_string()))?;
    let mut text = String::new();
    for (name, value) in [
        ("dltrain", record::version().into()),
        ("MPI", mpi(world)),
        ("launcher", world.library().launcher.clone()),
        ("ranks", ranks(world)),
        ("hosts", counted(&hosts, "rank")),
        ("CPU", cpu(&isas)),
        ("oneDNN", onednn_found()),
        ("HDF5", record::hdf5_version()),
        ("JPEG", jpeg()),
        ("GPUs", gpu_lines(&hosts, &gpus)),
        ("CUDA in", cuda::looked_in()),
    ] {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<10} {value}");
    }
    if verbose {
        text += "\nSwitches of the environment, as rank 0 has them:\n";
        text += &environment::describe();
    }
    record::say(world, text.trim_end());
    Ok(())
}

fn mpi(world: &World) -> String {
    let library = world.library();
    let (name, version, level) = (&library.name, &library.version, library.thread_level);
    let aware = match is_cuda_aware() {
        Some(true) => "CUDA-aware",
        Some(false) => "not CUDA-aware",
        None => "does not say whether it is CUDA-aware",
    };
    format!("{name} {version}, thread level {level}, {aware}, built with {}", record::mpicc())
}

fn ranks(world: &World) -> String {
    let (size, nodes) = (world.size(), world.nodes());
    format!("{size} on {nodes} node{}, {} on this one", plural(nodes), world.local_size())
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// "n0 (2 ranks), n1 (2 ranks)".
fn counted(names: &[String], what: &str) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    names.iter().for_each(|name| *counts.entry(name).or_default() += 1);
    let one = |(name, count): (&&str, &usize)| format!("{name} ({count} {what}{})", plural(*count));
    counts.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn cpu(isas: &[String]) -> String {
    let model = host::cpu_model().unwrap_or_else(|| "unknown model".into());
    let cores = host::cores();
    let mut distinct = isas.to_vec();
    distinct.sort();
    distinct.dedup();
    format!("{model}, {cores} core{} for rank 0, instruction set {}", plural(cores), distinct.join(" and "))
}

fn onednn_found() -> String {
    match onednn::probe() {
        Ok(found) => format!("{} ({}) {}", found.version, found.runtime, found.path.display()),
        // The message has a line for each place that was searched; here it is one.
        Err(error) => format!("none: {}", error.message.split_whitespace().collect::<Vec<_>>().join(" ")),
    }
}

/// What decodes JPEG files, and why, as one line.
fn jpeg() -> String {
    match Jpeg::find(JpegDecoder::Turbo) {
        Ok(turbo) => format!("{} {}", turbo.name(), loaded("libturbojpeg")),
        Err(error) => format!("{}: {}", JpegDecoder::Rust, error.message),
    }
}

/// The file of a library of this process.
fn loaded(name: &str) -> String {
    host::library(name).map_or(String::new(), |path| path.display().to_string())
}

/// This rank's GPUs, or why there are none, as one line.
fn gpus() -> String {
    match cuda::probe() {
        Err(why) => format!("none: {why}"),
        Ok(driver) => {
            let gpu = |gpu: &cuda::GpuInfo| {
                let (major, minor) = gpu.compute_capability;
                let gib = gpu.memory_bytes as f64 / (1u64 << 30) as f64;
                format!("{} {} (sm_{major}{minor}, {gib:.0} GiB)", gpu.index, gpu.name)
            };
            let (major, minor) = driver.cuda_version;
            let list: Vec<String> = driver.gpus.iter().map(gpu).collect();
            let meter = cuda::nvml_found().map_or_else(
                |why| format!("no figures of utilisation, memory and power: {why}"),
                |path| format!("NVML {}", path.display()),
            );
            format!("{} (driver for CUDA {major}.{minor}); {}; {meter}", list.join(", "), cuda_libraries())
        }
    }
}

/// What a GPU would be driven by, or why none can be.
fn cuda_libraries() -> String {
    match cuda::found() {
        Ok(found) => format!(
            "cuDNN {} {}, cuBLAS {} {}, {}, {}",
            found.cudnn,
            found.cudnn_path.display(),
            found.cublas,
            found.cublas_path.display(),
            found.nvrtc.map_or_else(
                || "no NVRTC (with it cuDNN does more along with a convolution)".into(),
                |((major, minor), path)| format!("NVRTC {major}.{minor} {}", path.display())
            ),
            cuda::nccl_found().map_or_else(
                |_| "no NCCL (for --allreduce nccl)".into(),
                |(version, path)| format!("NCCL {version} {}", path.display())
            )
        ),
        Err(error) => format!("not usable: {error}"),
    }
}

/// One answer where all hosts have the same, else one a host.
fn gpu_lines(hosts: &[String], gpus: &[String]) -> String {
    if gpus.iter().all(|text| *text == gpus[0]) {
        return gpus[0].clone();
    }
    let by_host: BTreeMap<&String, &String> = hosts.iter().zip(gpus).collect();
    by_host.iter().map(|(host, text)| format!("{host}: {text}")).collect::<Vec<_>>().join("\n           ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_counted() {
        let hosts = ["n1", "n0", "n1"].map(String::from);
        assert_eq!(counted(&hosts, "rank"), "n0 (1 rank), n1 (2 ranks)");
    }
}
