//! How gradients are averaged in a run: what is decided of it before anything is planned.

use std::collections::HashMap;
use std::rc::Rc;

use super::gpu_direct;
use super::recipe::Recipe;
use super::sharing::expected_owners;
use crate::collective::cost::{CANDIDATES, Nodes};
use crate::collective::tuning::{Level, Parameters, Times, Tuning};
use crate::collective::{Operation, Route, Selection, Steps};
use crate::comm::{Topology, World};
use crate::config::{AllreduceKind, Compression, Config, MeshShape, Pattern, Precision, Strategy, Wire};
use crate::cuts::Cuts;
use crate::device::Device;
use crate::error::Result;
use crate::plan::{Area, Axis, Kind, Line, Manner, Plan, PlannedStep, Region, TAIL, Trading, Transfer};
use crate::simulate::{Course, Interconnect, Load, Machine, RankGroups, Rounds, Share, threshold};
use crate::strategy::Owners;

/// The same on every rank.
pub struct Averaging {
    /// What sums gradients.
    pub selection: Selection,
    tuning: Tuning,
    /// Of the rank that has fewest.
    threads: usize,
    /// Whether gradients stay in the memory of a device that has its own, and never come to the host.
    pub on_device: bool,
    compress: Option<Compression>,
    /// Where few ranks update for all.
    star: Option<Star>,
    /// In a gossip: the link to another rank.
    gossip: Option<Level>,
    /// Where layers are split: over which ranks.
    split: Option<MeshShape>,
    /// Of a network in stages: the ranks of all of them, and seconds until the first byte is at the next one, and
    /// seconds a byte.
    stages: Option<(Rc<Machine>, [f64; 2])>,
    wire: Wire,
    /// Where the ranks are.
    ranks: Rc<Machine>,
    /// Whether the job is thought to be there, and is elsewhere.
    is_elsewhere: bool,
    /// What steps took here, if that was measured.
    measured: Option<Rc<StepTimes>>,
    /// Which part of the rates that were measured a rank has, where more threads share cores here than did then.
    share: f64,
}

/// What steps took that were measured, by their labels.
pub struct StepTimes {
    /// Measured seconds of a step over those by rates (`threshold::step_seconds`). With other images both are thought
    /// to grow alike. A layer whose weights are most of what it reads takes no less for fewer images.
    factors: HashMap<String, f64>,
    per_byte: f64,
    /// Whether who computes them looks at messages only in between.
    on_host: bool,
}

impl StepTimes {
    /// Of steps, each with its seconds by rates and its measured ones, and of each byte that an update reads or writes.
    /// Of steps with one label the mean is taken. Steps of the host's own device are computed by the thread that moves
    /// messages.
    pub fn new<'a>(
        steps: impl Iterator<Item = (&'a PlannedStep, [f64; 2])>,
        per_byte: f64,
        on_host: bool,
    ) -> StepTimes {
        let mut sums: HashMap<String, [f64; 2]> = HashMap::new();
        for (step, [by_rates, measured]) in steps {
            let [expected, all] = sums.entry(step.label.clone()).or_default();
            *expected += by_rates;
            *all += measured;
        }
        let each = sums.into_iter().filter(|(_, [expected, _])| *expected > 0.0);
        let factors = each.map(|(label, [expected, all])| (label, all / expected)).collect();
        StepTimes { factors, per_byte, on_host }
    }
}

/// What of a run decides how its transfers travel.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'a> {
    /// Whether the ranks of a node see each other's gradients.
    pub shared: bool,
    /// Whether they have parameters in common.
    pub in_common: bool,
    /// Whether sums go to their owners alone.
    pub apart: bool,
    /// Bytes of the last bucket.
    pub last: usize,
    /// Rows of images that ranks of a group tell each other.
    pub trades: &'a [Trading],
}

/// What goes between few owners and the others, over the link of each owner.
#[derive(Clone, Copy)]
struct Star {
    owners: usize,
    others: usize,
    link: Level,
}

impl Star {
    fn new(world: &Topology, strategy: Strategy, parameters: &Parameters) -> Option<Star> {
        let link = if world.nodes() > 1 { parameters.between } else { parameters.within };
        match expected_owners(world, strategy, false) {
            Owners::Apart { first, count, computing } if strategy.is_central() => {
                // One that answers each by itself has as much to do with every other.
                let all = computing - usize::from(first == 0);
                Some(Star { owners: count, others: if strategy.is_asynchronous() { 1 } else { all }, link })
            }
            _ => None,
        }
    }
}

/// Bytes of a bucket at most where few ranks update for all: what an owner waits for before its link is used both ways.
/// BytePS cuts tensors at as many.
const SLICE: usize = 4 << 20;

