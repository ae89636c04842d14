//! Strategies of data parallelism: who updates what.
//!
//! A strategy is a file of this module and a line in `WAYS`. It says which ranks compute and which of them own
//! parameters (`Owners`), or that every rank has parameters of its own and when these come together (`Relaxed`).
//! Everything else follows from that: the script of a step (`plan`), where optimizer state lies, what travels, what a
//! checkpoint collects (`train`). May use: `cuts`. Used by: `config`, `plan`, `train`, `cli`.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

mod allreduce;
mod bmuf;
mod easgd;
mod gossip;
mod local;
mod owners;
mod relaxed;
mod root;
mod server;
mod server_async;
mod zero;

pub use owners::{Owners, Seat, Share};
pub use relaxed::{Meeting, Outer, OuterFlags, Relaxed};
pub use server_async::AsyncOrder;

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

/// What of a bucket a rank has no longer than it needs it, but for the part that it updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sharded {
    /// Gradients: until their sum has come to its owners.
    pub gradients: bool,
    /// Parameters: while layers read them. The ranks of one node may still have all of them in common.
    pub parameters: bool,
}

/// A number that stands behind the colon of a strategy.
#[derive(Debug, Clone, Copy)]
pub struct Number {
    /// As `--help` calls it: `K`.
    name: &'static str,
    /// What it is of, in messages: "servers".
    what: &'static str,
    /// Where none is given; else one must be.
    usual: Option<f32>,
    /// Whether it counts something: at least 1, and whole. Else it is from 0 to 1.
    counts: bool,
}

impl Number {
    fn read(&self, text: &str) -> Result<f32, String> {
        let fits = |number: &f32| match self.counts {
            true => *number >= 1.0 && number.fract() == 0.0 && *number <= 1e6,
            false => (0.0..=1.0).contains(number),
        };
        text.parse().ok().filter(fits).ok_or_else(|| match self.counts {
            true => format!("`{text}` is no number of {}", self.what),
            false => format!("`{text}` is no {}: it is from 0 to 1", self.what),
        })
    }
}

/// Most numbers that a strategy takes.
const NUMBERS: usize = 2;

/// A way to share the updates. `count` is the first number that its flag was given, or 1.
pub trait Way: fmt::Debug + Sync {
    /// As `--sync` has it: `server`.
    fn name(&self) -> &'static str;

    /// Who updates, for `--help`: "rank 0 for all".
    fn help(&self) -> &'static str;

    /// What the numbers behind a colon are, where the flag takes any: `server:2`.
    fn numbers(&self) -> &'static [Number] {
        &[]
    }

    /// The flag in messages.
    fn flag(&self, numbers: &[f32]) -> String {
        let is_usual = |(number, given): (&Number, &f32)| number.usual == Some(*given);
        if self.numbers().iter().zip(numbers).all(is_usual) {
            return format!("--sync {}", self.name());
        }
        let numbers: Vec<String> = numbers.iter().map(f32::to_string).collect();
        format!("--sync {}:{}", self.name(), numbers.join(","))
    }

    /// How ranks come together that have parameters of their own; `None` where all have the same. `outer` is what flags
    /// say of the step that all of so many ranks then do.
    fn relaxed(&self, _numbers: &[f32], _outer: &OuterFlags, _ranks: usize) -> Option<Relaxed> {
        None
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

    /// Whether owners update by what each rank sends as it comes, and answer that rank alone.
    fn is_asynchronous(&self) -> bool {
        false
    }

    /// Whether the ranks of a node are to have parameters in common; `even` if every node has as many ranks.
    fn shares_memory(&self, _at: Ranks, _even: bool) -> bool {
        false
    }

    /// What a rank does not keep of what others update.
    fn sharded(&self) -> Sharded {
        Sharded::default()
    }

    /// Who owns what among two ranks or more.
    fn owners(&self, count: usize, at: Ranks) -> Owners;
}

/// All of them, in the order of `--help`.
const WAYS: [&dyn Way; 11] = [
    &allreduce::Allreduce,
    &zero::Zero(1),
    &zero::Zero(2),
    &zero::Zero(3),
    &root::Root,
    &server::Servers,
    &server_async::AsyncServers,
    &local::Local,
    &bmuf::BlockMomentum,
    &easgd::Elastic,
    &gossip::Gossip,
];

