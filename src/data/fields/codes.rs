//! Numbers that have 8 or 16 bits in their files, handed on to a device as they are. What becomes of each code is a
//! table, made by what makes numbers for the network of what is read: the same bits.

use std::ops::Range;

use super::list::FieldList;
use super::{FieldSet, SampleField};
use crate::error::{Error, Result};
use crate::fields::{ArrayReader, FileNumber};
use crate::graph::{CodeTables, DType};

/// Tables at the most: with 16 bits 16 MB of a device.
const MOST_TABLES: usize = 64;

/// Codes of samples of a batch, or the pixels of its pictures; none where they come as numbers.
#[derive(Debug, Clone, PartialEq)]
pub enum Codes {
    /// Of 8 bits, or pixels.
    Bytes(Vec<u8>),
    /// Of 16 bits, or of both.
    Words(Vec<u16>),
}

impl Default for Codes {
    fn default() -> Codes {
        Codes::Bytes(Vec::new())
    }
}

impl Codes {
    /// Room for so many codes of a type; none of any other type.
    pub fn new(dtype: DType, count: usize) -> Codes {
        match dtype {
            DType::U8 => Codes::Bytes(vec![0; count]),
            DType::U16 => Codes::Words(vec![0; count]),
            _ => Codes::default(),
        }
    }

    /// Each sample's, of so many codes.
    pub fn samples(&mut self, size: usize) -> Box<dyn Iterator<Item = CodesMut<'_>> + '_> {
        match self {
            Codes::Bytes(codes) => Box::new(codes.chunks_exact_mut(size).map(CodesMut::Bytes)),
            Codes::Words(codes) => Box::new(codes.chunks_exact_mut(size).map(CodesMut::Words)),
        }
    }

    /// Makes 0 of all from one on.
    pub fn clear_from(&mut self, first: usize) {
        match self {
            Codes::Bytes(codes) => codes.iter_mut().skip(first).for_each(|code| *code = 0),
            Codes::Words(codes) => codes.iter_mut().skip(first).for_each(|code| *code = 0),
        }
    }
}

