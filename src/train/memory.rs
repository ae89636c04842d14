//! The memory of a run: one region of each kind, and the first values of the parameters.

use std::ops::Range;

use super::assemble::Assembly;
use super::meeting::Anchor;
use super::owned::Owned;
use super::parts;
use super::plans::Plans;
use super::weights::Start;
use crate::comm::World;
use crate::config::{Config, Precision};
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, Kernel, Memory, Rule, Scalars, Step};
use crate::error::{Error, Result};
use crate::graph::Init;
use crate::plan::{Parameter, Plan, Regions, Sizes};
use crate::random::{Purpose, key, normals, philox, uniform};
use crate::reducer::{
    Gradients, ParameterMemory, Places, Sharing, Travelling, expected_owners, seats, windows_apart,
};
use crate::strategy::Owners;

/// Bytes of a parameter that are on their way into its layout, or out of it, at a time: no plan counts them.
const PIECE: usize = 8 << 20;
/// Rows of a piece are a multiple of this, so that pieces are whole blocks of layouts (of 16, 32, 48 or 64 rows) and
/// begin with a block of the generator.
const ROWS: usize = 192;

/// Every region of a rank.
pub struct Memories {
    /// What the plans are bound to.
    pub regions: Regions,
    /// Optimizer state: each as large as the parameters, or where owners are apart as what this rank owns.
    pub state: Vec<Memory>,
    /// Who updates what, by which rule.
    pub owners: Owners,
    pub rule: Rule,
    /// Whose parameters these are; and state and average, unless owners are apart.
    pub sharing: Sharing,
    /// What of each bucket's parameters this rank updates, in bytes.
    pub parts: Vec<Range<usize>>,
    /// The moving average of the parameters, where one is asked for: as large as a state.
    pub average: Option<Memory>,
    /// Where ranks have parameters of their own: what they have alike.
    pub anchor: Option<Anchor>,
    /// Where parameters go between ranks: what does.
    pub travelling: Option<Travelling>,
    /// Where gradients are averaged.
    pub gradients: Gradients,
    /// For each bucket where this rank finds the sum of what it owns.
    pub sums: Vec<Memory>,
    /// In windows: where sums are copied from, if they are to outlive these.
    pub kept: Vec<Memory>,
    /// Where this rank holds the parameters alone that it owns: where others are gathered, and of an evaluation all.
    pub windows: Option<Travelling>,
    whole: Option<Memory>,
    /// Where layers are split, in the group of the job's first rank: it.
    pub beside: Option<World>,
}

impl Memories {
    /// Allocates everything; gradients where the ranks of a node share them, if that serves and there is room.
    /// Collective; `initialise` may be called when all ranks are through.
    pub fn new(of: &Assembly) -> Result<Memories> {
        let Assembly { world, device, plans, config, averaging, .. } = *of;
        let rule = &config.optimizer.rule;
        let (plan, sizes, evaluates) = (&plans.training, &plans.sizes, plans.evaluation.is_some());
        let summed = plan.summed_bytes(config.accumulation);
        let gradients = Gradients::new(world, device, plan, summed, config, averaging)?;
        let gathers = plan.gathers();
        let (windows, written) = windows(of, &gradients)?;
        let copies = config.optimizer.copies();
        let seat = seats(world)[world.rank()];
        let owned = |owners| plan.owned(owners, rule, seat, world.rank());
        let held = gathers.then(|| owned(expected_owners(world, config.strategy, false)));
        let held = held.map(|parts| parts.iter().map(ExactSizeIterator::len).sum());
        let common = ParameterMemory::new(world, device, sizes, config, copies, held)?;
        let owners = common.owners;
        let parts = owned(owners);
        common.sharing.clear(device, &parts, &common.parameters)?;
        let own: usize = parts.iter().map(ExactSizeIterator::len).sum();
        let mut state = match common.copies {
            Some(copies) => copies,
            None => (0..copies).map(|_| device.allocate(own)).collect::<Result<_>>()?,
        };
        let average = config.optimizer.ema.and_then(|_| state.pop());
        // Who serves has no graph to run.
        let sizes = match owners.serves(world.rank()) {
            true => &Sizes { activations: 0, workspace: 0, inputs: 0, metrics: 0, ..*sizes },
            false => sizes,
        };
        let relaxed = config.relaxed(world.size());
        let anchor = relaxed.map(|relaxed| Anchor::new(device, relaxed, sizes.parameters, common.received));
        let anchor = anchor.transpose()?;
        let regions = Regions::new(sizes, common.parameters, written, |bytes| device.allocate(bytes))?;
        let (sharing, travelling) = (common.sharing, common.travelling);
        let [sums, kept] = sums(of, &parts, &gradients.averaged)?;
        let whole = (gathers && evaluates).then(|| device.allocate(sizes.parameters)).transpose()?;
        Ok(Memories {
            regions,
            state,
            owners,
            rule: *rule,
            sharing,
            parts,
            average,
            anchor,
            travelling,
            gradients,
            sums,
            kept,
            windows,
            whole,
            beside: None,
        })
    }

