//! Strategies of data parallelism: who updates what.
//!
//! `Strategy` is one enum. It says which ranks compute and which of them own parameters (`Owners`), or that every rank
//! has parameters of its own and when these come together (`Relaxed`). Everything else follows from that: the script of
//! a step (`plan`), where optimizer state lies, what travels, what a checkpoint collects (`train`). May use: `cuts`.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

mod owners;
mod relaxed;

pub use owners::{OwnerShare, Owners, Seat};
pub use relaxed::{ModelAveraging, Outer, OuterFlags, Relaxed};

/// Which ranks compute, and which of them update which parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Strategy {
    /// Plain data parallelism: sums of gradients go to all ranks. The ranks of a node have their parameters in common
    /// where they can, and then share the update.
    Allreduce,
    /// ZeRO, by its stage: all ranks share the updates and the optimizer's state, over nodes too; from stage 2 on
    /// nobody keeps gradients that others update, and in stage 3 no parameters either. Samyam Rajbhandari, Jeff Rasley,
    /// Olatunji Ruwase, Yuxiong He: "ZeRO: memory optimizations toward training trillion parameter models", SC 2020.
    /// PyTorch calls the last two SHARD_GRAD_OP and FULL_SHARD (Yanli Zhao et al.: "PyTorch FSDP", VLDB 2023).
    Zero(u8),
    /// One rank updates for all, as `torch.nn.DataParallel` and TensorFlow's single parameter device do. It is here to
    /// be measured: the link of that rank carries all gradients and all parameters.
    Root,
    /// Synchronous parameter servers: so many last ranks own the parameters and compute nothing else. Mu Li et al.:
    /// "Scaling distributed machine learning with the parameter server", OSDI 2014; MXNet's `dist_sync`.
    Server(usize),
    /// Asynchronous parameter servers: each rank's gradients update as they come, and nobody waits for another rank.
    /// Jeffrey Dean et al.: "Large scale distributed deep networks", NeurIPS 2012 (Downpour SGD); MXNet's `dist_async`;
    /// CNTK's `DataParallelASGD`.
    ServerAsync(usize),
    /// Local SGD: ranks average their parameters every so many steps. With `--outer-momentum` it is SlowMo, with
    /// Nesterov's and AdamW within it is DiLoCo. Sebastian Stich: "Local SGD converges fast and communicates little",
    /// ICLR 2019; Jianyu Wang, Vinayak Tantia, Nicolas Ballas, Michael Rabbat: "SlowMo", ICLR 2020; Arthur Douillard et
    /// al.: "DiLoCo", 2023.
    Local(usize),
    /// Blockwise model-update filtering, with CNTK's defaults: block momentum 1 − 1/P for P ranks, Nesterov's, block
    /// learning rate 1, and the ranks' own optimizers start anew with every block of so many steps. Kai Chen, Qiang
    /// Huo: "Scalable training of deep learning machines by incremental block training with intra-block parallel
    /// optimization and blockwise model-update filtering", ICASSP 2016.
    Bmuf(usize),
    /// Elastic averaging: every so many steps each rank and a centre that all know draw each other nearer, by this
    /// share. Sixin Zhang, Anna Choromanska, Yann LeCun: "Deep learning with elastic averaging SGD", NeurIPS 2015, the
    /// synchronous form: x_r += α·(c − x_r), and with the x_r before that c += α·Σ(x_r − c).
    Easgd(usize, f32),
    /// In each step every rank averages its parameters with those of one other, which is further away in the next step:
    /// 1, 2, 4, … places, and from the beginning again. After one such round each has something of everyone. A rank
    /// gives half of what it has and takes half of another's, so that the mean over ranks stays, and no weights are
    /// needed to push it right. Bicheng Ying, Kun Yuan, Yiming Chen, Hanbin Hu, Pan Pan, Wotao Yin: "Exponential graph
    /// is provably efficient for decentralized deep training", NeurIPS 2021 (the one-peer graph); Mahmoud Assran,
    /// Nicolas Loizou, Nicolas Ballas, Michael Rabbat: "Stochastic gradient push", ICML 2019.
    Gossip,
}

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

