//! The scripts of all ranks, run through before the first step: a discrete-event simulation of two steps.
//!
//! Every transfer must have all who take part in it, in one order on all of them; nobody may wait in a circle; and
//! while a range is on its way nothing else may touch it. What is found is one message that names both actions. A
//! script that passes cannot deadlock, since nothing of it is decided while it runs: ranks do the same in every step,
//! and whatever the times are they can only wait for what was found to come. The second step also gives times: those of
//! steps and transfers are given, and the transfers of some ranks take place one after the other.

use std::collections::HashMap;
use std::ops::Range;

use super::flows::Traffic;
use super::network::{Load, Rounds};
use crate::error::Result;
use crate::plan::{Action, Area, Line, Location, Plan, PlannedStep, Script, Transfer};

mod check;
mod play;
#[cfg(test)]
mod tests;

/// Memory that an action reads or writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touch {
    /// Which memory.
    pub area: Area,
    /// Bytes of it.
    pub bytes: Range<usize>,
    /// Whether it is written.
    pub writes: bool,
}

/// What a rehearsal knows of a step of the plan.
#[derive(Debug, Clone)]
pub struct StepFacts {
    /// Seconds that it is expected to take.
    pub seconds: f64,
    /// What it reads and writes.
    pub touches: Vec<Touch>,
}

/// How long things take.
pub struct Prices<'a> {
    /// Seconds of a transfer, once all have started it.
    pub transfer: &'a dyn Fn(&Transfer) -> f64,
    /// The rounds of what shares its links with other transfers, in place of these seconds; none of anything else.
    pub rounds: &'a dyn Fn(&Transfer, &Line) -> Vec<Rounds>,
    /// Bytes a second of each of the loads that these carry, of those that are under way at a time.
    pub rates: &'a dyn Fn(&[Load]) -> Vec<f64>,
    /// Rounds of a transfer that ranks pass on which compute meanwhile, between two steps of the plan: how many, and
    /// the seconds of each. None where others pass it on, or nobody does.
    pub relayed: &'a dyn Fn(&Transfer) -> Vec<(usize, f64)>,
    /// Seconds of an update of so many bytes.
    pub update: &'a dyn Fn(usize) -> f64,
    /// Seconds until so many bytes of gradients are added to their sums.
    pub add: &'a dyn Fn(usize) -> f64,
    /// How many times as long as expected a rank computes.
    pub pace: &'a dyn Fn(usize) -> f64,
}

impl Prices<'_> {
    /// Nothing takes time but what ranks compute, each as fast as expected, and no links are shared.
    pub const FREE: Prices<'static> = Prices {
        transfer: &|_| 0.0,
        rounds: &|_, _| Vec::new(),
        rates: &|_| Vec::new(),
        relayed: &|_| Vec::new(),
        update: &|_| 0.0,
        add: &|_| 0.0,
        pace: &|_| 1.0,
    };
}

/// What came of it. Times are NaN where a transfer has no price.
#[derive(Debug, Clone, PartialEq)]
pub struct Rehearsal {
    /// Seconds of a step.
    pub seconds: f64,
    /// Seconds from the start of the first of both steps until nothing more is under way.
    pub both: f64,
    /// For each rank the seconds that it waits.
    pub exposed: Vec<f64>,
    /// When each action of rank 0 begins and ends, from the start of the step; what it starts ends when it is over,
    /// which may be in the next step.
    pub schedule: Vec<[f64; 2]>,
}

/// What a rehearsal knows of each step of a plan, which takes as long as this says.
pub fn step_facts(plan: &Plan, seconds: &[f64]) -> Vec<StepFacts> {
    let touch = |place: &Location, writes| Touch {
        area: Area::Of(place.region),
        bytes: place.offset..place.offset + place.bytes,
        writes,
    };
    let facts = |(step, &seconds): (&PlannedStep, &f64)| StepFacts {
        seconds,
        touches: step
            .inputs
            .iter()
            .map(|place| touch(place, false))
            .chain(step.outputs.iter().map(|place| touch(place, true)))
            .collect(),
    };
    plan.steps.iter().zip(seconds).map(facts).collect()
}

/// Runs all scripts, by rank, twice. All ranks of a stage that have a graph have the same steps; `steps` are those of
/// each stage. Where some ranks stand for all (`representatives`) these alone meet.
///
/// # Errors
/// `Internal`, naming both actions, where the scripts do not fit together.
pub fn rehearse(scripts: &[Script], steps: &[&[StepFacts]], prices: &Prices) -> Result<Rehearsal> {
    let mut simulation = StepSimulation {
        steps,
        prices,
        ranks: scripts.iter().map(RehearsedRank::new).collect(),
        meetings: HashMap::new(),
        unknown: false,
        traffic: Traffic::default(),
    };
    simulation.play()?;
    let begun: Vec<f64> = simulation.ranks.iter().map(|rank| rank.clock).collect();
    for rank in &mut simulation.ranks {
        (rank.at, rank.exposed, rank.first) = (0, 0.0, false);
        rank.schedule.clear();
    }
    simulation.play()?;
    while simulation.settle() {}
    simulation.finish()?;
    let took = simulation.ranks.iter().zip(&begun).map(|(rank, begun)| rank.clock - begun);
    let known = |seconds: f64| if simulation.unknown { f64::NAN } else { seconds };
    let schedule = simulation.schedule(begun.first().copied().unwrap_or(0.0));
    Ok(Rehearsal {
        seconds: known(took.fold(0.0, f64::max)),
        both: known(simulation.end()),
        exposed: simulation.ranks.iter().map(|rank| known(rank.exposed)).collect(),
        schedule: schedule.into_iter().map(|times| times.map(known)).collect(),
    })
}

