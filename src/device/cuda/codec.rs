//! Gradients encoded and decoded on the GPU: only messages travel between it and the host.

use std::rc::Rc;

use super::gpu::{Argument, Argument::*, Gpu};
use super::handle::allocate;
use super::kernel::{Enqueued, Operands};
use super::mark;
use super::update::put;
use crate::device::{
    CodecBucket, CodecKind, CodecPiece, CodecSetup, DeviceCodec, DeviceEvent, Memory as Bytes,
};
use crate::error::{Error, Result};

/// What is enqueued for one bucket, and the parts of memory on the GPU and on the host that are copied between them.
struct Encoding {
    encode: Vec<Enqueued>,
    decode: Vec<Enqueued>,
    own: [Bytes; 2],
    messages: [Bytes; 2],
    summed: [Bytes; 2],
}

pub struct CudaCodec {
    gpu: Rc<Gpu>,
    buckets: Vec<Encoding>,
}

/// Numbers of a region.
fn part(memory: &Bytes, first: usize, count: usize) -> Bytes {
    memory.slice(size_of::<f32>() * first, size_of::<f32>() * count)
}

impl CudaCodec {
    /// # Errors
    /// `Internal` where buckets reach beyond their memory, `Environment` where the GPU's does not suffice.
    pub fn new(gpu: &Rc<Gpu>, coding: &CodecSetup) -> Result<CudaCodec> {
        let CodecSetup { summed, messages, .. } = coding;
        let there = [allocate(&gpu.context, summed.bytes())?, allocate(&gpu.context, messages.bytes())?];
        let bucket = |coded: &CodecBucket| bucket(gpu, coding, coded, &there);
        let buckets = coding.buckets.iter().map(bucket).collect::<Result<_>>()?;
        Ok(CudaCodec { gpu: gpu.clone(), buckets })
    }
}

fn bucket(
    gpu: &Rc<Gpu>,
    coding: &CodecSetup,
    coded: &CodecBucket,
    [summed, messages]: &[Bytes; 2],
) -> Result<Encoding> {
    let CodecSetup { gradients, residuals, .. } = coding;
    let ends = |end: fn(&CodecPiece) -> usize, memory: &Bytes| {
        coded.pieces.iter().all(|piece| size_of::<f32>() * (end(piece) + piece.count) <= memory.bytes())
    };
    let own = coded.messages.get(coding.rank).ok_or_else(|| Error::internal("a rank without a message"))?;
    if !ends(|piece| piece.gradient, gradients) || !ends(|piece| piece.residual, residuals) {
        return Err(Error::internal("pieces beyond the end of gradients"));
    }
    let nothing = messages.slice(0, 0);
    let exact = |operands: &mut Operands, leaves: bool| {
        for (range, at) in &coded.exact {
            let [own, other] = [part(gradients, range.start, range.len()), part(summed, *at, range.len())];
            let [from, to] = if leaves { [&own, &other] } else { [&other, &own] };
            operands.copy(from, to, own.bytes());
        }
    };
    let encode = Operands::work(gpu, &nothing, |operands| {
        for (gradient, residual, count) in runs(&coded.pieces) {
            let [from, into] = [part(gradients, gradient, count), part(residuals, residual, count)];
            let arguments = [Memory(&from), Memory(&into), Long(count)];
            operands.launch("accumulate_f32", operands.gpu.blocks(count), &arguments)?;
        }
        let rows = coded.pieces.iter().map(|piece| (piece.residual, piece.count, own.start + piece.word));
        code(operands, coding.code, "encode", rows, [residuals, messages])?;
        exact(operands, true);
        Ok(())
    })?;
    let decode = Operands::work(gpu, &nothing, |operands| {
        for (gradient, _, count) in runs(&coded.pieces) {
            let (stream, sum) = (operands.gpu.stream.clone(), part(gradients, gradient, count));
            operands.push(move || stream.zero(&sum));
        }
        for of in &coded.messages {
            let rows = coded.pieces.iter().map(|piece| (piece.gradient, piece.count, of.start + piece.word));
            code(operands, coding.code, "add", rows, [messages, gradients])?;
        }
        exact(operands, false);
        Ok(())
    })?;
    let pair = |there: &Bytes, host: &Bytes, range: &std::ops::Range<usize>| {
        [part(there, range.start, range.len()), part(host, range.start, range.len())]
    };
    let all = coded.messages.iter().fold(own.clone(), |all, of| all.start.min(of.start)..all.end.max(of.end));
    Ok(Encoding {
        encode,
        decode,
        own: pair(messages, coding.messages, own),
        messages: pair(messages, coding.messages, &all),
        summed: pair(summed, coding.summed, &coded.summed),
    })
}

