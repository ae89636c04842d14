//! Norms of what each rank owns of the gradients, told to all.

use super::InFlight;
use crate::collective::{Gather, InGroups};
use crate::comm::{Awaited, World};
use crate::device::Device;
use crate::error::Result;

/// One number of each rank, to the bit.
pub struct Norms {
    gather: Gather,
    /// This rank's: the sum of its gradients' squares, or no number where one of them is broken.
    pub own: f64,
    all: Vec<f32>,
}

impl Norms {
    /// Between all ranks. Collective.
    pub fn new(world: &World) -> Result<Norms> {
        let gather = Gather::new(world, world.size(), 2)?;
        Ok(Norms { gather, own: 0.0, all: vec![0.0; 2 * world.size()] })
    }

    /// Of all ranks, in their order.
    pub fn sum(&self) -> f64 {
        let of =
            |two: &[f32]| f64::from_bits(u64::from(two[0].to_bits()) << 32 | u64::from(two[1].to_bits()));
        self.all.chunks_exact(2).map(of).sum()
    }
}

impl InFlight for Norms {
    fn start(&mut self, _: usize, _: &dyn Device) -> Result<()> {
        let bits = self.own.to_bits();
        self.gather.start(&[(bits >> 32) as u32, bits as u32].map(f32::from_bits))
    }

    fn progress(&mut self, _: &dyn Device) -> Result<bool> {
        self.gather.poll()
    }

    fn is_flying(&self) -> bool {
        !self.gather.is_done()
    }

    fn has_come(&self, _: usize) -> bool {
        self.gather.is_done()
    }

    fn finish(&mut self, _: usize, _: &dyn Device) -> Result<()> {
        self.gather.read(&mut self.all);
        Ok(())
    }

    fn awaited(&self, _: usize) -> Awaited {
        Awaited { what: "the norms of gradients".into(), peers: self.gather.waiting_for() }
    }

    fn sent(&self) -> u64 {
        0
    }
}
