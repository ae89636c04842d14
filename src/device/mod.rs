//! Devices: what compiles ops into kernels and runs them.
//!
//! A device is asked at plan time how it would run an op (`compile`): which layouts it wants, how much
//! workspace, which implementation. When every tensor has its place the kernel is bound to memory, and what
//! comes back is a `Step` that does nothing but run: no allocation, no descriptor, no look-up. The trait fits
//! both oneDNN (synchronous, blocked layouts) and cuDNN (a queue, events, device memory). May use: `graph`,
//! `random`, `error`. Used by: `plan`, `train`. Devices: `reference` (the specification), `onednn` (CPU).

mod codec;
pub mod cuda;
mod kernel;
mod layout;
mod loaded;
pub mod memory;
pub mod onednn;
pub mod reference;
mod update;
mod usage;

use std::any::Any;
use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::graph::{Joint, Op, OpFusions, Spec};

pub use codec::{CodecBucket, CodecKind, CodecPiece, CodecSetup, DeviceCodec};
pub use kernel::Kernel;
pub use layout::Layout;
pub use memory::Memory;
pub use update::{Rule, Span, Squares, Updated, clip_factor};
pub use usage::{Metered, Usage};

/// The numbers that change from step to step. Everything else about a step is fixed when it is bound.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Scalars {
    /// The run's seed.
    pub seed: u64,
    /// Counts training steps (parameter updates) from 0: the same on every rank.
    pub step: u64,
    /// Position of this batch's first sample in the global batch.
    pub first_sample: u64,
    /// Factor on the loss gradient: 1 / (ranks × batch × accumulation).
    pub gradient_scale: f32,
    /// Factor on gradients that are there (`Device::scale`): one over the loss scale, or what clips them.
    pub rescale: f32,
    /// Learning rate of this update.
    pub learning_rate: f32,
    /// Counts parameter updates from 1 (Adam's t).
    pub update: u64,
}

/// What the plan asks of a device: run `op` on such inputs.
pub struct KernelRequest<'a> {
    /// What is to be computed.
    pub op: &'a Op,
    /// Every input, and the layout it has so far (`None`: the device may choose; parameters).
    pub inputs: &'a [(Spec, Option<Layout>)],
    /// Shape and type of each output.
    pub outputs: &'a [Spec],
    /// For a backward op: the kernel compiled for its forward op.
    pub forward: Option<&'a Kernel>,
    /// Whether a backward pass will follow (a forward op then leaves what that needs).
    pub training: bool,
}

/// A kernel bound to memory: ready to run as often as wanted.
pub trait Step {
    /// Enqueues the step. When this returns the work may still be under way (see `Device::synchronize`).
    fn run(&mut self, scalars: &Scalars) -> Result<()>;
}

impl<F: FnMut(&Scalars) -> Result<()>> Step for F {
    fn run(&mut self, scalars: &Scalars) -> Result<()> {
        self(scalars)
    }
}

/// The error for an op that `Graph::trade_rows` should have made others of.
fn not_lowered(op: &Op) -> Error {
    Error::internal(format!("{} is made of other ops before it runs", op.name()))
}