/// What is decided before strategies are looked at.
struct Averages {
    selection: Selection,
    tuning: Tuning,
    threads: usize,
    on_device: bool,
    ranks: Machine,
    is_elsewhere: bool,
}

/// A network in which nodes have their links and nothing else is shared.
fn flat(between: Level) -> Interconnect {
    Interconnect::flat(between.latency(), 1.0 / between.per_byte())
}

/// What `dltrain bench autotune` would measure on the ranks of a machine, if its network were all that there is.
fn times_on(machine: &Machine) -> Vec<Times> {
    const BYTES: [usize; 5] = [1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26];
    let of = |&kind: &AllreduceKind| {
        let seconds = |bytes: usize| {
            let cuts = Cuts::even(&(0..bytes / 4), machine.ranks());
            Some(Course::sum(kind, Share::All, &cuts, Wire::F32, machine)?.seconds(machine))
        };
        let us = BYTES.iter().map(|&bytes| Some(1e6 * seconds(bytes)?)).collect::<Option<_>>()?;
        Some(Times { algorithm: kind.name().into(), bytes: BYTES.into(), us })
    };
    CANDIDATES.iter().filter_map(of).collect()
}

/// A table of bytes in f32.
fn in_elements(cuts: &Cuts) -> Cuts {
    let of = |bytes: &std::ops::Range<usize>| bytes.start / 4..bytes.end / 4;
    Cuts::new(of(cuts.range()), (0..cuts.ranks()).map(|rank| of(cuts.part(rank))).collect())
}

/// What is known beforehand of a bucket's sum.
pub struct Expected {
    /// The collective, or that gradients are compressed.
    pub name: &'static str,
    /// NaN with compression and between GPUs, of which the costs say nothing.
    pub seconds: f64,
}

impl Averaging {
    /// Collective.
    ///
    /// # Errors
    /// `Usage` or `Environment`, the same on every rank, where what is asked for cannot run.
    pub fn new(world: &World, config: &Config, device: &dyn Device, threads: usize) -> Result<Averaging> {
        let tuning = Tuning::load(world, config.buckets.tuning.as_deref())?;
        let nodes = Nodes::of(world);
        let given_to_mpi = gpu_direct::mpi_serves(world, config, device)?;
        let of = |kind| world.agree(Selection::new(kind, config.wire, &nodes, &tuning));
        let mut selection = of(config.allreduce)?;
        // Owners that are apart add in the host's memory, and so do ranks with parameters of their own.
        if config.tensor.is_none()
            && !config.strategy.is_relaxed()
            && !expected_owners(world, config.strategy, false).are_apart()
            && gpu_direct::gpus_serve(world, config, device)?
        {
            selection = of(AllreduceKind::IPC)?;
        }
        let on_device = match selection.kind() {
            AllreduceKind::NCCL => true,
            AllreduceKind::IPC => world.nodes() == 1,
            _ => given_to_mpi,
        };
        let mut least = [threads as f64];
        world.min_f64(&mut least)?;
        let threads = least[0] as usize;
        let ranks = Machine::of(flat(tuning.parameters.between), world, tuning.parameters);
        let share = match tuning.is_built_in() || tuning.machine.ranks == nodes.describe() {
            true => 1.0,
            false => world.share_of_cores(threads)?,
        };
        let averages = Averages { selection, tuning, threads, on_device, ranks, is_elsewhere: false };
        Ok(Averaging { share, ..Averaging::of(world, config, averages) })
    }

    fn of(world: &Topology, config: &Config, averages: Averages) -> Averaging {
        let Averages { selection, tuning, threads, on_device, ranks, is_elsewhere } = averages;
        let star = Star::new(world, config.strategy, &tuning.parameters);
        let link = if world.nodes() > 1 { tuning.parameters.between } else { tuning.parameters.within };
        let relaxed = config.relaxed(world.size());
        let gossip = relaxed.is_some_and(|relaxed| relaxed.sends_parameters()).then_some(link);
        let (compress, wire) = (config.compress, config.wire);
        Averaging {
            selection,
            tuning,
            threads,
            on_device,
            compress,
            star,
            gossip,
            split: None,
            stages: None,
            wire,
            ranks: Rc::new(ranks),
            is_elsewhere,
            measured: None,
            share: 1.0,
        }
    }

