//! Ranks that take turns in one thread, for tests: every algorithm at many rank counts and lengths, without a launcher.
//! The link is harsher than MPI: a message has left only when the other side has it, calls fail to make progress at
//! random, and whoever touches a range before its message has ended is caught.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::executor::Executor;
use super::schedule::{Group, Round, rounds_of};
use super::{Collective, Slot, Steps, gossip};
use crate::comm::{Link, Region};
use crate::config::{Pattern, Wire};
use crate::cuts::{Cuts, even_split, segment};
use crate::error::Result;
use crate::random::{Purpose, Stream, key};

struct Parcel {
    words: Vec<f32>,
    taken: Cell<bool>,
}

/// Messages on their way, by sender, receiver and tag.
type Mail = Rc<RefCell<HashMap<(usize, usize, u16), VecDeque<Rc<Parcel>>>>>;

struct TurnByTurn {
    rank: usize,
    size: usize,
    mail: Mail,
    calls: Cell<u32>,
}

enum Flight {
    Send(Rc<Parcel>, Rc<Region>, Range<usize>),
    Receive(Rc<Region>, Range<usize>, (usize, usize, u16)),
}

fn words(region: &Region, range: &Range<usize>) -> Vec<f32> {
    let mut words = vec![0.0; range.len()];
    region.read(range.start, &mut words);
    words
}

fn bits(words: &[f32]) -> Vec<u32> {
    words.iter().map(|word| word.to_bits()).collect()
}

impl Link for TurnByTurn {
    type Request = Flight;

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    /// Every message is matched.
    fn send(
        &self,
        region: &Rc<Region>,
        range: &Range<usize>,
        to: usize,
        tag: u16,
        _matched: bool,
    ) -> Result<Flight> {
        let parcel = Rc::new(Parcel { words: words(region, range), taken: Cell::new(false) });
        self.mail.borrow_mut().entry((self.rank, to, tag)).or_default().push_back(parcel.clone());
        Ok(Flight::Send(parcel, region.clone(), range.clone()))
    }

    fn receive(&self, region: &Rc<Region>, range: &Range<usize>, from: usize, tag: u16) -> Result<Flight> {
        // What stands there is lost from here on.
        region.write(range.start, &vec![f32::NAN; range.len()]);
        Ok(Flight::Receive(region.clone(), range.clone(), (from, self.rank, tag)))
    }

    fn ended(&self, request: &mut Flight) -> Result<bool> {
        let call = self.calls.replace(self.calls.get() + 1);
        if Stream::new(key(u64::from(call), Purpose::Synthetic, self.rank as u32)).below(3) == 0 {
            return Ok(false);
        }
        match request {
            Flight::Send(parcel, region, range) => {
                let done = parcel.taken.get();
                assert_eq!(bits(&words(region, range)), bits(&parcel.words), "changed before it had left");
                Ok(done)
            }
            Flight::Receive(region, range, from) => {
                let parcel = self.mail.borrow_mut().get_mut(from).and_then(VecDeque::pop_front);
                let Some(parcel) = parcel else { return Ok(false) };
                assert_eq!(parcel.words.len(), range.len(), "both ends of a message have a length");
                region.write(range.start, &parcel.words);
                parcel.taken.set(true);
                Ok(true)
            }
        }
    }
}

