//! What a job would do on other nodes: `--predict-nodes`.
//!
//! The step is planned for as many ranks as there would be, and their scripts are rehearsed with the prices of the
//! network that was given. Ranks that do the same are rehearsed once (`plan::representatives`).

use std::ops::Range;
use std::path::Path;

use super::groups::{Layout, divided, in_groups};
use super::network::Network;
use super::planner;
use super::plans::{ADDING, Planning, Plans, most_classes};
use super::simgrid;
use crate::comm::Topology;
use crate::config::{AllreduceKind, Config, MeshShape, Pipeline, Prediction, SyncBatchNorm};
use crate::error::{Error, ErrorKind, OrError, Result};
use crate::files;
use crate::graph::TensorGroup;
use crate::plan::{Manner, Plan, Script, describe_bytes as bytes, describe_seconds as time};
use crate::random::{Purpose, key, normals, philox};
use crate::reducer::Averaging;
use crate::simulate::{Interconnect, Prices, Rehearsal, rehearse, step_facts};
use crate::strategy::Sharded;

/// Steps over which the cost of slow ranks is averaged.
const DRAWS: u32 = 64;

/// Ranks that are rehearsed one by one, where they do not do the same.
const MOST_ALONE: usize = 4096;

/// What was found for one number of nodes.
pub struct Predicted {
    ranks: usize,
    nodes: usize,
    /// Seconds of a step, and those that the rank waits which waits most.
    pub seconds: f64,
    pub exposed: f64,
    /// A second, with slow ranks where there are such.
    pub images: f64,
    /// Seconds of a step with slow ranks.
    jittered: Option<f64>,
    /// Of a rank at its peak.
    pub memory: usize,
    /// Bytes that a rank sends in a step, that which sends most.
    pub sent: usize,
    /// What adds up gradients.
    sums: String,
}

/// What plans of two numbers of ranks must have in common to be one.
#[derive(Clone, PartialEq)]
pub struct Shape {
    batch: usize,
    accumulation: usize,
    statistics_of: usize,
    recompute: bool,
    /// Whether gradients, and parameters, take turns in windows, which are those of the plan's buckets.
    sharded: Sharded,
    pipeline: Option<Pipeline>,
    split: Option<TensorGroup>,
    spatial: usize,
}

impl Shape {
    /// Of a run of this network.
    pub fn of(config: &Config, network: &Network) -> Shape {
        let (statistics_of, pipeline) = (network.statistics_of, config.pipeline.clone());
        let Config { batch, accumulation, recompute, spatial, .. } = *config;
        let (sharded, split) = (config.strategy.sharded(2), network.group());
        Shape { batch, accumulation, statistics_of, recompute, sharded, pipeline, split, spatial }
    }
}

/// The step on a number of nodes.
pub struct Planned {
    places: Places,
    /// As the ranks would be told.
    pub config: Config,
    /// How gradients would be averaged there.
    pub averaging: Averaging,
    /// What each would run.
    pub plans: Plans,
    /// What these serve for.
    pub shape: Shape,
    /// Where images are cut by rows: what ranks at other places of a group would run, so far as they are planned.
    beside: Vec<Plans>,
}

impl Planned {
    /// To be rehearsed.
    pub fn case<'a>(&'a self, of: &Planning<'a>) -> Case<'a> {
        let Planned { places, config, averaging, plans, beside, .. } = self;
        let of = Planning { layout: places.layout(), config, averaging, ..*of };
        Case { places, of, plans, beside }
    }
}

/// Where ranks would be.
pub struct Places {
    /// All of them.
    pub all: Topology,
    /// Those that compute the same with other images.
    pub data: Topology,
    mesh: MeshShape,
}

impl Places {
    /// What plans are made for.
    pub fn layout(&self) -> Layout<'_> {
        Layout { data: &self.data, mesh: self.mesh, stage: 0 }
    }
}

/// What all numbers of nodes have in common.
pub struct Predictor<'a> {
    /// The run on the ranks that were started.
    pub of: Planning<'a>,
    /// Ranks on each node.
    pub local: usize,
    /// What is trained.
    pub network: &'a Network,
    /// Bytes of the process without what plans speak of.
    pub program: usize,
}

