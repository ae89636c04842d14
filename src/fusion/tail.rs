//! The tail of the last bucket (`plan::TAIL`): numbers of a step that travel with its gradients.

use super::until;
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, DeviceEvent, Memory};
use crate::error::Result;
use crate::plan::TAIL;

/// The tail as a step has it.
pub type Values = [f32; TAIL / 4];

/// Where it lies, and how the host writes and reads it without waiting for what the device has to do besides.
pub struct Tail {
    /// With the gradients.
    memory: Memory,
    access: HostAccess,
    /// When the sum is where the host reads it.
    arrives: Option<DeviceEvent>,
}

/// How the host gets the sum.
enum HostAccess {
    /// It reads and writes the device's memory.
    Host,
    /// It has page-locked memory, from which the tail is copied to the device and, when it is summed, back.
    Copied(Memory),
    /// It writes by way of the first; the sum is made in the second, memory of the host's.
    Staged(Memory, Memory),
    /// Of one rank: the sum is what it writes.
    Alone(Memory),
}

impl Tail {
    /// `memory` is that of the gradients on their device; `staged` the host's, where they are averaged there.
    ///
    /// # Errors
    /// Memory lacks.
    pub fn new(device: &dyn Device, memory: Memory, staged: Option<Memory>, ranks: usize) -> Result<Tail> {
        let locked = || device.page_locked(TAIL);
        let access = match staged {
            _ if device.is_host() => HostAccess::Host,
            _ if ranks == 1 => HostAccess::Alone(locked()?),
            Some(staged) => HostAccess::Staged(locked()?, staged),
            None => HostAccess::Copied(locked()?),
        };
        Ok(Tail { memory, access, arrives: None })
    }

    /// Before the last bucket is started.
    pub fn write(&self, device: &dyn Device, values: &Values) -> Result<()> {
        match &self.access {
            HostAccess::Host => device.upload(bytes_of(values), &self.memory),
            HostAccess::Alone(host) => {
                host.write(bytes_of(values));
                Ok(())
            }
            HostAccess::Copied(host) | HostAccess::Staged(host, _) => {
                host.write(bytes_of(values));
                device.upload_async(host, &self.memory)
            }
        }
    }

    /// The last bucket is summed: on the device when it comes to `after`.
    pub(super) fn summed(
        &mut self,
        device: &dyn Device,
        after: impl FnOnce() -> Result<DeviceEvent>,
    ) -> Result<()> {
        if let HostAccess::Copied(host) = &self.access {
            self.arrives = Some(device.copy_to_host_after(&self.memory, host, &after()?)?);
        }
        Ok(())
    }

    /// When all buckets are finished.
    pub(super) fn read(&mut self, device: &dyn Device) -> Result<Values> {
        let mut values = Values::default();
        self.arrives.take().map_or(Ok(()), |event| until(&event, || Ok(false)))?;
        match &self.access {
            HostAccess::Host => device.download(&self.memory, bytes_of_mut(&mut values))?,
            HostAccess::Copied(host) | HostAccess::Staged(_, host) | HostAccess::Alone(host) => {
                host.read(bytes_of_mut(&mut values))
            }
        }
        Ok(values)
    }
}
