//! Two dimensions: ranks stand in rows and columns. Rings along the rows leave each rank with the sum of a segment over
//! its row, rings along the columns add that up over all rows, and the rows gather. As few bytes as one ring, in
//! 2(R−1) + 2(C−1) steps instead of 2(RC−1).
//!
//! Hiroaki Mikami et al.: "Massively distributed SGD: ImageNet/ResNet-50 training in a flash", arXiv:1811.05233 (2018).

use super::ring;
use super::schedule::{OfPlace, Phase};
use crate::cuts::Cuts;

/// An allreduce: along the rows, twice along the columns, along the rows. Rows are as long as the largest divisor of P
/// up to √P is; for a prime it is the ring.
pub fn phases(cuts: &Cuts) -> Vec<Phase> {
    let (size, columns) = (cuts.ranks(), columns(cuts.ranks()));
    let by_row = Cuts::even(cuts.range(), columns);
    let row = |adds| {
        let Phase { rounds, elements, part, to, from, .. } = ring::phase(&by_row, adds);
        let along = |other: OfPlace| -> OfPlace {
            Box::new(move |place| Some(place / columns * columns + other(place % columns)?))
        };
        let part = move |place: usize, round| part(place % columns, round);
        Phase::new([size, rounds, elements], adds, [to, from].map(along), part)
    };
    let column = |adds| {
        let of = |column| ring::phase(&Cuts::even(by_row.part(column), size / columns), adds);
        let each: Vec<Phase> = (0..columns).map(of).collect();
        let (rounds, elements) = (each[0].rounds, each[0].elements);
        let part = move |place: usize, round: usize| (each[place % columns].part)(place / columns, round);
        Phase::round_trip([size, rounds, columns], elements, adds, part)
    };
    vec![row(true), column(true), column(false), row(false)]
}

/// Ranks in a row.
pub fn columns(size: usize) -> usize {
    (1..=size.isqrt()).rev().find(|&columns| size.is_multiple_of(columns)).unwrap_or(1)
}
