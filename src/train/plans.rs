//! The plans of a run, and what a rank needs in memory for them.

use super::checkpoint;
use super::groups::Groups;
use super::meeting;
use super::memory::keeps as keeps_sums;
use super::network::Network;
use crate::comm::World;
use crate::config::{Config, Pipeline, Precision, Session, SyncBatchNorm};
use crate::data::AHEAD;
use crate::device::{Device, Rule};
use crate::error::{Error, Result};
use crate::files::{self, fnv1a};
use crate::fusion::compress;
use crate::graph::Graph;
use crate::host;
use crate::model::Model;
use crate::optim;
use crate::plan::{
    self, Compiled, Extent, Manner, Options, Parameter, Plan, Prices, Rehearsal, Script, Stage, Stages, StepFacts,
    Transfer,
};
use crate::reducer::{
    Averaging, Expected, Sharing, codes_on_device, expected_owners, largest_share, nodes, shares_gradients,
    turns,
};
use crate::strategy::Owners;

/// The training plan, and the evaluation plan that shares its parameters and statistics.
pub struct Plans {
    /// With --evaluate that of the test, and there is no other.
    pub training: Plan,
    /// Where the network is cut: where, and the training plans of the other stages.
    pub stages: Option<Stages>,
    others: Vec<Plan>,
    pub evaluation: Option<Plan>,
    pub sizes: plan::Sizes,
    pub extent: Extent,
    /// With recomputation: what the activations would take without.
    pub kept: Option<usize>,
}

impl Plans {
    pub fn new(
        groups: &Groups,
        config: &Config,
        network: &Network,
        device: &dyn Device,
        averaging: &Averaging,
        evaluate: bool,
    ) -> Result<Plans> {
        let world = &groups.data;
        let options = Options {
            fusion_threshold: config.fusion_threshold.unwrap_or(usize::MAX),
            training: None,
            stage: None,
        };
        if config.evaluate {
            let training = plan::plan(network.evaluation(config.batch)?, device, &options)?;
            let extent = extent(world, config, averaging, &training, device, false);
            let (sizes, stages, others) = (training.sizes, None, Vec::new());
            return Ok(Plans { sizes, training, stages, others, evaluation: None, extent, kept: None });
        }
        let graph = network.training(config.batch)?;
        if config.sync_bn != SyncBatchNorm::Off && !graph.has_batch_norm() {
            return Err(Error::usage(format!(
                "--sync-bn: model {} has no batch normalisation; leave the flag out",
                config.model
            )));
        }
        let computing = config.strategy.computing(world.size());
        let room = computing * config.batch * config.accumulation;
        if graph.has_batch_norm() && config.images_a_step(computing) < room {
            log::warn!(
                "--global-batch: with this number of ranks some places of a batch are empty, and batch normalisation \
                 counts them as black images"
            );
        }
        let (graph, kept) = match config.recompute {
            true => (graph.clone().recompute(), Some(plan::plan(graph, device, &options)?.sizes.activations)),
            false => (graph, None),
        };
        let (training, stages, others) = match groups.stage {
            None => (whole(graph, world, config, device, averaging, &options)?, None, Vec::new()),
            Some(own) => {
                let (mut training, stages, others) =
                    in_stages(graph, own, config, device, averaging, &options)?;
                averaging.cut(&mut training, config)?;
                (training, stages, others)
            }
        };
        let evaluation = if evaluate {
            let stage = stages.as_ref().zip(groups.stage);
            let stage = stage.map(|(stages, own)| Stage { stages, own, contexts: 1, splits_weights: false });
            let options = Options { training: Some(&training), stage, ..options };
            Some(plan::plan(network.evaluation(config.batch)?, device, &options)?)
        } else {
            None
        };
        let sizes = evaluation.as_ref().map_or(training.sizes, |plan| training.sizes.shared_with(plan.sizes));
        let extent = extent(world, config, averaging, &training, device, evaluation.is_some());
        Ok(Plans { training, stages, others, evaluation, sizes, extent, kept })
    }