impl Predictor<'_> {
    /// The table of `--predict-nodes`, and the traces if they are asked for. `plans` are those of the ranks that were
    /// started.
    ///
    /// # Errors
    /// `Usage` where so many nodes cannot share the work, or the network has not so many; `Output` for traces.
    pub fn answer(&self, asked: &Prediction, network: Option<&Interconnect>, plans: Plans) -> Result<String> {
        let spatial = self.network.parts();
        let planned_here = Config { pipeline: None, tensor: None, spatial, ..self.of.config.clone() };
        let mut before = Some((plans, Shape::of(&planned_here, self.network)));
        let (mut rows, mut text) = (Vec::new(), String::new());
        // For as many images at a time a rank alone is as fast.
        let mut alone: Option<((usize, usize, bool), f64)> = None;
        for &nodes in &asked.nodes {
            let named = |error: Error| error.context(format!("--predict-nodes {nodes}"));
            let chosen = match &self.of.config.parallel {
                None => self.of.config.clone(),
                Some(parallel) => {
                    let chosen = planner::choose(self, parallel, nodes, network).map_err(named)?;
                    text += &chosen.table;
                    chosen.config
                }
            };
            let mut planned = self.plan(nodes, &chosen, network, before.take()).map_err(named)?;
            if asked.trace.is_some() {
                planned.beside = self.beside(&planned, 1..planned.config.spatial)?;
            }
            let case = planned.case(&self.of);
            let found = case.predicted(asked.jitter)?;
            let Config { batch, accumulation, recompute, .. } = planned.config;
            let images = (batch, accumulation, recompute);
            let known = alone.filter(|(known, _)| *known == images && chosen.pipeline.is_none());
            let (_, each) = known.map_or_else(|| self.alone(&planned).map(|each| (images, each)), Ok)?;
            alone = Some((images, each));
            rows.push(Row { efficiency: found.images / (found.ranks as f64 * each), found });
            if nodes == *asked.nodes.last().unwrap_or(&nodes) {
                text += &table(&rows, planned.config.unit());
                text += &described(&planned.config, &planned.averaging);
            }
            if let Some(directory) = &asked.trace {
                text += &simgrid::export(directory, &case)?;
            }
            before = Some((planned.plans, planned.shape));
        }
        if let Some(path) = &asked.saved {
            self.save(path, &rows, network)?;
        }
        Ok(text.trim_end().to_string())
    }

    /// All numbers, for a report and for other programs: seconds, bytes, shares of one.
    fn save(&self, path: &Path, rows: &[Row], network: Option<&Interconnect>) -> Result<()> {
        let point = |Row { efficiency, found }: &Row| {
            serde_json::json!({
                "nodes": found.nodes, "ranks": found.ranks, "step_seconds": found.seconds,
                "images_per_second": found.images, "efficiency": efficiency, "exposed_seconds": found.exposed,
                "memory_bytes": found.memory, "sent_bytes": found.sent, "step_seconds_with_jitter": found.jittered,
                "allreduce": found.sums,
            })
        };
        let strategy = match &self.of.config.pipeline {
            Some(pipeline) => format!("{} stages, {}", pipeline.stages, pipeline.schedule),
            None if self.of.config.parallel.is_some() => "--parallel auto".into(),
            None => shared_by(self.of.config),
        };
        let points: Vec<_> = rows.iter().map(point).collect();
        let network = network.map(|network| &network.name);
        let all = serde_json::json!({
            "model": self.of.config.model, "strategy": strategy, "network": network, "points": points,
        });
        files::write_new(path, "the prediction", |to| {
            std::fs::write(to, format!("{all:#}\n")).or_output(path, "cannot write the prediction")
        })
    }

    /// The step on so many nodes. Plans of before serve where they are the same.
    ///
    /// # Errors
    /// `Usage` where so many nodes cannot share the work as the configuration says.
    pub fn plan(
        &self,
        nodes: usize,
        config: &Config,
        network: Option<&Interconnect>,
        before: Option<(Plans, Shape)>,
    ) -> Result<Planned> {
        let (places, config, trained) = shared(nodes, self.local, config, self.network)?;
        let averaging = self.of.averaging.elsewhere(&places.data, &config, network)?;
        let averaging = if places.mesh.is_cut() { averaging.over_stages(&places.all) } else { averaging };
        let averaging = if config.tensor.is_some() { averaging.over_groups(places.mesh) } else { averaging };
        let shape = Shape::of(&config, &trained);
        let of = Planning { layout: places.layout(), config: &config, averaging: &averaging, ..self.of };
        let mut plans = match before.filter(|(_, known)| *known == shape && !shape.sharded.gradients) {
            Some((mut plans, _)) => {
                plans.move_to(&of)?;
                plans
            }
            None => Plans::new(&of, &trained)?,
        };
        plans.ledger.set_program(self.program);
        let mut planned = Planned { places, config, averaging, plans, shape, beside: Vec::new() };
        // The first place has as many rows as any, and the second neighbours on both sides.
        if planned.config.spatial > 2 {
            planned.beside = self.beside(&planned, 1..2)?;
        }
        Ok(planned)
    }

    /// What ranks at some other places of a group run that has the same images.
    fn beside(&self, planned: &Planned, others: Range<usize>) -> Result<Vec<Plans>> {
        let Planned { places, config, averaging, .. } = planned;
        let of = |place: usize| {
            let network = self.network.among(config, [place, config.data_ranks(places.all.size())])?;
            let of = Planning { layout: places.layout(), config, averaging, ..self.of };
            let mut plans = Plans::new(&of, &network)?;
            plans.ledger.set_program(self.program);
            Ok(plans)
        };
        others.map(of).collect()
    }

    /// Images a second of a rank that computes whole images of the whole network, and has nobody to wait for.
    fn alone(&self, planned: &Planned) -> Result<f64> {
        let Planned { config, averaging, .. } = planned;
        let images = (config.batch * config.accumulation) as f64;
        if config.tensor.is_none() && config.spatial == 1 {
            return Ok(images / planned.case(&self.of).alone()?);
        }
        let config = Config { tensor: None, spatial: 1, sync_bn: SyncBatchNorm::Off, ..config.clone() };
        let (all, network) = (Topology::of_nodes(1, 1), self.network.among(&config, [0, 1])?);
        let places = Places { data: all.clone(), mesh: MeshShape::of_data(1), all };
        let (layout, device) = (places.layout(), self.of.device);
        let of = Planning { layout, config: &config, device, averaging, evaluate: false };
        let plans = match Plans::new(&of, &network) {
            // A sample that no rank can have as a whole: one would take as long as all that share it.
            Err(error) if error.kind == ErrorKind::Usage && planned.config.spatial > 1 => {
                return Ok(images / planned.case(&self.of).alone()? / planned.config.spatial as f64);
            }
            plans => plans?,
        };
        Ok(images / Case { places: &places, of, plans: &plans, beside: &[] }.alone()?)
    }
}

