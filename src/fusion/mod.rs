//! Transfers in flight: the only meeting of the plan's gradients and parameters and the collectives.
//!
//! The script says when a transfer starts and when it is waited for (`plan::Action`). Between two actions `advance`
//! moves along whatever is under way, on the thread that runs the steps; so does `reach` while a device with a queue
//! computes. What is waited for when nothing computes any more, no computation hid: that is the exposed communication.
//! `line` has the transfers of one kind: sums of gradients, the new parameters of owners, and the step's own numbers
//! (`tail`), which travel with the last bucket unless owners are apart. Between steps ranks also exchange the
//! statistics of synchronised normalisations (`exchange`), and where owners are apart the norms of what each owns
//! (`norms`). A server that answers one rank after the other has lines to each (`service`), and ranks tell it what they
//! did in messages of their own (`notes`). `backlog` says how much a rank sends out of turn. Gradients may leave
//! compressed (`compress`), or be added up by the devices
//! (`on_device`, `peers`). May use: `plan`, `collective`, `device`, `comm`. Used by: `train`.

mod backlog;
mod clock;
pub mod compress;
mod edges;
mod exchange;
mod line;
mod norms;
mod notes;
mod on_device;
mod peers;
mod service;
mod tail;

use std::ops::Range;
use std::time::Instant;

use self::backlog::Backlog;
use self::clock::StepClock;
use crate::collective::Collective;
use crate::comm::{Awaited, Wait};
use crate::cuts::Cuts;
use crate::device::{Device, DeviceEvent, Memory};
use crate::error::{Error, Result};
use crate::plan::{Area, Kind, Region, Script, TAIL, Transfer, TransferId};
use crate::trace::{self, BucketTime};

pub use edges::{EdgeMemory, Edges, Link, Relay};
pub use exchange::Exchanges;
pub use line::{Line, Words};
pub use norms::Norms;
pub use notes::Notes;
pub use on_device::{OnDevice, adds_up};
pub use peers::Peers;
pub use service::Service;
pub use tail::{Tail, Values};

/// Bytes that devices of several ranks find each other by, as ranks pass them on.
fn as_text(bytes: &[u8]) -> String {
    bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(" ")
}

fn from_text(text: &str) -> Result<Vec<u8>> {
    let damaged = |_| Error::internal("what GPUs find each other by came damaged from another rank");
    text.split(' ').map(str::parse).collect::<std::result::Result<_, _>>().map_err(damaged)
}

