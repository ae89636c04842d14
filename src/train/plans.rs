//! The plans of a run, and what a rank needs in memory for them.

use std::cell::RefCell;
use std::collections::HashMap;

use clap::ValueEnum;

use super::cutting::{in_stages, whole};
use super::groups::{Groups, Layout};
use super::ledger::{self, of_other_stages};
use super::network::Network;
use crate::comm::{Topology, World};
use crate::config::{Config, MeshShape, Precision, SyncBatchNorm};
use crate::device::{Device, Rule};
use crate::error::{Error, OrError, Result};
use crate::files::{self, fnv1a};
use crate::graph::{Graph, Op, SplitLayers};
use crate::host;
use crate::plan::{
    self, Axis, Compiled, Ledger, Line, Manner, MemoryKind, Options, Plan, Script, Stage, Stages, Trading,
    Transfer,
};
use crate::reducer::{Averaging, Expected, Setting, StepTimes, expected_owners, nodes};
use crate::simulate::{Load, Measured, Prices, Rehearsal, Rounds, StepFacts, rehearse, step_facts};
use crate::strategy::Owners;

/// The training plan, and the evaluation plan that shares its parameters and statistics.
pub struct Plans {
    /// With --evaluate that of the test, and there is no other.
    pub training: Plan,
    /// Where the network is cut, which of its stages this one is, and the training plans of the others.
    stages: Stages,
    own: usize,
    others: Vec<Plan>,
    pub evaluation: Option<Plan>,
    pub sizes: plan::Sizes,
    /// What a rank has in memory.
    pub ledger: Ledger,
    /// With recomputation: what the activations would take without.
    pub kept: Option<usize>,
    /// Layers that are split.
    split: Vec<SplitLayers>,
    /// Rows of images that go between ranks.
    trades: Vec<Trading>,
}

/// What plans follow from, beside the network: where the ranks are, what was asked for, and what computes and sums.
#[derive(Clone, Copy)]
pub struct Planning<'a> {
    pub layout: Layout<'a>,
    pub config: &'a Config,
    pub device: &'a dyn Device,
    pub averaging: &'a Averaging,
    /// Whether a test set is evaluated.
    pub evaluate: bool,
}

impl Planning<'_> {
    /// Seconds a byte that an update reads or writes.
    pub fn per_byte(&self) -> f64 {
        self.given_rates().map_or_else(|| self.averaging.per_byte(), |(_, bytes)| 1.0 / bytes)
    }

    /// What each step of a plan is expected to take. Of other nodes it is known by what they can at most, if that was
    /// given.
    pub fn step_seconds(&self, plan: &Plan) -> Vec<f64> {
        match self.given_rates() {
            Some(rates) => plan.step_rooflines(rates),
            None => self.averaging.step_seconds(plan),
        }
    }

    fn given_rates(&self) -> Option<(f64, f64)> {
        self.config.plan.roofline.filter(|_| self.averaging.machine().is_some())
    }
}

impl Plans {
    pub fn new(of: &Planning, network: &Network) -> Result<Plans> {
        let Planning { layout, config, device, averaging, evaluate } = *of;
        let options = Options::whole(config.buckets.fusion_threshold().unwrap_or(usize::MAX));
        let own = layout.stage;
        if config.evaluate {
            return Plans::to_test(&Planning { evaluate: false, ..*of }, network, &options);
        }
        let graph = network.training(config.batch)?;
        check_normalisation(layout.data, config, &graph)?;
        let (stages, mut others, kept) = match layout.mesh.is_cut() {
            false => {
                let (graph, kept) = match config.recompute {
                    true => (
                        graph.clone().recompute(),
                        Some(plan::plan(graph, device, &options)?.sizes.activations),
                    ),
                    false => (graph, None),
                };
                let first = match network.of_first_place() {
                    Some(first) => Some(Compiled::new(first.training(config.batch)?, device, None)?),
                    None => None,
                };
                let whole = whole(of, graph, first, &options)?;
                (options.stage.stages.clone(), vec![whole], kept)
            }
            true => {
                let (stages, mut plans, kept) = in_stages(of, &graph, &options)?;
                plans.iter_mut().try_for_each(|plan| averaging.cut(plan, config))?;
                (stages, plans, kept)
            }
        };
        let training = others.remove(own);
        let evaluation = if evaluate {
            let stage = Stage { stages: &stages, own, contexts: 1, splits_weights: false };
            let options = Options { training: Some(&training), stage, ..options };
            Some(plan::plan(network.evaluation(config.batch)?, device, &options)?)
        } else {
            None
        };
        let sizes = evaluation.as_ref().map_or(training.sizes, |plan| training.sizes.shared_with(plan.sizes));
        let mut ledger = of.ledger(&training, &sizes);
        ledger.on_host(MemoryKind::Checkpoint, of_other_stages(layout, config, &others));
        let (split, trades) = (network.split_layers(config.batch)?, training.trades());
        Ok(Plans { training, stages, own, others, evaluation, sizes, ledger, kept, split, trades })
    }

