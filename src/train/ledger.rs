//! What a rank has in memory at its peak: what `memory` and its neighbours allocate, as a ledger.

use super::groups::Layout;
use super::meeting;
use super::memory::keeps as keeps_sums;
use super::plans::Planning;
use crate::comm::Topology;
use crate::config::{Config, Session};
use crate::data::AHEAD;
use crate::fusion::compress;
use crate::host;
use crate::plan::{Ledger, MemoryKind, Parameter, Plan, Sizes};
use crate::reducer::{
    Sharing, beside_parameters, codes_on_device, expected_owners, largest_share, share_of, shares_gradients,
};
use crate::strategy::Owners;

/// Who has what of the parameters, and what follows of the bytes of the rank that has most.
struct Held {
    sharing: Sharing,
    owners: Owners,
    /// Bytes of parameters that the rank updates.
    share: usize,
    checkpoint: usize,
}

impl Planning<'_> {
    /// The ledger of a plan, and of all `sizes` that take turns with its. The process is looked at now, when it has
    /// loaded its libraries and data and compiled its kernels, and none of the memory that the plan speaks of.
    pub fn ledger(&self, plan: &Plan, sizes: &Sizes) -> Ledger {
        let held = self.held(plan);
        let mut ledger = Ledger::of_steps(!self.device.is_host(), held.sharing.ranks, sizes);
        self.gradients(&mut ledger, plan, sizes, &held);
        self.parameters(&mut ledger, plan, &held);
        self.batches(&mut ledger, plan, sizes);
        self.messages(&mut ledger, plan, &held);
        ledger.on_host(MemoryKind::Checkpoint, held.checkpoint);
        ledger.set_program(host::rss().unwrap_or(0));
        ledger
    }

    /// Bytes of where gradients are added up over ranks. In windows these are no longer than all gradients.
    fn summed(&self, plan: &Plan) -> usize {
        plan.summed_bytes(self.config.accumulation)
    }

    /// Copies of state and of the average.
    fn copies(&self) -> usize {
        self.config.optimizer.copies()
    }

    fn held(&self, plan: &Plan) -> Held {
        let Planning { layout: Layout { data: world, .. }, config, device, .. } = *self;
        let rule = config.optimizer.rule;
        let [of_gradients, untouched] = match shares_gradients(config, self.averaging, plan) {
            true => [world.local_size() * self.summed(plan), plan.sizes.activations],
            false => [0, plan.sizes.activations + gradient_copies(config) * plan.sizes.gradients],
        };
        let beside = beside_parameters(world, config, true);
        let in_common = (1 + beside) * plan.sizes.parameters + of_gradients;
        let sharing = Sharing::expected(world, device, config, in_common);
        let owners = expected_owners(world, config.strategy, sharing.ranks > 1);
        let share = largest_share(world, plan, &rule, owners);
        let checkpoint = checkpoint_bytes(world, config, plan, untouched);
        let held = Held { sharing, owners, share, checkpoint };
        // Only the first rank copies what goes to a checkpoint, and where owners are apart it may own less than
        // another: the one that needs more counts.
        let copied_by_first =
            matches!(config.session, Session { checkpoint: Some(_), commit: None, resume: None, .. });
        if !copied_by_first || !owners.are_apart() {
            return held;
        }
        let first = share_of(world, plan, &rule, owners, 0);
        let more = match self.served(plan, &held) {
            Some(more) => more,
            None => {
                let beside = usize::from(keeps_sums(plan, config)) + usize::from(plan.gathers());
                (share - first) * (self.copies() + beside)
            }
        };
        match more > checkpoint {
            true => Held { checkpoint: 0, ..held },
            false => Held { share: first, ..held },
        }
    }

    /// Where some ranks serve: bytes of state by which one has more than another. It has none of what steps need.
    fn served(&self, plan: &Plan, held: &Held) -> Option<usize> {
        let sizes = &plan.sizes;
        let steps = sizes.activations + sizes.touched + sizes.inputs;
        let serves = held.owners.serves(self.layout.data.size() - 1);
        serves.then(|| (self.copies() * held.share).saturating_sub(steps))
    }

    fn gradients(&self, ledger: &mut Ledger, plan: &Plan, sizes: &Sizes, held: &Held) {
        match (&plan.windows, self.config.accumulation) {
            (None, _) => {
                ledger.on_device(MemoryKind::Gradients, gradient_copies(self.config) * sizes.gradients)
            }
            // What takes the place of gradients that are whole: sums that stay, of what the rank owns or of
            // micro-steps.
            (Some(_), 1) if keeps_sums(plan, self.config) => {
                ledger.on_device(MemoryKind::Gradients, held.share);
            }
            (Some(_), 1) => {}
            (Some(_), _) => ledger.on_device(MemoryKind::Gradients, self.summed(plan)),
        }
        if plan.windows.is_some() {
            ledger.on_device(MemoryKind::Windows, sizes.gradients);
        }
        let narrow = plan.steps.iter().map(|step| step.kernel.kept).sum();
        ledger.on_device(MemoryKind::Gradients, narrow);
    }

    /// Parameters, and what lies beside each.
    fn parameters(&self, ledger: &mut Ledger, plan: &Plan, held: &Held) {
        let Planning { layout: Layout { data: world, .. }, config, evaluate, .. } = *self;
        let all = plan.sizes.parameters;
        let parameters = match plan.gathers() {
            true => held.share + if evaluate { all } else { 0 },
            false => all,
        };
        ledger.on_device(MemoryKind::Parameters, parameters);
        // Of parameters that it shares the rank brings its part.
        ledger.of_others(parameters - parameters / held.sharing.ranks);
        ledger.on_device(MemoryKind::Parameters, halves(config, world, plan));
        let averages = usize::from(config.optimizer.ema.is_some());
        let kept = keeps(config) && held.sharing.ranks > 1;
        let optimizer = match self.served(plan, held) {
            // A server takes more than another rank where this is more than what steps need.
            Some(more) => more,
            None if held.owners.are_apart() => self.copies() * held.share,
            // Each rank touches its share; of averages also what is frozen. An evaluation reads all averages, and the
            // rank that writes checkpoints reads what others have touched.
            None => {
                let states = if kept { all } else { held.share };
                let averaged = match kept || evaluate {
                    true => all,
                    false => held.share + held.sharing.largest_frozen(plan),
                };
                config.optimizer.rule.states() * states + averages * averaged
            }
        };
        let anchors = meeting::memory(config.relaxed(world.size()), plan, ledger.own_memory);
        ledger.on_device(MemoryKind::Optimizer, optimizer + anchors);
    }

    /// Batches: those that steps read, and those that are read or sent ahead.
    fn batches(&self, ledger: &mut Ledger, plan: &Plan, sizes: &Sizes) {
        let Planning { config, evaluate, .. } = *self;
        // While one set is read ahead, batches of the other wait.
        let threads = config.input.loader_threads.unwrap_or(0);
        let read_ahead =
            if threads > 0 && config.data.is_some() { AHEAD * (1 + usize::from(evaluate)) } else { 0 };
        // `DevicePrefetch`: on the device, page-locked, and as the loader gives it.
        let sent_ahead = ledger.own_memory && config.data.is_some();
        let [of_device, of_host] = if sent_ahead { [2, 2] } else { [1, 0] };
        let of_host = of_host + (if evaluate { 2 } else { 1 }) + read_ahead;
        ledger.on_device(MemoryKind::Input, of_device * sizes.inputs);
        ledger.on_host(MemoryKind::Input, of_host * sizes.inputs);
        // Batches have room for whole images, of which rows are kept; of arrays nothing else is read.
        if plan.graph.rows.is_some() && !evaluate && !config.fields.are_given() {
            let read = 4 * config.batch * plan.graph.image().elements();
            ledger.on_host(MemoryKind::Allreduce, read.saturating_sub(plan.sizes.inputs) * (1 + read_ahead));
        }
    }

    /// What messages come in.
    fn messages(&self, ledger: &mut Ledger, plan: &Plan, held: &Held) {
        let Planning { layout: Layout { data: world, .. }, config, averaging, device, .. } = *self;
        let (summed, own_memory) = (self.summed(plan), ledger.own_memory);
        let relaxed = config.relaxed(world.size());
        match config.compress {
            None => {
                let [mapped, messages] = averaging.selection.memory(world, &plan.bucket_bytes());
                ledger.on_host(MemoryKind::Allreduce, messages);
                // What ranks have parts of, no other one adds up in place.
                let mapped = if mapped > 0 { (world.local_size() - 1) * (summed - plan.split) } else { 0 };
                ledger.on_host(MemoryKind::Allreduce, mapped);
                ledger.of_others(mapped);
            }
            Some(scheme) => {
                let with_tail = !config.strategy.is_relaxed();
                let how = compress::How { scheme, with_tail, plan, device, ranks: world.size() };
                let bytes = compress::memory(&how, &averaging.selection, world);
                ledger.on_host(MemoryKind::Compression, bytes.mapped + bytes.own);
                ledger.on_device(MemoryKind::Compression, bytes.on_device);
            }
        }
        // Gradients go to the host for the others to see.
        if own_memory && !averaging.on_device && !codes_on_device(config, world, device) {
            ledger.on_host(MemoryKind::Allreduce, summed);
        }
        // The mean is taken when a checkpoint has been copied, in memory that this needed.
        let copied = if keeps(config) { largest_parameter(plan) } else { 0 };
        let mean = meeting::mean_memory(relaxed, plan).saturating_sub(copied);
        ledger.on_host(MemoryKind::Allreduce, mean);
        // From the host's memory parameters of a device go to other ranks.
        let passing = match relaxed {
            _ if !own_memory => 0,
            // They are gathered where sums are, or where there is no place for these.
            _ if plan.gathers() && config.accumulation > 1 => plan.sizes.gradients,
            _ if plan.gathers() => 0,
            // What comes lies beside.
            Some(relaxed) if relaxed.sends_parameters() => 2 * plan.sizes.parameters,
            _ if held.owners.are_apart() => plan.sizes.parameters,
            _ => 0,
        };
        ledger.on_host(MemoryKind::Allreduce, passing);
    }
}