/// Polls until these slots are done; between two polls the other ranks have their turn.
async fn wait(collective: &mut dyn Collective, slots: &[Slot]) {
    while !slots.iter().all(|&slot| collective.is_done(slot)) {
        collective.poll().unwrap();
        let mut over = false;
        poll_fn(|_| if std::mem::replace(&mut over, true) { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

/// What the ranks end with, each in its turn until all have ended.
fn in_turns<T>(ranks: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut ranks: Vec<_> = ranks.map(|rank| (Box::pin(rank), None)).collect();
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..1_000_000 {
        for (rank, ended) in ranks.iter_mut().filter(|(_, ended)| ended.is_none()) {
            if let Poll::Ready(found) = rank.as_mut().poll(&mut context) {
                *ended = Some(found);
            }
        }
        if ranks.iter().all(|(_, ended)| ended.is_some()) {
            return ranks.into_iter().filter_map(|(_, ended)| ended).collect();
        }
    }
    panic!("the ranks wait for each other")
}

/// What each rank ends with after one run, and how many bytes it sent in that. A second run must give the same bits, a
/// third with the range in so many slots at once must leave what lies beside it alone.
fn run_in_slots(
    count: usize,
    algorithm: impl Fn(&Group, &Cuts) -> Vec<Round> + Copy + 'static,
    wire: Wire,
    ranks: usize,
    length: usize,
    chunk: usize,
    value: fn(usize, usize) -> f32,
) -> Vec<(Vec<f32>, u64)> {
    const GUARD: usize = 5;
    let mail = Mail::default();
    let rank = async |rank: usize| {
        let region = Rc::new(Region::private((length + 2 * GUARD) * 4).unwrap());
        let link = Rc::new(TurnByTurn { rank, size: ranks, mail: mail.clone(), calls: Cell::new(0) });
        let mut collective = Executor::new("test", algorithm, wire, link, &region).chunk(chunk);
        let whole = GUARD..GUARD + length;
        let slots: Vec<_> = [whole.clone()]
            .into_iter()
            .chain((0..count).map(|i| segment(&whole, count, i)))
            .map(|range| collective.prepare(range).unwrap())
            .collect();
        let fill = || {
            region.write(0, &vec![-7.5; length + 2 * GUARD]);
            region.write(GUARD, &(0..length).map(|i| value(rank, i)).collect::<Vec<_>>());
        };
        let mut results = Vec::new();
        let mut sent = 0;
        for slots in [&slots[..1], &slots[..1], &slots[1..]] {
            fill();
            slots.iter().for_each(|&slot| collective.start(slot).unwrap());
            // Some ranks compute now, and others wait.
            if rank % 2 == 1 {
                collective.run_ahead(1 << rank).unwrap();
            }
            wait(&mut collective, slots).await;
            results.push(words(&region, &whole));
            sent = if results.len() == 1 { collective.sent() } else { sent };
            for guard in [0..GUARD, GUARD + length..length + 2 * GUARD] {
                assert!(words(&region, &guard).iter().all(|&v| v == -7.5), "beyond the range");
            }
        }
        assert_eq!(bits(&results[0]), bits(&results[1]), "a repeat differs");
        (results.swap_remove(0), sent)
    };
    in_turns((0..ranks).map(rank))
}

/// The same with three slots.
fn run(
    algorithm: impl Fn(&Group, &Cuts) -> Vec<Round> + Copy + 'static,
    wire: Wire,
    ranks: usize,
    length: usize,
    chunk: usize,
    value: fn(usize, usize) -> f32,
) -> Vec<(Vec<f32>, u64)> {
    run_in_slots(3, algorithm, wire, ranks, length, chunk, value)
}

const RANKS: [usize; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17];

const SUMS: [(&str, Steps); 4] = [
    ("ring", Steps::Sum(Pattern::Ring)),
    ("halving-doubling", Steps::Sum(Pattern::HalvingDoubling)),
    ("recursive-doubling", Steps::Sum(Pattern::RecursiveDoubling)),
    ("torus", Steps::Sum(Pattern::Torus)),
];

/// Reduce-scatters, and the sums whose first halves they are.
const HALVES: [(&str, Steps, Steps); 2] = [
    ("ring", Steps::Scatter, Steps::Sum(Pattern::Ring)),
    ("halving", Steps::Halve, Steps::Sum(Pattern::HalvingDoubling)),
];

/// Small integers: the sum is exact in any order and, being below 128·17/8, in any of the types.
fn exact(rank: usize, index: usize) -> f32 {
    ((rank * 31 + index * 17) % 15) as f32 - 7.0
}

/// Numbers of many magnitudes, whose sum depends on the order.
fn rough(rank: usize, index: usize) -> f32 {
    let word = (rank as u32 * 7919 + index as u32 * 104_729).wrapping_mul(2_654_435_761);
    [1e-3, 1.0, 30.0][word as usize % 3] * ((word >> 8) as f32 / 8_388_608.0 - 1.0)
}

const WIRES: [Wire; 3] = [Wire::F32, Wire::Bf16, Wire::F16];

/// Length and longest message.
const LENGTHS: [(usize, usize); 6] = [(0, 4), (1, 4), (7, 4), (257, 16), (1009, 100), (1009, 5000)];

/// Runs an algorithm over every wire, number of ranks and length. `expected(ranks, rank, length, i)` is what a rank
/// must end with in element i; `None` where that is not defined.
fn hold(
    name: &str,
    algorithm: impl Fn(&Group, &Cuts) -> Vec<Round> + Copy + 'static,
    expected: impl Fn(usize, usize, usize, usize) -> Option<f32>,
) {
    for wire in WIRES {
        for ranks in RANKS {
            for (length, chunk) in LENGTHS {
                let all = run(algorithm, wire, ranks, length, chunk, exact);
                for (rank, (found, _)) in all.iter().enumerate() {
                    for (i, found) in found.iter().enumerate() {
                        assert!(
                            expected(ranks, rank, length, i).is_none_or(|expected| expected == *found),
                            "{name} {wire}: {found} in element {i} of {length} on rank {rank} of {ranks}, in chunks of {chunk}"
                        );
                    }
                }
            }
        }
    }
}

fn sum(ranks: usize, index: usize) -> f32 {
    (0..ranks).map(|rank| exact(rank, index)).sum()
}

/// Whose segment an element is in.
fn owner(ranks: usize, length: usize, index: usize) -> usize {
    (0..ranks).find(|&rank| even_split(length, ranks, rank).contains(&index)).unwrap()
}

#[test]
fn every_sum_is_the_serial_one_on_all_ranks() {
    for (name, steps) in SUMS {
        hold(name, steps.algorithm(), |ranks, _, _, i| Some(sum(ranks, i)));
    }
}

/// Of messages that end when they are received only so many may be under way: a rank must not hold back what others
/// need to receive these.
#[test]
fn many_ranges_of_many_messages_end_that_are_started_at_a_time() {
    for (name, steps) in SUMS {
        for ranks in [3, 4] {
            let all = run_in_slots(10, steps.algorithm(), Wire::F32, ranks, 10 * 200, 1, exact);
            for (found, _) in all {
                assert!(
                    found.iter().enumerate().all(|(i, &found)| found == sum(ranks, i)),
                    "{name} of {ranks}"
                );
            }
        }
    }
}

#[test]
fn a_reduce_scatter_leaves_each_rank_the_sum_of_its_segment() {
    for (name, steps, _) in HALVES {
        hold(name, steps.algorithm(), |ranks, rank, length, i| {
            (owner(ranks, length, i) == rank).then(|| sum(ranks, i))
        });
    }
}

#[test]
fn an_allgather_brings_each_ranks_segment_to_all() {
    hold("allgather", Steps::Collect.algorithm(), |ranks, _, length, i| {
        Some(exact(owner(ranks, length, i), i))
    });
}

#[test]
fn a_broadcast_brings_the_first_ranks_numbers_to_all() {
    for (name, steps) in [("chain", Steps::Chain), ("tree", Steps::Tree)] {
        hold(name, steps.algorithm(), |_, _, _, i| Some(exact(0, i)));
    }
}

#[test]
fn a_gossip_brings_the_numbers_of_one_other_beside_the_own() {
    fn three_places_on(group: &Group, cuts: &Cuts) -> Vec<Round> {
        let (range, half) = (cuts.range(), cuts.range().len() / 2);
        let first = Cuts::even(&(range.start..range.start + half), group.size());
        rounds_of(&[gossip::phase(&first, 3, half)], group)
    }
    hold("gossip", three_places_on, |ranks, rank, length, i| match i.checked_sub(length / 2) {
        None => Some(exact(rank, i)),
        Some(i) if i < length / 2 => Some(exact((rank + ranks - 3 % ranks) % ranks, i)),
        Some(_) => Some(exact(rank, length - 1)),
    });
}

/// On the wire a number has p bits: each of at most P roundings on its way is off by 2⁻ᵖ of the partial sum, which is
/// at most the sum of magnitudes.
#[test]
fn with_halves_on_the_wire_ranks_still_agree_to_the_last_bit() {
    for (name, steps) in SUMS {
        for wire in WIRES {
            let unit = match wire {
                Wire::F32 => 2f64.powi(-24),
                Wire::Bf16 => 2f64.powi(-8),
                Wire::F16 => 2f64.powi(-11),
            };
            for ranks in [1, 2, 3, 5, 8, 9] {
                let results = run(steps.algorithm(), wire, ranks, 331, 40, rough);
                for (rank, (found, _)) in results.iter().enumerate() {
                    assert_eq!(
                        bits(found),
                        bits(&results[0].0),
                        "{name} {wire}: rank {rank} of {ranks} differs"
                    );
                }
                for (index, &found) in results[0].0.iter().enumerate() {
                    let each = (0..ranks).map(|r| f64::from(rough(r, index)));
                    let (sum, size) = each.fold((0.0, 0.0), |(sum, size), v| (sum + v, size + v.abs()));
                    let bound = (ranks + 1) as f64 * (unit + 2f64.powi(-24)) * size * 1.01;
                    assert!(
                        (f64::from(found) - sum).abs() <= bound,
                        "{name} {wire} of {ranks}: {found}, should be {sum}"
                    );
                }
            }
        }
    }
}

/// The table of docs/algorithms.md, for lengths that divide evenly.
#[test]
fn the_bytes_on_the_wire_are_those_of_the_table() {
    let n = 720;
    for (wire, size) in [(Wire::F32, 4.0), (Wire::Bf16, 2.0)] {
        for p in [2usize, 3, 4, 5, 6, 8, 9] {
            let (pf, bytes) = (p as f64, n as f64 * size);
            let most = |steps: Steps| {
                let sent =
                    run(steps.algorithm(), wire, p, n, 90, exact).into_iter().map(|(_, sent)| sent as f64);
                sent.fold(0.0, f64::max)
            };
            let once_around = 2.0 * (pf - 1.0) / pf * bytes;
            assert_eq!(most(Steps::Sum(Pattern::Ring)), once_around, "ring of {p}");
            assert_eq!(most(Steps::Sum(Pattern::Torus)), once_around, "torus of {p}");
            let core = f64::from(1 << p.ilog2());
            let extra = if p.is_power_of_two() { 0.0 } else { bytes };
            assert_eq!(
                most(Steps::Sum(Pattern::HalvingDoubling)),
                2.0 * (core - 1.0) / core * bytes + extra,
                "halving of {p}"
            );
            assert_eq!(
                most(Steps::Sum(Pattern::RecursiveDoubling)),
                f64::from(p.ilog2()) * bytes + extra,
                "tree of {p}"
            );
            assert_eq!(most(Steps::Scatter), once_around / 2.0, "reduce-scatter of {p}");
            if p.is_power_of_two() {
                assert_eq!(most(Steps::Halve), once_around / 2.0, "halving of {p}");
            }
            assert_eq!(most(Steps::Collect), once_around / 2.0, "allgather of {p}");
            assert_eq!(most(Steps::Chain), bytes, "chain of {p}");
            assert_eq!(most(Steps::Tree), pf.log2().ceil() * bytes, "broadcast tree of {p}");
        }
    }
}

/// What every rank ends with after collectives by these algorithms, one after the other, of a range cut like this. What
/// a rank does not own is lost after a reduce-scatter.
fn cut(algorithms: &[Steps], cuts: &Cuts, wire: Wire, chunk: usize) -> Vec<Vec<u32>> {
    let mails: Vec<Mail> = algorithms.iter().map(|_| Mail::default()).collect();
    let (length, ranks) = (cuts.range().end, cuts.ranks());
    let rank = async |rank: usize| {
        let region = Rc::new(Region::private(4 * length.max(1)).unwrap());
        region.write(0, &(0..length).map(|i| rough(rank, i)).collect::<Vec<_>>());
        for (index, (steps, mail)) in algorithms.iter().zip(&mails).enumerate() {
            if index > 0 {
                let (own, mut kept) = (cuts.part(rank), vec![f32::NAN; length]);
                region.read(own.start, &mut kept[own.clone()]);
                region.write(0, &kept);
            }
            let link = Rc::new(TurnByTurn { rank, size: ranks, mail: mail.clone(), calls: Cell::new(0) });
            let mut collective = Executor::new("test", steps.algorithm(), wire, link, &region).chunk(chunk);
            let slot = collective.prepare_cut(cuts).unwrap();
            collective.start(slot).unwrap();
            wait(&mut collective, &[slot]).await;
        }
        bits(&words(&region, cuts.range()))
    };
    in_turns((0..ranks).map(rank))
}

/// Parts that end at these places, dealt out to ranks beginning with `first`.
fn dealt(start: usize, mut ends: Vec<usize>, first: usize) -> Cuts {
    ends.sort_unstable();
    let (ranks, mut next) = (ends.len(), start);
    let mut parts = vec![0..0; ranks];
    for (index, end) in ends.iter().enumerate() {
        parts[(first + index) % ranks] = std::mem::replace(&mut next, start + end)..start + end;
    }
    Cuts::new(start..next, parts)
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(60))]

    /// Sums to their owners, and from these to all, are plain sums with the same cuts: to the bit, whatever the cuts.
    #[test]
    fn a_reduce_scatter_and_an_allgather_are_an_allreduce_with_these_cuts(
        ends in proptest::collection::vec(0usize..600, 1..9),
        first in 0usize..8,
        start in 0usize..9,
        chunk in 1usize..200,
        wire in proptest::sample::select(WIRES.to_vec()),
    ) {
        let cuts = dealt(start, ends, first);
        for (name, half, sum) in HALVES {
            let whole = cut(&[sum], &cuts, wire, chunk);
            let halves = cut(&[half, Steps::Collect], &cuts, wire, chunk);
            proptest::prop_assert_eq!(&whole, &halves, "{}", name);
            proptest::prop_assert!(whole.iter().all(|found| *found == whole[0]), "{}", name);
        }
    }
}
