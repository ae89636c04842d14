//! Sums that the devices of all ranks make by themselves: gradients never come to the host.

use std::ops::Range;

use super::{as_text, from_text};
use crate::collective::{Collective, Slot};
use crate::comm::{Awaited, Wait, World};
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, DeviceEvent, DeviceGroup, Memory};
use crate::error::{Error, ErrorKind, Result};

/// Sums of parts of a device's memory. A bucket's is enqueued behind the step that completes it, and the host only
/// looks whether it is done.
pub struct OnDevice {
    name: &'static str,
    group: Box<dyn DeviceGroup>,
    memory: Memory,
    /// Each range in elements; in flight, the point behind its sum.
    slots: Vec<(Range<usize>, Option<DeviceEvent>)>,
}

impl OnDevice {
    /// OpFusions the devices of all ranks, and lets them add up numbers whose sum is known. Collective.
    ///
    /// # Errors
    /// The same on every rank where the first call fails; else of the ranks that notice what failed.
    pub fn new(world: &World, name: &'static str, device: &dyn Device, memory: &Memory) -> Result<OnDevice> {
        let own = if world.rank() == 0 { device.unique_id() } else { Ok(Vec::new()) };
        let invitation = from_text(&world.broadcast_text(&as_text(&world.agree(own)?))?)?;
        let group = world.agree(device.join_group(&invitation, world.rank(), world.size()))?;
        let mut sums = OnDevice { name, group, memory: memory.clone(), slots: Vec::new() };
        sums.settle("all ranks' GPUs to join")?;
        sums.prove(world, device)?;
        Ok(sums)
    }

    /// Waits until what was asked for last is settled.
    fn settle(&mut self, what: &str) -> Result<()> {
        let mut wait = Wait::new();
        while !self.group.ready()? {
            wait.idle(|| Awaited { what: format!("{what} ({})", self.name), peers: Vec::new() })?;
        }
        Ok(())
    }

    /// Enqueues the sum of a part of memory, and marks its end.
    fn enqueue(&mut self, memory: &Memory) -> Result<DeviceEvent> {
        self.group.sum(memory)?;
        // Until it is enqueued there is nothing behind which a mark could be set. That takes a launch; the first time
        // also what the library has to agree on with the other ranks.
        self.settle("a sum to start")?;
        self.group.record()
    }

    /// Adds up numbers whose sum every rank knows.
    fn prove(&mut self, world: &World, device: &dyn Device) -> Result<()> {
        let name = self.name;
        let right = adds_up(world, device, |memory| {
            let event = self.enqueue(memory)?;
            let mut wait = Wait::new();
            while !self.done(&event)? {
                wait.idle(|| Awaited { what: format!("the first sum ({name})"), peers: Vec::new() })?;
            }
            Ok(())
        })?;
        let wrong = || {
            let text = format!("--allreduce {name} adds up wrongly on these GPUs; use another --allreduce");
            Err(Error::new(ErrorKind::Foreign, text))
        };
        world.agree(if right { Ok(()) } else { wrong() })
    }

    /// Whether a sum is done. What was lost on the way is told also by those who wait for it.
    fn done(&mut self, event: &DeviceEvent) -> Result<bool> {
        self.group.ready()?;
        event.reached()
    }
}

/// Whether `sum` adds up over ranks, in a device's memory, numbers whose sum every rank knows; the same answer on all.
/// Collective.
pub fn adds_up(world: &World, device: &dyn Device, sum: impl FnOnce(&Memory) -> Result<()>) -> Result<bool> {
    /// More than a launch's block, and no multiple of anything.
    const COUNT: usize = 1031;
    let (rank, ranks) = (world.rank(), world.size());
    // Of two different terms each, so that no value stands for another, and exact in f32.
    let numbers = |of_rank: usize, constant: usize| -> Vec<f32> {
        (0..COUNT).map(|index| (of_rank * (index % 7) + constant * index) as f32).collect()
    };
    let mut values = numbers(rank, 1);
    let memory = device.allocate_offered(COUNT * size_of::<f32>())?;
    device.upload(bytes_of(&values), &memory)?;
    // Freeing would wait for a sum that others may never come to.
    sum(&memory).inspect_err(|_| std::mem::forget(memory.clone()))?;
    device.download(&memory, bytes_of_mut(&mut values))?;
    let right = values == numbers(ranks * (ranks - 1) / 2, ranks);
    let mut all = [f64::from(u8::from(right))];
    world.min_f64(&mut all)?;
    Ok(all == [1.0])
}

impl Collective for OnDevice {
    fn name(&self) -> &'static str {
        self.name
    }

    fn prepare(&mut self, range: Range<usize>) -> Result<Slot> {
        self.slots.push((range, None));
        Ok(self.slots.len() - 1)
    }

    fn start(&mut self, slot: Slot) -> Result<()> {
        let range = &self.slots[slot].0;
        let part = self.memory.slice(range.start * size_of::<f32>(), range.len() * size_of::<f32>());
        let event = if range.is_empty() { None } else { Some(self.enqueue(&part)?) };
        self.slots[slot].1 = event;
        Ok(())
    }

    fn poll(&mut self) -> Result<bool> {
        self.group.ready()?;
        let mut moved = false;
        for (_, flying) in &mut self.slots {
            if let Some(event) = flying
                && event.reached()?
            {
                *flying = None;
                moved = true;
            }
        }
        Ok(moved)
    }

    fn is_done(&self, slot: Slot) -> bool {
        self.slots[slot].1.is_none()
    }

    fn leave(&mut self) -> Result<()> {
        self.group.leave()?;
        self.settle("all ranks to end their sums")
    }
}