/// Waits until a device comes to a point. `meanwhile` moves something else along and says whether it did.
fn until(event: &DeviceEvent, mut meanwhile: impl FnMut() -> Result<bool>) -> Result<()> {
    while !event.reached()? {
        if !meanwhile()? {
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// Times that what is under way is moved along between two steps, as long as it moves. Each time ends the messages of a
/// bucket that have come, or sums one chunk: with one a step a link would rest for most of it. So at most 32 MB are
/// summed on a node between two steps.
const POLLS: usize = 256;

/// Within so many seconds a rank that waits comes back to its messages.
const POLL: f64 = 1e-3;

/// What carries out the transfers of a script.
pub struct Fusion {
    /// Which of the below a transfer is.
    ways: Vec<Way>,
    /// Sums of gradients, and what else there is of lines.
    lines: Vec<Line>,
    roles: LineRoles,
    /// Which line of a gossip is the present one.
    mixing: Option<usize>,
    tail: Option<Tail>,
    norms: Option<Norms>,
    /// Where ranks share the statistics of normalisations.
    exchanges: Option<Exchanges>,
    /// In a pipeline: what goes from stage to stage; where images are cut: their rows.
    edges: Option<Edges>,
    overlap: bool,
    backlog: Backlog,
    clock: StepClock,
}

/// Which line has which transfers.
#[derive(Default)]
struct LineRoles {
    /// Whose last transfer has the tail, and whose last one starts behind the last step.
    with_tail: usize,
    last: usize,
    /// By which new parameters of owners come, and by which they are gathered before they are read.
    parameters: Option<usize>,
    gathers: Option<usize>,
    /// The first one of a gossip.
    mixes: usize,
}

/// How a transfer is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// As number such of a line.
    Line(usize, usize),
    /// As number such of what goes beside the lines.
    Beside(Beside, usize),
}

/// What goes beside the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Norms,
    Exchanges,
    Edges,
}

const ALL_BESIDE: [Beside; 3] = [Beside::Norms, Beside::Exchanges, Beside::Edges];

/// Transfers of one kind, by their numbers: each starts, comes, and is finished.
pub trait InFlight {
    /// What a transfer sends is complete when the device comes to this point, and the place is free for what it gets.
    fn start(&mut self, index: usize, device: &dyn Device) -> Result<()>;

    /// Moves along what is on its way, without waiting. Returns whether anything moved.
    fn progress(&mut self, device: &dyn Device) -> Result<bool>;

    /// Whether any is on its way.
    fn is_flying(&self) -> bool;

    /// Whether all that a transfer gets has come, and what it sends has left.
    fn has_come(&self, index: usize) -> bool;

    /// Whether a transfer has yet to leave the device that computes it, or to have its place there: nobody waits for
    /// other ranks until then.
    fn is_on_device(&self, _index: usize) -> bool {
        false
    }

    /// Brings what came to where it is read.
    fn finish(&mut self, index: usize, device: &dyn Device) -> Result<()>;

    /// What is waited for while a transfer has not come.
    fn awaited(&self, index: usize) -> Awaited;

    /// Bytes that this rank has sent so far.
    fn sent(&self) -> u64;

    /// Waits until a transfer has come, where nothing else is under way.
    fn wait(&mut self, index: usize, device: &dyn Device) -> Result<()> {
        let mut wait = Wait::new();
        while !self.has_come(index) {
            match self.progress(device)? {
                true => wait.moved(),
                false if self.is_on_device(index) => std::thread::yield_now(),
                false => wait.idle(|| self.awaited(index))?,
            }
        }
        Ok(())
    }
}

/// Where gradients are averaged.
pub enum ReduceAt {
    /// As they lie: in the host's memory, or in a device's that the MPI library reaches.
    InPlace,
    /// On the device, and copied to the host to be reduced.
    Staged(Staging),
    /// On a device with memory of its own: sums are enqueued behind the steps (`OnDevice`), or there is nothing to sum.
    Device,
}

/// Numbers on a device with memory of its own, and memory of the host in which they go between ranks: a bucket is
/// fetched when it is complete, and put back when it is averaged, both beside what the device computes.
#[derive(Clone)]
pub struct Staging {
    /// On the device.
    pub device: Memory,
    /// Its copy on the host, pinned.
    pub host: Memory,
}

impl Staging {
    fn parts(&self, bytes: &Range<usize>) -> [Memory; 2] {
        [&self.device, &self.host].map(|memory| memory.slice(bytes.start, bytes.len()))
    }
}

/// A table in elements, of one in bytes.
fn elements(cuts: &Cuts) -> Cuts {
    let part = |rank: usize| cuts.part(rank).start / 4..cuts.part(rank).end / 4;
    Cuts::new(cuts.range().start / 4..cuts.range().end / 4, (0..cuts.ranks()).map(part).collect())
}

/// What carries each kind of transfer.
pub struct Carriers {
    /// Sums of gradients.
    pub sums: Line,
    /// The step's own numbers, where sums of gradients do not come to all in every step.
    pub tail: Option<Line>,
    /// Where owners are apart: new parameters.
    pub parameters: Option<Line>,
    /// Where parameters are gathered before they are read: what does.
    pub gathers: Option<Line>,
    /// In a gossip: what exchanges parameters with the rank at each distance, in their order.
    pub mixes: Vec<Line>,
    /// With norms to gather.
    pub norms: Option<Norms>,
    /// With exchanges between the steps of the program.
    pub exchanges: Option<Exchanges>,
    /// In a pipeline, and where images are cut.
    pub edges: Option<Edges>,
}

impl Carriers {
    /// Of sums alone, made where gradients lie.
    pub fn of_sums(allreduce: Box<dyn Collective>) -> Carriers {
        let words = Words { what: "bucket", operation: "allreduce" };
        Carriers::of(Line::new(words, allreduce, ReduceAt::InPlace))
    }

    /// Of these sums alone.
    pub fn of(sums: Line) -> Carriers {
        Carriers {
            sums,
            tail: None,
            parameters: None,
            gathers: None,
            mixes: Vec::new(),
            norms: None,
            exchanges: None,
            edges: None,
        }
    }
}

/// How a transfer that is none of a line is carried out; `counts` has how many exchanges and edges there were before.
fn way_beside(transfer: &Transfer, counts: &mut [usize; 2]) -> Option<Way> {
    let mut next = |beside: Beside, kind: usize| {
        counts[kind] += 1;
        Some(Way::Beside(beside, counts[kind] - 1))
    };
    match (&transfer.kind, &transfer.area) {
        (Kind::Gather, Area::Norms) => Some(Way::Beside(Beside::Norms, 0)),
        (Kind::Gather | Kind::AllToAll, _) => next(Beside::Exchanges, 0),
        (Kind::Trade { .. } | Kind::Send { .. } | Kind::Receive { .. }, _) => next(Beside::Edges, 1),
        _ => None,
    }
}

/// Which of its bytes a rank gives in a transfer, and which it gets.
fn directions(script: &Script, transfer: &Transfer) -> (Range<usize>, Range<usize>) {
    let Transfer { kind, cuts, axis, .. } = transfer;
    let (own, all) = (cuts.part(script.place(*axis)).clone(), cuts.range().clone());
    match kind {
        Kind::FromOwners | Kind::Pull => (own, all),
        Kind::SumToOwners | Kind::Push => (all, own),
        _ => (all.clone(), all),
    }
}

impl Fusion {
    /// Prepares every transfer of a script. Without `overlap` nothing is moved along before it is waited for.
    /// Collective.
    pub fn new(carriers: Carriers, script: &Script, overlap: bool) -> Result<Fusion> {
        let mut lines = vec![carriers.sums];
        let with_tail = lines.len() - usize::from(carriers.tail.is_none());
        lines.extend(carriers.tail);
        let parameters = carriers.parameters.is_some().then_some(lines.len());
        lines.extend(carriers.parameters);
        let gathers = carriers.gathers.is_some().then_some(lines.len());
        lines.extend(carriers.gathers);
        let mixes = lines.len();
        lines.extend(carriers.mixes);
        let gradients = script.sums.saturating_sub(TAIL);
        let (mut ways, mut beside) = (Vec::new(), [0; 2]);
        for transfer in script.transfers.iter() {
            if let Some(way) = way_beside(transfer, &mut beside) {
                ways.push(way);
                continue;
            }
            let line = match (&transfer.kind, &transfer.area) {
                (Kind::Sum, _) if transfer.cuts.range().start >= gradients => Some(with_tail),
                (Kind::Sum | Kind::SumToOwners | Kind::Push, _) => Some(0),
                (Kind::FromOwners | Kind::Pull, Area::Of(Region::Parameters)) => parameters,
                (Kind::FromOwners, _) => gathers,
                (Kind::Mix { distance }, _) => Some(mixes + distance.trailing_zeros() as usize),
                _ => None,
            };
            let line = line.ok_or_else(|| Error::internal(format!("nothing carries {transfer}")))?;
            ways.push(Way::Line(line, lines[line].transfers()));
            let slot = lines[line].collective().prepare_cut(&elements(&transfer.cuts))?;
            let (gives, gets) = directions(script, transfer);
            lines[line].push(slot, transfer.cuts.range(), gives, gets);
        }
        Ok(Fusion {
            ways,
            // Ranks with parameters of their own may have nothing else to sum.
            roles: LineRoles {
                last: if script.relaxed { with_tail } else { 0 },
                with_tail,
                parameters,
                gathers,
                mixes,
            },
            lines,
            norms: carriers.norms,
            exchanges: carriers.exchanges,
            edges: carriers.edges,
            overlap,
            ..Fusion::serving()
        })
    }

    /// Of a rank whose transfers are those of a service.
    pub fn serving() -> Fusion {
        Fusion {
            ways: Vec::new(),
            lines: Vec::new(),
            roles: LineRoles::default(),
            mixing: None,
            tail: None,
            norms: None,
            exchanges: None,
            edges: None,
            overlap: true,
            backlog: Backlog::new(f64::INFINITY),
            clock: StepClock::new(Instant::now(), false),
        }
    }

    /// With numbers of the step at the end of the last bucket.
    pub fn with_tail(self, tail: Tail) -> Fusion {
        Fusion { tail: Some(tail), ..self }
    }

    /// Where so many bytes a second leave a rank, as was measured.
    pub fn with_rate(self, rate: f64) -> Fusion {
        Fusion { backlog: Backlog::new(rate), ..self }
    }

    /// Writes the tail: before its transfer starts.
    pub fn write_tail(&self, device: &dyn Device, values: &Values) -> Result<()> {
        self.tail.as_ref().map_or(Ok(()), |tail| tail.write(device, values))
    }

    /// The sum of all ranks' tails, when it was waited for.
    pub fn read_tail(&mut self, device: &dyn Device) -> Result<Values> {
        self.tail.as_mut().map_or(Ok(Values::default()), |tail| tail.read(device))
    }

    /// What this rank tells the others with the norms, before they start.
    pub fn set_norm(&mut self, squares: f64) {
        if let Some(norms) = &mut self.norms {
            norms.own = squares;
        }
    }

    /// The sum of all ranks' norms squared, in the order of ranks.
    pub fn norms(&self) -> f64 {
        self.norms.as_ref().map_or(0.0, Norms::sum)
    }

    /// Ends what carries the transfers in order. Collective.
    pub fn leave(mut self) -> Result<()> {
        self.lines.iter_mut().try_for_each(Line::leave)
    }

    /// What sums the buckets: "shm", or "shm and recursive-doubling" where they differ.
    pub fn algorithms(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        let line = self.lines.get(self.roles.mixes).or(self.lines.first());
        for name in line.into_iter().flat_map(Line::algorithms) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(" and ")
    }

    /// Which line has the buckets: that of sums, or in a gossip the present one.
    fn buckets(&self) -> usize {
        self.mixing.unwrap_or(0)
    }

    /// The buckets' times in the last step.
    pub fn times(&self) -> &[BucketTime] {
        self.lines.get(self.buckets()).map_or(&[], Line::times)
    }

    /// Seconds of the last step in which the rank waited for others, but for the buckets.
    pub fn waited(&self) -> f64 {
        self.clock.waited
    }

    /// Bytes that this rank has sent so far in messages of gradients, parameters and the step's own numbers.
    pub fn sent(&self) -> u64 {
        let beside = ALL_BESIDE.iter().filter_map(|&of| Some(self.in_flight(of)?.sent()));
        self.lines.iter().map(Line::sent).chain(beside).sum()
    }

    /// Begins a step; `begun` is its clock's zero. New parameters of the step before may be on their way.
    pub fn begin(&mut self, device: &dyn Device, begun: Instant) {
        self.clock = StepClock::new(begun, device.is_host());
        self.lines.iter_mut().take(self.roles.with_tail + 1).for_each(Line::reset);
    }

    /// Waits until the device comes to a point; transfers go on meanwhile. This is no wait for other ranks.
    pub fn reach(&mut self, device: &dyn Device, event: &DeviceEvent) -> Result<()> {
        until(event, || Ok(self.overlap && self.progress(device)?))
    }

    /// A transfer's numbers are complete, and it starts.
    pub fn start(&mut self, id: TransferId, device: &dyn Device) -> Result<()> {
        match self.ways[id] {
            Way::Line(line, index) => {
                self.mixing = if line >= self.roles.mixes { Some(line) } else { self.mixing };
                self.lines[line].complete(index, device)?;
                if line == self.roles.last && self.lines[line].is_complete() {
                    self.clock.enqueued = true;
                    // Else the last bucket is written at that point.
                    self.clock.computed =
                        (!self.lines[line].is_in_place()).then(|| device.record()).transpose()?;
                }
                self.advance(device)
            }
            Way::Beside(of, index) => {
                self.in_flight_mut(of).map_or(Ok(()), |flying| flying.start(index, device))
            }
        }
    }

    /// Waits until a transfer has come. What was never started, before the first step has ended, has come.
    pub fn wait(&mut self, id: TransferId, device: &dyn Device) -> Result<()> {
        match self.ways[id] {
            Way::Line(line, index) => self.wait_line(line, index, device),
            Way::Beside(of, index) => self.wait_beside(of, index, device),
        }
    }

    fn in_flight(&self, of: Beside) -> Option<&dyn InFlight> {
        match of {
            Beside::Norms => self.norms.as_ref().map(|norms| norms as &dyn InFlight),
            Beside::Exchanges => self.exchanges.as_ref().map(|exchanges| exchanges as &dyn InFlight),
            Beside::Edges => self.edges.as_ref().map(|edges| edges as &dyn InFlight),
        }
    }

    fn in_flight_mut(&mut self, of: Beside) -> Option<&mut dyn InFlight> {
        match of {
            Beside::Norms => self.norms.as_mut().map(|norms| norms as &mut dyn InFlight),
            Beside::Exchanges => self.exchanges.as_mut().map(|exchanges| exchanges as &mut dyn InFlight),
            Beside::Edges => self.edges.as_mut().map(|edges| edges as &mut dyn InFlight),
        }
    }

    /// Waits until what goes beside the lines has come.
    fn wait_beside(&mut self, of: Beside, index: usize, device: &dyn Device) -> Result<()> {
        if self.in_flight(of).is_some_and(|flying| !flying.has_come(index)) {
            while self.in_flight(of).is_some_and(|flying| flying.is_on_device(index)) {
                if !self.progress(device)? {
                    std::thread::yield_now();
                }
            }
            let peer = match of {
                Beside::Edges => self.edges.as_ref().and_then(|edges| edges.peer(index)),
                _ => None,
            };
            let begun = trace::now();
            let come = |fusion: &Fusion| Ok(fusion.in_flight(of).is_none_or(|flying| flying.has_come(index)));
            let awaited = |fusion: &Fusion| {
                fusion.in_flight(of).map(|flying| flying.awaited(index)).unwrap_or_default()
            };
            self.beside(|fusion, device| fusion.go_on_until(device, come, awaited), device)?;
            if let Some(peer) = peer {
                trace::record(trace::EventKind::Wait, begun, peer, trace::FOR_RANK as usize, 0);
            }
        }
        self.in_flight_mut(of).map_or(Ok(()), |flying| flying.finish(index, device))
    }

    /// Counts what something takes as a wait for other ranks.
    fn beside(
        &mut self,
        what: impl FnOnce(&mut Fusion, &dyn Device) -> Result<()>,
        device: &dyn Device,
    ) -> Result<()> {
        let begun = Instant::now();
        what(self, device)?;
        self.clock.waited += begun.elapsed().as_secs_f64();
        Ok(())
    }

    fn wait_line(&mut self, line: usize, index: usize, device: &dyn Device) -> Result<()> {
        if !self.lines[line].complete_so_far().contains(&index) {
            return Ok(());
        }
        while !self.overlap && line == self.buckets() && self.computing()? {
            std::thread::yield_now();
        }
        let waited_from = self.clock.begun.elapsed().as_secs_f64();
        if !self.lines[line].is_finished(index) {
            let begun = trace::now();
            let awaited = |fusion: &Fusion| fusion.lines[line].awaited(index);
            self.go_on_until(device, |fusion| Ok(fusion.lines[line].is_finished(index)), awaited)?;
            trace::record(trace::EventKind::Wait, begun, index, 0, 0);
            let now = self.clock.begun.elapsed().as_secs_f64();
            let exposed = match [self.roles.parameters, self.roles.gathers].contains(&Some(line)) {
                true => now - waited_from,
                // While a device computes a step that is enqueued nobody waits for anybody.
                false => now - self.clock.computed_at.unwrap_or(now).max(waited_from),
            };
            match line == self.buckets() {
                true => self.lines[line].exposed(index, exposed),
                false => self.clock.waited += exposed,
            }
        }
        self.lines[line].use_on(index, device)
    }

    /// Waits for other ranks by something else than a transfer: until `missing` are none. Transfers go on meanwhile.
    pub fn wait_for(
        &mut self,
        device: &dyn Device,
        what: &'static str,
        missing: impl Fn() -> Vec<usize>,
    ) -> Result<()> {
        if missing().is_empty() {
            return Ok(());
        }
        let awaited = |_: &Fusion| Awaited { what: what.into(), peers: missing() };
        let come = |_: &Fusion| Ok(missing().is_empty());
        self.beside(|fusion, device| fusion.go_on_until(device, come, awaited), device)
    }

    /// Waits for other ranks until `come`.
    pub fn wait_until(
        &mut self,
        device: &dyn Device,
        awaited: impl Fn() -> Awaited,
        mut come: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        self.beside(|fusion, device| fusion.go_on_until(device, |_| come(), |_| awaited()), device)
    }

    /// Moves along what is under way until `done`.
    fn go_on_until(
        &mut self,
        device: &dyn Device,
        mut done: impl FnMut(&Fusion) -> Result<bool>,
        awaited: impl Fn(&Fusion) -> Awaited,
    ) -> Result<()> {
        let mut wait = Wait::new();
        while !done(self)? {
            match self.progress(device)? {
                true => wait.moved(),
                // Others wait for this rank, if anybody waits.
                false if self.computing()? => std::thread::yield_now(),
                false => wait.idle(|| awaited(self))?,
            }
        }
        Ok(())
    }

    /// Waits for everything under way: before others than steps look at parameters.
    pub fn settle(&mut self, device: &dyn Device) -> Result<()> {
        for line in 0..self.lines.len() {
            let complete = self.lines[line].complete_so_far().to_vec();
            complete.into_iter().try_for_each(|index| self.wait_line(line, index, device))?;
        }
        Ok(())
    }

    /// To be called between steps of the plan: makes progress on what is under way.
    pub fn advance(&mut self, device: &dyn Device) -> Result<()> {
        let beside =
            || ALL_BESIDE.iter().filter_map(|&of| self.in_flight(of)).any(|flying| flying.is_flying());
        if self.overlap && (beside() || self.lines.iter().any(Line::needs_progress)) {
            for _ in 0..POLLS {
                if !self.progress(device)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// To be called before steps of the plan that take so many seconds (infinite if nobody knows): sends what links
    /// carry meanwhile, since nobody polls while the host computes.
    pub fn run_ahead(&mut self, device: &dyn Device, seconds: f64) -> Result<()> {
        if self.overlap && device.is_host() { self.keep_links_busy(seconds) } else { Ok(()) }
    }

    /// Sends messages out of turn where links would rest within so many seconds.
    fn keep_links_busy(&mut self, seconds: f64) -> Result<()> {
        if !self.lines.iter().any(Line::is_flying) {
            return Ok(());
        }
        let sent = self.lines.iter().map(Line::sent).sum();
        let room = self.backlog.room(sent, Instant::now(), seconds);
        let mut flying = self.lines.iter_mut().filter(|line| line.is_flying());
        flying.try_fold(room, |room, line| line.collective().run_ahead(room)).map(drop)
    }

    /// Starts what can start and moves along what is under way, without waiting. Returns whether anything moved.
    fn progress(&mut self, device: &dyn Device) -> Result<bool> {
        let mut moved = false;
        for line in self.lines.iter_mut().filter(|line| line.needs_progress()) {
            moved |= line.progress(device, self.clock.begun)?;
        }
        self.keep_links_busy(POLL)?;
        for of in ALL_BESIDE {
            if let Some(flying) = self.in_flight_mut(of).filter(|flying| flying.is_flying()) {
                moved |= flying.progress(device)?;
            }
        }
        let Some(line) = self.lines.get(self.roles.with_tail) else { return Ok(moved) };
        if !self.clock.summed && line.is_complete() && !line.is_flying() {
            self.clock.summed = true;
            let on_device = line.is_on_device();
            self.tail.as_mut().map_or(Ok(()), |tail| {
                tail.summed(device, || if on_device { device.record() } else { Ok(DeviceEvent(None)) })
            })?;
        }
        Ok(moved)
    }

    /// Whether the device has yet to come to the end of the steps, all of which are enqueued.
    fn computing(&mut self) -> Result<bool> {
        if self.clock.computed_at.is_some() || !self.clock.enqueued {
            return Ok(false);
        }
        let end = self.clock.computed.as_ref().or_else(|| self.lines.get(self.roles.last)?.last_written());
        let computed = end.map_or(Ok(true), DeviceEvent::reached)?;
        if computed {
            self.clock.computed_at = Some(self.clock.begun.elapsed().as_secs_f64());
        }
        Ok(!computed)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::ops::Range;
    use std::rc::Rc;

    use super::*;
    use crate::device::reference::Reference;
    use crate::plan::{self, Action, Bucket, Manner, Outline};

    /// Records what is asked of it; each bucket is done after so many polls.
    struct Script(Rc<RefCell<Vec<String>>>, Vec<usize>, usize);

    impl Collective for Script {
        fn name(&self) -> &'static str {
            "script"
        }
        fn prepare(&mut self, range: Range<usize>) -> Result<usize> {
            self.0.borrow_mut().push(format!("prepare {range:?}"));
            self.1.push(0);
            Ok(self.1.len() - 1)
        }
        fn start(&mut self, slot: usize) -> Result<()> {
            self.0.borrow_mut().push(format!("start {slot}"));
            self.1[slot] = self.2;
            Ok(())
        }
        fn poll(&mut self) -> Result<bool> {
            self.1.iter_mut().for_each(|left| *left = left.saturating_sub(1));
            Ok(true)
        }
        fn run_ahead(&mut self, bytes: u64) -> Result<u64> {
            // One at a time while a rank waits.
            if (2..u64::MAX).contains(&bytes) {
                self.0.borrow_mut().push(format!("{bytes} ahead"));
            }
            Ok(bytes)
        }
        fn is_done(&self, slot: usize) -> bool {
            self.1[slot] == 0
        }
    }

    fn run(overlap: bool, polls: usize, rate: f64) -> Vec<String> {
        let said = Rc::new(RefCell::new(Vec::new()));
        let script = script_of(&[(0..64, 1), (64..192, 3)], 4, overlap);
        let sums = Box::new(Script(said.clone(), Vec::new(), polls));
        let mut fusion = Fusion::new(Carriers::of_sums(sums), &script, overlap).unwrap().with_rate(rate);
        fusion.begin(&Reference, Instant::now());
        for action in &script.actions {
            match action {
                Action::Run { steps, .. } => steps.clone().for_each(|step| {
                    fusion.run_ahead(&Reference, 1.0).unwrap();
                    said.borrow_mut().push(format!("step {step}"));
                    fusion.advance(&Reference).unwrap();
                }),
                Action::Start(id) => fusion.start(*id, &Reference).unwrap(),
                Action::Wait(id) => fusion.wait(*id, &Reference).unwrap(),
                Action::Update(part) => said.borrow_mut().push(format!("averaged {part}")),
                _ => {}
            }
        }
        assert!(fusion.times().iter().all(|time| time.finish >= time.start));
        said.take()
    }

    /// What one rank does with such buckets, each complete after a step.
    fn script_of(buckets: &[(Range<usize>, usize)], steps: usize, overlap: bool) -> plan::Script {
        let buckets: Vec<Bucket> =
            buckets.iter().map(|(bytes, after)| Bucket { bytes: bytes.clone(), after: *after }).collect();
        let share = |bucket: usize, _: usize, _: usize| buckets[bucket].bytes.clone();
        let sums = buckets.last().map_or(0, |bucket| bucket.bytes.end);
        let (readers, exchanges) = (vec![0; buckets.len()], Vec::new());
        let last_readers = buckets.iter().map(|bucket| bucket.after).collect();
        let outline = Outline {
            steps,
            buckets: &buckets,
            readers,
            last_readers,
            copies: false,
            exchanges,
            split: 0,
            windows: None,
            sums,
            share: &share,
            edges: &[],
            passes: plan::Pass::of_whole(1, steps).to_vec(),
            gradients: Vec::new(),
            contexts: plan::Contexts::ONE,
            ends: [true; 2],
        };
        plan::scripts(&Manner { overlap, ..Manner::plain(vec![0]) }, &outline, 0..1).remove(0)
    }

    #[test]
    fn a_bucket_starts_right_after_the_step_that_completes_it() {
        let expected = [
            "prepare 0..16",
            "prepare 16..48",
            "step 0",
            "step 1",
            "start 0",
            "step 2",
            "step 3",
            "start 1",
            "averaged 0",
            "averaged 1",
        ];
        assert_eq!(run(true, 2, f64::INFINITY), expected);
    }

    #[test]
    fn before_a_step_ranks_hand_over_what_leaves_meanwhile() {
        // A bucket is under way for two of four steps, each of a second.
        let said = run(true, 3 * POLLS, 1000.0);
        assert_eq!(said[3..8], ["step 1", "start 0", "1250 ahead", "step 2", "1250 ahead"]);
        let ahead = |said: &[String]| said.iter().filter(|line| line.ends_with("ahead")).count();
        assert_eq!((ahead(&said), ahead(&run(false, 3 * POLLS, 1000.0))), (2, 0));
    }

    #[test]
    fn without_overlap_every_bucket_starts_after_the_last_step() {
        let said = run(false, 2, f64::INFINITY);
        let last_step = said.iter().position(|line| line == "step 3").unwrap();
        assert!(said.iter().position(|line| line == "start 0").unwrap() > last_step);
        assert_eq!(said.last().unwrap(), "averaged 1");
    }
}