    /// Makes sure that all ranks have the same plan. Collective.
    ///
    /// # Errors
    /// `Mismatch`, with what ranks compute with where that differs.
    pub fn compare(&self, groups: &Groups, config: &Config, device: &dyn Device) -> Result<()> {
        let world = &groups.data;
        if let Some(stages) = &self.stages {
            groups.job.check_same(&[("where the network is cut".into(), stages.cuts.join(","))])?;
        }
        // How a node's ranks share the updates is agreed upon when there is memory for them.
        let owners = expected_owners(world, config.strategy, false);
        let manners = manner(groups, config, owners, false).of_round(config.relaxed(world.size()));
        let of = |manner: &Manner| self.training.scripts(manner, &config.optimizer.rule, 0..1);
        let scripts: Vec<_> = manners.iter().flat_map(of).collect();
        let script = fnv1a(format!("{scripts:?}").bytes());
        let items = [("plan", self.training.hash()), ("script", script)]
            .map(|(name, hash)| (name.to_string(), format!("{hash:016x}")));
        let of_device = ("what they compute with".to_string(), device.describe());
        world.check_same(&items).or_else(|_| world.check_same(&[&[of_device], &items[..]].concat()))
    }

    /// What all ranks do in a step, and how it goes: where ranks have parameters of their own, in one in which they
    /// meet. The others are rehearsed too. Not collective: one rank does it for all.
    ///
    /// # Errors
    /// `Internal` where scripts do not fit together.
    pub fn rehearse(
        &self,
        groups: &Groups,
        config: &Config,
        averaging: &Averaging,
    ) -> Result<(Vec<Script>, Rehearsal)> {
        let world = &groups.data;
        let in_common = self.extent.sharers > 1;
        let manner = manner(groups, config, expected_owners(world, config.strategy, in_common), in_common);
        let scripts = |manner: &Manner| {
            let of = |(stage, plan): (usize, &&Plan)| {
                let pipeline = manner.pipeline.map(|(_, schedule)| (stage, schedule));
                let manner = Manner { pipeline, ..manner.clone() };
                plan.scripts(&manner, &config.optimizer.rule, 0..world.size())
            };
            self.of_stages(groups).iter().enumerate().flat_map(of).collect::<Vec<_>>()
        };
        let shared = averaging.selection.expects_shared(world, &self.training.bucket_bytes());
        let seconds = |transfer: &Transfer| averaging.transfer(transfer, shared);
        let rule = &config.optimizer.rule;
        let update = |bytes: usize| rule.bytes_moved(bytes) as f64 * averaging.per_byte();
        let facts = |plan: &&Plan| plan.facts(&averaging.step_seconds(plan));
        let facts: Vec<_> = self.of_stages(groups).iter().map(facts).collect();
        let facts: Vec<&[StepFacts]> = facts.iter().map(Vec::as_slice).collect();
        let prices = Prices { transfer: &seconds, update: &update };
        let mut rehearsed = None;
        for manner in manner.of_round(config.relaxed(world.size())) {
            let scripts = scripts(&manner);
            let rehearsal = plan::rehearse(&scripts, &facts, &prices)?;
            rehearsed = Some((scripts, rehearsal));
        }
        rehearsed.ok_or_else(|| Error::internal("a round without steps"))
    }

    /// The same in a line, or with rank 0's whole script.
    fn rehearsed(&self, groups: &Groups, config: &Config, averaging: &Averaging) -> Result<String> {
        let world = &groups.data;
        if config.evaluate {
            return Ok(String::new());
        }
        let (scripts, rehearsal) = self.rehearse(groups, config, averaging)?;
        let mut text = format!("\nscript of a rank: {}\n", scripts[0].summary());
        if config.script {
            text += &scripts[0].lines();
        }
        text += &match scripts.len() {
            1 => "rehearsed with 1 rank".to_string(),
            ranks => format!("rehearsed with {ranks} ranks: none waits for ever"),
        };
        if rehearsal.seconds.is_finite() {
            let exposed = rehearsal.exposed.iter().copied().fold(0.0, f64::max);
            let [step, waits] = [rehearsal.seconds, exposed].map(|seconds| 1e3 * seconds);
            let of = match config.relaxed(world.size()) {
                Some(relaxed) if !relaxed.sends_parameters() => {
                    format!("a step in which ranks meet, one in {}", relaxed.every)
                }
                _ => "a step".into(),
            };
            text += &format!("; expected {step:.3} ms {of}, of which a rank waits {waits:.3} ms");
        }
        Ok(text + "\n")
    }

    /// What must be the same in a run that goes on, by name.
    pub fn identity(
        &self,
        config: &Config,
        model: &Model,
        images: &str,
        rule: &Rule,
    ) -> Vec<(String, String)> {
        let graph = &self.training.graph;
        let image = graph.image().to_string();
        checkpoint::identity(config, model, graph.classes(), &image, images, optim::state_names(rule))
    }