/// As the flag is written: `server[:K]`, `easgd:H,ALPHA`.
fn words(way: &dyn Way) -> String {
    let numbers = way.numbers();
    let names = numbers.iter().map(|number| number.name).collect::<Vec<_>>().join(",");
    match numbers.first() {
        None => way.name().to_string(),
        Some(Number { usual: Some(_), .. }) => format!("{}[:{names}]", way.name()),
        Some(_) => format!("{}:{names}", way.name()),
    }
}

/// Which ranks compute, and which of them update which parameters.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(into = "String")]
pub struct Strategy {
    way: &'static dyn Way,
    /// As many as the way takes, then zeros.
    numbers: [f32; NUMBERS],
}

impl Strategy {
    /// Plain data parallelism: gradients go to all ranks, which share the updates only within a node.
    pub const ALLREDUCE: Strategy = Strategy { way: &allreduce::Allreduce, numbers: [0.0; NUMBERS] };
    /// `--zero 1`.
    pub const ZERO_1: Strategy = Strategy { way: &zero::Zero(1), numbers: [0.0; NUMBERS] };
    /// `--zero 2`.
    pub const ZERO_2: Strategy = Strategy { way: &zero::Zero(2), numbers: [0.0; NUMBERS] };
    /// `--zero 3`.
    pub const ZERO_3: Strategy = Strategy { way: &zero::Zero(3), numbers: [0.0; NUMBERS] };

    /// One of each, with usual numbers, or with ones.
    pub fn all() -> impl Iterator<Item = Strategy> {
        WAYS.into_iter().map(|way| {
            let mut numbers = [0.0; NUMBERS];
            for (number, place) in way.numbers().iter().zip(&mut numbers) {
                *place = number.usual.unwrap_or(1.0);
            }
            Strategy { way, numbers }
        })
    }

    /// `--local-steps`: so many between two averages of the parameters.
    pub fn local(steps: usize) -> Strategy {
        Strategy { way: &local::Local, numbers: [steps as f32, 0.0] }
    }

    /// The same with another number of steps between two meetings, where the ranks have parameters of their own.
    pub fn with_local_steps(self, steps: usize) -> Strategy {
        Strategy { numbers: [steps as f32, self.numbers[1]], ..self }
    }

    /// The numbers that it takes.
    fn given(&self) -> &[f32] {
        &self.numbers[..self.way.numbers().len()]
    }

    /// The first number.
    fn count(self) -> usize {
        self.given().first().map_or(1, |&count| count as usize)
    }

    /// Whether every rank has parameters of its own.
    pub fn is_relaxed(self) -> bool {
        self.relaxed(&OuterFlags::default(), 1).is_some()
    }

    /// How so many ranks come together that have parameters of their own; `None` where all have the same.
    pub fn relaxed(self, outer: &OuterFlags, ranks: usize) -> Option<Relaxed> {
        self.way.relaxed(self.given(), outer, ranks)
    }

    /// Whether parameters themselves go from rank to rank, and no sums.
    pub fn sends_parameters(self) -> bool {
        self.relaxed(&OuterFlags::default(), 1).is_some_and(|relaxed| relaxed.sends_parameters())
    }

    /// Whether ranks meet by a step of SGD, which flags may say more of.
    pub fn has_outer_step(self) -> bool {
        let meeting = self.relaxed(&OuterFlags::default(), 1).map(|relaxed| relaxed.meeting);
        matches!(meeting, Some(Meeting::Anchor { .. }))
    }

    /// What `--help` says of `--sync`.
    pub fn help() -> String {
        let each = WAYS.map(|way| format!("{} ({})", way.help(), words(way)));
        format!("Who updates the parameters: {}", each.join("; "))
    }

    /// How many of so many ranks compute gradients.
    pub fn computing(self, ranks: usize) -> usize {
        self.way.computing(self.count(), ranks)
    }

    /// Whether gradients are summed by few ranks in the order of ranks, whatever `--allreduce` has.
    pub fn is_central(self) -> bool {
        self.way.is_central()
    }

    /// Whether owners update by what each rank sends as it comes, and answer that rank alone.
    pub fn is_asynchronous(self) -> bool {
        self.way.is_asynchronous()
    }

    /// Whether a rank's gradients update by themselves, and not in a sum.
    pub fn updates_alone(self) -> bool {
        self.is_relaxed() || self.is_asynchronous()
    }

    /// Whether the ranks of a node are to have parameters in common; `even` if every node has as many ranks.
    pub fn shares_memory(self, at: Ranks, even: bool) -> bool {
        self.way.shares_memory(at, even)
    }

