//! Windows: memory that gradients take in turns, and with them parameters that ranks gather (`--zero 2`, `--zero 3`).
//!
//! A gradient is needed by its owner alone, and by nobody once its bucket is summed. The region of gradients then has
//! a place for each bucket from the first step that writes to it until its sum has come, and these places overlap where
//! the times do not: they are found as those of activations are (`arena`). Where parameters are shards too, a bucket's
//! parameters have a place there from the moment at which they begin to be gathered until the last step that reads
//! them, once for the forward and once for the backward pass. What is where when follows from a plan that is there
//! already: its steps stay, and only what they write to and read from is moved.

use std::ops::Range;

use super::arena::{self, Block};
use super::{Action, Bucket, Location, Plan, Region, TAIL};
use crate::device::memory::ALIGNMENT;

/// Where a plan's gradients and gathered parameters lie, and when.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Windows {
    /// Of each bucket: where its gradients lie.
    pub gradients: Vec<Window>,
    /// What is gathered, in the order in which steps read it; nothing where parameters are there anyway.
    pub gathers: Vec<Gathered>,
    /// Bytes of all gradients with their tail, had each a place of its own.
    pub whole: usize,
}

/// The place of a bucket's gradients.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Window {
    /// Bytes of the region.
    pub bytes: Range<usize>,
    /// Of these, what lies between two gradients: with a place of its own it is zero, here it was something else
    /// before.
    pub gaps: Vec<Range<usize>>,
    /// The step behind which all of them are there, and nobody reads the old parameters any more.
    pub ready: usize,
    /// The step before which the place is needed for something else: all steps, where that is none.
    pub freed: usize,
}

/// The place of a bucket's parameters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gathered {
    /// Which bucket.
    pub bucket: usize,
    /// Bytes of the region.
    pub bytes: Range<usize>,
    /// The step before which they begin to come.
    pub start: usize,
    /// From the first step that reads them to the last.
    pub steps: Range<usize>,
}

/// How windows are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turns {
    /// Whether parameters are gathered.
    pub gathers: bool,
    /// Whether transfers take place beside computing.
    pub overlap: bool,
    /// Whether gradients are added up over micro-steps, in memory of their own, before they are summed.
    pub accumulates: bool,
}

impl Windows {
    /// How many buckets' sums are awaited before a step; the others are behind the last one.
    pub fn freed_in_time(&self, steps: usize) -> usize {
        self.gradients.iter().filter(|window| window.freed < steps).count()
    }
}

/// The bytes of a bucket without the tail.
pub(super) fn learned(bucket: &Bucket, whole: usize) -> Range<usize> {
    bucket.bytes.start..bucket.bytes.end.min(whole - TAIL)
}

impl Plan {
    /// The same step with its gradients in windows, and its parameters where they are gathered.
    pub fn in_windows(mut self, turns: Turns) -> Plan {
        let whole = self.sizes.gradients;
        let mut gradients = self.gradient_windows(turns);
        let mut gathers = if turns.gathers { self.gatherings(turns) } else { Vec::new() };
        let bytes = |bucket: &Bucket| learned(bucket, whole).len();
        let first = self.first_writers();
        let of_gradients = gradients.iter().zip(&first).zip(&self.buckets);
        let of_gradients = of_gradients.map(|((window, &first), bucket)| Block {
            bytes: bytes(bucket),
            alive: first..=window.freed - 1,
        });
        let of_gathers = gathers.iter().map(|gathered| Block {
            bytes: bytes(&self.buckets[gathered.bucket]),
            alive: gathered.start..=gathered.steps.end - 1,
        });
        let blocks: Vec<Block> = of_gradients.chain(of_gathers).collect();
        let (offsets, total) = arena::place(&blocks);
        let places: Vec<_> = offsets.iter().zip(&blocks).map(|(&at, block)| at..at + block.bytes).collect();
        let (one, two) = places.split_at(gradients.len());
        for ((window, place), bucket) in gradients.iter_mut().zip(one).zip(&self.buckets) {
            let gaps = self.gaps(&learned(bucket, whole)).into_iter();
            let moved = |at: usize| place.start + at - bucket.bytes.start;
            window.gaps = gaps.map(|gap| moved(gap.start)..moved(gap.end)).collect();
            window.bytes = place.clone();
        }
        gathers.iter_mut().zip(two).for_each(|(gathered, place)| gathered.bytes = place.clone());
        let windows = Windows { gradients, gathers, whole };
        for (step, planned) in self.steps.iter_mut().enumerate() {
            for place in planned.inputs.iter_mut().chain(&mut planned.outputs) {
                windows.move_place(place, step, &self.buckets);
            }
        }
        self.sizes.gradients = total.next_multiple_of(ALIGNMENT) + TAIL;
        self.windows = Some(windows);
        self
    }