/// Pieces that follow one another among gradients and what stays behind, as one: gradient, residual, count.
fn runs(pieces: &[CodecPiece]) -> Vec<(usize, usize, usize)> {
    let mut runs: Vec<(usize, usize, usize)> = Vec::new();
    for piece in pieces {
        match runs.last_mut() {
            Some((gradient, residual, count))
                if *gradient + *count == piece.gradient && *residual + *count == piece.residual =>
            {
                *count += piece.count;
            }
            _ => runs.push((piece.gradient, piece.residual, piece.count)),
        }
    }
    runs
}

/// One launch of a codec for pieces given as first number, count and word of the buffer of messages (`struct Message`
/// of `kernels/compress.cuh`).
fn code(
    operands: &mut Operands,
    code: CodecKind,
    what: &str,
    rows: impl Iterator<Item = (usize, usize, usize)>,
    [from, to]: [&Bytes; 2],
) -> Result<()> {
    let (mut table, mut count) = (Vec::new(), 0);
    for (first, elements, word) in rows {
        table.extend((first as u64).to_le_bytes());
        table.extend((elements as u32).to_le_bytes());
        table.extend((word as u32).to_le_bytes());
        count += 1;
    }
    if count == 0 {
        return Ok(());
    }
    let table = put(operands.gpu, &table)?;
    let (name, number): (_, Option<Argument>) = match code {
        CodecKind::TopK { share } => ("top_k", Some(Float(share))),
        CodecKind::OneBit => ("one_bit", None),
        CodecKind::TwoBit { threshold } => ("two_bit", Some(Float(threshold))),
    };
    let arguments = [Memory(from), Memory(to), Memory(&table), Int(count)];
    let arguments: Vec<Argument> = arguments.into_iter().chain(number).collect();
    operands.launch(&format!("{name}_{what}"), [count.min(1 << 16) as u32, 1, 1], &arguments)
}

impl DeviceCodec for CudaCodec {
    fn encode(&mut self, bucket: usize) -> Result<DeviceEvent> {
        let (stream, leaving) = (&self.gpu.stream, &self.gpu.copies.leaving);
        let Encoding { encode, own, summed, .. } = &mut self.buckets[bucket];
        encode.iter().try_for_each(|work| work())?;
        leaving.wait(&stream.record()?)?;
        for [there, host] in [own, summed].into_iter().filter(|[there, _]| there.bytes() > 0) {
            // SAFETY: host memory that collectives leave alone until they are started, after the event.
            unsafe { leaving.download_later(there, host) }?;
        }
        mark(leaving)
    }

    fn decode(&mut self, bucket: usize) -> Result<()> {
        let (stream, coming) = (&self.gpu.stream, &self.gpu.copies.coming);
        let Encoding { decode, messages, summed, .. } = &mut self.buckets[bucket];
        for [there, host] in [messages, summed].into_iter().filter(|[there, _]| there.bytes() > 0) {
            // SAFETY: host memory; who writes to it next is an `encode`, behind the stream that waits for this copy.
            unsafe { coming.upload_later(host, there) }?;
        }
        stream.wait(&coming.record()?)?;
        decode.iter().try_for_each(|work| work())
    }
}
