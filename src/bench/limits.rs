//! What the machine's links and memory do by themselves: the measure of every collective, and what the cost model is
//! made of.
//!
//! Messages are those of the engine (`MPI_Isend` and `MPI_Irecv`, polled), memory is handled by the same loops. All
//! pairs of a node exchange at one time, and all ranks copy at one time, since that is what a collective does. Between
//! nodes one pair of each two nodes does: what it gets is the link's. Every figure is a median, and of several ranks
//! that of the slowest.

use std::rc::Rc;
use std::time::Instant;

use crate::collective::{CHUNK, WINDOW};
use crate::comm::{Channel, Region, Request, World};
use crate::config::Wire;
use crate::error::Result;

/// What messages between two ranks take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkLimit {
    /// Seconds from one rank to the other for a message of four bytes: half a round trip.
    pub latency: f64,
    /// Bytes a second in one direction, with nothing in the other.
    pub one_way: f64,
    /// Bytes a second in each direction while both send.
    pub both_ways: f64,
}

/// What bounds a collective on the ranks of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Between two ranks of one node, while all ranks of the node exchange in pairs; `None` where none has two.
    pub within: Option<LinkLimit>,
    /// Between two nodes, one rank on each; `None` on a single node.
    pub between: Option<LinkLimit>,
    /// Bytes that a rank copies from one place in its memory to another in a second (twice as many are moved), while
    /// all ranks of the node do.
    pub copy: f64,
    /// Bytes of `f32` that a rank adds to others in place in a second (three times as many are moved), while all do.
    pub add: f64,
    /// Bytes of `f32` that a rank rounds to bf16 and puts into a message in a second, while all do.
    pub convert: f64,
}

/// Bytes that are copied and added: more than a core's share of most caches.
const MEMORY: usize = 64 << 20;

/// Medians are taken of so many samples.
const SAMPLES: usize = 11;

/// Measures. Takes about a second; more where a link is slow. Collective.
///
/// # Errors
/// The same on every rank where there is no memory; else `Foreign` when MPI fails.
pub fn measure(world: &World) -> Result<Limits> {
    let pair = |ranks: Vec<usize>| {
        let place = ranks.iter().position(|&rank| rank == world.rank())?;
        ranks.get(place ^ 1).copied()
    };
    let within = pair(world.ranks_of(world.node()));
    let leaders: Vec<usize> = (0..world.nodes()).map(|node| world.ranks_of(node)[0]).collect();
    let between = pair(leaders);
    let some_within = (0..world.nodes()).any(|node| world.ranks_of(node).len() > 1);
    let mut link = Pair::new(world)?;
    let within = if some_within { Some(link.measure(world, within)?) } else { None };
    let between = if world.nodes() > 1 { Some(link.measure(world, between)?) } else { None };
    let [copy, add, convert] = memory(world)?;
    Ok(Limits { within, between, copy, add, convert })
}

/// The limits as comment lines of a table, one each.
pub fn comment(limits: &Limits) -> String {
    let lines: Vec<String> = limits.to_string().lines().map(|line| format!("# limit: {line}")).collect();
    lines.join("\n")
}

/// One end of a pair of ranks.
struct Pair {
    channel: Channel,
    outgoing: Rc<Region>,
    incoming: Rc<Region>,
}

impl Pair {
    fn new(world: &World) -> Result<Pair> {
        let region = || world.agree(Region::private(CHUNK * WINDOW * size_of::<f32>())).map(Rc::new);
        Ok(Pair { channel: Channel::new(world)?, outgoing: region()?, incoming: region()? })
    }

    /// A rank without a partner only waits for the others. Collective.
    fn measure(&mut self, world: &World, partner: Option<usize>) -> Result<LinkLimit> {
        // A slow link gets fewer messages; all pairs the same number.
        let mut rough = [self.exchange(partner, 1, [true, true])?];
        rough[0] = self.exchange(partner, 1, [true, true])?.max(1e-9);
        world.max_f64(&mut rough)?;
        let messages = (0.02 / rough[0]).clamp(1.0, WINDOW as f64) as usize;
        let first = partner.is_some_and(|partner| world.rank() < partner);
        let latency = slowest(world, || self.ping_pong(partner, first))?;
        let one_way = slowest(world, || self.exchange(partner, messages, [first, !first]))?;
        let both_ways = slowest(world, || self.exchange(partner, messages, [true, true]))?;
        let bytes = (messages * CHUNK * size_of::<f32>()) as f64;
        Ok(LinkLimit { latency, one_way: bytes / one_way, both_ways: bytes / both_ways })
    }