    /// The plan of a test alone.
    fn to_test(of: &Planning, network: &Network, options: &Options) -> Result<Plans> {
        let Planning { layout: Layout { stage: own, .. }, config, device, .. } = *of;
        let compile = |network: &Network| Compiled::new(network.evaluation(config.batch)?, device, None);
        let compiled = compile(network)?;
        let compiled = match network.of_first_place() {
            Some(first) => compiled.keeping(&compile(&first)?),
            None => compiled,
        };
        let training = compiled.plan(device, options)?;
        let ledger = of.ledger(&training, &training.sizes);
        let (sizes, stages, others) = (training.sizes, options.stage.stages.clone(), Vec::new());
        let (evaluation, kept, split, trades) = (None, None, Vec::new(), Vec::new());
        Ok(Plans { sizes, training, stages, own, others, evaluation, ledger, kept, split, trades })
    }

    /// Bytes at the least that this process has while its steps are measured.
    pub fn measured_bytes(&self, rule: &Rule) -> usize {
        let first = self.training.bucket_bytes().first().copied().unwrap_or(0);
        host::rss().unwrap_or(0) + Measured::bytes(&self.training, rule, first)
    }

    /// Bytes that are touched only when steps run: what the set-up lets go of before takes none beside them.
    pub fn untouched(&self, config: &Config) -> usize {
        let own = match self.share_parameters() {
            true => 0,
            false => ledger::gradient_copies(config) * self.sizes.gradients,
        };
        self.sizes.activations + own
    }

    /// What the process has without what plans speak of, where the set-up has so many bytes more while it reads a file
    /// of weights, which it lets go of before the first step.
    pub fn program(&self, config: &Config, read: usize) -> usize {
        self.ledger.bytes(MemoryKind::Program) + read.saturating_sub(self.untouched(config))
    }

    /// Whether the ranks of a node have parameters in common.
    fn share_parameters(&self) -> bool {
        self.ledger.sharers > 1
    }

    /// Makes sure that all ranks have the same plan. Collective.
    ///
    /// # Errors
    /// `Mismatch`, with what ranks compute with where that differs.
    pub fn compare(&self, groups: &Groups, config: &Config, device: &dyn Device) -> Result<()> {
        let world = &groups.data;
        let alike = match config.spatial {
            1 => world.clone(),
            parts => world.split(world.rank() % parts, world.rank())?,
        };
        if groups.mesh.is_cut() {
            groups.job.check_same(&[("where the network is cut".into(), self.stages.cuts.join(","))])?;
        }
        // How a node's ranks share the updates is agreed upon when there is memory for them.
        let owners = expected_owners(world, config.strategy, false);
        let manners = manner(groups.layout(), config, owners, false).of_round(config.relaxed(world.size()));
        let of = |manner: &Manner| self.training.scripts(manner, &config.optimizer.rule, 0..1);
        let scripts: Vec<_> = manners.iter().flat_map(of).collect();
        let script = fnv1a(format!("{scripts:?}").bytes());
        let items = [("plan", self.training.hash()), ("script", script)]
            .map(|(name, hash)| (name.to_string(), format!("{hash:016x}")));
        let of_device = ("what they compute with".to_string(), device.describe());
        let same =
            alike.check_same(&items).or_else(|_| alike.check_same(&[&[of_device], &items[..]].concat()));
        if config.spatial == 1 {
            return same;
        }
        // Ranks with other rows of images have other steps, and the same parameters.
        world.agree(same)?;
        let places: Vec<_> =
            self.training.parameters.iter().map(|of| (&of.name, of.offset, &of.layout)).collect();
        let places = format!("{places:?} {:?}", self.training.bucket_bytes());
        world.check_same(&[("where parameters lie".into(), format!("{:016x}", fnv1a(places.bytes())))])
    }