/// Whose gradients an asynchronous server takes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AsyncOrder {
    /// Those that are there first: fastest, and another order each time.
    #[default]
    Arrival,
    /// Those of one rank after the other: the same bits each time.
    RoundRobin,
}

use Strategy::{Allreduce, Bmuf, Easgd, Gossip, Local, Root, Server, ServerAsync, Zero};

impl Strategy {
    /// One of each in the order of `--help`, with usual numbers, or with ones.
    pub fn all() -> impl Iterator<Item = Strategy> {
        let shared = [Allreduce, Zero(1), Zero(2), Zero(3), Root, Server(1), ServerAsync(1)];
        shared.into_iter().chain([Local(1), Bmuf(BLOCK), Easgd(1, 1.0), Gossip])
    }

    /// As `--sync` has it, the numbers behind its colon, and who updates, for `--help`.
    fn described(self) -> (&'static str, &'static [StrategyNumber], &'static str) {
        match self {
            Allreduce => ("allreduce", &[], "every rank, from an allreduce of the gradients"),
            Zero(1) => ("zero1", &[], "every rank its share, as --zero 1"),
            Zero(2) => ("zero2", &[], "the same, and it keeps no other gradients, as --zero 2"),
            Zero(_) => ("zero3", &[], "nor other parameters, as --zero 3"),
            Root => ("root", &[], "rank 0 for all"),
            Server(_) => (
                "server",
                &[SERVERS],
                "the last K ranks, which do nothing else: a synchronous parameter server",
            ),
            ServerAsync(_) => (
                "server-async",
                &[SERVERS],
                "the same for each rank's gradients by themselves, as they come: an asynchronous one",
            ),
            Local(_) => (
                "local",
                &[STEPS],
                "every rank its own parameters, which are averaged every H steps, as --local-steps H",
            ),
            Bmuf(_) => {
                let steps = const { &[StrategyNumber { usual: Some(BLOCK as f32), ..STEPS }] };
                ("bmuf", steps, "the same with block momentum, as CNTK has it")
            }
            Easgd(..) => (
                "easgd",
                &[STEPS, ATTRACTION],
                "the same with a centre and ranks that attract each other by ALPHA every H steps",
            ),
            Gossip => ("gossip", &[], "the same with one other rank each step, while both compute"),
        }
    }

    /// The strategy with these numbers, as many as it takes.
    fn with(self, numbers: &[f32]) -> Strategy {
        let count = numbers.first().map_or(1, |&count| count as usize);
        match self {
            Server(_) => Server(count),
            ServerAsync(_) => ServerAsync(count),
            Local(_) => Local(count),
            Bmuf(_) => Bmuf(count),
            Easgd(..) => Easgd(count, numbers[1]),
            Allreduce | Zero(_) | Root | Gossip => self,
        }
    }

    /// As the flag is written: `server[:K]`, `easgd:H,ALPHA`.
    fn words(self) -> String {
        let (name, numbers, _) = self.described();
        let names = numbers.iter().map(|number| number.name).collect::<Vec<_>>().join(",");
        match numbers.first() {
            None => name.to_string(),
            Some(StrategyNumber { usual: Some(_), .. }) => format!("{name}[:{names}]"),
            Some(_) => format!("{name}:{names}"),
        }
    }

    /// What `--help` says of `--sync`.
    pub fn help() -> String {
        let each =
            Strategy::all().map(|strategy| format!("{} ({})", strategy.described().2, strategy.words()));
        format!("Who updates the parameters: {}", each.collect::<Vec<_>>().join("; "))
    }

    /// Whether every rank has parameters of its own.
    pub fn is_relaxed(self) -> bool {
        matches!(self, Local(_) | Bmuf(_) | Easgd(..) | Gossip)
    }