    /// Bytes that a rank has at its peak.
    pub fn total(&self) -> usize {
        self.sizes.total(self.extent)
    }

    /// These by kind.
    pub fn kinds(&self) -> Vec<(String, u64)> {
        self.sizes
            .kinds(self.extent)
            .into_iter()
            .map(|(kind, bytes)| (kind.to_string(), bytes as u64))
            .collect()
    }

    /// Bytes on a device with memory of its own.
    pub fn on_device(&self) -> usize {
        self.sizes.on_device(self.extent)
    }

    /// Of these, what the machine must still give.
    pub fn to_come(&self) -> usize {
        self.sizes.to_come(self.extent)
    }

    /// What `--dry-run` prints.
    ///
    /// # Errors
    /// `Internal` where the ranks' scripts do not fit together.
    pub fn describe(
        &self,
        groups: &Groups,
        config: &Config,
        device: &dyn Device,
        averaging: &Averaging,
    ) -> Result<String> {
        let world = &groups.data;
        let ranks = world.size();
        let shared = averaging.selection.expects_shared(world, &self.training.bucket_bytes());
        let note = |choice: &Expected| (choice.name, choice.seconds);
        let choices: Vec<_> = averaging.choices(&self.training, shared).iter().map(note).collect();
        let described = format!(
            "{}, {ranks} rank{} × batch {} × accumulation {} = global batch {}\n\n{}",
            config.model,
            if ranks == 1 { "" } else { "s" },
            config.batch,
            config.accumulation,
            config.images_a_step(config.strategy.computing(ranks)),
            self.training.describe(&opening(config, device), &self.sizes, self.extent, self.kept, &choices)
        );
        let shards = self.shards(config, ranks) + &self.stage_table(groups, config, averaging);
        Ok(described + &shards + &self.rehearsed(groups, config, averaging)? + &self.roofline(config))
    }

    /// The training plans of all stages, in their order; the one that there is where the network is not cut.
    fn of_stages(&self, groups: &Groups) -> Vec<&Plan> {
        let own = groups.stage.unwrap_or(0);
        let before = self.others[..own].iter();
        before.chain([&self.training]).chain(&self.others[own..]).collect()
    }

    /// A line for each stage.
    fn stage_table(&self, groups: &Groups, config: &Config, averaging: &Averaging) -> String {
        let (Some(stages), Some(pipeline)) = (&self.stages, &config.pipeline) else { return String::new() };
        let mut text = format!(
            "\n{} stages, {} micro-batches of {} images, {}: of a step a stage idles {:.1}% at best\n  stage  \
             layers{:34}parameters  activations  in flight  sends a step  seconds\n",
            pipeline.stages,
            config.accumulation,
            config.batch,
            pipeline.schedule,
            100.0 * pipeline.schedule.bubble(pipeline.stages, config.accumulation),
            ""
        );
        for (stage, plan) in self.of_stages(groups).into_iter().enumerate() {
            let layers = stages.layers_of(&plan.graph, stage).join("; ");
            let seconds: f64 = averaging.step_seconds(plan).iter().sum::<f64>() * config.accumulation as f64;
            let sent =
                plan.edges.iter().filter(|edge| edge.sends).map(|edge| edge.place.bytes).sum::<usize>();
            text += &format!(
                "  {stage:>5}  {layers:<38}  {:>10}  {:>11}  {:>9}  {:>12}  {seconds:.4}\n",
                plan::describe_bytes(plan.sizes.parameters),
                plan::describe_bytes(plan.sizes.activations),
                plan.contexts.count,
                plan::describe_bytes(sent * config.accumulation),
            );
        }
        text
    }

    /// What shards cost a rank, in words.
    fn shards(&self, config: &Config, ranks: usize) -> String {
        let Some(shards) = config.shards else { return String::new() };
        let (own, bytes) =
            (config.accumulation, self.extent.gradients.saturating_sub(1) * self.sizes.gradients);
        format!(
            "\nshards: {shards} of {} images, of which a rank of {ranks} computes {own} one after the other; {} for \
             their sums; nothing is summed before the last\n",
            config.batch,
            plan::describe_bytes(bytes)
        )
    }