/// Refuses numbers of nodes that cannot share the work as is asked, with as many ranks each as there are here, before
/// anything is planned or measured.
///
/// # Errors
/// `Usage` with the number of nodes.
pub fn check(
    asked: &Prediction,
    interconnect: Option<&Interconnect>,
    here: &Topology,
    config: &Config,
    network: &Network,
) -> Result<()> {
    if !here.is_even() {
        return Err(Error::usage(
            "--predict-nodes: this job has not as many ranks on every node; start it so",
        ));
    }
    asked.nodes.iter().try_for_each(|&nodes| {
        has_room(interconnect, nodes)?;
        match config.parallel {
            Some(_) => Ok(()),
            None => shared(nodes, here.local_size(), config, network)
                .map(drop)
                .map_err(|error| error.context(format!("--predict-nodes {nodes}"))),
        }
    })
}

/// Where the ranks of so many nodes would be, and what each is told and learns.
fn shared(
    nodes: usize,
    local: usize,
    config: &Config,
    network: &Network,
) -> Result<(Places, Config, Network)> {
    let places = places(nodes, local, config)?;
    let computing = config.data_ranks(places.all.size());
    if computing == 0 {
        return Err(Error::usage(format!("{}: no rank is left to compute", config.strategy)));
    }
    let config = config.among(computing)?;
    let network = network.among(&config, [0, computing])?;
    Ok((places, config, network))
}