    /// The same of a network in stages, whose ranks are those of this job. Elsewhere all ranks are thought to send to
    /// the next stage at a time.
    pub fn over_stages(self, job: &Topology) -> Averaging {
        let Parameters { within, between, .. } = self.tuning.parameters;
        let link = if job.nodes() > 1 { between } else { within };
        let all = Machine::of(self.ranks.network.clone(), job, self.ranks.parameters);
        let link = match self.machine() {
            None => [link.latency(), link.per_byte()],
            Some(stage) => {
                let of = |bytes: usize| {
                    let cuts = Cuts::even(&(0..bytes / 4), job.size());
                    Course::of(Steps::Shift(stage.ranks()), &cuts, Wire::F32).seconds(&all)
                };
                let (few, many) = (4, 1 << 24);
                let per_byte = (of(many) - of(few)) / (many - few) as f64;
                [of(few), per_byte]
            }
        };
        let stages = (Rc::new(all), link);
        Averaging { stages: Some(stages), ..self }
    }

    /// The same where layers are split over a mesh of this job.
    pub fn over_groups(self, mesh: MeshShape) -> Averaging {
        Averaging { split: Some(mesh), ..self }
    }

    /// The link over which one of so many neighbours sends to another: seconds until the first byte is there, and
    /// seconds a byte.
    pub fn between_neighbours(&self, ranks: usize) -> [f64; 2] {
        let course = |bytes| Course::all_to_all(RankGroups::of_neighbours(ranks), bytes).seconds(&self.ranks);
        let (few, many) = (4, 1 << 20);
        let per_byte = (course(many) - course(few)) / ((many - few) * (ranks - 1)) as f64;
        [course(few), per_byte]
    }

    /// The link between stages: seconds until the first byte is there, and seconds a byte.
    pub fn between_stages(&self) -> [f64; 2] {
        self.stages.as_ref().map_or([0.0; 2], |(_, link)| *link)
    }

    /// The same where the ranks are on other nodes, as many on each, joined by a network; by that of what was measured
    /// where none is given. What algorithms took says nothing of another network.
    ///
    /// # Errors
    /// `Usage` where what is asked for cannot run there.
    pub fn elsewhere(
        &self,
        world: &Topology,
        config: &Config,
        network: Option<&Interconnect>,
    ) -> Result<Averaging> {
        let mut tuning = self.tuning.clone();
        tuning.measured.retain(|_| network.is_none());
        let between = tuning.parameters.between;
        let network = network.cloned().unwrap_or_else(|| flat(between));
        tuning.parameters.between =
            Level { latency_us: 1e6 * network.latency, gb_per_s: 1e-9 * network.of_node() };
        let (nodes, chooses) = (Nodes::of(world), self.selection.kind() == AllreduceKind::Auto);
        let is_given = network != flat(between);
        let ranks = Machine::of(network, world, tuning.parameters);
        // Nodes' own links, which the cost model knows, may be the widest of a network.
        let mut priced = tuning.clone();
        if is_given && chooses {
            (priced.measured, priced.machine.ranks) = (times_on(&ranks), nodes.describe());
        }
        let selection = Selection::new(self.selection.kind(), config.wire, &nodes, &priced)?;
        let ranks = if self.is_measured_on_host() { ranks.in_chunks() } else { ranks };
        let (threads, on_device, is_elsewhere) = (self.threads, self.on_device, true);
        let averages = Averages { selection, tuning, threads, on_device, ranks, is_elsewhere };
        let moved = Averaging::of(world, config, averages);
        Ok(Averaging { measured: self.measured.clone(), share: self.share, ..moved })
    }

    /// Whether it is known what the ranks, which move messages along, compute at a time.
    fn is_measured_on_host(&self) -> bool {
        self.measured.as_ref().is_some_and(|steps| steps.on_host)
    }

    /// Bytes a second that leave a rank: its share of its node's link. Infinite where nobody measured it, and where
    /// ranks of a node send other ranks than their like on other nodes: some have the link then, and some do not.
    pub fn rate(&self, world: &Topology) -> f64 {
        let alike = match self.selection.kind() {
            AllreduceKind::Auto | AllreduceKind::Hierarchical(_) => true,
            _ => world.local_size() == 1,
        };
        match alike && world.nodes() > 1 && !self.tuning.is_built_in() {
            true => 1e9 * self.tuning.parameters.between.gb_per_s / world.local_size() as f64,
            false => f64::INFINITY,
        }
    }

    /// Where the job is thought to be.
    pub fn machine(&self) -> Option<&Machine> {
        self.is_elsewhere.then_some(&*self.ranks)
    }

    /// Cuts the gradients of a training plan into buckets, at the threshold that was given or the best one. Where few
    /// ranks update for all they are cut into slices.
    ///
    /// # Errors
    /// `Internal` where a script cannot be rehearsed.
    pub fn cut(&self, plan: &mut Plan, config: &Config) -> Result<()> {
        if config.buckets.fusion_threshold().is_none() {
            self.choose_threshold(plan, config)?;
        }
        if self.is_sliced(config) {
            plan.slice_buckets(SLICE);
        }
        Ok(())
    }