    /// How so many ranks come together that have parameters of their own; `None` where all have the same. `outer` is
    /// what flags say of the step that all ranks then do.
    pub fn relaxed(self, outer: &OuterFlags, ranks: usize) -> Option<Relaxed> {
        let anchor = |momentum, resets| {
            let outer = outer.or(Outer { rate: 1.0, momentum, nesterov: resets });
            ModelAveraging::Anchor { outer, resets }
        };
        let (every, meeting) = match self {
            Local(steps) => (steps, anchor(0.0, false)),
            Bmuf(steps) => (steps, anchor(1.0 - 1.0 / ranks as f32, true)),
            Easgd(steps, alpha) => (steps, ModelAveraging::Elastic { alpha }),
            Gossip => ((ranks.next_power_of_two().trailing_zeros() as usize).max(1), ModelAveraging::Gossip),
            Allreduce | Zero(_) | Root | Server(_) | ServerAsync(_) => return None,
        };
        Some(Relaxed { every, meeting })
    }

    /// Whether parameters themselves go from rank to rank, and no sums.
    pub fn sends_parameters(self) -> bool {
        self == Gossip
    }

    /// Whether ranks meet by a step of SGD, which flags may say more of.
    pub fn has_outer_step(self) -> bool {
        matches!(self, Local(_) | Bmuf(_))
    }

    /// How many of so many ranks compute gradients: the first ones.
    pub fn computing(self, ranks: usize) -> usize {
        match self {
            Server(servers) | ServerAsync(servers) => ranks.saturating_sub(servers),
            _ => ranks,
        }
    }

    /// Whether few ranks own everything: each other rank then sends them messages (`collective::star`), and they add up
    /// in the order of ranks, whatever `--allreduce` has.
    pub fn is_central(self) -> bool {
        matches!(self, Root | Server(_) | ServerAsync(_))
    }

    /// Whether owners update by what each rank sends as it comes, and answer that rank alone.
    pub fn is_asynchronous(self) -> bool {
        matches!(self, ServerAsync(_))
    }

    /// Whether a rank's gradients update by themselves, and not in a sum.
    pub fn updates_alone(self) -> bool {
        self.is_relaxed() || self.is_asynchronous()
    }

    /// Whether the ranks of a node are to have parameters in common; `even` if every node has as many ranks.
    pub fn shares_memory(self, at: Ranks, even: bool) -> bool {
        match self {
            Allreduce => true,
            // What the ranks of a node have in common is there once: only between nodes can parameters be divided
            // further.
            Zero(stage) => at.nodes == 1 || even && stage < 3,
            _ => false,
        }
    }

    /// What a rank does not keep of what others update; nothing where it is alone.
    pub fn sharded(self, ranks: usize) -> Sharded {
        match self {
            Zero(stage) if ranks > 1 => Sharded { gradients: stage >= 2, parameters: stage >= 3 },
            _ => Sharded::default(),
        }
    }

    /// Who owns what.
    pub fn owners(self, at: Ranks) -> Owners {
        let ranks = at.ranks;
        match self {
            _ if ranks == 1 => Owners::Everyone,
            Allreduce if at.in_common => Owners::Node,
            // The ranks of one node share by themselves, without messages.
            Zero(1) if at.in_common && at.nodes == 1 => Owners::Node,
            Zero(_) => Owners::Apart { first: 0, count: ranks, computing: ranks },
            Root => Owners::Apart { first: 0, count: 1, computing: ranks },
            Server(count) | ServerAsync(count) => {
                Owners::Apart { first: ranks - count, count, computing: ranks - count }
            }
            Allreduce | Local(_) | Bmuf(_) | Easgd(..) | Gossip => Owners::Everyone,
        }
    }

    /// Who updates, in words, if that is done by these owners.
    pub fn describe(self, owners: Owners, ranks: usize, nodes: usize) -> String {
        let owned = owners.describe(ranks, nodes);
        match (owners.are_apart(), self.is_relaxed()) {
            (_, true) => format!("{self}; {}", self.described().2),
            (true, _) => format!("{self}; {owned}"),
            _ => owned,
        }
    }
}