    /// What no gradient has of some bytes.
    fn gaps(&self, bytes: &Range<usize>) -> Vec<Range<usize>> {
        let mut end = bytes.start;
        let within =
            self.gradients.iter().map(|(place, _)| place).filter(|place| bytes.contains(&place.start));
        let before = within.map(|place| std::mem::replace(&mut end, place.end)..place.start);
        let mut gaps: Vec<Range<usize>> = before.collect();
        gaps.push(end..bytes.end);
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }

    /// For each bucket the first step that writes one of its gradients.
    fn first_writers(&self) -> Vec<usize> {
        let first = |bucket: &Bucket| {
            let within = self.gradients.iter().filter(|(bytes, _)| bucket.bytes.contains(&bytes.start));
            within.map(|(_, step)| *step).min().unwrap_or(bucket.after)
        };
        self.buckets.iter().map(first).collect()
    }

    /// The steps that read a parameter of a bucket, in order.
    pub(super) fn readers(&self, bucket: &Bucket) -> impl DoubleEndedIterator<Item = usize> {
        let reads = |place: &Location| {
            let (start, end) = (place.offset, place.offset + place.bytes);
            place.region == Region::Parameters && start < bucket.bytes.end && bucket.bytes.start < end
        };
        (0..self.steps.len()).filter(move |&step| self.steps[step].inputs.iter().any(reads))
    }

    /// When each bucket's place is taken; nowhere yet. While one bucket is written the one before is on its way.
    fn gradient_windows(&self, turns: Turns) -> Vec<Window> {
        let (steps, first) = (self.steps.len(), self.first_writers());
        let (mut ready, mut freed) = (0, 0);
        let window = |(index, bucket): (usize, &Bucket)| {
            // In the order of buckets, which is that in which they travel.
            ready = self.readers(bucket).next_back().unwrap_or(0).max(bucket.after).max(ready);
            freed = match first.get(index + 2) {
                _ if turns.accumulates => bucket.after + 1,
                _ if !turns.overlap => ready + 1,
                Some(&after_next) => (ready + 1).max(after_next),
                None => steps,
            }
            .max(freed);
            Window { bytes: 0..0, gaps: Vec::new(), ready, freed }
        };
        self.buckets.iter().enumerate().map(window).collect()
    }

    /// When each bucket's parameters are gathered; nowhere yet. While those of one are read the next ones are on their
    /// way.
    fn gatherings(&self, turns: Turns) -> Vec<Gathered> {
        let mut runs: Vec<(Range<usize>, usize)> = Vec::new();
        for (index, bucket) in self.buckets.iter().enumerate() {
            let (forward, backward): (Vec<usize>, Vec<usize>) =
                self.readers(bucket).partition(|&step| step < self.forward_steps);
            for steps in [forward, backward] {
                runs.extend(steps.first().zip(steps.last()).map(|(&first, &last)| (first..last + 1, index)));
            }
        }
        runs.sort_by_key(|(steps, bucket)| (steps.start, *bucket));
        // What the forward pass read last the backward pass reads first.
        runs.dedup_by(|later, earlier| {
            let same = later.1 == earlier.1;
            if same {
                earlier.0.end = later.0.end;
            }
            same
        });
        let mut start = 0;
        let gathered = |(steps, bucket): (Range<usize>, usize)| {
            let before = std::mem::replace(&mut start, steps.start);
            let start = if turns.overlap { before } else { steps.start };
            Gathered { bucket, bytes: 0..0, start, steps }
        };
        runs.into_iter().map(gathered).collect()
    }
}