    /// Whether this rank has the parameters alone that it owns.
    pub fn holds_own(&self) -> bool {
        self.windows.is_some()
    }

    /// What this rank owns of a bucket's parameters.
    pub fn of_parameters(&self, bucket: usize) -> Memory {
        let (parameters, part) = (&self.regions.parameters, &self.parts[bucket]);
        match self.holds_own() {
            true => self.of_part(parameters, bucket),
            false => parameters.slice(part.start, part.len()),
        }
    }

    /// What this rank has of the parameters, by name: all of each, or what it owns.
    pub fn held(&self, plan: &Plan) -> Vec<(String, Memory)> {
        if !self.holds_own() {
            let whole = |p: &Parameter| (p.name.clone(), p.of(&self.regions.parameters));
            return plan.parameters.iter().map(whole).collect();
        }
        let mut held = Vec::new();
        for (bucket, part) in self.parts.iter().enumerate() {
            let memory = self.of_parameters(bucket);
            for parameter in &plan.parameters {
                let start = part.start.max(parameter.offset);
                let end = part.end.min(parameter.offset + parameter.layout.bytes());
                if start < end {
                    held.push((parameter.name.clone(), memory.slice(start - part.start, end - start)));
                }
            }
        }
        held
    }

    /// Memory for all of the parameters, where an evaluation has them gathered.
    pub fn whole(&self) -> Option<&Memory> {
        self.whole.as_ref()
    }

    /// Memory for a parameter by itself: between two steps windows are free.
    pub fn alone(&self, device: &dyn Device, parameter: &Parameter) -> Result<(Parameter, Memory)> {
        let bytes = parameter.layout.bytes();
        let memory = match &self.windows {
            Some(windows) if windows.on_device.bytes() >= bytes => windows.on_device.slice(0, bytes),
            _ => device.allocate(bytes)?,
        };
        Ok((Parameter { offset: 0, ..parameter.clone() }, memory))
    }

    /// A bucket's part of a state or of the average.
    pub fn of_part(&self, region: &Memory, bucket: usize) -> Memory {
        let part = &self.parts[bucket];
        let start = match self.owners.are_apart() {
            true => self.parts[..bucket].iter().map(ExactSizeIterator::len).sum(),
            false => part.start,
        };
        region.slice(start, part.len())
    }