/// Copies of the gradients: a micro-step's own, and their sum or the levels of their tree.
pub fn gradient_copies(config: &Config) -> usize {
    match (config.accumulation, config.shards) {
        (1, _) => 1,
        (micro_steps, Some(_)) => 1 + micro_steps.ilog2() as usize,
        _ => 2,
    }
}

/// Bytes of a device's copies in halves, which are those of all memory that the parameters are allocated in.
fn halves(config: &Config, world: &Topology, plan: &Plan) -> usize {
    let reads_some = plan.steps.iter().any(|step| step.kernel.halved.is_some());
    let pairs = config.relaxed(world.size()).is_some_and(|relaxed| relaxed.sends_parameters());
    match reads_some {
        true if plan.gathers() => plan.sizes.gradients / 2,
        true => plan.sizes.parameters / 2 * if pairs { 2 } else { 1 },
        false => 0,
    }
}

/// Bytes of the copy from which checkpoints are written. A run that goes on has as much of what it goes on from, until
/// it is restored: before it touches what its steps alone need, gradients that no other rank sees and activations.
fn checkpoint_bytes(world: &Topology, config: &Config, plan: &Plan, untouched: usize) -> usize {
    let copies = 1 + config.optimizer.copies();
    // What is not the same on all ranks comes to rank 0 from a copy of a parameter.
    let passing = largest_parameter(plan);
    let copied = config.strategy.is_relaxed() || expected_owners(world, config.strategy, true).are_apart();
    let passing = if copied { passing } else { 0 };
    let residuals = if config.compress.is_some() { plan.sizes.gradients } else { 0 };
    let relaxed = config.relaxed(world.size());
    let copies = match relaxed {
        Some(relaxed) => copies * world.size() + meeting::kept_copies(relaxed),
        None => copies,
    };
    // Files have whole layers.
    let whole = |p: &Parameter| p.layout.bytes() * p.shard.map_or(0, |shard| shard.of - 1);
    let parts: usize = plan.parameters.iter().map(whole).sum();
    // A rank's own come to the first rank from a copy.
    let bytes = copies * (plan.sizes.parameters + parts)
        + world.size() * (plan.sizes.statistics + residuals)
        + residuals
        + passing;
    match &config.session {
        // What is committed is a second copy, made after the first in the same memory for what passes.
        Session { checkpoint: Some(_), commit: Some(_), .. } => 2 * bytes - residuals - passing,
        Session { checkpoint: Some(_), .. } => bytes,
        Session { resume: Some(_), .. } => bytes.saturating_sub(untouched),
        _ => 0,
    }
}

/// Bytes of a checkpoint that the first rank has of other stages than its own.
pub fn of_other_stages(layout: Layout, config: &Config, others: &[Plan]) -> usize {
    let of = |plan: &Plan| checkpoint_bytes(layout.data, config, plan, 0);
    if layout.stage == 0 { others.iter().map(of).sum() } else { 0 }
}

/// Bytes of the largest parameter.
fn largest_parameter(plan: &Plan) -> usize {
    plan.parameters.iter().map(|parameter| parameter.layout.bytes()).max().unwrap_or(0)
}

/// Whether the state of the run is copied to a checkpoint, or from one.
fn keeps(config: &Config) -> bool {
    config.session.checkpoint.is_some() || config.session.resume.is_some()
}
