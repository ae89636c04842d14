//! Recursive doubling: log₂ P exchanges of the whole range between ranks ever further apart. Fewest steps, most bytes:
//! for small messages.
//!
//! Rajeev Thakur, Rolf Rabenseifner, William Gropp: "Optimization of collective communication operations in MPICH",
//! Int. J. High Perform. Comput. Appl. 19 (2005). Where P is no power of two, the first ranks first add up in pairs,
//! one of each goes on, and the other gets the result in the end. Both ends of an exchange add the same two numbers,
//! and a + b is b + a: all ranks have the same bits.

use std::ops::Range;

use super::schedule::{OfPlace, Phase};
use crate::cuts::Cuts;

/// An allreduce.
pub fn phases(cuts: &Cuts) -> Vec<Phase> {
    let exchange = |step: u32| {
        let range = cuts.range().clone();
        Exchange {
            distance: 1 << step,
            elements: range.len(),
            adds: true,
            part: Box::new(move |_| range.clone()),
        }
    };
    folded(cuts, (0..cuts.ranks().ilog2()).map(exchange).collect())
}

/// What those that go on do at a time with the one so far away; `part` is what one of them sends.
pub struct Exchange {
    pub distance: usize,
    pub elements: usize,
    pub adds: bool,
    pub part: Box<dyn Fn(usize) -> Range<usize>>,
}

/// Exchanges among a power two of places. Where there are more, of places 2i and 2i+1 of the first ones the second goes
/// on, and these pairs have their rounds before and behind.
pub fn folded(cuts: &Cuts, exchanges: Vec<Exchange>) -> Vec<Phase> {
    let size = cuts.ranks();
    let extra = size - (1 << size.ilog2());
    let core = move |place: usize| match place {
        _ if place >= 2 * extra => Some(place - extra),
        _ if place % 2 == 1 => Some(place / 2),
        _ => None,
    };
    let in_pairs = |sends: usize, adds: bool| {
        let range = cuts.range().clone();
        let of = |side: usize| -> OfPlace {
            Box::new(move |place| (place < 2 * extra && place % 2 == side).then_some(place ^ 1))
        };
        Phase::new([size, 1, range.len()], adds, [sends, 1 - sends].map(of), move |_, _| range.clone())
    };
    let between = |Exchange { distance, elements, adds, part }: Exchange| {
        let place = move |core: usize| if core < extra { 2 * core + 1 } else { core + extra };
        let other = move |from: usize| core(from).map(|from| place(from ^ distance));
        let part = move |from: usize, _: usize| core(from).map_or(0..0, &part);
        Phase::new([size, 1, elements], adds, [Box::new(other), Box::new(other)], part)
    };
    let mut phases: Vec<Phase> = exchanges.into_iter().map(between).collect();
    if extra > 0 {
        phases.insert(0, in_pairs(0, true));
        phases.push(in_pairs(1, false));
    }
    phases
}