    /// The file of `--plan-steps`, by rank 0.
    pub fn write_steps(&self, world: &World, config: &Config) -> Result<()> {
        let Some(path) = config.plan_steps.as_ref().filter(|_| world.rank() == 0) else { return Ok(()) };
        let wrong = |e: std::io::Error| Error::output(path, format!("cannot write the plan's steps: {e}"));
        files::write_whole(path, "the plan's steps", |to| {
            std::fs::write(to, self.training.steps_as_json() + &self.update_as_json(config)).map_err(wrong)
        })
    }

    /// The update of all parameters, in the same form.
    fn update_as_json(&self, config: &Config) -> String {
        let passes = config.optimizer.rule.passes();
        let [read, written] = passes.map(|count| vec![self.training.sizes.parameters; count]);
        let update = serde_json::json!({
            "layer": "", "op": "update", "pass": "update", "flop": 0, "read": read, "written": written,
        });
        format!("{update}\n")
    }

    /// What the machine's rates allow, where they are given.
    fn roofline(&self, config: &Config) -> String {
        let Some(rates) = config.roofline else { return String::new() };
        let moved = config.optimizer.rule.bytes_moved(self.training.sizes.parameters);
        let (step, products) = self.training.roofline(moved, rates);
        format!(
            "\nroofline at {:.1} TFLOP/s and {:.0} GB/s: a step of a rank takes at least {:.3} ms ({:.0}% of it in \
             products), {:.1} images/s\n",
            rates.0 / 1e12,
            rates.1 / 1e9,
            1e3 * step,
            100.0 * products / step,
            config.batch as f64 / step,
        )
    }
}

/// How a step of this run is done.
pub fn manner(groups: &Groups, config: &Config, owners: Owners, in_common: bool) -> Manner {
    Manner {
        mesh: groups.mesh,
        pipeline: groups.stage.zip(config.pipeline.as_ref().map(|pipeline| pipeline.schedule)),
        owners,
        in_common,
        micro_steps: config.accumulation,
        shards: config.shards.is_some(),
        clip: config.optimizer.clip_norm.is_some(),
        unscale: config.precision == Precision::F16,
        average: config.optimizer.ema.is_some(),
        overlap: config.overlap,
        asynchronous: config.strategy.is_asynchronous(),
        ..Manner::plain(nodes(&groups.data))
    }
}

/// The plan of a network that is not cut, in buckets. Where gradients take turns in windows these are those that they
/// would have without.
fn whole(
    graph: Graph,
    world: &World,
    config: &Config,
    device: &dyn Device,
    averaging: &Averaging,
    options: &Options,
) -> Result<Plan> {
    let compiled = Compiled::new(graph, device, None)?;
    let mut plan = compiled.plan(device, options)?;
    averaging.cut(&mut plan, config)?;
    let Some(turns) = turns(world, device, config) else { return Ok(plan) };
    if turns.gathers {
        let owned = |parameter: &&Parameter| {
            plan.buckets.iter().any(|bucket| bucket.bytes.contains(&parameter.offset))
        };
        if let Some(parameter) = plan.parameters.iter().find(|parameter| !owned(parameter)) {
            return Err(Error::usage(format!(
                "--zero 3: {} has no gradient, so that nobody updates it and nobody owns it; use --zero 2",
                parameter.name
            )));
        }
        let mut gathering = compiled.plan_gathering(device, options)?;
        gathering.cut_as(&plan)?;
        plan = gathering;
    }
    Ok(plan.in_windows(turns))
}

/// This rank's plan, where the network is cut, and the plans of the others.
fn in_stages(
    graph: Graph,
    own: usize,
    config: &Config,
    device: &dyn Device,
    averaging: &Averaging,
    options: &Options,
) -> Result<(Plan, Option<Stages>, Vec<Plan>)> {
    let Some(Pipeline { stages: ranks, schedule, cuts, .. }) = &config.pipeline else {
        return Err(Error::internal("a stage of no pipeline"));
    };
    let compiled = Compiled::new(graph, device, None)?;
    let stages = match cuts.is_empty() {
        false => Stages { ranks: *ranks, cuts: cuts.clone() },
        true => {
            let whole = compiled.plan(device, options)?;
            let mut seconds = vec![0.0; whole.graph.nodes.len()];
            let mut waiting = 0.0;
            for (step, taken) in whole.steps.iter().zip(averaging.step_seconds(&whole)) {
                // A reorder is for the node behind it.
                waiting += taken;
                if let Some(node) = step.node {
                    seconds[node.0] += std::mem::take(&mut waiting);
                }
            }
            let pieces = ranks * schedule.chunks();
            Stages::balanced(&whole.graph, [*ranks, pieces], &seconds, averaging.between_stages())?
        }
    };
    let of = |own: usize| {
        let contexts = schedule.in_flight(own, *ranks, config.accumulation);
        let splits_weights = schedule.splits_weights();
        let stage = Some(Stage { stages: &stages, own, contexts, splits_weights });
        let plan = compiled.plan(device, &Options { stage, ..*options })?;
        match plan.gradients.is_empty() {
            true => Err(Error::usage(format!(
                "--pipeline: stage {own} has no layer that learns; cut the network elsewhere (--pipeline-cuts)"
            ))),
            false => Ok(plan),
        }
    };
    let mut plans = (0..*ranks).map(of).collect::<Result<Vec<_>>>()?;
    let training = plans.remove(own);
    Ok((training, Some(stages), plans))
}

