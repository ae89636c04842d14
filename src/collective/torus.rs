//! Two dimensions: ranks stand in rows and columns. Rings along the rows leave each rank with the sum of a segment over
//! its row, rings along the columns add that up over all rows, and the rows gather. As few bytes as one ring, in
//! 2(R−1) + 2(C−1) steps instead of 2(RC−1).
//!
//! Hiroaki Mikami et al.: "Massively distributed SGD: ImageNet/ResNet-50 training in a flash", arXiv:1811.05233 (2018).

use super::ring;
use super::schedule::{Group, Phase, Round, pairs};
use crate::cuts::Cuts;

/// An allreduce. Rows are as long as the largest divisor of P up to √P is; for a prime it is the ring.
pub fn allreduce(group: &Group, cuts: &Cuts) -> Vec<Round> {
    let size = group.size();
    let columns = columns(size);
    let (row, column) = (group.place / columns, group.place % columns);
    let of = |places: Vec<usize>, place| Group {
        ranks: places.into_iter().map(|place| group.ranks[place]).collect(),
        place,
    };
    let along_row = of((0..columns).map(|c| row * columns + c).collect(), column);
    let along_column = of((0..size / columns).map(|r| r * columns + column).collect(), row);
    let by_row = Cuts::even(cuts.range(), columns);
    let mut rounds = ring::reduce_scatter(&along_row, &by_row);
    rounds.extend(ring::allreduce(&along_column, &Cuts::even(by_row.part(column), size / columns)));
    rounds.extend(ring::allgather(&along_row, &by_row));
    rounds
}

/// Its rounds: along the rows, twice along the columns, along the rows.
pub fn phases(cuts: &Cuts) -> Vec<Phase> {
    let (size, columns) = (cuts.ranks(), columns(cuts.ranks()));
    let along_row = move |place: usize| Some(place / columns * columns + (place + 1) % columns);
    let along_column = move |place: usize| Some((place + columns) % size);
    let by_row = Cuts::even(cuts.range(), columns);
    let by_column = Cuts::even(by_row.part(0), size / columns);
    let row = |adds| Phase { pairs: pairs(size, along_row), ..ring::phase(&by_row, adds) };
    let column = |adds| Phase { pairs: pairs(size, along_column), ..ring::phase(&by_column, adds) };
    vec![row(true), column(true), column(false), row(false)]
}

/// Ranks in a row.
pub fn columns(size: usize) -> usize {
    (1..=size.isqrt()).rev().find(|&columns| size.is_multiple_of(columns)).unwrap_or(1)
}
