//! Updates of parameters: one launch for all of a bucket, or three where the rule needs norms of each parameter.

use std::rc::Rc;

use super::gpu::{Argument, Argument::*, Gpu, KernelLaunch};
use super::handle::{CudaEvent, allocate};
use super::kernel::Operands;
use crate::device::{Memory, Rule, Span, Squares, Step, Updated};
use crate::error::{Error, Result};

/// Elements that one block does at a time.
const PIECE: usize = 16_384;

/// What kernels take as `table`: pieces and spans on the GPU (`struct Piece`, `struct Span` of `kernels/update.cuh`).
struct UpdateTable {
    pieces: Memory,
    count: usize,
    spans: Memory,
    span_count: usize,
}

impl UpdateTable {
    fn new(gpu: &Gpu, spans: &[Span]) -> Result<UpdateTable> {
        let (mut pieces, mut rows) = (Vec::new(), Vec::new());
        let mut count = 0;
        for (index, span) in spans.iter().enumerate() {
            for word in [span.start as u64, span.length as u64, u64::from(span.decay)] {
                rows.extend(word.to_le_bytes());
            }
            for start in (0..span.length).step_by(PIECE) {
                let length = PIECE.min(span.length - start);
                pieces.extend(((span.start + start) as u64).to_le_bytes());
                pieces.extend((length as u32).to_le_bytes());
                pieces.extend((index as u32).to_le_bytes());
                count += 1;
            }
        }
        Ok(UpdateTable {
            pieces: put(gpu, &pieces)?,
            count,
            spans: put(gpu, &rows)?,
            span_count: spans.len(),
        })
    }
}

/// Bytes on the GPU.
pub fn put(gpu: &Gpu, bytes: &[u8]) -> Result<Memory> {
    let memory = allocate(&gpu.context, bytes.len())?;
    gpu.stream.upload(bytes, &memory)?;
    Ok(memory)
}

pub fn update(
    gpu: &Rc<Gpu>,
    rule: &Rule,
    spans: &[Span],
    &Updated { parameters, gradients, state }: &Updated,
) -> Result<Box<dyn Step>> {
    let end = spans.iter().map(|span| 4 * (span.start + span.length)).max().unwrap_or(0);
    if state.len() != rule.states()
        || [parameters, gradients].into_iter().chain(state).any(|region| region.bytes() < end)
    {
        return Err(Error::internal(format!("{rule:?}: spans reach beyond their memory")));
    }
    if let Rule::Adam { beta1, beta2, .. } | Rule::Lamb { beta1, beta2, .. } = *rule {
        gpu.set_betas(beta1, beta2);
    }
    let table = UpdateTable::new(gpu, spans)?;
    let halves = gpu.halves.update(parameters, spans);
    let scratch = allocate(&gpu.context, 16 * table.count)?;
    let trust = allocate(&gpu.context, 4 * table.span_count)?;
    Operands::step(gpu, &scratch, |operands| {
        if table.count == 0 {
            return Ok(());
        }
        let copy = halves.as_ref().map(|update| update.copy(parameters));
        let half = copy.as_ref().map_or([Null, Int(0)], |(copy, kind)| [Memory(copy), Int(*kind)]);
        let (written, of) = (parameters.clone(), gpu.clone());
        operands.push(move || {
            of.halves.updated(&written, halves.as_ref(), of.is_capturing());
            Ok(())
        });
        let state = [0, 1].map(|index| state.get(index).map_or(Null, Memory));
        let regions = [Memory(parameters), Memory(gradients), state[0], state[1]];
        launch(operands, rule, &table, &regions, &half, &trust)
    })
}

/// The launches of a rule, `regions` being parameters, gradients and the states.
fn launch(
    operands: &mut Operands,
    rule: &Rule,
    table: &UpdateTable,
    regions: &[Argument; 4],
    half: &[Argument; 2],
    trust: &Memory,
) -> Result<()> {
    let gpu = operands.gpu.clone();
    let grid = [table.count.min(1 << 16) as u32, 1, 1];
    let of_table = [Memory(&table.pieces), Int(table.count), Memory(&table.spans)];
    let [w, g, first, second] = *regions;
    let scalars = Memory(&gpu.scalars);
    let mut run = |kernel: &str, regions: &[Argument], half: &[Argument], numbers: &[Argument]| {
        operands.launch(kernel, grid, &[&of_table, regions, half, numbers].concat())
    };
    match *rule {
        Rule::Sgd { momentum, nesterov, weight_decay } => {
            let numbers = [Float(momentum), Bool(nesterov), Float(weight_decay), scalars];
            run("update_sgd", &[w, g, first], half, &numbers)
        }
        Rule::Adam { beta1, beta2, epsilon, weight_decay, decoupled } => {
            let numbers = [beta1, beta2, epsilon, weight_decay].map(Float);
            run("update_adam", regions, half, &[&numbers[..], &[Bool(decoupled), scalars]].concat())
        }
        Rule::RmsProp { rms_decay, momentum, epsilon, weight_decay, tensorflow } => {
            let numbers = [rms_decay, momentum, epsilon, weight_decay].map(Float);
            run("update_rms_prop", regions, half, &[&numbers[..], &[Bool(tensorflow), scalars]].concat())
        }
        Rule::Lars { momentum, trust: factor, weight_decay } => {
            let sums = operands.scratch(16 * table.count);
            operands.launch(
                "measure_lars",
                grid,
                &[&of_table[..], &[w, g, Memory(&sums), scalars]].concat(),
            )?;
            trust_ratios(operands, table, [&sums, trust], [Float(factor), Float(weight_decay), Bool(true)])?;
            let numbers = [Memory(trust), Float(momentum), Float(weight_decay), scalars];
            operands.launch("update_lars", grid, &[&of_table[..], &[w, g, first], half, &numbers].concat())
        }
        Rule::Lamb { beta1, beta2, epsilon, weight_decay } => {
            let sums = operands.scratch(16 * table.count);
            let numbers = [beta1, beta2, epsilon, weight_decay].map(Float);
            let measured = [&of_table[..], regions, &[Memory(&sums)], &numbers, &[scalars]].concat();
            operands.launch("measure_lamb", grid, &measured)?;
            trust_ratios(operands, table, [&sums, trust], [Float(0.0), Float(weight_decay), Bool(false)])?;
            let numbers = [Memory(trust), Float(epsilon), Float(weight_decay), scalars];
            operands.launch(
                "update_lamb",
                grid,
                &[&of_table[..], &[w, first, second], half, &numbers].concat(),
            )
        }
    }
}