    /// What all ranks do in a step, and how it goes: where ranks have parameters of their own, in one in which they
    /// meet. The others are rehearsed too. Not collective: one rank does it for all.
    ///
    /// # Errors
    /// `Internal` where scripts do not fit together.
    pub fn rehearse(&self, of: &Planning) -> Result<(Vec<Script>, Rehearsal)> {
        let mut rehearsed = None;
        for manner in self.manners(of) {
            let scripts = self.scripts(&manner, of.config, &|_, manner| (0..manner.mesh.data).collect());
            let rehearsal = self.play(&scripts, of, &|_| 1.0)?;
            rehearsed = Some((scripts, rehearsal));
        }
        rehearsed.ok_or_else(|| Error::internal("a round without steps"))
    }

    /// The scripts of some ranks of each stage, which do a step in one manner.
    pub fn scripts(
        &self,
        manner: &Manner,
        config: &Config,
        ranks: &dyn Fn(&Plan, &Manner) -> Vec<usize>,
    ) -> Vec<Script> {
        let mut scripts: Vec<Script> = Vec::new();
        for tensor in 0..manner.mesh.tensor {
            for (stage, plan) in self.of_stages().into_iter().enumerate() {
                let manner = Manner { stage, tensor, ..manner.clone() };
                scripts.extend(plan.scripts(&manner, &config.optimizer.rule, ranks(plan, &manner)));
            }
        }
        scripts.sort_by_key(|script| script.rank);
        scripts
    }

    /// How the steps of a round are done, the one in which ranks meet last.
    pub fn manners(&self, of: &Planning) -> Vec<Manner> {
        let (in_common, Planning { layout, config, .. }) = (self.share_parameters(), *of);
        let owners = expected_owners(layout.data, config.strategy, in_common);
        manner(layout, config, owners, in_common).of_round(config.relaxed(layout.data.size()))
    }

