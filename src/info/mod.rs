//! `dltrain info`: what this machine and this program offer, also where something is missing.
//!
//! May use: every module. Used by: `main`.

mod site;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::comm::{World, is_cuda_aware, mpicc};
use crate::config::{JpegDecoder, environment};
use crate::data::Jpeg;
use crate::device::{cuda, onednn};
use crate::error::Result;
use crate::host;
use crate::host::clock::Offset;
use crate::record::{self, plural};

/// What of it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
pub struct Args {
    /// Also list the switches of the environment, with the values in force.
    #[arg(long, short)]
    verbose: bool,
    /// Also say what a site's support asks for: system, memory, limits, pinning, networks, file systems, clocks, and
    /// what the environment tells MPI, for every rank.
    #[arg(long)]
    site: bool,
    /// Print JSON: of each fact its values, each with the ranks that have it.
    #[arg(long, conflicts_with = "verbose")]
    json: bool,
}

/// A fact: its name, and what each rank says, or rank 0 for all.
type Fact = (&'static str, Vec<String>);

/// Prints one table for the whole job. Collective.
pub fn print(world: &World, args: Args) -> Result<()> {
    world.check_same(&[("--site".into(), args.site.to_string())])?;
    let hosts = world.gather_text(world.host())?;
    let gpus = world.gather_text(&gpus())?;
    let isas = world.gather_text(&onednn::isa().map_or_else(|_| "unknown".into(), |isa| isa.to_string()))?;
    let mut facts: Vec<Fact> = [
        ("dltrain", record::version().into()),
        ("MPI", mpi(world)),
        ("launcher", world.library().launcher.clone()),
        ("ranks", ranks(world)),
        ("hosts", counted(&hosts, "rank")),
        ("CPU", cpu(&isas)),
        ("oneDNN", onednn_found()),
        ("HDF5", record::hdf5_version()),
        ("JPEG", jpeg()),
    ]
    .map(|(name, value)| (name, vec![value]))
    .into();
    facts.push(("GPUs", gpus));
    facts.push(("CUDA in", vec![cuda::looked_in()]));
    if args.site {
        for (name, value) in site::facts() {
            facts.push((name, world.gather_text(&value)?));
        }
        facts.push(("clocks", vec![clocks(&world.clock_offsets()?)]));
    }
    if args.json {
        record::say(world, &json(&hosts, &facts));
        return Ok(());
    }
    let mut text = String::new();
    for (name, values) in &facts {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<10} {}", lines(&hosts, values).join("\n           "));
    }
    if args.verbose {
        text += "\nSwitches of the environment, as rank 0 has them:\n";
        text += &environment::describe();
    }
    record::say(world, text.trim_end());
    Ok(())
}

/// How well the ranks' clocks are known against rank 0's.
fn clocks(offsets: &[Offset]) -> String {
    let unlike = offsets.iter().filter(|offset| offset.nanoseconds != 0);
    match unlike.max_by_key(|offset| offset.uncertainty) {
        None => "every rank has rank 0's".into(),
        Some(most) => {
            format!("other nodes' differ; by how much is known to {:.0} µs", most.uncertainty as f64 / 1e3)
        }
    }
}

/// The values of a fact in the order of ranks, each with the ranks that have it.
fn by_value(values: &[String]) -> Vec<(&str, Vec<usize>)> {
    let mut found: Vec<(&str, Vec<usize>)> = Vec::new();
    for (rank, value) in values.iter().enumerate() {
        match found.iter_mut().find(|(other, _)| other == value) {
            Some((_, ranks)) => ranks.push(rank),
            None => found.push((value, vec![rank])),
        }
    }
    found
}

/// One line where all ranks say the same, else one a value, with the hosts whose ranks all say it, or with the ranks.
fn lines(hosts: &[String], values: &[String]) -> Vec<String> {
    let found = by_value(values);
    if let [(value, _)] = found.as_slice() {
        return vec![value.to_string()];
    }
    let whose = |ranks: &[usize]| {
        let of: BTreeSet<&str> = ranks.iter().map(|&rank| hosts[rank].as_str()).collect();
        if hosts.iter().filter(|host| of.contains(host.as_str())).count() == ranks.len() {
            return first_of(of);
        }
        format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, first_of(ranks))
    };
    found.iter().map(|(value, ranks)| format!("{}: {value}", whose(ranks))).collect()
}

