//! Recursive doubling: log₂ P exchanges of the whole range between ranks ever further apart. Fewest steps, most bytes:
//! for small messages.
//!
//! Rajeev Thakur, Rolf Rabenseifner, William Gropp: "Optimization of collective communication operations in MPICH",
//! Int. J. High Perform. Comput. Appl. 19 (2005). Where P is no power of two, the first ranks first add up in pairs,
//! one of each goes on, and the other gets the result in the end. Both ends of an exchange add the same two numbers,
//! and a + b is b + a: all ranks have the same bits.

use std::ops::Range;

use super::schedule::{Apply, Group, PeerRange, Phase, Round, pairs};
use crate::cuts::Cuts;

/// An allreduce.
pub fn allreduce(group: &Group, cuts: &Cuts) -> Vec<Round> {
    let range = cuts.range();
    let fold = Fold::new(group);
    let mut rounds = fold.before(range);
    let steps = fold.core.size().ilog2();
    rounds.extend((0..steps).map(|step| match fold.in_core {
        true => {
            let part = PeerRange { peer: fold.core.ranks[fold.core.place ^ 1 << step], range: range.clone() };
            Round { send: Some(part.clone()), receive: Some((part, Apply::Add)) }
        }
        false => Round::default(),
    }));
    rounds.extend(fold.after(range));
    rounds
}

/// Its rounds.
pub fn phases(cuts: &Cuts) -> Vec<Phase> {
    let elements = cuts.range().len();
    let exchange = |step: u32| (1 << step, elements, true);
    folded(cuts, (0..cuts.ranks().ilog2()).map(exchange).collect())
}

/// Exchanges of those that go on, each over a distance, of so many elements, which are added or not; before them and
/// behind them the others of the pairs have their rounds.
pub fn folded(cuts: &Cuts, exchanges: Vec<(usize, usize, bool)>) -> Vec<Phase> {
    let (size, elements) = (cuts.ranks(), cuts.range().len());
    let extra = size - (1 << size.ilog2());
    let phase = |elements, adds, pairs| Phase { rounds: 1, elements, pairs, adds };
    let in_pairs = |sends: usize| {
        pairs(size, move |place| (place < 2 * extra && place % 2 == sends).then_some(place ^ 1))
    };
    let over = |distance: usize| {
        let core = move |place: usize| match place {
            _ if place >= 2 * extra => Some(place - extra),
            _ if place % 2 == 1 => Some(place / 2),
            _ => None,
        };
        let place = move |core: usize| if core < extra { 2 * core + 1 } else { core + extra };
        pairs(size, move |from| core(from).map(|from| place(from ^ distance)))
    };
    let mut phases = Vec::new();
    if extra > 0 {
        phases.push(phase(elements, true, in_pairs(0)));
    }
    phases.extend(
        exchanges.into_iter().map(|(distance, elements, adds)| phase(elements, adds, over(distance))),
    );
    if extra > 0 {
        phases.push(phase(elements, false, in_pairs(1)));
    }
    phases
}

/// How P ranks become a power of two, and P again.
pub struct Fold {
    /// The ranks that go on; `place` counts only if this rank does.
    pub core: Group,
    pub in_core: bool,
    /// The other one of this rank's pair, where it has one.
    partner: Option<usize>,
    pairs: bool,
}

impl Fold {
    pub fn new(group: &Group) -> Fold {
        let size = group.size();
        let extra = size - (1 << size.ilog2());
        // Of ranks 2i and 2i+1, i < extra, the second goes on.
        let goes_on = |place: &usize| *place >= 2 * extra || place % 2 == 1;
        let core: Vec<usize> = (0..size).filter(goes_on).collect();
        let place = core.iter().position(|&place| place == group.place);
        Fold {
            partner: (group.place < 2 * extra).then(|| group.ranks[group.place ^ 1]),
            in_core: place.is_some(),
            core: Group {
                ranks: core.iter().map(|&place| group.ranks[place]).collect(),
                place: place.unwrap_or(0),
            },
            pairs: extra > 0,
        }
    }

    /// The round in which pairs add up.
    pub fn before(&self, range: &Range<usize>) -> Vec<Round> {
        self.round(range, !self.in_core, Apply::Add)
    }

    /// The round in which those that did not go on get the result.
    pub fn after(&self, range: &Range<usize>) -> Vec<Round> {
        self.round(range, self.in_core, Apply::Replace)
    }

    fn round(&self, range: &Range<usize>, sends: bool, apply: Apply) -> Vec<Round> {
        let part = self.partner.map(|peer| PeerRange { peer, range: range.clone() });
        let round = match sends {
            true => Round { send: part, receive: None },
            false => Round { send: None, receive: part.map(|part| (part, apply)) },
        };
        if self.pairs { vec![round] } else { Vec::new() }
    }
}