    /// What transfers of the script move.
    pub fn places(&self) -> Places<'_> {
        Places {
            owners: self.owners,
            in_common: self.sharing.ranks > 1,
            arena: &self.regions.arena,
            gradients: &self.gradients,
            travelling: self.travelling.as_ref(),
            windows: self.windows.as_ref(),
        }
    }

    /// What the evaluation plan is bound to: the averaged parameters where there are such.
    /// Where owners are apart these take the parameters' place for that time (`Trainer::exchange_averages`).
    pub fn evaluated(&self) -> Regions {
        let average = self.average.as_ref().filter(|_| !self.owners.are_apart());
        let parameters = average.or(self.whole.as_ref()).unwrap_or(&self.regions.parameters).clone();
        Regions { parameters, ..self.regions.clone() }
    }

    /// Writes the first value of every parameter and statistic, and zeros to the optimizer's state. A first value is
    /// that of a file, where there is one that has it, else a function of the seed and the parameter's place in the
    /// model, so that all ranks start alike without a message, on any device and with any number of threads. Ranks that
    /// share parameters write some each: none may be read before all ranks are through.
    pub fn initialise(&self, of: &Assembly, start: Option<&Start>, threads: usize) -> Result<()> {
        let (world, device, plan, seed) = (of.world, of.device, &of.plans.training, of.config.seed);
        let given = |name: &str| start.map_or(Ok(None), |start| start.values(name));
        let Sharing { rank, ranks } = self.sharing;
        for parameter in plan.parameters.iter().skip(rank).step_by(ranks) {
            let tensor = plan.graph.tensors.iter().find(|tensor| tensor.name == parameter.name);
            let tensor = tensor.ok_or_else(|| Error::internal(format!("no tensor {}", parameter.name)))?;
            let key = key(seed, Purpose::Initialise, tensor.number);
            let values = given(&parameter.name)?;
            // No update will take a frozen one over into the average.
            let average = self.average.as_ref().filter(|_| parameter.frozen && !self.owners.are_apart());
            let anchor =
                self.anchor.as_ref().filter(|anchor| anchor.is_kept()).map(|anchor| &anchor.parameters);
            let of_whole = |range: Range<usize>, piece: &mut [f32]| match &values {
                Some(values) => piece.copy_from_slice(&values[range]),
                None => first_values_from(parameter.init, key, range.start, piece, threads),
            };
            let fill =
                |range: Range<usize>, piece: &mut [f32]| parts::fill(parameter, range, piece, of_whole);
            if self.holds_own() {
                let owned = Owned { world, plan, memories: self, device };
                owned.fill(parameter, &self.regions.parameters, fill)?;
                continue;
            }
            for region in [&self.regions.parameters].into_iter().chain(average).chain(anchor) {
                self.write(device, parameter, region, fill)?;
            }
        }
        // Now that no values of a file are held beside it: state then adds nothing to the peak.
        if !self.owners.are_apart() {
            let mut others = self.state.iter().chain(&self.average);
            others.try_for_each(|memory| self.sharing.clear(device, &self.parts, memory))?;
        }
        for statistic in &plan.statistics {
            let mut values = vec![0f32; statistic.spec.shape.elements()];
            match given(&statistic.name)? {
                Some(given) => values = given,
                None => first_values(statistic.init, key(seed, Purpose::Initialise, 0), 0, &mut values, 1),
            }
            device.upload(bytes_of(&values), &statistic.of(&self.regions.statistics))?;
        }
        Ok(())
    }

    /// Writes a parameter, or what lies at its place in another region. `fill` is asked for the numbers of a range in
    /// plain order, one range after the other.
    pub fn write(
        &self,
        device: &dyn Device,
        parameter: &Parameter,
        region: &Memory,
        mut fill: impl FnMut(Range<usize>, &mut [f32]),
    ) -> Result<()> {
        let mut values = Vec::new();
        self.each_piece(device, parameter, region, true, |range, memory, reorder| {
            values.resize(range.len(), 0.0);
            fill(range, &mut values);
            device.upload(bytes_of(&values), memory)?;
            reorder.map_or(Ok(()), |step| step.run(&Scalars::default()))
        })
    }

    /// A parameter, or what lies at its place in another region (its moving average), in plain order.
    pub fn read(&self, device: &dyn Device, parameter: &Parameter, region: &Memory) -> Result<Vec<f32>> {
        let mut values = vec![0f32; parameter.spec.shape.elements()];
        self.read_into(device, parameter, region, &mut values)?;
        Ok(values)
    }

    /// The same into memory that is there.
    pub fn read_into(
        &self,
        device: &dyn Device,
        parameter: &Parameter,
        region: &Memory,
        values: &mut [f32],
    ) -> Result<()> {
        self.each_piece(device, parameter, region, false, |range, memory, reorder| {
            reorder.map_or(Ok(()), |step| step.run(&Scalars::default()))?;
            device.download(memory, bytes_of_mut(&mut values[range]))
        })
    }

    /// Goes through a parameter in pieces of whole rows. Each is given as a range of plain order, memory that is in
    /// plain order, and, where the parameter is not, the step that copies between the two: from that memory `into` the
    /// parameter, or out of it.
    fn each_piece(
        &self,
        device: &dyn Device,
        parameter: &Parameter,
        region: &Memory,
        into: bool,
        mut piece: impl FnMut(Range<usize>, &Memory, Option<&mut dyn Step>) -> Result<()>,
    ) -> Result<()> {
        let (spec, layout, at) = (&parameter.spec, &parameter.layout, parameter.of(region));
        let is_plain = device.plain(spec) == *layout;
        let rows = spec.shape.0.first().map_or(1, |&rows| rows.max(1));
        let width = spec.shape.elements() / rows;
        let kernel = |rows: &Range<usize>| device.reorder_rows(spec, layout, rows, into);
        let mut most = (PIECE / (4 * width.max(1))).max(1).next_multiple_of(ROWS).min(rows);
        // The second piece tells whether one may begin in the middle: some blocks have 512 rows.
        let second = most..rows.min(2 * most);
        if most < rows && !is_plain && (kernel(&(0..most))?.is_none() || kernel(&second)?.is_none()) {
            most = rows;
        }
        let plain = if is_plain { at.clone() } else { self.passing(device, 4 * most * width)? };
        for start in (0..rows).step_by(most) {
            let some = start..rows.min(start + most);
            let range = some.start * width..some.end * width;
            if is_plain {
                piece(range.clone(), &at.slice(4 * range.start, 4 * range.len()), None)?;
                continue;
            }
            let kernel = match some.len() == rows {
                true => whole(device, parameter, into)?,
                false => kernel(&some)?.ok_or_else(|| Error::internal(format!("no rows of {layout:?}")))?,
            };
            let workspace = device.allocate(kernel.workspace)?;
            let plain = plain.slice(0, 4 * range.len());
            let [from, to] = if into { [plain.clone(), at.clone()] } else { [at.clone(), plain.clone()] };
            piece(range, &plain, Some(&mut *kernel.bind(&[from], &[to], &workspace)?))?;
            device.synchronize()?;
        }
        Ok(())
    }

    /// Memory for the moment: between two steps nothing is kept in the arena.
    fn passing(&self, device: &dyn Device, bytes: usize) -> Result<Memory> {
        match self.regions.arena.bytes() >= bytes {
            true => Ok(self.regions.arena.slice(0, bytes)),
            false => device.allocate(bytes),
        }
    }
}

