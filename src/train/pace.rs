//! Whether steps take as long as was expected, and if not, whether one host's messages are what all wait for: its link
//! may send slower than the others' do, which no measurement of two other hosts has seen.

use std::rc::Rc;
use std::time::Instant;

use super::step::StepResult;
use crate::comm::{Awaited, Channel, Link, Region, Request, Wait, World};
use crate::error::Result;
use crate::plan::describe_seconds as time;
use crate::record;

/// Steps that take so many times what was expected are worth a word.
const MANY: f64 = 2.0;
/// Of a mean over so many: the first ones touch their memory for the first time.
const FEWEST: u32 = 3;
/// A host whose messages take so many times what those of the others take is the slow one.
const SLOW: f64 = 2.0;
/// Bytes of a message that tells how fast a link is: more than switches and kernels hold back.
const MESSAGE: usize = 1 << 20;
/// Messages each way, of which the fastest counts.
const TRIES: usize = 3;

/// What was expected of a step, and what they took.
pub struct Pace {
    /// NaN where nothing is known beforehand.
    expected: f64,
    /// Whether the figures that it was expected by were measured on this machine.
    measured: bool,
    steps: u32,
    seconds: f64,
    waited: f64,
    said: bool,
}

impl Pace {
    /// Of steps that are expected to take so many seconds, on rank 0.
    pub fn new(expected: f64, measured: bool) -> Pace {
        Pace { expected, measured, steps: 0, seconds: 0.0, waited: 0.0, said: false }
    }

    /// Counts a step, without its wait for images.
    pub fn step(&mut self, result: &StepResult) {
        self.steps += 1;
        if self.steps > 1 {
            self.seconds += result.spent.seconds - result.spent.input;
            self.waited += result.spent.communication;
        }
    }

    /// Says, once, that steps take many times what was expected, and whose messages they wait for. Between two steps;
    /// collective.
    ///
    /// # Errors
    /// Those of messages.
    pub fn say(&mut self, world: &World) -> Result<()> {
        let count = f64::from(self.steps.saturating_sub(1));
        let [taken, waits] = [self.seconds / count, self.waited / self.seconds];
        // What rank 0 has found, for all.
        let is_slow = world.is_first() && !self.said && self.steps > FEWEST && taken > MANY * self.expected;
        let waits_long = is_slow && waits > 0.5 && world.nodes() > 1;
        let mut found = [is_slow, waits_long].map(|is| f64::from(u8::from(is)));
        world.max_f64(&mut found)?;
        if found[0] == 0.0 {
            return Ok(());
        }
        self.said = true;
        let slow = if found[1] > 0.0 { slowest(world)? } else { None };
        // Built-in figures are of another machine: that steps take longer says nothing then.
        if slow.is_none() && !self.measured {
            return Ok(());
        }
        let why = match (slow, found[1] > 0.0) {
            (Some(why), _) => why,
            (None, true) => "no host sends slower than the others".into(),
            (None, false) => "it is not the network that they wait for".into(),
        };
        let [expected, times] = [self.expected, taken / self.expected];
        let text = format!(
            "steps take {times:.1} times what was predicted ({}, not {}), and wait for {:.0}% of that: {why}",
            time(taken),
            time(expected),
            100.0 * waits
        );
        record::log(world, log::Level::Warn, &text);
        Ok(())
    }
}

/// The host that sends slower than the others, in words, if there is one. Collective.
fn slowest(world: &World) -> Result<Option<String>> {
    let rates = rates(world)?;
    Ok(slow_one(&rates).map(|(node, usual)| {
        let (name, rate) = (world.host_of(world.ranks_of(node)[0]), rates[node] / 1e9);
        format!("messages of {name} come at {rate:.3} GB/s, those of others at {:.3} GB/s", usual / 1e9)
    }))
}

/// The node that sends slower than the others, and what is usual among these.
fn slow_one(rates: &[f64]) -> Option<(usize, f64)> {
    let mut order: Vec<usize> = (0..rates.len()).collect();
    order.sort_by(|&one, &other| rates[one].total_cmp(&rates[other]));
    let (slow, others) = order.split_first()?;
    let usual = rates[*others.get(others.len() / 2)?];
    (usual > SLOW * rates[*slow]).then_some((*slow, usual))
}

/// Bytes a second that each node sends to the node behind it or to the one before, whichever it sends to faster: a node
/// whose own link receives slowly is not the other's fault. All send at a time, each link one message. Collective.
fn rates(world: &World) -> Result<Vec<f64>> {
    let nodes = world.nodes();
    let leaders: Vec<usize> = (0..nodes).map(|node| world.ranks_of(node)[0]).collect();
    let own = leaders.iter().position(|&rank| rank == world.rank());
    let region = || world.agree(Region::private(MESSAGE)).map(Rc::new);
    let (channel, outgoing, incoming) = (Channel::new(world)?, region()?, region()?);
    let all = 0..MESSAGE / size_of::<f32>();
    let mut seconds = vec![0.0; 2 * nodes];
    for (back, step) in [1, nodes - 1].into_iter().enumerate() {
        let mut least = f64::INFINITY;
        for _ in 0..TRIES {
            world.barrier()?;
            let Some(own) = own else { continue };
            let [to, from] = [step, nodes - step].map(|by| leaders[(own + by) % nodes]);
            let begin = Instant::now();
            let comes = channel.receive(&incoming, &all, from, 0)?;
            let goes = channel.send(&outgoing, &all, to, 0, false)?;
            complete(comes, channel.job_rank(from))?;
            least = least.min(begin.elapsed().as_secs_f64());
            complete(goes, channel.job_rank(to))?;
        }
        if let Some(own) = own {
            seconds[back * nodes + (own + nodes - step) % nodes] = least;
        }
    }
    world.max_f64(&mut seconds)?;
    let rate = |node: usize| MESSAGE as f64 / seconds[node].min(seconds[nodes + node]).max(1e-9);
    Ok((0..nodes).map(rate).collect())
}

/// Polls until a message has come, or left.
fn complete(mut request: Request, other: usize) -> Result<()> {
    let mut wait = Wait::new();
    while !request.test()? {
        wait.idle(|| Awaited { what: "a message that tells how fast a link is".into(), peers: vec![other] })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_hosts_the_slow_one_is_named() {
        assert_eq!(slow_one(&[1.0, 1.1, 0.9]), None);
        assert_eq!(slow_one(&[1.0, 0.1, 0.9]), Some((1, 1.0)));
        assert_eq!(slow_one(&[0.012, 0.12]), Some((0, 0.12)));
        assert_eq!(slow_one(&[0.5]), None);
    }
}