/// Where the numbers of a sample go.
pub enum CodesMut<'a> {
    /// As numbers for a network.
    Numbers(&'a mut [f32]),
    /// As codes of 8 bits, or pixels.
    Bytes(&'a mut [u8]),
    /// As codes of 16 bits.
    Words(&'a mut [u16]),
}

impl CodesMut<'_> {
    /// Makes this of all numbers, and 0 of all codes.
    pub fn fill(&mut self, number: f32) {
        match self {
            CodesMut::Numbers(numbers) => numbers.fill(number),
            CodesMut::Bytes(codes) => codes.fill(0),
            CodesMut::Words(codes) => codes.fill(0),
        }
    }
}

/// Of all codes which end a run, and which stand for what is missing; where any does.
type MarkedCodes = [Option<Vec<bool>>; 2];

/// What becomes of each code.
type CodeTable = (Vec<f32>, MarkedCodes);

/// Tables of the inputs or of the targets of samples.
pub struct FieldCodes {
    tables: CodeTables,
    /// For each channel of each field the number of its table.
    of: Vec<Vec<usize>>,
    /// For each table.
    marked: Vec<MarkedCodes>,
}

impl FieldSet {
    /// What becomes of the numbers of inputs (`false`) or of targets (`true`) that are read as codes. `None` where they
    /// have more bits, where the files differ in what a code stands for, or where more channels are rescaled by
    /// themselves than are worth tables.
    pub fn tables(&self, of_targets: bool) -> Option<&CodeTables> {
        self.field_codes(of_targets).map(|codes| &codes.tables)
    }

    fn field_codes(&self, of_targets: bool) -> Option<&FieldCodes> {
        self.codes[usize::from(of_targets)].get_or_init(|| self.coding(of_targets)).as_ref()
    }

    fn coding(&self, of_targets: bool) -> Option<FieldCodes> {
        let FieldList { inputs, fields, .. } = &*self.list;
        // What weighs a target's points comes as numbers, and so does what it is behind.
        let range = if of_targets { *inputs..fields.len() } else { 0..*inputs };
        if of_targets && self.weights() > 0 {
            return None;
        }
        let first = &self.files[0];
        let is_coded =
            |at: usize| self.files.iter().all(|file| file.arrays[at].0.has_codes_of(&first.arrays[at].0));
        if range.is_empty() || !range.clone().all(is_coded) {
            return None;
        }
        let is_byte = |at: usize| first.arrays[at].0.element.bytes() == 1;
        let dtype = if range.clone().all(is_byte) { DType::U8 } else { DType::U16 };
        let (mut known, mut of) = (Vec::new(), vec![Vec::new(); range.start]);
        for at in range.clone() {
            of.push(self.tables_of(at, CodeTables::codes(dtype), &mut known)?);
        }
        let which = self.runs(range, &of).into();
        let (tables, marked): (Vec<Vec<f32>>, _) = known.into_iter().unzip();
        Some(FieldCodes { tables: CodeTables { dtype, which, tables: tables.concat().into() }, of, marked })
    }

    /// Adds the tables of a field's channels, and says which each has. `None` where there are too many.
    fn tables_of(&self, at: usize, codes: usize, known: &mut Vec<CodeTable>) -> Option<Vec<usize>> {
        let (array, scale) = (&self.files[0].arrays[at].0, &self.scales[at]);
        let factors = |channel: usize| [scale.scale[channel], scale.shift[channel]].map(f32::to_bits);
        let mut of: Vec<usize> = Vec::new();
        for channel in 0..self.list.shapes[at].channels() {
            if let Some(same) = (0..channel).find(|&other| factors(other) == factors(channel)) {
                of.push(of[same]);
                continue;
            }
            if known.len() == MOST_TABLES {
                return None;
            }
            let mut table = array.element.of_codes();
            array.meanings(&mut table);
            let settled = |value: &mut f32| {
                let value = std::slice::from_mut(value);
                let settled = self.logarithms(at, value).and_then(|()| {
                    self.rescale(at, channel, value);
                    self.settle(at, value)
                });
                [settled.is_err(), settled.is_ok_and(|missing| missing > 0)]
            };
            let marks: Vec<[bool; 2]> = table.iter_mut().map(settled).collect();
            // Of 8 bits among 16 there are no others.
            table.resize(codes, 0.0);
            let marked = [0, 1].map(|at| {
                let mut marked: Vec<bool> = marks.iter().map(|marks| marks[at]).collect();
                marked.resize(codes, false);
                Some(marked).filter(|codes| codes.contains(&true))
            });
            of.push(known.len());
            known.push((table, marked));
        }
        Some(of)
    }

    /// Which table each run of a sample's numbers has: runs are as long as they can be, and all alike.
    fn runs(&self, range: Range<usize>, of: &[Vec<usize>]) -> Vec<f32> {
        let FieldList { shapes, places, .. } = &*self.list;
        let one = of.iter().flatten().all(|&table| table == 0);
        if one {
            return vec![0.0];
        }
        let each = |at: usize| shapes[at].numbers() / shapes[at].channels();
        let run = range.clone().map(each).fold(0, greatest_divisor);
        let mut order: Vec<usize> = range.collect();
        order.sort_by_key(|&at| places[at]);
        let of_field = |at: usize| {
            let tables = of[at].iter().map(|&table| table as f32);
            tables.flat_map(move |table| std::iter::repeat_n(table, each(at) / run))
        };
        order.into_iter().flat_map(of_field).collect()
    }

    /// The codes of a field; returns how many stand for what is missing.
    pub(super) fn coded<T: FileNumber + Into<usize>>(
        &self,
        of: SampleField,
        readers: &mut Vec<ArrayReader>,
        to: &mut [T],
    ) -> Result<usize> {
        let at = of.at;
        let known = self.field_codes(at >= self.list.inputs);
        let known =
            known.ok_or_else(|| Error::internal(format!("{} has no codes", self.list.fields[at].text)))?;
        self.stored(of, readers, to)?;
        let each = to.len() / self.list.shapes[at].channels();
        let is_wrong = |(codes, &table): (&[T], &usize)| {
            let wrong = known.marked[table][0].as_ref();
            wrong.is_some_and(|wrong| codes.iter().any(|&code| wrong[code.into()]))
        };
        let missing = |(codes, &table): (&[T], &usize)| {
            let missing = known.marked[table][1].as_ref();
            missing.map_or(0, |missing| codes.iter().filter(|&&code| missing[code.into()]).count())
        };
        if !to.chunks_exact(each).zip(&known.of[at]).any(is_wrong) {
            return Ok(to.chunks_exact(each).zip(&known.of[at]).map(missing).sum());
        }
        // What is wrong is said as of numbers.
        self.numbers(of, readers, &mut vec![0.0; to.len()])?;
        Err(Error::internal(format!("{} has a code that ends a run", self.list.fields[at].text)))
    }
}

fn greatest_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}