/// A place where ops run, with memory of its own. One rank has one.
pub trait Device {
    /// "reference", "cpu".
    fn name(&self) -> &'static str;
    /// Whether the host reads and writes this device's memory as it lies. Collectives then work in it; else gradients
    /// go through memory of the host (`copy_to_host_after`, `copy_to_device_async`), and each rank has parameters of
    /// its own.
    fn is_host(&self) -> bool {
        true
    }
    /// Bytes that a device with memory of its own can still give this rank.
    fn free_bytes(&self) -> Result<Option<usize>> {
        Ok(None)
    }
    /// What the device's own meter shows, where it has one.
    fn usage(&self) -> Option<Usage> {
        None
    }
    /// What the plan is to join for it.
    fn op_fusions(&self) -> OpFusions {
        OpFusions::default()
    }
    /// Whether it computes this faster as one (`Graph::join_norms`).
    fn joins(&self, _joint: &Joint) -> Result<bool> {
        Ok(false)
    }
    /// What `joins` has found to be slower so, by names that say the same on every rank; and others' such findings,
    /// which it is to go by from now on.
    fn apart(&self) -> Vec<String> {
        Vec::new()
    }
    /// Lets go of what is kept of plans that are no more.
    fn forget(&self) -> Result<()> {
        Ok(())
    }
    /// See `apart`.
    fn keep_apart(&self, _names: &[String]) {}
    /// From how many operations for each element of an activation on, in what reads it on the way back, the plan is to
    /// have it made again from what is kept anyway (`Graph::remake`); `None` keeps everything.
    fn remakes_from(&self) -> Option<u64> {
        None
    }
    /// One line for the record: library, version, instruction set, threads.
    fn describe(&self) -> String;
    /// Zeroed memory.
    fn allocate(&self, bytes: usize) -> Result<Memory>;
    /// Memory that is offered to other processes (`export_handle`): nothing else lies where it lies.
    fn allocate_offered(&self, bytes: usize) -> Result<Memory> {
        self.allocate(bytes)
    }
    /// The layout in which the host reads and writes: dense, last dimension fastest.
    fn plain(&self, spec: &Spec) -> Layout;
    /// Makes the kernel of an op for these shapes and layouts.
    ///
    /// # Errors
    /// What the device cannot compute, or a failing library call, with the op and its shapes.
    fn compile(&self, request: &KernelRequest) -> Result<Kernel>;
    /// A kernel that copies a tensor from one layout into another.
    fn reorder(&self, spec: &Spec, from: &Layout, to: &Layout) -> Result<Kernel>;
    /// A kernel that copies rows (along the first dimension) of a tensor in this layout into a plain tensor of these
    /// rows alone, or from there `into` the layout; all of the tensor's memory is given. `None` where the device copies
    /// whole tensors only, or the rows do not begin and end with blocks of the layout.
    fn reorder_rows(
        &self,
        _spec: &Spec,
        _layout: &Layout,
        _rows: &Range<usize>,
        _into: bool,
    ) -> Result<Option<Kernel>> {
        Ok(None)
    }
    /// The optimizer's update of these spans, fixed to memory. `state` holds the rule's state regions; all
    /// regions share offsets, so that one span names the same parameter in each. For a rule with norms
    /// (`Rule::has_trust`) each span is one parameter.
    fn update(&self, rule: &Rule, spans: &[Span], of: &Updated) -> Result<Box<dyn Step>>;
    /// Scales all gradients in this memory so that their norm is at most `max_norm`, as a step.
    fn clip(&self, max_norm: f32, gradients: &Memory) -> Result<Box<dyn Step>> {
        let scale = self.scale(gradients, &self.allocate(4)?)?;
        Ok(update::clip(max_norm, self.squares(std::slice::from_ref(gradients))?, scale))
    }
    /// The sum of the squares of all gradients in these parts, in one order whatever the threads.
    fn squares(&self, parts: &[Memory]) -> Result<Squares>;
    /// Multiplies all gradients in this memory by `Scalars::rescale`, as a step, and puts an `u32` that is not 0 into
    /// `broken` where one is not finite; else `broken` stays as it is.
    fn scale(&self, gradients: &Memory, broken: &Memory) -> Result<Box<dyn Step>>;
    /// An `u32` that a device with a queue looks at itself: updates and averages that run while it is not 0 change
    /// nothing. It is 0 again when a step of another number (`Scalars::step`) runs. `None`: whoever runs updates has to
    /// know before.
    fn skip_flag(&self) -> Option<Memory> {
        None
    }
    /// Enqueues, behind `after` and beside what else is enqueued: `skip_flag` is set if these losses, `f32`, do not add
    /// up to a finite number. The event says when. For devices that have such a flag.
    fn check_losses(&self, _losses: &Memory, _after: &DeviceEvent) -> Result<DeviceEvent> {
        Err(Error::internal(format!("{} looks at no losses", self.name())))
    }
    /// `into` = `decay`·`into` + (1 − `decay`)·`from`, both `f32`, as a step; the first update takes `from` over.
    fn average(&self, decay: f32, from: &Memory, into: &Memory) -> Result<Box<dyn Step>>;
    /// `into` += `from`, both `f32`, as a step (gradient accumulation).
    fn accumulate(&self, from: &Memory, into: &Memory) -> Result<Box<dyn Step>>;
    /// Copies host bytes into device memory. Lengths must be equal.
    fn upload(&self, from: &[u8], to: &Memory) -> Result<()> {
        to.write(from);
        Ok(())
    }
    /// Copies device memory to the host. Lengths must be equal.
    fn download(&self, from: &Memory, to: &mut [u8]) -> Result<()> {
        from.read(to);
        Ok(())
    }
    /// Fills device memory with zeros.
    fn zero(&self, memory: &Memory) -> Result<()> {
        memory.zero();
        Ok(())
    }
    /// Marks a point in the queue. Host-synchronous devices have nothing to mark.
    fn record(&self) -> Result<DeviceEvent> {
        Ok(DeviceEvent(None))
    }
    /// Makes copies between this host memory and the device fast, if that can be.
    fn pin(&self, _host: &Memory) {}
    /// Memory of the host of which copies to and from the device are fast.
    fn page_locked(&self, bytes: usize) -> Result<Memory> {
        Memory::host(bytes)
    }
    /// Enqueues a copy of device memory to the host, behind `after` and beside what else is enqueued. The event says
    /// when it is there; until then nobody may touch `host`. For devices that are not `is_host`.
    fn copy_to_host_after(
        &self,
        _from: &Memory,
        _host: &Memory,
        _after: &DeviceEvent,
    ) -> Result<DeviceEvent> {
        Err(Error::internal(format!("{} has nothing to fetch", self.name())))
    }
    /// Enqueues a copy of host memory to the device, beside what else is enqueued; the event says when it is there.
    /// Nobody may write to `host` before, but a `copy_to_host_after` behind a `wait_event` for it. For devices that are
    /// not `is_host`.
    fn copy_to_device_async(&self, _host: &Memory, _to: &Memory) -> Result<DeviceEvent> {
        Err(Error::internal(format!("{} has nowhere to put", self.name())))
    }
    /// Enqueues a copy of page-locked host memory to the device, behind all that was enqueued before: what is enqueued
    /// from now on finds it there. Nobody may write to `host` before that is known to have happened. For devices that
    /// are not `is_host`.
    fn upload_async(&self, _host: &Memory, _to: &Memory) -> Result<()> {
        Err(Error::internal(format!("{} has nowhere to put", self.name())))
    }
    /// Enqueues a copy of host memory to the device, behind `after` and beside what else is enqueued; the event says
    /// when it is there. Nobody may write to `host` before. For devices that are not `is_host`.
    fn copy_to_device_after(
        &self,
        _host: &Memory,
        _to: &Memory,
        _after: &DeviceEvent,
    ) -> Result<DeviceEvent> {
        Err(Error::internal(format!("{} has nowhere to send", self.name())))
    }
    /// Lets what is enqueued from now on wait for an event.
    fn wait_event(&self, _event: &DeviceEvent) -> Result<()> {
        Ok(())
    }
    /// Enqueues a copy within the device's memory. Lengths must be equal.
    fn copy(&self, from: &Memory, to: &Memory) -> Result<()> {
        if !self.is_host() {
            return Err(Error::internal(format!("{} copies nothing", self.name())));
        }
        to.copy_from(from);
        Ok(())
    }
    /// One step that does what this enqueues, with less work for the host, where the device can; nothing is run now.
    /// What the step copies to the host is there at the event that `copy_to_host_after` gave, each time anew.
    fn capture(&self, _enqueue: &mut dyn FnMut() -> Result<()>) -> Result<Option<Box<dyn Step>>> {
        Ok(None)
    }
    /// Runs these one after the other, once to warm up and then so many times; says how many seconds each run of each
    /// took.
    fn time(&self, steps: &mut [Box<dyn Step>], scalars: &Scalars, runs: usize) -> Result<Vec<Vec<f64>>> {
        let mut seconds = vec![Vec::with_capacity(runs); steps.len()];
        for run in 0..=runs {
            for (step, seconds) in steps.iter_mut().zip(&mut seconds) {
                let begun = Instant::now();
                step.run(scalars)?;
                if run > 0 {
                    seconds.push(begun.elapsed().as_secs_f64());
                }
            }
        }
        Ok(seconds)
    }
    /// Waits until everything enqueued has finished.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
    /// What encodes gradients that lie on this device. A device of the host has none: it is done there
    /// (`fusion::compress`).
    fn codec(&self, _coding: &CodecSetup) -> Result<Box<dyn DeviceCodec>> {
        Err(Error::internal(format!("{} encodes no gradients", self.name())))
    }
    /// What other processes of this machine need to reach this memory, which is all of an allocation.
    fn export_handle(&self, _memory: &Memory) -> Result<Vec<u8>> {
        Err(Error::internal(format!("{} lets nobody reach its memory", self.name())))
    }
    /// Reaches what the ranks of a node offer, in their order; of these this rank's, number `own`, is `memory`, and as
    /// long as each.
    fn open_peers(&self, _offers: &[Vec<u8>], _own: usize, _memory: &Memory) -> Result<Box<dyn PeerMemory>> {
        Err(Error::internal(format!("{} reaches no others' memory", self.name())))
    }
    /// What one rank makes and all are given, so that their devices find each other (`join`).
    fn unique_id(&self) -> Result<Vec<u8>> {
        Err(Error::internal(format!("{} joins no others", self.name())))
    }
    /// Begins to join the devices of `ranks` ranks, of which this is number `rank`: see `DeviceGroup::ready`.
    fn join_group(&self, _invitation: &[u8], _rank: usize, _ranks: usize) -> Result<Box<dyn DeviceGroup>> {
        Err(Error::internal(format!("{} joins no others", self.name())))
    }
}

