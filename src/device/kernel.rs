//! An op compiled for one device.

use std::any::Any;
use std::rc::Rc;

use super::{Layout, Memory, Step};
use crate::error::{Error, Result};

/// Fixes a kernel to the memories of its inputs and outputs, and to scratch memory.
pub(super) type Bind = dyn Fn(&Kernel, &[Memory], &[Memory], &Memory) -> Result<Box<dyn Step>>;

/// An op compiled for one device, not yet bound to memory.
pub struct Kernel {
    /// The layouts in which the kernel reads its inputs. Where one differs from the layout given in the request the
    /// plan puts a reorder before the kernel.
    pub inputs: Vec<Layout>,
    /// The layouts in which it writes its outputs.
    pub outputs: Vec<Layout>,
    /// Bytes of scratch memory needed while it runs.
    pub workspace: usize,
    /// Bytes of its workspace that it asks for and never touches, so that the system brings no memory for them.
    pub untouched: usize,
    /// An input of which it reads a copy in halves that the device keeps: half of the bytes.
    pub halved: Option<usize>,
    /// Bytes in halves that the device keeps of a gradient that it gives.
    pub kept: usize,
    /// An input whose memory output 0 may take over (same bytes, elementwise).
    pub in_place: Option<usize>,
    /// Which implementation was chosen, for tables: "jit:avx512_core".
    pub implementation: String,
    /// What its device recognises it by.
    pub own: Option<Rc<dyn Any>>,
    pub(super) bind: Box<Bind>,
}

impl Kernel {
    /// One that needs no memory but its inputs and outputs.
    pub fn new(
        implementation: impl Into<String>,
        inputs: Vec<Layout>,
        outputs: Vec<Layout>,
        bind: impl Fn(&Kernel, &[Memory], &[Memory], &Memory) -> Result<Box<dyn Step>> + 'static,
    ) -> Kernel {
        Kernel {
            inputs,
            outputs,
            workspace: 0,
            untouched: 0,
            halved: None,
            kept: 0,
            in_place: None,
            implementation: implementation.into(),
            own: None,
            bind: Box::new(bind),
        }
    }

    /// Asks for scratch memory.
    pub fn with_workspace(self, bytes: usize) -> Kernel {
        Kernel { workspace: bytes, ..self }
    }

    /// States that output 0 may be written over an input, where both have as many bytes.
    pub fn in_place(self, input: usize) -> Kernel {
        let fits = self.inputs[input].bytes() == self.outputs[0].bytes();
        Kernel { in_place: fits.then_some(input), ..self }
    }

    /// What its device recognises it by, if it is such.
    pub fn own<T: 'static>(&self) -> Option<&T> {
        self.own.as_ref()?.downcast_ref()
    }

    /// Fixes it to memory. The slices are in the order of the op's inputs and outputs.
    ///
    /// # Errors
    /// `Internal` where a tensor has no room in the memory meant for it; a failing library call.
    pub fn bind(&self, inputs: &[Memory], outputs: &[Memory], workspace: &Memory) -> Result<Box<dyn Step>> {
        check(inputs, &self.inputs)?;
        check(outputs, &self.outputs)?;
        if workspace.bytes() < self.workspace {
            return Err(Error::internal(format!("{} bytes of workspace", workspace.bytes())));
        }
        (self.bind)(self, inputs, outputs, workspace)
    }
}

/// Makes sure that every tensor has room in the memory meant for it.
fn check(memory: &[Memory], layouts: &[Layout]) -> Result<()> {
    if memory.len() != layouts.len() {
        return Err(Error::internal(format!("{} memories for {} tensors", memory.len(), layouts.len())));
    }
    match memory.iter().zip(layouts).find(|(memory, layout)| memory.bytes() < layout.bytes()) {
        Some((memory, layout)) => {
            Err(Error::internal(format!("{} bytes for a tensor of {layout:?}", memory.bytes())))
        }
        None => Ok(()),
    }
}