/// What the run of a plan needs beyond it. The process is looked at now, when it has loaded its libraries and data and
/// compiled its kernels, and none of the memory that the plan speaks of.
fn extent(
    world: &World,
    config: &Config,
    averaging: &Averaging,
    plan: &Plan,
    device: &dyn Device,
    evaluate: bool,
) -> Extent {
    let own_memory = !device.is_host();
    // In windows these are no longer than all gradients.
    let summed = plan.summed_bytes(config.accumulation);
    let ([mapped, mut messages], compression) = match config.compress {
        None => (averaging.selection.memory(world, &plan.bucket_bytes()), compress::Bytes::default()),
        Some(scheme) => (
            [0, 0],
            compress::memory(
                (scheme, !config.strategy.is_relaxed()),
                &averaging.selection,
                plan,
                device,
                world,
            ),
        ),
    };
    // Gradients go to the host for the others to see.
    let staged = own_memory && !averaging.on_device && !codes_on_device(config, world, device);
    messages += if staged { summed } else { 0 };
    let mapped = if mapped > 0 { (world.local_size() - 1) * summed } else { 0 };
    // While one set is read ahead, batches of the other wait.
    let threads = config.input.loader_threads.unwrap_or(0);
    let read_ahead =
        if threads > 0 && config.data.is_some() { AHEAD * (1 + usize::from(evaluate)) } else { 0 };
    // `DevicePrefetch`: on the device, page-locked, and as the loader gives it.
    let sent_ahead = own_memory && config.data.is_some();
    let (rule, averages) = (config.optimizer.rule, usize::from(config.optimizer.ema.is_some()));
    // A micro-step's own, and their sum or the levels of their tree.
    let gradients = match (config.accumulation, config.shards) {
        (1, _) => 1,
        (micro_steps, Some(_)) => 1 + micro_steps.ilog2() as usize,
        _ => 2,
    };
    let [of_gradients, untouched] = match shares_gradients(config, averaging, plan) {
        true => [world.local_size() * summed, plan.sizes.activations],
        false => [0, plan.sizes.activations + gradients * plan.sizes.gradients],
    };
    let copies = rule.states() + averages;
    let alone = expected_owners(world, config.strategy, true).are_apart();
    let beside = 1 + if alone { 0 } else { copies };
    let in_common = beside * plan.sizes.parameters + of_gradients;
    let sharing = Sharing::expected(world, device, config.strategy, in_common);
    let owners = expected_owners(world, config.strategy, sharing.ranks > 1);
    let share = largest_share(world, plan, &rule, owners);
    let kept = keeps(config) && sharing.ranks > 1;
    let anchors = meeting::copies(config.relaxed(world.size())) * plan.sizes.parameters;
    let optimizer = match owners {
        // Who serves has no graph: it takes more than another rank where this is more than what steps need.
        _ if owners.serves(world.size() - 1) => {
            let steps = plan.sizes.activations + plan.sizes.workspace + plan.sizes.inputs;
            (copies * share).saturating_sub(steps)
        }
        _ if owners.are_apart() => copies * share,
        // Each rank touches its share; of averages also what is frozen. An evaluation reads all averages, and the rank
        // that writes checkpoints reads what others have touched.
        _ => {
            let states = if kept { plan.sizes.parameters } else { share };
            let averaged =
                if kept || evaluate { plan.sizes.parameters } else { share + sharing.largest_frozen(plan) };
            rule.states() * states + averages * averaged
        }
    };
    // What takes the place of gradients that are whole: sums that stay, of what the rank owns or of micro-steps.
    let shards = plan.windows.is_some().then_some(match config.accumulation {
        1 if keeps_sums(plan, config) => share,
        1 => 0,
        _ => summed,
    });
    let parameters = match plan.gathers() {
        true => share + if evaluate { plan.sizes.parameters } else { 0 },
        false => plan.sizes.parameters,
    };
    // From the host's memory parameters of a device go to other ranks.
    messages += match config.relaxed(world.size()) {
        _ if !own_memory => 0,
        // They are gathered where sums are, or where there is no place for these.
        _ if plan.gathers() => {
            if config.accumulation > 1 {
                plan.sizes.gradients
            } else {
                0
            }
        }
        // What comes lies beside.
        Some(relaxed) if relaxed.sends_parameters() => 2 * plan.sizes.parameters,
        _ if owners.are_apart() => plan.sizes.parameters,
        _ => 0,
    };
    Extent {
        gradients,
        shards,
        parameters,
        sharers: sharing.ranks,
        optimizer: optimizer + anchors,
        batches: (if evaluate { 3 } else { 2 }) + read_ahead + if sent_ahead { 3 } else { 0 },
        batches_on_device: if sent_ahead { 2 } else { 1 },
        mapped,
        messages,
        checkpoint: checkpoint_bytes(world, config, plan, untouched),
        compression: compression.mapped + compression.own + compression.on_device,
        compression_on_device: compression.on_device,
        program: host::resident().unwrap_or(0),
        halves: halves(config, world, plan),
        own_memory,
    }
}