/// The devices of several ranks, which add up over ranks by themselves, past the host. Every rank asks for the same in
/// the same order. Nothing here waits for others. What is dropped before `leave` was ready is broken off, on all ranks.
pub trait DeviceGroup {
    /// Whether what was asked for last (joining, a sum, leaving) is settled: all have joined, the sum is enqueued, all
    /// have left. Until then nothing else may be asked for.
    ///
    /// # Errors
    /// `Foreign`: what failed here or on another rank, also of sums that are enqueued.
    fn ready(&mut self) -> Result<bool>;
    /// Adds up these `f32` over all ranks, in place, behind all that was enqueued on this rank's device and beside what
    /// is enqueued after.
    fn sum(&mut self, memory: &Memory) -> Result<()>;
    /// Marks the point at which all sums so far are done; not before they are enqueued. What is enqueued on the device
    /// from when it is reached finds them.
    fn record(&self) -> Result<DeviceEvent>;
    /// Begins to end the group in order.
    fn leave(&mut self) -> Result<()>;
}

/// Memory of several ranks' devices of one node, which this rank's device reads and writes: the same parts of each,
/// told by bytes. What is enqueued here is done in order, beside what else the device does. That others have written
/// what is read, and read what is written, is for the caller to know. To be dropped before those whose memory it is
/// free it.
pub trait PeerMemory {
    /// How many there are.
    fn ranks(&self) -> usize;
    /// Enqueues: adds up the `f32` of these ranks, in this order, and writes the sums to those.
    fn add_up(&mut self, bytes: &Range<usize>, of: &[usize], to: &[usize]) -> Result<()>;
    /// Enqueues a copy of this rank's part to memory of the host.
    fn copy_to_host_async(&mut self, bytes: &Range<usize>, host: &Memory) -> Result<()>;
    /// Enqueues the copy back.
    fn copy_to_device_async(&mut self, bytes: &Range<usize>, host: &Memory) -> Result<()>;
    /// Marks the point behind what is enqueued: once it is reached, anybody may use it.
    fn record(&self) -> Result<DeviceEvent>;
}

/// A point in a device's queue; `None` inside for devices that finish a step before `run` returns.
#[derive(Clone)]
pub struct DeviceEvent(pub Option<Rc<dyn Point>>);

impl DeviceEvent {
    /// Whether everything before it has finished.
    pub fn reached(&self) -> Result<bool> {
        self.0.as_ref().map_or(Ok(true), |point| point.reached())
    }
}

/// A device's own kind of event.
pub trait Point: Any {
    /// Whether everything before it has finished.
    fn reached(&self) -> Result<bool>;
}