/// Where the ranks of so many nodes would be.
fn places(nodes: usize, local: usize, config: &Config) -> Result<Places> {
    let all = Topology::of_nodes(nodes, local);
    let Some(pipeline) = &config.pipeline else {
        let of_groups = config.tensor.map(|tensor| in_groups(tensor, all.size())).transpose()?;
        let mesh = of_groups.unwrap_or_else(|| MeshShape::of_data(all.size()));
        return Ok(Places { data: all.clone(), all, mesh });
    };
    let mesh = divided(pipeline, all.size())?;
    // The first stage; the others are as it is.
    let data = match (mesh.data % local, local % mesh.data) {
        (0, _) => Topology::of_nodes(mesh.data / local, local),
        (_, 0) => Topology::of_nodes(1, mesh.data),
        _ => {
            return Err(Error::usage(format!(
                "--pipeline: the {} ranks of a stage would lie unlike on nodes of {local}; use another number of nodes",
                mesh.data
            )));
        }
    };
    Ok(Places { all, data, mesh })
}

fn has_room(network: Option<&Interconnect>, nodes: usize) -> Result<()> {
    match network.and_then(|network| Some((network, network.room()?))) {
        Some((network, room)) if nodes > room => Err(Error::usage(format!(
            "--predict-nodes {nodes}: {} has {room} nodes; give fewer, or a larger --network",
            network.name
        ))),
        _ => Ok(()),
    }
}

/// One number of nodes.
pub struct Case<'a> {
    /// Where the ranks would be.
    pub places: &'a Places,
    /// As they would be told, with how gradients would be averaged there.
    pub of: Planning<'a>,
    /// What each would run.
    pub plans: &'a Plans,
    /// What ranks at other places of a group would run, so far as they are planned.
    pub beside: &'a [Plans],
}