/// For each bucket where this rank finds the sum of what it owns, and where that comes from, if it is kept beside the
/// windows.
fn sums(of: &Assembly, parts: &[Range<usize>], averaged: &Memory) -> Result<[Vec<Memory>; 2]> {
    let Assembly { device, config, plans: Plans { training: plan, .. }, .. } = *of;
    let come = |(bucket, part): (usize, &Range<usize>)| {
        let start =
            plan.summed_at(bucket, config.accumulation) + part.start - plan.buckets[bucket].bytes.start;
        averaged.slice(start, part.len())
    };
    let come: Vec<Memory> = parts.iter().enumerate().map(come).collect();
    if !keeps(plan, config) {
        return Ok([come, Vec::new()]);
    }
    let shards = device.allocate(parts.iter().map(ExactSizeIterator::len).sum())?;
    let mut end = 0;
    let stay = |part: &Range<usize>| {
        end += part.len();
        shards.slice(end - part.len(), part.len())
    };
    Ok([parts.iter().map(stay).collect(), come])
}

/// Whether the sums of what a rank owns are kept beside the windows in which they come: until all are there.
pub fn keeps(plan: &Plan, config: &Config) -> bool {
    let late = config.optimizer.clip_norm.is_some() || config.precision == Precision::F16;
    plan.windows.is_some() && config.accumulation == 1 && late
}

