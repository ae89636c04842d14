//! Which device a rank drives, and opening it.

use crate::comm::World;
use crate::config::{AllreduceKind, Config, DeviceKind, Precision};
use crate::device::Device;
use crate::device::cuda::{self, Cuda};
use crate::device::onednn::{self, Cpu};
use crate::device::reference::Reference;
use crate::error::{Error, Result};
use crate::record;

/// The device of this rank, and the configuration with the precision that it computes in. Collective.
///
/// # Errors
/// The same on every rank: what the machine lacks, or a precision that the device has not.
pub fn open(world: &World, config: &Config, threads: usize) -> Result<(Box<dyn Device>, Config)> {
    let mut config = config.clone();
    let device = open_any(world, &mut config, threads)?;
    let sums = match config.allreduce {
        kind if kind.is_between_gpus() && device.is_host() => Err(Error::usage(format!(
            "--allreduce {} sums between GPUs, and this run computes on {}; use --device cuda, or another --allreduce",
            kind.name(),
            if device.name() == "cpu" { "the CPU" } else { device.name() }
        ))),
        _ => Ok(()),
    };
    world.agree(sums)?;
    Ok((device, config))
}

fn open_any(world: &World, config: &mut Config, threads: usize) -> Result<Box<dyn Device>> {
    match config.device {
        DeviceKind::Reference => {
            config.precision = config.precision.or(Precision::F32);
            let served = [Precision::F32, Precision::Bf16, Precision::F16];
            world.agree(serves(config.precision, &served, "--device reference"))?;
            Ok(Box::new(Reference))
        }
        DeviceKind::Cuda(number) => open_gpu(world, config, number),
        DeviceKind::Auto if every_rank_has_gpu(world)? => open_gpu(world, config, None),
        DeviceKind::Auto | DeviceKind::Cpu => open_cpu(world, config, threads),
    }
}

fn serves(precision: Precision, served: &[Precision], device: &str) -> Result<()> {
    match served.contains(&precision) {
        true => Ok(()),
        false => Err(Error::usage(format!(
            "--precision {precision} needs a GPU (--device cuda); {device} serves {}",
            served.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
        ))),
    }
}

fn open_cpu(world: &World, config: &mut Config, threads: usize) -> Result<Box<dyn Device>> {
    config.precision = config.precision.or(Precision::F32);
    let cpu = "this job on its CPUs";
    world.agree(serves(config.precision, &[Precision::F32, Precision::Bf16], cpu))?;
    // Layouts depend on the instruction set: ranks on unlike CPUs use what all of them have.
    let own = world.agree(onednn::isa())?;
    let texts = world.gather_text(&own.0.to_string())?;
    let others = texts.iter().filter_map(|text| text.parse().ok()).map(onednn::Isa);
    let common = others.fold(own, onednn::Isa::common);
    if common != own {
        log::warn!("using {common} instead of {own}, to agree with ranks on other CPUs");
    }
    world.agree(onednn::limit_isa(common))?;
    let device = world.agree(Cpu::new(threads))?;
    if config.precision == Precision::Bf16 {
        world.agree(
            device.has_bf16().map_err(|e| e.context(format!("--precision bf16 on {}", world.host()))),
        )?;
    }
    Ok(Box::new(device))
}

/// Whether every rank sees a GPU and has the libraries for it; where only some do that is said. Collective.
fn every_rank_has_gpu(world: &World) -> Result<bool> {
    let usable = cuda::probe().map_err(Error::environment).and_then(|_| cuda::found());
    let reason = usable.err().map_or(String::new(), |error| error.message);
    let reasons = world.gather_text(&reason)?;
    let without = |reason: &&String| !reason.is_empty();
    if reasons.iter().filter(without).count() == reasons.len() {
        // Most machines without a GPU have no driver either, and nobody expects one to be used there.
        let level = if cuda::has_driver() { log::Level::Info } else { log::Level::Debug };
        log::log!(level, "--device auto: the CPU, because {reason}");
        return Ok(false);
    }
    if let Some((rank, reason)) = reasons.iter().enumerate().find(|(_, reason)| !reason.is_empty()) {
        let text = format!(
            "--device auto: the CPU on all ranks, because rank {rank} on {} has no GPU to use: {reason}",
            world.host_of(rank)
        );
        record::say(world, &text);
        return Ok(false);
    }
    Ok(true)
}

fn open_gpu(world: &World, config: &mut Config, number: Option<usize>) -> Result<Box<dyn Device>> {
    let driver = world.agree(cuda::probe().map_err(|why| {
        Error::environment(format!("--device cuda on {}: {why}; --device cpu runs without", world.host()))
    }))?;
    let slurm = std::env::var("SLURM_LOCALID").ok().and_then(|text| text.parse().ok());
    let local_rank = slurm.unwrap_or(world.local_rank());
    let gpu = driver.gpu(number, local_rank);
    let gpu =
        world.agree(gpu.map_err(|e| e.context(format!("rank {} on {}", world.rank(), world.host()))))?;
    // Ranks compute alike: in f32 where one of them cannot do otherwise.
    let mut all_rounded = [f64::from(gpu.default_precision() == Precision::Tf32)];
    world.min_f64(&mut all_rounded)?;
    let default = if all_rounded[0] == 0.0 { Precision::F32 } else { Precision::Tf32 };
    config.precision = config.precision.or(default);
    let own = |e: Error| e.context(format!("GPU {} of {}", gpu.index, world.host()));
    world.agree(gpu.serves(config.precision).map_err(own))?;
    let nccl = config.allreduce == AllreduceKind::NCCL;
    if nccl {
        world.agree(cuda::nccl_found())?;
    }
    let sharers = sharers(world, gpu, nccl)?;
    let device = Cuda::new(gpu.index, config.precision == Precision::Tf32, sharers);
    Ok(Box::new(world.agree(device.map_err(own))?))
}

/// How many ranks have this rank's GPU; sharing is said once for each GPU, or an error with `nccl`, which cannot.
/// Collective.
fn sharers(world: &World, gpu: &cuda::GpuInfo, nccl: bool) -> Result<usize> {
    let mine = format!("{} {}", world.node(), gpu.identity);
    let all = world.gather_text(&mine)?;
    let with = |gpu: &String| (0..all.len()).filter(|&rank| all[rank] == *gpu).collect::<Vec<_>>();
    if let Some(shared) = all.iter().map(with).find(|ranks| nccl && ranks.len() > 1) {
        let ranks: Vec<String> = shared.iter().map(usize::to_string).collect();
        return world.agree(Err(Error::usage(format!(
            "--allreduce nccl: ranks {} share a GPU of {}, and NCCL wants one for each rank. Start as many ranks as \
             there are GPUs, or use another --allreduce",
            ranks.join(", "),
            world.host_of(shared[0])
        ))));
    }
    let ranks = with(&mine);
    if ranks.len() > 1 && ranks[0] == world.rank() {
        log::warn!(
            "{} ranks share GPU {} ({}) of {}: they take turns on it. Start as many ranks as there are GPUs",
            ranks.len(),
            gpu.index,
            gpu.name,
            world.host()
        );
    }
    Ok(ranks.len())
}
