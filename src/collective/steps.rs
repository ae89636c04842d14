//! What each algorithm's messages are: those of all ranks, which a simulation counts, and of them those of one, which
//! the executor carries out. A star's turns, which overlap, are counted by themselves; a test holds both together.

use super::schedule::{Group, Phase, Round, rounds_of};
use super::{broadcast, gather, gossip, halving_doubling, recursive_doubling, ring, star, torus};
use crate::config::Pattern;
use crate::cuts::Cuts;

/// Who sends what to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Steps {
    /// A sum for all.
    Sum(Pattern),
    /// The half of the ring's that leaves a rank the sum of what it owns.
    Scatter,
    /// The halving alone, which leaves a rank the sum of what it owns.
    Halve,
    /// The half of the ring's that brings to all what each owns.
    Collect,
    /// Sums for few owners.
    ToOwners,
    /// What few own for all.
    FromOwners,
    /// Everything to the rank so many places on.
    Shift(usize),
    /// A few numbers of every rank for all.
    Gather,
    /// What the first rank has, from each to the next.
    Chain,
    /// The same, from all who have it.
    Tree,
}

impl Steps {
    /// The rounds of a rank, as the executor takes them.
    pub fn algorithm(self) -> impl Fn(&Group, &Cuts) -> Vec<Round> + Copy + 'static {
        move |group, cuts| self.rounds(group, cuts)
    }

    /// The rounds of a rank.
    pub fn rounds(self, group: &Group, cuts: &Cuts) -> Vec<Round> {
        match self {
            Steps::ToOwners => star::to_owners(group, cuts),
            Steps::FromOwners => star::from_owners(group, cuts),
            _ => rounds_of(&self.phases(cuts), group),
        }
    }

    /// Whether ranks send what came before.
    pub fn pass_on(self) -> bool {
        match self {
            Steps::Sum(_) | Steps::Scatter | Steps::Halve | Steps::Collect | Steps::Chain | Steps::Tree => {
                true
            }
            Steps::ToOwners | Steps::FromOwners | Steps::Shift(_) | Steps::Gather => false,
        }
    }

    /// The rounds of all.
    pub fn phases(self, cuts: &Cuts) -> Vec<Phase> {
        match self {
            Steps::Sum(Pattern::Ring) => vec![ring::phase(cuts, true), ring::phase(cuts, false)],
            Steps::Sum(Pattern::HalvingDoubling) => halving_doubling::phases(cuts),
            Steps::Sum(Pattern::RecursiveDoubling) => recursive_doubling::phases(cuts),
            Steps::Sum(Pattern::Torus) => torus::phases(cuts),
            Steps::Scatter => vec![ring::phase(cuts, true)],
            Steps::Halve => halving_doubling::halving_phases(cuts),
            Steps::Collect => vec![ring::phase(cuts, false)],
            Steps::ToOwners => star::phases(cuts, true),
            Steps::FromOwners => star::phases(cuts, false),
            Steps::Shift(distance) => vec![gossip::phase(cuts, distance, 0)],
            Steps::Gather => gather::phases(cuts),
            Steps::Chain => broadcast::chain(cuts),
            Steps::Tree => broadcast::tree(cuts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::schedule::Apply;
    use super::*;
    use crate::cuts::segment;

    /// What every rank's rounds have in common is what `phases` say, for all that go in step.
    #[test]
    fn phases_are_the_rounds_of_all_ranks() {
        for size in 2..=20usize {
            for cuts in [Cuts::even(&(3..1000), size), Cuts::even(&(0..7), size)] {
                let sums =
                    [Pattern::Ring, Pattern::HalvingDoubling, Pattern::RecursiveDoubling, Pattern::Torus];
                let others = [Steps::Scatter, Steps::Halve, Steps::Collect, Steps::Shift(1), Steps::Gather];
                for steps in sums.map(Steps::Sum).into_iter().chain(others) {
                    let rounds: Vec<_> =
                        (0..size).map(|rank| steps.rounds(&Group::all(rank, size), &cuts)).collect();
                    let phases = steps.phases(&cuts);
                    let of_phases: usize = phases.iter().map(|phase| phase.rounds).sum();
                    assert!(rounds.iter().all(|rounds| rounds.len() == of_phases), "{steps:?} of {size}");
                    let each = phases.iter().flat_map(|phase| vec![phase; phase.rounds]);
                    for (index, phase) in each.enumerate() {
                        let now = || rounds.iter().map(|rounds| &rounds[index]);
                        let longest = now().filter_map(|round| Some(round.send.as_ref()?.range.len())).max();
                        assert_eq!(longest, Some(phase.elements), "{steps:?} of {size}, round {index}");
                        let sent = now()
                            .enumerate()
                            .filter_map(|(rank, round)| Some((rank, round.send.as_ref()?.peer)));
                        assert_eq!(sent.collect::<Vec<_>>(), phase.pairs(), "{steps:?} of {size}: {index}");
                        for (rank, round) in now().enumerate() {
                            // Whom a message comes from sends it.
                            let met = round.receive.as_ref().is_none_or(|(part, _)| {
                                let sent = rounds[part.peer][index].send.as_ref();
                                sent.is_some_and(|sent| {
                                    (sent.peer, sent.range.len()) == (rank, part.range.len())
                                })
                            });
                            assert!(met, "{steps:?} of {size}, round {index}");
                            let adds = round.receive.as_ref().map(|(_, apply)| *apply == Apply::Add);
                            assert!(adds.is_none_or(|adds| adds == phase.adds), "{steps:?} of {size}");
                        }
                    }
                }
            }
        }
    }

    /// An owner has as many rounds as there are messages for it, and so has one that deals with many owners.
    #[test]
    fn a_star_takes_what_its_busiest_place_has_to_do() {
        let with = |others: usize, owners: usize, elements: usize| {
            let owned = |place: usize| match place.checked_sub(others) {
                Some(owner) => segment(&(0..elements), owners, owner),
                None => 0..0,
            };
            Cuts::new(0..elements, (0..others + owners).map(owned).collect())
        };
        for (others, owners, elements) in
            [(1, 1, 10), (3, 1, 1 << 20), (5, 2, 1 << 19), (1, 3, 99), (4, 4, 8)]
        {
            let (cuts, size) = (with(others, owners, elements), others + owners);
            for steps in [Steps::ToOwners, Steps::FromOwners] {
                let rounds = |rank: usize| steps.rounds(&Group::all(rank, size), &cuts);
                let most = (0..size).map(|rank| rounds(rank).len()).max().unwrap();
                let phases = steps.phases(&cuts);
                let in_all: usize = phases.iter().map(|phase| phase.rounds).sum();
                // Until the last pair begins the first ones have had a turn more each.
                assert_eq!(in_all, most + others.min(owners) - 1, "{steps:?}: {others} and {owners}");
                // Every pair has its turn once.
                let turns = &phases[..others.max(owners)];
                let mut met: Vec<_> = turns.iter().flat_map(|phase| phase.pairs()).collect();
                met.sort_unstable();
                met.dedup();
                assert_eq!(met.len(), others * owners);
                let to_owners = steps == Steps::ToOwners;
                assert!(
                    met.iter().all(|&(from, to)| (from < others) == to_owners && (to < others) != to_owners)
                );
            }
        }
        // Rank 0 alone owns everything, and computes too.
        let root = Cuts::whole(&(0..100), 4, 0);
        let sent: Vec<_> = Steps::ToOwners.phases(&root).iter().flat_map(|phase| phase.pairs()).collect();
        assert_eq!(sent, [(1, 0), (2, 0), (3, 0)]);
    }
}