    /// Whether new parameters can leave their owners while the rest of a large layer is still coming: not where updates
    /// wait for all gradients, or for all of their layer's, or where a layer is compressed as a whole. An owner that
    /// answers one rank after the other has its link busy both ways with those of several.
    fn is_sliced(&self, config: &Config) -> bool {
        let optimizer = &config.optimizer;
        let waits = optimizer.clip_norm.is_some() || config.precision == Precision::F16;
        let is_whole = waits || optimizer.rule.has_trust() || config.compress.is_some();
        self.star.is_some() && !config.strategy.is_asynchronous() && !is_whole
    }

    fn choose_threshold(&self, plan: &mut Plan, config: &Config) -> Result<()> {
        // Places of a group have unlike steps, and the same buckets.
        if config.spatial > 1 {
            plan.cut_at(threshold::ALIKE);
            return Ok(());
        }
        // Whether there is room for shared memory may differ from node to node; buckets must not.
        let sum = |transfer: &Transfer| {
            let of_groups = self.in_groups(transfer, &[]).map(|course| course.seconds(&self.ranks));
            of_groups.unwrap_or_else(|| self.selection.choose(transfer.cuts.range().len(), true).seconds)
        };
        let (micro_steps, overlap) = (config.accumulation, !config.buckets.no_overlap);
        let plain = match self.split {
            None => Manner::plain(vec![0]),
            Some(mesh) => Manner { mesh, ..Manner::plain(vec![0; mesh.ranks()]) },
        };
        let manner = Manner { micro_steps, overlap, ..plain };
        // By rates, also where steps were measured: sums are in the order of buckets, and a run with the same flags has
        // the same bits. A prediction has the buckets that the run will have.
        threshold::cut(plan, &manner, &config.optimizer.rule, &self.step_seconds_by_rates(plan), &sum)
    }

    /// What each step of a plan is expected to take: by rates, unless it was measured.
    pub fn step_seconds(&self, plan: &Plan) -> Vec<f64> {
        let mut expected = self.step_seconds_by_rates(plan);
        match &self.measured {
            Some(measured) => {
                for (seconds, step) in expected.iter_mut().zip(&plan.steps) {
                    *seconds *= measured.factors.get(&step.label).unwrap_or(&1.0);
                }
            }
            None => expected.iter_mut().for_each(|seconds| *seconds /= self.share),
        }
        expected
    }

    /// The same by rates alone.
    pub fn step_seconds_by_rates(&self, plan: &Plan) -> Vec<f64> {
        threshold::step_seconds(plan, &self.tuning.parameters, self.threads)
    }

    /// From now on steps are known to take what was measured, if it was.
    pub fn set_steps(&mut self, measured: Option<StepTimes>) {
        self.measured = measured.map(Rc::new).or(self.measured.take());
    }

    /// Seconds a byte that an update reads or writes.
    pub fn per_byte(&self) -> f64 {
        self.measured
            .as_ref()
            .map_or(self.tuning.parameters.shared.per_byte() / 2.0 / self.share, |measured| measured.per_byte)
    }

    /// What a sum of so many bytes is expected to take; NaN with compression and between GPUs, of which nothing is
    /// known.
    pub fn seconds(&self, bytes: usize, shared: bool) -> f64 {
        let choice = self.selection.choose(bytes, shared);
        // What cuts between GPUs are made by is nothing to be told.
        let known = self.compress.is_none() && !choice.kind.is_between_gpus();
        if known { choice.seconds } else { f64::NAN }
    }

    /// What a transfer of the script is expected to take. Half of an allreduce is the reduce-scatter, half the
    /// allgather, unless its rounds elsewhere say it.
    pub fn transfer(&self, transfer: &Transfer, setting: Setting) -> f64 {
        let bytes = transfer.cuts.range().len();
        if let Some(machine) = self.machine()
            && let Some(course) = self.course(transfer, setting, machine)
        {
            return course.seconds(machine);
        }
        if let Some(course) = self.in_groups(transfer, setting.trades) {
            return course.seconds(&self.ranks);
        }
        let seconds = self.seconds(bytes, setting.shared);
        match transfer.kind {
            Kind::SumToOwners | Kind::FromOwners | Kind::Push | Kind::Pull => {
                self.star_seconds(bytes).unwrap_or(seconds / 2.0)
            }
            // To both sides at a time.
            Kind::Send { .. } | Kind::Receive { .. } => self.message_seconds(bytes),
            // Few bytes, to all stages and back.
            _ if transfer.axis == Axis::Job && self.split.is_none() => {
                let rounds = transfer.cuts.ranks().max(2).ilog2() + 1;
                f64::from(rounds) * self.message_seconds(bytes)
            }
            Kind::Mix { .. } => self.gossip_seconds(bytes).unwrap_or(seconds),
            _ => seconds,
        }
    }