    /// What decides how transfers travel.
    pub fn setting(&self, of: &Planning) -> Setting<'_> {
        let (in_common, buckets) = (self.share_parameters(), self.training.bucket_bytes());
        Setting {
            shared: of.averaging.selection.expects_shared(of.layout.data, &buckets),
            in_common,
            apart: expected_owners(of.layout.data, of.config.strategy, in_common).are_apart(),
            last: buckets.last().copied().unwrap_or(0),
            trades: &self.trades,
        }
    }

    /// Rehearses scripts, of ranks that compute at some pace.
    ///
    /// # Errors
    /// `Internal` where scripts do not fit together.
    pub fn play(&self, scripts: &[Script], of: &Planning, pace: &dyn Fn(usize) -> f64) -> Result<Rehearsal> {
        let (setting, averaging) = (self.setting(of), of.averaging);
        // All ranks of a stage have one list of transfers.
        let known: RefCell<HashMap<*const Transfer, f64>> = RefCell::default();
        let seconds = |transfer: &Transfer| {
            let mut known = known.borrow_mut();
            *known.entry(transfer).or_insert_with(|| averaging.transfer(transfer, setting))
        };
        let relayed_known: RefCell<HashMap<*const Transfer, Vec<(usize, f64)>>> = RefCell::default();
        let relayed = |transfer: &Transfer| {
            let mut known = relayed_known.borrow_mut();
            known.entry(transfer).or_insert_with(|| averaging.relayed(transfer, setting)).clone()
        };
        let represented = Represented::of(scripts, of.layout.mesh, averaging);
        let rounds_known: RefCell<HashMap<(*const Transfer, Line), Vec<Rounds>>> = RefCell::default();
        let rounds = |transfer: &Transfer, line: &Line| {
            let find = || averaging.rounds(transfer, line, setting, &|first| represented.of_line(first));
            let mut known = rounds_known.borrow_mut();
            known.entry((std::ptr::from_ref(transfer), line.clone())).or_insert_with(find).clone()
        };
        let rates = |loads: &[Load]| averaging.rates(loads);
        let (rule, per_byte) = (&of.config.optimizer.rule, of.per_byte());
        let update = |bytes: usize| rule.bytes_moved(bytes) as f64 * per_byte;
        let facts = |plan: &&Plan| step_facts(plan, &of.step_seconds(plan));
        let facts: Vec<_> = self.of_stages().iter().map(facts).collect();
        let facts: Vec<&[StepFacts]> = facts.iter().map(Vec::as_slice).collect();
        let add = |bytes: usize| ADDING * bytes as f64 * per_byte;
        rehearse(
            scripts,
            &facts,
            &Prices {
                transfer: &seconds,
                rounds: &rounds,
                rates: &rates,
                relayed: &relayed,
                update: &update,
                add: &add,
                pace,
            },
        )
    }

    /// The same steps where ranks are elsewhere: other buckets and other memory.
    ///
    /// # Errors
    /// `Internal` where a script cannot be rehearsed.
    pub fn move_to(&mut self, of: &Planning) -> Result<()> {
        let plans = self.others.iter_mut().chain([&mut self.training]);
        plans.into_iter().try_for_each(|plan| of.averaging.cut(plan, of.config))?;
        let program = self.ledger.bytes(MemoryKind::Program);
        self.ledger = of.ledger(&self.training, &self.sizes);
        self.ledger.set_program(program);
        self.ledger.on_host(MemoryKind::Checkpoint, of_other_stages(of.layout, of.config, &self.others));
        Ok(())
    }

    /// Bytes that the rank has at its peak which has most: of another stage but for what its evaluation may take more.
    pub fn largest(&self, of: &Planning) -> usize {
        let program = self.ledger.bytes(MemoryKind::Program);
        let needed = |plan: &Plan| {
            let mut ledger = of.ledger(plan, &plan.sizes);
            ledger.set_program(program);
            ledger.of_host()
        };
        self.others.iter().map(needed).fold(self.total(), usize::max)
    }

    /// Bytes that a rank has at its peak.
    pub fn total(&self) -> usize {
        self.ledger.of_host()
    }

    /// These by kind.
    pub fn kinds(&self) -> Vec<(String, u64)> {
        MemoryKind::value_variants()
            .iter()
            .map(|&kind| (kind.name(), self.ledger.bytes(kind) as u64))
            .collect()
    }

    /// What `--dry-run` prints.
    ///
    /// # Errors
    /// `Internal` where the ranks' scripts do not fit together.
    pub fn describe(&self, of: &Planning) -> Result<String> {
        let Planning { layout, config, device, averaging, .. } = *of;
        let (ranks, shared) = (layout.data.size(), self.setting(of).shared);
        let note = |choice: &Expected| (choice.name, choice.seconds);
        let choices: Vec<_> = averaging.choices(&self.training, shared).iter().map(note).collect();
        let described = format!(
            "{}, {ranks} rank{}{} × batch {} × accumulation {} = global batch {}\n\n{}",
            config.model,
            if ranks == 1 { "" } else { "s" },
            if config.spatial > 1 {
                format!(" / {} with the same {}", config.spatial, config.unit())
            } else {
                String::new()
            },
            config.batch,
            config.accumulation,
            config.images_a_step(config.strategy.computing(ranks)) / config.spatial,
            self.training.describe(&opening(config, device), &self.ledger, self.kept, &choices)
        );
        let (waits, script) = match config.evaluate {
            true => (Vec::new(), String::new()),
            false => {
                let (scripts, rehearsal) = self.rehearse(of)?;
                let script = rehearsed(layout, config, &scripts, &rehearsal);
                (rehearsal.exposed.iter().map(|waits| waits / rehearsal.seconds).collect(), script)
            }
        };
        let shards = self.shards(config, ranks)
            + &self.stage_table(of, &waits)
            + &self.split_table(layout)
            + &self.rows(config);
        Ok(described + &shards + &script + &self.roofline(config))
    }

    /// The training plans of all stages, in their order.
    pub fn of_stages(&self) -> Vec<&Plan> {
        let (before, behind) = self.others.split_at(self.own);
        before.iter().chain([&self.training]).chain(behind).collect()
    }

    /// A line for each stage. `waits` has of each rank of the job the share of a step in which it waits.
    fn stage_table(&self, of: &Planning, waits: &[f64]) -> String {
        let Planning { layout, config, averaging, .. } = *of;
        let Some(pipeline) = config.pipeline.as_ref().filter(|_| layout.mesh.is_cut()) else {
            return String::new();
        };
        let mut text = format!(
            "\n{} stages, {} micro-batches of {} {}, {}: of a step a stage idles {:.1}% at best\n  stage  \
             layers{:34}parameters  activations  in flight  sends a step  seconds   idle\n",
            pipeline.stages,
            config.accumulation,
            config.batch,
            config.unit(),
            pipeline.schedule,
            100.0 * pipeline.schedule.bubble(pipeline.stages, config.accumulation),
            ""
        );
        for (stage, plan) in self.of_stages().into_iter().enumerate() {
            let layers = self.stages.layers_of(&plan.graph, stage).join("; ");
            let seconds: f64 = averaging.step_seconds(plan).iter().sum::<f64>() * config.accumulation as f64;
            let sent =
                plan.edges.iter().filter(|edge| edge.sends).map(|edge| edge.place.bytes).sum::<usize>();
            let idle = waits.get(layout.mesh.rank([0, stage, 0])).copied().unwrap_or(f64::NAN);
            let idle = if idle.is_finite() { format!("{:.1}%", 100.0 * idle) } else { "-".into() };
            text += &format!(
                "  {stage:>5}  {layers:<38}  {:>10}  {:>11}  {:>9}  {:>12}  {seconds:>7.4}  {idle:>5}\n",
                plan::describe_bytes(plan.sizes.parameters),
                plan::describe_bytes(plan.sizes.activations),
                plan.contexts.count,
                plan::describe_bytes(sent * config.accumulation),
            );
        }
        text
    }

    /// What of the network is cut by rows, and what of them goes between ranks.
    fn rows(&self, config: &Config) -> String {
        let Some(rows) = self.training.graph.rows else { return String::new() };
        let trades = &self.trades;
        let bytes = trades.iter().map(|trading| trading.bytes()[0]).sum::<usize>() * config.accumulation;
        let graph = &self.training.graph;
        let whole = graph.nodes[..graph.forward_nodes].iter().find(|node| match node.op {
            Op::Trade(trade) => trade.halo.window.is_none(),
            _ => false,
        });
        let until = match whole {
            Some(gathers) => {
                let of_layer =
                    graph.nodes[..graph.forward_nodes].iter().rfind(|node| node.name == gathers.name);
                let shape = of_layer.map(|node| &graph.tensor(node.outputs[0]).spec.shape);
                let fewer = shape.filter(|shape| shape.spatial().is_some() && shape.0[2] < rows.parts);
                let fewer =
                    fewer.map(|shape| format!(", which has {} of them for {} ranks", shape.0[2], rows.parts));
                format!("; rows are gathered before {}{}", gathers.name, fewer.unwrap_or_default())
            }
            None => String::new(),
        };
        format!(
            "\n{0} by rows: {1} ranks have the same {0}, this one {2} of {3} rows{until}; activations {4}; {5} trades \
             of rows a step, in which it sends {6} ({7} bytes)\n",
            config.unit(),
            rows.parts,
            rows.own().len(),
            rows.height,
            plan::describe_bytes(self.training.sizes.activations),
            trades.len() * config.accumulation,
            plan::describe_bytes(bytes),
            plan::group(bytes),
        )
    }

    /// The weights that are split, in words.
    pub fn split_layers(&self) -> String {
        let pairs: Vec<String> = self.split.iter().map(|split| split.weights.join(" and ")).collect();
        pairs.join(", ")
    }

    /// A line for each layer, or pair of layers, that is split.
    fn split_table(&self, layout: Layout) -> String {
        if self.split.is_empty() {
            return String::new();
        }
        let mut text = format!(
            "\nlinear layers split over groups of {} ranks, of which there are {}\n  weights{:41}gradients a rank \
             sends less  sends instead\n",
            layout.mesh.tensor, layout.mesh.data, ""
        );
        for SplitLayers { weights, saved, exchanged } in &self.split {
            let [saved, exchanged] = [*saved, *exchanged].map(plan::describe_bytes);
            text += &format!("  {:<46}  {saved:>27}  {exchanged:>13}\n", weights.join(" and "));
        }
        text
    }

    /// What shards cost a rank, in words.
    fn shards(&self, config: &Config, ranks: usize) -> String {
        let Some(shards) = config.shards else { return String::new() };
        let (own, bytes) =
            (config.accumulation, (ledger::gradient_copies(config) - 1) * self.sizes.gradients);
        format!(
            "\nshards: {shards} of {} {}, of which a rank of {ranks} computes {own} one after the other; {} for \
             their sums; nothing is summed before the last\n",
            config.batch,
            config.unit(),
            plan::describe_bytes(bytes)
        )
    }

    /// The file of `--plan-steps`, by rank 0.
    pub fn write_steps(&self, world: &World, config: &Config) -> Result<()> {
        let Some(path) = config.plan.plan_steps.as_ref().filter(|_| world.is_first()) else { return Ok(()) };
        files::write_new(path, "the plan's steps", |to| {
            let text = self.training.steps_as_json() + &self.update_as_json(config);
            std::fs::write(to, text).or_output(path, "cannot write the plan's steps")
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
        let Some(rates) = config.plan.roofline else { return String::new() };
        let moved = config.optimizer.rule.bytes_moved(self.training.sizes.parameters);
        let (step, products) = self.training.roofline(moved, rates);
        format!(
            "\nroofline at {:.1} TFLOP/s and {:.0} GB/s: a step of a rank takes at least {} ({:.0}% of it in \
             products), {:.1} {}/s\n",
            rates.0 / 1e12,
            rates.1 / 1e9,
            plan::describe_seconds(step),
            100.0 * products / step,
            config.batch as f64 / step,
            config.unit(),
        )
    }
}

/// The most classes into which ranks that share links differently are divided. A rehearsal takes longer with more
/// classes and with more ranks: whenever a message of a class begins or ends, the rates of all messages are found anew.
pub fn most_classes(ranks: usize) -> usize {
    (16_384 / ranks.max(1)).clamp(1, 16)
}

/// Which ranks each rehearsed rank stands for, by their places on the data axis: itself, and those of its class
/// (`Averaging::alike`) that are not rehearsed.
struct Represented {
    mesh: MeshShape,
    /// Of each rehearsed rank, in ascending order.
    stands_for: Vec<(usize, Vec<usize>)>,
}

impl Represented {
    fn of(scripts: &[Script], mesh: MeshShape, averaging: &Averaging) -> Represented {
        let mut there: Vec<usize> = scripts.iter().map(|script| script.place(Axis::Data)).collect();
        there.sort_unstable();
        there.dedup();
        let mut stands_for: Vec<(usize, Vec<usize>)> =
            there.iter().map(|&place| (place, vec![place])).collect();
        if there.len() < mesh.data {
            let classes = averaging.alike(mesh, most_classes(mesh.ranks()));
            let mut of_class: HashMap<usize, usize> = HashMap::new();
            for (index, &place) in there.iter().enumerate() {
                of_class.entry(classes[place]).or_insert(index);
            }
            for place in (0..mesh.data).filter(|place| there.binary_search(place).is_err()) {
                let index = of_class.get(&classes[place]).copied().unwrap_or(0);
                stands_for[index].1.push(place);
            }
        }
        Represented { mesh, stands_for }
    }

    /// The lowest ranks of the lines that one with this lowest rank stands for.
    fn of_line(&self, first: usize) -> Vec<usize> {
        let [data, pipeline, tensor] = self.mesh.coordinates(first);
        let found = self.stands_for.binary_search_by_key(&data, |(place, _)| *place);
        let rank = |&data: &usize| self.mesh.rank([data, pipeline, tensor]);
        found.map_or_else(|_| vec![first], |index| self.stands_for[index].1.iter().map(rank).collect())
    }
}

/// What a rehearsal says, in a line, or with rank 0's whole script.
fn rehearsed(layout: Layout, config: &Config, scripts: &[Script], rehearsal: &Rehearsal) -> String {
    let mut text = format!("\nscript of a rank: {}\n", scripts[0].summary());
    if config.plan.script {
        text += &scripts[0].lines();
    }
    text += &match scripts.len() {
        1 => "rehearsed with 1 rank".to_string(),
        ranks => format!("rehearsed with {ranks} ranks: none waits for ever"),
    };
    if rehearsal.seconds.is_finite() {
        let exposed = rehearsal.exposed.iter().copied().fold(0.0, f64::max);
        let [step, waits] = [rehearsal.seconds, exposed].map(plan::describe_seconds);
        let of = match config.relaxed(layout.data.size()) {
            Some(relaxed) if !relaxed.sends_parameters() => {
                format!("a step in which ranks meet, one in {}", relaxed.every)
            }
            _ => "a step".into(),
        };
        text += &format!("; expected {step} {of}, of which a rank waits {waits}");
    }
    text + "\n"
}
/// That batch normalisation goes with what flags say of images.
fn check_normalisation(world: &Topology, config: &Config, graph: &Graph) -> Result<()> {
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
    Ok(())
}

/// Bytes that are read or written for each byte of gradients that is added to its sum.
pub const ADDING: f64 = 3.0;

/// What steps took on the ranks that are there, where that is to be measured: of each stage the mean of its ranks. As
/// many updates are measured as fit into `room` bytes with all else. Collective.
///
/// # Errors
/// The same on every rank: no memory, or whatever a device reports.
pub fn measured(groups: &Groups, of: &Planning, plans: &Plans, room: usize) -> Result<Option<StepTimes>> {
    let Some(steps) = of.config.measure else { return Ok(None) };
    let (world, rule) = (&groups.job, &of.config.optimizer.rule);
    let mut subject = world.agree(Measured::new(of.device, &plans.training, rule, room))?;
    world.barrier()?;
    let times = world.agree(subject.time(steps))?;
    // Every rank fills in what its stage took.
    let all = plans.of_stages();
    let mut seconds: Vec<f64> = Vec::new();
    let mut updates = [times.updates, rule.bytes_moved(times.updated) as f64];
    for (stage, plan) in all.iter().enumerate() {
        match stage == groups.stage {
            true => seconds.extend(&times.steps),
            false => seconds.extend(vec![0.0; plan.steps.len()]),
        }
    }
    world.sum_f64(&mut seconds)?;
    world.sum_f64(&mut updates)?;
    let ranks = groups.data.size() as f64;
    seconds.iter_mut().for_each(|seconds| *seconds /= ranks);
    let by_rates = all.iter().flat_map(|plan| of.averaging.step_seconds_by_rates(plan));
    let steps = all.iter().flat_map(|plan| &plan.steps).zip(by_rates.zip(seconds).map(<[f64; 2]>::from));
    let per_byte = updates[0] / updates[1].max(1.0);
    Ok(Some(StepTimes::new(steps, per_byte, of.device.is_host())))
}

/// How a step of this run is done.
pub fn manner(layout: Layout, config: &Config, owners: Owners, in_common: bool) -> Manner {
    let pipeline = config.pipeline.as_ref().filter(|_| layout.mesh.is_cut());
    Manner {
        mesh: layout.mesh,
        stage: layout.stage,
        schedule: pipeline.map(|pipeline| pipeline.schedule).unwrap_or_default(),
        owners,
        wire: config.wire,
        in_common,
        micro_steps: config.accumulation,
        shards: config.shards.is_some(),
        clip: config.optimizer.clip_norm.is_some(),
        unscale: config.precision == Precision::F16,
        average: config.optimizer.ema.is_some(),
        // A rank by itself has nothing to send meanwhile: its backward pass is one stretch.
        overlap: !config.buckets.no_overlap && layout.mesh.ranks() > 1,
        asynchronous: config.strategy.is_asynchronous(),
        ..Manner::plain(nodes(layout.data))
    }
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