impl Case<'_> {
    /// What is found for it; slow ranks besides, where a variation is given.
    ///
    /// # Errors
    /// `Usage` where something takes a time of which nothing is known.
    pub fn predicted(&self, jitter: Option<f64>) -> Result<Predicted> {
        let Case { places, of: Planning { config, averaging, .. }, plans, beside } = *self;
        let (ranks, computing) = (places.all.size(), config.data_ranks(places.all.size()));
        let scripts = self.rounds()?;
        let [seconds, exposed] = self.mean(&scripts, &|_| 1.0)?;
        if !seconds.is_finite() {
            return Err(Error::usage(
                "--predict-nodes: of this --allreduce, or of --compress, nothing is known to predict by; use another",
            ));
        }
        let jittered = jitter.map(|cv| self.jittered(&scripts, cv)).transpose()?;
        let images = config.images_a_step(computing) / config.spatial;
        let images = images as f64 / jittered.unwrap_or(seconds);
        let shared = plans.setting(&self.of).shared;
        let sent = scripts
            .last()
            .map_or(0, |(_, scripts)| scripts.iter().map(Script::bytes_sent).max().unwrap_or(0));
        let largest = |plans: &Plans| plans.largest(&self.of);
        let mut names: Vec<_> =
            averaging.choices(&plans.training, shared).iter().map(|choice| choice.name).collect();
        names.sort_unstable();
        names.dedup();
        Ok(Predicted {
            ranks,
            nodes: places.all.nodes(),
            seconds,
            exposed,
            images,
            jittered,
            sent,
            memory: beside.iter().map(largest).fold(largest(plans), usize::max),
            sums: names.join(" and "),
        })
    }

    /// The scripts of each kind of step of a round, and how many steps are so.
    pub fn rounds(&self) -> Result<Vec<(usize, Vec<Script>)>> {
        let Case { places, of: Planning { config, averaging, .. }, plans, .. } = *self;
        let (size, rule) = (places.data.size(), &config.optimizer.rule);
        let manners = plans.manners(&self.of);
        let every = config.relaxed(size).map_or(1, |relaxed| relaxed.every);
        let alike = every + 1 - manners.len();
        let mut rounds = Vec::new();
        // Between stages some have less of their links than others.
        let unlike = match places.mesh.is_cut() {
            true => averaging.alike(places.mesh, most_classes(places.mesh.ranks())),
            false => Vec::new(),
        };
        for (index, manner) in manners.iter().enumerate() {
            if manner.asynchronous && size > MOST_ALONE {
                return Err(Error::usage(format!(
                    "--predict-nodes: with {} ranks do not do the same, and up to {MOST_ALONE} are rehearsed one by one",
                    config.strategy
                )));
            }
            let ranks = |plan: &Plan, manner: &Manner| match manner.asynchronous {
                true => (0..size).collect(),
                false => {
                    let mut ranks = plan.representatives(manner, rule);
                    ranks.extend(&unlike);
                    ranks.sort_unstable();
                    ranks.dedup();
                    ranks
                }
            };
            let count = if index == 0 { alike } else { 1 };
            rounds.push((count, plans.scripts(manner, config, &ranks)));
        }
        Ok(rounds)
    }

    /// Rehearses scripts here.
    pub fn play(&self, scripts: &[Script], pace: &dyn Fn(usize) -> f64) -> Result<Rehearsal> {
        self.plans.play(scripts, &self.of, pace)
    }

    /// Seconds of a step, and those that a rank waits, over a round.
    fn mean(&self, rounds: &[(usize, Vec<Script>)], pace: &dyn Fn(usize) -> f64) -> Result<[f64; 2]> {
        let (mut sums, mut steps) = ([0.0; 2], 0.0);
        for (count, scripts) in rounds {
            let rehearsal = self.play(scripts, pace)?;
            let exposed = rehearsal.exposed.iter().copied().fold(0.0, f64::max);
            let count = *count as f64;
            sums = [sums[0] + count * rehearsal.seconds, sums[1] + count * exposed];
            steps += count;
        }
        Ok(sums.map(|sum| sum / steps))
    }

    /// Seconds of a step of one rank that has nobody to wait for.
    fn alone(&self) -> Result<f64> {
        let Case { of, plans, places, .. } = self;
        let config = of.config;
        let rule = config.optimizer.rule;
        let micro_steps = config.accumulation;
        let manner = Manner { micro_steps, shards: config.shards.is_some(), ..Manner::plain(vec![0]) };
        let update = |bytes: usize| rule.bytes_moved(bytes) as f64 * of.per_byte();
        let add = |bytes: usize| ADDING * bytes as f64 * of.per_byte();
        let prices = Prices { update: &update, add: &add, ..Prices::FREE };
        if places.mesh.is_cut() {
            // It does what all stages do.
            let alone = |plan: &&Plan| {
                let computes: f64 = of.step_seconds(plan).iter().sum();
                let sums = if micro_steps > 1 { add(plan.sizes.gradients) } else { 0.0 };
                micro_steps as f64 * (computes + sums) + update(plan.sizes.parameters)
            };
            return Ok(plans.of_stages().iter().map(alone).sum());
        }
        let facts = step_facts(&plans.training, &of.step_seconds(&plans.training));
        Ok(rehearse(&plans.training.scripts(&manner, &rule, 0..1), &[&facts], &prices)?.seconds)
    }

    /// Seconds of a step in which each rank computes for another time: log-normal with this coefficient of variation,
    /// anew in each of some steps. Where all wait for all, the slowest rank's time is everybody's, so that its pace is
    /// all that needs to be rehearsed; in a pipeline all of a stage do.
    fn jittered(&self, rounds: &[(usize, Vec<Script>)], cv: f64) -> Result<f64> {
        let (size, stage) = (self.places.all.size(), self.places.data.size());
        let computing = if self.places.mesh.is_cut() { size } else { self.of.config.data_ranks(size) };
        let alone = self.of.config.strategy.is_asynchronous();
        let mut sum = 0.0;
        for step in 0..DRAWS {
            let paces = paces(self.of.config.seed, step, computing, cv);
            let slowest = |paces: &[f64]| paces.iter().copied().fold(0.0, f64::max);
            let slowest: Vec<f64> = paces.chunks(stage).map(slowest).collect();
            let own = |rank: usize| paces.get(rank).copied().unwrap_or(1.0);
            let of_stage = |rank: usize| slowest[(rank / stage).min(slowest.len() - 1)];
            let pace: &dyn Fn(usize) -> f64 = if alone { &own } else { &of_stage };
            sum += self.mean(rounds, pace)?[0];
        }
        Ok(sum / f64::from(DRAWS))
    }
}