    /// The rounds of a transfer that are passed on by ranks that compute: how many, and seconds of each. None where
    /// nothing is known of what they compute at a time, since their steps were not measured.
    pub fn relayed(&self, transfer: &Transfer, setting: Setting) -> Vec<(usize, f64)> {
        let machine = self.machine().filter(|_| self.is_measured_on_host());
        let course = machine.and_then(|machine| Some((self.course(transfer, setting, machine)?, machine)));
        course.map_or(Vec::new(), |(course, machine)| course.relayed(machine))
    }

    /// The rounds of what shares links with other transfers, in place of its seconds; none of anything else. A line
    /// stands for some others, or for itself alone: which ones, by the lowest rank of each.
    pub fn rounds(
        &self,
        transfer: &Transfer,
        line: &Line,
        setting: Setting,
        stands_for: &dyn Fn(usize) -> Vec<usize>,
    ) -> Vec<Rounds> {
        match (line, &self.stages) {
            (Line::Pair(_, [from, to], _), Some((all, _))) => {
                let (lower, bytes) = (from.min(to), transfer.cuts.range().len());
                let pair = |other: usize| [from - lower + other, to - lower + other];
                vec![all.messages(stands_for(*lower).into_iter().map(pair).collect(), bytes)]
            }
            (Line::Group(axis, first, members, _), None)
                if self.split.is_some() || !setting.trades.is_empty() =>
            {
                // Those with the same parts are all there.
                let groups = || match axis {
                    Axis::Data | Axis::Job if transfer.kind == Kind::Sum => vec![*first],
                    // Neighbours on the axis itself are groups.
                    Axis::Data => {
                        let others = stands_for(*first).into_iter();
                        others.filter(|other| other % members.len() == first % members.len()).collect()
                    }
                    _ => stands_for(*first),
                };
                self.rounds_in_groups(transfer, setting, groups)
            }
            _ => Vec::new(),
        }
    }

    /// The same of what groups do, some of which are under way at a time: by the first ranks of these.
    fn rounds_in_groups(
        &self,
        transfer: &Transfer,
        setting: Setting,
        groups: impl FnOnce() -> Vec<usize>,
    ) -> Vec<Rounds> {
        let machine = self.machine().filter(|machine| machine.nodes > 1);
        let course = machine.and_then(|machine| Some((self.course(transfer, setting, machine)?, machine)));
        match course {
            Some((course, machine)) => course.rounds(machine, &groups()),
            // Sums of split layers and of the others are under way at a time.
            None if transfer.kind == Kind::Sum && self.split.is_some() => {
                vec![Rounds::whole(self.transfer(transfer, setting))]
            }
            None => Vec::new(),
        }
    }

    /// Bytes a second of the slowest message of each of some loads that are under way at a time: between stages, or
    /// among ranks that have all of the network.
    pub fn rates(&self, loads: &[Load]) -> Vec<f64> {
        self.stages.as_ref().map_or(&self.ranks, |(all, _)| all).rates(loads)
    }

    /// Of a network in stages: which of those that compute a stage have the same part of all links as others, so that
    /// one stands for all of these. They are numbered by the first. More than `most` are not told apart.
    pub fn alike(&self, mesh: MeshShape, most: usize) -> Vec<usize> {
        let Some((all, _)) = &self.stages else { return vec![0; mesh.data] };
        let of = |data: usize| {
            let rank = |stage: usize| mesh.rank([data, stage, 0]);
            (0..mesh.pipeline)
                .map(|stage| [rank(stage), rank((stage + 1) % mesh.pipeline)])
                .flat_map(|[from, to]| [[from, to], [to, from]])
                .collect()
        };
        all.alike([mesh.data, mesh.pipeline, most], || (0..mesh.data).map(of).collect())
    }

    /// What sums gradients: for their owners alone where these are apart.
    pub fn sums(&self, apart: bool) -> Recipe {
        match self.star {
            Some(_) if apart => Recipe::Star(Operation::ReduceScatter, self.wire),
            _ => Recipe::Selected(if apart { Share::Own } else { Share::All }),
        }
    }

    /// What adds up the step's own numbers where sums of gradients do not come to all in every step, of which the last
    /// has so many bytes.
    pub fn numbers(&self, apart: bool, last: usize) -> Recipe {
        match self.star {
            // Of all stages.
            _ if self.stages.is_some() => Recipe::Sum(AllreduceKind::RECURSIVE_DOUBLING, Wire::F32),
            // In the order of ranks, as owners add.
            Some(_) => Recipe::Sum(AllreduceKind::RING, self.wire),
            // What is compressed lies where no other rank sees it.
            None if self.compress.is_some() => Recipe::Sum(AllreduceKind::RECURSIVE_DOUBLING, self.wire),
            // With the last bucket, if that comes to all.
            None => Recipe::SelectedFor(if apart { last } else { TAIL }),
        }
    }

