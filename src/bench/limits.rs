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
use crate::comm::{Channel, Link, Region, Request, World};
use crate::config::Wire;
use crate::error::Result;

/// What messages between two ranks take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkLimit {
    /// Seconds from one rank to the other for a message of four bytes: half a round trip.
    pub latency: f64,
    /// Bytes a second in each direction, with nothing in the other.
    pub one_way: [f64; 2],
    /// Bytes a second in each direction while both send.
    pub both_ways: f64,
}

/// What bounds a collective on the ranks of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct BandwidthLimits {
    /// Between two ranks of one node, while all ranks of the node exchange in pairs; `None` where none has two.
    pub within: Option<LinkLimit>,
    /// Between two nodes, one rank on each; `None` on a single node.
    pub between: Option<LinkLimit>,
    /// Pairs of hosts of which one sends much faster to the other than that one back, in words.
    pub unlike: Vec<String>,
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

/// A link is unlike in its two directions if one has so many times the other's rate: more than noise makes.
const UNLIKE: f64 = 2.0;

/// Measures. Takes about a second; more where a link is slow. Collective.
///
/// # Errors
/// The same on every rank where there is no memory; else `Foreign` when MPI fails.
pub fn measure(world: &World) -> Result<BandwidthLimits> {
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
    let ways = between;
    let between = if world.nodes() > 1 { Some(link.measure(world, between)?) } else { None };
    let unlike = if world.nodes() > 1 { link.unlike(world, ways)? } else { Vec::new() };
    let [copy, add, convert] = memory(world)?;
    Ok(BandwidthLimits { within, between, unlike, copy, add, convert })
}

/// The limits as comment lines of a table, one each.
pub fn comment(limits: &BandwidthLimits) -> String {
    let lines: Vec<String> = limits.to_string().lines().map(|line| format!("# limit: {line}")).collect();
    lines.join("\n")
}

/// One end of a pair of ranks.
pub(super) struct Pair {
    channel: Channel,
    outgoing: Rc<Region>,
    incoming: Rc<Region>,
    /// Bytes a second that this pair was last measured to send, from its first rank to the other and back.
    own: [f64; 2],
}

impl Pair {
    /// What `both_ways` sends in each direction.
    pub(super) const BYTES: f64 = (WINDOW * CHUNK * size_of::<f32>()) as f64;

    /// Seconds in which `BYTES` have left and as many come in.
    pub(super) fn both_ways(&self, partner: Option<usize>) -> Result<f64> {
        self.exchange(partner, WINDOW, [true, true])
    }

    /// This rank's end. Collective.
    pub(super) fn new(world: &World) -> Result<Pair> {
        let region = || world.agree(Region::private(CHUNK * WINDOW * size_of::<f32>())).map(Rc::new);
        let (channel, own) = (Channel::new(world)?, [f64::NAN; 2]);
        Ok(Pair { channel, outgoing: region()?, incoming: region()?, own })
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
        let bytes = (messages * CHUNK * size_of::<f32>()) as f64;
        let mut one_way = [0.0; 2];
        for (back, rate) in one_way.iter_mut().enumerate() {
            let sends = first != (back == 1);
            let seconds = samples(world, || self.exchange(partner, messages, [sends, !sends]))?;
            self.own[back] = bytes / median(seconds);
            *rate = bytes / of_slowest(world, seconds)?;
        }
        let both_ways = slowest(world, || self.exchange(partner, messages, [true, true]))?;
        Ok(LinkLimit { latency, one_way, both_ways: bytes / both_ways })
    }

    /// Which pairs were last measured to send much faster one way than back. Collective.
    fn unlike(&self, world: &World, partner: Option<usize>) -> Result<Vec<String>> {
        let said = match partner.filter(|&partner| world.rank() < partner) {
            Some(partner) if is_unlike(self.own) => {
                let [there, back] = self.own.map(|rate| rate / 1e9);
                let [here, other] = [world.rank(), partner].map(|rank| world.host_of(rank));
                format!("{here} sends to {other} at {there:.3} GB/s, and {other} to {here} at {back:.3} GB/s")
            }
            _ => String::new(),
        };
        Ok(world.gather_text(&said)?.into_iter().filter(|said| !said.is_empty()).collect())
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

fn is_unlike([there, back]: [f64; 2]) -> bool {
    there > UNLIKE * back || back > UNLIKE * there
}

/// The median of what all ranks measure at the same times; each sample is that of the slowest rank. Collective.
fn slowest(world: &World, sample: impl FnMut() -> Result<f64>) -> Result<f64> {
    of_slowest(world, samples(world, sample)?)
}

/// What this rank measures at the same times as all others. Collective.
fn samples(world: &World, mut sample: impl FnMut() -> Result<f64>) -> Result<[f64; SAMPLES]> {
    let mut seconds = [0.0; SAMPLES];
    for time in &mut seconds {
        world.barrier()?;
        *time = sample()?;
    }
    Ok(seconds)
}

/// The median of the slowest rank's of each. Collective.
fn of_slowest(world: &World, mut seconds: [f64; SAMPLES]) -> Result<f64> {
    world.max_f64(&mut seconds)?;
    Ok(median(seconds))
}

fn median(mut seconds: [f64; SAMPLES]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[SAMPLES / 2].max(1e-9)
}

impl std::fmt::Display for LinkLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ([one, back], both) = (self.one_way.map(|rate| rate / 1e9), self.both_ways / 1e9);
        let latency = self.latency * 1e6;
        match is_unlike(self.one_way) {
            false => write!(f, "{latency:.2} us, {one:.2} GB/s one way, {both:.2} GB/s each way at once"),
            true => write!(
                f,
                "{latency:.2} us, {one:.3} GB/s one way and {back:.3} GB/s the other, {both:.3} GB/s each way at once"
            ),
        }
    }
}

impl std::fmt::Display for BandwidthLimits {
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