/// Bytes of a device's copies in halves, which are those of all memory that the parameters are allocated in.
fn halves(config: &Config, world: &World, plan: &Plan) -> usize {
    let reads_some = plan.steps.iter().any(|step| step.kernel.halved().is_some());
    let pairs = config.relaxed(world.size()).is_some_and(|relaxed| relaxed.sends_parameters());
    match reads_some {
        true if plan.gathers() => plan.sizes.gradients / 2,
        true => plan.sizes.parameters / 2 * if pairs { 2 } else { 1 },
        false => 0,
    }
}

/// Bytes of the copy from which checkpoints are written. A run that goes on has as much of what it goes on from, until
/// it is restored: before it touches what its steps alone need, gradients that no other rank sees and activations.
fn checkpoint_bytes(world: &World, config: &Config, plan: &Plan, untouched: usize) -> usize {
    let copies = 1 + config.optimizer.rule.states() + usize::from(config.optimizer.ema.is_some());
    // What is not the same on all ranks comes to rank 0 from a copy of a parameter.
    let passing = plan.parameters.iter().map(|parameter| parameter.layout.bytes()).max().unwrap_or(0);
    let copied = config.strategy.is_relaxed() || expected_owners(world, config.strategy, true).are_apart();
    let passing = if copied { passing } else { 0 };
    let residuals = if config.compress.is_some() { plan.sizes.gradients } else { 0 };
    let relaxed = config.relaxed(world.size());
    let copies = match relaxed {
        Some(relaxed) => copies * world.size() + meeting::kept_copies(relaxed),
        None => copies,
    };
    // A rank's own come to the first rank from a copy.
    let bytes = copies * plan.sizes.parameters
        + world.size() * (plan.sizes.statistics + residuals)
        + residuals
        + passing;
    match &config.session {
        // What is committed is copied besides.
        Session { checkpoint: Some(_), commit: Some(_), .. } => 2 * bytes,
        Session { checkpoint: Some(_), .. } => bytes,
        Session { resume: Some(_), .. } => bytes.saturating_sub(untouched),
        _ => 0,
    }
}

/// Whether the state of the run is copied to a checkpoint, or from one.
fn keeps(config: &Config) -> bool {
    config.session.checkpoint.is_some() || config.session.resume.is_some()
}

/// The device and what it computes with, in one line.
pub fn computing(config: &Config, device: &dyn Device) -> String {
    format!("{}, {}", device.describe(), config.precision)
}

/// The same for the opening lines. tf32 is the default of newer GPUs, so what it does is said too.
pub fn opening(config: &Config, device: &dyn Device) -> String {
    let rounded = match config.precision {
        Precision::Tf32 => {
            " (products rounded to 10 bits; --precision f32 rounds none and takes several times as long)"
        }
        _ => "",
    };
    computing(config, device) + rounded
}