    /// What brings new parameters from their owners.
    pub fn parameters(&self, in_common: bool) -> Recipe {
        match self.star {
            Some(_) => Recipe::Star(Operation::Allgather, Wire::F32),
            None if in_common => Recipe::BetweenNodes,
            None => Recipe::Collect(Route::Ring),
        }
    }

    /// What ranks of a machine go through for a transfer, by the recipe of what carries it; `None` where a library or a
    /// GPU does it, where gradients are compressed, and for what a server takes as it comes.
    pub fn course(&self, transfer: &Transfer, setting: Setting, machine: &Machine) -> Option<Course> {
        let cuts = in_elements(&transfer.cuts);
        if let Some(course) = self.in_groups(transfer, setting.trades) {
            return Some(course);
        }
        let carried =
            |recipe: Recipe| recipe.course(&self.selection, setting.shared, &cuts, self.wire, machine);
        match transfer.kind {
            // Of all stages, which are other ranks too.
            _ if transfer.axis == Axis::Job && self.split.is_none() => None,
            Kind::Gather => Some(Course::of(Steps::Gather, &cuts, Wire::F32)),
            Kind::Mix { distance } => carried(Recipe::Shift(distance)),
            _ if self.compress.is_some() => None,
            // Where sums go to their owners alone: of losses and hits.
            Kind::Sum if setting.apart => carried(self.numbers(true, setting.last)),
            Kind::Sum | Kind::SumToOwners => carried(self.sums(transfer.kind == Kind::SumToOwners)),
            Kind::FromOwners => carried(self.parameters(setting.in_common)),
            Kind::Push | Kind::Pull | Kind::Send { .. } | Kind::Receive { .. } => None,
            Kind::Trade { .. } | Kind::AllToAll => None,
        }
    }

    /// The same of what ranks of a group tell each other between two steps of the plan, and of sums among those that
    /// have the same parts of layers, by messages of their own.
    fn in_groups(&self, transfer: &Transfer, trades: &[Trading]) -> Option<Course> {
        let cuts = in_elements(&transfer.cuts);
        let neighbours = RankGroups::of_neighbours(cuts.ranks());
        match transfer.kind {
            Kind::Sum if transfer.axis == Axis::Data => {
                let MeshShape { data, tensor, .. } = self.split?;
                let alike = RankGroups { size: data, stride: tensor };
                Some(Course::in_groups(alike, Steps::Sum(Pattern::Ring), &cuts, self.wire))
            }
            Kind::Gather if transfer.area == Area::Of(Region::Arena) => {
                Some(Course::in_groups(neighbours, Steps::Gather, &cuts, Wire::F32))
            }
            Kind::AllToAll => {
                Some(Course::all_to_all(neighbours, transfer.cuts.range().len() / neighbours.size))
            }
            Kind::Trade { tag } => {
                let trading = trades.iter().find(|trading| trading.tag == tag)?;
                Some(Course::together(RankGroups::of_neighbours(trading.ranks), trading.messages.clone()))
            }
            _ => None,
        }
    }

    /// The same where few owners send so many bytes to all others, or get as many from each of them.
    fn star_seconds(&self, bytes: usize) -> Option<f64> {
        let Star { owners, others, link } = self.star?;
        Some(others as f64 * (link.latency() + bytes as f64 / owners as f64 * link.per_byte()))
    }

    /// From one stage to another.
    fn message_seconds(&self, bytes: usize) -> f64 {
        let [latency, per_byte] = self.between_stages();
        latency + bytes as f64 * per_byte
    }

    /// The same where every rank sends so many bytes to one, and gets as many.
    fn gossip_seconds(&self, bytes: usize) -> Option<f64> {
        self.gossip.map(|link| link.latency() + bytes as f64 * link.per_byte())
    }

    /// What each bucket's sum is expected to be, or what takes its place.
    pub fn choices(&self, plan: &Plan, shared: bool) -> Vec<Expected> {
        let of = |(bucket, bytes): (usize, &usize)| match self.compress {
            _ if plan.is_split(bucket) => self.of_split(*bytes),
            Some(_) => Expected { name: "compressed", seconds: f64::NAN },
            None => {
                let sum = || Expected {
                    name: self.selection.choose(*bytes, shared).kind.name(),
                    seconds: self.seconds(*bytes, shared),
                };
                let star = self.star_seconds(*bytes).map(|seconds| Expected { name: "star", seconds });
                let gossip = self.gossip_seconds(*bytes).map(|seconds| Expected { name: "gossip", seconds });
                star.or(gossip).unwrap_or_else(sum)
            }
        };
        plan.bucket_bytes().iter().enumerate().map(of).collect()
    }