    /// Half a round trip, as the mean of a few.
    fn ping_pong(&self, partner: Option<usize>, first: bool) -> Result<f64> {
        const TRIPS: usize = 20;
        let Some(partner) = partner else { return Ok(0.0) };
        let send = || complete(vec![self.channel.send(&self.outgoing, &(0..1), partner, 0, false)?]);
        let receive = || complete(vec![self.channel.receive(&self.incoming, &(0..1), partner, 0)?]);
        let begin = Instant::now();
        for _ in 0..TRIPS {
            if first {
                send()?;
                receive()?;
            } else {
                receive()?;
                send()?;
            }
        }
        Ok(begin.elapsed().as_secs_f64() / (2 * TRIPS) as f64)
    }

    /// Seconds in which messages have left and come in, and both ends know it.
    fn exchange(&self, partner: Option<usize>, messages: usize, [sends, receives]: [bool; 2]) -> Result<f64> {
        let Some(partner) = partner else { return Ok(0.0) };
        let begin = Instant::now();
        let mut requests = Vec::with_capacity(2 * messages);
        for range in (0..messages).map(|index| index * CHUNK..(index + 1) * CHUNK) {
            if receives {
                requests.push(self.channel.receive(&self.incoming, &range, partner, 0)?);
            }
            if sends {
                requests.push(self.channel.send(&self.outgoing, &range, partner, 0, false)?);
            }
        }
        complete(requests)?;
        if !receives {
            complete(vec![self.channel.receive(&self.incoming, &(0..1), partner, 1)?])?;
        }
        if !sends {
            complete(vec![self.channel.send(&self.outgoing, &(0..1), partner, 1, false)?])?;
        }
        Ok(begin.elapsed().as_secs_f64())
    }
}

/// Polls until all have ended.
fn complete(mut requests: Vec<Request>) -> Result<()> {
    while !requests.is_empty() {
        let before = requests.len();
        let mut failure = Ok(());
        requests.retain_mut(|request| match request.test() {
            Ok(done) => !done,
            Err(error) => {
                failure = Err(error);
                true
            }
        });
        failure?;
        if requests.len() == before {
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// What a rank copies, adds and rounds, in bytes a second. Collective.
fn memory(world: &World) -> Result<[f64; 3]> {
    let allocate = || world.agree(Region::private(MEMORY)).map(Rc::new);
    let (here, there) = (allocate()?, allocate()?);
    let all = 0..here.elements();
    // Pages are there once they are written.
    let mut work: [&dyn Fn(); 3] = [
        &|| here.unpack(all.clone(), Wire::F32, &there, 0, false),
        &|| here.unpack(all.clone(), Wire::F32, &there, 0, true),
        &|| here.pack(all.clone(), Wire::Bf16, &there, 0),
    ];
    there.pack(all.clone(), Wire::F32, &here, 0);
    let mut rates = [0.0; 3];
    for (rate, work) in rates.iter_mut().zip(&mut work) {
        work();
        let seconds = slowest(world, || {
            let begin = Instant::now();
            work();
            Ok(begin.elapsed().as_secs_f64())
        })?;
        *rate = MEMORY as f64 / seconds;
    }
    Ok(rates)
}

/// The median of what all ranks measure at the same times; each sample is that of the slowest rank. Collective.
fn slowest(world: &World, mut sample: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut seconds = [0.0; SAMPLES];
    for time in &mut seconds {
        world.barrier()?;
        *time = sample()?;
    }
    world.max_f64(&mut seconds)?;
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[SAMPLES / 2].max(1e-9))
}

impl std::fmt::Display for LinkLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (one, both) = (self.one_way / 1e9, self.both_ways / 1e9);
        write!(f, "{:.2} us, {one:.2} GB/s one way, {both:.2} GB/s each way at once", self.latency * 1e6)
    }
}

impl std::fmt::Display for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, link) in [("within a node", &self.within), ("between nodes", &self.between)] {
            if let Some(link) = link {
                writeln!(f, "messages {name}: {link}")?;
            }
        }
        write!(
            f,
            "memory of each rank while all work: copy {:.2} GB/s, add in place {:.2} GB/s, round to bf16 {:.2} GB/s",
            self.copy / 1e9,
            self.add / 1e9,
            self.convert / 1e9
        )
    }
}
