//! Strategies of data parallelism: who updates what.
//!
//! A strategy is a file of this room and a line in `WAYS`. It says which ranks compute and which of them own parameters
//! (`Owners`). Everything else follows from that: the script of a step (`plan`), where optimizer state lies, what
//! travels, what a checkpoint collects (`train`). May use: `cuts`. Used by: `config`, `plan`, `train`, `cli`.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

mod allreduce;
mod owners;
mod root;
mod server;
mod zero;

pub use owners::{Owners, Share};

/// What a job's ranks are like.
#[derive(Debug, Clone, Copy)]
pub struct Ranks {
    /// How many there are.
    pub ranks: usize,
    /// On so many nodes.
    pub nodes: usize,
    /// Whether the ranks of a node can have memory in common.
    pub in_common: bool,
}

/// A way to share the updates. `count` is the number that its flag was given, or 1.
pub trait Way: fmt::Debug + Sync {
    /// As `--sync` has it: `server`.
    fn name(&self) -> &'static str;

    /// Who updates, for `--help`: "rank 0 for all".
    fn help(&self) -> &'static str;

    /// What the number behind a colon is of, where the flag takes one: `server:2`.
    fn counts(&self) -> Option<&'static str> {
        None
    }

    /// The flag in messages.
    fn flag(&self, count: usize) -> String {
        match count {
            1 => format!("--sync {}", self.name()),
            _ => format!("--sync {}:{count}", self.name()),
        }
    }

    /// How many of so many ranks compute gradients: the first ones.
    fn computing(&self, _count: usize, ranks: usize) -> usize {
        ranks
    }

    /// Whether few ranks own everything: each other rank then sends them messages (`collective::star`), and they add up
    /// in the order of ranks, whatever `--allreduce` has.
    fn is_central(&self) -> bool {
        false
    }

    /// Whether the ranks of a node are to have parameters in common; `even` if every node has as many ranks.
    fn shares_memory(&self, _at: Ranks, _even: bool) -> bool {
        false
    }

    /// Who owns what among two ranks or more.
    fn owners(&self, count: usize, at: Ranks) -> Owners;
}

/// All of them, in the order of `--help`.
const WAYS: [&dyn Way; 4] = [&allreduce::Allreduce, &zero::Zero1, &root::Root, &server::Servers];

/// As the flag is written: `server[:K]`.
fn words(way: &dyn Way) -> String {
    format!("{}{}", way.name(), way.counts().map_or("", |_| "[:K]"))
}

/// Which ranks compute, and which of them update which parameters.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(into = "String")]
pub struct Strategy {
    way: &'static dyn Way,
    count: usize,
}

impl Strategy {
    /// Plain data parallelism: gradients go to all ranks, which share the updates only within a node.
    pub const ALLREDUCE: Strategy = Strategy { way: &allreduce::Allreduce, count: 1 };
    /// `--zero 1`.
    pub const ZERO_1: Strategy = Strategy { way: &zero::Zero1, count: 1 };

    /// One of each.
    pub fn all() -> impl Iterator<Item = Strategy> {
        WAYS.into_iter().map(|way| Strategy { way, count: 1 })
    }

    /// What `--help` says of `--sync`.
    pub fn help() -> String {
        let each = WAYS.map(|way| format!("{} ({})", way.help(), words(way)));
        format!("Who updates the parameters: {}", each.join("; "))
    }

    /// How many of so many ranks compute gradients.
    pub fn computing(self, ranks: usize) -> usize {
        self.way.computing(self.count, ranks)
    }

    /// Whether gradients are summed by few ranks in the order of ranks, whatever `--allreduce` has.
    pub fn is_central(self) -> bool {
        self.way.is_central()
    }

    /// Whether the ranks of a node are to have parameters in common; `even` if every node has as many ranks.
    pub fn shares_memory(self, at: Ranks, even: bool) -> bool {
        self.way.shares_memory(at, even)
    }

    /// Who owns what.
    pub fn owners(self, at: Ranks) -> Owners {
        if at.ranks == 1 { Owners::Everyone } else { self.way.owners(self.count, at) }
    }