    /// Of gradients of split layers, which ranks with the same parts add up.
    fn of_split(&self, bytes: usize) -> Expected {
        let Some(MeshShape { data, .. }) = self.split.filter(|mesh| mesh.data > 1) else {
            return Expected { name: "its own", seconds: 0.0 };
        };
        let (members, cuts) = (0..data, Cuts::even(&(0..bytes), data));
        let sum = Transfer { axis: Axis::Data, members, kind: Kind::Sum, area: Area::Sums, cuts };
        let course = self.in_groups(&sum, &[]);
        Expected { name: "ring", seconds: course.map_or(f64::NAN, |course| course.seconds(&self.ranks)) }
    }

    /// Where the figures come from, in words.
    pub fn source(&self) -> String {
        if self.measured.is_some() {
            return "of steps that were measured here".into();
        }
        let shared = match self.share < 1.0 {
            true => format!(", times {:.2} since ranks share cores here", self.share),
            false => String::new(),
        };
        match self.tuning.is_built_in() {
            true => "built in".into(),
            false => format!("measured, checksum {}{shared}", self.tuning.checksum().unwrap_or_default()),
        }
    }

    /// Whether figures were measured on this machine, and are not the built-in ones.
    pub fn is_measured(&self) -> bool {
        self.measured.is_some() || !self.tuning.is_built_in()
    }

    /// Why what was measured of links may not be so elsewhere, a line each.
    pub fn doubts(&self) -> String {
        let line = |doubt: &String| {
            format!("in doubt: {doubt}; by which of them a rank is held up is not predicted\n")
        };
        self.tuning.doubts.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::reference::Reference;
    use crate::graph::{Builder, Conv};
    use crate::plan::{Options, plan};

    /// As these figures say, on one thread a rank.
    fn averaging(kind: AllreduceKind, world: &Topology, tuning: Tuning) -> Averaging {
        let selection = Selection::new(kind, Wire::F32, &Nodes::of(world), &tuning).unwrap();
        let ranks = Machine::of(flat(tuning.parameters.between), world, tuning.parameters);
        let averages =
            Averages { selection, tuning, threads: 1, on_device: false, ranks, is_elsewhere: true };
        Averaging::of(world, &Config::on("digits"), averages)
    }

    #[test]
    fn a_rank_has_its_share_of_a_link_that_was_measured() {
        let rate = |kind, nodes, local, cpu: &str| {
            let (world, mut tuning) = (Topology::of_nodes(nodes, local), Tuning::built_in());
            (tuning.machine.cpu, tuning.parameters.between.gb_per_s) = (cpu.into(), 0.5);
            averaging(kind, &world, tuning).rate(&world)
        };
        let (auto, ring) = (AllreduceKind::Auto, AllreduceKind::RING);
        assert_eq!(
            [rate(auto, 2, 2, "measured"), rate(AllreduceKind::HIERARCHICAL, 3, 2, "measured")],
            [0.25e9; 2]
        );
        assert_eq!([rate(auto, 3, 1, "measured"), rate(ring, 3, 1, "measured")], [0.5e9; 2]);
        let unknown = [rate(auto, 1, 2, "measured"), rate(auto, 2, 2, ""), rate(ring, 2, 2, "measured")];
        assert_eq!(unknown, [f64::INFINITY; 3]);
    }

    /// On Alps the four links of a node are wider than that of its switch: by the nodes' own links alone halving and
    /// doubling would be the fastest for long ranges. What is chosen may take longer by what makes a choice clear.
    #[test]
    fn what_is_chosen_for_a_network_is_the_fastest_on_its_links() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/jobs/networks/alps.toml");
        let network = Interconnect::read(std::path::Path::new(path)).unwrap();
        let there = Topology::of_nodes(8, 4);
        let here = averaging(AllreduceKind::Auto, &Topology::of_nodes(1, 4), Tuning::built_in());
        let moved = here.elsewhere(&there, &Config::on("digits"), Some(&network)).unwrap();
        for bytes in [1 << 13, 1 << 18, 36 << 20] {
            let cuts = Cuts::even(&(0..bytes / 4), 32);
            let seconds = |kind| {
                let course = Course::sum(kind, Share::All, &cuts, Wire::F32, &moved.ranks);
                course.map_or(f64::INFINITY, |course| course.seconds(&moved.ranks))
            };
            let chosen = moved.selection.choose(bytes, true).kind;
            let all = CANDIDATES.iter().filter(|kind| **kind != AllreduceKind::Shm);
            let least = all.map(|&kind| seconds(kind)).fold(f64::INFINITY, f64::min);
            assert!(seconds(chosen) <= least / 0.9, "{bytes}: {chosen:?} {} {least}", seconds(chosen));
        }
        assert_eq!(moved.selection.choose(36 << 20, true).kind, AllreduceKind::HIERARCHICAL);
        let by_nodes = Selection::new(AllreduceKind::Auto, Wire::F32, &Nodes::of(&there), &moved.tuning);
        assert_eq!(by_nodes.unwrap().choose(36 << 20, true).kind, AllreduceKind::HALVING_DOUBLING);
    }

