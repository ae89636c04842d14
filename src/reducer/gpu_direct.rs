//! Whether gradients are added up where the GPUs have them, past the host's memory: by the GPUs of a node in each
//! other's memory (`--allreduce ipc`), or by the MPI library (`--cuda-aware`).

use std::rc::Rc;

use super::sharing::as_memory;
use crate::collective::{self, Collective, Hierarchical, MpiAllreduce, Steps};
use crate::comm::{Region, World, is_cuda_aware};
use crate::config::{AllreduceKind, Config, CudaAware, Pattern, Wire};
use crate::device::{Device, Memory};
use crate::error::{Error, Result};
use crate::fusion::{self, Peers};
use crate::record;
use log::Level;

/// Whether it is to. The library is asked, and then tried with numbers whose sum is known. Collective.
///
/// # Errors
/// The same on every rank: that it cannot be, where `--cuda-aware on` asks for it.
pub fn mpi_serves(world: &World, config: &Config, device: &dyn Device) -> Result<bool> {
    let wanted = config.cuda_aware;
    let concerned = config.allreduce == AllreduceKind::MPI && config.compress.is_none() && !device.is_host();
    match wanted {
        CudaAware::On if !concerned => {
            return world.agree(Err(Error::usage(
                "--cuda-aware on is for --device cuda with --allreduce mpi and without --compress: everything else is \
                 added up in the host's memory; leave it out",
            )));
        }
        CudaAware::Auto if concerned && world.size() > 1 => {}
        CudaAware::On => {}
        _ => return Ok(false),
    }
    let answers = world.gather_text(answer(is_cuda_aware()))?;
    let why = match refusal(wanted, &answers, |rank| world.host_of(rank)) {
        Some(why) => (why, Level::Info),
        None if adds_up(world, device)? => {
            record::log(world, Level::Info, "MPI adds up gradients in the GPUs' memory");
            return Ok(true);
        }
        None => ("it added up numbers in a GPU's memory wrongly".into(), Level::Warn),
    };
    let (why, level) = (format!("the MPI library, {}: {}", world.library(), why.0), why.1);
    match wanted {
        CudaAware::On => world.agree(Err(Error::environment(format!(
            "--cuda-aware on: {why}. Load an MPI that is built with CUDA (for MPICH and Cray MPICH also set \
             MPICH_GPU_SUPPORT_ENABLED=1), or leave the flag out"
        )))),
        _ => {
            record::log(world, level, &format!("gradients go through the host's memory; {why}"));
            Ok(false)
        }
    }
}

fn answer(aware: Option<bool>) -> &'static str {
    match aware {
        Some(true) => "yes",
        Some(false) => "says that it is not CUDA-aware",
        None => "does not say whether it is CUDA-aware",
    }
}

/// Why it is not even tried: `auto` wants a yes of every rank; with `on` a library that does not say may be.
fn refusal<'a>(wanted: CudaAware, answers: &[String], host_of: impl Fn(usize) -> &'a str) -> Option<String> {
    let silent = answer(None);
    let no = |text: &String| text != "yes" && !(wanted == CudaAware::On && text == silent);
    let rank = answers.iter().position(no)?;
    Some(format!("it {} (rank {rank} on {})", answers[rank], host_of(rank)))
}

/// Whether MPI adds up numbers in the device's memory. Collective.
fn adds_up(world: &World, device: &dyn Device) -> Result<bool> {
    fusion::adds_up(world, device, |memory| {
        let mut vendor = MpiAllreduce::new(world, &region(memory))?;
        let slot = vendor.prepare(0..memory.bytes() / size_of::<f32>())?;
        vendor.start(slot)?;
        collective::wait(&mut vendor, slot)
    })
}

/// Whether the GPUs of each node are to add up in each other's memory: asked for, or with `--allreduce auto` found to
/// work with numbers whose sum is known. Collective.
///
/// # Errors
/// The same on every rank: why they cannot, where `--allreduce ipc` asks for it.
pub fn gpus_serve(world: &World, config: &Config, device: &dyn Device) -> Result<bool> {
    let asked = config.allreduce == AllreduceKind::IPC;
    let neighbours = world.size() > world.nodes();
    let tried = config.allreduce == AllreduceKind::Auto && config.compress.is_none() && neighbours;
    if device.is_host() || !(asked || tried && world.is_even()) {
        return Ok(false);
    }
    let why = match gpus_add_up(world, device) {
        Ok(true) => return Ok(true),
        Ok(false) => "they added up numbers wrongly".into(),
        Err(e) if world.is_agreed(&e) => e.message,
        Err(e) => {
            return Err(e.context("GPUs that add up in each other's memory (--allreduce shm goes without)"));
        }
    };
    if asked {
        return world.agree(Err(Error::environment(format!(
            "--allreduce ipc: the GPUs of a node do not reach each other's memory: {why}. Each rank must see all GPUs of its \
             node (not --gpus-per-task), in one container; or use --allreduce auto"
        ))));
    }
    let slower = "gradients go through the host's memory, which is slower: the GPUs of a node do not reach each other's";
    record::log(world, Level::Warn, &format!("{slower}: {why}"));
    Ok(false)
}

fn gpus_add_up(world: &World, device: &dyn Device) -> Result<bool> {
    fusion::adds_up(world, device, |memory| {
        let bytes = if world.nodes() > 1 { memory.bytes() } else { 0 };
        let region = Rc::new(world.agree(Region::private(bytes))?);
        // As f32 also between nodes, where a sum must be right to the last bit.
        let mut sums = over_gpus(world, Wire::F32, device, memory, &region)?;
        let slot = world.agree(sums.prepare(0..memory.bytes() / size_of::<f32>()))?;
        sums.start(slot)?;
        collective::wait(&mut sums, slot)?;
        sums.leave()
    })
}

/// What adds up where the GPUs of each node reach each other's `memory`; with several nodes by way of `region`, which
/// is as long. Collective.
///
/// # Errors
/// The same on every rank.
pub fn over_gpus(
    world: &World,
    wire: Wire,
    device: &dyn Device,
    memory: &Memory,
    region: &Rc<Region>,
) -> Result<Hierarchical> {
    let host = (world.nodes() > 1).then(|| as_memory(region));
    let (steps, peers) = (Steps::Sum(Pattern::Ring), Peers::new(world, device, memory, host)?);
    world.agree(Hierarchical::new(steps, world, wire, region, Box::new(peers)))
}

/// A device's memory as the MPI library is given it.
#[allow(unsafe_code)]
pub fn region(memory: &Memory) -> Rc<Region> {
    // SAFETY: the region holds the memory. That MPI reads and writes it is tried before gradients lie there, and
    // nothing but `MpiAllreduce` is made for it.
    unsafe { Region::foreign(memory.address(), memory.bytes(), Rc::new(memory.clone())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_tried_where_it_says_so_and_where_it_is_silent_only_if_asked_for() {
        let of = |wanted, aware: [Option<bool>; 2]| {
            refusal(wanted, &aware.map(|aware| answer(aware).to_string()), |_| "h")
        };
        let (yes, no) = (Some(true), Some(false));
        for wanted in [CudaAware::Auto, CudaAware::On] {
            assert_eq!(of(wanted, [yes, yes]), None);
            let why = of(wanted, [yes, no]).unwrap_or_default();
            assert_eq!(why, "it says that it is not CUDA-aware (rank 1 on h)");
        }
        assert_eq!(of(CudaAware::On, [yes, None]), None);
        assert!(of(CudaAware::Auto, [None, yes]).is_some_and(|why| why.contains("does not say")));
    }
}