/// The ratio of each span, from the sums of its pieces.
fn trust_ratios(
    operands: &mut Operands,
    table: &UpdateTable,
    [sums, trust]: [&Memory; 2],
    numbers: [Argument; 3],
) -> Result<()> {
    let of_table = [Memory(&table.pieces), Int(table.count), Memory(&table.spans)];
    let of_trust = [Int(table.span_count), Memory(sums), Memory(trust)];
    let blocks = operands.gpu.blocks(table.span_count);
    operands.launch("trust", blocks, &[&of_table[..], &of_trust, &numbers].concat())
}

/// Partial sums of squares: as many on every GPU, so that bits do not depend on it.
const PARTIALS: usize = 256;

/// Scales gradients so that their norm is at most `max_norm`.
pub fn clip(gpu: &Rc<Gpu>, max_norm: f32, gradients: &Memory) -> Result<Box<dyn Step>> {
    let (partials, factor) = (allocate(&gpu.context, 8 * PARTIALS)?, allocate(&gpu.context, 4)?);
    let n = gradients.bytes() / 4;
    Operands::step(gpu, &partials, |operands| {
        let grid = [PARTIALS as u32, 1, 1];
        operands.launch("squares", grid, &[Memory(gradients), Long(n), Memory(&partials)])?;
        let arguments = [Memory(&partials), Int(PARTIALS), Float(max_norm), Memory(&factor)];
        operands.launch("clip_factor", [1, 1, 1], &arguments)?;
        operands.launch("clip", gpu.blocks(n), &[Memory(gradients), Long(n), Memory(&factor)])
    })
}

/// The squares of gradients, added up in parts.
pub fn squares(gpu: &Rc<Gpu>, parts: &[Memory]) -> Result<Squares> {
    let parts: Vec<&Memory> = parts.iter().filter(|part| part.bytes() > 0).collect();
    let sums = allocate(&gpu.context, 8 * PARTIALS * parts.len())?;
    let step = Operands::step(gpu, &sums, |operands| {
        parts.iter().enumerate().try_for_each(|(index, part)| {
            let (n, sums) = (part.bytes() / 4, sums.slice(8 * PARTIALS * index, 8 * PARTIALS));
            operands.launch("squares", [PARTIALS as u32, 1, 1], &[Memory(part), Long(n), Memory(&sums)])
        })
    })?;
    Ok(Squares::new(step, sums))
}

/// gradients ·= `Scalars::rescale`; whether one is not finite goes to `broken`.
pub fn scale(gpu: &Rc<Gpu>, gradients: &Memory, broken: &Memory) -> Result<Box<dyn Step>> {
    if broken.bytes() < 4 {
        return Err(Error::internal("no room for a flag"));
    }
    let n = gradients.bytes() / 4;
    Operands::step(gpu, &broken.slice(0, 0), |operands| {
        let scalars = gpu.scalars.clone();
        let arguments = [Memory(gradients), Long(n), Memory(broken), Memory(&scalars)];
        operands.launch("unscale", gpu.blocks(n), &arguments)
    })
}

/// Has updates change nothing where these losses do not add up to a finite number: behind `after`, beside what is
/// enqueued.
pub fn check_losses(gpu: &Gpu, losses: &Memory, after: Option<&CudaEvent>) -> Result<()> {
    let stream = &gpu.copies.leaving;
    after.map_or(Ok(()), |after| stream.wait(after))?;
    let arguments = [Memory(losses), Long(losses.bytes() / 4), Memory(&gpu.skip_flag())];
    // SAFETY: there are as many losses, and the flag is a word of the GPU's.
    unsafe { KernelLaunch::new(gpu, "check_losses", [1; 3], &arguments) }?.run(stream)
}

/// into = decay·into + (1 − decay)·from
pub fn average(gpu: &Rc<Gpu>, decay: f32, from: &Memory, into: &Memory) -> Result<Box<dyn Step>> {
    let n = same(from, into)?;
    Operands::step(gpu, &into.slice(0, 0), |operands| {
        let scalars = gpu.scalars.clone();
        let arguments = [Memory(from), Memory(into), Long(n), Float(decay), Memory(&scalars)];
        operands.writes(std::slice::from_ref(into));
        operands.launch("average", gpu.blocks(n), &arguments)
    })
}

/// into += from
pub fn accumulate(gpu: &Rc<Gpu>, from: &Memory, into: &Memory) -> Result<Box<dyn Step>> {
    let n = same(from, into)?;
    Operands::step(gpu, &into.slice(0, 0), |operands| {
        operands.launch("accumulate_f32", gpu.blocks(n), &[Memory(from), Memory(into), Long(n)])
    })
}

fn same(from: &Memory, into: &Memory) -> Result<usize> {
    match from.bytes() == into.bytes() {
        true => Ok(from.bytes() / 4),
        false => Err(Error::internal(format!("{} bytes into {}", from.bytes(), into.bytes()))),
    }
}