    /// A run does not know what steps will be measured to take. What is predicted of it has its buckets all the same:
    /// here by rates small ones, since sums are hidden but for the last, where for steps that take no time any will do.
    #[test]
    fn buckets_are_those_of_a_run_also_where_steps_were_measured() {
        let model = crate::model::find("resnet18").unwrap();
        let graph = model.build(1, model.image, model.classes).unwrap().simplify().differentiate();
        let mut plan = plan(graph, &Reference, &Options::whole(0)).unwrap();
        let (mut tuning, world) = (Tuning::built_in(), Topology::of_nodes(2, 1));
        let seconds = threshold::step_seconds(&plan, &tuning.parameters, 1);
        let bytes = plan.bucket_bytes().iter().sum::<usize>() as f64;
        let gb_per_s = 1e-9 * bytes / (0.3 * seconds.iter().sum::<f64>());
        tuning.parameters.between = Level { latency_us: 1.0, gb_per_s };
        let (config, mut measured) = (Config::on("digits"), averaging(AllreduceKind::RING, &world, tuning));
        measured.cut(&mut plan, &config).unwrap();
        let buckets = plan.bucket_bytes();
        assert!(buckets.len() > 8, "{buckets:?}");
        let none = plan.steps.iter().zip(seconds).map(|(step, seconds)| (step, [seconds, 1e-9 * seconds]));
        measured.set_steps(Some(StepTimes::new(none, 1e-12, true)));
        let [of_measured, of_rates] = [measured.step_seconds(&plan), measured.step_seconds_by_rates(&plan)];
        assert!(of_measured.iter().sum::<f64>() < 1e-6 * of_rates.iter().sum::<f64>());
        measured.cut(&mut plan, &config).unwrap();
        assert_eq!(plan.bucket_bytes(), buckets);
    }

    /// Of more images, or fewer rows of them, what was measured takes longer or shorter, as it does by rates; labels
    /// nobody measured are told by these alone.
    #[test]
    fn measured_steps_grow_with_their_work() {
        let planned = |batch: usize, parts: usize| {
            let (mut net, x) = Builder::new("one", batch, [1, 8, 8]);
            let x = net.conv("conv", x, 3, Conv::square(1)).unwrap();
            let x = net.linear("fc", x, 5);
            let graph = net.finish(x).simplify().split_rows(parts, 0).differentiate().trade_rows();
            let options = Options::whole(0);
            plan(graph, &Reference, &options).unwrap()
        };
        let here = planned(2, 1);
        let label =
            |layer: &str| here.steps.iter().find(|step| step.label.starts_with(layer)).unwrap().label.clone();
        let [conv, linear] = ["conv ", "fc "].map(label);
        // Seconds of steps that took half a second with two images, with figures of a machine.
        let of = |plan: &Plan, [gflops, bytes]: [f64; 2], label: &str| {
            let built_in = Tuning::built_in().parameters;
            let shared = Level { gb_per_s: bytes, ..built_in.shared };
            let parameters = Parameters { gflops_per_thread: gflops, shared, ..built_in };
            let by_rates = |plan: &Plan| threshold::step_seconds(plan, &parameters, 1);
            let steps = here.steps.iter().zip(by_rates(&here).into_iter().map(|seconds| [seconds, 0.5]));
            let measured = StepTimes::new(steps, 1.0, true);
            let index = plan.steps.iter().position(|step| step.label == label).expect("the step");
            by_rates(plan)[index] * measured.factors[label]
        };
        let (products, bytes) = ([1e-3, 1e3], [1e6, 1.0]);
        let close = |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one}, not {other}");
        close(of(&here, products, &conv), 0.5);
        close(of(&planned(6, 1), products, &conv), 1.5);
        let cut = planned(2, 2);
        close(of(&cut, products, &conv), 0.25);
        close(of(&cut, products, &linear), 0.5);
        // Where memory is slow weights count: the linear layer reads 192 numbers and writes 5 for each image, beside
        // 965 of its own.
        close(of(&planned(6, 1), bytes, &linear), 0.5 * (6.0 * 197.0 + 965.0) / (2.0 * 197.0 + 965.0));
        assert!(cut.steps.iter().any(|step| !here.steps.iter().any(|known| known.label == step.label)));
    }
}