    /// Who updates, in words, if that is done by these owners.
    pub fn describe(self, owners: Owners, ranks: usize, nodes: usize) -> String {
        let owned = owners.describe(ranks, nodes);
        if owners.are_apart() { format!("{self}; {owned}") } else { owned }
    }
}

impl PartialEq for Strategy {
    fn eq(&self, other: &Strategy) -> bool {
        (self.way.name(), self.count) == (other.way.name(), other.count)
    }
}

impl Eq for Strategy {}

impl From<Strategy> for String {
    fn from(strategy: Strategy) -> String {
        strategy.to_string()
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.way.flag(self.count))
    }
}

/// As `--sync` has it.
impl FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Strategy, String> {
        let (name, number) = text.split_once(':').map_or((text, None), |(name, number)| (name, Some(number)));
        let way = WAYS.into_iter().find(|way| way.name() == name);
        match (way, way.and_then(Way::counts), number.map(str::parse)) {
            (Some(way), _, None) => Ok(Strategy { way, count: 1 }),
            (Some(way), Some(_), Some(Ok(count))) if count > 0 => Ok(Strategy { way, count }),
            (Some(_), Some(what), Some(_)) => {
                Err(format!("`{}` is no number of {what}", &text[name.len() + 1..]))
            }
            _ => Err(format!("it is one of {}", WAYS.map(words).join(", "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuts::segment;

    #[test]
    fn names_are_read_and_others_are_refused() {
        for strategy in Strategy::all() {
            assert_eq!(strategy.way.name().parse(), Ok(strategy));
            assert!(Strategy::help().contains(strategy.way.help()));
        }
        let servers: Strategy = "server:3".parse().unwrap();
        assert_eq!((servers.computing(4), servers.to_string().as_str()), (1, "--sync server:3"));
        assert_ne!(servers, "server".parse().unwrap());
        for text in ["server:0", "server:-1", "server:", "root:1", "leader", ""] {
            assert!(text.parse::<Strategy>().is_err(), "{text}");
        }
    }

    /// Whatever a strategy says: every byte has an owner, those who own nothing and compute need messages, and the
    /// norm of all gradients is made of every share once.
    #[test]
    fn every_strategy_has_an_owner_for_every_byte() {
        let bucket = 0..64 * 60;
        let share = |_: usize, index: usize, count: usize| segment(&bucket, count, index);
        let several = ["server:2", "server:3"].map(|text| text.parse().unwrap());
        for strategy in Strategy::all().chain(several) {
            for ranks in 2..9 {
                let computing = strategy.computing(ranks);
                for (nodes, in_common) in [(1, false), (1, true), (2, false), (2, true)] {
                    if computing == 0 {
                        continue;
                    }
                    let at = Ranks { ranks, nodes, in_common };
                    let owners = strategy.owners(at);
                    let of: Vec<usize> = (0..ranks).map(|rank| rank * nodes / ranks).collect();
                    assert_eq!(computing, (0..ranks).filter(|&rank| !owners.serves(rank)).count());
                    let cuts = owners.cuts(0, &bucket, ranks, &share);
                    let owned: Vec<_> = (0..ranks).map(|rank| owners.owned(0, rank, &of, &share)).collect();
                    if owners.are_apart() {
                        let parts: Vec<_> = (0..ranks).map(|rank| cuts.part(rank).len()).collect();
                        assert_eq!(parts, owned.iter().map(|part| part.len()).collect::<Vec<_>>());
                        let idle = (0..computing).any(|rank| owned[rank].is_empty());
                        assert_eq!(strategy.is_central(), idle, "{strategy} with {ranks} ranks");
                        let normed: Option<Vec<_>> =
                            (0..ranks).map(|rank| owners.normed(rank, computing)).collect();
                        let mut normed: Vec<usize> = normed.into_iter().flatten().flatten().collect();
                        normed.sort_unstable();
                        assert!(normed.is_empty() || normed == (0..computing).collect::<Vec<_>>());
                    }
                }
            }
        }
    }
}