/// One transfer of a line.
#[derive(Default)]
struct Rendezvous {
    /// Who started it, with which action and when.
    started: Vec<(usize, usize, f64)>,
    /// When it begins, where it has its links for itself.
    begun: Option<f64>,
    /// When it is over; where it shares its links that is found later.
    over: Option<f64>,
}

/// A transfer on its way, as one rank sees it.
struct Outstanding {
    id: usize,
    action: usize,
    line: Line,
    number: usize,
}

/// A rank, and how far it is.
struct RehearsedRank<'a> {
    script: &'a Script,
    at: usize,
    /// Whether this is its first step, into which nothing is carried over.
    first: bool,
    clock: f64,
    exposed: f64,
    /// When each action of this step began and ended.
    schedule: Vec<[f64; 2]>,
    flights: Vec<Outstanding>,
    /// From when to when it computed without a look at messages, since it has some on their way.
    busy: Vec<[f64; 2]>,
    /// Transfers started on each line.
    counts: HashMap<Line, usize>,
    arrivals: Vec<f64>,
    /// When it had pushed, in each step; of a server, when it had answered each rank.
    pushed: Vec<f64>,
    served: Vec<Vec<f64>>,
}

struct StepSimulation<'a> {
    steps: &'a [&'a [StepFacts]],
    prices: &'a Prices<'a>,
    ranks: Vec<RehearsedRank<'a>>,
    meetings: HashMap<Line, Vec<Rendezvous>>,
    /// Whether a transfer has no price: then times say nothing.
    unknown: bool,
    /// What is under way and shares its links: which transfer of which line.
    traffic: Traffic<(Line, usize)>,
}

impl<'a> RehearsedRank<'a> {
    fn new(script: &'a Script) -> RehearsedRank<'a> {
        RehearsedRank {
            script,
            at: 0,
            first: true,
            clock: 0.0,
            exposed: 0.0,
            schedule: Vec::new(),
            flights: Vec::new(),
            busy: Vec::new(),
            counts: HashMap::new(),
            arrivals: Vec::new(),
            pushed: Vec::new(),
            served: Vec::new(),
        }
    }

    fn is_done(&self) -> bool {
        self.at == self.script.actions.len()
    }

    /// When it next looks at messages that come at a time: when it is through with what it computes then.
    fn looks(&self, time: f64) -> f64 {
        let next = self.busy.partition_point(|[_, end]| *end <= time);
        self.busy.get(next).filter(|[begun, _]| *begun <= time).map_or(time, |[_, end]| *end)
    }

    /// It computes in these times.
    fn computes(&mut self, times: &[[f64; 2]]) {
        match self.flights.is_empty() {
            true => self.busy.clear(),
            false => self.busy.extend(times),
        }
    }

    /// When a transfer is over that begins at a time, of which ranks pass on what came in one round with the next. They
    /// do what this one does. A message that comes while they compute leaves when the step is over, and other transfers
    /// have the links meanwhile.
    fn passed_on(&self, begun: f64, rounds: &[(usize, f64)]) -> f64 {
        let mut rounds = rounds.iter().flat_map(|&(count, seconds)| std::iter::repeat_n(seconds, count));
        let (mut from, mut over) = (begun, begun + rounds.next().unwrap_or(0.0));
        for seconds in rounds {
            from = over.max(self.looks(from));
            over = self.looks(over).max(from + seconds);
        }
        over
    }

    fn line(&self, transfer: &Transfer) -> Line {
        self.script.line(transfer)
    }

    /// Whether a script waits for a transfer of the step before.
    fn carries(&self, id: usize) -> bool {
        let find = |wanted: Action| self.script.actions.iter().position(|action| *action == wanted);
        matches!((find(Action::Wait(id)), find(Action::Start(id))), (Some(wait), Some(start)) if wait < start)
    }
}

/// The transfer that an action of a rank starts.
fn transfer_of<'a>(ranks: &[RehearsedRank<'a>], rank: usize, action: usize) -> &'a Transfer {
    let script = ranks[rank].script;
    match script.actions[action] {
        Action::Start(id) => &script.transfers[id],
        ref other => unreachable!("{other:?} starts nothing"),
    }
}