/// Copies all of a parameter from plain order `into` its layout, or out of it.
fn whole(device: &dyn Device, parameter: &Parameter, into: bool) -> Result<Kernel> {
    let (plain, layout) = (&device.plain(&parameter.spec), &parameter.layout);
    let [from, to] = if into { [plain, layout] } else { [layout, plain] };
    device.reorder(&parameter.spec, from, to)
}

/// The first values of a parameter from element `first` on. Each block of the generator gives four elements, whoever
/// computes it; `first` is at the beginning of one.
fn first_values(init: Init, key: [u32; 2], first: usize, values: &mut [f32], threads: usize) {
    debug_assert!(first.is_multiple_of(4));
    let four = |block: usize| {
        let words = philox(key, [block as u32, (block as u64 >> 32) as u32, 0, 0]);
        match init {
            Init::Zero => [0.0; 4],
            Init::One => [1.0; 4],
            Init::Constant { value } => [value; 4],
            Init::Normal { std } => normals(words).map(|number| number * std),
            Init::Uniform { bound } => words.map(|word| (2.0 * uniform(word) - 1.0) * bound),
        }
    };
    let fill = |first: usize, values: &mut [f32]| {
        for (block, values) in values.chunks_mut(4).enumerate() {
            values.copy_from_slice(&four(first / 4 + block)[..values.len()]);
        }
    };
    // A thread is worth starting for some milliseconds of work.
    let share = values.len().div_ceil(threads.max(1)).max(1 << 16).next_multiple_of(4);
    std::thread::scope(|scope| {
        let mut shares = values.chunks_mut(share).enumerate();
        let own = shares.next();
        for (index, values) in shares {
            scope.spawn(move || fill(first + index * share, values));
        }
        own.into_iter().for_each(|(_, values)| fill(first, values));
    });
}

/// The same from any element on.
fn first_values_from(init: Init, key: [u32; 2], first: usize, values: &mut [f32], threads: usize) {
    let before = first % 4;
    if before == 0 {
        return first_values(init, key, first, values, threads);
    }
    let mut more = vec![0f32; before + values.len()];
    first_values(init, key, first - before, &mut more, threads);
    values.copy_from_slice(&more[before..]);
}

/// Where parameters are gathered, and where steps write gradients. With accumulation a micro-step's own gradients are
/// apart from their sum.
fn windows(of: &Assembly, gradients: &Gradients) -> Result<(Option<Travelling>, Memory)> {
    let Assembly { world, device, plans, config, .. } = *of;
    let bytes = plans.sizes.gradients;
    let windows = match config.accumulation {
        _ if !plans.training.gathers() => None,
        1 => {
            let (region, on_device) = (gradients.region.clone(), gradients.averaged.clone());
            Some(Travelling { region, on_device })
        }
        _ => Some(windows_apart(world, device, bytes)?),
    };
    let written = match &windows {
        Some(windows) => windows.on_device.clone(),
        None if config.accumulation == 1 => gradients.averaged.clone(),
        None => device.allocate(bytes)?,
    };
    Ok((windows, written))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_values_do_not_depend_on_threads_and_pieces() {
        let key = key(3, Purpose::Initialise, 5);
        for init in [Init::Normal { std: 0.5 }, Init::Uniform { bound: 0.5 }, Init::One] {
            let [mut alone, mut shared] = [(); 2].map(|()| vec![0f32; 300_001]);
            first_values(init, key, 0, &mut alone, 1);
            let (start, end) = shared.split_at_mut(100_004);
            first_values(init, key, 0, start, 2);
            first_values(init, key, 100_004, end, 3);
            assert_eq!(alone, shared);
            // No part repeats another: the threads' parts begin where the ones before them end.
            assert!(init == Init::One || alone[..1000] != alone[100_004..101_004]);
            assert_ne!(alone[300_000], 0.0);
        }
    }
}
