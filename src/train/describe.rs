//! What the record says of a run before its first step.

use std::collections::{HashMap, HashSet};

use super::groups::Groups;
use super::length::Length;
use super::memory::Memories;
use super::plans::{Plans, computing, opening};
use super::setup::{Job, OpenedRun};
use crate::comm::{World, mpicc};
use crate::config::{Config, JpegDecoder, Pipeline};
use crate::data::Sets;
use crate::error::Result;
use crate::graph::{Graph, Role, TensorId};
use crate::plan::{Action, Plan, Script};
use crate::record::{self, Description, RunSize, Scheduled};
use crate::reducer::{Averaging, seats};
use crate::simulate::Rehearsal;

/// Which images there are, in words.
pub fn images(config: &Config, sets: Option<&Sets>) -> String {
    let (Some(path), Some(sets)) = (&config.data, sets) else { return "synthetic: one batch a rank".into() };
    let test = match &sets.test {
        Some(test) => format!("{} to test", test.len()),
        None => "none to test".into(),
    };
    if sets.training.fields().is_some() {
        let views = [&config.fields.inputs, &config.fields.targets].map(|of| of.join(" "));
        let samples = sets.training.len();
        return format!(
            "{}: {samples} samples to train, {test}: {} gives {}",
            path.display(),
            views[0],
            views[1]
        );
    }
    let augment = sets.training.augment().to_string();
    let augmented = if augment == "none" { String::new() } else { format!(", augmented: {augment}") };
    format!("{}: {} images to train, {test}{augmented}", path.display(), sets.training.len())
}

/// The flags of this run, with the threads that it found: their number decides some of the bits.
fn run_file(config: &Config, threads: usize) -> String {
    let found = if config.threads.is_none() { format!("threads = {threads}\n") } else { String::new() };
    config.run_file.clone() + &found
}

/// What was typed. A name of a file may be no UTF-8.
fn command() -> String {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    words.collect::<Vec<_>>().join(" ")
}

/// How many values of the staleness of updates the record tells apart. With as many ranks that are equally fast it is
/// their number less one.
fn staleness_bins(world: &World, config: &Config) -> usize {
    if config.strategy.is_asynchronous() { 16 * config.strategy.computing(world.size()) } else { 0 }
}

/// The inputs and the forward pass of a network.
fn layers(graph: &Graph) -> Vec<record::Layer> {
    let mut layers = Vec::new();
    let mut given_by = HashMap::new();
    for (id, tensor) in graph.with_role(Role::Input) {
        given_by.insert(id, layers.len());
        let shapes = vec![tensor.spec.shape.0.clone()];
        let (name, op) = (tensor.name.clone(), "input".into());
        layers.push(record::Layer { name, op, inputs: Vec::new(), shapes, parameters: 0 });
    }
    for node in &graph.nodes[..graph.forward_nodes] {
        let learned = node.inputs.iter().filter(|&&id| graph.tensor(id).role == Role::Parameter);
        let shape = |id: &TensorId| graph.tensor(*id).spec.shape.0.clone();
        let layer = record::Layer {
            name: node.name.clone(),
            op: node.op.name().into(),
            inputs: node.inputs.iter().filter_map(|id| given_by.get(id).copied()).collect(),
            // The others are for the backward pass.
            shapes: node.outputs.first().map(shape).into_iter().collect(),
            parameters: learned.map(|&id| graph.tensor(id).spec.shape.elements()).sum(),
        };
        given_by.extend(node.outputs.iter().map(|&id| (id, layers.len())));
        layers.push(layer);
    }
    layers
}

/// What is shared beside the images of a step, as flags say it.
fn parallel(config: &Config) -> String {
    let ways = [
        config.pipeline.as_ref().map(|pipeline| format!("--pipeline {}", pipeline.stages)),
        config.tensor.map(|tensor| format!("--tensor {}", tensor.ranks)),
        (config.spatial > 1).then(|| format!("--spatial {}", config.spatial)),
    ];
    let ways: Vec<String> = ways.into_iter().flatten().collect();
    if ways.is_empty() { "data".into() } else { ways.join(" ") }
}

/// What the record says of the run in words.
fn attributes(opened: &OpenedRun, plans: &Plans) -> Vec<(String, String)> {
    let OpenedRun { config, device, threads, .. } = opened;
    let world = &opened.groups.job;
    let mut attributes = vec![
        ("config".to_string(), config.json()),
        ("command".to_string(), command()),
        ("run_file".to_string(), run_file(config, *threads)),
        ("plan_hash".to_string(), format!("{:016x}", plans.training.hash())),
        ("device".to_string(), computing(config, &**device)),
        (
            "evaluated_weights".to_string(),
            match config.optimizer.ema {
                _ if config.strategy.is_relaxed() => "mean over ranks".into(),
                Some(decay) => format!("exponential moving average, decay {decay}"),
                None => "current".into(),
            },
        ),
        (
            "hosts".to_string(),
            (0..world.size()).map(|rank| world.host_of(rank)).collect::<Vec<_>>().join(","),
        ),
        ("threads".to_string(), threads.to_string()),
        ("repeatable".to_string(), if config.is_repeatable() { "yes" } else { "no" }.into()),
        ("mpicc".to_string(), mpicc().to_string()),
        ("mpi".to_string(), format!("{} {}", world.library().name, world.library().version)),
    ];
    if let Some(kept) = plans.kept {
        let saved = kept.saturating_sub(plans.training.sizes.activations);
        attributes.push(("recomputation_saves_bytes".into(), saved.to_string()));
    }
    // What a planner chose, or flags say.
    attributes.push(("parallel".into(), parallel(config)));
    // What was decided for flags that were not given.
    let graph = &plans.training.graph;
    attributes.push(("classes".into(), graph.classes().to_string()));
    attributes.push(("metric".into(), config.metric().name()));
    attributes.push(("unit".into(), config.unit().into()));
    attributes.push(("image".into(), graph.image().to_string()));
    attributes.extend(config.shared_items().into_iter().filter(|(name, _)| name != "images"));
    attributes.retain({
        let mut seen = HashSet::new();
        move |(name, _)| seen.insert(name.clone())
    });
    attributes
}

