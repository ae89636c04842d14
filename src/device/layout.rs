//! How a tensor lies in memory. The plan compares layouts and adds up their bytes; what they mean is the
//! device's own business.

use std::any::Any;
use std::fmt;
use std::rc::Rc;

use crate::graph::DType;

/// A device's layout of one tensor.
#[derive(Clone)]
pub struct Layout {
    /// Describes the layout in full ("f32 aBcd16b 128x32x28x28"): equal text means equal layout. Enters the
    /// plan's hash, so that ranks whose devices chose unlike layouts are found at start.
    text: Rc<str>,
    bytes: usize,
    dtype: DType,
    handle: Option<Rc<dyn Any>>,
}

impl Layout {
    /// `handle` is whatever the device wants back later (a memory descriptor).
    pub fn new(text: impl Into<Rc<str>>, bytes: usize, dtype: DType, handle: Option<Rc<dyn Any>>) -> Layout {
        Layout { text: text.into(), bytes, dtype, handle }
    }

    /// Describes the layout in full: equal text means equal layout.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Bytes that a tensor in this layout takes, padding included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The type of the elements as they lie: a kernel may want f32 for a tensor that is bf16, or the other way round,
    /// and a reorder then converts. `Saved` where only the device can tell.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device's own descriptor.
    pub fn handle<T: 'static>(&self) -> Option<&T> {
        self.handle.as_ref()?.downcast_ref()
    }
}

impl PartialEq for Layout {
    fn eq(&self, other: &Layout) -> bool {
        self.text == other.text
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
