//! Several ranks in one thread, over carriers that only copy and add: what `Compressed` does with a plan's buckets.

use std::cell::RefCell;

use super::*;
use crate::collective::segment;
use crate::device::Device;
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::onednn::Cpu;
use crate::graph::{Builder, Conv, Graph};
use crate::plan::{Options, Plan, TAIL};

const SCHEMES: [&str; 5] = ["topk:0.05", "1bit", "2bit:0.02", "powersgd:1", "powersgd:4"];

/// What the ranks of a test share of one carrier: their regions, and how many have started each slot.
#[derive(Default)]
struct Meeting {
    regions: Vec<Rc<Region>>,
    slots: Vec<Range<usize>>,
    arrived: Vec<usize>,
}

/// Sums or gathers as soon as the last rank has started.
struct Copies {
    meeting: Rc<RefCell<Meeting>>,
    gathers: bool,
    prepared: usize,
    started: Vec<usize>,
}

impl Collective for Copies {
    fn name(&self) -> &'static str {
        "copies"
    }

    fn prepare(&mut self, range: Range<usize>) -> Result<Slot> {
        let mut meeting = self.meeting.borrow_mut();
        if meeting.slots.len() == self.prepared {
            meeting.slots.push(range);
            meeting.arrived.push(0);
        }
        self.prepared += 1;
        self.started.push(0);
        Ok(self.prepared - 1)
    }

    fn start(&mut self, slot: Slot) -> Result<()> {
        let mut meeting = self.meeting.borrow_mut();
        self.started[slot] += 1;
        meeting.arrived[slot] += 1;
        let (ranks, range) = (meeting.regions.len(), meeting.slots[slot].clone());
        if meeting.arrived[slot].is_multiple_of(ranks) {
            let mut all = vec![0f32; range.len()];
            for (rank, region) in meeting.regions.iter().enumerate() {
                let part = if self.gathers { segment(&range, ranks, rank) } else { range.clone() };
                let mut own = vec![0f32; part.len()];
                region.read(part.start, &mut own);
                let place = &mut all[part.start - range.start..part.end - range.start];
                place.iter_mut().zip(&own).for_each(|(all, own)| {
                    *all = if self.gathers { *own } else { *all + own };
                });
            }
            meeting.regions.iter().for_each(|region| region.write(range.start, &all));
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn is_done(&self, slot: Slot) -> bool {
        let meeting = self.meeting.borrow();
        meeting.arrived[slot] >= self.started[slot] * meeting.regions.len()
    }
}

/// One rank.
struct Rank {
    gradients: Memory,
    compressed: Compressed,
}

/// A network with padded filters (7 channels in blocks of 8 or 16), a matrix of several pieces, and biases.
fn net() -> Result<Graph> {
    let (mut net, x) = Builder::new("net", 2, [3, 12, 12]);
    let x = net.conv("conv1", x, 7, Conv::square(3).padding(1))?;
    let x = net.relu("relu1", x);
    let x = net.conv("conv2", x, 21, Conv::square(3).padding(1))?;
    let x = net.flatten("flatten", x);
    let x = net.linear("fc1", x, 40);
    let x = net.linear("fc2", x, 5);
    Ok(net.finish(x))
}

fn ranks(scheme: &str, ranks: usize, plan: &Plan, device: &dyn Device) -> Vec<Rank> {
    let scheme: Compression = scheme.parse().unwrap();
    let meetings: [Rc<RefCell<Meeting>>; 2] = Default::default();
    let gathers = !matches!(scheme, Compression::PowerSgd { .. });
    let rank = |rank: usize| {
        let how = How { scheme, with_tail: true, plan, device, ranks };
        let split = Split::new(&how);
        let carrier = |which: usize, words: usize| -> (Rc<Region>, Box<dyn Collective>) {
            let region = Rc::new(Region::private(4 * words).unwrap());
            meetings[which].borrow_mut().regions.push(region.clone());
            let gathers = gathers && which == 1;
            let meeting = meetings[which].clone();
            (region, Box::new(Copies { meeting, gathers, prepared: 0, started: Vec::new() }))
        };
        let (summed, second) = (carrier(0, split.summed), carrier(1, split.second));
        let gradients = Memory::host(plan.sizes.gradients).unwrap();
        let carriers = Carriers { summed, second };
        let worker = Worker::new(&how, &split, carriers.regions(), rank, &gradients).unwrap();
        Rank { gradients, compressed: Compressed::over(&how, split, carriers, Box::new(worker)) }
    };
    let mut all: Vec<Rank> = (0..ranks).map(rank).collect();
    for rank in &mut all {
        for bucket in &plan.buckets {
            rank.compressed.prepare(bucket.bytes.start / 4..bucket.bytes.end / 4).unwrap();
        }
    }
    all
}

/// Gradients of a rank in a step, zero in padding and gaps, and a tail.
fn fill(rank: &Rank, which: usize, step: usize, valid: &[f32]) -> Vec<f32> {
    let last = valid.len() - TAIL / 4;
    let value = |i: usize| {
        let word = ((i + 1) as u32).wrapping_mul(2_654_435_761).wrapping_add((which * 77 + step * 13) as u32);
        (word.wrapping_mul(747_796_405) >> 8) as f32 / 8_388_608.0 - 1.0
    };
    let number = |i: usize| match i.checked_sub(last) {
        Some(place) => place as f32,
        None if valid[i] == 1.0 => 0.1 * value(i),
        None => 0.0,
    };
    let values: Vec<f32> = (0..valid.len()).map(number).collect();
    rank.gradients.write(bytes_of(&values));
    values
}

fn read(memory: &Memory) -> Vec<f32> {
    let mut values = vec![0f32; memory.bytes() / 4];
    memory.read(bytes_of_mut(&mut values));
    values
}

/// Sums once; ranks poll unevenly, and start buckets whenever the others do something else.
fn sum(ranks: &mut [Rank], buckets: usize) {
    let mut started = vec![0; ranks.len()];
    for turn in 0.. {
        let which = (turn * turn + turn / 3) % ranks.len();
        let Rank { compressed, .. } = &mut ranks[which];
        if started[which] < buckets {
            compressed.start(started[which]).unwrap();
            started[which] += 1;
        }
        compressed.poll().unwrap();
        let done = |rank: &Rank| (0..buckets).all(|slot| rank.compressed.is_done(slot));
        if started.iter().all(|&count| count == buckets) && ranks.iter().all(done) {
            return;
        }
        assert!(turn < 100_000, "stuck");
        // Every rank gets its turn, whatever the squares above come to.
        ranks[turn % 3 % started.len()].compressed.poll().unwrap();
        let next = turn % started.len();
        if started[next] < buckets {
            ranks[next].compressed.start(started[next]).unwrap();
            started[next] += 1;
        }
        ranks[next].compressed.poll().unwrap();
    }
}

/// Ones where a parameter has an element, zeros in padding and gaps.
fn valid(plan: &Plan, device: &dyn Device) -> Vec<f32> {
    let region = Memory::host(plan.sizes.gradients).unwrap();
    for parameter in &plan.parameters {
        let plain = device.plain(&parameter.spec);
        let ones = Memory::host(plain.bytes()).unwrap();
        ones.write(bytes_of(&vec![1f32; plain.bytes() / 4]));
        let to = region.slice(parameter.offset, parameter.layout.bytes());
        let kernel = device.reorder(&parameter.spec, &plain, &parameter.layout).unwrap();
        let workspace = device.allocate(kernel.workspace).unwrap();
        kernel.bind(&[ones], &[to], &workspace).unwrap().run(&crate::device::Scalars::default()).unwrap();
    }
    read(&region)
}

fn with_plan(check: impl Fn(&Plan, &dyn Device)) {
    let device = Cpu::new(1).unwrap();
    let options = Options::whole(4096);
    let plan = crate::plan::plan(net().unwrap().simplify().differentiate(), &device, &options).unwrap();
    assert!(plan.buckets.len() > 2);
    check(&plan, &device);
}

/// All ranks end with the same bits, the tail is the exact sum, padding stays zero, and over several steps what came
/// out and what stayed behind on the ranks are all there ever was: sum over steps and ranks of gradients. Each number
/// is rounded at most (ranks + 4) times a step, in PowerSGD for each of the products of four factors of unit length, of
/// numbers up to some ten.
#[test]
fn ranks_agree_and_nothing_is_lost() {
    with_plan(|plan, device| {
        let valid = valid(plan, device);
        assert!(valid.contains(&0.0));
        for (scheme, count) in SCHEMES.iter().flat_map(|scheme| [1, 2, 3, 5].map(|count| (scheme, count))) {
            let mut all = ranks(scheme, count, plan, device);
            let (mut there, mut came) = (0f64, 0f64);
            for step in 0..4 {
                for (which, rank) in all.iter().enumerate() {
                    let gradient = fill(rank, which, step, &valid);
                    there += gradient[..valid.len() - TAIL / 4].iter().map(|&v| f64::from(v)).sum::<f64>();
                }
                sum(&mut all, plan.buckets.len());
                let first = read(&all[0].gradients);
                let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                for rank in &all[1..] {
                    assert!(bits(&read(&rank.gradients)) == bits(&first), "{scheme}: {count} ranks differ");
                }
                let (gradients, tail) = first.split_at(valid.len() - TAIL / 4);
                assert!(tail.iter().enumerate().all(|(i, &v)| v == (i * count) as f32), "{scheme}: {tail:?}");
                for (index, (&value, &valid)) in gradients.iter().zip(&valid).enumerate() {
                    assert!(valid == 1.0 || value == 0.0, "{scheme}: {value} in the padding, {index}");
                }
                came += gradients.iter().map(|&v| f64::from(v)).sum::<f64>();
            }
            let behind = |rank: &Rank| -> f64 {
                let state = rank.compressed.account().state;
                read(&state[0].memory).iter().map(|&v| f64::from(v)).sum()
            };
            let rest: f64 = all.iter().map(behind).sum();
            let bound = valid.len() as f64 * 4.0 * (count + 4) as f64 * 2f64.powi(-24);
            assert!(
                (came + rest - there).abs() < bound,
                "{scheme}, {count} ranks: {came} + {rest} of {there}"
            );
        }
    });
}

/// Whatever the scheme, a number that is not finite on one rank is none on any.
#[test]
fn a_broken_gradient_reaches_all_ranks() {
    with_plan(|plan, device| {
        let valid = valid(plan, device);
        let weight = plan.parameters.iter().find(|p| p.name.starts_with("fc1")).unwrap();
        for (scheme, broken) in SCHEMES.iter().flat_map(|s| [f32::NAN, f32::INFINITY].map(|b| (s, b))) {
            let mut all = ranks(scheme, 2, plan, device);
            all.iter().enumerate().for_each(|(which, rank)| drop(fill(rank, which, 0, &valid)));
            all[1].gradients.slice(weight.offset, 4).write(bytes_of(&[broken]));
            sum(&mut all, plan.buckets.len());
            for rank in &all {
                let finite = read(&rank.gradients).iter().all(|v| v.is_finite());
                assert!(!finite, "{scheme} makes a number of {broken}");
            }
        }
    });
}