/// The first of some names, and how many more there are.
fn first_of<T: ToString>(names: impl IntoIterator<Item = T>) -> String {
    const NAMED: usize = 4;
    let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    let first = names[..names.len().min(NAMED)].join(", ");
    if names.len() > NAMED { format!("{first} and {} more", names.len() - NAMED) } else { first }
}

/// {"hosts": [of each rank], "facts": {"MPI": [{"value": "…", "ranks": [0, 1]}]}}.
fn json(hosts: &[String], facts: &[Fact]) -> String {
    let of_all: Vec<usize> = (0..hosts.len()).collect();
    let one = |(name, values): &Fact| {
        let ranks = |ranks: Vec<usize>| if values.len() == 1 { of_all.clone() } else { ranks };
        let values = by_value(values).into_iter();
        let values: Vec<_> =
            values.map(|(value, of)| serde_json::json!({ "value": value, "ranks": ranks(of) })).collect();
        (name.to_string(), serde_json::Value::from(values))
    };
    let facts: serde_json::Map<String, serde_json::Value> = facts.iter().map(one).collect();
    format!("{:#}", serde_json::json!({ "hosts": hosts, "facts": facts }))
}

fn mpi(world: &World) -> String {
    let library = world.library();
    let (name, version, level) = (&library.name, &library.version, library.thread_level);
    let aware = match is_cuda_aware() {
        Some(true) => "CUDA-aware",
        Some(false) => "not CUDA-aware",
        None => "does not say whether it is CUDA-aware",
    };
    format!("{name} {version}, thread level {level}, {aware}, built with {}", mpicc())
}

fn ranks(world: &World) -> String {
    let (size, nodes) = (world.size(), world.nodes());
    format!("{size} on {}, {} on this one", plural(nodes, "node"), world.local_size())
}

/// "n0 (2 ranks), n1 (2 ranks)".
fn counted(names: &[String], what: &str) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    names.iter().for_each(|name| *counts.entry(name).or_default() += 1);
    let one = |(name, count): (&&str, &usize)| format!("{name} ({})", plural(*count, what));
    counts.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn cpu(isas: &[String]) -> String {
    let model = host::cpu_model().unwrap_or_else(|| "unknown model".into());
    let cores = host::cores();
    let mut distinct = isas.to_vec();
    distinct.sort();
    distinct.dedup();
    format!("{model}, {} for rank 0, instruction set {}", plural(cores, "core"), distinct.join(" and "))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_counted() {
        let hosts = ["n1", "n0", "n1"].map(String::from);
        assert_eq!(counted(&hosts, "rank"), "n0 (1 rank), n1 (2 ranks)");
    }

    #[test]
    fn values_that_differ_are_said_with_the_hosts_or_ranks_that_have_them() {
        let hosts = ["n0", "n0", "n1", "n1", "n2", "n2"].map(String::from);
        let said = |values: [&str; 6]| lines(&hosts, &values.map(String::from)).join("; ");
        assert_eq!(said(["a"; 6]), "a");
        assert_eq!(said(["a", "a", "b", "b", "a", "a"]), "n0, n2: a; n1: b");
        assert_eq!(said(["a", "b", "a", "b", "a", "c"]), "ranks 0, 2, 4: a; ranks 1, 3: b; rank 5: c");
        let many: Vec<String> = (0..8).map(|rank| format!("n{rank}")).collect();
        let values: Vec<String> = (0..8).map(|rank| (rank == 0).to_string()).collect();
        assert_eq!(lines(&many, &values), ["n0: true", "n1, n2, n3, n4 and 3 more: false"]);
        let found: serde_json::Value =
            serde_json::from_str(&json(&many, &[("x", values), ("y", vec!["z".into()])])).unwrap();
        assert_eq!(found["facts"]["x"][0], serde_json::json!({ "value": "true", "ranks": [0] }));
        assert_eq!(found["facts"]["y"][0]["ranks"].as_array().unwrap().len(), 8);
    }
}