/// How many times its mean each rank takes in a step.
fn paces(seed: u64, step: u32, ranks: usize, cv: f64) -> Vec<f64> {
    let variance = (1.0 + cv * cv).ln();
    let key = key(seed, Purpose::Jitter, step);
    let four = |block: usize| normals(philox(key, [block as u32, 0, 0, 0]));
    let pace = |normal: f32| (variance.sqrt() * f64::from(normal) - variance / 2.0).exp();
    (0..ranks.div_ceil(4)).flat_map(four).take(ranks).map(pace).collect()
}

/// Who shares what, in words.
fn shared_by(config: &Config) -> String {
    match (config.tensor, config.spatial) {
        (Some(tensor), _) => format!("{}, --tensor {}", config.strategy, tensor.ranks),
        (None, 1) => config.strategy.to_string(),
        (None, parts) => format!("{}, --spatial {parts}", config.strategy),
    }
}

/// A row of the table.
struct Row {
    /// Of what as many ranks would do alone.
    efficiency: f64,
    found: Predicted,
}

fn table(rows: &[Row], unit: &str) -> String {
    let rate = format!("{unit}/s");
    let jitters = rows.iter().any(|row| row.found.jittered.is_some());
    let jitter = if jitters { "  with jitter" } else { "" };
    let which = match jitters {
        true => format!("\n{rate} and efficiency are of the step with jitter\n"),
        false => String::new(),
    };
    let mut text = format!(
        "{which}\n   nodes   ranks          step{jitter}{rate:>12}  efficiency       \
         exposed  memory a rank  allreduce\n"
    );
    for Row { efficiency, found: row } in rows {
        let jittered = row.jittered.map_or(String::new(), |seconds| format!("{:>13}", time(seconds)));
        text += &format!(
            "{:>8}{:>8}{:>14}{jittered}{:>12.1}{:>11.1}%{:>14}{:>15}  {}\n",
            row.nodes,
            row.ranks,
            time(row.seconds),
            row.images,
            1e2 * efficiency,
            time(row.exposed),
            bytes(row.memory),
            row.sums
        );
    }
    text
}

/// What the numbers rest on, and what they cannot know.
fn described(config: &Config, averaging: &Averaging) -> String {
    let network = averaging.machine().map_or(String::new(), |machine| machine.network.describe());
    let chooses =
        match (config.allreduce, config.prediction.as_ref().and_then(|asked| asked.network.as_ref())) {
            (AllreduceKind::Auto, Some(_)) => {
                "--allreduce auto chooses as after dltrain bench autotune on such nodes\n"
            }
            _ => "",
        };
    let computes = match config.plan.roofline {
        Some((flops, bytes)) => format!("{:.1} TFLOP/s and {:.0} GB/s as given", flops / 1e12, bytes / 1e9),
        None => format!("rates {}", averaging.source()),
    };
    format!(
        "predicted: {}; ranks compute at {computes}; network {network}\n\
         {chooses}{}It cannot know: other jobs on the network, slow nodes (--jitter shows some), samples \
         that come late.\n",
        shared_by(config),
        averaging.doubts(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paces_have_the_mean_and_the_variation_that_was_asked_for() {
        let paces = paces(1, 0, 100_000, 0.3);
        let mean = paces.iter().sum::<f64>() / paces.len() as f64;
        let variance = paces.iter().map(|pace| (pace - mean).powi(2)).sum::<f64>() / paces.len() as f64;
        // Standard errors: 0.3/√n = 0.001 for the mean; of the deviation less than 0.3·√(kurtosis/4n) = 0.002.
        assert!((mean - 1.0).abs() < 0.005 && (variance.sqrt() - 0.3).abs() < 0.01, "{mean} {variance}");
        assert!(super::paces(1, 0, 7, 0.0).iter().all(|&pace| pace == 1.0));
        assert_ne!(super::paces(1, 0, 3, 0.3), super::paces(1, 1, 3, 0.3));
    }
}