/// The run as it is planned.
pub fn describe(opened: &OpenedRun, plans: &Plans, length: Length) -> Description {
    let OpenedRun { groups, config, device, threads, started, .. } = opened;
    let (world, opening) = (&groups.job, opening(config, &**device));
    let computing_ranks = config.data_ranks(world.size());
    Description {
        model: config.model.clone(),
        parameters: plans.training.graph.parameter_count() as u64,
        metric: config.metric(),
        device: match config.input.jpeg_decoder {
            JpegDecoder::Auto => opening,
            decoder => format!("{opening}; JPEG by {decoder}"),
        },
        size: RunSize {
            threads: *threads,
            batch: config.batch,
            accumulation: config.accumulation,
            global_batch: config.images_a_step(computing_ranks) / config.spatial,
            epochs: if config.data.is_some() { length.epochs as u64 } else { 0 },
            steps: length.steps as u64,
            warmup: config.length.warmup() as u64,
            computing: computing_ranks * config.stages(),
        },
        owned: Vec::new(),
        buckets: plans.training.bucket_bytes().iter().map(|&bytes| bytes as u64).collect(),
        choices: Vec::new(),
        script: Vec::new(),
        memory: plans.kinds(),
        compression: None,
        staleness: staleness_bins(world, config),
        attributes: attributes(opened, plans),
        events: config.outputs.tensorboard.clone().map(|directory| (directory, config.outputs.histograms)),
        mllog: None,
        layers: if config.outputs.tensorboard.is_some() { layers(&plans.training.graph) } else { Vec::new() },
        started: *started,
    }
}

/// Completes the description with what is known only once memory and kernels exist. Collective.
pub fn built(
    mut description: Description,
    job: &Job,
    config: &Config,
    averaging: &Averaging,
    (workers, split): (usize, String),
) -> Result<Description> {
    let groups = &job.groups;
    let (data, tensor, parts) = (&groups.data, groups.mesh.tensor, config.spatial);
    let owners = config.strategy.describe(job.memories.owners, data.size(), data.nodes());
    let owners = match &config.pipeline {
        None if tensor > 1 => {
            format!("{split} split over {tensor} ranks each, who update their parts; of the rest {owners}")
        }
        None if parts > 1 => format!("{} cut by rows over {parts} ranks each; {owners}", config.unit()),
        None => owners,
        Some(Pipeline { stages, schedule, .. }) => {
            let of_stage = if data.size() > 1 { format!("; in each {owners}") } else { String::new() };
            format!("{stages} stages, {} micro-batches by {schedule}{of_stage}", config.accumulation)
        }
    };
    let data_ranks = if tensor > 1 { groups.mesh.data } else { workers / parts };
    let rows = if parts > 1 { format!(", spatial {parts}") } else { String::new() };
    let mesh = format!("data {data_ranks}, pipeline {}, tensor {tensor}{rows}", config.stages());
    description.owned = owned_bytes(groups, &job.plan, &job.memories)?;
    description.attributes.extend([
        ("owners".into(), owners),
        ("mesh".into(), mesh),
        ("allreduce_used".into(), job.trainer.fusion.algorithms()),
        ("allreduce_costs".into(), averaging.source()),
    ]);
    let choices = averaging.choices(&job.plan, job.memories.gradients.region.is_shared());
    description.choices = choices.iter().map(|choice| (choice.name.into(), choice.seconds)).collect();
    // Where ranks have parameters of their own nothing is compressed but when they meet.
    let steps = config.relaxed(workers).map_or(1, |relaxed| relaxed.every as u64);
    description.compression = job.trainer.compression.as_ref().map(|account| record::CompressionRecord {
        scheme: config.compress.map(|scheme| scheme.to_string()).unwrap_or_default(),
        on_device: account.state.iter().any(|kept| !kept.on_host),
        sent: account.sent / steps,
        uncompressed: account.uncompressed / steps,
    });
    Ok(description)
}

/// What a rank does when, for the record.
pub fn scheduled(script: &Script, rehearsal: &Rehearsal) -> Vec<Scheduled> {
    let known = |times| if rehearsal.seconds.is_finite() { times } else { [f64::NAN; 2] };
    let of = |(action, &times): (usize, &[f64; 2])| Scheduled {
        action: script.describe(action),
        bucket: script.bucket(action),
        computes: matches!(script.actions[action], Action::Run { .. }),
        times: known(times),
    };
    let end = Scheduled {
        action: "end of the step".into(),
        bucket: None,
        computes: false,
        times: known([rehearsal.seconds; 2]),
    };
    rehearsal.schedule.iter().enumerate().map(of).chain([end]).collect()
}

/// Bytes of parameters that each rank updates. Collective.
fn owned_bytes(groups: &Groups, plan: &Plan, memories: &Memories) -> Result<Vec<u64>> {
    let data = &groups.data;
    let own = plan.owned(memories.owners, &memories.rule, seats(data)[data.rank()], data.rank());
    let mut all = vec![0.0; groups.job.size()];
    all[groups.job.rank()] = own.iter().map(ExactSizeIterator::len).sum::<usize>() as f64;
    groups.job.sum_f64(&mut all)?;
    Ok(all.into_iter().map(|bytes| bytes as u64).collect())
}