impl Windows {
    /// What a step touches lies in a window, if it is a gradient or gathered.
    fn move_place(&self, place: &mut Location, step: usize, buckets: &[Bucket]) {
        let Some(bucket) = buckets.iter().position(|bucket| bucket.bytes.contains(&place.offset)) else {
            return;
        };
        let reads = |gathered: &&Gathered| gathered.bucket == bucket && gathered.steps.contains(&step);
        let window = match place.region {
            Region::Gradients => Some(&self.gradients[bucket].bytes),
            Region::Parameters => self.gathers.iter().find(reads).map(|gathered| &gathered.bytes),
            _ => None,
        };
        if let Some(window) = window {
            place.region = Region::Gradients;
            place.offset = window.start + place.offset - buckets[bucket].bytes.start;
        }
    }

    /// What is to be done when the last gradient of a bucket is there.
    pub(super) fn padding(&self, bucket: usize) -> impl Iterator<Item = Action> {
        (!self.gradients[bucket].gaps.is_empty()).then_some(Action::Pad(bucket)).into_iter()
    }

    /// What happens before steps so that gathered parameters are there, of transfers with these numbers.
    pub(super) fn gathering(&self, ids: &[usize]) -> Vec<(usize, Vec<Action>)> {
        let pairs = || self.gathers.iter().zip(ids);
        let starts = pairs().map(|(of, &id)| (of.start, vec![Action::Spread(id), Action::Start(id)]));
        let ends = pairs().map(|(of, &id)| (of.steps.start, vec![Action::Wait(id)]));
        starts.chain(ends).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Compiled, Options, Regions};
    use super::*;
    use crate::device::onednn::Cpu;
    use crate::device::reference::Reference;
    use crate::device::{Device, Memory, Scalars};
    use crate::graph::{BatchNorm, Builder, Conv, Graph};

    const ALL: [Turns; 6] = [
        turns(false, true, false),
        turns(true, true, false),
        turns(true, false, false),
        turns(false, false, false),
        turns(false, true, true),
        turns(true, true, true),
    ];

    const fn turns(gathers: bool, overlap: bool, accumulates: bool) -> Turns {
        Turns { gathers, overlap, accumulates }
    }

    /// Convolutions with a way around, and a linear layer that is larger than all of them.
    fn network() -> Graph {
        let (mut net, x) = Builder::new("windows", 4, [3, 8, 8]);
        let mut x = net.conv("stem", x, 16, Conv::square(3).padding(1)).unwrap();
        for block in ["a", "b"] {
            let y = net.conv(&format!("{block}.conv1"), x, 16, Conv::square(3).padding(1)).unwrap();
            let y = net.batch_norm(&format!("{block}.norm"), y, BatchNorm::default()).unwrap();
            let y = net.relu(&format!("{block}.relu"), y);
            let y = net.conv(&format!("{block}.conv2"), y, 16, Conv::square(3).padding(1)).unwrap();
            x = net.add(&format!("{block}.add"), y, x).unwrap();
        }
        let x = net.linear("fc1", x, 64);
        let x = net.relu("relu1", x);
        let x = net.linear("fc2", x, 10);
        net.finish(x).simplify().differentiate()
    }

    /// Without windows, and in them.
    fn plans(graph: Graph, device: &dyn Device, turns: Turns) -> [Plan; 2] {
        let options = Options::whole(2 << 10);
        let compiled = Compiled::new(graph, device, None).unwrap();
        let plain = compiled.plan(device, &options).unwrap();
        let mut other = match turns.gathers {
            true => compiled.plan_gathering(device, &options).unwrap(),
            false => compiled.plan(device, &options).unwrap(),
        };
        other.cut_as(&plain).unwrap();
        [plain, other.in_windows(turns)]
    }

