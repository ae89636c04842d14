//! Codecs of gradients on a device with memory of its own: what is encoded and decoded where it lies.

use std::ops::Range;

use super::{DeviceEvent, Memory};
use crate::error::Result;

/// What is sent of a piece: as `fusion::compress::codec` has it, to the bit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CodecKind {
    /// This share of the numbers, the largest.
    TopK {
        /// The share, above 0 and at most 1.
        share: f32,
    },
    /// Signs, and a mean for either.
    OneBit,
    /// Above, below, between plus and minus this.
    TwoBit {
        /// What is sent, up to its sign.
        threshold: f32,
    },
}

/// A piece of at most 65,536 numbers, and where it is spoken of; everything counts `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodecPiece {
    /// Among the gradients.
    pub gradient: usize,
    /// Among what stays behind.
    pub residual: usize,
    /// How many numbers it has, at most 65,536.
    pub count: usize,
    /// In a rank's message.
    pub word: usize,
}

/// What of a bucket is encoded, and what travels as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodecBucket {
    /// In the order of their gradients.
    pub pieces: Vec<CodecPiece>,
    /// The message of every rank, among all messages.
    pub messages: Vec<Range<usize>>,
    /// Where it lies among the gradients, and its place among what is summed.
    pub exact: Vec<(Range<usize>, usize)>,
    /// What is summed of this bucket.
    pub summed: Range<usize>,
}

/// What a coder works on. On the device: gradients, what stays behind; on the host, where others get it: what is
/// summed, and the messages of all ranks.
pub struct CodecSetup<'a> {
    /// The codec.
    pub code: CodecKind,
    /// The buckets and their pieces.
    pub buckets: &'a [CodecBucket],
    /// This rank's number.
    pub rank: usize,
    /// This rank's gradients, on the device.
    pub gradients: &'a Memory,
    /// What encoding left out of earlier gradients, on the device.
    pub residuals: &'a Memory,
    /// What is summed uncompressed, on the host.
    pub summed: &'a Memory,
    /// The messages of all ranks, on the host.
    pub messages: &'a Memory,
}

/// Encodes and decodes buckets, behind what the device computes.
pub trait DeviceCodec {
    /// Enqueues: what stayed behind is added to the gradients, this rank's message and what travels as it is go to the
    /// host. Returns the point behind that, from when others may read it there.
    fn encode(&mut self, bucket: usize) -> Result<DeviceEvent>;
    /// Enqueues: the gradients become the sum of what all ranks say, in the order of ranks.
    fn decode(&mut self, bucket: usize) -> Result<()>;
}
