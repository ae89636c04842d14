//! The work on buckets whose gradients lie on a device with memory of its own: it encodes and decodes them there, and
//! only messages, and what travels as it is, come to the host. The bits are those that the host would give.

use super::codec;
use super::split::{Bucket, How, Split, Unit};
use super::work::{Compressor, Kept, names};
use crate::collective;
use crate::config::Compression;
use crate::config::environment;
use crate::device::{
    CodecBucket, CodecKind, CodecPiece, CodecSetup, Device, DeviceCodec, DeviceEvent, Memory,
};
use crate::error::{Error, Result};

pub struct OnDevice {
    coder: Box<dyn DeviceCodec>,
    residuals: Memory,
    /// Of each bucket the point behind its last encoding.
    left: Vec<Option<DeviceEvent>>,
    name: &'static str,
}

/// How a device encodes by a scheme, for so many ranks; none where that is done on the host: with gradients that lie
/// there, of schemes that sum factors, and with `DLTRAIN_CUDA_CODING=0`.
pub fn code(scheme: Compression, ranks: usize, device: &dyn Device) -> Option<CodecKind> {
    let wanted = !environment::CUDA_CODING.is_off();
    codec::code(scheme, ranks).filter(|_| wanted && !device.is_host())
}

/// Bytes on the device beside the gradients.
pub fn bytes(split: &Split) -> usize {
    size_of::<f32>() * (split.residual + split.summed + split.second)
}

impl OnDevice {
    /// `regions` are what is summed and what is gathered, on the host.
    pub fn new(
        (code, how): (CodecKind, &How),
        split: &Split,
        regions: [&Memory; 2],
        rank: usize,
        gradients: &Memory,
    ) -> Result<OnDevice> {
        let device = how.device;
        if split.buckets.iter().flat_map(|bucket| &bucket.tensors).any(|tensor| tensor.blocked) {
            return Err(Error::internal("gradients with padding on a device that encodes them"));
        }
        let residuals = device.allocate(size_of::<f32>() * split.residual)?;
        let buckets: Vec<CodecBucket> = split.buckets.iter().map(|bucket| coded(bucket, how.ranks)).collect();
        let [summed, messages] = regions;
        regions.into_iter().filter(|memory| memory.bytes() > 0).for_each(|memory| device.pin(memory));
        let coding =
            CodecSetup { code, buckets: &buckets, rank, gradients, residuals: &residuals, summed, messages };
        let coder = device.codec(&coding)?;
        let left = buckets.iter().map(|_| None).collect();
        Ok(OnDevice { coder, residuals, left, name: names(device)[0] })
    }
}

/// What the units of a bucket say, as the device has it.
fn coded(bucket: &Bucket, ranks: usize) -> CodecBucket {
    let pieces = bucket.phases.iter().flatten().filter_map(|unit| match unit {
        Unit::Encode(tensor, range, word) => {
            let shape = &bucket.tensors[*tensor];
            Some(CodecPiece {
                gradient: shape.start + range.start,
                residual: shape.residual + range.start,
                count: range.len(),
                word: *word,
            })
        }
        _ => None,
    });
    CodecBucket {
        pieces: pieces.collect(),
        messages: (0..ranks).map(|rank| collective::segment(&bucket.second, ranks, rank)).collect(),
        exact: bucket.exact.clone(),
        summed: bucket.summed.clone(),
    }
}

impl Compressor for OnDevice {
    /// A phase is enqueued as a whole with its first unit.
    fn run(&mut self, _: &Bucket, index: usize, unit: &Unit) -> Result<usize> {
        match unit {
            Unit::ExactIn => self.left[index] = Some(self.coder.encode(index)?),
            Unit::ExactOut => self.coder.decode(index)?,
            _ => {}
        }
        Ok(0)
    }

    fn is_settled(&self, index: usize) -> Result<bool> {
        self.left[index].as_ref().map_or(Ok(true), DeviceEvent::reached)
    }

    fn state(&self) -> Vec<Kept> {
        vec![Kept { name: self.name, memory: self.residuals.clone(), on_host: false }]
    }
}