    /// What a rank does not keep of what others update; nothing where it is alone.
    pub fn sharded(self, ranks: usize) -> Sharded {
        if ranks == 1 { Sharded::default() } else { self.way.sharded() }
    }

    /// Who owns what.
    pub fn owners(self, at: Ranks) -> Owners {
        if at.ranks == 1 { Owners::Everyone } else { self.way.owners(self.count(), at) }
    }

    /// Who updates, in words, if that is done by these owners.
    pub fn describe(self, owners: Owners, ranks: usize, nodes: usize) -> String {
        let owned = owners.describe(ranks, nodes);
        match (owners.are_apart(), self.is_relaxed()) {
            (_, true) => format!("{self}; {}", self.way.help()),
            (true, _) => format!("{self}; {owned}"),
            _ => owned,
        }
    }
}

impl PartialEq for Strategy {
    fn eq(&self, other: &Strategy) -> bool {
        (self.way.name(), self.given()) == (other.way.name(), other.given())
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
        f.write_str(&self.way.flag(self.given()))
    }
}

/// As `--sync` has it.
impl FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Strategy, String> {
        let (name, given) = text.split_once(':').map_or((text, None), |(name, given)| (name, Some(given)));
        let Some(way) = WAYS.into_iter().find(|way| way.name() == name) else {
            return Err(format!("it is one of {}", WAYS.map(words).join(", ")));
        };
        let given: Vec<&str> = given.map_or(Vec::new(), |given| given.split(',').collect());
        let wanted = way.numbers();
        if given.len() > wanted.len() {
            return Err(format!("it is {}", words(way)));
        }
        let mut numbers = [0.0; NUMBERS];
        for (index, (number, place)) in wanted.iter().zip(&mut numbers).enumerate() {
            *place = match (given.get(index), number.usual) {
                (Some(text), _) => number.read(text)?,
                (None, Some(usual)) => usual,
                (None, None) => return Err(format!("{} is missing: it is {}", number.name, words(way))),
            };
        }
        Ok(Strategy { way, numbers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuts::segment;

    #[test]
    fn names_are_read_and_others_are_refused() {
        for strategy in Strategy::all() {
            let flag = strategy.to_string();
            // Some have flags of their own.
            if let Some(written) = flag.strip_prefix("--sync ") {
                assert_eq!(written.parse(), Ok(strategy), "{flag}");
            }
            assert!(Strategy::help().contains(strategy.way.help()));
        }
        let servers: Strategy = "server:3".parse().unwrap();
        assert_eq!((servers.computing(4), servers.to_string().as_str()), (1, "--sync server:3"));
        assert_ne!(servers, "server".parse().unwrap());
        let elastic: Strategy = "easgd:4,0.25".parse().unwrap();
        assert_eq!(elastic.to_string(), "--sync easgd:4,0.25");
        let none = OuterFlags::default();
        let meets = elastic.relaxed(&none, 2).unwrap();
        assert_eq!(meets, Relaxed { every: 4, meeting: Meeting::Elastic { alpha: 0.25 } });
        let Some(Relaxed { every: 8, meeting: Meeting::Anchor { outer, resets: true } }) =
            "bmuf".parse::<Strategy>().unwrap().relaxed(&none, 4)
        else {
            panic!("CNTK's defaults");
        };
        assert_eq!(outer, Outer { rate: 1.0, momentum: 0.75, nesterov: true });
        let given = OuterFlags { rate: Some(0.5), momentum: Some(0.125), nesterov: true };
        let local = Strategy::local(3).relaxed(&given, 4).unwrap();
        let outer = Outer { rate: 0.5, momentum: 0.125, nesterov: true };
        assert_eq!(local, Relaxed { every: 3, meeting: Meeting::Anchor { outer, resets: false } });
        for text in [
            "server:0",
            "server:-1",
            "server:",
            "root:1",
            "leader",
            "",
            "local",
            "local:0",
            "local:1.5",
            "local:2,3",
            "easgd:4",
            "easgd:4,1.5",
            "easgd:4,x",
            "easgd:4,nan",
            "bmuf:-2",
        ] {
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
                    let seats = Seat::all(&of);
                    assert_eq!(computing, (0..ranks).filter(|&rank| !owners.serves(rank)).count());
                    let cuts = owners.cuts(0, &bucket, ranks, &share);
                    let owned: Vec<_> =
                        (0..ranks).map(|rank| owners.owned(0, rank, seats[rank], &share)).collect();
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