    /// Numbers that depend on the place.
    fn fill(memory: &Memory, salt: usize) {
        let number = |index: usize| (((index * 37 + salt * 101) % 1009) as f32 / 1009.0 - 0.45) * 0.5;
        let bytes: Vec<u8> = (0..memory.bytes() / 4).flat_map(|index| number(index).to_ne_bytes()).collect();
        memory.write(&bytes);
    }

    fn bytes(memory: &Memory) -> Vec<u8> {
        let mut bytes = vec![0; memory.bytes()];
        memory.read(&mut bytes);
        bytes
    }

    /// All gradients of a step, each bucket's taken when it leaves its window. Parameters that are gathered come when a
    /// step reads them, and their own memory has nothing.
    fn gradients(plan: &Plan) -> Vec<u8> {
        let of = |bytes: usize| Memory::host(bytes).unwrap();
        let parameters = of(plan.sizes.parameters);
        let regions = Regions::new(&plan.sizes, parameters.clone(), of(plan.sizes.gradients), Memory::host);
        let regions = regions.unwrap();
        let all = of(plan.sizes.parameters);
        plan.parameters.iter().enumerate().for_each(|(salt, parameter)| fill(&parameter.of(&all), salt));
        let mut program = plan.bind(&regions).unwrap();
        fill(&program.images, 77);
        let labels: Vec<u8> = (0..4).flat_map(|image| i32::to_ne_bytes(3 * image % 10)).collect();
        program.labels.write(&labels);
        let whole = plan.all_gradients();
        let found = of(whole - TAIL);
        let Some(windows) = &plan.windows else {
            parameters.write(&bytes(&all));
            let scalars = Scalars { seed: 1, gradient_scale: 0.25, ..Scalars::default() };
            program.steps.iter_mut().for_each(|step| step.run(&scalars).unwrap());
            return bytes(&regions.gradients.slice(0, whole - TAIL));
        };
        if windows.gathers.is_empty() {
            parameters.write(&bytes(&all));
        }
        let steps = program.steps.len();
        for step in 0..=steps {
            for (window, bucket) in windows.gradients.iter().zip(&plan.buckets) {
                if window.freed == step {
                    let place = learned(bucket, whole);
                    for gap in &window.gaps {
                        regions.gradients.slice(gap.start, gap.len()).zero();
                    }
                    let from = regions.gradients.slice(window.bytes.start, place.len());
                    found.slice(place.start, place.len()).write(&bytes(&from));
                }
            }
            // As soon as they may come.
            for gathered in windows.gathers.iter().filter(|gathered| gathered.start == step) {
                let place = learned(&plan.buckets[gathered.bucket], whole);
                let from = bytes(&all.slice(place.start, place.len()));
                regions.gradients.slice(gathered.bytes.start, place.len()).write(&from);
            }
            if step < steps {
                let scalars = Scalars { seed: 1, gradient_scale: 0.25, ..Scalars::default() };
                program.steps[step].run(&scalars).unwrap();
            }
        }
        bytes(&found)
    }

    #[test]
    fn a_step_in_windows_gives_the_bits_of_one_without() {
        let cpu = Cpu::new(1).unwrap();
        for device in [&Reference as &dyn Device, &cpu] {
            for turns in ALL {
                let [plain, other] = plans(network(), device, turns);
                assert!(plain.buckets.len() > 4);
                let expected = gradients(&plain);
                assert!(expected.iter().any(|&byte| byte != 0));
                assert!(gradients(&other) == expected, "{turns:?}");
                // What is there at once: the largest layer, whose weights' gradient takes their place, and little
                // besides.
                assert!(
                    other.sizes.gradients < plain.sizes.gradients * 11 / 10,
                    "{turns:?}: {} of {}",
                    other.sizes.gradients,
                    plain.sizes.gradients
                );
            }
        }
    }
}