/// The flag in messages.
impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.described().0;
        match *self {
            Zero(stage) => write!(f, "--zero {stage}"),
            Local(steps) => write!(f, "--local-steps {steps}"),
            Server(count) | ServerAsync(count) if count != 1 => write!(f, "--sync {name}:{count}"),
            Bmuf(steps) if steps != BLOCK => write!(f, "--sync {name}:{steps}"),
            Easgd(steps, alpha) => write!(f, "--sync {name}:{steps},{alpha}"),
            _ => write!(f, "--sync {name}"),
        }
    }
}

/// As `--sync` has it.
impl FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Strategy, String> {
        let (name, given) = text.split_once(':').map_or((text, None), |(name, given)| (name, Some(given)));
        let Some(strategy) = Strategy::all().find(|strategy| strategy.described().0 == name) else {
            let words: Vec<String> = Strategy::all().map(Strategy::words).collect();
            return Err(format!("it is one of {}", words.join(", ")));
        };
        let given: Vec<&str> = given.map_or(Vec::new(), |given| given.split(',').collect());
        let wanted = strategy.described().1;
        if given.len() > wanted.len() {
            return Err(format!("it is {}", strategy.words()));
        }
        let number = |(index, number): (usize, &StrategyNumber)| match (given.get(index), number.usual) {
            (Some(text), _) => number.read(text),
            (None, Some(usual)) => Ok(usual),
            (None, None) => Err(format!("{} is missing: it is {}", number.name, strategy.words())),
        };
        let numbers: Result<Vec<f32>, String> = wanted.iter().enumerate().map(number).collect();
        Ok(strategy.with(&numbers?))
    }
}

/// A number that stands behind the colon of a strategy.
#[derive(Debug, Clone, Copy)]
struct StrategyNumber {
    /// As `--help` calls it: `K`.
    name: &'static str,
    /// What it is of, in messages: "servers".
    what: &'static str,
    /// Where none is given; else one must be.
    usual: Option<f32>,
    /// Whether it counts something: at least 1, and whole. Else it is from 0 to 1.
    counts: bool,
}

const SERVERS: StrategyNumber = StrategyNumber { name: "K", what: "servers", usual: Some(1.0), counts: true };
const STEPS: StrategyNumber = StrategyNumber { name: "H", what: "local steps", usual: None, counts: true };
/// Local steps of `--sync bmuf` where none are given.
const BLOCK: usize = 8;
const ATTRACTION: StrategyNumber =
    StrategyNumber { name: "ALPHA", what: "attraction", usual: None, counts: false };

impl StrategyNumber {
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
            assert!(Strategy::help().contains(strategy.described().2));
        }
        let servers: Strategy = "server:3".parse().unwrap();
        assert_eq!((servers.computing(4), servers.to_string().as_str()), (1, "--sync server:3"));
        assert_ne!(servers, "server".parse().unwrap());
        let elastic: Strategy = "easgd:4,0.25".parse().unwrap();
        assert_eq!(elastic.to_string(), "--sync easgd:4,0.25");
        let none = OuterFlags::default();
        let meets = elastic.relaxed(&none, 2).unwrap();
        assert_eq!(meets, Relaxed { every: 4, meeting: ModelAveraging::Elastic { alpha: 0.25 } });
        let Some(Relaxed { every: 8, meeting: ModelAveraging::Anchor { outer, resets: true } }) =
            "bmuf".parse::<Strategy>().unwrap().relaxed(&none, 4)
        else {
            panic!("CNTK's defaults");
        };
        assert_eq!(outer, Outer { rate: 1.0, momentum: 0.75, nesterov: true });
        let given = OuterFlags { rate: Some(0.5), momentum: Some(0.125), nesterov: true };
        let local = Local(3).relaxed(&given, 4).unwrap();
        let outer = Outer { rate: 0.5, momentum: 0.125, nesterov: true };
        assert_eq!(local, Relaxed { every: 3, meeting: ModelAveraging::Anchor { outer, resets: false } });
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
